"""Ways to hand over the same numbers: layouts in memory, byte orders, number types, classes of arrays."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

FLOATS = ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8")
INTEGERS = tuple(f"{order}{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8) for order in "<>")


def stored_along(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The same numbers, but these axes come first in memory: what a transposed array is."""
    return np.ascontiguousarray(values.transpose(axes)).transpose(np.argsort(axes))


def with_steps(values: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """The same numbers as a slice with such a step along each axis, negative ones too, of a larger array."""
    big = np.full([abs(step) * n + 1 for n, step in zip(values.shape, steps, strict=True)], 77).astype(values.dtype)
    view = big[tuple(slice(None, abs(step) * n, abs(step)) for n, step in zip(values.shape, steps, strict=True))]
    view = view[tuple(slice(None, None, -1 if step < 0 else 1) for step in steps)]
    view[...] = values
    return view


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


def mapped(values: np.ndarray, fortran: bool = False) -> np.ndarray:
    """Mapped from a file; its name is gone at once, its content with the mapping."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npy"
        np.save(path, np.asfortranarray(values) if fortran else values)
        return np.load(path, mmap_mode="r")


class Sub(np.ndarray):
    """A subclass whose arithmetic must not get in: it gives nothing but sevens."""

    def __array_wrap__(self, array: Any, *_: Any) -> Any:
        return np.full(array.shape, 7.0)


def sideways(values: np.ndarray) -> tuple[int, ...]:
    """All axes after the first the other way round: images as they come from a camera."""
    return (0, *range(values.ndim - 1, 0, -1))


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(values))


def channels_last(values: np.ndarray) -> torch.Tensor:
    return tensor(values).to(memory_format=torch.channels_last) if values.ndim == 4 else tensor(values)


# By name: the same float32 numbers in another dress. Every one is equal to its argument.
WAYS: dict[str, Any] = {
    "transposed": lambda v: stored_along(v, sideways(v)),
    "transposed, then astype": lambda v: stored_along(v, sideways(v)).astype("float64").astype("float32"),
    "Fortran order": np.asfortranarray,
    "a slice with steps": lambda v: with_steps(v, (2,) * v.ndim),
    "negative steps": lambda v: with_steps(v, (-1,) * v.ndim),
    "big-endian": lambda v: v.astype(">f4"),
    "float64, transposed": lambda v: stored_along(v.astype("float64"), sideways(v)),
    "read-only": lambda v: read_only(v.copy()),
    "mapped": mapped,
    "mapped, Fortran order": lambda v: mapped(v, fortran=True),
    "a subclass": lambda v: v.copy().view(Sub),
    "lists": lambda v: v.tolist(),
    "a list of tensors": lambda v: [tensor(sample) for sample in v],
    "tensor": tensor,
    "tensor, channels last": channels_last,
    "tensor, a view": lambda v: torch.stack([tensor(v), tensor(v) + 1.0], dim=-1)[..., 0],
    "tensor with a gradient": lambda v: tensor(v).requires_grad_(),
}
if torch.cuda.is_available():
    WAYS |= {
        "GPU tensor": lambda v: tensor(v).cuda(),
        "GPU tensor, channels last": lambda v: channels_last(v).cuda(),
        "GPU tensor, a view": lambda v: torch.stack([tensor(v).cuda()] * 2, dim=-1)[..., 0],
        "GPU tensor, transposed": lambda v: tensor(v.T.copy()).cuda().permute(*range(v.ndim - 1, -1, -1)),
    }

# Labels, which are whole numbers.
LABEL_WAYS: dict[str, Any] = {
    **{dtype: (lambda y, dtype=dtype: y.astype(dtype)) for dtype in INTEGERS},
    "bool": lambda y: y.astype(bool) if y.max(initial=0) < 2 else y,
    "steps": lambda y: with_steps(y, (3,)),
    "reversed": lambda y: with_steps(y, (-2,)),
    "one column": lambda y: np.stack([y, y], axis=1)[:, 0],
    "lists": lambda y: y.tolist(),
    "scalars": list,
    "tensor": lambda y: torch.tensor(y),
    "int32 tensor, a view": lambda y: torch.tensor(np.repeat(y, 2).astype("int32"))[::2],
    "read-only": lambda y: read_only(y.copy()),
}


@st.composite
def handed_over(draw: st.DrawFn, dtypes: tuple[str, ...]) -> tuple[Any, np.ndarray]:
    """(numbers in a drawn dress, the same as a plain array: of truth values if they are such, else of float64)."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    top = 1 if dtype.kind == "b" else 120
    low = 0 if dtype.kind in "ub" else -120
    count = int(np.prod(shape))
    numbers = draw(st.lists(st.integers(low, top), min_size=count, max_size=count))
    values = np.array(numbers, bool if dtype.kind == "b" else np.float64).reshape(shape)
    if draw(st.booleans()) and count:  # one sample, seen many times
        times = draw(st.integers(1, 3))
        return np.broadcast_to(values.astype(dtype)[:1], (times, *shape[1:])), np.repeat(values[:1], times, axis=0)
    return draw(dressed(values, (dtype.str,))), values


@st.composite
def dressed(draw: st.DrawFn, values: np.ndarray, dtypes: tuple[str, ...]) -> Any:
    """These numbers in a drawn type, order of axes, steps and class of array."""
    dress = values.astype(draw(st.sampled_from(dtypes)))
    if draw(st.booleans()):
        dress = stored_along(dress, tuple(draw(st.permutations(range(dress.ndim)))))
    if draw(st.booleans()):
        dress = with_steps(dress, tuple(draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in dress.shape))
    known = {np.dtype(name) for name in ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?")}
    last = ["as it is", "subclass", "list", *(["tensor"] if dress.dtype in known else [])]
    match draw(st.sampled_from(last)):
        case "subclass":
            dress = dress.view(Sub)
        case "list":
            dress = [np.asarray(sample) for sample in dress] if len(dress) else dress
        case "tensor":
            shared = dress.flags.writeable and min(dress.strides, default=0) >= 0  # torch has no negative strides
            dress = torch.from_numpy(dress) if shared else torch.tensor(np.array(dress))
    return dress
