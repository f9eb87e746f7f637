"""Array types for signatures, and helpers for dicts of arrays or tensors: states, and inputs of several parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


# A sample's inputs: one array (or tensor), or several by the names of the model's arguments.
Inputs = Any


def each(change: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """The same change to a single array, or to each of several by name."""
    return {name: change(part) for name, part in inputs.items()} if isinstance(inputs, Mapping) else change(inputs)


def taken(inputs: Inputs, which: Any) -> Inputs:
    """Some of the samples: a slice, or their numbers."""
    return each(lambda part: part[which], inputs)


def parts(inputs: Inputs) -> dict[str, Any]:
    """Several arrays by name; a single one has the name ''."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


def count(inputs: Inputs) -> int:
    """How many samples there are."""
    return len(next(iter(parts(inputs).values())))


def joined(pieces: Sequence[Inputs]) -> Inputs:
    """Samples one after the other."""
    if isinstance(pieces[0], Mapping):
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return np.concatenate(pieces)


def summed_squares(parts: Any) -> Any:
    """Sums over the last axis, which is kept with length 1, of squares.

    Halves are added to each other until one number is left: an order that NumPy and torch share on every machine, where
    their own sums go as the processor likes, so that all get the same bits.
    """
    squares, width = parts * parts, parts.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        squares[..., : width - half] += squares[..., half:width]
        width = half
    return squares[..., :1]
