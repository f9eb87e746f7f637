"""A data set whose test set has no part in choosing rates. A module of its own, since processes import it by name."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.datasets import Source
from everfed.data.images import Cifar10
from everfed.random import Purpose, permutation


@ef.register("data", "held-out")
@dataclass(frozen=True)
class HeldOut:
    """A data set with `count` training samples as its test set: always the same ones, whatever the seed."""

    of: Source = Cifar10()
    count: int = 5000

    def load(self) -> Dataset:
        data: Any = self.of.load()
        order = permutation(len(data.y), seed=0, purpose=Purpose.PARTITION, stream=2**20)  # a stream no split uses
        held, kept = np.sort(order[: self.count]), np.sort(order[self.count :])
        return replace(data, x=data.x[kept], y=data.y[kept], test_x=data.x[held], test_y=data.y[held])
