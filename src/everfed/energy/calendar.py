"""Rounds as dates, and what part of the year a run sees.

A fleet's first round begins at midnight of its start_day. Typical years have 365 days and no number, so that dates have
no year either.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np

from everfed.arrays import Ints
from everfed.energy.physical import DeviceFleet
from everfed.energy.solar import DAYS_BEFORE_MONTH, month_and_day
from everfed.energy.supply import DAY_S, Clock
from everfed.errors import some

YEAR_S = 365 * DAY_S
_SEASONAL_S = 300 * DAY_S  # a supply that is as long has seasons
_NOTEWORTHY = 0.05


def moment(clock: Clock, round: float) -> datetime:
    """When a round begins, by the fleet's clock, in a year that stands for all."""
    month, day = month_and_day(clock.start_day)
    into = (datetime(2001, month, day, tzinfo=UTC) - datetime(2001, 1, 1, tzinfo=UTC)).total_seconds()
    return datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=(into + round * clock.round_s) % YEAR_S)


def date_of(clock: Clock, round: float) -> str:
    """
    >>> date_of(Clock(43_200.0, "06-01"), 0), date_of(Clock(43_200.0, "06-01"), 61)
    ('1 Jun 00:00', '1 Jul 12:00')
    """
    found = moment(clock, round)
    return f"{found.day} {found:%b %H:%M}"


def covered(spec: DeviceFleet, rounds: int) -> str:
    """
    >>> covered(DeviceFleet(round_s=86_400.0), 31)
    '1 Jan to 31 Jan'
    """
    first, last = moment(spec.clock, 0), moment(spec.clock, max(rounds - 1e-6, 0.0))
    if rounds * spec.round_s > YEAR_S * (1.0 + 1e-9):
        return f"{rounds * spec.round_s / YEAR_S:.3g} years from {first.day} {first:%b}"
    ends = [f"{one.day} {one:%b}" for one in (first, last)]
    return " to ".join(dict.fromkeys(ends))


def part_of_year(spec: DeviceFleet, rounds: int) -> str | None:
    """What to know of a run that ends before its supply's year does; None if there is nothing."""
    if rounds * spec.round_s >= 0.98 * YEAR_S:
        return None
    found = []
    for label, supply in zip(spec.labels, spec.supplies(), strict=True):
        if supply.period_s >= _SEASONAL_S and len(supply.joules) > rounds:
            whole_days = max(rounds, math.ceil(DAY_S / spec.round_s))
            part = float(supply.joules[:whole_days].mean() / supply.joules.mean())
            if abs(part - 1.0) > _NOTEWORTHY:
                found.append((label, part))
    if not found:
        return None
    found.sort(key=lambda pair: -abs(math.log(max(pair[1], 1e-9))))
    shares = some([f"{label} {part:.0%}" for label, part in found], 4)
    return (
        f"the run covers {covered(spec, rounds)}, {rounds * spec.round_s / YEAR_S:.2g} of a year, and the supply "
        f"varies over the year: in this part it is, of its yearly mean, {shares}. Cycles follow from the whole year; "
        f"{math.ceil(YEAR_S / spec.round_s * (1.0 - 1e-9)):,} rounds are a year."
    )


def ticks(clock: Clock, rounds: int) -> list[tuple[float, str]]:
    """(round, label) of the dates that an axis of so many rounds shows: quarters of a day, days, or months.

    >>> ticks(Clock(86_400.0, "01-15"), 60)
    [(0.0, '15 Jan'), (17.0, '1 Feb'), (45.0, '1 Mar')]
    """
    seconds, start = rounds * clock.round_s, moment(clock, 0)
    if seconds > 120 * DAY_S:
        return _months(clock, rounds, every=1 + int(seconds / (13 * 31 * DAY_S)))
    if seconds > 40 * DAY_S:
        return [(0.0, f"{start.day} {start:%b}")] * (start.day != 1) + _months(clock, rounds)
    step_s = next(step for step in (6 * 3600.0, 12 * 3600.0, DAY_S, 2 * DAY_S, 7 * DAY_S) if seconds / step <= 9)
    places = [step_s * number for number in range(int(seconds / step_s) + 1)]
    found = [(place / clock.round_s, moment(clock, place / clock.round_s)) for place in places]
    timed = step_s < DAY_S
    if len(found) < 2:  # hours say more
        return []
    return [(at, f"{when.day} {when:%b}" + f"{when:\n%H:%M}" * timed) for at, when in found]


def _months(clock: Clock, rounds: int, every: int = 1) -> list[tuple[float, str]]:
    """The first of every so many months."""
    start = moment(clock, 0)
    found, month, passed_s = [], start.month, (datetime(2001, start.month, 1, tzinfo=UTC) - start).total_seconds()
    number = 0
    while passed_s <= rounds * clock.round_s:
        if passed_s >= 0.0 and number % every == 0:
            first = datetime(2001, month, 1, tzinfo=UTC)
            short = rounds * clock.round_s > 120 * DAY_S
            found.append((passed_s / clock.round_s, f"{first:%b}" if short else f"1 {first:%b}"))
        number += passed_s >= 0.0
        passed_s += (DAYS_BEFORE_MONTH[month] - DAYS_BEFORE_MONTH[month - 1]) * DAY_S
        month = month % 12 + 1
    return found


def by_month(clock: Clock, rounds: int) -> list[tuple[str, Ints]]:
    """The months that a run sees, from its first, each with the rounds that begin in it, whatever the year.

    >>> [(name, len(which)) for name, which in by_month(Clock(86_400.0, "12-01"), 400)]
    [('Dec', 62), ('Jan', 35), ('Feb', 28), ('Mar', 31), ('Apr', 30), ('May', 31), ('Jun', 30), ('Jul', 31), \
('Aug', 31), ('Sep', 30), ('Oct', 31), ('Nov', 30)]
    """
    start = moment(clock, 0)
    into_s = (start - datetime(2001, 1, 1, tzinfo=UTC)).total_seconds()
    days = ((into_s + np.arange(rounds) * clock.round_s) % YEAR_S) / DAY_S
    months = np.searchsorted(DAYS_BEFORE_MONTH, days, side="right") - 1
    order = [(start.month - 1 + later) % 12 for later in range(12)]
    found = [(f"{datetime(2001, month + 1, 1):%b}", np.flatnonzero(months == month)) for month in order]
    return [(name, which) for name, which in found if len(which)]
