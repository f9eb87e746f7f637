"""Where samples and labels enter, in whatever form they were handed over, and become plain arrays.

Plain: an ndarray and no subclass of it, in C order, in the machine's byte order; samples as uint8, float32, int64 or
bool, labels as int64, float32 or bool. Everything behind this file may count on it. What cannot be converted without
a guess is refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, float as float32, strided

from everfed.arrays import Inputs, Ints, parts
from everfed.errors import InputError

Pair = tuple[Inputs, npt.NDArray[Any]]


def as_pair(pair: tuple[Any, Any], whose: str) -> Pair:
    """Plain (samples, labels) from lists, arrays or tensors; copies, so that later changes to those do not count."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"{whose} must be a pair (x, y); got {type(pair).__name__}.")
    x, y = samples(pair[0], whose, copy=True), labels(pair[1], whose, copy=True)
    check_lengths(x, y, whose)
    return x, y


def check_lengths(x: Inputs, y: npt.NDArray[Any], whose: str) -> None:
    for name, part in parts(x).items():
        found, labelled = (len(a) if a.ndim else 0 for a in (part, y))
        if found != labelled or part.ndim == 0:
            named = f" of '{name}'" if name else ""
            raise InputError(f"{whose} has {found} samples{named} but {labelled} labels; give one label per sample.")


def samples(values: Any, whose: str, copy: bool = False) -> Inputs:
    """Several inputs by name, or one array of any numbers.

    Bytes stay bytes, since they are images, and are scaled; of several inputs those that have not the shape of one are
    refused, since a mask or tokens must not be. Other whole numbers are tokens and become int64, truth values are masks
    and stay so, and all other numbers become float32.
    """
    if not isinstance(values, Mapping):
        return _samples(values, f"the samples of {whose}", copy)
    if not values or not all(isinstance(name, str) and name.isidentifier() for name in values):
        raise InputError(
            f"the samples of {whose} are named {', '.join(map(repr, values)) or 'by nothing'}; name each input as an "
            "argument of the model's forward, such as {'tokens': ..., 'mask': ...}."
        )
    found = {name: _samples(part, f"the input '{name}' of {whose}", copy) for name, part in values.items()}
    for name, part in found.items():
        if len(found) > 1 and part.dtype == np.uint8 and part.ndim < 4:
            raise InputError(
                f"the input '{name}' of {whose} is bytes (uint8) of shape {part.shape[1:]} per sample beside other "
                "inputs, and bytes are scaled as pictures are; give a mask as bool, tokens as int64, other numbers as "
                "float32, or a picture as (channels, height, width)."
            )
    return found


def _samples(values: Any, what: str, copy: bool) -> npt.NDArray[Any]:
    array = _numbers(values, what)
    kept = array.dtype == np.uint8 or array.dtype.kind == "b"
    return _laid_out(array, array.dtype if kept else _whole(array, what) or np.float32, what, copy)


def labels(values: Any, whose: str, copy: bool = False) -> npt.NDArray[Any]:
    """Whole numbers are classes and become int64, as truth values do, but for several per sample, which stay so;
    floats are targets and become float32."""
    what = f"the labels of {whose}"
    array = _numbers(values, what)
    if array.dtype.kind == "b":
        return _laid_out(array, np.bool_ if array.ndim > 1 else np.int64, what, copy)
    return _laid_out(array, _whole(array, what) or np.float32, what, copy)


def _whole(array: npt.NDArray[Any], what: str) -> type[np.int64] | None:
    """The type of whole numbers; None for others."""
    if array.dtype.kind not in "iu":
        return None
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} go up to {array.max()}; whole numbers must stay below 2**63.")
    return np.int64


def whole_numbers(values: Any, what: str) -> Ints:
    """Numbers of samples or places, as plain int64."""
    array = _array(values, what)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{what} must be a list of whole numbers; it is {array.dtype} of shape {array.shape}.")
    return _laid_out(array, np.int64, what, copy=False)


def solid(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself if its elements lie one after the other where they should, else a copy in which they do.

    NumPy calls an array contiguous whatever the strides of axes with one element or none, negative ones
    too; torch does not take those.
    """
    steps = np.cumprod([array.itemsize, *array.shape[:0:-1]])[::-1] if array.ndim else ()
    return array if array.strides == tuple(steps) and array.flags.aligned else np.array(array, order="C")


def _laid_out(array: npt.NDArray[Any], dtype: Any, what: str, copy: bool) -> npt.NDArray[Any]:
    # astype and concatenate keep the order of the axes in memory unless they are told, so that an image that
    # was transposed stays so; a kernel that reads from front to back would see other pixels.
    try:
        with np.errstate(over="raise"):
            return np.array(array, dtype, order="C") if copy else solid(np.asarray(array, dtype))
    except FloatingPointError:
        raise InputError(f"{what} hold numbers beyond {np.finfo(np.float32).max:.2g}; scale them down.") from None


def _numbers(values: Any, what: str) -> npt.NDArray[Any]:
    array = _array(values, what)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} must be numbers; they are {array.dtype}.")
    return array


def _array(values: Any, what: str) -> npt.NDArray[Any]:
    """An ndarray of the same numbers, in any layout."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what} are a masked array; fill or drop the masked values and give a plain array.")
    if isinstance(values, Tensor):
        return _from_tensor(values, what)
    if isinstance(values, list | tuple):
        values = [_array(v, what) if isinstance(v, Tensor | np.ma.MaskedArray) else v for v in values]
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what} cannot be converted to one array ({str(error).splitlines()[0]}); all must be alike."
        ) from None


def _from_tensor(values: Tensor, what: str) -> npt.NDArray[Any]:
    if values.layout != strided or values.is_quantized or values.is_meta or values.is_nested:
        raise InputError(f"{what} are a sparse, quantised, nested or meta tensor; give a dense one.")
    values = values.detach().cpu().resolve_conj().resolve_neg()
    if values.is_floating_point() and values.dtype.itemsize < 4:  # NumPy knows no bfloat16 and no float8
        values = values.to(float32)
    array: npt.NDArray[Any] = values.numpy()
    return array
