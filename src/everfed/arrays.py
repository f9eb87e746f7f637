"""Array types for signatures, and helpers for states that are dicts of arrays or tensors."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Seeds = int | npt.NDArray[np.uint64]  # one seed, or [S, 1] to run S of them side by side

T = TypeVar("T")


def part_of(state: dict[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
