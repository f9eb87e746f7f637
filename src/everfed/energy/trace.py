"""Recorded power or energy, read from a file and cut into rounds.

A trace is a CSV or Parquet file with a column of times and a column of watts or joules, evenly
spaced. Each row holds from its time until the next one, so energy is summed exactly, whatever
the length of a round.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.errors import InputError, unknown

TIMES = ("timestamp", "time", "seconds")
VALUES = ("power_w", "energy_j")

# Clocks jitter. Times may be off by this part of a step; a row that is missing is off by all of it.
JITTER = 0.01
# A year of seconds fits. More is a round_s in the wrong unit, better refused than swapped to disk.
MOST_ROUNDS = 50_000_000


@dataclass(frozen=True, eq=False)
class Series:
    """Power over time, constant within each step.

    seconds: [n] when each step starts, in s from the start of the first.
    power_w: [n] power during the step, in W (for a panel of one watt-peak: W per Wp).
    step_s: length of a step, in s.
    """

    seconds: Floats
    power_w: Floats
    step_s: float

    @property
    def duration_s(self) -> float:
        """From the start of the first step to the end of the last, in s."""
        return len(self.power_w) * self.step_s


@dataclass(frozen=True)
class _Rows:
    """Two columns of a file as they are written; lines[i] is how a message names row i."""

    path: Path
    what: str
    times: Sequence[Any]
    values: Sequence[Any]
    lines: Sequence[str]

    def error(self, row: int, said: str) -> InputError:
        return InputError(f"{self.path}, {self.lines[row]}: {said}")


def read_trace(path: str | Path, column: str | None = None) -> Series:
    """The power in a CSV or Parquet file.

    Times are in a column named timestamp, time or seconds: ISO 8601, or seconds as numbers. Values
    are in power_w (W) or energy_j (J in the step that starts there). column: another name; it holds
    W, or J if it ends in _j.
    """
    path = Path(path)
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"a trace is a .csv or a .parquet file; got {path}.")
    if not path.is_file():
        raise InputError(f"there is no trace at {path}.")
    try:
        rows = readers[path.suffix.lower()](path, column)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if len(rows.values) < 2:
        raise InputError(f"{path} has {len(rows.values)} rows of data; a trace needs two to have a step.")
    step_s = _step(rows)
    power = _values(rows)
    if rows.what.endswith("_j"):
        power = power / step_s
    seconds: Floats = np.arange(len(power), dtype=np.float64) * step_s
    return Series(seconds, power, step_s)


def per_round(series: Series, round_s: float) -> Floats:
    """Joules in each round of round_s seconds, [rounds], the power integrated exactly.

    Rounds may be shorter or longer than a step. A last round that the series does not fill is dropped.
    """
    if isinstance(round_s, bool) or not isinstance(round_s, int | float | np.number) or not 0 < round_s < math.inf:
        raise InputError(f"round_s is {round_s!r}; a round lasts a finite number of seconds above 0.")
    duration, step = series.duration_s, series.step_s
    count = int(duration / round_s * (1.0 + 1e-12))
    if count == 0:
        raise InputError(f"a round of {round_s:g} s is longer than the whole trace of {duration:g} s.")
    if count > MOST_ROUNDS:
        raise InputError(f"rounds of {round_s:g} s cut the trace into {count} rounds; at most {MOST_ROUNDS} are held.")
    cuts = np.arange(count + 1) * float(round_s)
    # A cut that means the start of a step must be it to the last bit, or a round of the night
    # would get a sliver of the day.
    nearest = np.rint(cuts / step) * step
    cuts = np.where(np.abs(cuts - nearest) <= 1e-9 * step, nearest, cuts)
    starts = np.arange(len(series.power_w)) * step
    edges = np.unique(np.concatenate([cuts, starts[starts < cuts[-1]]]))
    length = np.diff(edges)
    in_step = np.searchsorted(starts, edges[:-1], side="right") - 1
    joules: Floats = np.add.reduceat(series.power_w[in_step] * length, np.searchsorted(edges, cuts[:-1]))
    return joules


def _read_csv(path: Path, column: str | None) -> _Rows:
    times, values, lines = [], [], []
    try:
        # Spreadsheets put a byte order mark in front of the first name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            when, what = _columns(path, names, column)
            time_at, value_at = names.index(when), names.index(what)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    raise InputError(f"{path}, line {reader.line_num}: {len(row)} fields, but {len(names)} columns.")
                times.append(row[time_at].strip())
                values.append(row[value_at].strip())
                lines.append(f"line {reader.line_num}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    return _Rows(path, what, times, values, lines)


def _read_parquet(path: Path, column: str | None) -> _Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        when, what = _columns(path, pq.read_schema(path).names, column)
        table = pq.read_table(path, columns=[when, what])
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}.") from error
    times = table[when]
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(times.type):
        count = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
        seconds: list[Any] = [None if c is None else c / 1e6 for c in count]
    else:
        seconds = times.to_pylist()
    values = table[what].to_pylist()
    return _Rows(path, what, seconds, values, [f"row {row}" for row in range(1, len(values) + 1)])


def _columns(path: Path, names: Sequence[str], column: str | None) -> tuple[str, str]:
    """The names of the columns of times and of values."""
    when = [name for name in TIMES if name in names]
    if not when:
        raise InputError(
            f"{path} has no column of times, named {' or '.join(TIMES)}; it has {', '.join(names) or 'none'}."
        )
    if column is not None:
        if column not in names:
            raise InputError(f"{path}: {unknown('column', column, names)}")
        return when[0], column
    what = [name for name in VALUES if name in names]
    if len(what) == 2:
        raise InputError(f"{path} has both {' and '.join(VALUES)}; say which column to read.")
    if not what:
        others = [name for name in names if name != when[0]]
        near = [unknown("column", name, VALUES) for name in others]
        hint = next((f" {said}" for said in near if "Did you mean" in said), "")
        raise InputError(
            f"{path} has no column {' or '.join(VALUES)}; it has {', '.join(names)}.{hint} "
            "Rename it, or say which column to read."
        )
    return when[0], what[0]


def _values(rows: _Rows) -> Floats:
    """Every value as a number from 0 up, or an error that names the first row that is not."""
    values = np.array([_number(value) for value in rows.values])
    bad = np.flatnonzero(~((values >= 0.0) & np.isfinite(values)))
    if len(bad):
        said = f"{rows.what} is {_shown(rows.values[bad[0]])}; power and energy are finite numbers from 0 up."
        raise rows.error(int(bad[0]), said)
    return values


def _step(rows: _Rows) -> float:
    """The time from row to row, in s, or an error that names the row that comes early or late."""
    seconds = _seconds(rows)
    apart = np.diff(seconds)
    back = np.flatnonzero(apart <= 0.0)
    if len(back):
        raise rows.error(int(back[0]) + 1, "its time is not after that of the row before it; sort the rows by time.")
    usual = float(np.sort(apart)[(len(apart) - 1) // 2])
    uneven = np.flatnonzero(np.abs(apart - usual) > JITTER * usual)
    if len(uneven):
        row, off = int(uneven[0]) + 1, float(apart[uneven[0]])
        if off > usual:
            said = f"a gap of {off:g} s before it, where rows are {usual:g} s apart; fill it in, or cut the trace."
        else:
            said = f"only {off:g} s after the row before it, where rows are {usual:g} s apart; make the steps even."
        raise rows.error(row, said)
    return float(seconds[-1] - seconds[0]) / (len(seconds) - 1)


def _seconds(rows: _Rows) -> Floats:
    """Times in seconds from the first; the first row says whether they are numbers or dates."""
    numbers = math.isfinite(_number(rows.times[0]))
    times: list[Any] = [_number(time) if numbers else _date(time) for time in rows.times]
    for row, time in enumerate(times):
        if time is None or (isinstance(time, float) and not math.isfinite(time)):
            kind = "a finite number of seconds, as in the first row" if numbers else "a date as in 2026-06-01T12:00:00"
            raise rows.error(row, f"the time is {_shown(rows.times[row])}; it must be {kind}.")
        if isinstance(time, datetime) and (time.tzinfo is None) != (times[0].tzinfo is None):
            raise rows.error(row, "the time has an offset from UTC and those before it have none, or the reverse.")
    if numbers:
        return np.array(times, np.float64) - float(times[0])
    # Without an offset, every day has 24 hours: summer time would make a gap and an overlap.
    dates = [time if time.tzinfo else time.replace(tzinfo=UTC) for time in times]
    return np.array([(date - dates[0]).total_seconds() for date in dates])


def _number(value: Any) -> float:
    """The value as a float; nan if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _date(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _shown(value: Any) -> str:
    return "missing" if value is None or value == "" else str(value)
