"""Experiments as files: TOML in and out, and changes from the command line.

Keys, types and defaults come from the registered classes. Unknown keys are errors that name the nearest valid one.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from everfed import checks, plugins, registry
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, first_line, unknown
from everfed.methods import METHODS
from everfed.registry import lookup
from everfed.run import live
from everfed.run.experiment import TABLES, Experiment, kind_of
from everfed.run.fleets import CycleFleet
from everfed.run.toml import (
    DEEPEST,
    flat as flat,
    parse as parse,
    parse_setting as parse_setting,
    parse_value as parse_value,
    raw_to_toml as raw_to_toml,
    show,
)

# Of files that are written out. The first format had no such key, and other rules under two of today's names.
FORMAT = 2
_RENAMED = {"mifa": "last-updates", "scaffold": "ht-scaffold"}
_WRITTEN_OUT = {"data", "split", "fleet", "policy", "model", "client", "rounds", "local_steps", "batch_size", "seed"}

_LARGEST = 10_000_000  # bytes of a file
_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)  # to evaluate annotations is slow
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def to_dict(value: Any) -> dict[str, Any]:
    """An experiment, or a part of one, as plain dicts, lists and numbers."""
    in_a_table = any(type(value) in table.values() for table in TABLES.values())
    if not in_a_table and not isinstance(value, Experiment):
        return live.describe(value)
    out: dict[str, Any] = {} if isinstance(value, Experiment) else {"kind": kind_of(value)}
    hints = _hints(type(value))
    for field in registry.options(value):
        part = getattr(value, field.name)
        if not field.metadata.get("left_out") or part != field.default:
            out[field.name] = plain(part, hints[field.name])
    return out


def plain(part: Any, hint: Any) -> Any:
    """A value of a field as a file has it."""
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return list(part) if set(map(type, part)) <= {inner} & set(_PLAIN) else [plain(item, inner) for item in part]
    if isinstance(part, Fleet):
        part = CycleFleet.of(part) or part
    if isinstance(part, np.generic):
        part = part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if hint is type(part):  # options with options of their own
        hints = _hints(hint)
        return {f.name: plain(getattr(part, f.name), hints[f.name]) for f in fields(part)}
    return to_dict(part)


def from_dict(raw: Mapping[str, Any]) -> Experiment:
    """An experiment from plain data; `method = "greedy"` selects a policy and a server rule.

    A table `methods.greedy` holds settings of that method only. They are checked for every run.
    """
    tuned_on(raw)  # for people and commands: nothing of it is run
    values = {key: value for key, value in raw.items() if key not in ("methods", "tuned_on")}
    tables = raw.get("methods", {})
    experiment = _experiment(values)
    for method, settings in method_settings(tables).items():
        content = deepcopy(values)
        if method != experiment.method:
            change(content, "method", method)
        for key, value in settings.items():
            change(content, key, value)
        try:
            made = _experiment(content)
        except InputError as error:
            raise InputError(f"methods.{method}: {error}") from None
        known = METHODS[method]
        for part, wanted in (("policy", known.policy), ("server", known.server)):
            if type(getattr(made, part)) is not type(wanted):
                raise InputError(
                    f"methods.{method} sets '{part}'; it holds settings of this method; it cannot choose another."
                )
        if method == experiment.method:
            experiment = made
    return experiment


def method_settings(tables: Any) -> dict[str, dict[str, Any]]:
    """The tables `methods.NAME` of a file as dotted keys, those that set a kind before the kind's options."""
    if not isinstance(tables, Mapping):
        raise InputError(f"methods is {show(tables)}; it must hold a table of settings per method.")
    out = {}
    for method, table in tables.items():
        lookup(METHODS, method, "method")
        if not isinstance(table, Mapping):
            raise InputError(f"methods.{method} is {show(table)}; it must be a table of settings.")
        if quoted := _quoted(table):
            raise InputError(
                f"methods.{method}: unknown key '{quoted[0]}' in quotes; in TOML write {quoted[0]} without them, "
                "in Python one dict inside the other."
            )
        settings = flat(table)
        if wrong := [key for key in settings if key.split(".")[0] in ("method", "methods")]:
            raise InputError(
                f"methods.{method} sets '{wrong[0]}'; it holds settings of this method; it cannot choose another."
            )
        out[method] = dict(sorted(settings.items(), key=lambda item: not item[0].endswith(".kind")))
    return out


def tuned_on(raw: Mapping[str, Any]) -> list[int]:
    """The seeds that a file's settings were tuned on; report results on others."""
    seeds = raw.get("tuned_on", [])
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        raise InputError(f"tuned_on is {show(seeds)}; it must be a list of seeds, such as [1000, 1001].")
    return seeds


def _quoted(table: Mapping[str, Any]) -> list[str]:
    """Keys with a dot in their name: `change` would not find them, and they would go before the command line."""
    inner = (key for value in table.values() if isinstance(value, Mapping) for key in _quoted(value))
    return [*(key for key in table if "." in str(key)), *inner]


