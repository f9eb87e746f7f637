"""Experiment files and fleet files as plain data, their paths made absolute."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from everfed import checks, plugins, registry
from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError, close_to, first_line
from everfed.run.experiment import TABLES, Experiment
from everfed.run.fleets import FLEETS
from everfed.run.toml import parse

_RENAMED = {"mifa": "last-updates", "scaffold": "ht-scaffold"}
_WRITTEN_OUT = {"data", "split", "fleet", "policy", "model", "client", "rounds", "local_steps", "batch_size", "seed"}
_LARGEST = 10_000_000  # bytes of a file
hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)  # to evaluate annotations is slow


def read(path: Path, *, trusted: bool = True) -> dict[str, Any]:
    """The raw content of an experiment file, its paths made absolute. A fleet file is an experiment with that fleet.

    trusted: whether its plugins may be loaded from its folder or the current folder, and the fleet file that it names.
    """
    raw = _in_todays_words(_content(path, "an experiment file", "experiment file"))
    if not raw:
        raise InputError(f"'{path}' sets no key; `everfed presets show digits` prints an experiment to start from.")
    folder = path.absolute().parent
    plugins.load_installed()
    plugins.load(raw.get("plugins", []), [Path.cwd(), folder] if trusted else [], trusted=trusted)
    if is_fleet(raw):
        raw = {"fleet": {"kind": "devices", **raw}}
    elif trusted and isinstance(raw.get("fleet"), str):
        raw["fleet"] = fleet_named(raw["fleet"], folder)
    find_files(Experiment, raw, folder)
    return raw


def is_fleet(raw: Mapping[str, Any]) -> bool:
    """Whether this is the content of a fleet file: groups at the top, and no key of experiments."""
    fleets, experiments = ({field.name for field in registry.options(cls)} for cls in (DeviceFleet, Experiment))
    return "groups" in raw and not raw.keys() & (experiments - fleets)


def read_fleet(path: Path) -> dict[str, Any]:
    """The raw content of a fleet file, or the fleet of an experiment file, its paths made absolute."""
    raw = _content(path, "a fleet file", "fleet file")
    inside = raw.get("fleet")
    if isinstance(inside, str):
        return read(path)["fleet"]  # type: ignore[no-any-return]
    content = inside if isinstance(inside, dict) else {"kind": "devices", **raw}
    if not isinstance(inside, dict) and "groups" not in raw:
        raise InputError(
            f"'{path}' has no groups; a fleet file has [[groups]] at its top, as `everfed fleets show` prints."
        )
    find_files(Experiment, {"fleet": content}, path.absolute().parent)
    return content


def fleet_texts() -> dict[str, str]:
    """The TOML text of every fleet to start from, by name; the comment in its first line says what it is."""
    files = sorted((resources.files("everfed") / "presets" / "fleets").iterdir(), key=lambda file: file.name)
    return {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8") for f in files if f.name.endswith(".toml")}


def fleet_named(name: str, folder: Path | None = None) -> Any:
    """The content of the fleet that a text names, a file's or a preset's; the text itself if it names a kind."""
    if name.endswith(".toml"):
        return read_fleet((folder or Path()) / name)
    texts = fleet_texts()
    if name in FLEETS or not (name in texts or close_to(name, texts)):
        return name
    return {"kind": "devices", **parse(registry.lookup(texts, name, "fleet"), name)}


def _content(path: Path, what: str, noun: str) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"'{path}' is a folder or a device; give {what}.")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"'{path}' is not {what}: it has more than {_LARGEST // 10**6} MB.")
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        raise InputError(f"there is no {noun} '{path}'.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the {noun} '{path}' cannot be read: {first_line(error)}.") from None


def table_of(hint: Any) -> Mapping[str, type[Any]] | None:
    """The table that a part comes from; live objects, which it may be as well, are not written in files."""
    kinds = typing.get_args(hint) if checks.is_union(hint) else (hint,)
    return next((TABLES[kind] for kind in kinds if kind in TABLES), None)


def find_files(cls: type[Any], raw: Mapping[str, Any], folder: Path) -> None:
    """Make paths absolute, in place: those in a file are relative to that file."""
    types = hints(cls)
    for field in registry.options(cls):
        value, hint = raw.get(field.name), types[field.name]
        if field.metadata.get("file") and isinstance(value, str) and value:
            raw[field.name] = str(folder / value)  # type: ignore[index]
        if field.metadata.get("file") and isinstance(value, list):
            raw[field.name] = [str(folder / one) if isinstance(one, str) else one for one in value]  # type: ignore[index]
        inner, parts = hint, [value]
        if typing.get_origin(hint) is tuple and isinstance(value, list):
            inner, parts = typing.get_args(hint)[0], value
        elif typing.get_origin(hint) is dict and isinstance(value, dict):
            inner, parts = typing.get_args(hint)[1], list(value.values())
        table = table_of(inner)
        for part in parts:
            if not isinstance(part, dict):
                continue
            kind = table.get(str(part.get("kind"))) if table else inner
            if is_dataclass(kind) and isinstance(kind, type):
                find_files(kind, part, folder)


def _in_todays_words(raw: dict[str, Any]) -> dict[str, Any]:
    """What a run of an earlier version wrote down, with its server rule and its options under today's names."""
    policy, server = raw.get("policy"), raw.get("server")
    if isinstance(policy, dict) and policy.get("kind") == "thrifty" and "least" in policy:
        raw = {**raw, "policy": {{"least": "min_units"}.get(key, key): value for key, value in policy.items()}}
    if "format" in raw or not raw.keys() >= _WRITTEN_OUT or not isinstance(server, dict) or "place" not in server:
        return raw
    kind = server.get("kind")
    return {**raw, "server": {**server, "kind": _RENAMED.get(str(kind), kind)}}
