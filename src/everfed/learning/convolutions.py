"""Convolutions as products of shifted pictures with weights, for models whose clients each have weights of their own.

Under vmap, torch makes one convolution with a group per client of them, which no library is good at, and which has to
know how many clients there are. Shifted copies, next to each other, times the weights are one product per client; a
compiler merges the copying with what comes before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST_SHIFTS = 64  # each is an operation of its own in a compiled program, and so is its gradient


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """torch.conv1d, conv2d and conv3d, by the dimensions of the weight [outputs, inputs / groups, *window]."""
    window = weight.shape[2:]
    dims = len(window)
    strides, dilations = _each(stride, dims), _each(dilation, dims)
    single = input.ndim == dims + 1
    x = _padded(input[None] if single else input, window, padding, dilations)
    sizes = [
        (size - apart * (wide - 1) - 1) // step + 1
        for size, wide, step, apart in zip(x.shape[2:], window, strides, dilations, strict=True)
    ]
    if math.prod(window) > 1 and strides == list(window) and set(dilations) == {1}:
        found = _patched(x, weight, sizes, groups)
    elif math.prod(window) > _MOST_SHIFTS:
        found = _torchs[dims](x, weight, None, strides, 0, dilations, groups)
    else:
        starts = itertools.product(*(range(wide) for wide in window))
        places = [[at * apart for at, apart in zip(start, dilations, strict=True)] for start in starts]
        shifts = [_shifted(x, place, sizes, strides) for place in places]
        alone = groups > 1 and weight.shape[1] == 1  # depthwise: no product, a sum of pictures times numbers
        found = _scaled(shifts, weight, groups) if alone else _multiplied(shifts, weight, groups)
    if bias is not None:
        found = found + bias.reshape(-1, *[1] * dims)
    return found[0] if single else found


_torchs = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


def _each(value: int | Sequence[int], dims: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * dims if len(given) == 1 else given


def _padded(x: Tensor, window: Sequence[int], padding: str | int | Sequence[int], dilations: list[int]) -> Tensor:
    if padding == "valid":
        return x
    if padding == "same":
        whole = [apart * (wide - 1) for wide, apart in zip(window, dilations, strict=True)]
        sides = [(every // 2, every - every // 2) for every in whole]
    else:
        assert not isinstance(padding, str)
        sides = [(side, side) for side in _each(padding, len(window))]
    return F.pad(x, [side for pair in reversed(sides) for side in pair]) if any(map(any, sides)) else x


def _shifted(x: Tensor, place: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
    """What the window's element at this place sees: [samples, channels, *sizes]."""
    for dim, (begin, size, step) in enumerate(zip(place, sizes, strides, strict=True), 2):
        x = x[(slice(None),) * dim + (slice(begin, begin + (size - 1) * step + 1, step),)]
    return x


def _multiplied(shifts: Sequence[Tensor], weight: Tensor, groups: int) -> Tensor:
    """Pixels as rows, with all that their window sees, times the weights; of several groups, each by itself."""
    outputs, inputs = weight.shape[:2]
    seen = [shift.movedim(1, -1).unflatten(-1, (groups, inputs)) for shift in shifts]
    rows = torch.cat(seen, dim=-1) if len(seen) > 1 else seen[0]  # [samples, *sizes, groups, window * inputs]
    columns = weight.flatten(2).transpose(1, 2).reshape(groups, outputs // groups, -1).transpose(1, 2)
    place = rows.shape[:-2]
    if groups == 1:
        found = rows.reshape(-1, rows.shape[-1]) @ columns[0]
    else:
        found = (rows.reshape(-1, groups, rows.shape[-1]).transpose(0, 1) @ columns).transpose(0, 1)
    return found.reshape(*place, outputs).movedim(-1, 1)


def _scaled(shifts: Sequence[Tensor], weight: Tensor, groups: int) -> Tensor:
    """Each channel by itself, or several outputs of each."""
    each = weight.shape[0] // groups
    dims = shifts[0].ndim - 2
    numbers = weight.flatten(1).unbind(1)
    seen = [shift.repeat_interleave(each, dim=1) if each > 1 else shift for shift in shifts]
    parts = [shift * number.reshape(-1, *[1] * dims) for shift, number in zip(seen, numbers, strict=True)]
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def _patched(x: Tensor, weight: Tensor, sizes: Sequence[int], groups: int) -> Tensor:
    """Windows side by side: no pixel is seen twice, so the picture is cut up."""
    window, outputs = weight.shape[2:], weight.shape[0]
    for dim, (size, wide) in enumerate(zip(sizes, window, strict=True), 2):
        x = x.narrow(dim, 0, size * wide)
    cut = [part for size, wide in zip(sizes, window, strict=True) for part in (size, wide)]
    x = x.reshape(x.shape[0], groups, -1, *cut)
    dims = len(window)
    places, inside = [3 + 2 * d for d in range(dims)], [4 + 2 * d for d in range(dims)]
    rows = x.permute(0, *places, 1, 2, *inside).flatten(dims + 2)  # [samples, *sizes, groups, inputs * window]
    columns = weight.reshape(groups, outputs // groups, -1).transpose(1, 2)
    found = (rows.flatten(0, dims).transpose(0, 1) @ columns).transpose(0, 1)
    return found.reshape(*rows.shape[: dims + 1], outputs).movedim(-1, 1)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """F.group_norm, for pictures whose channels lie last, which torch's rule for vmap does not take."""
    x = input.to(torch.promote_types(input.dtype, torch.float32)).unflatten(1, (num_groups, -1))
    inside = list(range(2, x.ndim))
    mean, spread = x.mean(inside, keepdim=True), x.var(inside, unbiased=False, keepdim=True)
    found: Tensor = ((x - mean) * torch.rsqrt(spread + eps)).flatten(1, 2)
    place = (-1, *[1] * (input.ndim - 2))
    found = found if weight is None else found * weight.reshape(place)
    return found if bias is None else found + bias.reshape(place)


# What stands in for torch's functions in a pass that is to be compiled for any number of clients.
FUNCTIONS: dict[Any, Callable[..., Any]] = {**dict.fromkeys(_torchs.values(), convolution), F.group_norm: group_norm}
