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

import numpy as np
import torch

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
