"""Arrivals that change permanently during a run, for example when a panel becomes shaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from everfed.arrays import Floats, Ints, Seeds
from everfed.checks import Checked, CountOrZero
from everfed.energy.arrivals import Arrivals
from everfed.energy.random_arrivals import RandomArrivals
from everfed.errors import InputError


@dataclass(frozen=True)
class Changing(Checked):
    """The arrivals of `before` up to round `at`, and those of `after` from then on.

    The clients do not know of the change: their cycles and offsets stay those of `before`. `after` is evaluated at the
    rounds of the run, not at rounds since the change.

    >>> from everfed.energy.arrivals import Lump
    >>> start = np.array([0])
    >>> slower = Changing(Lump(np.array([2]), start), Lump(np.array([3]), start), at=6)
    >>> [int(slower.harvest(r, seed=0)[0]) for r in range(12)]
    [1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0]
    """

    regular: ClassVar[bool] = False
    before: Arrivals
    after: Arrivals
    at: CountOrZero

    def __post_init__(self) -> None:
        super().__post_init__()
        clients = len(self.before.cycles), len(self.after.cycles)
        if clients[0] != clients[1]:
            raise InputError(
                f"arrivals are of {clients[0]} clients before the change and of {clients[1]} after it; "
                "they must be of the same clients."
            )

    @property
    def cycles(self) -> Ints:
        return self.before.cycles

    @property
    def offsets(self) -> Ints:
        return self.before.offsets

    @property
    def window_capacity(self) -> Floats:
        return np.maximum(self.before.window_capacity, self.after.window_capacity)

    def part(self, clients: Ints) -> Changing:
        return Changing(self.before.part(clients), self.after.part(clients), self.at)

    def chance(self, round: int) -> Floats | None:
        """After the change for random units only: what had been saved of another completes sooner than by itself."""
        if round < self.at:
            return self.before.chance(round)
        return self.after.chance(round) if isinstance(self.after, RandomArrivals) else None

    def harvest(self, round: int, seed: Seeds) -> Floats:
        return (self.before if round < self.at else self.after).harvest(round, seed)
