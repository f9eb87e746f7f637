"""Live objects in an experiment, and how a run folder refers to them.

A module, arrays or an unregistered policy cannot be written to a file. The file holds a name and a fingerprint of the
content instead, which identify the object when the run is resumed and distinguish runs.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from everfed.errors import InputError

KIND = "live"

Feed = Callable[[bytes], None]


class NotHereError(InputError, AttributeError):
    """A live object is needed, but only its name is known."""


@dataclass(frozen=True)
class Live:
    """A live object as a run folder names it."""

    name: str
    fingerprint: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error()

    def error(self) -> NotHereError:
        return NotHereError(
            f"'{self.name}' was an object in the process that ran this experiment; its run folder names it but does "
            "not hold it. Call simulate with the object and the same folder, or register its class as a plugin."
        )


def describe(value: Any) -> dict[str, str]:
    """The entry of a live object in a file."""
    known = value if isinstance(value, Live) else Live(_name(value), fingerprint(value))
    return {"kind": KIND, "name": known.name, "fingerprint": known.fingerprint}


def recall(raw: Any) -> Live | None:
    """The live object named by this entry, if it is one."""
    if isinstance(raw, Mapping) and raw.get("kind") == KIND and raw.keys() == {"kind", "name", "fingerprint"}:
        return Live(str(raw["name"]), str(raw["fingerprint"]))
    return None


def objects(value: Any) -> dict[str, Any]:
    """The live objects in an experiment or a part of one that a file would only name, by their fingerprints."""
    found: dict[str, Any] = {}
    _walk(value, lambda part: found.setdefault(fingerprint(part), part))
    return found


def restored(value: Any, known: Mapping[str, Any]) -> Any:
    """The same with the objects that are only named in it, as far as they are known."""
    return _walk(value, lambda part: known.get(part.fingerprint, part) if isinstance(part, Live) else part)


def refuse_absent(experiment: Any) -> None:
    """Check that no part of the experiment is missing."""

    def check(part: Any) -> Any:
        if isinstance(part, Live):
            raise part.error()
        return part

    _walk(experiment, check)


def _walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of an experiment with every part that is not plain data passed through `change`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return tuple(_walk(item, change) for item in value)
    if (
        is_dataclass(value)
        and not isinstance(value, type | Live)
        and str(type(value).__module__).startswith("everfed.")
    ):
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        if not any(isinstance(part, np.ndarray) for part in parts.values()):  # a description, and no data
            new = {name: _walk(part, change) for name, part in parts.items()}
            return value if all(new[name] is parts[name] for name in parts) else replace(value, **new)
    return change(value)


def fingerprint(value: Any) -> str:
    """A short hash of an object's content: arrays, weights, options and the text of its code.

    >>> fingerprint(np.arange(3)) == fingerprint(np.arange(3)) != fingerprint(np.arange(4))
    True
    """
    digest = hashlib.sha256()
    _feed(value, digest.update, ())
    return digest.hexdigest()[:16]


def _name(value: Any) -> str:
    own = getattr(value, "__qualname__", None) or getattr(value, "name", None)
    return own if isinstance(own, str) else type(value).__qualname__


def _feed(value: Any, feed: Feed, inside: tuple[int, ...]) -> None:
    """Feed an object's content to a hash; inside: the enclosing objects, to detect cycles."""
    if id(value) in inside:
        return feed(b"circle")
    inside = (*inside, id(value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | torch.dtype):
        return feed(f"{type(value).__name__}:{value!r};".encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        feed(f"array:{value.dtype.str}:{value.shape};".encode())
        return feed(np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value.tolist()).encode())
    if isinstance(value, functools.partial):
        return _feed((value.func, value.args, value.keywords), feed, inside)
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return _feed_code(value, feed, inside)
    if isinstance(value, Mapping):
        feed(f"mapping:{len(value)};".encode())
        return _feed_each(sorted(value.items(), key=lambda pair: repr(pair[0])), feed, inside)
    if isinstance(value, Set):
        return _feed(sorted(map(fingerprint, value)), feed, inside)
    if isinstance(value, list | tuple | range):
        feed(f"sequence:{len(value)};".encode())
        return _feed_each(value, feed, inside)
    _feed_code(type(value), feed, inside)
    if isinstance(value, nn.Module):
        feed(repr(value).encode())
        return _feed(dict(value.state_dict()), feed, inside)
    if is_dataclass(value):
        return _feed({f.name: getattr(value, f.name) for f in fields(value) if f.compare}, feed, inside)
    try:
        return _feed(vars(value), feed, inside)
    except TypeError:
        raise InputError(
            f"{type(value).__name__} objects cannot be identified by their content, so a run with one cannot be "
            "stored; make it a dataclass, or register it as a plugin."
        ) from None


def _feed_each(items: Iterable[Any], feed: Feed, inside: tuple[int, ...]) -> None:
    for item in items:
        _feed(item, feed, inside)


def _feed_code(value: Any, feed: Feed, inside: tuple[int, ...]) -> None:
    """A function or a class: its name, source and closure. For libraries, only the name."""
    feed(f"{value.__module__}.{value.__qualname__};".encode())
    if str(value.__module__).split(".")[0] in ("builtins", "torch", "numpy", "everfed"):
        return
    try:
        feed(inspect.getsource(value).encode())
    except (OSError, TypeError):  # typed in by hand: its compiled form has to do
        for function in [value] if hasattr(value, "__code__") else vars(value).values():
            if hasattr(function, "__code__"):
                feed(function.__code__.co_code + repr(function.__code__.co_consts).encode())
    for cell in getattr(value, "__closure__", None) or ():
        _feed(cell.cell_contents, feed, inside)
    if isinstance(value, types.MethodType):
        _feed(value.__self__, feed, inside)
