"""The kinds that experiments are made of, by word and name, built in or from plugins.

A word is the key of experiment files that a kind is named under. The module that defines the contract of
a word builds the word's table here, and `register` adds a row to it from outside:

    @ef.register("policy", "every-other")
    @dataclass(frozen=True)
    class EveryOther(Policy): ...
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, TypeVar

from everfed import plugins
from everfed.errors import InputError, shown, unknown

Kind = TypeVar("Kind")
T = TypeVar("T")

# The module that builds each word's table. It is imported when something is registered under the word.
_HOMES = {
    "arrivals": "everfed.energy.arrivals",
    "attack": "everfed.learning.attacks",
    "augment": "everfed.data.augment",
    "client": "everfed.learning.optim",
    "compression": "everfed.learning.compress",
    "data": "everfed.data.datasets",
    "fleet": "everfed.run.fleets",
    "gradients": "everfed.learning.gradients",
    "method": "everfed.methods",
    "metrics": "everfed.learning.measures",
    "model": "everfed.learning.models",
    "policy": "everfed.scheduling.table",
    "robust": "everfed.server.robust",
    "schedule": "everfed.learning.optim",
    "server": "everfed.server.table",
    "server_optimizer": "everfed.server.optimizers",
    "split": "everfed.data.partition",
    "trainer": "everfed.trainers.choose",
}
_NAME = re.compile(r"[a-z0-9]+([-.][a-z0-9]+)*")


@dataclass(frozen=True)
class _Table:
    rows: dict[str, Any]
    shape: type[Any] | None
    given: tuple[str, ...]

    @property
    def of_classes(self) -> bool:
        """Whether its rows are classes of the shape: those of a Protocol or of an abstract base; otherwise values."""
        return inspect.isabstract(self.shape) or getattr(self.shape, "_is_protocol", False)


_TABLES: dict[str, _Table] = {}
_ORIGINS: dict[int, str] = {}  # id of what was registered, which its table keeps alive: the module that did it


def table(word: str, rows: dict[str, Any], shape: type[Any] | None = None, given: tuple[str, ...] = ()) -> None:
    """Make a dict of built-in kinds the table of a word, so that `register` adds to it.

    shape: the Protocol whose members every class of the table has, or a class that its values are instances of.
    given: what a class or function of the table is called with, besides its options.
    """
    _TABLES[word] = _Table(rows, shape, given)


def kinds(word: str) -> dict[str, Any]:
    """The table of a word."""
    return _table(word).rows


def register(word: str, name: str) -> Callable[[Kind], Kind]:
    """A decorator that makes a class or function a kind of experiment files and of the command line.

    word: what it is, as the key in experiment files: "policy", "server", "model", "metrics", ...
    name: what it is called there, in small letters with dashes.

    >>> import everfed as ef
    >>> @ef.register("metrics", "half-right")
    ... def half_right(outputs, targets):
    ...     return (outputs.argmax(-1) == targets).double().mean() / 2
    >>> "half-right" in ef.METRICS
    True
    >>> del ef.METRICS["half-right"]
    """
    found = _table(word)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"the {word} is named {name!r}; use lowercase letters, digits and dashes, such as 'every-other'."
        )
    module = sys._getframe(1).f_globals.get("__name__", "")

    def add(kind: Kind) -> Kind:
        taken = found.rows.get(name)
        if taken is not None and _identity(taken) != _identity(kind):
            raise InputError(
                f"the {word} '{name}' already exists, as {'.'.join(_identity(taken))}; choose another name."
            )
        _check(found, kind, f"the {word} '{name}'")
        found.rows[name] = kind
        _ORIGINS.pop(id(kind), None)
        if module in sys.modules and module not in ("__main__", "__mp_main__"):  # else it cannot be imported by name
            _ORIGINS[id(kind)] = module
        return kind

    return add


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """`table[name]`, or an error that names the nearest valid name and lists the others."""
    if isinstance(name, str):
        if name not in table:
            plugins.load_installed()
        if name in table:
            return table[name]
    raise InputError(
        unknown(kind, name, table)
        if isinstance(name, str)
        else f"{kind} is {shown(name)}; give a name: {', '.join(table)}."
    )


def word_of(shape: Any) -> str | None:
    """The word of the table whose classes have this shape."""
    return next((word for word, found in _TABLES.items() if found.shape is shape and found.of_classes), None)


def part(name: str, value: Any, shape: Any) -> Any:
    """A value of a table's shape, given as such or by its name in the table; otherwise an error."""
    word = word_of(shape)
    assert word
    rows = kinds(word)
    if isinstance(value, str):
        return lookup(rows, value, name.replace("_", " "))()
    if isinstance(value, type):
        raise InputError(f"{name} is the class {value.__name__}; give a value of it, such as {value.__name__}().")
    fits = isinstance(value, shape) if inspect.isabstract(shape) else _members(shape) <= {*dir(value)}
    if not fits:
        example = next(iter(rows.values())).__name__
        raise InputError(
            f"{name} is {shown(value)}; it must be a value such as {example}(), or a name: {', '.join(rows)}."
        )
    return value


