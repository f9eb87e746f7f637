"""What arrives round by round: the sun at a site, or a recorded trace, on the clock of a fleet."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from everfed.arrays import Floats
from everfed.energy.solar import month_and_day
from everfed.energy.trace import Series, per_round_repeated
from everfed.errors import InputError, warn

DAY_S = 86_400.0
# How a trace continues after its end; see docs/energy.md.
EXTENDS = ("repeat", "whole-days", "wrap", "refuse")


class Clock(NamedTuple):
    """The start of round 0: midnight of a day, on a clock utc_h hours ahead of UTC."""

    round_s: float
    start_day: str = "01-01"
    utc_h: float = 0.0


class Supply(NamedTuple):
    """joules: of one watt-peak, or of the trace as it is, in each round. repeats: without end, or not known after.
    told: where they come from, in words. period_s: how long until it repeats. filled: the share of it that was missing.
    begins: the day, MM-DD, of its own calendar that round 0 lies on, if that is not the clock's; "": it is, or no date
    is known."""

    joules: Floats
    repeats: bool
    told: str
    period_s: float = 0.0
    filled: float = 0.0
    begins: str = ""


def sunlit(series: Series, clock: Clock, label: str) -> Floats:
    """Joules of one watt-peak in each round of a year, or of as many days as were recorded."""
    return per_round_repeated(series, clock.round_s, begins_s(series, clock, label))


def recorded(series: Series, extend: str, clock: Clock, label: str, name: str) -> Supply:
    """A trace, continued after its end. name: its file's."""
    if extend == "whole-days":
        series = whole_days(series, label)
    elif extend == "repeat":
        check_days(series, label)
    begins = begins_s(series, clock, label)
    told = f"{name}, {length(series.duration_s)}{dated(series)}{filled(series)}"
    if begins:
        told += f", entered {length(begins)} after its start"
    joules = per_round_repeated(series, clock.round_s, begins)
    about = (series.duration_s, series.filled, other_day(series, clock, label))
    if extend != "refuse":
        return Supply(joules, True, f"{told}, repeated from its start", *about)
    whole = int((series.duration_s - begins) / clock.round_s * (1.0 + 1e-12))
    if whole == 0:
        raise InputError(
            f"{label}: a round of {clock.round_s:g} s is longer than the part of the trace within the run, "
            f"{length(series.duration_s - begins)}; give a longer trace, or an extend other than refuse."
        )
    return Supply(joules[:whole], False, f"{told}, unknown after its end", *about)


def filled(series: Series) -> str:
    return f", {series.filled:.2%} of it filled in" if series.filled else ""


def begins_s(series: Series, clock: Clock, label: str) -> float:
    """Seconds into the series at which round 0 begins.

    A series that is dated and covers the first day begins there; any other dated one, at its first
    midnight; one without a date or a zone, at its start.
    """
    month, day = month_and_day(clock.start_day)
    if series.start_s is None or series.utc_h is None:
        return 0.0
    # By the clock of the fleet.
    start = series.start_s + (clock.utc_h - series.utc_h) * 3600.0
    first_year, last_year = (datetime.fromtimestamp(t, UTC).year for t in (start, start + series.duration_s))
    for year in range(first_year, last_year + 1):
        after = datetime(year, month, day, tzinfo=UTC).timestamp() - start
        if 0.0 <= after < series.duration_s:
            return after
    after = math.ceil(start / DAY_S) * DAY_S - start
    if after >= series.duration_s:
        raise InputError(
            f"{label}: the trace of {length(series.duration_s)} contains no midnight, at which round 0 begins; give "
            "one "
            "of whole days, or seconds from 0 in place of dates, which begin with round 0."
        )
    return after


def other_day(series: Series, clock: Clock, label: str) -> str:
    """The day, MM-DD, of a dated series that round 0 begins on, where that is not the day of the clock."""
    if series.start_s is None:
        return ""
    zone_s = 0.0 if series.utc_h is None else (clock.utc_h - series.utc_h) * 3600.0
    found = datetime.fromtimestamp(series.start_s + zone_s + begins_s(series, clock, label), UTC)
    day = f"{found:%m-%d}"
    return "" if day == clock.start_day else day


def check_days(series: Series, label: str) -> None:
    """What is repeated must bring noon to noon, where it says when noon is."""
    days = series.duration_s / DAY_S
    if days > 0.5 and math.isclose(days, round(days), rel_tol=1e-9):
        return
    said = f"{label}: the trace lasts {length(series.duration_s)}; repeated as it is, noon would drift through the day"
    if series.start_s is not None:
        raise InputError(
            f'{said}. Say extend = "whole-days" to leave the rest of a day out, "wrap" if there is no daily rhythm in '
            'it, or "refuse" if it is as long as the run.'
        )
    if series.duration_s > DAY_S:
        warn(f"{said}, if it has one.")


def check_whole_days(series: Series, what: str) -> None:
    """What is repeated and has a sun in it must bring noon to noon."""
    days = series.duration_s / DAY_S
    if days < 0.5 or not math.isclose(days, round(days), rel_tol=1e-9):
        raise InputError(
            f"{what} lasts {length(series.duration_s)}; repeated, noon would drift through the day. Cut it to whole "
            "days, best to whole years."
        )


def whole_days(series: Series, label: str) -> Series:
    """As many whole days from its start as its steps can fill."""
    for days in range(int(series.duration_s / DAY_S * (1.0 + 1e-9)), 0, -1):
        steps = days * DAY_S / series.step_s
        if math.isclose(steps, round(steps), rel_tol=1e-9):
            kept = round(steps)
            return replace(series, seconds=series.seconds[:kept], power_w=series.power_w[:kept])
    raise InputError(
        f"{label}: the trace lasts {length(series.duration_s)} in steps of {series.step_s:g} s, which fill no whole "
        'number of days; give a longer one, or say extend = "wrap" if there is no daily rhythm in it.'
    )


def length(seconds: float) -> str:
    for unit, length in (("days", DAY_S), ("h", 3600.0)):
        if seconds >= length:
            return f"{seconds / length:.6g} {unit}"
    return f"{seconds:.6g} s"


def dated(series: Series) -> str:
    if series.start_s is None:
        return ", without dates: it starts with round 0"
    when = datetime.fromtimestamp(series.start_s, UTC).strftime("%Y-%m-%d %H:%M")
    if series.utc_h is None:
        return f" from {when} of an unknown time zone: it starts with round 0"
    return f" from {when} UTC" + (f"{series.utc_h:+g} h" if series.utc_h else "")
