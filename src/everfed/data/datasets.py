"""Data sets by name. Each is a small class with `load()`, and a row in `DATASETS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from everfed import registry
from everfed.data.corpora import Shakespeare, Speeches
from everfed.data.dataset import CentralDataset, Dataset
from everfed.data.folder import Folder
from everfed.data.huggingface import FromHub
from everfed.data.images import Cifar10, FashionMnist, Mnist
from everfed.data.on_demand_synthetic import Synthetic
from everfed.data.smartwatch import Smartwatch
from everfed.random import Purpose, permutation
from everfed.registry import lookup


def load(name: str) -> Dataset:
    """A data set by name, not yet split: `partition(clients=..., how=...)` does that.

    name: one of `DATASETS`; those that are not included are downloaded and verified on first use.

    >>> load("digits").x.shape
    (1437, 1, 8, 8)
    """
    return lookup(DATASETS, name, "data set")().load()  # type: ignore[no-any-return]


class Source(Protocol):
    """The protocol of the data sets in `DATASETS`. Fields are options."""

    def load(self) -> CentralDataset: ...


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8x8 pixels, included in scikit-learn; a fixed 20 % is the test set."""

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits  # a second to import

        raw = load_digits()
        x = (raw.images / 16.0).astype(np.float32)[:, None]
        y = raw.target.astype(np.int64)
        shuffled = permutation(len(y), seed=0, purpose=Purpose.PARTITION)
        test, train = np.split(shuffled, [360])
        return Dataset("digits", x[train], y[train], x[test], y[test], classes=10)


DATASETS: dict[str, type[Any]] = {
    "digits": Digits,
    "cifar10": Cifar10,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "shakespeare": Shakespeare,
    "speeches": Speeches,
    "smartwatch": Smartwatch,
    "synthetic": Synthetic,
    "folder": Folder,
    "huggingface": FromHub,
}
registry.table("data", DATASETS, Source)
