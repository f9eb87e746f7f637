"""The names that shells complete, taken from the commands and from the tables of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
import typer.main

from everfed import presets
from everfed.cli import listing, options as o
from everfed.cli.app import app
from everfed.data.datasets import DATASETS
from everfed.data.partition import SPLITS
from everfed.energy.arrivals import ARRIVALS
from everfed.learning.models import MODELS
from everfed.learning.optim import OPTIMIZERS, SCHEDULES
from everfed.learning.precision import PRECISIONS
from everfed.methods import METHODS
from everfed.run.schema import schema
from everfed.store.trackers import TRACKERS
from everfed.trainers.choose import TRAINERS

Values = Mapping[str, Any]


def described() -> dict[str, Any]:
    """The command with all its subcommands, as `completion` keeps it."""
    return _described(typer.main.get_command(app), _values(), "")


def settings() -> dict[str, list[str]]:
    """Every dotted key of --set, with the names that it takes if it takes names."""
    found: dict[str, list[str]] = {}
    _walk("", schema(), found)
    return found


def _values() -> dict[str, tuple[str, Values]]:
    """By option, or by command and argument: how it is completed, and by what."""
    methods = {name: method.about for name, method in METHODS.items()}
    keys = settings()
    experiments = {name: presets.about(text) for name, text in presets.texts().items()}
    plain: dict[str, Iterable[str]] = {
        "--data": DATASETS,
        "--split": SPLITS,
        "--model": MODELS,
        "--optimizer": OPTIMIZERS,
        "--schedule": SCHEDULES,
        "--trainer": TRAINERS,
        "--precision": PRECISIONS,
        "--arrivals": ARRIVALS,
        "--track": TRACKERS,
        "--engine": o.ENGINES,
        "--device": ("auto", "cpu", "cuda"),
        "--per": ("client", "energy-group"),
        "--on-divergence": ("stop", "skip"),
        "--shares": ("equal", "data"),
        "--client-state": ("worker", "driver"),
        "--state": listing.STATES,
        "--sort": listing.ORDERS,
        "data get name": [name for name, kind in DATASETS.items() if hasattr(kind, "fetch")],
    }
    return {
        **{key: ("one", dict.fromkeys(names, "")) for key, names in plain.items()},
        "experiment": ("one", experiments),
        "presets show name": ("one", experiments),
        "--method": ("one", methods),
        "--methods": ("list", methods),
        "runs --method": ("list", methods),
        "--set": ("setting", keys),
        "--where": ("setting", keys),
        "--grid": ("grid", keys),
    }


def _described(command: click.Command, values: Mapping[str, tuple[str, Values]], path: str) -> dict[str, Any]:
    out: dict[str, Any] = {"help": command.get_short_help_str(100), "params": []}
    for param in command.params:
        spelled = [*param.opts, *param.secondary_opts] if isinstance(param, click.Option) else [str(param.name)]
        found = [values[key] for opt in spelled for key in (f"{path}{opt}", opt) if key in values]
        way, names = found[0] if found else ("one", {})
        option = isinstance(param, click.Option)
        out["params"].append(
            {
                "name": param.name,
                "argument": not option,
                "opts": spelled if option else [],
                "flag": bool(getattr(param, "is_flag", False)),
                "multiple": bool(getattr(param, "multiple", False)),
                "nargs": param.nargs,
                "help": _first_sentence(getattr(param, "help", None) or ""),
                "way": way,
                "values": dict(names),
            }
        )
    if isinstance(command, click.Group):
        out["commands"] = {name: _described(one, values, f"{path}{name} ") for name, one in command.commands.items()}
    return out


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0][:80]


def _walk(prefix: str, part: Mapping[str, Any], found: dict[str, list[str]]) -> None:
    """The keys below a part of the schema; kinds share keys, and a key may then take the names of all of them."""
    for name, inner in part.get("properties", {}).items():
        key = prefix + name
        if (name == "kind" and prefix) or name in ("methods", "format", "tuned_on"):
            continue
        choices = inner.get("anyOf", [])
        texts = [str(text) for one in (inner, *choices, inner.get("items", {})) for text in one.get("enum", ())]
        if inner.get("type") == "boolean":
            texts = ["true", "false"]
        found[key] = list(dict.fromkeys([*found.get(key, []), *texts]))
        for one in (inner, *choices):
            _walk(f"{key}.", one, found)
