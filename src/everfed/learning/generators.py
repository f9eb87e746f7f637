"""The generators of random numbers that a whole process shares: torch's, NumPy's and Python's.

Everfed's own draws are pure functions (`everfed.random`). But torch draws a model's first weights from its one
generator, and a user's model may draw from any of them, in training too: then each client's work starts from a number
of its own (`seeded`). Whoever borrows them keeps other threads out meanwhile: two models that are begun side by side
would otherwise take each other's numbers.
"""

from __future__ import annotations

import ctypes
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from everfed.random import Purpose, words

_BORROWED = threading.RLock()

# What the generators are called where they are said to be drawn from.
TORCH, NUMPY, PYTHON = "torch's generator", "NumPy's generator", "Python's module random"

# The state of NumPy's generator in memory: 624 words of 32 bits, and where among them the next one is.
_MT_BYTES = 4 * 624 + 4


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
    with _put_back(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def seeded(seed: int, client: int, iteration: int, device: torch.device) -> Iterator[None]:
    """One client's work from this local iteration on, for which every generator starts from a number of its own.

    So what a model, a loss or a rule draws in training is a function of seed, client and iteration: it depends neither
    on the clients before nor on where a run was resumed. Afterwards the generators are where they were.
    """
    high, low = words(seed, Purpose.SHARED, client, iteration, lanes=2).tolist()
    with _put_back(device):
        seed_all((high << 32) | low, device)
        yield


def seed_all(number: int, device: torch.device) -> None:
    """number: of up to 64 bits."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)
    np.random.seed([number >> 32, number & 0xFFFFFFFF])  # noqa: NPY002 - the user's model may use it
    random.seed(number)


class Drawn:
    """Tells which generators were drawn from since this was made. Costs some millionths of a second."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self._states()

    def since(self) -> tuple[str, ...]:
        return tuple(name for name, state in self._states().items() if state != self.before[name])

    def _states(self) -> dict[str, Any]:
        of_torch = [torch.default_generator.get_state().numpy().tobytes()]
        if self.device.type == "cuda":
            of_torch.append(torch.cuda.default_generators[self.device.index or 0].get_state().numpy().tobytes())
        return {TORCH: of_torch, NUMPY: _of_numpy(), PYTHON: random.getstate()}


def _of_numpy() -> Any:
    """Read from memory: NumPy's own function copies number by number, which takes a hundred times as long."""
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(bits, np.random.MT19937):
        return ctypes.string_at(bits.ctypes.state_address, _MT_BYTES)
    return repr(bits.state)


@contextmanager
def _put_back(device: torch.device) -> Iterator[None]:
    devices = [device.index or 0] if device.type == "cuda" else []
    with _BORROWED, torch.random.fork_rng(devices=devices):
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
