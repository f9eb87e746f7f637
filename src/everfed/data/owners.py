"""Natural clients: data that belong to somebody before they are split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from everfed.arrays import Ints
from everfed.data.plain import whole_numbers
from everfed.errors import InputError, some


@dataclass(frozen=True, eq=False)
class Owners:
    """Who the samples of a data set belong to: its natural clients."""

    train: Ints  # [samples] the natural client of each training sample, 0 to len(names) - 1
    test: Ints  # [test samples] the same for the test set; -1: nobody's
    names: tuple[str, ...]  # of the natural clients
    # What is known of each client, one value per client: {"play": ("hamlet", ...), "characters": (1234.0, ...)}.
    columns: dict[str, tuple[str | float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("train", 0), ("test", -1)):
            numbers = whole_numbers(getattr(self, name), f"the owners of the {name} samples")
            object.__setattr__(self, name, numbers)
            bad = np.flatnonzero((numbers < least) | (numbers >= len(self.names)))
            if len(bad):
                raise InputError(
                    f"the owner of {name} sample {some(bad)} is {numbers[bad[0]]}; the clients are 0 to "
                    f"{len(self.names) - 1}."
                )
        empty = np.flatnonzero(self.sizes() == 0)
        if len(empty):
            raise InputError(f"client {some([self.names[i] for i in empty])} holds no samples; leave it out.")
        for name, values in self.columns.items():
            if len(values) != len(self.names):
                raise InputError(f"the column '{name}' has {len(values)} values for {len(self.names)} clients.")

    def __len__(self) -> int:
        return len(self.names)

    def sizes(self) -> Ints:
        """[clients] how many training samples each holds."""
        return np.bincount(self.train, minlength=len(self.names))

    def check_lengths(self, training: int, test: int) -> None:
        for what, owners, samples in (("training", self.train, training), ("test", self.test, test)):
            if len(owners) != samples:
                raise InputError(f"{len(owners)} owners were given for {samples} {what} samples; give one per sample.")

    def held_out(self, kept: Ints, held: Ints) -> Owners:
        """The owners after some training samples have taken the place of the test set."""
        return replace(self, train=self.train[kept], test=self.train[held])

    def without(self, held: Ints) -> Owners:
        """The owners that none of these training samples belongs to, numbered anew; all test samples stay."""
        chosen = np.setdiff1d(np.arange(len(self.names)), self.train[held])
        number = np.full(len(self.names) + 1, -1, np.int64)  # the last one for -1: nobody
        number[chosen] = np.arange(len(chosen))
        return replace(self.only(chosen)[0], test=number[self.test])

    def only(self, clients: Sequence[int] | Ints) -> tuple[Owners, Ints, Ints]:
        """(the owners of these clients' samples, which training samples those are, which test samples).

        Clients are numbered anew, in the order given; test samples that are nobody's stay.
        """
        chosen = np.asarray(clients, np.int64)
        number = np.full(len(self.names) + 1, -1, np.int64)  # the last one for -1: nobody
        number[chosen] = np.arange(len(chosen))
        training = np.flatnonzero(number[self.train] >= 0)
        test = np.flatnonzero((number[self.test] >= 0) | (self.test < 0))
        columns = {name: tuple(values[i] for i in chosen) for name, values in self.columns.items()}
        names = tuple(self.names[i] for i in chosen)
        return Owners(number[self.train[training]], number[self.test[test]], names, columns), training, test
