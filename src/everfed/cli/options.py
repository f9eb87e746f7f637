"""Options that several commands share, each written once.

An experiment comes from a file or a preset, is changed by short options (`--rounds 100`) and by
`--set key=value` for everything else. `takes_experiment` adds all of them to a command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from everfed import plugins, presets
from everfed.cli.screen import PANEL
from everfed.data.datasets import DATASETS
from everfed.data.partition import SPLITS
from everfed.energy.arrivals import ARRIVALS
from everfed.errors import InputError, unknown
from everfed.learning.models import MODELS
from everfed.learning.optim import OPTIMIZERS, SCHEDULES
from everfed.learning.precision import PRECISIONS
from everfed.methods import METHODS
from everfed.registry import lookup
from everfed.run import config
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.store.trackers import TRACKERS
from everfed.studies.sweep import COMPARED as _COMPARED, overwritten
from everfed.trainers.choose import TRAINERS

plugins.import_installed()  # so that the lists of names below have theirs too

_HERE = __name__.rpartition(".")[0]
_FLEET, _TRAINING, CLUSTER = "Fleet", "Training", "Cluster"
ENGINES = ("local", "ray")
COMPARED = ",".join(_COMPARED)


class Short(NamedTuple):
    """A short option: the key of the experiment that it sets, and how its text is read."""

    flag: str
    key: str
    type: type
    help: str
    panel: str = _TRAINING
    read: Callable[[Any, str], Any] = lambda value, flag: value


def _whole(text: str, flag: str) -> list[int]:
    """'1,5,10' as whole numbers, or an error that names the option."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        values = [float(part) for part in parts]
        if all(value.is_integer() for value in values):
            return [int(value) for value in values]
    except ValueError:
        pass
    raise InputError(f"{flag} is '{text}'; give whole numbers with commas, such as 1,5,10,20.")


def _names(table: Any) -> str:
    return ", ".join(table)


SHORT = (
    Short("--data", "data", str, f"Data set: {_names(DATASETS)}."),
    Short("--split", "split", str, f"Who holds which samples: {_names(SPLITS)}."),
    Short("--strength", "split.strength", float, "Of the by-energy split: 0 is iid, 1 fully separated classes."),
    Short("--alpha", "split.alpha", float, "Of the dirichlet split: small is more skewed."),
    Short("--per", "split.per", str, "Of the dirichlet split: skew per client, or per energy-group."),
    Short("--model", "model", str, f"One of {_names(MODELS)}."),
    Short("--rounds", "rounds", int, "Global rounds."),
    Short("--local-steps", "local_steps", int, "T: steps a participant trains in a round."),
    Short("--batch-size", "batch_size", int, "Samples a step, drawn uniformly with replacement."),
    Short("--optimizer", "client", str, f"Of the clients: {_names(OPTIMIZERS)}."),
    Short("--lr", "client.lr", float, "Learning rate of the clients."),
    Short("--schedule", "client.schedule", str, f"Of the learning rate: {_names(SCHEDULES)}."),
    Short("--momentum", "client.momentum", float, "Of sgd."),
    Short("--weight-decay", "client.weight_decay", float, "Adds this times the parameters to the gradient."),
    Short("--eval-every", "eval_every", int, "Evaluate every so many rounds; 0: 20 times in the run."),
    Short("--trainer", "trainer", str, f"{_names(TRAINERS)}; same results."),
    Short("--device", "device", str, "auto, cpu or cuda."),
    Short("--precision", "precision", str, f"{_names(PRECISIONS)}; the last two on a GPU."),
    Short("--clients", "fleet.clients", int, "How many clients.", _FLEET),
    Short(
        "--cycles",
        "fleet.cycles",
        str,
        "E: rounds a client needs to harvest one round's energy. Dealt round the clients: with 1,5,10,20 client 0 "
        "can train every round, client 3 every 20th.",
        _FLEET,
        _whole,
    ),
    Short("--offsets", "fleet.offsets", str, "First round with energy: one a cycle or one a client.", _FLEET, _whole),
    Short("--arrivals", "fleet.arrivals", str, f"How energy comes: {_names(ARRIVALS)}.", _FLEET),
    Short("--capacity", "fleet.capacity", float, "Battery in rounds' worth of energy; 0: as needed.", _FLEET),
)
# Before the others and before --set, which may change options of the method's policy.
_METHOD = Short("--method", "method", str, f"One of {_names(METHODS)}.")
ONE_METHOD = (_METHOD, *SHORT)
# Plans and audits train nothing; they take --device so that one set of options fits every command.
FLEET_ONLY = (
    _METHOD,
    *(short for short in SHORT if short.panel == _FLEET or short.flag in ("--rounds", "--device")),
)

