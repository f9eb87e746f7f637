"""Depthwise convolutions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everfed.engine.kernels import depthwise
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step, power, tile
from everfed.engine.spread import Spread
from everfed.engine.values import Place, Value

_MOST_SPLITS = 16
_PIXELS = 64  # of a tile


class Depthwise(Plain):
    """A convolution with one filter per channel, with the ReLU after it."""

    def __init__(
        self, source: Value, result: Value, weight: str, bias: str | None, kernel: tuple[int, int],
        padding: tuple[int, int], stride: int,
    ) -> None:  # fmt: skip
        super().__init__(source, result)
        self.weight, self.bias, self.stride = weight, bias, stride
        self.rows, self.columns = kernel
        self.up, self.left = padding
        self.taps = self.rows * self.columns
        self.size = (self.taps + (bias is not None)) * source.stride
        source.bordered(max(padding))
        self.spread: Spread | None = None
        if source.wanted and stride > 1:
            self.spread = Spread(result, stride, kernel, padding, source)
        elif source.wanted:
            result.grad_border = max(self.rows - 1 - self.up, self.columns - 1 - self.left)

    def parameters(self) -> dict[str, Tensor]:
        n, channels = self.source.stride, torch.arange(self.source.channels)
        where = {self.weight: torch.arange(self.taps)[None, :] * n + channels[:, None]}
        if self.bias is not None:
            where[self.bias] = self.taps * n + channels
        return where

    def bytes(self, batch: int) -> int:
        return 4 * self.size * _MOST_SPLITS + (self.spread.bytes(batch) if self.spread else 0)

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch
        if self.spread:
            self.spread.allocate(clients, batch)
        self.splits = min(_MOST_SPLITS, math.ceil(batch * self.result.pixels / _PIXELS))
        self.gradient = torch.empty(self.splits * clients * self.size, device=device)
        self.tile_c = tile(self.source.stride, 64)

    def forward(self, step: Step) -> None:
        s, r = self.source, self.result
        self._filter(step, s.data, s.at, s.at.first(self.up, self.left), r, r.data, r.at, relu=r.relu)

    def backward(self, step: Step) -> None:
        self._weights(step)
        s, r = self.source, self.result
        if s.wanted:
            g, at = self.spread(step) if self.spread else (r.grad, r.grad_at)
            first = at.first(self.rows - 1 - self.up, self.columns - 1 - self.left)
            self._filter(step, g, at, first, s, s.grad, s.grad_at, gradient=True)

    def _filter(
        self, step: Step, x: Tensor, x_at: Place, first: int, out: Value, y: Tensor, y_at: Place, relu: bool = False,
        gradient: bool = False,
    ) -> None:  # fmt: skip
        n, pixels, gate = self.source.stride, self.batch * out.pixels, self.source.at
        biased = self.bias is not None and not gradient
        launch(
            depthwise.depthwise, (math.ceil(pixels / _PIXELS), n // self.tile_c, step.clients),
            x, step.weights[self.offset :], step.weights[self.offset + self.taps * n :] if biased else step.weights,
            self.source.data, y, self.batch * x_at.image, step.stride, self.batch * gate.image, self.batch * y_at.image,
            pixels, n, first, x_at.image, gate.first(), gate.image, y_at.first(), y_at.image, int(relu),
            X_ROW=x_at.row, GATE_ROW=gate.row, Y_ROW=y_at.row, STRIDE=1 if gradient else self.stride,
            HEIGHT=out.height, WIDTH=out.width, ROWS=self.rows, COLUMNS=self.columns, FLIPPED=gradient,
            HAS_BIAS=biased, GATED=gradient and self.source.relu, BP=_PIXELS, BC=self.tile_c, num_warps=4,
        )  # fmt: skip

    def _weights(self, step: Step) -> None:
        s, r = self.source, self.result
        n, pixels = s.stride, self.batch * r.pixels
        launch(
            depthwise.depthwise_weights, (n // self.tile_c, step.clients, self.splits),
            s.data, r.grad, self.gradient, self.batch * s.at.image, self.batch * r.grad_at.image, self.size,
            step.clients * self.size, pixels, n, s.at.first(self.up, self.left), s.at.image, r.grad_at.first(),
            r.grad_at.image, math.ceil(pixels / (_PIXELS * self.splits)),
            X_ROW=s.at.row, G_ROW=r.grad_at.row, STRIDE=self.stride, HEIGHT=r.height, WIDTH=r.width, ROWS=self.rows,
            COLUMNS=self.columns, HAS_BIAS=self.bias is not None, BT=power(self.taps + 1), BP=_PIXELS, BC=self.tile_c,
            num_warps=4,
        )  # fmt: skip
