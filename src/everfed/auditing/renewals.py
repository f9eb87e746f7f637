"""Exact long-run rates of asynchronous clients, from the finite Markov chain of a client's energy and work.

At the start of a round, all that a client's future depends on is its supply (the place in its cycle, the weather), its
battery and what is left of its work. Clients do not wait for each other, so one chain per kind of client is enough. Its
stationary distribution gives how often work arrives; the age of the last arrival, carried along as its first two
moments, gives the square of the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from everfed.arrays import Floats
from everfed.energy.arrivals import Lump, Trickle
from everfed.energy.battery import TOLERANCE
from everfed.energy.fleet import Fleet, alike
from everfed.energy.random_arrivals import BernoulliArrivals, Markov, UniformInBlock
from everfed.energy.work import MOMENTS, Pace, Work, slots_per_round
from everfed.scheduling.policies import Energy, Policy

_MOST_STATES = 2000


class Rates(NamedTuple):
    """Per round in the long run, [N] each; steps count as parts of all local steps."""

    arrivals: Floats
    steps: Floats
    squared_steps: Floats
    squared_intervals: Floats  # E[tau^2] / E[tau]


class _Kind(NamedTuple):
    """A client's constants."""

    capacity: float
    train: float
    air: float
    radio: float
    least: float  # units that it begins with
    steps: int
    slots: int  # works in a round, at most
    affordable: bool


# What arrives in a round, by the state of the supply: (probability, units, next state).
_Supply = Callable[[Any], list[tuple[float, float, Any]]]


def rates(fleet: Fleet, policy: Policy, pace: Pace, work: Work, local_steps: int) -> Rates | None:
    """None: there is no finite chain of this fleet, or it is too large."""
    unlimited = policy.energy is Energy.UNLIMITED
    if not (unlimited or fleet.storage.lossless):
        return None
    if work.spread:
        return None if unlimited else _unsteady(fleet, pace, work)
    affordable = work.local_steps == "affordable" and not unlimited
    slots = slots_per_round(pace, work, local_steps)
    start = np.broadcast_to(fleet.storage.start, len(fleet))
    keys = np.stack([fleet.cycles(), fleet.capacity, pace.train, pace.air, pace.radio, start])
    found = np.zeros((4, len(fleet)))
    for members in alike(keys):
        i = int(members[0])
        radio = float(pace.radio[i])
        least = radio + (1.0 - radio) / local_steps if affordable else 1.0
        kind = _Kind(
            float(fleet.capacity[i]), float(pace.train[i]), float(pace.air[i]), radio, least, local_steps, slots,
            affordable,
        )  # fmt: skip
        supply: tuple[_Supply, Any] | None = (_endless, 0) if unlimited else _supply(fleet, i)
        # Unlimited energy is an endless battery.
        kind = kind._replace(capacity=np.inf) if unlimited else kind
        level = np.inf if unlimited else min(float(start[i]), kind.capacity)
        solved = None if supply is None else _solve(kind, *supply, level)
        if solved is None:
            return None
        found[:, members] = np.array(solved)[:, None]
    return Rates(*found)


def _unsteady(fleet: Fleet, pace: Pace, work: Work) -> Rates | None:
    """Works of random length, where each is done before the next unit is there: intervals are a cycle and the
    difference of two lengths."""
    longest = 1.0 + 2.0 * math.sqrt(3.0) * work.spread  # of the factors around 1
    cycles = fleet.cycles().astype(np.float64)
    regular = type(fleet.arrivals) is Lump or (type(fleet.arrivals) is Trickle and work.local_steps == "all")
    if not regular or longest > 2.0 or np.any(pace.total * longest > cycles) or np.any(fleet.storage.start):
        return None
    often = 1.0 / cycles
    return Rates(often, often, often, cycles + 2.0 * (work.spread * pace.total) ** 2 / cycles)


def _supply(fleet: Fleet, client: int) -> tuple[_Supply, Any] | None:
    """From the round in which the client starts on; what came before is no energy."""
    arrivals, cycle = fleet.arrivals, int(fleet.cycles()[client])
    chance = 1.0 / cycle
    if type(arrivals) is Lump:
        return lambda place: [(1.0, float(place == 0), (place + 1) % cycle)], 0
    if type(arrivals) is Trickle:
        return lambda begun: [(1.0, chance if begun else 1.0, True)], False
    if type(arrivals) is BernoulliArrivals:
        return lambda state: _coin(chance, 0, 0), 0
    if type(arrivals) is UniformInBlock:
        return lambda state: _in_block(state, cycle), (0, False)  # the place in the block, whether its unit has come
    if type(arrivals) is Markov:
        stays = float(arrivals.stays_good()[client])
        turns = chance * (1.0 - stays) / (1.0 - chance) if cycle > 1 else 1.0  # so that a part `chance` is good
        return lambda good: _coin(stays if good else turns, True, False), False
    return None


def _endless(state: Any) -> list[tuple[float, float, Any]]:
    return [(1.0, 1.0, state)]


