"""Data sets before they are split over clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.checks import check_count
from everfed.data.augment import Augment, Plain
from everfed.data.federated import FederatedData, check_labels, checked
from everfed.data.on_demand import OnDemand
from everfed.data.partition import SPLITS, Split, arrange, check_enough
from everfed.data.plain import labels, samples
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, unknown
from everfed.random import Purpose, check_seed, permutation
from everfed.registry import lookup


class CentralDataset(ABC):
    """A data set before it is split: in memory (`Dataset`), or generated on demand."""

    @abstractmethod
    def split(
        self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0
    ) -> FederatedData | OnDemand:
        """Assign every training sample to exactly one client, by a split such as ByEnergy(strength=0.5)."""

    def hold_out(self, part: float, seed: int = 0) -> CentralDataset:
        """The same with a fraction of the training samples in place of the test set, for tuning.

        The test set is removed, so tuning cannot depend on it.
        """
        raise InputError(f"{type(self).__name__} data cannot hold samples out for validation; leave validation at 0.")

    def partition(
        self, clients: int, how: str = "iid", *, fleet: Fleet | None = None, seed: int = 0, **options: Any
    ) -> Any:
        """Assign every training sample to exactly one client, by a split in `SPLITS`.

        how: "iid"; "dirichlet" (alpha=0.3, per="client" or "energy-group"); or "by-energy"
        (strength=1.0). Splits that depend on energy need the fleet.
        """
        kind = lookup(SPLITS, how, "split")
        valid = [f.name for f in fields(kind)]
        for option in options:
            if option not in valid:
                raise InputError(unknown(f"option of the '{how}' split", option, valid or ["(none)"]))
        return self.split(kind(**options), clients, fleet=fleet, seed=seed)


@dataclass(frozen=True)
class Dataset(CentralDataset):
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

    def hold_out(self, part: float, seed: int = 0) -> Dataset:
        """Held out before the split, stratified by class.

        So the held-out samples are distributed like the test set, whatever the split, and the clients' shares do not
        change. A fraction of each client's samples would be very few in a fleet of small clients.
        """
        check_seed(seed)
        check_labels(self.y, self.classes, "training")
        count = round(part * len(self.y))
        if not 0 < count < len(self.y):
            raise InputError(f"a part of {part} of {len(self.y)} training samples leaves no samples on one side.")
        # Ranks within the class, spread evenly over 0 to 1: the lowest have all classes in proportion.
        place = np.empty(len(self.y))
        shuffled = permutation(len(self.y), seed, Purpose.VALIDATION)
        for c in range(self.classes):
            members = shuffled[self.y[shuffled] == c]
            place[members] = (np.arange(len(members)) + 0.5) / max(1, len(members))
        order = shuffled[np.argsort(place[shuffled], kind="stable")]
        held, kept = np.sort(order[:count]), np.sort(order[count:])
        return replace(self, x=self.x[kept], y=self.y[kept], test_x=self.x[held], test_y=self.y[held])

    def split(self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0) -> FederatedData:
        check_seed(seed)
        check_labels(self.y, self.classes, "training")
        check_count("clients", clients)
        if fleet is not None and len(fleet) != clients:
            raise InputError(f"the fleet has {len(fleet)} clients and the split {clients}; they must be the same.")
        check_enough(len(self.y), clients)
        order, starts = arrange(split.assign(self.y, int(clients), seed, fleet), int(clients))
        return checked(
            FederatedData(
                self.x, self.y, order, starts, self.test_x, self.test_y, self.classes, self.name, self.augment
            )
        )