def options(kind: Any) -> tuple[Field[Any], ...]:
    """The options of a class or value: its dataclass fields."""
    return tuple(field for field in fields(kind) if field.init) if is_dataclass(kind) else ()


def default_of(field: Field[Any]) -> Any:
    """What an option is where it is not given; MISSING if it must be."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def origins(part: Any) -> set[str]:
    """The modules that registered the kinds which a value is made of."""
    found = {_ORIGINS.get(id(type(part)))}
    for field in options(part):
        value = getattr(part, field.name)
        word = field.metadata.get("names")  # a text that names a row of this word's table
        for item in value if isinstance(value, tuple) else (value,):
            if word:
                found.add(_ORIGINS.get(id(kinds(word).get(item, item) if isinstance(item, str) else item)))
            elif is_dataclass(item) or id(type(item)) in _ORIGINS:
                found |= origins(item)
    return {module for module in found if module}


def _table(word: str) -> _Table:
    if word not in _HOMES:
        raise InputError(unknown("word", word, _HOMES))
    import_module(_HOMES[word])
    return _TABLES[word]


def _identity(kind: Any) -> tuple[str, str]:
    """Where a kind is defined: a module that is loaded again makes new objects of the same classes."""
    named = kind if hasattr(kind, "__qualname__") else type(kind)
    return str(named.__module__), str(named.__qualname__) + ("" if named is kind else f" {kind!r}")


def _check(found: _Table, kind: Any, what: str) -> None:
    """Refuse what does not keep its table's contract, in words that say what is missing."""
    shape = found.shape
    if shape is not None and not found.of_classes:
        if not isinstance(kind, shape):
            raise InputError(f"{what} is {kind!r}; it must be a {shape.__name__}.")
        return
    if shape is not None:
        _check_class(kind, shape, what)
    if not callable(kind):
        raise InputError(f"{what} is {kind!r}; it must be a function of ({', '.join(found.given)}).")
    try:
        inspect.signature(kind).bind(*found.given)
    except TypeError as error:
        needed = f"with ({', '.join(found.given)}) alone" if found.given else "without arguments"
        raise InputError(
            f"{what} cannot be called {needed}: {error}; options are dataclass fields that have defaults."
        ) from None


def _check_class(kind: Any, shape: type[Any], what: str) -> None:
    if not isinstance(kind, type):
        raise InputError(f"{what} is {kind!r}; it must be a class with the members of {shape.__name__}.")
    own = inspect.get_annotations(kind)
    hidden = [name for name, hint in own.items() if "ClassVar" not in str(hint)]
    if hidden and "__dataclass_fields__" not in kind.__dict__:
        raise InputError(
            f"{what} has '{hidden[0]}', which is not an option, since the class is not a dataclass; put "
            "@dataclass(frozen=True) above it, and @ef.register above that."
        )
    abstract = inspect.isabstract(shape)
    if abstract and not issubclass(kind, shape):
        raise InputError(f"{what} is {kind!r}; it must derive from {shape.__module__}.{shape.__name__}.")
    has = {*dir(kind), *(field.name for field in options(kind))}
    missing = sorted(getattr(kind, "__abstractmethods__", ()) if abstract else _members(shape) - has)
    if missing:
        raise InputError(f"{what} has no {', '.join(missing)}; {shape.__module__}.{shape.__name__} documents them.")


def _members(shape: type[Any]) -> set[str]:
    """The names that a Protocol asks for."""
    named = {*vars(shape), *inspect.get_annotations(shape)}
    return {name for name in named if not name.startswith("_")}
