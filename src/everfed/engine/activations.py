"""Functions of single elements that are not fused with the layer before them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everfed.engine.kernels import activation
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step, tile
from everfed.engine.values import Place, Value


class Activation(Plain):
    """kind: as in `kernels/activation.py`. slope: of a leaky ReLU where it is negative."""

    def __init__(self, source: Value, result: Value, kind: str, slope: float = 0.0) -> None:
        super().__init__(source, result)
        self.kind, self.slope = kind, slope

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch

    def forward(self, step: Step) -> None:
        self._launch(step, self.source.data, self.source.at, self.result.data, self.result.at, backward=False)

    def backward(self, step: Step) -> None:
        if self.source.wanted:
            s, r = self.source, self.result
            self._launch(step, r.grad, r.grad_at, s.grad, s.grad_at, backward=True)

    def _launch(self, step: Step, g: Tensor, g_at: Place, y: Tensor, y_at: Place, backward: bool) -> None:
        s = self.source
        x_at, channels = s.at, tile(s.stride, 64)
        pixels, rows = step.clients * self.batch * s.pixels, 32
        launch(
            activation.activate, (math.ceil(pixels / rows), s.stride // channels),
            s.data, g, y, pixels, self.slope, x_at.first(), x_at.image, g_at.first(), g_at.image, y_at.first(),
            y_at.image, s.stride, s.channels,
            X_ROW=x_at.row, G_ROW=g_at.row, Y_ROW=y_at.row, HEIGHT=s.height, WIDTH=s.width, KIND=self.kind,
            BACKWARD=backward, GATED=s.relu, BP=rows, BC=channels, num_warps=4,
        )  # fmt: skip
