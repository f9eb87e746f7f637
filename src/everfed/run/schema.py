"""A JSON Schema of experiment files, read off the classes in the tables."""

from __future__ import annotations

import typing
from dataclasses import MISSING, is_dataclass
from typing import Any

from everfed import checks, plugins, registry
from everfed.methods import METHODS
from everfed.run.config import plain, table_of
from everfed.run.experiment import Experiment


def schema() -> dict[str, Any]:
    """A JSON Schema of experiment files, for editors."""
    plugins.load_installed()
    body = _object_schema(Experiment)
    body["properties"]["methods"] = {
        "type": "object",
        "description": "Settings of one method alone, in a table of its name.",
        "properties": {name: {"type": "object"} for name in METHODS},
        "additionalProperties": False,
    }
    body["properties"]["tuned_on"] = {"type": "array", "items": _schema(checks.Seed)}
    body["properties"]["method"] = {"enum": list(METHODS), "description": "Stands for a policy and a server rule."}
    body["properties"]["fleet"]["anyOf"].append(
        {"type": "string", "description": "A fleet file (.toml), or a fleet that `everfed fleets` lists."}
    )
    body["properties"]["format"] = {"type": "integer", "description": "Of a file that everfed wrote."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "everfed experiment", **body}


def _object_schema(cls: Any) -> dict[str, Any]:
    hints = checks.field_hints(cls)
    properties = {}
    for field in (field for field in registry.options(cls) if not field.metadata.get("live")):
        word = field.metadata.get("names")  # its texts name rows of this word's table
        properties[field.name] = _schema(hints[field.name], tuple(registry.kinds(word)) if word else None)
        if field.default is not MISSING and field.default is not None and not is_dataclass(field.default):
            properties[field.name]["default"] = plain(field.default, checks.limits(hints[field.name])[0])
    description = (cls.__doc__ or cls.__name__).strip().splitlines()[0]
    return {"type": "object", "description": description, "properties": properties, "additionalProperties": False}


def _schema(hint: Any, named: tuple[str, ...] | None = None) -> dict[str, Any]:
    bare, interval, texts = checks.limits(hint)
    if table := table_of(bare):
        kinds = []
        for kind, cls in table.items():
            one = _object_schema(cls)
            one["properties"] = {"kind": {"const": kind}, **one["properties"]}
            kinds.append({**one, "required": ["kind"]})
        return {"anyOf": [{"enum": list(table)}, *kinds]}
    if typing.get_origin(bare) is tuple:
        return {"type": "array", "items": _schema(typing.get_args(bare)[0], named)}
    if typing.get_origin(bare) is dict:
        return {"type": "object", "additionalProperties": _schema(typing.get_args(bare)[1])}
    if is_dataclass(bare) and isinstance(bare, type):
        return _object_schema(bare)
    if checks.is_union(bare):  # it may be left out, or be live
        written = (part for part in typing.get_args(bare) if checks.limits(part)[0] in (int, float, bool, str))
        return _schema(next(written), named)
    plain_type = {int: "integer", float: "number", bool: "boolean", str: "string"}.get(bare)
    valid = texts or named
    return {
        **({"type": plain_type} if plain_type else {}),
        **checks.schema_of(interval),
        **({"enum": list(valid)} if valid else {}),
    }
