"""Where the way of a model's values divides and meets again, as around a residual block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everfed.engine.kernels import joining
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step, tile
from everfed.engine.values import Place, Value


class Fork(Plain):
    """One value for several readers: the same data, but each writes a gradient of its own, and these are added here.

    So every other layer has one reader and writes its source's gradient without asking who else does.
    """

    def __init__(self, source: Value, readers: int) -> None:
        made = [
            Value(
                source.channels, source.height, source.width, flat=source.flat, wanted=source.wanted,
                stride=source.stride, of=source,
            )
            for _ in range(readers)
        ]  # fmt: skip
        super().__init__(source, made[0])
        self.results = made

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch

    def forward(self, step: Step) -> None:
        pass

    def backward(self, step: Step) -> None:
        s = self.source
        if not s.wanted:
            return
        first, *others = self.results
        total, at = first.grad, first.grad_at
        for other in others:
            last = other is others[-1]
            out, out_at = (s.grad, s.grad_at) if last else (first.grad, first.grad_at)
            gate = s if s.relu and last else None
            _add(step.clients * self.batch, s, total, at, other.grad, other.grad_at, out, out_at, gate=gate)


class Sum(Plain):
    """Two values added, with the ReLU after them."""

    def __init__(self, source: Value, other: Value, result: Value) -> None:
        super().__init__(source, result)
        self.other = other

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch

    def forward(self, step: Step) -> None:
        a, b, r = self.source, self.other, self.result
        _add(step.clients * self.batch, r, a.data, a.at, b.data, b.at, r.data, r.at, relu=r.relu)

    def backward(self, step: Step) -> None:
        r = self.result
        for value in (self.source, self.other):
            if value.wanted:
                gate = value if value.relu else None
                _add(step.clients * self.batch, r, r.grad, r.grad_at, None, None, value.grad, value.grad_at, gate=gate)


def _add(
    images: int, shape: Value, x: Tensor, x_at: Place, other: Tensor | None, other_at: Place | None, y: Tensor,
    y_at: Place, gate: Value | None = None, relu: bool = False,
) -> None:  # fmt: skip
    channels = tile(shape.stride, 64)
    pixels = images * shape.pixels
    rows = 32
    at = other_at or x_at
    gate_at = gate.at if gate else x_at
    launch(
        joining.add, (math.ceil(pixels / rows), shape.stride // channels),
        x, x if other is None else other, gate.data if gate else x, y, pixels, x_at.first(), x_at.image,
        at.first(), at.image, gate_at.first(), gate_at.image, y_at.first(), y_at.image, shape.stride, int(relu),
        X_ROW=x_at.row, OTHER_ROW=at.row, GATE_ROW=gate_at.row, Y_ROW=y_at.row, HEIGHT=shape.height,
        WIDTH=shape.width, TWO=other is not None, GATED=gate is not None, BP=rows, BC=channels, num_warps=4,
    )  # fmt: skip
