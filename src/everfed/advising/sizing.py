"""The smallest panel, the smallest battery, the cheapest pair and the shortest cycle that reach the target.

A size is a number of three digits on a ladder of a hundred steps per decade (2.3 % each), or the present one, from
1/32 to 64 times the present one. The group's cycle is held: it is the promise that a larger panel must keep.

Then a weight never falls as panel or battery grow. Follow the same slots with a smaller and a larger design. Either the
larger one has at least as much energy and has trained at least as often; or it has trained at least once more, and has
at most one unit less. Charging, leakage, overflow and standby keep both statements true, since they never widen a
difference nor turn it round. A slot that both or neither can pay keeps them. One that only the larger can pay leads
from the first to the second; one that only the smaller can pay leads back. So bisection finds the smallest size.
Where a round's cost is random (cost_spread), a larger design may try, fail and lose what a smaller one would have kept:
there the smallest size is sought from the top, so that all larger ones hold the target too.

A larger battery also begins with more, so that it might reach the target by its first charge alone, and starve when
that is used up. Over a year or more, a size must therefore also hold the target in each of the nine years that follow,
if the supply as given comes again and again (`World.again`). Over a shorter time the charge may be meant for it. The
argument above is about all trainings since the start; those of a later year alone may differ by one slot of a device
between two sizes.

A search is a generator that yields designs and is sent whether each reaches the target; `together` answers those of all
groups at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from everfed.advising.dates import YEAR_DAYS
from everfed.advising.world import Query, World
from everfed.arrays import Floats
from everfed.energy.supply import DAY_S

STEPS = 100  # of the ladder, per decade
LEAST, MOST = 1.0 / 32.0, 64.0

Search = Generator[list[Query], list[bool], int | None]


def ladder(present: float) -> list[float]:
    """The sizes that are tried, ascending, with the present one among them.

    >>> sizes = ladder(1.0)
    >>> sizes[0], sizes[-1], [size for size in sizes if 1 <= size < 1.1]
    (0.0316, 63.1, [1.0, 1.02, 1.05, 1.07])
    """
    first = math.ceil(STEPS * math.log10(present * LEAST) - 1e-9)
    last = math.floor(STEPS * math.log10(present * MOST) + 1e-9)
    return sorted({float(f"{10.0 ** (step / STEPS):.3g}") for step in range(first, last + 1)} | {present})


def longer_cycles(cycle: int, most: int) -> list[int]:
    """Cycles from this one up to 64 times as long, in steps of 2.3 % and at least one round.

    most: rounds of the horizon; a longer cycle need not have a slot in it.
    """
    last = math.floor(STEPS * math.log10(MOST))
    return sorted({cycle} | {c for step in range(last + 1) if (c := round(cycle * 10.0 ** (step / STEPS))) <= most})


def reaches(weights: Floats, target: float, needed: int) -> bool:
    """In the supply as given, and in so many of the drawn years."""
    return bool(weights[0] >= target - 1e-12 and years_reached(weights, target) >= needed)


def years_reached(weights: Floats, target: float) -> int:
    """Drawn years that hold the target; one without a slot misses none."""
    return int(np.count_nonzero(~(weights[1:] < target - 1e-12)))


def smallest(size: Callable[[int], Query], low: int, high: int, at_once: int, monotone: bool = True) -> Search:
    """The smallest number in low..high from which on size(number) reaches the target; None if high does not."""
    if low > high:
        return None
    if not monotone:
        return (yield from _from_the_top(size, low, high, at_once))
    found = None
    while low <= high:
        first = {high} if found is None else set()
        tried = sorted(first | {low + (high - low) * i // (at_once + 1) for i in range(1, at_once + 1)})
        tried = [number for number in tried if low <= number <= high] or [low]
        answers = yield [size(number) for number in tried]
        good = [number for number, held in zip(tried, answers, strict=True) if held]
        bad = [number for number, held in zip(tried, answers, strict=True) if not held]
        if high in bad and found is None:
            return None
        found = min(good) if good else found
        low = max([low, *(number + 1 for number in bad if found is None or number < found)])
        high = found - 1 if found is not None else high
    return found


def _from_the_top(size: Callable[[int], Query], low: int, high: int, at_once: int) -> Search:
    found = None
    while high >= low:
        tried = list(range(high, max(low, high - at_once + 1) - 1, -1))
        answers = yield [size(number) for number in tried]
        for number, held in zip(tried, answers, strict=True):
            if not held:
                return found
            found = number
        high = tried[-1] - 1
    return found


@dataclass
class Pair:
    """The cheapest pair on two ladders, both from the present size up, by branch and bound.

    best: a pair that is known to reach the target, if any.
    The smallest battery falls as the panel grows. So within an interval of panels no pair is cheaper than its smallest
    panel with the battery of its largest one, and intervals in which that is too dear are not looked into.
    """

    query: Callable[[float, float], Query]
    panels: Sequence[float]
    batteries: Sequence[float]
    cost: Callable[[float, float], float]
    at_once: int
    monotone: bool = True
    best: tuple[float, float] | None = None

    @property
    def best_cost(self) -> float:
        return math.inf if self.best is None else self.cost(*self.best)

    def _battery(self, panel: int, low: int) -> Search:
        """The smallest battery with this panel that is worth knowing: cheaper than the best pair so far."""
        wp = self.panels[panel]
        worth = [i for i in range(low, len(self.batteries)) if self.cost(wp, self.batteries[i]) < self.best_cost]
        found = yield from smallest(
            lambda i: self.query(wp, self.batteries[i]), low, max(worth, default=-1), self.at_once, self.monotone
        )
        if found is not None:
            self.best = (wp, self.batteries[found])
        # All that is known otherwise is that it is larger than what would have been worth it.
        return found if found is not None else max(worth, default=low - 1) + 1

    def _bound(self, panel: int, battery: int) -> float:
        return self.cost(self.panels[panel], self.batteries[battery])

    def search(self) -> Search:
        last = len(self.panels) - 1
        largest = yield from self._battery(last, 0)
        yield from self._battery(0, 0)
        intervals = [(0, last, largest or 0)]  # panels between the two, whose batteries are at least this
        while intervals:
            low, high, battery = intervals.pop()
            if high - low < 2 or battery >= len(self.batteries):
                continue
            if self._bound(low + 1, battery) >= self.best_cost:
                continue
            # No panel dearer than the best pair is worth it: look below that one.
            last = max(i for i in range(low + 1, high) if self._bound(i, battery) < self.best_cost)
            middle = (low + last + 1) // 2
            found = yield from self._battery(middle, battery)
            intervals += [(low, middle, found or 0), (middle, high, battery)]
        return None


def must_last(world: World) -> bool:
    """Whether sizes are judged beyond the horizon: it is a year or more, and not a time that a charge may bridge."""
    return world.rounds * world.design.spec.round_s >= (YEAR_DAYS - 1) * DAY_S


def lasts(world: World, queries: Sequence[Query], target: float) -> list[bool]:
    """Whether each holds the target beyond the horizon."""
    if not must_last(world):
        return [True] * len(queries)
    return [weight >= target - 1e-12 for weight in world.again(queries)]


def together(searches: dict[int, Search], world: World, target: float, needed: int) -> dict[int, int | None]:
    """Run the searches of several groups side by side; the result of each."""
    results: dict[int, int | None] = {}
    waiting: dict[int, list[Query]] = {}

    def advance(group: int, answers: list[bool] | None) -> None:
        try:
            waiting[group] = next(searches[group]) if answers is None else searches[group].send(answers)
        except StopIteration as stop:
            waiting.pop(group, None)
            results[group] = stop.value

    for group in searches:
        advance(group, None)
    while waiting:
        asked = dict(waiting)
        tried = [query for queries in asked.values() for query in queries]
        held = [q for q, weights in zip(tried, world.weights(tried), strict=True) if reaches(weights, target, needed)]
        good = {q for q, lasting in zip(held, lasts(world, held, target), strict=True) if lasting}
        for group, queries in asked.items():
            advance(group, [query in good for query in queries])
    return results
