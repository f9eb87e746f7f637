"""Policies for energy that nobody can foresee: weigh by chance, or by experience.

With random supply no slot can be fixed beforehand. A client trains when its battery allows, and what
its update must be multiplied by is one over its chance of taking part: known from the battery's law
(`Thrifty`), or learnt from its own past (`SelfWeighted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from everfed import random
from everfed.arrays import Floats
from everfed.errors import InputError
from everfed.scheduling.policies import Clients, Decision, IndependentPolicy, State, View

# Larger batteries hardly ever run empty or full at these rates: their law is that of this many units.
_MOST_LEVELS = 60


@lru_cache(maxsize=4096)
def participation_chance(rate: float, capacity: int, least: int, chance: float) -> float:
    """The long-run chance of taking part, where a unit comes with chance `rate` in every round.

    A client with at least `least` units takes part with this `chance`; its battery holds `capacity`
    units. Exact: the stationary law of the battery's level. For a battery of one unit it is
    chance * rate / (chance + rate - chance * rate).

    >>> round(participation_chance(0.2, capacity=1, least=1, chance=0.5), 6)
    0.166667
    """
    levels = min(capacity, _MOST_LEVELS) + 1
    moves = np.zeros((levels, levels))  # moves[a, b]: the chance to go from level a to b in a round
    joins = np.zeros(levels)
    for level in range(levels):
        for arrives, likely in ((1, rate), (0, 1.0 - rate)):
            held = min(level + arrives, levels - 1)
            taking = chance if held >= least else 0.0
            moves[level, held] += likely * (1.0 - taking)
            if taking:
                moves[level, held - 1] += likely * taking
            joins[level] += likely * taking
    # Only levels that an empty battery can come to: who spends at once never holds a second unit.
    reached = np.zeros(levels, np.bool_)
    reached[0] = True
    for _ in range(levels):
        reached |= reached @ (moves > 0)
    moves, joins = moves[np.ix_(reached, reached)], joins[reached]
    # The stationary law solves x = x M with sum(x) = 1: one equation is redundant and makes room for the sum.
    system = moves.T - np.eye(len(moves))
    system[-1] = 1.0
    stationary = np.linalg.solve(system, np.eye(len(moves))[-1])
    return float(stationary @ joins)


@dataclass(frozen=True)
class Thrifty(IndependentPolicy):
    """With at least `least` units in the battery, train with this chance; scale by one over the long-run chance.

    Waiting for more than one unit, or tossing a coin, spreads the participations of a bursty supply
    over time, at the price of energy that overflows. The scale is exact in the long run for
    bernoulli arrivals of rate 1/E; for others it is that of the same mean rate. It is not for
    supplies that change with the season: `SelfWeighted` follows those.
    """

    least: int = 1
    chance: float = 1.0

    def __post_init__(self) -> None:
        if self.least < 1:
            raise InputError(f"least is {self.least}; a round costs one unit.")
        if not 0.0 < self.chance <= 1.0:
            raise InputError(f"chance is {self.chance}; it must be above 0 and at most 1.")

    def init(self, clients: Clients, round: int = 0) -> State:
        capacity = np.floor(clients.capacity + 1e-9).astype(np.int64)
        if np.any(capacity < self.least):
            short = int(np.argmax(capacity < self.least))
            raise InputError(
                f"client {clients.ids[short]} has a battery of {clients.capacity[short]:g} units and would wait for "
                f"{self.least}; it could never train."
            )
        chances = [
            participation_chance(1.0 / int(cycle), int(room), self.least, self.chance)
            for cycle, room in zip(clients.cycles, capacity, strict=True)
        ]
        return {"clients": clients, "scale": 1.0 / np.array(chances)}

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        wants = view.affords & (view.level >= self.least * (1.0 - 1e-9))
        if self.chance < 1.0:
            wants = wants & (random.uniform(clients.seed, random.Purpose.COIN, clients.ids, view.round) < self.chance)
        return Decision(wants, state["scale"], state)


@dataclass(frozen=True)
class SelfWeighted(IndependentPolicy):
    """Train as soon as there is energy; scale by the mean number of rounds between one's own participations.

    Nobody tells the client its cycle. The weight is FedAU's (Wang & Ji, ICLR 2024), kept by the client
    instead of the server: the mean of its past intervals, before this round's is known, so that it does
    not depend on whether the client takes part now. An interval counts as over after `cutoff` rounds,
    which bounds the weight; a client rarer than that is weighed too little. memory: how many intervals
    the mean remembers; the fewer, the sooner it follows a supply that changes, and the more it wavers.

    A device must keep its three numbers through a power cut, or begin to learn anew.
    """

    learns: ClassVar[bool] = True
    cutoff: int = 200
    memory: int = 1000

    def __post_init__(self) -> None:
        for name in ("cutoff", "memory"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")

    def init(self, clients: Clients, round: int = 0) -> State:
        shape = clients.shape()
        return {"since": np.zeros(shape), "records": np.zeros(shape), "weight": np.ones(shape)}

    def step(self, state: State, view: View) -> Decision:
        join = view.affords
        since = state["since"] + 1.0
        over = join | (since >= self.cutoff)
        records: Floats = np.minimum(state["records"], self.memory - 1.0)
        learnt = np.where(over, (records * state["weight"] + since) / (records + 1.0), state["weight"])
        later = {"since": np.where(over, 0.0, since), "records": np.where(over, records + 1.0, records)}
        return Decision(join, state["weight"], {**later, "weight": learnt})
