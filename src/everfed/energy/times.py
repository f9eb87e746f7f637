"""The times of a trace, in any unit that is stated; units are never guessed.

Dates are ISO 8601 (also 20260601 and 20260601T1200), year first. Numbers need a unit, from the
column's name or from time_unit, unless they can only be a Unix time: the ranges of this century in
s, ms, us and ns do not touch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.gaps import REFUSE, Gaps
from everfed.energy.trace_file import TIME_UNITS, Rows, number, shown

# Unix times of measurements, s: 1985 to 2100. A time from 0 on is shorter than the first.
_FIRST, _LAST = 5e8, 4.1e9
_EXCEL_EPOCH = datetime(1899, 12, 30, tzinfo=UTC).timestamp()
_COMPACT = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_DAY_FIRST = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b.*")
# Clocks jitter. Times may be off by this part of a step; a row that is missing is off by all of it.
JITTER = 0.01


class Times(NamedTuple):
    """step_s: from row to row. start_s: when the first row begins, as Unix time of its own clock (None: no date).
    zoned: whether that clock is UTC; else its time zone is unknown.
    places: the step of each row, counted from 0; where rows are missing, some steps have none."""

    step_s: float
    start_s: float | None
    zoned: bool
    places: Ints

    @property
    def steps(self) -> int:
        """Steps from the first row to the last."""
        return int(self.places[-1]) + 1


def read_times(rows: Rows, gaps: Gaps = REFUSE) -> Times:
    """Evenly spaced times, or an error that names the row that comes early, late or out of order."""

    def times(seconds: Floats, start_s: float | None, zoned: bool) -> Times:
        step_s, places = _steps(rows, seconds, gaps)
        return Times(step_s, start_s, zoned, places)

    first = rows.times[0]
    if isinstance(first, datetime) or not math.isfinite(number(first)):
        stamps, zoned = _dates(rows)
        return times(stamps - stamps[0], float(stamps[0]), zoned or rows.utc)
    compact = _compact(rows)
    if compact is not None:
        return times(compact - compact[0], float(compact[0]), rows.utc)
    counts = _counts(rows)
    unit = rows.time_unit or _unix_unit(rows, counts[0])
    scale = TIME_UNITS[unit]
    # Whole numbers are subtracted as such: nanoseconds since 1970 have more digits than a float.
    seconds = np.array([float(count - counts[0]) for count in counts]) * scale
    begins = float(counts[0]) * scale
    if unit == "excel":
        return times(seconds, begins + _EXCEL_EPOCH, rows.utc)
    if _FIRST <= begins <= _LAST:
        return times(seconds, begins, True)
    if abs(begins) >= _FIRST or rows.unix:
        raise rows.error(0, f"the time is {shown(first)}, which is not a date in {unit}; {_how(rows)}")
    return times(seconds, None, False)


def _steps(rows: Rows, seconds: Floats, gaps: Gaps) -> tuple[float, Ints]:
    """The time from row to row, in s, and the step of each row."""
    apart = np.diff(seconds)
    back = np.flatnonzero(apart <= 0.0)
    if len(back):
        row = int(back[0]) + 1
        twice = "the same as" if apart[back[0]] == 0.0 else "not after"
        said = f"its time is {twice} that of the row before it; sort the rows by time, one row per time."
        raise rows.error(row, said + _summer_time(rows, float(apart[back[0]]) - float(np.median(apart))))
    usual = float(np.sort(apart)[(len(apart) - 1) // 2])
    # Where gaps may be filled in, as many rows are missing as fit between two; else the next row is one step on.
    ahead = np.ones(len(apart)) if gaps.refuses else np.maximum(np.rint(apart / usual), 1.0)
    uneven = np.flatnonzero(np.abs(apart - ahead * usual) > JITTER * usual * ahead)
    if len(uneven):
        row, off = int(uneven[0]) + 1, float(apart[uneven[0]])
        if off > usual:
            said = f"a gap of {off:g} s before it, where rows are {usual:g} s apart; fill it in, or cut the trace."
            if gaps.refuses:
                said = said[:-1] + ', or say gaps = "hold", "zero" or "interpolate".'
            else:
                said = f"{off:g} s after the row before it, which is no whole number of steps of {usual:g} s."
        else:
            said = f"only {off:g} s after the row before it, where rows are {usual:g} s apart; make the steps even."
        raise rows.error(row, said + _summer_time(rows, off - usual))
    places = np.append(0, np.cumsum(ahead)).astype(np.int64)
    most = len(rows.times) + float(gaps.longest_h) * 3600.0 / usual * len(rows.times)
    if places[-1] > most:  # before anything of that length is made
        row = int(np.argmax(apart)) + 1
        raise rows.error(row, f"a gap of {apart.max():g} s before it, longer than longest_gap_h; cut the file there.")
    return float(seconds[-1] - seconds[0]) / int(places[-1]), places


def _summer_time(rows: Rows, jump: float) -> str:
    numbers = math.isfinite(number(rows.times[0])) and not isinstance(rows.times[0], datetime)
    if numbers or abs(abs(jump) - 3600.0) > 1.0:
        return ""
    return " The gap is an hour, as at a change to or from summer time: write times with their UTC offset."


def _counts(rows: Rows) -> list[int | float]:
    counts = [_count(time) for time in rows.times]
    for row, count in enumerate(counts):
        if not math.isfinite(count):
            raise rows.error(
                row, f"the time is {shown(rows.times[row])}; it must be a finite number, as in the first row."
            )
    return counts


def _count(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    whole = isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value)
    return int(value) if whole else number(value)


def _unix_unit(rows: Rows, first: float) -> str:
    """The unit in which a number without one is a Unix time of our days."""
    for unit in ("s", "ms", "us", "ns"):
        if _FIRST <= first * TIME_UNITS[unit] <= _LAST and not _is_date_and_hour(first):
            return unit
    raise rows.error(0, f"the time is {shown(rows.times[0])}, a number in an unknown unit; {_how(rows)}")


def _how(rows: Rows) -> str:
    return (
        f"set time_unit, one of {', '.join(TIME_UNITS)}, name the column seconds or time_ms, "
        "or write dates as 2026-06-01T12:00:00Z."
    )


def _is_date_and_hour(value: float) -> bool:
    """2026060112 is noon of a day, and a moment of the year 2034."""
    return _parsed(str(int(value)), "%Y%m%d%H") is not None if 2e9 <= value < 2.1e9 else False


def _compact(rows: Rows) -> Floats | None:
    """Dates written as 20260601, 202606011200 or 20260601120000, if that is what they are."""
    first = str(rows.times[0])
    layout = _COMPACT.get(len(first))
    if rows.time_unit or layout is None or not first.isdecimal() or _parsed(first, layout) is None:
        return None
    texts = [str(time) for time in rows.times]
    found = [_parsed(text, layout) if len(text) == len(first) else None for text in texts]
    return _stamps(rows, found, lambda row: f"it must be a date written as {first}, as in the first row")


def _parsed(text: str, layout: str) -> datetime | None:
    try:
        return datetime.strptime(text, layout).replace(tzinfo=UTC)
    except ValueError:
        return None


def _dates(rows: Rows) -> tuple[Floats, bool]:
    """Unix times of dates, and whether they say their offset from UTC."""
    dates = [_date(time) for time in rows.times]
    for row, date in enumerate(dates):
        if date is None and isinstance(rows.times[row], str) and _DAY_FIRST.fullmatch(rows.times[row].strip()):
            raise rows.error(
                row,
                f"the time is {rows.times[row]}, which may begin with the day or with the month; "
                "write it year first, as in 2026-06-01T12:00:00.",
            )
        if date is not None and dates[0] is not None and (date.tzinfo is None) != (dates[0].tzinfo is None):
            raise rows.error(row, "the time has an offset from UTC but those before it have none, or vice versa.")
    # Without an offset, every day has 24 hours: summer time would make a gap and an overlap.
    zoned = dates[0] is not None and dates[0].tzinfo is not None
    whole = [date if date is None or date.tzinfo else date.replace(tzinfo=UTC) for date in dates]
    return _stamps(rows, whole, lambda row: "it must be a date as in 2026-06-01T12:00:00"), zoned


def _stamps(rows: Rows, dates: Sequence[datetime | None], right: Callable[[int], str]) -> Floats:
    for row, date in enumerate(dates):
        if date is None:
            raise rows.error(row, f"the time is {shown(rows.times[row])}; {right(row)}.")
    return np.array([date.timestamp() for date in dates if date is not None])


def _date(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        return None
    text = re.sub(r"\s*(UTC|GMT)$", "+00:00", value.strip())
    text = re.sub(r"^(\d{4})/(\d{1,2})/(\d{1,2})", lambda m: f"{m[1]}-{int(m[2]):02}-{int(m[3]):02}", text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
