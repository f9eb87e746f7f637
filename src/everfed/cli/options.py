"""Options that several commands share.

An experiment comes from a file or a preset. Short options (`--rounds 100`) and `--set key=value` override its keys.
`takes_experiment` adds all of them to a command.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from everfed import checks, plugins, presets
from everfed.checks import CountOrZero, NonNegative, check_within
from everfed.cli.screen import PANEL
from everfed.data.datasets import DATASETS
from everfed.data.partition import SPLITS
from everfed.energy.arrivals import ARRIVALS
from everfed.errors import InputError, unknown
from everfed.learning.models import MODELS
from everfed.learning.optim import OPTIMIZERS, SCHEDULES
from everfed.learning.precision import PRECISIONS
from everfed.machine import check_memory
from everfed.methods import COMPARED as _COMPARED, METHODS
from everfed.registry import lookup
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.files import fleet_named, fleet_texts
from everfed.run.keys import numbered, split_setting
from everfed.run.toml import show
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.store.trackers import TRACKERS
from everfed.studies.sweep import overwritten
from everfed.trainers.choose import TRAINERS

plugins.import_installed()  # so that the lists of names below include theirs

_HERE = __name__.rpartition(".")[0]
_FLEET, _TRAINING, CLUSTER = "Fleet", "Training", "Cluster"
ENGINES = ("local", "ray")
COMPARED = ",".join(_COMPARED)


class Short(NamedTuple):
    """A short option: the key of the experiment that it sets, and how its text is parsed."""

    flag: str
    key: str
    type: type
    help: str
    panel: str = _TRAINING
    read: Callable[[Any, str], Any] = lambda value, flag: value


def _whole(text: str, flag: str) -> list[int]:
    """'1,5,10' as whole numbers, or an error that names the option."""
    try:
        values = [float(part) for part in text.split(",")]
        if all(value.is_integer() for value in values):
            return [int(value) for value in values]
    except ValueError:
        pass
    raise InputError(f"{flag} is '{text}'; give whole numbers separated by commas, such as 1,5,10,20.")


def _names(table: Any) -> str:
    return ", ".join(table)


SHORT = (
    Short("--data", "data", str, f"Data set: {_names(DATASETS)}."),
    Short("--split", "split", str, f"How samples are split over clients: {_names(SPLITS)}."),
    Short("--strength", "split.strength", float, "For the by-energy split: 0 is iid, 1 fully separates the classes."),
    Short("--alpha", "split.alpha", float, "For the dirichlet split: smaller is more skewed."),
    Short("--per", "split.per", str, "For the dirichlet split: skew per client or per energy-group."),
    Short("--model", "model", str, f"One of {_names(MODELS)}."),
    Short("--rounds", "rounds", int, "Global rounds."),
    Short("--local-steps", "local_steps", int, "T: local steps per round."),
    Short("--batch-size", "batch_size", int, "Samples per step, drawn uniformly with replacement."),
    Short("--optimizer", "client", str, f"Optimiser of the clients: {_names(OPTIMIZERS)}."),
    Short("--lr", "client.lr", float, "Learning rate of the clients."),
    Short("--schedule", "client.schedule", str, f"Schedule of the learning rate: {_names(SCHEDULES)}."),
    Short("--momentum", "client.momentum", float, "Momentum of sgd."),
    Short("--weight-decay", "client.weight_decay", float, "Adds this times the parameters to the gradient."),
    Short("--eval-every", "eval_every", int, "Rounds between evaluations; 0: evaluate 20 times in the run."),
    Short("--trainer", "trainer", str, f"{_names(TRAINERS)}; same results."),
    Short("--device", "device", str, "auto, cpu or cuda."),
    Short("--precision", "precision", str, f"{_names(PRECISIONS)}; the last two on a GPU."),
    Short(
        "--fleet",
        "fleet",
        str,
        f"A fleet file, or one of {_names(fleet_texts())}: see everfed fleets.",
        _FLEET,
    ),
    Short("--clients", "fleet.clients", int, "Number of clients.", _FLEET),
    Short(
        "--cycles",
        "fleet.cycles",
        str,
        "E: rounds a client needs to harvest one round's energy. Assigned to clients in turn: with 1,5,10,20 client 0 "
        "can train every round, client 3 every 20th.",
        _FLEET,
        _whole,
    ),
    Short(
        "--offsets", "fleet.offsets", str, "First round with energy, one per cycle or one per client.", _FLEET, _whole
    ),
    Short("--arrivals", "fleet.arrivals", str, f"How energy arrives: {_names(ARRIVALS)}.", _FLEET),
    Short("--capacity", "fleet.capacity", float, "Battery, in units of one round's energy; 0: as needed.", _FLEET),
)
# Before the others and before --set, which may change options of the method's policy.
_METHOD = Short("--method", "method", str, f"One of {_names(METHODS)}.")
ONE_METHOD = (_METHOD, *SHORT)
# Plans and audits do not train; they accept --device so that every command takes the same options.
FLEET_ONLY = (
    _METHOD,
    *(short for short in SHORT if short.panel == _FLEET or short.flag in ("--rounds", "--device")),
)

Seed = Annotated[int | None, checks.limits(checks.Seed)[1], typer.Option(help="Seed of all random draws.")]
Seeds = Annotated[str, typer.Option(help="Seeds: 3 (the first three), 0:5, or 1,4,7.")]
Grid = Annotated[
    list[str],
    typer.Option("--grid", metavar="KEY=V,V", help="Values to try, such as client.lr=0.01,0.1. Repeatable."),
]
Methods = Annotated[
    str, typer.Option(help=f"Methods, separated by commas: {', '.join(METHODS)}.", rich_help_panel=_TRAINING)
]
CheckpointEvery = Annotated[NonNegative, typer.Option(help="Seconds between checkpoints.")]
MixedVersions = Annotated[
    bool, typer.Option("--mixed-versions", help="Resume runs that other code or another torch or numpy began.")
]
OnDivergence = Annotated[
    str, ("stop", "skip"), typer.Option(help="stop, or skip: ignore updates that are not finite and continue.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help=f"Also write to {_names(TRACKERS)}. Repeatable.", rich_help_panel=PANEL),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Your module that registers kinds, installed or in the current folder. Repeatable.",
        show_default=False,
    ),
]
_Source = Annotated[
    str,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help=f"An experiment or fleet file, a preset: {_names(presets.texts())}; or a fleet: {_names(fleet_texts())}.",
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set any key, such as client.lr=0.01 or fleet.groups.phones.count=9. Repeatable.",
    ),
]


@dataclass(frozen=True)
class Place:
    """Where a command runs."""

    engine: Annotated[
        str,
        typer.Option(
            help=f"Where to run: {_names(ENGINES)}. Ray distributes the work over a cluster and needs the extra 'ray'.",
            rich_help_panel=CLUSTER,
        ),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray: the head's host:port, or auto (default: RAY_ADDRESS, or a temporary local Ray).",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None


@dataclass(frozen=True)
class Work(Place):
    """Where and how several runs are executed."""

    jobs: Annotated[
        CountOrZero,
        typer.Option(help="Parallel runs (with Ray: per GPU); 0: one per core on a CPU, one at a time on a GPU."),
    ] = 0
    checkpoint_every: CheckpointEvery = DEFAULT_CHECKPOINT_S
    mixed_versions: MixedVersions = False


def _presented(wrapper: Callable[..., None], command: Callable[..., None], options: list[inspect.Parameter]) -> Any:
    """A function that typer accepts as a command with these options."""
    functools.update_wrapper(wrapper, command)
    del wrapper.__dict__["__wrapped__"]  # typer must see the new signature, not the command's own
    given = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]
    wrapper.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in given}
    return wrapper


def grouped(command: Callable[..., None]) -> Any:
    """A group of options as one parameter: `screen: Screen` combines --json, --quiet and so on."""
    own = inspect.signature(command, eval_str=True).parameters
    kinds = {n: p.annotation for n, p in own.items() if getattr(p.annotation, "__module__", "").startswith(_HERE)}
    parts = {name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()}

    def wrapper(**given: Any) -> None:
        for name, option in taken.items():
            given[name] = _checked(option, given[name])
        made = {name: kind(**{n: given.pop(n) for n in parts[name]}) for name, kind in kinds.items()}
        command(**given, **made)

    taken = {p.name: p for n, one in own.items() for p in parts.get(n, {n: one}).values()}
    return _presented(wrapper, command, list(taken.values()))


def _checked(option: inspect.Parameter, value: Any) -> Any:
    """An option's value, within the range and among the texts that its type is annotated with."""
    hint, interval, texts = checks.limits(option.annotation)
    if value is None or not (interval or texts):
        return value
    kind = next(iter(get_args(hint)), hint)  # what may be left out is a union with None
    return checks.checked(f"--{option.name.replace('_', '-')}", value, Annotated[kind, interval or texts])