Seed = Annotated[int | None, typer.Option(help="Fixes all chance of the run.")]
Seeds = Annotated[str, typer.Option(help="Which seeds: 3 (the first three), 0:5, or 1,4,7.")]
Grid = Annotated[
    list[str],
    typer.Option("--grid", metavar="KEY=V,V", help="Values to try, such as client.lr=0.01,0.1. Repeatable."),
]
Methods = Annotated[
    str, typer.Option(help=f"Which methods, with commas: {', '.join(METHODS)}.", rich_help_panel=_TRAINING)
]
CheckpointEvery = Annotated[
    float, typer.Option(help="Seconds between checkpoints: the most work that a kill can cost.")
]
OnDivergence = Annotated[str, typer.Option(help="stop, or skip: leave updates that are not finite out and go on.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help=f"Also write to {_names(TRACKERS)}. Repeatable.", rich_help_panel=PANEL),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module of yours that registers kinds, installed or in this folder. Repeatable.",
        show_default=False,
    ),
]
_Source = Annotated[
    str,
    typer.Argument(metavar="[EXPERIMENT]", help="An experiment file, or a preset: " + ", ".join(presets.texts()) + "."),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any key, such as client.lr=0.01. Repeatable."),
]


@dataclass(frozen=True)
class Place:
    """Who does a command's work."""

    engine: Annotated[
        str,
        typer.Option(
            help=f"Who does the work: {_names(ENGINES)}. Ray spreads it over a cluster; it needs the extra 'ray'.",
            rich_help_panel=CLUSTER,
        ),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            help="Of Ray: the head's host:port, or auto (also from RAY_ADDRESS); none: a Ray is started here and "
            "ended.",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None


@dataclass(frozen=True)
class Work(Place):
    """How many runs are done."""

    jobs: Annotated[
        int,
        typer.Option(help="Runs side by side (with Ray: on each GPU); 0: one a core on a CPU, one at a time on a GPU."),
    ] = 0
    checkpoint_every: CheckpointEvery = DEFAULT_CHECKPOINT_S


def _presented(wrapper: Callable[..., None], command: Callable[..., None], options: list[inspect.Parameter]) -> Any:
    """A function that typer takes for a command with these options."""
    functools.update_wrapper(wrapper, command)
    del wrapper.__dict__["__wrapped__"]  # typer must see the new signature, not the command's own
    given = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]
    wrapper.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in given}
    return wrapper


def grouped(command: Callable[..., None]) -> Any:
    """Options that belong together, as one parameter: `screen: Screen` is made of --json, --quiet and so on."""
    own = inspect.signature(command, eval_str=True).parameters
    kinds = {n: p.annotation for n, p in own.items() if getattr(p.annotation, "__module__", "").startswith(_HERE)}
    parts = {name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()}

    def wrapper(**given: Any) -> None:
        made = {name: kind(**{n: given.pop(n) for n in parts[name]}) for name, kind in kinds.items()}
        command(**given, **made)

    return _presented(wrapper, command, [p for n, one in own.items() for p in parts.get(n, {n: one}).values()])


