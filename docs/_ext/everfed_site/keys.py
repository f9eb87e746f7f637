"""The directive `experiment-keys`: every key of an experiment file, read off the classes that hold it."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from everfed import checks, registry
from everfed.data.augment import AUGMENTS
from everfed.learning.optim import SCHEDULES
from everfed.run.config import plain, table_of
from everfed.run.experiment import Experiment
from everfed.run.meanings import meanings, names_of, split
from everfed.run.toml import raw_to_toml
from everfed_site import kinds, shown

# Tables that several parts choose from: described once.
SHARED = {"client.schedule": ("Schedules", SCHEDULES), "data.augment": ("Augmentations", AUGMENTS)}


class Key(typing.NamedTuple):
    name: str
    default: str
    range: str
    meaning: str


def keys_of(cls: Any) -> list[Key]:
    """The plain keys of a class: those that are not a part with kinds or keys of its own."""
    hints, told = checks.field_hints(cls), meanings(cls)
    return [
        Key(field.name, _default(field, hints[field.name]), _range(field, hints[field.name]), told.get(field.name, ""))
        for field in _written(cls)
        if _inner(hints[field.name]) is None
    ]


def parts_of(cls: Any) -> Iterator[tuple[str, Any, str, bool]]:
    """(key, its table of kinds or its class, its meaning, whether it is a list) of each part of a class."""
    hints, told = checks.field_hints(cls), meanings(cls)
    for field in _written(cls):
        inner = _inner(hints[field.name])
        if inner is not None:
            origin = typing.get_origin(checks.limits(hints[field.name])[0])
            name = f"{field.name}.NAME" if origin is dict else field.name  # a table of them, by names of your own
            yield name, inner, told.get(field.name, ""), origin is tuple


def _written(cls: Any) -> list[Field[Any]]:
    return [field for field in registry.options(cls) if not field.metadata.get("live")]


def _inner(hint: Any) -> Any:
    """The table or class behind a key; None for plain values."""
    bare = checks.limits(hint)[0]
    if typing.get_origin(bare) in (tuple, dict):
        bare = next((part for part in map(_bare, typing.get_args(bare)) if part is not str), str)
    if table := table_of(bare):
        return table
    return bare if is_dataclass(bare) and isinstance(bare, type) else None


def _bare(hint: Any) -> Any:
    return checks.limits(hint)[0]


def _default(field: Field[Any], hint: Any) -> str:
    if field.default in (MISSING, None, "") or field.default == ():
        return ""
    written = raw_to_toml({"x": plain(field.default, checks.limits(hint)[0])}).strip()
    return f"`{written.partition('= ')[2]}`"


def _range(field: Field[Any], hint: Any) -> str:
    bare, within, texts = checks.limits(hint)
    if typing.get_origin(bare) is tuple:
        inner = _range(field, typing.get_args(bare)[0])
        return f"list of {inner}" if inner else "list"
    if checks.is_union(bare):
        written = (part for part in typing.get_args(bare) if checks.limits(part)[0] in (int, float, bool, str))
        return _range(field, next(written))
    if word := field.metadata.get("names"):
        return "names: " + ", ".join(f"`{name}`" for name in registry.kinds(word))
    if texts:
        return ", ".join(f"`{text}`" for text in texts)
    if field.metadata.get("file"):
        return "path"
    kind = {int: "whole", float: "number", bool: "`true`, `false`", str: "text"}.get(bare, "")
    return f"{kind}, {shown.interval(within)}" if within else kind


def table(keys: list[Key], before: str = "") -> list[str]:
    lines = ["| key | meaning | values | default |", "|---|---|---|---|"]
    for key in keys:
        meaning = key.meaning[:1].upper() + key.meaning[1:]
        lines.append(kinds.row(f"`{before}{key.name}`", meaning, key.range, key.default))
    return lines


def about(cls: Any) -> str:
    """A class's docstring without the descriptions of its fields and without examples, as Markdown."""
    names = names_of(cls)
    text = split(inspect.getdoc(cls) or "", names)[0]
    paragraphs = [part for part in text.split("\n\n") if ">>>" not in part and not part.startswith("    ")]
    return "\n\n".join(re.sub(r"(?<!\w)\*(?=\s)", r"\\*", part) for part in paragraphs)


def page() -> list[str]:
    """The whole reference as lines of Markdown."""
    lines = ["## Keys of the run", "", *table(keys_of(Experiment))]
    for key, inner, meaning, many in parts_of(Experiment):
        lines += ["", f"## `{key}`", "", meaning[:1].upper() + meaning[1:], ""]
        lines += _part(key, inner, 3, many)
    for key, (title, inner) in SHARED.items():
        lines += ["", f"## {title}", "", *_part(key, inner, 3, False)]
    return lines


def _part(key: str, inner: Any, level: int, many: bool) -> list[str]:
    if not isinstance(inner, dict):  # one class, without kinds
        lines = [about(inner), "", *table(keys_of(inner), f"{key}.")]
        for name, deeper, meaning, several in parts_of(inner):
            lines += ["", f"{'#' * level} `{key}.{name}`", "", meaning, ""]
            lines += _part(f"{key}.{name}", deeper, level + 1, several)
        return lines
    lines = ["A list of these kinds:" if many else f"`{key}.kind` is one of:", ""]
    lines += ["| kind | |", "|---|---|"]
    lines += [kinds.row(f"`{name}`", kinds.sentence(cls)) for name, cls in inner.items()]
    for name, cls in inner.items():
        keys, parts = keys_of(cls), list(parts_of(cls))
        if keys or parts:
            lines += ["", f"{'#' * level} {key} `{name}`", "", about(cls), ""]
        if keys:
            lines += table(keys, f"{key}.")
        for part, deeper, meaning, several in parts:
            told = f"`{key}.{part}`: {meaning}"
            shared = next((title for title, rows in SHARED.values() if rows is deeper), None)
            if shared:
                names = ", ".join(f"`{row}`" for row in deeper)
                lines += ["", f"{told} Kinds: {names} ([options](#{shared.lower()}))."]
            else:
                lines += ["", f"{'#' * (level + 1)} `{key}.{part}`", "", meaning, ""]
                lines += _part(f"{key}.{part}", deeper, level + 2, several)
    return lines


class ExperimentKeys(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(page()), allow_section_headings=True)


def setup(app: Sphinx) -> None:
    app.add_directive("experiment-keys", ExperimentKeys)
