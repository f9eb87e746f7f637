"""Arrays from strangers: read only if they are what the model needs, before anything is unpacked.

An array travels as an .npy file. Its head is read here and not by NumPy: NumPy's reader builds a syntax tree of it,
which fails now and then where several threads do so at once (CPython 3.11), and takes .npz archives as well.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array

from everfed.errors import shown

_MAGIC = b"\x93NUMPY"
_HEAD = 10_000  # bytes that a head may have
_DTYPE = re.compile(r"'descr'\s*:\s*'([<>|=]?[a-zA-Z]\d{0,2})'")
_FORTRAN = re.compile(r"'fortran_order'\s*:\s*(True|False)")
_SHAPE = re.compile(r"'shape'\s*:\s*\(([\d\s,]{0,500})\)")


def values(name: str, array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The numbers of a float32 array of this shape, flat; ValueError if the array is anything else."""
    if array.dtype != "float32" or tuple(array.shape) != shape:
        said = f"{shown(array.dtype)} of shape {shown(tuple(array.shape))}"
        raise ValueError(f"'{name}' is {said}; the model's is float32 of shape {shape}")
    try:
        found = read(array)
    except ValueError as error:
        raise ValueError(f"'{name}' cannot be read: {error}") from None
    if found.dtype != np.float32 or found.shape != shape:
        raise ValueError(f"'{name}' holds {found.dtype} of shape {shown(found.shape)}, not what its envelope says")
    return found.reshape(-1)


def read(array: Array) -> npt.NDArray[Any]:
    """An array of numbers; ValueError if it is anything else. It cannot be written to."""
    data = array.data
    if array.stype != "numpy.ndarray" or not isinstance(data, bytes):
        raise ValueError(f"it is sent as {shown(array.stype)}, not as a NumPy array")
    if data[:6] != _MAGIC or len(data) < 12 or data[6] not in (1, 2, 3):
        raise ValueError("it is no .npy file")
    begins = 10 if data[6] == 1 else 12
    ends = begins + int.from_bytes(data[8:begins], "little")
    head = data[begins:ends].decode("latin-1") if ends <= min(len(data), begins + _HEAD) else ""
    dtype, fortran, shape = (pattern.search(head) for pattern in (_DTYPE, _FORTRAN, _SHAPE))
    if not (dtype and fortran and shape):
        raise ValueError("the head of its .npy file says nothing that an array of numbers can be")
    try:
        kind = np.dtype(dtype[1])
        lengths = tuple(int(part) for part in shape[1].split(",") if part.strip())
    except (TypeError, ValueError):
        raise ValueError(f"its .npy file is of type {shown(dtype[1])}") from None
    if kind.kind not in "biuf" or len(data) - ends != kind.itemsize * prod(lengths):
        raise ValueError(f"its .npy file has {len(data) - ends} bytes for {kind} of shape {shown(lengths)}")
    flat = np.frombuffer(data, kind, offset=ends)
    return flat.reshape(lengths, order="F" if fortran[1] == "True" else "C")
