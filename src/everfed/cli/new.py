"""`everfed new`: an experiment file to start from, every key with its default and its meaning."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import Field, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed import checks, registry
from everfed.checks import check_file
from everfed.cli import options as o
from everfed.cli.screen import TextScreen
from everfed.errors import InputError
from everfed.run.config import plain, table_of
from everfed.run.experiment import Experiment, kind_of
from everfed.run.meanings import meanings
from everfed.run.toml import written
from everfed.store.files import write_atomically

_WIDTH = 100
_TABLES = ("fleet", "data", "split", "model", "client")  # parts that are written out, in this order
_FIRST = ("rounds", "local_steps", "batch_size", "seed", "eval_every", "device")
_NOT_WRITTEN = ("policy", "server", "plugins", "loss")  # a method stands for the first two
# The words of the options.
_HELP = {short.key: short.help.rstrip(".") for short in o.ONE_METHOD} | {"seed": "Seed of all random draws"}


@o.grouped
def new(
    file: Annotated[Path, typer.Argument(metavar="[NAME.toml]", help="Where to write it.")] = Path("experiment.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    *,
    screen: TextScreen,
) -> None:
    """Write an experiment file to start from: every key with its default, its unit and its meaning.

    It runs as it is. Keys that are seldom changed are commented out; remove the # before one to set it.

    Example: everfed new mine.toml, then: everfed run mine.toml
    """
    path = check_file(file)
    if path.suffix != ".toml":
        raise InputError(f"the file is '{path}'; an experiment file ends in .toml.")
    if path.exists() and not force:
        raise InputError(f"'{path}' exists; choose another name, or replace it with --force.")
    write_atomically(path, starting_file(path.name))
    screen.out.print(f"{path}; run it with: everfed run {shlex.quote(str(path))}")


def starting_file(name: str = "experiment.toml") -> str:
    """The text of the file."""
    default = Experiment()
    head = (
        "An experiment of everfed. Every value is the default, so lines that you do not change can go. Lines such as "
        f"#validation = 0.0 are seldom needed: remove the # to set one. Run it with: everfed run {shlex.quote(name)}"
    )
    lines = [
        *_prose(head),
        "",
        *_prose(f"A policy and a server rule. {_HELP['method']}."),
        f"method = {written(default.method)}",
        "",
    ]
    fields = {field.name: field for field in registry.options(Experiment) if not field.metadata.get("live")}
    for key in _FIRST:
        lines += [*_key(fields[key], default, ""), ""]
    later = [field for key, field in fields.items() if key not in (*_FIRST, *_TABLES, *_NOT_WRITTEN)]
    for field in (field for field in later if not _is_table(field, default)):
        lines += [*_key(field, default, "#"), ""]
    for key in _TABLES:
        lines += [*_table(fields[key], default, ""), ""]
    for field in (field for field in later if _is_table(field, default)):
        lines += [*_table(field, default, "#"), ""]
    return "\n".join(lines)


def _is_table(field: Field[Any], default: Experiment) -> bool:
    """Options that have no kind, such as [early_stopping]; other parts are written as their kind alone."""
    value = getattr(default, field.name)
    return is_dataclass(value) and table_of(checks.field_hints(Experiment)[field.name]) is None


def _key(field: Field[Any], default: Experiment, off: str) -> Iterator[str]:
    """One key with its meaning above it."""
    hint = checks.field_hints(Experiment)[field.name]
    yield from _prose(_meaning(Experiment, field, hint, ""))
    yield f"{off}{field.name} = {_default(field, getattr(default, field.name), hint)}"


def _table(field: Field[Any], default: Experiment, off: str) -> Iterator[str]:
    """A part with its options."""
    value, hint = getattr(default, field.name), checks.field_hints(Experiment)[field.name]
    yield from _prose(_meaning(Experiment, field, hint, ""))
    yield f"{off}[{field.name}]"
    if table_of(checks.limits(hint)[0]):
        yield f"{off}kind = {written(kind_of(value))}"
    kind: Any = type(value)
    hints = checks.field_hints(kind)
    for option in registry.options(value):
        yield from _prose(_meaning(kind, option, hints[option.name], f"{field.name}."))
        yield f"{off}{option.name} = {_default(option, getattr(value, option.name), hints[option.name])}"


def _default(field: Field[Any], value: Any, hint: Any) -> str:
    """As a file has it; a part as its kind where it has no options. What is left out has a value to start from."""
    if value is None:
        return "0" if field.name.endswith("seed") else "1.0"
    found = plain(value, checks.limits(hint)[0])
    if isinstance(found, dict) and set(found) == {"kind"}:
        found = found["kind"]
    return written(found)


def _meaning(cls: type, field: Field[Any], hint: Any, before: str) -> str:
    """The words of the option that sets it, or of the source, with the range or the names that are valid."""
    told = meanings(cls).get(field.name, "").removesuffix(".")
    said = _HELP.get(before + field.name) or told or field.name.replace("_", " ")
    said = said.rstrip(".")
    bare, interval, texts = checks.limits(hint)
    word = field.metadata.get("names")
    names = texts or (registry.kinds(word) if word else table_of(bare)) or ()
    if names and not all(str(name) in said for name in names) and '"' not in said:
        said += f". One of: {', '.join(names)}"
    if interval and interval != checks.limits(checks.Seed)[1]:
        said += f". Range: {interval}"
    first = said.split(maxsplit=1)[0].rstrip(",:")
    return f"{said if first in names else said[:1].upper() + said[1:]}."


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
