"""torch's recurrent layers, layer by layer: as torch computes them, or as loops of plain products.

`torch.func.vmap` has no rule for torch's own LSTM, GRU and RNN, and the dropout between their layers is drawn inside,
from the global generator. A stack taken apart solves both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everfed.errors import InputError
from everfed.learning.lstm import lstm_steps

# What nn.LSTM, nn.GRU and nn.RNN call.
_KINDS: dict[Any, str] = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "tanh", torch.rnn_relu: "relu"}

States = tuple[Tensor, ...]  # of a layer: hidden, and the LSTM's cell
_Step = Callable[[Tensor, States], States]  # the states after one step, from what the input adds to the gates


def applies(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is a call of a recurrent layer on whole sequences, which can be taken apart."""
    if func not in _KINDS or len(args) != 9:
        return False
    packed = not isinstance(args[3], bool)  # a packed call brings the batch sizes along, second
    if packed and args[5] > 1 and args[6] > 0 and args[7]:
        raise InputError(
            "the model has dropout between recurrent layers on packed sequences, which would not be repeatable; "
            "set the layer's dropout to 0, or give it padded sequences."
        )
    return not packed


def stacked(
    func: Any,
    drop: Callable[[Tensor, float], Tensor],
    vmapped: bool,
    input: Tensor,
    hx: Tensor | States,
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> States:
    """(outputs, last hidden, and the LSTM's last cell), as the function of torch that is called like this.

    drop: dropout between layers. vmapped: by plain products; otherwise each layer by torch.
    """
    dropped = dropout if training and layers > 1 else 0.0
    if not (vmapped or dropped):
        return func(input, hx, weights, biased, layers, dropout, training, bidirectional, batch_first)  # type: ignore[no-any-return]
    given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if bidirectional else 1
    per_layer = len(weights) // layers
    x = input.transpose(0, 1) if batch_first else input
    last: list[States] = []
    for layer in range(layers):
        if layer and dropped:
            x = drop(x, dropped)
        start = tuple(h[layer * directions : (layer + 1) * directions] for h in given)
        own = weights[layer * per_layer : (layer + 1) * per_layer]
        if vmapped:
            x, *states = _layer(_KINDS[func], x, start, own, biased, directions)
        else:
            handed = start[0] if isinstance(hx, Tensor) else start
            with warnings.catch_warnings():  # cuDNN wants the weights of all layers in one piece
                warnings.filterwarnings("ignore", "RNN module weights")
                x, *states = func(x, handed, own, biased, 1, 0.0, training, bidirectional, False)
        last.append(tuple(states))
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(parts) for parts in zip(*last, strict=True)))


def _layer(
    kind: str, x: Tensor, start: States, weights: Sequence[Tensor], biased: bool, directions: int
) -> tuple[Tensor, ...]:
    """One layer on x [length, batch, inputs]; start: [directions, batch, size] each."""
    per_direction = len(weights) // directions
    outputs: list[Tensor] = []
    last: list[States] = []
    for direction in range(directions):
        own = weights[direction * per_direction : (direction + 1) * per_direction]
        from_inputs, step = _cell(kind, x, own, biased)
        states = tuple(h[direction] for h in start)
        if kind == "lstm" and len(own) % 2 == 0:  # without a projection
            added = from_inputs.flip(0) if direction else from_inputs
            hiddens, cell = lstm_steps(added, states[0], states[1], own[1])
            outputs.append(hiddens.flip(0) if direction else hiddens)
            last.append((hiddens[-1], cell))
            continue
        found = []
        parts = from_inputs.unbind(0)
        for part in reversed(parts) if direction else parts:
            states = step(part, states)
            found.append(states[0])
        outputs.append(torch.stack(found[::-1] if direction else found))
        last.append(states)
    return (torch.cat(outputs, dim=2), *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _cell(kind: str, x: Tensor, weights: Sequence[Tensor], biased: bool) -> tuple[Tensor, _Step]:
    """(what all steps' inputs add to the gates, in one product; the step)."""
    from_x, from_h = weights[0], weights[1].t()
    bias_x, bias_h = (weights[2], weights[3]) if biased else (None, None)
    if kind == "gru":
        return F.linear(x, from_x, bias_x), lambda part, states: _gru(part, states[0], from_h, bias_h)
    added = F.linear(x, from_x, None if bias_x is None or bias_h is None else bias_x + bias_h)
    if kind == "lstm":
        projection = weights[-1].t() if len(weights) % 2 else None
        return added, lambda part, states: _lstm(part, states, from_h, projection)
    bend = torch.tanh if kind == "tanh" else torch.relu
    return added, lambda part, states: (bend(part + states[0] @ from_h),)


def cell(
    kind: str,
    x: Tensor,
    hx: Tensor | States,
    from_x: Tensor,
    from_h: Tensor,
    bias_x: Tensor | None = None,
    bias_h: Tensor | None = None,
) -> Tensor | States:
    """One step of one layer on x [batch, inputs], as torch.lstm_cell and its like."""
    biases = [] if bias_x is None or bias_h is None else [bias_x, bias_h]
    added, step = _cell(kind, x, [from_x, from_h, *biases], bool(biases))
    return step(added, (hx,))[0] if isinstance(hx, Tensor) else step(added, tuple(hx))


def _lstm(part: Tensor, states: States, from_h: Tensor, projection: Tensor | None) -> States:
    hidden, cell = states
    gates = part + hidden @ from_h
    size = cell.shape[-1]
    inlet_and_forget, inner, outlet = gates.split([2 * size, size, size], dim=-1)
    inlet, forget = inlet_and_forget.sigmoid().chunk(2, dim=-1)
    cell = forget * cell + inlet * inner.tanh()
    hidden = outlet.sigmoid() * cell.tanh()
    return (hidden if projection is None else hidden @ projection), cell


def _gru(part: Tensor, hidden: Tensor, from_h: Tensor, bias: Tensor | None) -> States:
    size = hidden.shape[-1]
    product = hidden @ from_h
    from_hidden = product if bias is None else product + bias
    reset, update = (part[..., : 2 * size] + from_hidden[..., : 2 * size]).sigmoid().chunk(2, dim=-1)
    new = (part[..., 2 * size :] + reset * from_hidden[..., 2 * size :]).tanh()
    return (new + update * (hidden - new),)
