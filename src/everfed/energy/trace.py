"""Recorded power or energy, read from a file and split into rounds.

A trace is a CSV or Parquet file with a column of times and a column of power or energy, evenly
spaced. Each value holds from its time until the next one, so energy is summed exactly for any length of a round.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.checks import check_within
from everfed.energy.gaps import REFUSE, Gaps, fill
from everfed.energy.times import read_times
from everfed.energy.trace_file import ENERGY, UNITS, Columns, Rows, is_missing, number, read_rows, shown
from everfed.errors import InputError
from everfed.files import read_file

# A year of seconds fits. More is a round_s in the wrong unit, better refused than swapped to disk.
MOST_ROUNDS = 50_000_000
# Where rounds do not divide a supply that repeats, so many are cut before the table starts again.
MOST_REPEATED = 1_000_000


@dataclass(frozen=True, eq=False)
class Series:
    """Power over time, constant within each step.

    seconds: [n] when each step starts, in s from the start of the first.
    power_w: [n] power during the step, in W (for a panel of one watt-peak: W per Wp).
    step_s: length of a step, in s.
    start_s: when the first step starts, by the clock of the series, as if that were UTC: seconds since
        1970 (None: no date). A typical year starts on 1 January 2001.
    utc_h: hours that this clock is ahead of UTC (None: not known).
    filled: the share of steps whose rows were missing and were filled in.
    """

    seconds: Floats
    power_w: Floats
    step_s: float
    start_s: float | None = None
    utc_h: float | None = None
    filled: float = 0.0

    @property
    def duration_s(self) -> float:
        """From the start of the first step to the end of the last, in s."""
        return len(self.power_w) * self.step_s


def read_trace(
    path: str | Path,
    column: str | None = None,
    *,
    time_column: str | None = None,
    unit: str | None = None,
    time_unit: str | None = None,
    utc_h: float | None = None,
    sha256: str | None = None,
    gaps: Gaps = REFUSE,
) -> Series:
    """The power in a CSV or Parquet file.

    column, time_column: the columns to read, if not clear from their names (power_w, energy_j, "Power [mW]"; timestamp,
    time, date, seconds). unit: W, mW, J, Wh, ... and time_unit: s, ms, us, ns, min, h or excel, if not in the names.
    utc_h: hours that the clock of times without an offset is ahead of UTC.
    sha256: the expected hash; a changed file is an error. gaps: what becomes of missing rows and empty values.
    """
    path = Path(path)
    content = read_content(path)
    found = hashlib.sha256(content).hexdigest()
    if sha256 and sha256 != found:
        raise InputError(
            f"the trace {path} has changed: its SHA-256 is {found[:12]}..., and it was {sha256[:12]}... when the "
            "experiment was described; put the old file back, or begin a new run."
        )
    series = _parsed(_Content(path, content, found), Columns(column, time_column, unit, time_unit), gaps)
    if utc_h is None:
        return series
    if series.start_s is None or series.utc_h is not None:
        why = "has no dates" if series.start_s is None else "states the UTC offset of its times"
        raise InputError(
            f"{path} {why}, and trace_utc_h is {utc_h:g}; it applies to dates without an offset. Remove it."
        )
    return replace(series, utc_h=float(utc_h))


def read_content(path: Path) -> bytes:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"a trace is a .csv or a .parquet file; got {path}.")
    try:
        return read_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no trace at {path}.") from None


@dataclass(frozen=True)
class _Content:
    """A file as it was read. Equal if name and content are."""

    path: Path
    content: bytes
    sha256: str

    def __hash__(self) -> int:
        return hash(self.sha256)


@lru_cache(maxsize=16)
def _parsed(file: _Content, columns: Columns, gaps: Gaps) -> Series:
    rows = read_rows(file.path, file.content, columns)
    if len(rows.values) < 2:
        raise InputError(f"{file.path} has {len(rows.values)} rows of data; a trace needs at least two.")
    times = read_times(rows, gaps)
    values, absent = _values(rows, gaps)
    power, missing = np.zeros(times.steps), np.ones(times.steps, bool)
    power[times.places], missing[times.places] = values * UNITS[rows.unit], absent
    power, filled = fill(power, missing, times.step_s, gaps, str(file.path))
    if rows.unit in ENERGY:
        power = power / times.step_s
    seconds: Floats = np.arange(len(power), dtype=np.float64) * times.step_s
    for array in (power, seconds):
        array.setflags(write=False)  # it is shared by all who ask for it again
    return Series(seconds, power, times.step_s, times.start_s, 0.0 if times.zoned else None, filled)


def _values(rows: Rows, gaps: Gaps) -> tuple[Floats, Bools]:
    """Every value as a number from 0 up, or an error that names the first row that is not; and which are missing,
    if those are filled in."""
    values = np.array([number(value) for value in rows.values])
    absent = np.array([not gaps.refuses and is_missing(value) for value in rows.values])
    bad = np.flatnonzero(~((values >= 0.0) & np.isfinite(values)) & ~absent)
    if len(bad):
        value = rows.values[bad[0]]
        said = f"{rows.what} is {shown(value)}; power and energy must be finite and not negative."
        if is_missing(value):
            said += ' To fill it in, say gaps = "hold", "zero" or "interpolate".'
        raise rows.error(int(bad[0]), said)
    return np.where(absent, 0.0, values), absent


def per_round(series: Series, round_s: float) -> Floats:
    """Joules in each round of round_s seconds, [rounds], the power integrated exactly.

    Rounds may be shorter or longer than a step. A last round that the series does not fill is dropped.
    """
    duration, step = series.duration_s, series.step_s
    count = int(duration / check_round(round_s) * (1.0 + 1e-12))
    if count == 0:
        raise InputError(f"a round of {round_s:g} s is longer than the whole trace of {duration:g} s.")
    _check_count(count, round_s)
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


def per_round_repeated(series: Series, round_s: float, begins_s: float = 0.0) -> Floats:
    """Joules in each round of a series without end, its copies one after the other.

    The first round begins begins_s seconds into the series. There are as many rounds as it takes to
    come back to that moment, so that they may be repeated; where that takes more than MOST_REPEATED,
    the last part of a round is dropped there.
    """
    duration, step = series.duration_s, series.step_s
    ratio = duration / check_round(round_s)
    exact = Fraction(ratio).limit_denominator(MOST_REPEATED)
    most = max(MOST_REPEATED, int(ratio))
    count = exact.numerator if abs(float(exact) - ratio) <= 1e-12 * ratio else most
    count = max(min(count, most), 1)
    _check_count(count, round_s)
    moved = begins_s / step
    if exact.denominator == 1 and count == exact.numerator and math.isclose(moved, round(moved), abs_tol=1e-9):
        return per_round(Series(series.seconds, np.roll(series.power_w, -round(moved)), step), round_s)
    cuts = begins_s + np.arange(count + 1) * float(round_s)
    nearest = np.rint(cuts / step) * step
    cuts = np.where(np.abs(cuts - nearest) <= 1e-9 * step + 4.0 * np.spacing(cuts), nearest, cuts)
    copies, inside = np.divmod(cuts, duration)
    until = np.append(0.0, np.cumsum(series.power_w * step))
    so_far = np.interp(inside, np.arange(len(until)) * step, until)
    joules: Floats = np.maximum(np.diff(copies) * until[-1] + np.diff(so_far), 0.0)
    return joules


def check_round(round_s: float) -> float:
    check_within("(0, inf)", round_s=round_s)
    return float(round_s)


def _check_count(count: int, round_s: float) -> None:
    if count > MOST_ROUNDS:
        raise InputError(
            f"rounds of {round_s:g} s cut the trace into {count} rounds; at most {MOST_ROUNDS} are supported."
        )
