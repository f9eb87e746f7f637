"""The work of asynchronous clients: how long it takes, what it costs, and what becomes of it when energy runs out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from everfed.arrays import Floats
from everfed.checks import BelowOne, Checked, NonNegative
from everfed.errors import InputError

# Time is counted in whole moments, so that what happens at one moment does so in every run, resumed or not.
MOMENTS = 1 << 20  # in a round


@dataclass(frozen=True)
class Work(Checked):
    """The work of asynchronous clients, from download to upload.

    duration: rounds that it takes, where the fleet does not say (default 1); devices have their own times.
    spread: relative standard deviation of the duration, from one work to the next.
    local_steps: "all", or "affordable": a client begins as soon as its battery pays for one step, with as many steps as
        it pays for.
    partial: what becomes of work during which the battery runs out: "lose" it, or "send" the steps done by then.

    >>> import everfed as ef
    >>> ef.Experiment(mode="asynchronous", policy=ef.Greedy(), work=ef.Work(duration=2.0)).asynchronous
    True
    """

    duration: NonNegative | None = None
    spread: BelowOne = 0.0
    local_steps: Annotated[str, ("all", "affordable")] = "all"
    partial: Annotated[str, ("lose", "send")] = "lose"

    @property
    def fewer_steps(self) -> bool:
        """Whether some work may have fewer than all local steps."""
        return self.local_steps == "affordable" or self.partial == "send"


@dataclass(frozen=True)
class Pace:
    """How fast the clients of a fleet are, [N] each."""

    train: Floats  # rounds that all local steps take
    air: Floats  # rounds of sending and listening
    radio: Floats  # the part of a unit of energy that the radio takes; the local steps share the rest

    @property
    def total(self) -> Floats:
        return self.train + self.air

    def shortest(self, steps: int) -> float:
        """Rounds of the shortest work that takes any time, of one of these steps."""
        least = self.train / steps + self.air
        return float(least[least > 0.0].min(initial=math.inf))


def pace_of(work: Work, clients: int, own: Pace | None) -> Pace:
    """own: what the fleet says itself."""
    if own is not None and work.duration is not None:
        raise InputError(
            f"work.duration is {work.duration:g} rounds, but devices take their own time: local steps of step_s "
            "seconds each, and the radio's. Remove it, or set step_s of a group."
        )
    if own is not None:
        return own
    duration = 1.0 if work.duration is None else work.duration
    return Pace(np.full(clients, duration), np.zeros(clients), np.zeros(clients))


def check_pace(pace: Pace, cycles: Floats | None) -> None:
    """cycles: rounds between two harvests of a work's energy; None: energy is unlimited."""
    if cycles is None:
        if not np.all(pace.total > 0.0):
            raise InputError(
                "work takes no time and energy is unlimited, so that clients would work without end; give "
                "work.duration, as in 0.5, or a method that obeys the batteries."
            )
        return
    long = np.flatnonzero(pace.total > cycles * (1.0 + 1e-9))
    if len(long):
        first = long[0]
        raise InputError(
            f"work takes client {first} {pace.total[first]:g} rounds, and its cycle is {cycles[first]:g}: it would "
            f"harvest faster than it can work ({len(long)} of {len(cycles)} clients). Give a shorter work.duration, or "
            "longer cycles."
        )


def slots_per_round(pace: Pace, work: Work, local_steps: int) -> int:
    """How many works of one client are expected within a round, at most; each has its own random numbers."""
    shortest = pace.shortest(local_steps if work.fewer_steps else 1)
    return max(1, math.ceil((1.0 - 1e-9) / shortest)) * (2 if work.spread else 1)


class Lasting:
    """Random factors of a duration: positive, of mean 1 and of this relative standard deviation.

    exp(a z) over its mean, where z is the sum of four uniform numbers, of mean 0 and deviation 1. The mean of exp(a z)
    is (sinh b / b)^4 with b = a sqrt(3) / 2, so that a follows from the deviation.
    """

    def __init__(self, spread: float) -> None:
        low, high = 0.0, 4.0
        for _ in range(60):
            middle = (low + high) / 2.0
            variance = _mean(2.0 * middle) / _mean(middle) ** 2 - 1.0
            low, high = (middle, high) if variance < spread**2 else (low, middle)
        self.strength = low

    def factors(self, bell: Floats) -> Floats:
        """bell: z of each work."""
        found: Floats = np.exp(self.strength * bell) / _mean(self.strength)
        return found


def _mean(strength: float) -> float:
    b = strength * math.sqrt(3.0) / 2.0
    return (math.sinh(b) / b) ** 4 if b > 1e-9 else 1.0
