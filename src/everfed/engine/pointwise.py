"""Layers that change single elements, or only where they lie."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everfed.engine.kernels import pointwise
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step
from everfed.engine.values import Place, Value
from everfed.random import Purpose


class Dropout(Plain):
    """Dropout by the counter-based generator; its masks are computed twice rather than kept."""

    def __init__(self, source: Value, result: Value, rate: float, call: int) -> None:
        super().__init__(source, result)
        self.rate, self.call = rate, call  # call: which of the model's dropout layers this is

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch

    def forward(self, step: Step) -> None:
        self._launch(step, self.source.data, self.source.at, self.result.data, self.result.at, gated=False)

    def backward(self, step: Step) -> None:
        if self.source.wanted:
            s, r = self.source, self.result
            self._launch(step, r.grad, r.grad_at, s.grad, s.grad_at, gated=s.relu)

    def _launch(self, step: Step, x: Tensor, x_at: Place, y: Tensor, y_at: Place, gated: bool) -> None:
        s, gate = self.source, self.source.at
        elements = self.batch * s.channels * s.pixels
        launch(
            pointwise.dropout, (math.ceil(elements / 1024), step.clients),
            x, y, s.data, step.who, step.first, step.seed, step.number, self.call, elements, self.rate,
            self.batch * x_at.image, self.batch * y_at.image, self.batch * gate.image,
            x_at.first(), x_at.image, y_at.first(), y_at.image, gate.first(), gate.image,
            X_ROW=x_at.row, Y_ROW=y_at.row, GATE_ROW=gate.row, STRIDE=s.stride, CHANNELS=s.channels,
            HEIGHT=s.height, WIDTH=s.width, GATED=gated, PURPOSE=int(Purpose.DROPOUT), BLOCK=1024, num_warps=4,
        )  # fmt: skip


class Rebox(Plain):
    """A copy without borders, where a linear layer reads what a convolution needs a border around."""

    def forward(self, step: Step) -> None:
        s, r = self.source, self.result
        r.as_torch(r.data, r.at, step.clients).copy_(s.as_torch(s.data, s.at, step.clients))

    def backward(self, step: Step) -> None:
        s, r = self.source, self.result
        gradient = r.as_torch(r.grad, r.grad_at, step.clients)
        if s.relu:
            gradient = gradient * (s.as_torch(s.data, s.at, step.clients) > 0)
        s.as_torch(s.grad, s.grad_at, step.clients).copy_(gradient)
