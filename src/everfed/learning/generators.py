"""The generators of random numbers that a whole process shares: torch's, NumPy's and Python's.

Everfed's own draws are pure functions (`everfed.random`). But torch draws a model's first weights from its one
generator, and a user's model may draw from any of them. Whoever borrows them keeps other threads out meanwhile: two
models that are begun side by side would otherwise take each other's numbers.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

_BORROWED = threading.RLock()


@contextmanager
def borrowed(seed: int | None = None) -> Iterator[None]:
    """torch's generator on the CPU, from this seed on; afterwards it is where it was."""
    with _BORROWED, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Every generator of random numbers is afterwards where it was, and nothing is said twice."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with _BORROWED, torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - the user's model may use it
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def positions(device: torch.device, module: nn.Module) -> dict[str, Any]:
    """Where each generator is, by whose it is, also those that a module holds: after a draw it is elsewhere."""
    found: dict[str, Any] = {
        "Python's random": random.getstate(),
        "NumPy's random": np.random.get_state(legacy=False),  # noqa: NPY002 - the user's model may use it
        "torch's generator": torch.default_generator.get_state(),
    }
    if device.type == "cuda":
        found["torch's generator of the GPU"] = torch.cuda.get_rng_state(device)
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            state = _state_of(getattr(value, "__self__", value))  # of a generator, or of what it draws with
            if state is not None:
                found[f"the generator '{f'{name}.{key}'.lstrip('.')}'"] = state
    return {whose: _comparable(state) for whose, state in found.items()}


def _state_of(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.get_state() if isinstance(value, torch.Generator) else None


def _comparable(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.cpu().numpy().tobytes()
    if isinstance(state, dict):
        return {name: _comparable(part) for name, part in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
