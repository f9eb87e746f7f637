"""A data set that nobody owns yet, and how it is handed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.data.augment import Augment, Plain
from everfed.data.federated import FederatedData, check_labels, checked
from everfed.data.on_demand import OnDemand
from everfed.data.partition import SPLITS, Split, arrange
from everfed.data.plain import labels, samples
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, lookup, unknown
from everfed.random import check_seed


class Unowned(ABC):
    """Samples that nobody owns yet: in memory (`Dataset`), or made on demand."""

    @abstractmethod
    def split(
        self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0
    ) -> FederatedData | OnDemand:
        """Hand every training sample to exactly one client, by a split such as ByEnergy(strength=0.5)."""

    def partition(
        self, clients: int, how: str = "iid", *, fleet: Fleet | None = None, seed: int = 0, **options: Any
    ) -> Any:
        """Hand every training sample to exactly one client, by a split of `SPLITS`.

        how: "iid"; "dirichlet" (alpha=0.3, per="client" or "energy-group"); or "by-energy"
        (strength=1.0). The last two need the fleet where they follow its energy.
        """
        kind = lookup(SPLITS, how, "split")
        valid = [f.name for f in fields(kind)]
        for option in options:
            if option not in valid:
                raise InputError(unknown(f"option of the '{how}' split", option, valid or ["(none)"]))
        return self.split(kind(**options), clients, fleet=fleet, seed=seed)


@dataclass(frozen=True)
class Dataset(Unowned):
    """A data set in memory."""

    name: str
    x: npt.NDArray[Any]
    y: npt.NDArray[np.int64]
    test_x: npt.NDArray[Any]
    test_y: npt.NDArray[np.int64]
    classes: int
    augment: Augment = Plain()

    def __post_init__(self) -> None:
        for x, y, whose in (("x", "y", "the training set"), ("test_x", "test_y", "the test set")):
            object.__setattr__(self, x, samples(getattr(self, x), whose))
            object.__setattr__(self, y, labels(getattr(self, y), whose))

    def split(self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0) -> FederatedData:
        check_seed(seed)
        check_labels(self.y, self.classes, "training")
        if not isinstance(clients, int | np.integer) or clients < 1:
            raise InputError(f"clients is {clients!r}; a split needs a whole number of at least 1.")
        if fleet is not None and len(fleet) != clients:
            raise InputError(f"the fleet has {len(fleet)} clients and the split {clients}; they must be the same.")
        order, starts = arrange(split.assign(self.y, int(clients), seed, fleet), int(clients))
        return checked(
            FederatedData(
                self.x, self.y, order, starts, self.test_x, self.test_y, self.classes, self.name, self.augment
            )
        )
