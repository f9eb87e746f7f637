"""When energy arrives, in units of one training round's cost.

An arrival process is a pure function of (seed, client, round). It is evaluated one round at a time for all clients and
does not depend on the horizon, so a longer run begins with the same rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from everfed import registry
from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.energy.random_arrivals import BernoulliArrivals, Markov, UniformInBlock


class Arrivals(Protocol):
    """How much energy each client harvests in each round."""

    @property
    def regular(self) -> bool:
        """Whether a unit is available whenever a window opens, as exact laws require."""
        ...

    @property
    def cycles(self) -> Ints:
        """[N] rounds a client needs to harvest one unit."""
        ...

    @property
    def offsets(self) -> Ints:
        """[N] the first round in which a client has energy."""
        ...

    @property
    def window_capacity(self) -> Floats:
        """[N] battery, in units, with which one participation per window never overflows."""
        ...

    def part(self, clients: Ints) -> Arrivals:
        """The arrivals of these clients only, for devices that simulate their own energy."""
        ...

    def chance(self, round: int) -> Floats | None:
        """[N] the probability that a unit becomes complete in this round; None without a formula.

        A greedy client trains with this probability.
        """
        ...

    def harvest(self, round: int, seed: Seeds) -> Floats:
        """Units newly available to each client at the start of this round, [N].

        With seeds of shape [S, 1], random processes return [S, N]; the others still [N].
        """
        ...


@dataclass(frozen=True)
class Cyclic:
    """What regular processes share: a unit is complete at rounds o, o + E, o + 2E, ..."""

    regular: ClassVar[bool] = True
    cycles: Ints
    offsets: Ints

    def part(self, clients: Ints) -> Self:
        return replace(self, cycles=self.cycles[clients], offsets=self.offsets[clients])

    def chance(self, round: int) -> Floats | None:
        return self._due(round).astype(np.float64)

    def _due(self, round: int) -> Bools:
        # Divisions are slow, and peers are due together: one for each kind of client.
        cycles, offsets, kind = self._kinds
        since_start = round - offsets
        due: Bools = (since_start >= 0) & (since_start % cycles == 0)
        return due.take(kind)

    @cached_property
    def _kinds(self) -> tuple[Ints, Ints, Ints]:
        """The distinct (cycles, offsets), and which of them each client has."""
        key = self.cycles * (int(self.offsets.max(initial=0)) + 1) + self.offsets
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        return self.cycles[first], self.offsets[first], kind


@dataclass(frozen=True)
class Lump(Cyclic):
    """One whole unit at rounds o, o + E, o + 2E, ...: the model that the paper implicitly uses.

    A battery of one unit suffices: the unit of a window is spent before the next one arrives.
    """

    @property
    def window_capacity(self) -> Floats:
        return np.ones(len(self.cycles))

    def harvest(self, round: int, seed: Seeds) -> Floats:
        return self._due(round).astype(np.float64)


@dataclass(frozen=True)
class Trickle(Cyclic):
    """One unit at round o, then 1/E of a unit at the end of every round.

    A client that waits for its random slot can hold up to 2 - 1/E units, so a battery of one unit overflows and some
    slots are skipped.
    """

    @property
    def window_capacity(self) -> Floats:
        capacity: Floats = 2.0 - 1.0 / self.cycles
        return capacity

    def harvest(self, round: int, seed: Seeds) -> Floats:
        since_start = round - self.offsets
        flow = np.where(since_start > 0, 1.0 / self.cycles, 0.0)
        return np.where(since_start == 0, 1.0, flow)


ARRIVALS: dict[str, type[Any]] = {
    "lump": Lump,
    "trickle": Trickle,
    "bernoulli": BernoulliArrivals,
    "uniform-in-block": UniformInBlock,
    "markov": Markov,
}
registry.table("arrivals", ARRIVALS, Arrivals, given=("cycles", "offsets"))