def takes_experiment(default: str, shorts: tuple[Short, ...] = SHORT) -> Callable[[Callable[..., None]], Any]:
    """Add EXPERIMENT, --set, --plugin and the short options to a command, which receives the result as `raw`.

    A command with a parameter `chosen` also receives the keys that were set on the command line, and one with `source`
    the name of the file or preset.
    """

    def decorate(command: Callable[..., None]) -> Any:
        command = grouped(command)
        own = inspect.signature(command).parameters

        def wrapper(**given: Any) -> None:
            values = {short: given.pop(_name(short)) for short in shorts}
            settings = given.pop("settings") or []
            named = load_plugins(given.pop("plugin"))
            source = given.pop("experiment")
            raw = _raw(source, settings, values)
            if named:
                raw["plugins"] = sorted({*raw.get("plugins", []), *named})
            if "chosen" in own:
                keys = [short.key for short, value in values.items() if value is not None]
                given["chosen"] = keys + [config.parse_setting(text)[0] for text in settings]
            if "source" in own:
                given["source"] = source
            command(raw=raw, **given)

        def option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        added = [option("experiment", default, _Source)]
        added += [p for name, p in own.items() if name not in ("raw", "chosen", "source")]
        for short in shorts:
            shown = typer.Option(short.flag, help=short.help, rich_help_panel=short.panel, show_default=False)
            added.append(option(_name(short), None, Annotated[short.type | None, shown]))
        added += [option("settings", None, _Settings), option("plugin", None, Plugin)]
        return _presented(wrapper, command, added)

    return decorate