def _experiment(raw: Mapping[str, Any]) -> Experiment:
    values = dict(raw)
    plugins.load_installed()
    plugins.load(values.get("plugins", []))
    written = values.pop("format", FORMAT)
    if written not in range(1, FORMAT + 1):
        raise InputError(
            f"format is {show(written)}, but this version of everfed reads formats up to {FORMAT}; use a newer version."
        )
    clash = [key for key in ("policy", "server") if key in values]
    if "method" in values and clash:
        raise InputError(f"method and {clash[0]} are both given; method stands for a policy and a server rule.")
    _expand_method(values)
    experiment: Experiment = _decode(Experiment, values, "")
    return experiment


def _decode(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from a table of values, or an error that says where."""
    hints = _hints(cls)
    written = {f.name for f in registry.options(cls) if not f.metadata.get("live")}
    objects = {f.name for f in registry.options(cls)} - written
    values = {}
    for key, value in raw.items():
        if key in written or (key in objects and live.recall(value)):
            values[key] = _value(hints[key], value, where + key)
        elif key not in objects or value is not None:
            raise InputError(_unknown_key(cls, key, where, written))
    try:
        made = cls(**values)
        if not isinstance(made, checks.Checked):  # the kinds of plugins need not derive from it
            checks.check_fields(made)
        return made
    except InputError as error:
        raise InputError(f"{where[:-1]}: {error}" if where else str(error)) from None


def _unknown_key(cls: type[Any], key: str, where: str, names: set[str]) -> str:
    """What to say of a key that a class does not have: often another kind of the same table has it, or a part."""

    def having(table: Mapping[str, type[Any]] | None) -> list[str]:
        return [kind for kind, one in (table or {}).items() if any(f.name == key for f in registry.options(one))]

    if not where:
        hints = _hints(cls)
        if parts := [name for name in names if having(table_of(hints[name]))]:
            meant = " or ".join(f"'{part}.{key}'" for part in sorted(parts))
            return f"unknown key '{key}'. Did you mean {meant}?"
        return unknown("key", key, [*names, "method", "methods", "tuned_on"])
    table = next((table for table in TABLES.values() if cls in table.values()), {})
    if others := having(table):
        mine = next(kind for kind, one in table.items() if one is cls)
        return f"unknown key '{where}{key}': the kind '{mine}' does not have it, only {', '.join(others)}."
    if not names:
        return f"unknown key '{where}{key}': '{where[:-1]}' takes no options."
    return unknown("key", key, names, where)


def table_of(hint: Any) -> Mapping[str, type[Any]] | None:
    """The table that a part comes from; live objects, which it may be as well, are not written in files."""
    kinds = typing.get_args(hint) if checks.is_union(hint) else (hint,)
    return next((TABLES[kind] for kind in kinds if kind in TABLES), None)


def _value(hint: Any, value: Any, where: str) -> Any:
    if recalled := live.recall(value):
        return recalled
    if table := table_of(hint):
        return _choice(table, value, where)
    if typing.get_origin(hint) is tuple:
        (inner, _) = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            example = f'[{{kind = "{next(iter(TABLES[inner]))}"}}]' if inner in TABLES else "[1, 5, 10]"
            raise InputError(f"{where} is {show(value)}; it must be a list, such as {example}.")
        if inner in _PLAIN and set(map(type, value)) <= {inner}:  # a million cycles, say
            return tuple(value)
        return tuple(_value(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {show(value)}; it must be a table of options.")
        return _decode(hint, value, where + ".")
    if checks.is_union(hint):  # a value that may be left out, or be live
        if value is None:
            return None
        hint = next(part for part in typing.get_args(hint) if part in _PLAIN)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > checks.LARGEST:
            raise InputError(f"{where} is {show(value)}; it must be at most {checks.LARGEST:g} in size.")
        return float(value)
    if hint not in _PLAIN:
        raise InputError(f"{where} has the type {hint}; an option must be a number, a string or a list of them.")
    if type(value) is not hint:
        raise InputError(f"{where} is {show(value)}; it must be {_PLAIN[hint]}.")
    return value


def _choice(table: Mapping[str, type[Any]], value: Any, where: str) -> Any:
    """A value of a table: its name alone, or {kind = name, option = ...}."""
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping):
        raise InputError(f"{where} is {show(value)}; it must be a name or a table with a kind: {', '.join(table)}.")
    if "kind" not in options:
        raise InputError(f"{where} has no kind; give one of {', '.join(table)}.")
    kind = lookup(table, str(options["kind"]), f"{where} kind")
    return _decode(kind, {k: v for k, v in options.items() if k != "kind"}, where + ".")


def read(path: Path, *, trusted: bool = True) -> dict[str, Any]:
    """The raw content of an experiment file, its paths made absolute.

    trusted: whether its plugins may be loaded from its folder or the current folder.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"'{path}' is a folder or a device; give an experiment file.")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"'{path}' is not an experiment file: it has more than {_LARGEST // 10**6} MB.")
        raw = _in_todays_words(parse(path.read_text(encoding="utf-8-sig"), str(path)))
    except FileNotFoundError:
        raise InputError(f"there is no experiment file '{path}'.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the experiment file '{path}' cannot be read: {first_line(error)}.") from None
    if not raw:
        raise InputError(f"'{path}' sets no key; `everfed presets show digits` prints an experiment to start from.")
    folder = path.absolute().parent
    plugins.load_installed()
    plugins.load(raw.get("plugins", []), [Path.cwd(), folder] if trusted else [], trusted=trusted)
    _find_files(Experiment, raw, folder)
    return raw


