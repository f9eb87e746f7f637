"""A fleet as a file in a run's folder, for fleets that an experiment file cannot describe.

Only values of everfed's own classes and of registered plugins are written, field by field, so that reading a file
runs no code but theirs.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save

from everfed.energy.arrivals import ARRIVALS
from everfed.energy.fleet import Fleet
from everfed.errors import InputError

NAME = "fleet.safetensors"
Arrays = dict[str, npt.NDArray[Any]]


def saved_fleet(fleet: Fleet) -> bytes | None:
    """The fleet as the content of a file; None if it has unregistered parts."""
    arrays: Arrays = {}
    try:
        structure = _taken_apart(fleet, arrays)
    except TypeError:
        return None
    return save(arrays, {"fleet": json.dumps(structure)})


def load_fleet(folder: Path) -> Fleet | None:
    """The fleet that was saved here; None if there is none."""
    if not (folder / NAME).exists():
        return None
    with safe_open(folder / NAME, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        structure = json.loads((file.metadata() or {}).get("fleet", "null"))
    made = _put_together(structure, arrays)
    if not isinstance(made, Fleet):
        raise InputError(f"'{folder / NAME}' does not contain a fleet.")
    return made


def _taken_apart(value: Any, arrays: Arrays) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        name = f"array{len(arrays)}"
        arrays[name] = np.array(value, order="C")
        return {"array": name}
    if isinstance(value, list | tuple):
        return {"sequence": [_taken_apart(item, arrays) for item in value], "tuple": isinstance(value, tuple)}
    if is_dataclass(value) and _known(_path(type(value))) is type(value):
        kept = {f.name: _taken_apart(getattr(value, f.name), arrays) for f in fields(value) if f.init and f.compare}
        return {"class": _path(type(value)), "fields": kept}
    raise TypeError(type(value).__name__)


def _put_together(structure: Any, arrays: Arrays) -> Any:
    if not isinstance(structure, dict):
        return structure
    if "array" in structure:
        return arrays[structure["array"]]
    if "sequence" in structure:
        items = [_put_together(item, arrays) for item in structure["sequence"]]
        return tuple(items) if structure["tuple"] else items
    kind = _known(structure["class"])
    if kind is None:
        raise InputError(f"the fleet is made of '{structure['class']}', which is unknown here.")
    return kind(**{name: _put_together(part, arrays) for name, part in structure["fields"].items()})


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _known(path: str) -> Any:
    """A class of the energy room, or one in the table of arrivals."""
    for kind in ARRIVALS.values():
        if _path(kind) == path:
            return kind
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name, None) if module.startswith("everfed.energy.") else None
    return found if is_dataclass(found) else None