def _coin(chance: float, yes: Any, no: Any) -> list[tuple[float, float, Any]]:
    return [(chance, 1.0, yes), (1.0 - chance, 0.0, no)] if chance < 1.0 else [(1.0, 1.0, yes)]


def _in_block(state: tuple[int, bool], cycle: int) -> list[tuple[float, float, Any]]:
    place, there = state
    last = place + 1 == cycle
    after, still = ((0, False), (0, False)) if last else ((place + 1, True), (place + 1, False))
    return [(1.0, 0.0, after)] if there else _coin(1.0 / (cycle - place), after, still)


def _solve(kind: _Kind, supply: _Supply, first: Any, level: float) -> tuple[float, float, float, float] | None:
    """Follow all that can happen from the start, then solve for the long run."""
    states: list[tuple[Any, float, _Busy | None]] = [(first, level, None)]
    numbers = {(first, round(level, 9), None): 0}
    steps: list[_Step] = []
    for number, (place, held, busy) in enumerate(states):  # grows
        for chance, units, then in supply(place):
            arrived, after, left = _round(kind, min(held + units, kind.capacity), busy)
            key: Any = (then, round(after, 9), left)  # sums of 1/E miss each other by a few ulps
            if key not in numbers:
                if len(states) == _MOST_STATES:
                    return None
                numbers[key] = len(states)
                states.append((then, after, left))
            steps.append(_Step(number, numbers[key], chance, arrived))
    return _long_run(len(states), steps, kind.steps)


class _Busy(NamedTuple):
    """Work at the start of a round: the moments until it arrives, and its local steps."""

    until: int
    steps: int


class _Step(NamedTuple):
    """From one state to another in a round, and (time, local steps) of what arrives in it."""

    source: int
    target: int
    chance: float
    arrived: list[tuple[float, int]]


def _round(kind: _Kind, level: float, busy: _Busy | None) -> tuple[list[tuple[float, int]], float, _Busy | None]:
    """One client's round, as the timeline has it: what arrives, then its battery and its work."""
    arrived: list[tuple[float, int]] = []
    used = now = 0
    while True:
        if busy is None:
            if used == kind.slots or level < kind.least * (1.0 - TOLERANCE):
                return arrived, level, None
            used += 1
            steps = _affords(kind, level) if kind.affordable else kind.steps
            level = max(level - kind.radio - (1.0 - kind.radio) * steps / kind.steps, 0.0)
            busy = _Busy(now + _moments(kind, steps), steps)
        if busy.until >= MOMENTS:
            return arrived, level, busy._replace(until=busy.until - MOMENTS)
        arrived.append((busy.until / MOMENTS, busy.steps))
        if kind.train + kind.air == 0.0:  # work that takes no time is done once a round
            return arrived, level, None
        now, busy = busy.until, None


def _affords(kind: _Kind, level: float) -> int:
    paid = (level - kind.radio) * kind.steps / (1.0 - kind.radio)
    return int(np.clip(np.floor(paid * (1.0 + TOLERANCE) + TOLERANCE), 1, kind.steps))


def _moments(kind: _Kind, steps: int) -> int:
    lasts = int(np.rint((kind.air + kind.train * steps / kind.steps) * MOMENTS))
    return max(lasts, 1) if kind.train + kind.air > 0.0 else 0


def _long_run(states: int, steps: list[_Step], all_steps: int) -> tuple[float, float, float, float] | None:
    chain, silent = np.zeros((states, states)), np.zeros((states, states))
    for source, target, chance, arrived in steps:
        chain[source, target] += chance
        if not arrived:
            silent[source, target] += chance
    balance, wanted = chain.T - np.eye(states), np.zeros(states)
    balance[0], wanted[0] = 1.0, 1.0  # one of the equations follows from the others
    try:
        often = np.linalg.solve(balance, wanted)
    except np.linalg.LinAlgError:  # the long run depends on chance
        return None
    # By state: the mean of the age of the last arrival at the start of a round, and of its square, times `often`. They
    # matter only where something arrives again.
    fresh, fresh_squares = np.zeros(states), np.zeros(states)
    for source, target, chance, arrived in steps:
        if arrived:
            left = 1.0 - arrived[-1][0]
            fresh[target] += often[source] * chance * left
            fresh_squares[target] += often[source] * chance * left**2
    carry = np.eye(states) - silent.T
    try:
        age = np.linalg.solve(carry, silent.T @ often + fresh)
        squares = np.linalg.solve(carry, silent.T @ (2.0 * age + often) + fresh_squares)
    except np.linalg.LinAlgError:  # nothing ever arrives
        return 0.0, 0.0, 0.0, 0.0
    count = part = squared_part = intervals = 0.0
    for source, _, chance, arrived in steps:
        weight = often[source] * chance
        for number, (time, done) in enumerate(arrived):
            count += weight
            part += weight * done / all_steps
            squared_part += weight * (done / all_steps) ** 2
            if number:
                intervals += weight * (time - arrived[number - 1][0]) ** 2
            else:
                intervals += chance * (squares[source] + 2.0 * time * age[source] + time**2 * often[source])
    return count, part, squared_part, intervals
