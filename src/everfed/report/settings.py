"""What the runs of a page are runs of: what they share, in what they differ, and where they ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everfed.report.lines import Line, differing_keys, is_tables, show
from everfed.run.config import flat, to_dict
from everfed.store.reading import StoredRun


def settings(runs: Sequence[StoredRun], drawn: Sequence[Line]) -> dict[str, Any]:
    """Keys that differ, line by line, and the rest, which all runs share."""
    differ = differing_keys(runs)
    of_method = [k for k in differ if k.split(".")[0] in ("policy", "server")]
    keys = [k for k in differ if k not in of_method and k != "seed"]
    rows = []
    for line in drawn:
        values = [flat(to_dict(run.experiment)) for run in line.runs]
        cells = [" / ".join(dict.fromkeys(show(v[key]) if key in v else "–" for v in values)) for key in keys]
        seeds = ", ".join(str(run.experiment.seed) for run in line.runs)
        rows.append([line.experiment.title, seeds, *cells])
    first = flat(to_dict(runs[0].experiment))
    shared = [[key, show(value)] for key, value in first.items() if key not in differ and not is_tables(value)]
    return {"columns": ["method", "seeds", *keys], "rows": rows, "shared": shared, "tables": _tables(runs, differ)}


def _tables(runs: Sequence[StoredRun], differ: Sequence[str]) -> list[dict[str, Any]]:
    """Settings that are lists of tables, such as a fleet's groups: one row each, and what its rows share."""
    found: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}
    for run in runs:
        values = flat(to_dict(run.experiment))
        found |= {(key, show(value)): value for key, value in values.items() if is_tables(value)}
    out = []
    for (key, shown), rows in found.items():
        flat_rows = [{k: show(v) for k, v in flat(row).items()} for row in rows]
        keys = list(dict.fromkeys(k for row in flat_rows for k in row))
        same = [k for k in keys if len(rows) > 1 and len({row.get(k) for row in flat_rows}) == 1]
        columns = sorted((k for k in keys if k not in same), key=lambda k: k != "name")
        out.append(
            {
                "name": f"{key} = {shown}" if key in differ else key,
                "columns": columns,
                "rows": [[row.get(k, "–") or "–" for k in columns] for row in flat_rows],
                "shared": [[k, flat_rows[0][k]] for k in same if flat_rows[0][k]],
            }
        )
    return out


def environments(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Each distinct environment once, with the runs that ran in it."""
    found: dict[tuple[tuple[str, str], ...], list[StoredRun]] = {}
    for run in runs:
        # When a run began and how its trainer's rounding fell out differ from run to run on one machine.
        own = ("started", "training.check.difference")
        values = {key: _said(value) for key, value in flat(run.environment).items() if key not in own}
        found.setdefault(tuple(values.items()), []).append(run)
    out = []
    for pairs, members in found.items():
        started = sorted({show(run.environment["started"]) for run in members if "started" in run.environment})
        when = [["started", " to ".join(dict.fromkeys([started[0], started[-1]]))]] if started else []
        out.append({"runs": [run.name for run in members], "values": when + [list(pair) for pair in pairs]})
    return [one for one in out if one["values"]]


def _said(value: Any) -> str:
    # How a model's parts are trained is told in phrases that have commas of their own.
    return "; ".join(map(show, value)) if isinstance(value, list) else show(value)
