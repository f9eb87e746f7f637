"""Checks of what users give: errors name the value and what would be right.

The fields of a part of an experiment say what they take: their type, and an interval or the allowed texts in
`Annotated`. Deriving from `Checked` compares every new value with that, experiment files are held to it, and their JSON
Schema prints it.

    @dataclass(frozen=True)
    class Clip(Checked):
        norm: Positive = 1.0
"""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from everfed import registry
from everfed.arrays import Floats
from everfed.errors import InputError, shown

LARGEST = 1e38  # of every number: models and optimisers compute in float32, which ends at 3.4e38

Positive = Annotated[float, "(0, inf)"]
NonNegative = Annotated[float, "[0, inf)"]
Fraction = Annotated[float, "[0, 1]"]
BelowOne = Annotated[float, "[0, 1)"]
Count = Annotated[int, "[1, inf)"]
CountOrZero = Annotated[int, "[0, inf)"]
Seed = Annotated[int, "[0, 18446744073709551615]"]


class Checked:
    """A dataclass whose fields are compared with their types and ranges when it is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(value: Any) -> None:
    """Check every field of a dataclass; numbers of numpy become Python's, and names become the parts they name."""
    kind: Any = type(value)
    hints = field_hints(kind)
    for field in registry.options(value):
        given = getattr(value, field.name)
        if given is not field.default:
            taken = checked(field.name, given, hints.get(field.name, Any))
            word = field.metadata.get("names")
            if word and isinstance(taken, str):
                registry.lookup(registry.kinds(word), taken, field.name)
            if taken is not given:
                object.__setattr__(value, field.name, taken)