def load_plugins(names: list[str] | None) -> list[str]:
    """Import the modules of --plugin, which may be in the current folder."""
    plugins.load(names or [], [Path.cwd()])
    return names or []


def _name(short: Short) -> str:
    return short.flag.removeprefix("--").replace("-", "_")


def _raw(source: str, settings: list[str], shorts: dict[Short, Any]) -> dict[str, Any]:
    """The content of an experiment file with all overrides; short options apply before --set."""
    raw = deepcopy(_source(source))
    given = [(short.key, short.read(value, short.flag)) for short, value in shorts.items() if value is not None]
    given += [config.parse_setting(text) for text in settings]
    for i, (key, value) in enumerate(given):
        if undone := [before for before, _ in given[:i] if before != key and overwritten(before, key)]:
            raise InputError(f"'{key}' comes after '{undone[0]}' and undoes it; write --set {undone[0]}=... after it.")
        same = numbered(raw, key)
        if twice := [before for name, before in given[:i] if numbered(raw, name) == same and before != value]:
            raise InputError(f"'{key}' is set twice, to {show(twice[0])} and to {show(value)}; set it once.")
        config.change(raw, key, value)
    return raw


def _source(name: str) -> dict[str, Any]:
    if name in presets.texts():
        return presets.content(name)
    if name in fleet_texts():
        return {"fleet": fleet_named(name)}
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return config.read(path)
    raise InputError(unknown("preset", name, presets.texts()) + " An experiment file ends in .toml.")


def load_experiment(source: str) -> Experiment:
    """A preset or an experiment file, as it is."""
    return config.from_dict(deepcopy(_source(source)))


def check_chosen(chosen: list[str], axes: Iterable[str]) -> None:
    """Reject keys that are set for all runs and overridden by the sweep."""
    for key in chosen:
        if key == "seed":
            raise InputError("seed is set, but the runs use --seeds; write --seeds 4,7 for these two.")
        if by := [axis for axis in axes if overwritten(key, axis)]:
            what = "by --methods" if by[0] == "method" else f"by '{by[0]}' in the grid"
            raise InputError(f"'{key}' is set for all runs and also {what}; remove one of them.")


def seed_list(text: str, flag: str = "--seeds") -> list[int]:
    """'3' is 0, 1, 2; '2:5' is 2, 3, 4; '1,4' is 1, 4."""
    if found := re.fullmatch(r"(?:(\d{0,20}):)?(\d{1,20})", text):
        count = int(found[2]) - int(found[1] or 0)
        check_memory(f"{count:,} seeds", 1000 * count, f"give fewer {flag}")  # for each, a run or a row of an audit
    try:
        if ":" in text:
            first, last = text.split(":")
            seeds = list(range(int(first or 0), int(last)))
        elif "," in text:
            seeds = [int(part) for part in text.split(",")]
        else:
            seeds = list(range(int(text)))
    except (ValueError, OverflowError):
        raise InputError(f"{flag} is '{text}'; write 3 (the first three), 0:5, or 1,4,7.") from None
    if not seeds or min(seeds) < 0:
        raise InputError(f"{flag} is '{text}'; give at least one seed, none of them negative.")
    return seeds


def method_list(text: str, flag: str = "--methods") -> list[str]:
    """'algorithm1,greedy' as a list of known names."""
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise InputError(f"{flag} is '{text}'; give names separated by commas, such as algorithm1,greedy.")
    for name in names:
        lookup(METHODS, name, "method")
    return names


def number_list(text: str, flag: str) -> list[float]:
    """'1,2.5' as numbers that are not negative, or an error that names the option."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is '{text}'; give numbers separated by commas, such as 1,1,1,3.") from None
    for number in numbers:
        check_within("[0, inf)", **{flag: number})
    return numbers


def grid_axes(texts: list[str]) -> dict[str, list[Any]]:
    """['client.lr=0.01,0.1'] as {'client.lr': [0.01, 0.1]}; a value may be a TOML list or table."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = split_setting(text)
        if not equals or not key or not values:
            raise InputError(f"--grid is '{text}'; write key=value,value, such as client.lr=0.01,0.1.")
        if key in axes:
            raise InputError(f"--grid has '{key}' twice; give all its values in one, such as {key}=A,B,C.")
        whole = config.parse_value(f"[{values}]")
        axes[key] = whole if isinstance(whole, list) else [config.parse_value(v.strip()) for v in values.split(",")]
    return axes
