"""A JSON Schema of experiment files, read off the classes in the tables."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

from everfed import plugins, registry
from everfed.methods import METHODS
from everfed.run.config import plain, table_of
from everfed.run.experiment import Experiment, choices


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
    body["properties"]["tuned_on"] = {"type": "array", "items": {"type": "integer"}}
    body["properties"]["method"] = {"enum": list(METHODS), "description": "Stands for a policy and a server rule."}
    body["properties"]["format"] = {"type": "integer", "description": "Of a file that everfed wrote."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "everfed experiment", **body}


def _object_schema(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties = {}
    for field in (field for field in registry.options(cls) if not field.metadata.get("live")):
        properties[field.name] = _schema(hints[field.name], _texts(cls, field))
        if field.default is not MISSING and field.default is not None and not is_dataclass(field.default):
            properties[field.name]["default"] = plain(field.default, hints[field.name])
    description = (cls.__doc__ or cls.__name__).strip().splitlines()[0]
    return {"type": "object", "description": description, "properties": properties, "additionalProperties": False}


def _texts(cls: type[Any], field: Field[Any]) -> list[str] | None:
    """Valid texts of a field, where it has a fixed set: names of a table, or those of an experiment's own key."""
    if word := field.metadata.get("names"):
        return list(registry.kinds(word)) or None
    return choices(field.name) if cls is Experiment else None


def _schema(hint: Any, valid: list[str] | None = None) -> dict[str, Any]:
    if table := table_of(hint):
        kinds = []
        for kind, cls in table.items():
            one = _object_schema(cls)
            one["properties"] = {"kind": {"const": kind}, **one["properties"]}
            kinds.append({**one, "required": ["kind"]})
        return {"anyOf": [{"enum": list(table)}, *kinds]}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(typing.get_args(hint)[0], valid)}
    if is_dataclass(hint) and isinstance(hint, type):
        return _object_schema(hint)
    if isinstance(hint, types.UnionType):
        return _schema(next(part for part in typing.get_args(hint) if part in (int, float, bool, str)), valid)
    plain_type = {int: "integer", float: "number", bool: "boolean", str: "string"}.get(hint)
    return ({"type": plain_type} if plain_type else {}) | ({"enum": valid} if valid else {})
