"""Random arrivals: whole units at random rounds, each a pure function of (seed, client, round).

A client that needs E rounds per unit on average gets one with probability 1/E in every round; the processes differ in
how units cluster. They cache the last round, so that the next one is cheap; any round can still be evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.checks import Checked
from everfed.errors import InputError

_LONG = 1000.0  # mean rounds of a spell beyond which looking back to its beginning takes too long


@dataclass(frozen=True)
class RandomArrivals(Checked):
    """What random processes share. ids: which clients these are; their chance depends on it."""

    regular: ClassVar[bool] = False
    cycles: Ints
    offsets: Ints
    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    _memory: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.ids) == 0:
            object.__setattr__(self, "ids", np.arange(len(self.cycles)))

    def part(self, clients: Ints) -> Self:
        mine = {"cycles": self.cycles[clients], "offsets": self.offsets[clients], "ids": self.ids[clients]}
        return replace(self, **mine, _memory={})

    def _word(self, round: int, seed: Seeds) -> npt.NDArray[np.uint64]:
        """32 random bits of every client for this round. One call of the generator serves four rounds."""
        index, lane = divmod(round % 2**32, 4)
        memory = self._memory
        if memory.get("index") != index or memory.get("seed") is not seed:
            memory.update(
                index=index, seed=seed, words=random.words(seed, random.Purpose.ARRIVAL, self.ids, index, lanes=4)
            )
        word: npt.NDArray[np.uint64] = memory["words"][lane]
        return word

    @property
    def window_capacity(self) -> Floats:
        """A unit is spent as it comes, so one is enough."""
        return np.ones(len(self.cycles))

    def chance(self, round: int) -> Floats | None:
        chance: Floats = np.where(self.offsets <= round, 1.0 / self.cycles, 0.0)
        return chance

    def harvest(self, round: int, seed: Seeds) -> Floats:
        started: Bools = self.offsets <= round
        return (self._arrives(round, seed) & started).astype(np.float64)

    def _arrives(self, round: int, seed: Seeds) -> Bools:
        raise NotImplementedError


@dataclass(frozen=True)
class BernoulliArrivals(RandomArrivals):
    """A unit with probability 1/E in every round, independently of the past: radio, motion."""

    @cached_property
    def _bound(self) -> npt.NDArray[np.uint64]:
        return _share(1.0 / self.cycles)

    def _arrives(self, round: int, seed: Seeds) -> Bools:
        arrives: Bools = self._word(round, seed) < self._bound
        return arrives


@dataclass(frozen=True)
class UniformInBlock(RandomArrivals):
    """Exactly one unit in every block of E rounds from the offset on, at a uniformly random place.

    A greedy client then has the law of Algorithm 1, without waiting.
    """

    def _arrives(self, round: int, seed: Seeds) -> Bools:
        since = np.maximum(round - self.offsets, 0)
        place = random.below(self.cycles, seed, random.Purpose.ARRIVAL, self.ids, since // self.cycles)
        arrives: Bools = place == since % self.cycles
        return arrives


@dataclass(frozen=True)
class Markov(RandomArrivals):
    """Good and bad spells: a unit in every round of a good spell, none in a bad one.

    Good spells last `spell` rounds on average, and the share of good rounds is 1/E, so bad ones
    last spell * (E - 1). The chain is stationary from the first round on, exactly: each round's uniform number means
    good, bad, or as before, and the state is that of the last round that was not as before. So any round can be
    computed without simulating all rounds up to it. Spells of more than a thousand rounds begin with round 0: the round
    before it is good with chance 1/E.
    """

    spell: Annotated[float, "[1, 1e6]"] = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self._turns_good(), self.stays_good()
        if np.any(low > high):
            short = int(np.argmax(low > high))
            least = self.cycles[short] / (self.cycles[short] - 1)
            raise InputError(
                f"spell is {self.spell:g}, but client {self.ids[short]} with a cycle of {self.cycles[short]} has good "
                f"spells of {least:.3g} rounds at least; give that or more."
            )

    def _turns_good(self) -> Floats:
        """The chance that a bad round is followed by a good one."""
        rest = np.maximum(self.cycles - 1.0, 0.0)
        with np.errstate(divide="ignore"):
            chance: Floats = np.where(rest > 0, 1.0 / (self.spell * rest), 1.0)
        return chance

    def stays_good(self) -> Floats:
        """The chance that a good round is followed by a good one."""
        chance: Floats = np.where(self.cycles > 1, 1.0 - 1.0 / self.spell, 1.0)
        return chance

    @cached_property
    def _bounds(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        return _share(self._turns_good()), _share(self.stays_good())

    def _arrives(self, round: int, seed: Seeds) -> Bools:
        memory = self._memory
        if memory.get("round") == round - 1 and memory.get("weather of") is seed:
            good, bad = self._decided(round, seed)
            good |= memory["good"] & ~bad
        else:
            good = self._look_back(round, seed)
        memory.update({"round": round, "weather of": seed, "good": good})
        return good

    def _decided(self, round: int, seed: Seeds) -> tuple[Bools, Bools]:
        """(it is good whatever was before, it is bad whatever was before)."""
        word = self._word(round, seed)
        turns, stays = self._bounds
        return word < turns, word >= stays

    def _look_back(self, round: int, seed: Seeds) -> Bools:
        good, bad = self._decided(round, seed)
        back = round
        while not np.all(good | bad):
            back -= 1
            if back < 0 and self.spell > _LONG:
                return good | (~bad & (self._word(-1, seed) < _share(1.0 / self.cycles)))
            earlier_good, earlier_bad = self._decided(back, seed)
            good, bad = good | (earlier_good & ~bad), bad | (earlier_bad & ~good)
        return good


def _share(chance: Floats) -> npt.NDArray[np.uint64]:
    """The bound below which a random 32-bit word falls with this chance."""
    return np.round(chance * 2.0**32).astype(np.uint64)
