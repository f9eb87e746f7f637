"""Data sets before they are split over clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy.typing as npt

from everfed.arrays import Inputs, Ints, taken
from everfed.checks import check_count
from everfed.data.augment import Augment, Plain
from everfed.data.federated import FederatedData, checked
from everfed.data.held_out import STOPPING, held_out
from everfed.data.on_demand import OnDemand
from everfed.data.owners import Owners
from everfed.data.partition import SPLITS, Natural, Split, arrange, check_enough
from everfed.data.plain import Pair, labels, samples
from everfed.data.targets import AUTO, CLASSIFICATION, as_targets, check_labels, check_targets, task_of
from everfed.data.times import Times
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, unknown
from everfed.random import check_seed
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

    def without_part(self, part: float, by: str, seed: int = 0) -> tuple[CentralDataset, Pair]:
        """The same without a part of the training samples, and that part, for early stopping."""
        raise InputError(f"{type(self).__name__} data cannot hold samples out for early_stopping; remove it.")

    def partition(
        self, clients: int, how: str = "iid", *, fleet: Fleet | None = None, seed: int = 0, **options: Any
    ) -> Any:
        """Assign every training sample to exactly one client, by a split in `SPLITS`.

        how: "iid"; "dirichlet" (alpha=0.3, per="client" or "energy-group"); or "by-energy"
        (strength=1.0); or "natural" (match="random"), the data's own clients. Splits that depend on energy need the
        fleet.
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
    x: Inputs
    y: npt.NDArray[Any]
    test_x: Inputs
    test_y: npt.NDArray[Any]
    classes: int  # of labels; the vocabulary of tokens; 0 for regression
    augment: Augment = Plain()
    task: str = AUTO  # follows from the targets
    owners: Owners | None = None  # natural clients
    times: Times | None = None  # of training samples that follow each other; None: they lie in no order

    def __post_init__(self) -> None:
        for x, y, whose in (("x", "y", "the training set"), ("test_x", "test_y", "the test set")):
            object.__setattr__(self, x, samples(getattr(self, x), whose))
            object.__setattr__(self, y, labels(getattr(self, y), whose))
        if self.owners is not None:
            self.owners.check_lengths(len(self.y), len(self.test_y))
        if self.times is not None:
            self.times.check_length(len(self.y))

    def hold_out(self, part: float, seed: int = 0) -> Dataset:
        """Held out before the split, stratified by class; of natural clients from each in proportion.

        So the held-out samples are distributed like the test set, whatever the split, and the clients' shares do not
        change. A fraction of each client's samples would be very few in a fleet of small clients. Of samples that
        follow each other in time the last are held out, and what overlaps with them is left out (`Times`).
        """
        check_seed(seed)
        kept, held = self._held_out(part, seed, owners=self.owners.train if self.owners else None)
        owners = self.owners.held_out(kept, held) if self.owners else None
        x, test_x, times = taken(self.x, kept), taken(self.x, held), self._times(kept)
        return replace(self, x=x, y=self.y[kept], test_x=test_x, test_y=self.y[held], owners=owners, times=times)

    def without_part(self, part: float, by: str, seed: int = 0) -> tuple[Dataset, Pair]:
        """By sample: as `hold_out`. By client: some natural clients; their test samples stay, as nobody's."""
        check_seed(seed)
        known = self.owners.train if self.owners else None
        kept, held = self._held_out(part, seed, owners=known if by == "client" else None, by=by, stream=STOPPING)
        owners = self.owners.without(held) if self.owners and by == "client" else None
        mine = replace(self, x=taken(self.x, kept), y=self.y[kept], owners=owners, times=self._times(kept))
        return mine, (taken(self.x, held), as_targets(self.y[held], self._task()))

    def _times(self, samples: Ints) -> Times | None:
        return None if self.times is None else self.times.only(samples)

    def _held_out(self, part: float, seed: int, **how: Any) -> tuple[Ints, Ints]:
        classified = self._task() == CLASSIFICATION
        if classified:
            check_labels(self.y, self.classes, "training")
        return held_out(self.y, self.classes if classified else 0, part, seed, times=self.times, **how)

    def split(self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0) -> FederatedData:
        check_seed(seed)
        check_targets(as_targets(self.y, self._task()), self.classes, self._task(), "training")
        check_count("clients", clients)
        if fleet is not None and len(fleet) != clients:
            raise InputError(f"the fleet has {len(fleet)} clients and the split {clients}; they must be the same.")
        if isinstance(split, Natural) and self.owners is not None:
            return self._natural(split.deal(self.owners, int(clients), seed, fleet))
        check_enough(len(self.y), clients)
        order, starts = arrange(split.assign(self.y, int(clients), seed, fleet), int(clients))
        return checked(self._federated(order, starts))

    def _natural(self, dealt: Ints) -> FederatedData:
        assert self.owners is not None
        owners, training, test = self.owners.only(dealt)
        order, starts = arrange(owners.train, len(dealt))
        x, test_x = taken(self.x, training), taken(self.test_x, test)
        test_y, times = self.test_y[test], self._times(training)
        mine = replace(self, x=x, y=self.y[training], test_x=test_x, test_y=test_y, owners=None, times=times)
        return checked(mine._federated(order, starts, owners.test, owners.names))

    def _federated(
        self, order: Ints, starts: Ints, test_owner: Ints | None = None, names: tuple[str, ...] = ()
    ) -> FederatedData:
        return FederatedData(
            self.x, self.y, order, starts, self.test_x, self.test_y, self.classes, self.name, self.augment,
            self.task, test_owner, names, self.times,
        )  # fmt: skip

    def _task(self) -> str:
        return task_of(self.y, self.classes) if self.task == AUTO else self.task
