"""A CSV table of irradiance, such as a weather station or a satellite service gives.

    time,ghi,temp_air
    2025-01-01T00:00:00+01:00,0,-3.1
    2025-01-01T01:00:00+01:00,0,-3.4

Columns: times as in a trace, `ghi` (global horizontal irradiance), and if known `dni` and `dhi` (direct normal and
diffuse horizontal), `temp_air` and `wind_speed`, in W/m2, degrees Celsius and m/s unless a name says otherwise.
A value is the mean of the step that begins at its time.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.energy.gaps import Gaps, fill
from everfed.energy.times import read_times
from everfed.energy.trace_file import Rows, is_missing, number, shown, time_names
from everfed.errors import InputError, unknown
from everfed.files import read_file

# Factor and offset of one of each unit.
_LIGHT = {"W/m2": (1.0, 0.0), "kW/m2": (1e3, 0.0)}
_HEAT = {"C": (1.0, 0.0), "K": (1.0, -273.15)}
_WIND = {"m/s": (1.0, 0.0), "km/h": (1.0 / 3.6, 0.0)}
UNITS = {"ghi": _LIGHT, "dni": _LIGHT, "dhi": _LIGHT, "temp_air": _HEAT, "wind_speed": _WIND}
_NAME = re.compile(r"(ghi|dni|dhi|temp_air|wind_speed)(?:\s*[\[(]\s*([^\])]+?)\s*[\])]|_(.+))?", re.IGNORECASE)
_LONGEST_STEP_S = 3600.0


@dataclass(frozen=True)
class Table:
    """columns: by name, each of the same length. utc_h: of the clock of start_s; None: unknown."""

    columns: dict[str, Floats]
    start_s: float
    step_s: float
    utc_h: float | None
    filled: float


class _Column(NamedTuple):
    name: str
    at: int
    factor: float
    offset: float


def is_table(path: Path) -> bool:
    """Whether the first line of a CSV file names a column of global irradiance, as no format of typical years does."""
    try:
        names = _header(_lines(path))[1]
    except (InputError, csv.Error):
        return False
    return any((found := _NAME.fullmatch(name)) and found[1].lower() == "ghi" for name in names)


def read_table(path: Path, gaps: Gaps) -> Table:
    lines = _lines(path)
    try:
        first, names, mark = _header(lines)
        columns = _columns(path, names)
        when, time_unit, utc = time_names(path, names)
        rows = [
            (line, row)
            for line, row in enumerate(csv.reader(lines[first:], delimiter=mark), first + 1)
            if any(field.strip() for field in row) and not row[0].lstrip().startswith("#")
        ]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    for line, row in rows:
        if len(row) != len(names):
            raise InputError(f"{path}, line {line}: {len(row)} fields, but {len(names)} columns.")
    if len(rows) < 2:
        raise InputError(f"{path} has {len(rows)} rows of data; a table of irradiance needs at least two.")
    numbers = [line for line, _ in rows]
    at = names.index(when)
    texts = Rows(path, "ghi", "W", time_unit, utc, False, [row[at].strip() for _, row in rows], [], numbers)
    times = read_times(texts, gaps)
    if times.start_s is None:
        raise InputError(f"{path}: its times are no dates, by which the sun is placed; write 2026-06-01T12:00:00Z.")
    if times.step_s > _LONGEST_STEP_S * 1.01:
        raise InputError(f"{path} has steps of {times.step_s:g} s; irradiance is needed at least every hour.")
    out, missing = {}, np.zeros(times.steps, bool)
    for column in columns:
        values, absent = _values(texts, [row[column.at].strip() for _, row in rows], column, gaps)
        placed, gone = np.zeros(times.steps), np.ones(times.steps, bool)
        placed[times.places], gone[times.places] = values, absent
        out[column.name], _ = fill(placed, gone, times.step_s, gaps, f"{path}, {column.name}")
        missing |= gone
    return Table(out, times.start_s, times.step_s, 0.0 if times.zoned else None, float(missing.mean()))


def _values(rows: Rows, texts: list[str], column: _Column, gaps: Gaps) -> tuple[Floats, Bools]:
    values = np.array([number(text) for text in texts])
    absent = np.array([is_missing(text) for text in texts])
    bad = np.flatnonzero(~np.isfinite(values) & ~(absent & (not gaps.refuses)))
    if len(bad):
        how = ', or say gaps = "hold", "zero" or "interpolate"' if absent[bad[0]] else ""
        raise rows.error(int(bad[0]), f"{column.name} is {shown(texts[bad[0]])}; it must be a number{how}.")
    found: Floats = np.where(absent, 0.0, values * column.factor + column.offset)
    return found, absent


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return []


def _header(lines: list[str]) -> tuple[int, list[str], str]:
    """(the line after it, the names in it, what separates them)"""
    for number_, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            mark = next((mark for mark in (";", "\t") if mark in line), ",")
            return number_ + 1, [name.strip() for name in next(csv.reader([line], delimiter=mark))], mark
    return 0, [], ","


def _columns(path: Path, names: list[str]) -> list[_Column]:
    found: dict[str, _Column] = {}
    for at, text in enumerate(names):
        if not (match := _NAME.fullmatch(text)):
            continue
        name, said = match[1].lower(), match[2] or match[3] or ""
        if name in found:
            raise InputError(f"{path} has two columns of {name}; keep one of them.")
        units = UNITS[name]
        unit = _unit(said, units) if said else next(iter(units))
        if unit is None:
            raise InputError(f"{path}, column '{text}': {unknown('unit', said, units)}")
        found[name] = _Column(name, at, *units[unit])
    if ("dni" in found) != ("dhi" in found):
        there, absent = ("dni", "dhi") if "dni" in found else ("dhi", "dni")
        raise InputError(f"{path} has {there} without {absent}; give both, or neither: ghi alone is parted by a model.")
    return list(found.values())


def _unit(said: str, units: dict[str, tuple[float, float]]) -> str | None:
    """The unit that is meant, however it is spelled: W/m^2, W/m², w_m2."""
    plain = said.replace("²", "2").replace("^", "").replace("_", "/").removeprefix("°").removeprefix("deg").lower()
    return next((unit for unit in units if unit.lower() == plain), None)
