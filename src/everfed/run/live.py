"""Live objects in an experiment, and how a run folder refers to them.

A module, arrays or an unregistered policy cannot be written to a file. The file holds a name and a fingerprint of the
content instead, which identify the object when the run is resumed and distinguish runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np

from everfed.errors import InputError
from everfed.run.fingerprint import fingerprint

KIND = "live"


class NotHereError(InputError, AttributeError):
    """A live object is needed, but only its name is known."""


@dataclass(frozen=True)
class Live:
    """A live object as a run folder names it."""

    only_named: ClassVar[bool] = True  # so that checks leave it alone
    name: str
    fingerprint: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error()

    @property
    def label(self) -> str:
        """Short and, with the mark of its content, its own."""
        return f"{self.name} #{self.fingerprint[:8]}"

    def error(self) -> NotHereError:
        return NotHereError(
            f"'{self.name}' was an object in the process that ran this experiment; its run folder names it but does "
            "not hold it. Call simulate with the object and the same folder, or register its class as a plugin."
        )


def describe(value: Any, mode: bool = True) -> dict[str, str]:
    """The entry of a live object in a file. mode: whether train() and eval() of modules count."""
    known = value if isinstance(value, Live) else Live(_name(value), fingerprint(value, mode=mode))
    return {"kind": KIND, "name": known.name, "fingerprint": known.fingerprint}


def recall(raw: Any) -> Live | None:
    """The live object named by this entry, if it is one."""
    if isinstance(raw, Mapping) and raw.get("kind") == KIND and raw.keys() == {"kind", "name", "fingerprint"}:
        return Live(str(raw["name"]), str(raw["fingerprint"]))
    return None


def objects(value: Any) -> dict[str, Any]:
    """The live objects in an experiment or a part of one that a file would only name, by their fingerprints: with the
    mode of modules, and, as of a model, without."""
    found: dict[str, Any] = {}

    def note(part: Any) -> Any:
        for mode in (True, False) if callable(part) else (True,):
            found.setdefault(fingerprint(part, mode=mode), part)
        return part

    _walk(value, note)
    return found


def renamed(stored: Any, wanted: Any) -> Any:
    """A stored experiment in which objects that an earlier version identified otherwise have their present
    fingerprints, if they are those of the wanted experiment."""
    present: dict[str, str] = {}

    def note(part: Any) -> Any:
        if not isinstance(part, Live):
            present[fingerprint(part, former=True)] = fingerprint(part)
        return part

    def change(part: Any) -> Any:
        known = isinstance(part, Live) and present.get(part.fingerprint)
        return replace(part, fingerprint=known) if known else part

    _walk(wanted, note)
    model = stored.model
    if isinstance(model, Live) and model.fingerprint in present and not isinstance(wanted.model, Live):
        model = Live(model.name, fingerprint(wanted.model, mode=False))
    return replace(_walk(stored, change), model=model)


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
    if type(value) is dict:
        named = {key: _walk(item, change) for key, item in value.items()}
        return value if all(named[key] is value[key] for key in value) else named
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


def _name(value: Any) -> str:
    own = getattr(value, "__qualname__", None) or getattr(value, "name", None)
    return own if isinstance(own, str) else type(value).__qualname__
