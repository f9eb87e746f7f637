"""The table of `everfed runs`, as wide as the terminal allows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box

from everfed.cli.screen import Screen, table
from everfed.errors import counted
from everfed.report.lines import show
from everfed.store import StoredRun
from everfed.studies.yardstick import ACCURACY, LOSS, Yardstick, yardstick

Row = dict[str, Any]

_MOST_SETTINGS = 6  # in a cell
# Letters that a column of words needs, unless they are shorter: side by side, and all below the run's name.
_LEAST, _LEAST_BELOW = {"run": 12, "method": 10, "settings": 18}, {"run": 18}
_BETWEEN = 3  # letters between two columns


def print_runs(screen: Screen, found: Sequence[StoredRun], rows: Sequence[Row]) -> None:
    # A list compares nothing: runs with an accuracy keep it beside others that have a loss alone.
    judged = {yardstick([run]) for run in found if run.final} or {ACCURACY}
    shown = [one for one in (ACCURACY, LOSS) if one in judged]
    names = [_head(label) for one in shown for label in (one.label, one.worst_label)]
    methods, seeds = ({row[key] for row in rows} - {None} for key in ("method", "seed"))
    words = ["run", "date", *["method"] * (len(methods) > 1), *["settings"] * any(row["settings"] for row in rows)]
    columns = [*words, *["seed"] * (len(seeds) > 1), "state", "rounds", *names, "energy\nspent"]
    root = _root([row["run"] for row in rows])
    shown_rows = [_cells(row, root, shown) for row in rows]
    columns = _fitting(screen, columns, shown_rows)
    out = table(f"{counted(len(rows), 'run')}{f' in {root}' * bool(root)}", columns, left=[*words, "state"])
    out.box = box.SIMPLE_HEAD  # names need the room
    for column in out.columns:
        column.no_wrap = column.header not in ("run", "settings", "method")
    for cells in shown_rows:
        out.add_row(*(cells[column] for column in columns))
    screen.out.print(out)


def _cells(row: Row, root: str, shown: Sequence[Yardstick]) -> dict[str, str]:
    """The texts of a row by column."""
    cells = {
        "run": os.path.relpath(row["run"], root) if root else row["run"],
        "date": _local(row["date"]),
        "method": row["method"] or "-",
        "settings": _said(row["settings"]),
        "seed": "-" if row["seed"] is None else str(row["seed"]),
        "state": row["state"] + " early" * row.get("stopped_early", False),
        "rounds": "-" if row["rounds"] is None else f"{row['rounds_done']}/{row['rounds']}",
        "energy\nspent": row["spent_text"] or "-",
    }
    for one in shown:
        cells |= {_head(one.label): one.text(row[one.name])}
        cells |= {_head(one.worst_label): one.text(row[f"worst_group_{one.name}"])}
    return cells


def _fitting(screen: Screen, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> list[str]:
    """The columns that have room; the cells of `rows` are changed to what is shown.

    Where words would be squeezed, a run's date, method and settings stand below its name; if even this is too wide, the
    worst groups are left out, and a note says so.
    """

    def wide(column: str) -> int:
        texts = [line for text in (column, *(row[column] for row in rows)) for line in text.split("\n")]
        return min(max(map(len, texts)), least.get(column, 10**6)) + _BETWEEN

    def fits() -> bool:
        return sum(map(wide, out)) + _BETWEEN <= screen.out.width

    out, least = list(columns), _LEAST
    if fits():
        return out
    below = [column for column in ("date", "method", "settings") if column in out]
    for row in rows:
        row["run"] = "\n".join([row["run"], *(f"  {line}" for name in below for line in row[name].split("\n") if line)])
    out, least = [column for column in out if column not in below], _LEAST_BELOW
    worst = [column for column in out if column.startswith("worst\n")]
    if not fits() and worst:
        out = [column for column in out if column not in worst]
        screen.note("the worst groups find no room here; a wider window or --json shows them.")
    return out


def _head(label: str) -> str:
    """A heading in two lines."""
    first, space, last = label.partition(" ")
    return f"{first}\n{last}" if space else label


def _root(places: Sequence[str]) -> str:
    """The folder that all runs lie in, if it is worth a heading."""
    root = os.path.commonpath([os.path.dirname(place) or "." for place in places]) if places else ""
    return "" if root in ("", ".", os.sep) else root


def _said(settings: Mapping[str, Any]) -> str:
    lines = [f"{key}={show(value)}" for key, value in settings.items()]
    more = [f"and {len(lines) - _MOST_SETTINGS} more"] if len(lines) > _MOST_SETTINGS else []
    return "\n".join(lines[:_MOST_SETTINGS] + more)


def _local(date: str | None) -> str:
    """In the local zone, to the minute."""
    return datetime.fromisoformat(date).astimezone().strftime("%Y-%m-%d %H:%M") if date else "-"
