"""Max and average pooling; a max pool takes a small convolution before it along."""

from __future__ import annotations

import math

import torch

from everfed.engine.kernels import gemm, pooling
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step, power, tile
from everfed.engine.product import Product
from everfed.engine.values import Value


class MaxPool(Plain):
    """Max pooling with square windows."""

    def __init__(self, source: Value, result: Value, window: int, stride: int, padding: int) -> None:
        super().__init__(source, result)
        self.window, self.stride, self.padding = window, stride, padding
        self.conv: Product | None = None  # the convolution before it

    def bytes(self, batch: int) -> int:
        return batch * self.result.pixels * self.result.stride

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch
        size = clients * batch * self.result.pixels * self.result.stride
        self.winner = torch.zeros(size, dtype=torch.uint8, device=device)

    def forward(self, step: Step) -> None:
        if self.conv is not None and self.conv.pooled:
            self._forward_with(self.conv, step)
            return
        x, y, s, r = self.source.at, self.result.at, self.source, self.result
        windows = step.clients * self.batch * r.pixels
        channels = tile(r.stride, 64)
        rows = 16 if s.data.dtype == torch.bfloat16 else 8
        launch(
            pooling.max_pool, (math.ceil(windows / rows), r.stride // channels),
            s.data, r.data, self.winner, windows, x.first(), x.image, y.first(), y.image, r.stride, int(r.relu),
            X_ROW=x.row, Y_ROW=y.row, HEIGHT=s.height, WIDTH=s.width, OUT_HEIGHT=r.height, OUT_WIDTH=r.width,
            SIZE=self.window, STRIDE=self.stride, PADDING=self.padding, MASKED=s.relu,
            BP=rows, BC=channels, num_warps=4,
        )  # fmt: skip

    def _forward_with(self, conv: Product, step: Step) -> None:
        """The convolution before it and this pool in one kernel."""
        x, y, s, r = conv.x, self.result.at, self.source, self.result
        n, windows = r.stride, self.batch * r.pixels
        launch(
            gemm.forward_pooled, (math.ceil(windows / 64) * (n // conv.tile_n), step.clients),
            conv.source.data, step.weights[conv.offset :], conv.biases(step), r.data, self.winner,
            self.batch * x.image, step.stride, self.batch * y.image, windows * n,
            windows, n, x.first(conv.up, conv.left), x.image, y.first(), y.image, int(r.relu),
            X_ROW=x.row, X_PIXEL=x.pixel, Y_ROW=y.row, HEIGHT=s.height, WIDTH=s.width,
            OUT_HEIGHT=r.height, OUT_WIDTH=r.width, SIZE=self.window, STRIDE=self.stride, PADDING=self.padding,
            K=conv.depth, RUN=conv.run, MASKED=s.relu, HAS_BIAS=conv.bias is not None, PRECISION=conv.precision,
            BP=64, BN=conv.tile_n, BK=max(16, power(conv.depth)), num_warps=8, num_stages=2,
        )  # fmt: skip

    def backward(self, step: Step) -> None:
        if not self.source.wanted:
            return
        s, r = self.source, self.result
        g, dx = r.grad_at, s.grad_at
        down, across = ((n - 1 + self.padding) // self.stride + 1 for n in (s.height, s.width))
        blocks = step.clients * self.batch * down * across
        channels = tile(r.stride, 64)
        launch(
            pooling.max_pool_gradient, (math.ceil(blocks / 16), r.stride // channels),
            r.grad, self.winner, s.grad, blocks, g.first(), g.image, dx.first(), dx.image, r.stride,
            G_ROW=g.row, DX_ROW=dx.row, HEIGHT=s.height, WIDTH=s.width, OUT_HEIGHT=r.height, OUT_WIDTH=r.width,
            BLOCK_ROWS=down, BLOCK_COLUMNS=across, SIZE=self.window, STRIDE=self.stride, PADDING=self.padding,
            REACH=math.ceil(self.window / self.stride), BP=16, BC=channels, num_warps=4,
        )  # fmt: skip


class MeanPool(Plain):
    """Average pooling with square windows that lie inside the image."""

    def __init__(self, source: Value, result: Value, window: int, stride: int) -> None:
        super().__init__(source, result)
        self.window, self.stride = window, stride

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch = batch

    def forward(self, step: Step) -> None:
        x, y, s, r = self.source.at, self.result.at, self.source, self.result
        windows = step.clients * self.batch * r.pixels
        channels = tile(r.stride, 64)
        launch(
            pooling.mean_pool, (math.ceil(windows / 32), r.stride // channels),
            s.data, r.data, windows, x.first(), x.image, y.first(), y.image, r.stride, int(r.relu),
            X_ROW=x.row, Y_ROW=y.row, OUT_HEIGHT=r.height, OUT_WIDTH=r.width, SIZE=self.window, STRIDE=self.stride,
            BP=32, BC=channels, num_warps=4,
        )  # fmt: skip

    def backward(self, step: Step) -> None:
        if not self.source.wanted:
            return
        s, r = self.source, self.result
        x, g, dx = s.at, r.grad_at, s.grad_at
        pixels = step.clients * self.batch * s.pixels
        channels = tile(r.stride, 64)
        launch(
            pooling.mean_pool_gradient, (math.ceil(pixels / 32), r.stride // channels),
            r.grad, s.data, s.grad, pixels, g.first(), g.image, x.first(), x.image, dx.first(), dx.image, r.stride,
            int(s.relu), G_ROW=g.row, X_ROW=x.row, DX_ROW=dx.row, HEIGHT=s.height, WIDTH=s.width,
            OUT_HEIGHT=r.height, OUT_WIDTH=r.width, SIZE=self.window, STRIDE=self.stride,
            REACH=math.ceil(self.window / self.stride), BP=32, BC=channels, num_warps=4,
        )  # fmt: skip


class GlobalMean(Plain):
    """The mean of all pixels of an image, by torch: images of any size, and little to compute."""

    def forward(self, step: Step) -> None:
        s, r = self.source, self.result
        mean = s.as_torch(s.data, s.at, step.clients).mean(dim=(3, 4), keepdim=True, dtype=torch.float32)
        r.as_torch(r.data, r.at, step.clients).copy_(mean)

    def backward(self, step: Step) -> None:
        s, r = self.source, self.result
        if not s.wanted:
            return
        gradient = r.as_torch(r.grad, r.grad_at, step.clients) / s.pixels
        if s.relu:
            gradient = gradient * (s.as_torch(s.data, s.at, step.clients) > 0)
        view = s.as_torch(s.grad, s.grad_at, step.clients)
        view.copy_(gradient.expand(view.shape))
