"""Policies for unpredictable energy, scaled by probability or by experience.

With a random supply no slot can be fixed in advance. A client trains when its battery allows, and the scale of its
update is the inverse of its probability of taking part: computed from the battery's law (`Thrifty`), or learnt from its
past (`SelfWeighted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from everfed import random
from everfed.arrays import Floats
from everfed.checks import Count
from everfed.errors import InputError
from everfed.scheduling.policies import Clients, Decision, Policy, State, View

# Larger batteries are taken to be this large: their chance differs by less than one part in as many.
_MOST_UNITS = 10_000


@lru_cache(maxsize=4096)
def participation_chance(
    rate: float, capacity: float, min_units: int, chance: float, again: float | None = None
) -> float:
    """The long-run probability of taking part, for whole units of energy that arrive at random.

    A unit comes in a share `rate` of the rounds: independently of the past, or in spells, where `again` is the
    chance that a round with a unit is followed by another one. A client with at least `min_units` units takes part
    with this `chance`; its battery holds `capacity` units. Exact: the stationary law of the weather and the
    battery's level. For independent units and a battery of one it is chance * rate / (chance + rate - chance * rate).

    >>> round(participation_chance(0.2, capacity=1, min_units=1, chance=0.5), 6)
    0.166667
    """
    if rate == 1.0:
        return chance  # the battery fills up, and every round can be paid for
    top = int(
        min(capacity, min_units if chance == 1.0 else _MOST_UNITS + min_units)
    )  # who spends at once holds no more
    repeats = rate if again is None else again
    begins = rate * (1.0 - repeats) / (1.0 - rate)
    weather = np.array([[1.0 - begins, begins], [1.0 - repeats, repeats]])  # from without, with a unit to the same

    def taken(level: int) -> float:
        return chance if level >= min_units else 0.0

    def moves(level: int) -> tuple[Floats, Floats, Floats]:
        """The chances to go a level down, to stay, and to go up; [weather before, weather after] each."""
        held = min(level + 1, top)
        without, with_unit = weather * [1.0, 0.0], weather * [0.0, 1.0]
        down, stay = without * taken(level), without * (1.0 - taken(level))
        if level == top:
            return down + with_unit * taken(held), stay + with_unit * (1.0 - taken(held)), 0.0 * weather
        return down, stay + with_unit * taken(held), with_unit * (1.0 - taken(held))

    # Whoever once held `min_units` units never again holds less than one below. From the top, level after level is
    # eliminated: what goes up from a level comes back to it some time later.
    bottom = min_units - 1
    leads = []  # from the weight of a level to that of the next one
    back = np.zeros((2, 2))
    for level in range(top, bottom, -1):
        down, stay, _ = moves(level)
        lead = moves(level - 1)[2] @ np.linalg.inv(np.eye(2) - stay - back)
        leads.append(lead)
        back = lead @ down
    returns = moves(bottom)[1] + back - np.eye(2)
    weight = np.linalg.solve(np.stack([returns[:, 0], np.ones(2)]), [0.0, 1.0])
    total = joins = 0.0
    for level in range(bottom, top + 1):
        total += float(weight.sum())
        joins += float(weight @ weather @ [taken(level), taken(min(level + 1, top))])
        if level < top:
            weight = weight @ leads[top - 1 - level]
    return joins / total


@dataclass(frozen=True)
class Thrifty(Policy):
    """With at least `min_units` units in the battery, train with this chance; scale by one over the long-run chance.

    Waiting for more than one unit, or training with a chance below 1, spreads the participations of a bursty supply
    over time, but wastes energy. The scale is exact in the long run for whole units that arrive independently or in
    spells (bernoulli and markov arrivals) into a battery without losses. Other supplies are an error, since their law
    is unknown: use `SelfWeighted`. With min_units = 1 and chance = 1 a client trains on arrival and is scaled by its
    cycle, with any supply.

    min_units: units that the battery must hold.
    chance: of training, with that many.
    """

    min_units: Count = 1
    chance: Annotated[float, "(0, 1]"] = 1.0

    def init(self, clients: Clients, round: int = 0) -> State:
        capacity = np.floor(clients.capacity + 1e-9)
        if np.any(capacity < self.min_units):
            short = int(np.argmax(capacity < self.min_units))
            raise InputError(
                f"client {clients.ids[short]} has a battery of {clients.capacity[short]:g} units, below min_units = "
                f"{self.min_units}; it could never train."
            )
        if self.min_units == 1 and self.chance == 1.0:
            return {"clients": clients, "scale": clients.cycles.astype(np.float64)}
        again = np.full(len(clients.ids), np.nan) if clients.again is None else clients.again
        if np.any(np.isnan(again)):
            raise InputError(
                f"thrifty cannot compute the scale of client {clients.ids[int(np.argmax(np.isnan(again)))]}: it needs "
                "bernoulli or markov arrivals of whole units and a battery without losses. Use self-weighted, or "
                "min_units = 1 and chance = 1."
            )
        chances = [
            participation_chance(1.0 / int(cycle), float(room), self.min_units, self.chance, float(often))
            for cycle, room, often in zip(clients.cycles, capacity, again, strict=True)
        ]
        return {"clients": clients, "scale": 1.0 / np.array(chances)}

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        wants = view.affords & (view.level >= self.min_units * (1.0 - 1e-9))
        if self.chance < 1.0:
            wants = wants & (random.uniform(clients.seed, random.Purpose.COIN, clients.ids, view.round) < self.chance)
        return Decision(wants, state["scale"], state)


@dataclass(frozen=True)
class SelfWeighted(Policy):
    """Train as soon as there is energy; scale by the mean number of rounds between the client's participations.

    The client does not need to know its cycle. The weight is FedAU's (Wang & Ji, ICLR 2024), computed by the client
    instead of the server: the mean of its past intervals, without the current one, so that it does not depend on
    whether the client takes part now. An interval ends after `cutoff` rounds at the latest, which bounds the weight;
    clients that train less often have too little weight. memory: the number of intervals averaged; fewer follow a
    changing supply faster but are noisier.

    A device must keep its three numbers through a power cut; otherwise it starts learning again.

    cutoff: rounds after which an interval ends, at the latest.
    """

    learns: ClassVar[bool] = True
    cutoff: Count = 200
    memory: Count = 1000

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
