"""Rows of several files: which arrays or columns are inputs, and how rows of files are joined."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import parts
from everfed.data.rows import Rows
from everfed.errors import InputError

Array = npt.NDArray[Any]


def input_names(known: Collection[str], x: str, others: Sequence[str], where: str) -> dict[str, str]:
    """The arrays or columns that are inputs, and what the model calls each: x alone (""), or x_NAME for several."""
    several = [name for name in known if name.startswith(f"{x}_") and name not in others]
    if several and x in known:
        raise InputError(
            f"{where} has the inputs {x} and {several[0]}; of one input alone {x} is the name, and of several each is "
            f"{x}_NAME."
        )
    return {name: name.removeprefix(f"{x}_") for name in several} or {x: ""}


def joined_rows(found: list[tuple[Path, Rows]]) -> Rows:
    """The rows of files one after the other, if they are alike."""
    if len(found) == 1:
        return found[0][1]
    columns = [_columns(rows) for _, rows in found]
    paths = [path for path, _ in found]
    whole = {name: _joined(name, paths, [one[name] for one in columns]) for name in columns[0]}
    first = found[0][1]
    x: Any = {name: whole["x", name] for name in parts(first.x)}
    return Rows(x.get("", x), whole["y", ""], whole["client", ""], {name: whole["about", name] for name in first.about})


def _columns(rows: Rows) -> dict[tuple[str, str], Array]:
    """Every array of some rows, by what it is for and its name."""
    about = {("about", name): values for name, values in rows.about.items()}
    return {("x", name): part for name, part in parts(rows.x).items()} | {
        ("y", ""): rows.y,
        ("client", ""): rows.client,
        **about,
    }


def _joined(name: tuple[str, str], paths: list[Path], arrays: list[Array]) -> Array:
    said = "_".join(part for part in name if part) if name[0] != "about" else name[1]
    first = next((i for i, array in enumerate(arrays) if len(array)), 0)
    for path, array in zip(paths, arrays, strict=True):
        shape = arrays[first].shape[1:]
        if len(array) and array.shape[1:] != shape:
            raise InputError(
                f"samples of '{said}' have the shape {array.shape[1:]} in '{path}' and {shape} in '{paths[first]}'; "
                "all must be alike."
            )
        if _kind(array, name[0]) != _kind(arrays[first], name[0]):
            raise InputError(
                f"'{said}' is {_called(array)} in '{path}' and {_called(arrays[first])} in '{paths[first]}'; give all "
                "files the same type."
            )
    return np.concatenate([array for array in arrays if len(array)] or arrays[:1])


def _kind(array: Array, use: str) -> str:
    """What may be joined without loss, and means the same: 32 and 64 bits do, but bytes are pixels as inputs alone."""
    if array.dtype == np.uint8 and use == "x":
        return "bytes"
    # NumPy makes floats of unsigned and signed numbers of 64 bits.
    return {"i": "whole", "u": "whole" if array.dtype.itemsize < 8 else "unsigned", "U": "text", "O": "text"}.get(
        array.dtype.kind, array.dtype.kind
    )


def _called(array: Array) -> str:
    return "text" if array.dtype.kind in "UO" else str(array.dtype)
