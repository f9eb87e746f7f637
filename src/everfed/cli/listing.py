"""`everfed runs`: what has been run, when, with which settings, and what came out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed.cli import options as o
from everfed.cli.run_table import Row, print_runs
from everfed.cli.runs import Folders, found_in, tell_unreadable
from everfed.cli.screen import Screen
from everfed.errors import InputError, counted, unknown
from everfed.report.distinct import distinct
from everfed.report.lines import differing_keys, show
from everfed.report.measures import Unit
from everfed.run import config
from everfed.stats import finite
from everfed.store import StoredRun, Unreadable, open_runs
from everfed.studies.yardstick import ACCURACY, LOSS

STATES = ("done", "running", "stopped", "diverged", "unreadable")
_AGO = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# They have columns of their own, or follow from the method.
_NOT_SHOWN = ("seed", "plugins", "policy", "server")

# By the names of --sort; rows without a value come first, so that the best is next to the prompt.
ORDERS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row["run"],
    "date": lambda row: row["date"] or "",
    "accuracy": lambda row: -1.0 if row["accuracy"] is None else row["accuracy"],
    "loss": lambda row: float("-inf") if row["loss"] is None else -row["loss"],
    "spent": lambda row: -1.0 if row["spent"] is None else row["spent"],
}


@o.grouped
def runs(
    folders: Folders = None,
    method: Annotated[str, typer.Option(help="Only these methods, separated by commas.", show_default=False)] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only runs with this setting, such as client.lr=0.1. Repeatable.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(help="Only runs started since: a date (2026-05-01), or 12h, 3d, 2w ago.", show_default=False)
    ] = "",
    state: Annotated[str, typer.Option(help=f"Only runs in this state: {', '.join(STATES)}.", show_default=False)] = "",
    sort: Annotated[str, typer.Option(help=f"By {', '.join(ORDERS)}; the best, the latest or the most last.")] = "name",
    plugin: o.Plugin = None,
    *,
    screen: Screen,
) -> None:
    """List the runs in a folder (default: everfed-out): when they started, their settings, state and result.

    Settings that all listed runs share are left out. Energy is in units of one round of training, or in joules where
    the fleet is one of devices.

    Example: everfed runs everfed-out/sweep --method greedy --where client.lr=0.1 --since 3d --sort accuracy
    """
    o.load_plugins(plugin)
    if sort not in ORDERS:
        raise InputError(unknown("order", sort, ORDERS))
    asked = _Asked(method, where or [], since, state)
    opened, unreadable = open_runs(found_in(screen, folders or [Path("everfed-out")], none_is_fine=True))
    known = distinct(opened)
    for note in known.notes:
        screen.note(note)
    copies = {id(run): [str(path) for path in also] for run, also in zip(known.runs, known.copies, strict=True)}
    asked.check_keys(known.runs)
    found = [run for run in known.runs if asked.fits(run)]
    lost = [one for one in unreadable if asked.fits_unreadable()]
    apart = _apart(found)
    rows = [{**_headline(run), "settings": apart[i], "copies": copies[id(run)]} for i, run in enumerate(found)]
    rows += [{**_headline(one), "settings": {}, "copies": []} for one in lost]
    rows.sort(key=ORDERS[sort])
    if screen.as_json:
        screen.json(rows)
        return
    print_runs(screen, found, rows)
    if hidden := len(known.runs) + len(unreadable) - len(rows):
        screen.note(f"{counted(hidden, 'run')} of {hidden + len(rows):,} do not match and are not listed.")
    tell_unreadable(screen, lost)


class _Asked:
    """The filters of the command line."""

    def __init__(self, methods: str, where: Sequence[str], since: str, state: str) -> None:
        self.methods = o.method_list(methods, "--method") if methods else []
        self.where = [config.parse_setting(text) for text in where]
        self.since = moment(since) if since else None
        if state and state not in STATES:
            raise InputError(unknown("state", state, STATES))
        self.state = state

    def check_keys(self, runs: Sequence[StoredRun]) -> None:
        """A key that no run can have is a slip, not a setting that none of them has."""
        for key, value in self.where:
            slips = [_slip(run, key, value) for run in runs]
            if runs and all(slips):
                raise InputError(slips[0])

    def fits(self, run: StoredRun) -> bool:
        started = _started(run)
        return (
            (not self.state or run.state == self.state)
            and (not self.methods or run.experiment.method in self.methods)
            and (self.since is None or (started is not None and started >= self.since))
            and all(_has(run, key, value) for key, value in self.where)
        )

    def fits_unreadable(self) -> bool:
        """Nothing is known of it but its state."""
        return self.state in ("", "unreadable") and not (self.methods or self.where or self.since)


def _slip(run: StoredRun, key: str, value: Any) -> str:
    """What an experiment says of a key that it cannot have; empty if it can."""
    raw = config.to_dict(run.experiment)
    if key == "method" or {key, f"{key}.kind"} & set(config.flat(raw)):
        return ""
    try:
        config.change(raw, key, value)
        config.from_dict(raw)
    except InputError as error:
        return str(error) if "unknown key" in str(error) else ""
    return ""


def _has(run: StoredRun, key: str, value: Any) -> bool:
    """Whether a setting has this value; a part is its kind, and what a file leaves out has its default."""
    if key == "method":
        return bool(run.experiment.method == value)
    known = config.flat(config.to_dict(run.experiment))
    for name in (key, f"{key}.kind"):
        if name in known:
            return bool(known[name] == value) or show(known[name]) == show(value)
    default = getattr(type(run.experiment), key, None)
    return default is not None and bool(default == value)


def moment(text: str, now: datetime | None = None) -> datetime:
    """A date, a date with a time, or how long ago: 90m, 12h, 3d, 2w. Without a zone, the local one.

    >>> moment("3d", datetime(2026, 5, 4, tzinfo=UTC)).isoformat()
    '2026-05-01T00:00:00+00:00'
    """
    if found := re.fullmatch(r"(\d{1,6})\s*([mhdw])", text.strip()):
        return (now or datetime.now(UTC)) - timedelta(**{_AGO[found[2]]: int(found[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise InputError(f"--since is '{text}'; give a date such as 2026-05-01, or 12h, 3d or 2w ago.") from None


def _started(run: StoredRun) -> datetime | None:
    """When the run was last started or resumed."""
    try:
        return datetime.fromisoformat(str(run.environment.get("started")))
    except ValueError:
        return None


def _apart(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Of each run the settings in which the runs differ, but for method and seed."""
    if not runs:
        return []
    keys = [key for key in differing_keys(runs) if key.split(".")[0] not in _NOT_SHOWN]
    out = []
    for run in runs:
        values: Mapping[str, Any] = config.flat(config.to_dict(run.experiment))
        out.append({key.removesuffix(".kind"): values[key] for key in keys if key in values})
    return out


