"""Two columns of a CSV or Parquet file as they are written: one of times, one of power or energy.

Files come from data loggers and spreadsheets: separated by commas, semicolons or tabs, with a byte
order mark, comments, decimal commas and units in their headers. What could be read in two ways is
refused with the key that decides.
"""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from everfed.errors import InputError, first_line, unknown
from everfed.files import RAISE, check_parquet
from everfed.machine import check_memory

# Watts or joules in one of each unit.
POWER = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": 1e3}
ENERGY = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600.0, "mWh": 3.6, "kWh": 3.6e6}
UNITS = {**POWER, **ENERGY}
# Seconds in one of each unit; a spreadsheet counts days.
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "excel": 86_400.0}

_TIME_NAMES = ("timestamp", "time", "datetime", "date", "epoch", "unixtime")
_UNIX = ("epoch", "unixtime")
_SECONDS = ("seconds", "second", "secs")
_UTC = ("utc", "gmt")
# Bytes that a row takes as two texts and as a date. No time and no number needs longer texts.
_ROW, _LONGEST = 200, 1000
_BRACKETS = re.compile(r"(.*?)\s*[\[(]\s*([^\])]+?)\s*[\])]")


class Columns(NamedTuple):
    """Which columns of a file to read, and their units; None: as the headers say."""

    value: str | None = None
    time: str | None = None
    unit: str | None = None
    time_unit: str | None = None


@dataclass(frozen=True)
class Rows:
    """Two columns of a file as they are written; a message names row i as 'line 7', where lines[i] is 7."""

    path: Path
    what: str
    unit: str
    time_unit: str | None
    utc: bool  # whether the name of the column of times says so
    unix: bool  # whether its name says that times are counted from 1970
    times: Sequence[Any]
    values: Sequence[Any]
    lines: Sequence[int]
    line: str = "line"

    def error(self, row: int, said: str) -> InputError:
        return InputError(f"{self.path}, {self.line} {self.lines[row]}: {said}")


def read_rows(path: Path, content: bytes, columns: Columns) -> Rows:
    """The columns of a file of this name and content."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if columns.unit is not None and columns.unit not in UNITS:
        raise InputError(f"{path}: {unknown('unit', columns.unit, UNITS)}")
    if columns.time_unit is not None and columns.time_unit not in TIME_UNITS:
        raise InputError(f"{path}: {unknown('time_unit', columns.time_unit, TIME_UNITS)}")
    return readers[path.suffix.lower()](path, content, columns)


def number(value: Any) -> float:
    """The value as a float; nan if it is none. Python would read 1_0 as ten, which no logger means."""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        return math.nan


def shown(value: Any) -> str:
    return "missing" if value is None or value == "" else str(value)


def is_missing(value: Any) -> bool:
    """Whether a field is empty, or says that there is no value."""
    return value is None or str(value).strip().lower() in ("", "nan", "na", "n/a", "null", "none")


def _read_csv(path: Path, content: bytes, columns: Columns) -> Rows:
    _check_rows(path, max(content.count(b"\n"), content.count(b"\r")))
    times, values, lines = [], [], array("q")
    try:
        separator = _separator(_text(content))
        reader = csv.reader(_text(content), delimiter=separator)
        names: list[str] = []
        for row in reader:
            if not any(field.strip() for field in row) or row[0].lstrip().startswith("#"):
                continue
            if not names:
                names = [name.strip() for name in row]
                when, what, unit, time_unit, utc = _choose(path, names, columns)
                time_at, value_at = names.index(when), names.index(what)
                continue
            if len(row) != len(names):
                raise InputError(f"{path}, line {reader.line_num}: {len(row)} fields, but {len(names)} columns.")
            times.append(row[time_at].strip())
            values.append(row[value_at].strip())
            lines.append(reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    if not names:
        raise InputError(f"{path} has no header line; a trace needs a column of times and one of power.")
    rows = Rows(path, what, unit, time_unit, utc, _base(when) in _UNIX, times, values, lines)
    return rows if separator == "," else _with_points(rows)


def _text(content: bytes) -> Iterable[str]:
    """Line by line; spreadsheets put a byte order mark in front of the first name."""
    return io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")


def _separator(lines: Iterable[str]) -> str:
    """What the first line that is no comment is separated by."""
    header = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    return next((mark for mark in (";", "\t") if mark in header), ",")


def _check_rows(path: Path, rows: int) -> None:
    check_memory(f"reading the {rows:,} rows of {path}", rows * _ROW, RAISE, part=0.5)


def _with_points(rows: Rows) -> Rows:
    """Numbers with decimal commas, as they are written where commas do not separate columns."""
    numbers = all(re.fullmatch(r"[+-]?[\d.,]+", text) for text in rows.times)
    times = _points(rows, rows.times, "the time") if numbers else rows.times
    return replace(rows, times=times, values=_points(rows, rows.values, rows.what))


def _points(rows: Rows, texts: Sequence[str], what: str) -> Sequence[str]:
    commas = [row for row, text in enumerate(texts) if "," in text]
    # "1,234" alone is one and a bit, or a thousand; "0,234" and "1,2" are not.
    decimal = any(not re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+", texts[row]) for row in commas)
    if commas and (not decimal or any("." in text for text in texts)):
        said = f"{what} is {texts[commas[0]]}, whose comma may be a decimal or a thousands separator"
        raise rows.error(commas[0], f"{said}; write it with a decimal point.")
    return [text.replace(",", ".") if text.count(",") == 1 else text for text in texts]


def _read_parquet(path: Path, content: bytes, columns: Columns) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.ParquetFile(pa.BufferReader(content)).schema_arrow
        # A text that is repeated a billion times is stored once, and stays so until its length is known.
        texts = [field.name for field in schema if _is_text(field.type)]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        _check_rows(path, file.metadata.num_rows)
        when, what, unit, time_unit, utc = _choose(path, schema.names, columns)
        for name in (when, what):
            if pa.types.is_nested(schema.field(name).type):
                raise InputError(f"{path}: the column '{name}' holds {schema.field(name).type}; give one value a row.")
        check_parquet(path, file, [when, what])
        table = file.read(columns=[when, what])
        table = pa.table({name: _in_full(path, name, table[name]) for name in dict.fromkeys((when, what))})
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {first_line(error)}.") from error
    times = table[when]
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(times.type):
        # Instants are kept in UTC: in another zone, subtraction would follow its clock through summer time.
        times = times.cast(pa.timestamp("us", "UTC" if times.type.tz else None), safe=False)
    values = table[what].to_pylist()
    lines = range(1, len(values) + 1)
    return Rows(path, what, unit, time_unit, utc, _base(when) in _UNIX, times.to_pylist(), values, lines, "row")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return any(
        is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _in_full(path: Path, name: str, column: Any) -> Any:
    """A column whose values are written out, after a look at how long they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return column
    for chunk in column.chunks if _is_text(column.type.value_type) else ():
        longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
        if longest > _LONGEST:
            raise InputError(
                f"{path}: the column '{name}' has a text of {longest:,} bytes, which is no time or number."
            )
    return column.cast(column.type.value_type)


