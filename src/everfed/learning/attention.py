"""Attention of many clients in one call of torch's own: it has no weights, so clients are folded into the batch.

`torch.func.vmap` would take it apart into products that keep every score for the gradient; on a GPU its backward pass
fails.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """scaled_dot_product_attention without dropout, whether or not inside vmap."""
    found: Tensor = _Folded.apply(query, key, value, mask, is_causal, scale, gqa)
    return found


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, gqa: bool
    ) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.rest = inputs[4:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Of a call outside vmap, computed again. Inside, torch's own call below has a backward pass of its own."""
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        with torch.enable_grad():
            given = [None if t is None else t.detach().requires_grad_(n) for t, n in zip(saved, needed, strict=False)]
            found = _Folded.forward(*given, *ctx.rest)  # type: ignore[arg-type]
        asked = [t for t in given if t is not None and t.requires_grad]
        each = iter(torch.autograd.grad(found, asked, grad))
        return (*(next(each) if t is not None and t.requires_grad else None for t in given), None, None, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        clients = info.batch_size
        tensors = [_in_front(t, dim, clients) for t, dim in zip(inputs[:3], dims[:3], strict=True)]
        rank, mask = tensors[0].ndim - 1, inputs[3]
        if mask is not None and (dims[3] is not None or mask.ndim >= rank > 2):
            mask = _in_front(mask, dims[3], clients)
            mask = mask.reshape(clients, *[1] * (rank + 1 - mask.ndim), *mask.shape[1:])
            if rank > 2:
                mask = mask.expand(-1, tensors[0].shape[1], *mask.shape[2:]).flatten(0, 1)
        if rank > 2:
            tensors = [t.flatten(0, 1) for t in tensors]
        found = _Folded.forward(tensors[0], tensors[1], tensors[2], mask, *inputs[4:])
        return (found.unflatten(0, (clients, -1)) if rank > 2 else found), 0


def _in_front(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
