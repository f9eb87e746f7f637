"""What a user's model keeps besides its weights: buffers and plain attributes that its forward pass changes.

Such a state would be shared by clients, held by no average and lost by a resumed run. So a model is refused whose
training changes it. Caches are allowed: they are filled once and then stay as they are.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from everfed.errors import InputError

# What torch itself keeps in a module: weights and buffers are looked at by name, and hooks are the user's code.
_OF_TORCH = set(vars(nn.Module()))
_NOT_STATE = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, nn.Parameter, nn.Module,
)  # fmt: skip
# Generators of the model's own, whose state moves with every number that is drawn.
_GENERATORS: dict[type, Callable[[Any], Any]] = {
    torch.Generator: torch.Generator.get_state,
    np.random.Generator: lambda draw: repr(draw.bit_generator.state),
    np.random.RandomState: lambda draw: repr(draw.get_state(legacy=False)),
    random.Random: random.Random.getstate,
}
_PLAIN = (bool, int, float, complex, str, bytes, np.generic)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a model of which a forward pass inside changes weights or buffers."""

    def state() -> dict[str, Tensor]:
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: value.detach() for name, value in named.items() if not is_lazy(value)}

    before = {name: value.clone() for name, value in state().items()}
    yield
    after = state()
    for name, value in before.items():
        if not torch.equal(value.nan_to_num(), after[name].nan_to_num()):
            raise InputError(
                f"the model's forward changes '{name}', a state of its own that clients would share and no average "
                "would hold; use layers without such a state, as nn.GroupNorm for nn.BatchNorm."
            )


def attributes(module: nn.Module) -> dict[str, Any]:
    """What the module's parts keep in plain attributes, by name: numbers, words, tensors, generators of random numbers,
    and containers and objects of such, as something that can be compared later."""
    met: set[int] = set()
    return {
        f"{name}.{key}".lstrip("."): _copy(value, met)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in _OF_TORCH
    }


def check_attributes(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Refuse a model that changed a plain attribute in between."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not _same(before[name], after[name]):
            raise InputError(
                f"the model's forward changes its attribute '{name}' in training, a state of its own that clients "
                "would share and a resumed run lose; compute it from the inputs, or change it in evaluation only."
            )


def _copy(value: Any, met: set[int]) -> Any:
    """met: objects that were copied before, which need not be again and may hold one another."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if id(value) in met or isinstance(value, _NOT_STATE):
        return None
    met.add(id(value))
    if isinstance(value, Tensor):
        return _values(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    for kind, state in _GENERATORS.items():
        if isinstance(value, kind):
            return state(value)
    if isinstance(value, Mapping):
        return {key: _copy(held, met) for key, held in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_copy(held, met) for held in value]
    if isinstance(value, Set):
        return {held for held in value if isinstance(held, _PLAIN)}
    if type(value).__module__.partition(".")[0] == "torch":
        return None  # machinery, which may count for itself
    return {key: _copy(held, met) for key, held in getattr(value, "__dict__", {}).items()}


def _values(tensor: Tensor) -> Tensor | None:
    try:
        plain = tensor.detach().clone()
        return torch.view_as_real(plain) if plain.is_complex() else plain.nan_to_num()
    except (RuntimeError, NotImplementedError):  # such as one that a transformation of torch.func left behind
        return None


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and _near(one, other)
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and bool(np.all((one == other) | ((one != one) & (other != other))))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (one != one and other != other))


def _near(one: Tensor, other: Tensor) -> bool:
    """On a GPU but for rounding: what is computed again from the same numbers may differ in the last bits."""
    if one.device.type == "cpu" or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-4)
