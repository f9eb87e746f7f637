"""The steps of LSTM layers of many models at once, with a gradient of their own.

autograd would keep a dozen small results of every step and add up the weights' gradient step by step. Here a step keeps
its gates and its cell, and the gradient of the weights is one product over all steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_steps(gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(hidden states after each step [length, batch, size], the last cell [batch, size]).

    gates: [length, batch, 4 * size] what inputs and biases add to the gates. hidden, cell: [batch, size] at the start.
    weight: [4 * size, size] of the hidden state.
    """
    dtype = torch.promote_types(gates.dtype, weight.dtype)  # autocast would round at every step
    given = (part.to(dtype) for part in (gates[:, None], hidden[None], cell[None], weight[None]))
    with torch.autocast(gates.device.type, enabled=False):
        hiddens, last, *_ = _Steps.apply(*given)
    return hiddens[:, 0], last[0]


class _Steps(torch.autograd.Function):
    """gates: [length, models, batch, 4 * size]; the others with the models in front."""

    @staticmethod
    def forward(gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """(hidden states, the last cell; for the gradient: gates after their functions, all cells)."""
        size, across = cell.shape[-1], weight.transpose(1, 2)
        opened = torch.empty_like(gates, memory_format=torch.contiguous_format)
        hiddens, cells = (gates.new_empty(*gates.shape[:-1], size) for _ in range(2))
        for step, now in enumerate(opened):
            torch.baddbmm(gates[step], hidden, across, out=now)
            inlet, forget, inner, outlet = now.split(size, dim=-1)
            now[..., : 2 * size].sigmoid_()
            inner.tanh_()
            outlet.sigmoid_()
            cell = torch.mul(forget, cell, out=cells[step]).addcmul_(inlet, inner)
            hidden = torch.mul(outlet, cell.tanh(), out=hiddens[step])
        return hiddens, cell.clone(), opened, cells

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, hidden, cell, weight = inputs
        hiddens, _, opened, cells = output
        ctx.mark_non_differentiable(opened, cells)
        ctx.save_for_backward(hidden, cell, weight, hiddens, opened, cells)

    @staticmethod
    def backward(ctx: Any, d_hiddens: Tensor, d_cell: Tensor, *unused: Any) -> tuple[Tensor, ...]:
        hidden, cell, weight, hiddens, opened, cells = ctx.saved_tensors
        size, d_gates, d_hidden = cell.shape[-1], torch.empty_like(opened), torch.zeros_like(hidden)
        for step in reversed(range(len(opened))):
            inlet, forget, inner, outlet = opened[step].split(size, dim=-1)
            before = cells[step - 1] if step else cell
            bent = cells[step].tanh()
            d_hidden = d_hidden + d_hiddens[step]
            d_cell = torch.addcmul(d_cell, d_hidden * outlet, 1.0 - bent * bent)
            d_inlet, d_forget, d_inner, d_outlet = d_gates[step].split(size, dim=-1)
            torch.mul(d_cell * inner, inlet * (1.0 - inlet), out=d_inlet)
            torch.mul(d_cell * before, forget * (1.0 - forget), out=d_forget)
            torch.mul(d_cell * inlet, 1.0 - inner * inner, out=d_inner)
            torch.mul(d_hidden * bent, outlet * (1.0 - outlet), out=d_outlet)
            d_hidden = torch.bmm(d_gates[step], weight)
            d_cell = d_cell * forget
        earlier = torch.cat([hidden[None], hiddens[:-1]])
        d_weight = torch.einsum("lmbg,lmbh->mgh", d_gates, earlier)
        return d_gates, d_hidden, d_cell, d_weight

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The new dimension becomes one with that of the models."""
        places = (1, 0, 0, 0)
        moved = [
            x.unsqueeze(place).expand(*x.shape[:place], info.batch_size, *x.shape[place:])
            if dim is None
            else x.movedim(dim, place)
            for x, dim, place in zip(inputs, dims, places, strict=True)
        ]
        found = _Steps.apply(*(x.flatten(place, place + 1) for x, place in zip(moved, places, strict=True)))
        outs = (1, 0, 1, 1)
        return tuple(x.unflatten(place, (info.batch_size, -1)) for x, place in zip(found, outs, strict=True)), outs
