"""Experiments as files: TOML in and out, and changes from the command line.

Keys, types and defaults come from the registered classes. Unknown keys are errors that name the nearest valid one.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from everfed import checks, plugins, registry
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, unknown
from everfed.methods import METHODS
from everfed.registry import lookup
from everfed.run import keys, live
from everfed.run.experiment import TABLES, Experiment, kind_of
from everfed.run.files import fleet_named, hints as _hints, read as read, table_of as table_of
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
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def to_dict(value: Any, mode: bool = True) -> dict[str, Any]:
    """An experiment, or a part of one, as plain dicts, lists and numbers. mode: whether train() and eval() count."""
    in_a_table = any(type(value) in table.values() for table in TABLES.values())
    if not in_a_table and not isinstance(value, Experiment):
        return live.describe(value, mode)
    out: dict[str, Any] = {} if isinstance(value, Experiment) else {"kind": kind_of(value)}
    return out | _options(value)


def _options(value: Any) -> dict[str, Any]:
    """The options of a dataclass by name. Those added later are left out where they have their default, so that the
    texts of older experiments, and the names of their folders, stay the same."""
    hints, out = _hints(type(value)), {}
    for field in registry.options(value):
        part = getattr(value, field.name)
        if not field.metadata.get("left_out") or part != registry.default_of(field):
            # A model is trained in train mode and evaluated in eval mode, whichever it is in.
            out[field.name] = plain(part, hints[field.name], mode=field.name != "model")
    return out


def plain(part: Any, hint: Any, mode: bool = True) -> Any:
    """A value of a field as a file has it."""
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return list(part) if set(map(type, part)) <= {inner} & set(_PLAIN) else [plain(item, inner) for item in part]
    if typing.get_origin(hint) is dict:
        return {name: plain(item, typing.get_args(hint)[1]) for name, item in part.items()}
    if isinstance(part, Fleet):
        part = CycleFleet.of(part) or part
    if isinstance(part, np.generic):
        part = part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if hint is type(part):  # options with options of their own
        return _options(part)
    return to_dict(part, mode)


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


def _value(hint: Any, value: Any, where: str) -> Any:
    if recalled := live.recall(value):
        return recalled
    if table := table_of(hint):
        return _choice(table, value, where)
    if typing.get_origin(hint) is tuple:
        (inner, _) = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            example = f'[{{kind = "{next(iter(TABLES[inner]))}"}}]' if inner in TABLES else "[1, 5, 10]"
            if isinstance(value, str) and (inner is str or checks.is_union(inner)):  # names, of which this may be one
                example = show([value])
            raise InputError(f"{where} is {show(value)}; it must be a list, such as {example}.")
        if inner in _PLAIN and set(map(type, value)) <= {inner}:  # a million cycles, say
            return tuple(value)
        return tuple(_value(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {show(value)}; it must be a table of names and their options.")
        return {name: _value(typing.get_args(hint)[1], item, f"{where}.{name}") for name, item in value.items()}
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
    try:
        kind = lookup(table, str(options["kind"]), f"{where} kind")
    except InputError as error:
        more = " A fleet file ends in .toml, and `everfed fleets` lists others." if where == "fleet" else ""
        raise InputError(f"{error}{more}") from None
    return _decode(kind, {k: v for k, v in options.items() if k != "kind"}, where + ".")


def change(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key of raw content in place; a new kind resets the old kind's options.

    It applies to every method, and overrides the settings of single methods.
    """
    *path, last = keys.split(key)
    if len(path) > DEEPEST:
        raise InputError(f"unknown key '{key[:60]}...'; keys have few dots, such as client.schedule.final.")
    if key == "fleet" and isinstance(value, str):
        value = fleet_named(value)
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
    at: Any = raw
    for name in path:
        at = _inside(at, name, key, raw)
    if isinstance(at, list):
        last = keys.place(at, last, key)
    elif isinstance(last, int):
        raise InputError(f"'{key}': what stands before [{last}] is not a list in this experiment.")
    elif last == "kind":
        at.clear()
    at[last] = value


def _inside(at: Any, name: str | int, key: str, raw: dict[str, Any]) -> Any:
    """The table or list of this name in another one, made where it is missing."""
    if isinstance(at, list):
        found = at[keys.place(at, name, key)]
        if not isinstance(found, dict):
            raise InputError(f"'{name}' in '{key}' is not a table of options.")
        return found
    if isinstance(name, int):
        raise InputError(f"'{key}': what stands before [{name}] is not a list in this experiment.")
    inside = at.get(name)
    if isinstance(inside, str):
        inside = fleet_named(inside) if name == "fleet" and at is raw else inside
        inside = {"kind": inside} if isinstance(inside, str) else inside
    if inside is None:
        inside = _default_part(name) if at is raw and name != "methods" else {}
    if not isinstance(inside, dict | list):
        raise InputError(f"'{name}' in '{key}' is not a table of options.")
    at[name] = inside
    return inside


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
