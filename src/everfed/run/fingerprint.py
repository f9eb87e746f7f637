"""A short hash of an object's content: arrays, weights, options, and the code of functions and classes.

Two objects with one fingerprint must be interchangeable in a run, since a stored run is resumed with the one for the
other. So code is followed as far as it is the user's own: defaults, closures, the globals it names, base classes.
Libraries count by name. Bytecode differs between minor versions of Python; a fingerprint of code then differs too.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from everfed.errors import InputError

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)
_CODE = (types.FunctionType, types.BuiltinFunctionType, type)
# What Python adds to a class, and what only documents it.
_NOT_CONTENT = {
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__match_args__",
    "__firstlineno__", "__static_attributes__", "__qualname__", "__annotate__", "__annotations_cache__",
}  # fmt: skip


# Instructions that look a name up among globals. What else has a name, such as an attribute, is none of theirs.
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def fingerprint(value: Any, *, mode: bool = True, former: bool = False) -> str:
    """mode: whether train() and eval() of modules count; they do not of a model, which is always trained in train mode.
    former: as it was computed before globals were told from attributes of the same name.

    >>> fingerprint(np.arange(3)) == fingerprint(np.arange(3)) != fingerprint(np.arange(4))
    True
    """
    content = _Content(mode, former)
    content.add(value)
    return content.digest.hexdigest()[:16]


class _Content:
    """One fingerprint in the making."""

    def __init__(self, mode: bool, former: bool) -> None:
        self.mode, self.former = mode, former
        self.digest = hashlib.sha256()
        self.inside: list[int] = []  # the objects around the present one, against circles
        self.met: dict[int, tuple[int, Any]] = {}  # code and parameters: the same one again is told from an equal one

    def say(self, text: str) -> None:
        self.digest.update(text.encode() + b";")

    def add(self, value: Any) -> None:
        if value is None or isinstance(value, _PLAIN):
            return self.say(f"{type(value).__name__}:{value!r}")
        if id(value) in self.inside:
            return self.say(f"circle:{len(self.inside) - self.inside.index(id(value))}")
        self.inside.append(id(value))
        try:
            self._add(value)
        finally:
            self.inside.pop()

    def each(self, items: Iterable[Any]) -> None:
        for item in items:
            self.add(item)

    def _add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, functools.partial):
            self.each((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self.each((value.__func__, value.__self__))
        elif isinstance(value, _CODE):
            self._code(value)
        elif isinstance(value, weakref.ref):
            self.add(value())
        elif isinstance(value, RemovableHandle):  # its number differs from object to object
            self.say("handle")
        elif isinstance(value, types.ModuleType):
            self.say(f"module:{value.__name__}")
        elif isinstance(value, Mapping):
            self.say(f"mapping:{len(value)}")
            self.each(part for pair in sorted(value.items(), key=lambda pair: repr(pair[0])) for part in pair)
        elif isinstance(value, Set):
            self.each(("set", *sorted(map(fingerprint, value))))
        elif isinstance(value, list | tuple | range):
            self.say(f"sequence:{len(value)}")
            self.each(value)
        else:
            self._object(value)

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        self.say(f"array:{native.dtype.str}:{native.shape}")
        if native.dtype == object:
            self.each(native.ravel().tolist())
        else:
            self.digest.update(np.ascontiguousarray(native).tobytes())

    def _tensor(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, nn.Parameter) and self._again(tensor):
            return
        self.say(f"tensor:{tensor.dtype}:{tensor.requires_grad}")
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            self.say("uninitialized")
        else:
            plain = tensor.detach().cpu()
            self._array(plain.float().numpy() if plain.dtype == torch.bfloat16 else plain.numpy())
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            if hooks:
                self.each(["hooks", *hooks.values()])

    def _object(self, value: Any) -> None:
        self._code(type(value))
        if isinstance(value, nn.Module):
            # Hooks are kept under running numbers, which differ from object to object.
            parts = {k: list(v.values()) if "hooks" in k and isinstance(v, dict) else v for k, v in vars(value).items()}
            self.add(parts if self.mode else {**parts, "training": True})
        elif is_dataclass(value):
            self.add({f.name: getattr(value, f.name) for f in fields(value) if f.compare})
        elif hasattr(value, "__dict__"):
            self.add(vars(value))
        elif slots := [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]:
            self.add({name: getattr(value, name, None) for name in slots})
        else:
            raise InputError(
                f"{type(value).__name__} objects cannot be identified by their content, so a run with one cannot be "
                "stored; make it a dataclass, or register it as a plugin."
            )

    def _again(self, value: Any) -> bool:
        """Whether this very object was met before, which is then all there is to say."""
        if id(value) not in self.met:
            self.met[id(value)] = (len(self.met), value)  # kept alive, so that no other object gets its id
            return False
        self.say(f"again:{self.met[id(value)][0]}")
        return True

    def _code(self, value: Any) -> None:
        """A function or a class."""
        self.say(f"{getattr(value, '__module__', '')}.{value.__qualname__}")
        if _of_a_library(value) or self._again(value):
            return
        if isinstance(value, type):
            self.each(base for base in value.__bases__ if base is not object)
            own = {name: part for name, part in vars(value).items() if name not in _NOT_CONTENT}
            for name in sorted(own):
                self.say(name)
                self._member(own[name])
        elif isinstance(value, types.FunctionType):
            self._compiled(value.__code__)
            self.each((value.__defaults__, value.__kwdefaults__))
            for cell in value.__closure__ or ():
                self._named(None if cell == types.CellType() else cell.cell_contents, ())
            names = _names(value.__code__)
            loaded = names if self.former else _globals(value.__code__)
            for name in sorted(loaded & value.__globals__.keys()):
                self.say(name)
                self._named(value.__globals__[name], names)

    def _compiled(self, code: types.CodeType) -> None:
        self.digest.update(code.co_code)
        self.each((code.co_names, code.co_varnames, code.co_freevars, code.co_flags))
        for constant in code.co_consts:
            self._compiled(constant) if isinstance(constant, types.CodeType) else self.add(_ordered(constant))

    def _member(self, part: Any) -> None:
        """What a class holds under a name: its functions lie in wrappers."""
        if isinstance(part, property):
            self.each(f for f in (part.fget, part.fset, part.fdel) if f)
            return
        inner = getattr(part, "__func__", None) or getattr(part, "func", None)
        self._named(inner if isinstance(inner, types.FunctionType) else part, ())

    def _named(self, value: Any, names: Iterable[str]) -> None:
        """What code refers to; of a module of the user's own, what is taken from it."""
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
            self.add({name: vars(value)[name] for name in sorted(set(names) & vars(value).keys())})
            return
        try:
            self.add(value)
        except (InputError, TypeError, RuntimeError, AttributeError):  # such as an open file: known by its type alone
            self.say(type(value).__qualname__)


def _names(code: types.CodeType) -> set[str]:
    """All names that code and the functions within it refer to."""
    return set(code.co_names).union(*map(_names, _inner(code)))


def _globals(code: types.CodeType) -> set[str]:
    """The names that code and the functions within it look up among globals."""
    loads = (step.argval for step in dis.get_instructions(code) if step.opname in _LOADS)
    return set(loads).union(*map(_globals, _inner(code)))


def _inner(code: types.CodeType) -> Iterable[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def _ordered(constant: Any) -> Any:
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant


def _of_a_library(value: Any) -> bool:
    """Whether a function or class is found in a library under its name: a class made on the way may only claim it."""
    module = str(getattr(value, "__module__", None) or "builtins")
    found: Any = sys.modules.get(module)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return _is_library(module) and (found is value or isinstance(value, types.BuiltinFunctionType))


@functools.cache
def _is_library(module: str) -> bool:
    """Whether a module belongs to Python, to everfed or to an installed package: code that counts by its name."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    place = getattr(sys.modules.get(top), "__file__", None)
    if top == "everfed":
        return True
    return bool(place) and bool({"site-packages", "dist-packages"} & set(Path(str(place)).parts))