def _headline(run: StoredRun | Unreadable) -> Row:
    """One row; unknown values are None."""
    names = "run method seed state date reason rounds_done rounds accuracy worst_group_accuracy loss worst_group_loss"
    row: Row = {**dict.fromkeys([*names.split(), "metrics", "spent", "unit", "spent_text"]), "run": str(run.path)}
    if isinstance(run, Unreadable):
        return row | {"state": "unreadable", "reason": run.reason}
    started = _started(run)
    row |= {
        "method": run.experiment.method,
        "seed": run.experiment.seed,
        "state": run.state,
        "date": started.isoformat() if started else None,
        "rounds_done": len(run.rounds),
        "rounds": run.experiment.rounds,
        "unit": run.experiment.fleet.energy_unit,
    }
    if run.rounds:
        unit = Unit.of([run])
        spent = run.energy.spent * unit.factor
        row |= {"spent": run.energy.spent, "spent_text": f"{spent:,.{0 if spent >= 100 else 1}f} {unit.name}"}
    if run.final:
        row["metrics"] = run.final.to_dict().get("own")
        for one in (ACCURACY, LOSS):
            values = {one.name: one.of(run.final), f"worst_group_{one.name}": one.worst_group(run.final)}
            row |= {name: finite(value) for name, value in values.items()}
    return row | run.ending()
