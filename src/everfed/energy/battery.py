"""Batteries that fill, overflow and empty, and the books that must balance.

All amounts are in units of one training round's cost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Bools, Floats

# Sums of 1/E miss a whole unit by a few ulps; this much is forgiven.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Books:
    """Energy of a whole fleet up to and including a round, in units.

    harvested + shortfall = spent + wasted + stored, at every round. `shortfall` is energy that
    was spent without being there; `violations` counts the participations that did so.
    """

    harvested: float = 0.0
    spent: float = 0.0
    wasted: float = 0.0
    stored: float = 0.0
    shortfall: float = 0.0
    violations: int = 0

    def imbalance(self) -> float:
        return self.harvested + self.shortfall - self.spent - self.wasted - self.stored

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Battery:
    """The level of every client's battery; charge, ask, spend, once a round each.

    copies: leading axis for audits, which run many seeds of one fleet side by side.
    """

    def __init__(self, capacity: Floats, copies: tuple[int, ...] = ()) -> None:
        self.capacity = capacity
        self.level: Floats = np.zeros((*copies, len(capacity)))
        self.harvested = self.spent = self.wasted = self.shortfall = 0.0
        self.violations = 0

    def charge(self, arrived: Floats) -> None:
        """Take in this round's arrivals; what does not fit is wasted."""
        self.level += arrived
        overflow = self.level - self.capacity
        np.maximum(overflow, 0.0, out=overflow)
        self.level -= overflow
        self.harvested += float(arrived.sum()) * (self.level.size // arrived.size)
        self.wasted += float(overflow.sum())

    def affords(self, cost: float = 1.0) -> Bools:
        """Which clients can pay for a round now."""
        result: Bools = self.level >= cost * (1.0 - TOLERANCE)
        return result

    def spend(self, join: Bools, cost: float = 1.0) -> None:
        """Pay for these clients' round; what an empty battery cannot give is a shortfall."""
        level, payers = self.level.reshape(-1), np.flatnonzero(join)
        after = level[payers] - cost
        missing = np.maximum(-after, 0.0)
        level[payers] = after + missing
        self.spent += cost * len(after)
        self.shortfall += float(missing.sum())
        # The rounding that `affords` forgives stays in the books, but is no violation.
        self.violations += int(np.count_nonzero(missing > cost * TOLERANCE))

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        totals = np.array([self.harvested, self.spent, self.wasted, self.shortfall])
        return {"level": self.level, "totals": totals, "violations": np.array(self.violations)}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.level = state["level"].copy()
        self.harvested, self.spent, self.wasted, self.shortfall = state["totals"].tolist()
        self.violations = int(state["violations"])

    def books(self) -> Books:
        return Books(self.harvested, self.spent, self.wasted, float(self.level.sum()), self.shortfall, self.violations)
