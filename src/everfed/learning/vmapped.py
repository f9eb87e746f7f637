"""Functions of torch that vmap batches wrongly, slowly or not at all, from others that it batches well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from everfed.errors import InputError
from everfed.learning import recurrent


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """torch.embedding, whose rule forgets what it shall do to the gradient."""
    if scale_grad_by_freq or sparse or max_norm is not None:
        raise InputError("vmap ignores scale_grad_by_freq, sparse and max_norm of an embedding")
    known = _within(input, len(weight))
    if padding_idx is not None:
        learned = torch.arange(len(weight), device=weight.device) != padding_idx % len(weight)
        weight = torch.where(learned[:, None], weight, weight.detach())
    if known:
        return torch.embedding(weight, input)
    inside = (input >= 0) & (input < len(weight))
    return torch.where(inside[..., None], torch.embedding(weight, input.clamp(0, len(weight) - 1)), math.nan)


def _within(input: Tensor, rows: int) -> bool:
    """Whether it is known that all numbers are rows of a table; an error if it is known that some are not.

    vmap lays the clients' tables one after the other, so that a number outside of a client's own would silently take a
    row of its neighbour's. On a GPU the answer would have to be waited for, and in a trace there are no numbers: what
    is outside becomes NaN there, which no run takes for a result.
    """
    numbers = input
    while torch._C._functorch.is_batchedtensor(numbers):
        numbers = torch._C._functorch.get_unwrapped(numbers)
    if numbers.device.type != "cpu" or isinstance(numbers, FakeTensor):
        return False
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < rows:
        raise IndexError("index out of range in self")  # torch's own words, as without vmap
    return True


def _bilinear(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = torch.einsum("...i,oij,...j->...o", first, weight, second)
    return found if bias is None else found + bias


def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    across = [d for d in range(direction.ndim) if d != dim]
    present: Tensor = torch.linalg.vector_norm(direction, dim=across, keepdim=True)
    return direction * (length / present)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear of sequences and the like: under vmap, torch would copy a client's weights for each of its samples."""
    rows = F.linear(input.reshape(-1, input.shape[-1]), weight, bias)
    return rows.reshape(*input.shape[:-1], rows.shape[-1])


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.embedding: _embedding,
    F.bilinear: _bilinear,
    torch.bilinear: _bilinear,
    torch._weight_norm: _weight_norm,
    torch.lstm_cell: lambda *args: recurrent.cell("lstm", *args),
    torch.gru_cell: lambda *args: recurrent.cell("gru", *args),
    torch.rnn_tanh_cell: lambda *args: recurrent.cell("tanh", *args),
    torch.rnn_relu_cell: lambda *args: recurrent.cell("relu", *args),
}