@cache
def field_hints(cls: Any) -> dict[str, Any]:
    """The types of a dataclass's fields with their ranges; none if they name what only exists elsewhere."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        return {}


def limits(hint: Any) -> tuple[Any, str | None, tuple[str, ...] | None]:
    """(the bare type, its interval, its texts) of a type that may be annotated with one of them."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None, None
    bare, *extras = typing.get_args(hint)
    interval = next((extra for extra in extras if isinstance(extra, str)), None)
    return bare, interval, next((extra for extra in extras if isinstance(extra, tuple)), None)


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value as a field of this type holds it, or an error."""
    bare, interval, texts = limits(hint)
    if bare is bool:
        return _flag(name, value)
    if bare is int:
        return check_count(name, value, *_ends(interval or "(-inf, inf)"))
    if bare is float:
        check_within(interval or "(-inf, inf)", **{name: value})
        return float(value)
    if bare is str:
        return _text(name, value, texts)
    origin = typing.get_origin(bare)
    if origin is tuple:
        listed = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sequence)
        if not listed or isinstance(value, str):
            raise InputError(f"{name} is {shown(value)}; it must be a list, as in [{shown(value)}].")
        inner = typing.get_args(bare)[0]
        if _whole_within(value, inner):
            return value
        return tuple(checked(f"{name}[{i}]", item, inner) for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{name} is {shown(value)}; it must be a table of names and their options.")
        inner = typing.get_args(bare)[1]
        return {key: checked(f"{name}.{key}", item, inner) for key, item in value.items()}
    if getattr(type(value), "only_named", False):  # a live object in another process: what it is, is not known here
        return value
    if registry.word_of(bare):
        return registry.part(name, value, bare)
    if is_union(bare):
        return _any_of(name, value, typing.get_args(bare))
    if origin is Callable and not callable(value):
        raise InputError(f"{name} is {shown(value)}; it must be a function.")
    kind = origin or bare
    judged = (
        isinstance(kind, type) and kind not in (np.ndarray, Callable, Any) and not getattr(kind, "_is_protocol", False)
    )
    if judged and not isinstance(value, kind):
        raise InputError(f"{name} is {shown(value)}; it must be a {kind.__name__}.")
    return value


def _whole_within(values: Any, hint: Any) -> bool:
    """Whether this is a tuple of whole numbers that are right: so that a million need not be looked at one by one."""
    bare, interval, _ = limits(hint)
    if bare is not int or not isinstance(values, tuple) or set(map(type, values)) != {int}:
        return False
    low, high = _ends(interval or "(-inf, inf)")
    return bool(low <= min(values) and max(values) <= min(high, 2**63 - 1))


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _any_of(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """What the first of several types takes; a text that may name a part must name one."""
    if value is None and types.NoneType in kinds:
        return None
    named = next((kind for kind in kinds if registry.word_of(kind)), None)
    if named and isinstance(value, str):
        return registry.part(name, value, named)
    refused = None
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return checked(name, value, kind)
        except InputError as error:
            refused = refused or error
    plain = [typing.get_origin(kind) or kind for kind in kinds if not registry.word_of(kind)]
    others = [kind.__name__ for kind in plain if kind not in (types.NoneType, str, float, int)]
    more = f" Or give a {' or '.join(others)}." if others and named else ""
    raise InputError(f"{refused}{more}")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}; it must be true or false.")
    return bool(value)


def _text(name: str, value: Any, texts: tuple[str, ...] | None) -> str:
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} is {shown(value)}; it must be a text.")
    text = os.fspath(value)
    if "\0" in text or text != text.encode(errors="replace").decode():
        raise InputError(f"{name} is {shown(text)}, which has characters that no file can hold.")
    if texts and text not in texts and not ("cuda" in texts and re.fullmatch(r"cuda:\d{1,3}", text)):
        *most, last = (f"'{known}'" for known in texts)
        raise InputError(f"{name} is {shown(text)}; it must be {', '.join(most)} or {last}.")
    return str(text)


def check_count(name: str, value: Any, least: float = 1, most: float = np.inf) -> int:
    """Check that a value is a whole number from least to most."""
    most = min(most, 2**63 - 1) if most != 2**64 - 1 else most
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        right = "" if least == -np.inf else f" of at least {least}"
        if most != 2**63 - 1 or (isinstance(value, int) and value > most):
            named = {2**63 - 1: "2**63 - 1", 2**64 - 1: "2**64 - 1"}.get(int(most), most)
            right = f" of at most {named}" if least == -np.inf else f" from {least} to {named}"
        raise InputError(f"{name} is {shown(value)}; it must be a whole number{right}.")
    return int(value)


def check_within(interval: str, **numbers: Any) -> None:
    """Reject numbers outside an interval such as "(0, 1]", and all that are not finite.

    >>> check_within("[0, 1)", momentum=0.9)
    """
    low, high = _ends(interval)
    least, most = interval[0] == "[", interval[-1] == "]"  # whether the ends are inside
    for name, value in numbers.items():
        known = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.complexfloating)
        inside = known and (low < value < high or (value == low and least) or (value == high and most))
        if inside and abs(value) <= LARGEST:
            continue
        if high == np.inf:
            right = "a number"
            if low != -np.inf:
                right = f"{'at least' if least else 'above'} {low:g}"
            if low == 0.0:
                right = f"{'zero or ' * least}a positive number"
            if inside and (isinstance(value, int) or np.isfinite(value)):
                right += f" of at most {LARGEST:g} in size"
        elif least:
            right = f"from {low:g} to {'below ' * (not most)}{high:g}"
        else:
            right = f"above {low:g} and {'at most' if most else 'below'} {high:g}"
        raise InputError(f"{name} is {shown(value)}; it must be {right}.")


def _ends(interval: str) -> tuple[float, float]:
    """The two ends of "(0, 1]"; whole numbers stay exact."""
    low, high = (int(end) if end.lstrip("-").isdigit() else float(end) for end in interval[1:-1].split(", "))
    return low, high


def schema_of(interval: str | None) -> dict[str, float]:
    """An interval as JSON Schema writes it.

    >>> schema_of("(0, 1]")
    {'exclusiveMinimum': 0, 'maximum': 1}
    """
    if interval is None:
        return {}
    low, high = _ends(interval)
    ends = {"minimum" if interval[0] == "[" else "exclusiveMinimum": low}
    ends["maximum" if interval[-1] == "]" else "exclusiveMaximum"] = high
    return {name: end for name, end in ends.items() if abs(end) != np.inf}


def check_folder(path: str | Path, name: str = "out") -> Path:
    """A folder to write into, which need not exist yet."""
    folder = _path(path, name)
    for place in (folder, *folder.parents):
        try:
            taken = place.exists() and not place.is_dir()
        except OSError as error:  # a name that is too long, say
            raise InputError(f"{name} is {shown(str(folder))}: {error.strerror}.") from None
        if taken:
            raise InputError(f"{name} is '{folder}', but '{place}' is a file; give a folder, existing or new.")
    return folder


def _path(path: Any, name: str) -> Path:
    if not isinstance(path, str | Path) or "\0" in str(path) or not str(path):
        raise InputError(f"{name} is {shown(path)}; it must be a path.")
    if str(path) != str(path).encode(errors="replace").decode():
        raise InputError(f"{name} is {shown(path)}; a path must be valid UTF-8.")
    return Path(path)


def check_file(path: str | Path, name: str = "output") -> Path:
    """A file to write, in a folder that need not exist yet."""
    file = _path(path, name)
    if file.is_dir() or (file.exists() and not file.is_file()):
        raise InputError(f"{name} is '{file}', which is a {'folder' if file.is_dir() else 'device'}; give a file name.")
    check_folder(file.parent, f"the folder of {name}")
    return file


def check_numbers(name: str, values: Any) -> Floats:
    """An array of numbers, one per client."""
    parts = set(map(type, values)) if isinstance(values, list | tuple) else set()
    dropped = (bool, np.bool_, np.ma.MaskedArray)  # NumPy would take truths as 0 and 1, and forget a mask
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiuO" or isinstance(values, dropped) or any(issubclass(p, dropped) for p in parts):
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        got = " ".join(shown(values).split())
        raise InputError(f"{name} must be numbers, one per client; got {got}.") from None


def check_shares(shares: Any, clients: int) -> Floats:
    """p_i of every client: its share of the data."""
    p = check_numbers("shares", shares)
    if p.shape != (clients,):
        raise InputError(f"{p.size} shares were given for {clients} clients; give one share per client.")
    if not (np.all(p >= 0.0) and np.isclose(p.sum(), 1.0, rtol=1e-6, atol=0.0)):
        raise InputError(f"shares must be non-negative and sum to 1; these sum to {p.sum():g}.")
    return p