def _choose(path: Path, names: Sequence[str], columns: Columns) -> tuple[str, str, str, str | None, bool]:
    """The columns of times and of values, their units, and whether the times are said to be UTC."""
    for asked, key in ((columns.value, "column"), (columns.time, "time_column")):
        if asked is not None and asked not in names:
            raise InputError(f"{path}: {unknown(key, asked, names)}")
    when, said, utc = time_names(path, names, columns.time)
    listed = ", ".join(names)
    candidates = [name for name in names if name != when and _unit_of(name, UNITS)]
    what = _only(
        path, columns.value, candidates, "column",
        f"no column whose name contains a unit of power or energy, such as power_w, energy_j or Power [mW]; it has "
        f"{listed}. Name it with column, and set unit.",
    )  # fmt: skip
    for name in {when, what}:
        if list(names).count(name) > 1:
            raise InputError(f"{path} has {list(names).count(name)} columns '{name}'; give each its own name.")
    unit = _agreed(path, what, _unit_of(what, UNITS), columns.unit, "unit")
    if unit is None:
        raise InputError(
            f"{path}: the name of column '{what}' contains no unit; set unit to one of {', '.join(UNITS)}."
        )
    return when, what, unit, _agreed(path, when, said, columns.time_unit, "time_unit"), utc


def time_names(path: Path, names: Sequence[str], asked: str | None = None) -> tuple[str, str | None, bool]:
    """The column of times, the unit in its name, and whether its name says that they are UTC."""
    when = _only(
        path, asked, [name for name in names if _base(name) in (*_SECONDS, *_TIME_NAMES)], "time_column",
        f"no column of times, named {', '.join(_TIME_NAMES)} or seconds; it has {', '.join(names) or 'none'}. Name it "
        "with time_column.",
    )  # fmt: skip
    if re.fullmatch(r"(utc|gmt)\s*[+-].*", _tail(when)):
        raise InputError(
            f"{path}: the column '{when}' has a UTC offset in its name; write it into the times, as in "
            "2026-06-01T12:00:00+02:00, or give it as trace_utc_h and call the column time."
        )
    return when, "s" if _base(when) in _SECONDS else _unit_of(when, TIME_UNITS), _tail(when) in _UTC


def _only(path: Path, asked: str | None, candidates: Sequence[str], key: str, none: str) -> str:
    if asked is not None:
        return asked
    if not candidates:
        raise InputError(f"{path} has {none}")
    if len(set(candidates)) > 1:
        raise InputError(f"{path} has several possible columns, {', '.join(candidates)}; choose one with {key}.")
    return candidates[0]


def _agreed(path: Path, name: str, said: str | None, asked: str | None, key: str) -> str | None:
    if said and asked and said != asked:
        raise InputError(
            f"{path}: the column '{name}' is in {said} by its name, but {key} is {asked}; remove one of them."
        )
    return asked or said


def _base(name: str) -> str:
    """A name in lower case, without its unit."""
    bracketed = _BRACKETS.fullmatch(name)
    base = (bracketed[1] if bracketed else name).strip().lower()
    stem, _, tail = base.rpartition("_")
    return stem if stem and (tail in TIME_UNITS or tail in _UTC) else base


def _tail(name: str) -> str:
    """What stands in brackets or behind the last underscore, in lower case."""
    bracketed = _BRACKETS.fullmatch(name)
    return (bracketed[2] if bracketed else name.rpartition("_")[2]).lower()


def _unit_of(name: str, units: dict[str, float]) -> str | None:
    """The unit that a header gives, "Power [mW]" or power_mw; None if it gives none.

    Behind an underscore case is free but for the capital M of mega, which is no unit here.
    """
    bracketed = _BRACKETS.fullmatch(name)
    if bracketed:
        said = bracketed[2].replace("\u00b5", "u").replace("\u03bc", "u")
        return said if said in units else None
    tail = name.rpartition("_")[2] if "_" in name else ""
    if tail.startswith("M"):
        return None
    return next((unit for unit in units if unit.lower() == tail.lower()), None)