def _find_files(cls: type[Any], raw: Mapping[str, Any], folder: Path) -> None:
    """Make paths absolute, in place: those in a file are relative to that file."""
    hints = _hints(cls)
    for field in registry.options(cls):
        value, hint = raw.get(field.name), hints[field.name]
        if field.metadata.get("file") and isinstance(value, str) and value:
            raw[field.name] = str(folder / value)  # type: ignore[index]
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        table = table_of(inner)
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                continue
            kind = table.get(str(part.get("kind"))) if table else inner
            if is_dataclass(kind) and isinstance(kind, type):
                _find_files(kind, part, folder)


def _in_todays_words(raw: dict[str, Any]) -> dict[str, Any]:
    """What a run of an earlier version wrote down, with its server rule and its options under today's names."""
    policy, server = raw.get("policy"), raw.get("server")
    if isinstance(policy, dict) and policy.get("kind") == "thrifty" and "least" in policy:
        raw = {**raw, "policy": {{"least": "min_units"}.get(key, key): value for key, value in policy.items()}}
    if "format" in raw or not raw.keys() >= _WRITTEN_OUT or not isinstance(server, dict) or "place" not in server:
        return raw
    kind = server.get("kind")
    return {**raw, "server": {**server, "kind": _RENAMED.get(str(kind), kind)}}


def change(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key of raw content in place; a new kind resets the old kind's options.

    It applies to every method, and overrides the settings of single methods.
    """
    *path, last = key.split(".")
    if len(path) > DEEPEST:
        raise InputError(f"unknown key '{key[:60]}...'; keys have few dots, such as client.schedule.final.")
    for settings in raw.get("methods", {}).values() if isinstance(raw.get("methods"), dict) else ():
        if isinstance(settings, dict) and key.split(".")[0] in settings:
            if key.removesuffix(".kind").count(".") == 0:
                del settings[key.split(".")[0]]
            else:
                change(settings, key, value)
    if key == "method":
        raw.pop("policy", None)
        raw.pop("server", None)
    elif key.split(".")[0] in ("policy", "server"):
        _expand_method(raw)
    at: dict[str, Any] = raw
    for name in path:
        inside = at.get(name)
        if isinstance(inside, str):
            inside = {"kind": inside}
        if inside is None:
            inside = _default_part(path[0]) if at is raw and name != "methods" else {}
        if not isinstance(inside, dict):
            raise InputError(f"'{name}' in '{key}' is not a table of options.")
        at[name] = inside
        at = inside
    if last == "kind":
        at.clear()
    at[last] = value


def _expand_method(raw: dict[str, Any]) -> None:
    if "method" in raw:
        method = lookup(METHODS, raw.pop("method"), "method")
        raw |= {"policy": to_dict(method.policy), "server": to_dict(method.server)}


def _default_part(name: str) -> dict[str, Any]:
    """A part that the file leaves out has the default kind; options are added to that."""
    default = getattr(Experiment(), name, None)
    if not is_dataclass(default):
        raise InputError(unknown("key", name, [f.name for f in fields(Experiment)]))
    found: dict[str, Any] = plain(default, _hints(Experiment)[name])
    return found


def to_toml(experiment: Experiment) -> str:
    """The experiment as a TOML file, every default written out."""
    return raw_to_toml(to_dict(experiment))


def to_file(experiment: Experiment) -> str:
    """The same, with the format it is written in: for files that outlive a version."""
    return f"format = {FORMAT}\n{to_toml(experiment)}"


def identity(experiment: Experiment) -> str:
    """What two machines must agree on to mean the same experiment: files by name and content, not by place."""
    return to_toml(by_content(experiment.pinned()))


def by_content(experiment: Experiment) -> Experiment:
    """The same with files by name and content, wherever they lie; equal ones mean the same. Not to be run."""

    def place(path: str, sha256: str) -> str:
        return f"/{Path(path).name}" if sha256 else path

    if isinstance(experiment.fleet, Fleet | live.Live):
        return experiment
    return replace(experiment, fleet=experiment.fleet.with_files(place))


def differences(a: Experiment, b: Experiment) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values; files differ by their content."""
    hints = _hints(Experiment)
    later = (f for f in fields(Experiment) if f.metadata.get("left_out"))
    defaults = flat({f.name: plain(f.default, hints[f.name]) for f in later})
    one, two = (defaults | flat(to_dict(by_content(each))) for each in (a, b))
    return {k: (one.get(k), two.get(k)) for k in dict.fromkeys([*one, *two]) if one.get(k) != two.get(k)}