def takes_experiment(default: str, shorts: tuple[Short, ...] = SHORT) -> Callable[[Callable[..., None]], Any]:
    """Add EXPERIMENT, --set, --plugin and the short options to a command; it gets their result as `raw`.

    A command with a parameter `chosen` also gets the keys that were set on the command line.
    """

    def decorate(command: Callable[..., None]) -> Any:
        command = grouped(command)
        own = inspect.signature(command).parameters

        def wrapper(**given: Any) -> None:
            values = {short: given.pop(_name(short)) for short in shorts}
            settings = given.pop("settings") or []
            named = load_plugins(given.pop("plugin"))
            raw = _raw(given.pop("experiment"), settings, values)
            if named:
                raw["plugins"] = sorted({*raw.get("plugins", []), *named})
            if "chosen" in own:
                keys = [short.key for short, value in values.items() if value is not None]
                given["chosen"] = keys + [config.parse_setting(text)[0] for text in settings]
            command(raw=raw, **given)

        def option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        added = [option("experiment", default, _Source)]
        added += [p for name, p in own.items() if name not in ("raw", "chosen")]
        for short in shorts:
            shown = typer.Option(short.flag, help=short.help, rich_help_panel=short.panel, show_default=False)
            added.append(option(_name(short), None, Annotated[short.type | None, shown]))
        added += [option("settings", None, _Settings), option("plugin", None, Plugin)]
        return _presented(wrapper, command, added)

    return decorate


def load_plugins(names: list[str] | None) -> list[str]:
    """Import what --plugin names; it may lie in the current folder."""
    plugins.load(names or [], [Path.cwd()])
    return names or []


def _name(short: Short) -> str:
    return short.flag.removeprefix("--").replace("-", "_")


def _raw(source: str, settings: list[str], shorts: dict[Short, Any]) -> dict[str, Any]:
    """The content of an experiment file with all changes made; short options before --set."""
    raw = deepcopy(_source(source))
    for short, value in shorts.items():
        if value is not None:
            config.change(raw, short.key, short.read(value, short.flag))
    for text in settings:
        config.change(raw, *config.parse_setting(text))
    return raw


def _source(name: str) -> dict[str, Any]:
    if name in presets.texts():
        return presets.content(name)
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return config.read(path)
    raise InputError(unknown("preset", name, presets.texts()) + " An experiment file ends in .toml.")


def check_chosen(chosen: list[str], axes: Iterable[str]) -> None:
    """What is set for all runs must not be undone by what a sweep sets run by run."""
    for key in chosen:
        if key == "seed":
            raise InputError("seed is set, but the runs have the seeds of --seeds; write --seeds 4,7 for these two.")
        if by := [axis for axis in axes if overwritten(key, axis)]:
            what = "by --methods" if by[0] == "method" else f"as '{by[0]}' in the grid"
            raise InputError(f"'{key}' is set for all runs and also given {what}; leave one of them out.")


def seed_list(text: str, flag: str = "--seeds") -> list[int]:
    """'3' is 0, 1, 2; '2:5' is 2, 3, 4; '1,4' is 1, 4."""
    try:
        if ":" in text:
            first, last = text.split(":")
            seeds = list(range(int(first or 0), int(last)))
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = list(range(int(text)))
    except ValueError:
        raise InputError(f"{flag} is '{text}'; write 3 (the first three), 0:5, or 1,4,7.") from None
    if not seeds or min(seeds) < 0:
        raise InputError(f"{flag} is '{text}'; that names no seed, or a negative one.")
    return seeds


def method_list(text: str) -> list[str]:
    """'algorithm1,greedy' as names that exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        lookup(METHODS, name, "method")
    if not names:
        raise InputError("--methods names no method; give some with commas, such as algorithm1,greedy.")
    return names


def number_list(text: str, flag: str) -> list[float]:
    """'1,2.5' as numbers, or an error that names the option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is '{text}'; give numbers with commas, such as 1,1,1,3.") from None


def grid_axes(texts: list[str]) -> dict[str, list[Any]]:
    """['client.lr=0.01,0.1'] as {'client.lr': [0.01, 0.1]}; a value may be a TOML list or table."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise InputError(f"--grid is '{text}'; write key=value,value, such as client.lr=0.01,0.1.")
        key = key.strip()
        if key in axes:
            raise InputError(f"--grid names '{key}' twice; give all its values at once, as in {key}=A,B,C.")
        whole = config.parse_value(f"[{values}]")
        axes[key] = whole if isinstance(whole, list) else [config.parse_value(v.strip()) for v in values.split(",")]
    return axes
