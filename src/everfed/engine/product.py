"""Convolutions and linear layers: matrix products, one per client."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from everfed.engine.kernels import gemm, update as updates
from everfed.engine.launch import launch
from everfed.engine.layers import Step, Update, power, tile
from everfed.engine.spread import Spread
from everfed.engine.values import Place, Value

# Programs of a weight gradient that one multiprocessor holds at once, by their shared memory.
_AT_ONCE = 2


# By precision, as measured on an H200: for products (pixels, warps, pipeline stages), for weight
# gradients (precision, pixels, warps, stages). Hopper's wide products want 32-bit operands in an
# order that the weights and the pixels are not in. For TF32, two warps make the compiler take the
# older instruction, which reads any order; for float32, plain multiplications win there.
_TILES = {
    "bf16": ((128, 4, 4), ("tf32", 64, 4, 4)),
    "tf32": ((256, 2, 3), ("tf32", 32, 2, 3)),
    "tf32x3": ((128, 4, 3), ("ieee", 32, 8, 3)),
    "ieee": ((128, 4, 3), ("ieee", 32, 4, 3)),
}


class Pool(Protocol):
    """What a convolution needs to know of the max pool after it."""

    result: Value
    window: int
    winner: Tensor  # where in its window each maximum was


class Product:
    """A convolution or a linear layer, with the ReLU after it. fused: may step with its gradient in one kernel."""

    def __init__(
        self, source: Value, result: Value, weight: str, bias: str | None, kernel: tuple[int, int] | None = None,
        padding: tuple[int, int] = (0, 0), precision: str = "ieee", stride: int = 1, fused: bool = True,
    ) -> None:  # fmt: skip
        self.source, self.result, self.weight, self.bias = source, result, weight, bias
        self.results, self.stride, self.fused, self.title = [result], stride, fused, ""
        self.linear = kernel is None
        self.precision = precision
        self.pool: Pool | None = None  # the pool after it, whose windows give the bias's gradient sooner
        self.offset, self.splits = 0, 1
        self.rows, self.columns = kernel or (1, 1)
        self.up, self.left = padding
        # A linear layer sees one pixel whose channels are all of the source's elements.
        whole = Place(1, 1, source.at.image, 0)
        self.x, self.dx = (whole, whole) if self.linear else (source.at, source.grad_at)
        self.y, self.g = result.at, result.grad_at
        self.depth = self.rows * self.columns * self.x.pixel
        self.run = self.columns * self.x.pixel
        self.size = (self.depth + (bias is not None)) * result.stride
        if not self.linear:
            source.bordered(max(padding))
        self.spread: Spread | None = None
        if not self.linear and source.wanted:
            border = max(self.rows - 1 - self.up, self.columns - 1 - self.left)
            if stride == 1:
                result.grad_border = border
            else:
                self.spread = Spread(result, stride, kernel_size=(self.rows, self.columns), padding=padding, of=source)

    def parameters(self) -> dict[str, Tensor]:
        n, out = self.result.stride, torch.arange(self.result.channels)
        if self.linear:
            where = {self.weight: self.source.positions()[None, :] * n + out[:, None]}
        else:
            taps = torch.arange(self.rows * self.columns)
            inputs = torch.arange(self.source.channels)
            place = (taps[None, None, :] * self.x.pixel + inputs[None, :, None]) * n + out[:, None, None]
            where = {self.weight: place}
        if self.bias is not None:
            where[self.bias] = self.depth * n + out
        return where

    def bytes(self, batch: int) -> int:
        return 4 * self.size + (self.spread.bytes(batch) if self.spread else 0)

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.x, self.dx = (self.x, self.dx) if self.linear else (self.source.at, self.source.grad_at)
        self.y, self.g = self.result.at, self.result.grad_at
        if self.spread:
            self.spread.allocate(clients, batch)
        self.batch = batch
        self.slots = _AT_ONCE * _multiprocessors(device)
        low = self.source.data.dtype == torch.bfloat16
        self.wide = 64 if low else 32  # of the sum in one product
        self.forward_tile, self.gradient_tile = _TILES["bf16" if low else self.precision]
        self.tile_n = tile(self.result.stride, 64)
        self.tile_k = 128 if self.depth > 64 else 64
        self.tiles = math.ceil(self.depth / self.tile_k) * (self.result.stride // self.tile_n)
        if self.stepped:  # the gradient never leaves the kernel
            self.gradient = torch.empty(0, device=device)
            return
        self.splits_for = [1, *(self._splits(c) for c in range(1, clients + 1))]
        most = max(c * splits for c, splits in enumerate(self.splits_for))
        self.gradient = torch.empty(most * self.size, device=device)

    def _splits(self, clients: int) -> int:
        """Parts the pixels are summed in: as many as fill the GPU evenly, in whole waves of programs."""
        most = min(64, math.ceil(self.batch * self.result.pixels / self.gradient_tile[1]))

        def cost(splits: int) -> float:
            waves = math.ceil(self.tiles * clients * splits / self.slots)
            return waves / splits + 0.002 * splits  # every part is written and read once more

        return min(range(1, most + 1), key=cost)

    def biases(self, step: Step) -> Tensor:
        return step.weights[self.offset + self.depth * self.result.stride :] if self.bias else step.weights

    @property
    def pooled(self) -> bool:
        """Whether the pool's kernel computes this layer as well."""
        return self.pool is not None and self.stride == 1 and tile(self.run, 16) < 16 and self.depth <= 128

    @property
    def stepped(self) -> bool:
        """Whether the weight gradient and the optimiser's step are one kernel."""
        return self.fused and self.linear and self.batch <= 128

    def forward(self, step: Step) -> None:
        if self.pooled:
            return
        n = self.result.stride
        pixels = self.batch * self.result.pixels
        wide = tile(self.run, self.wide)
        gathered = wide < 16
        most, warps, stages = self.forward_tile
        rows = min(most, max(16, power(pixels)))
        launch(
            gemm.forward, (math.ceil(pixels / rows) * (n // self.tile_n), step.clients),
            self.source.data, step.weights[self.offset :], self.biases(step), self.result.data,
            self.batch * self.x.image, step.stride, self.batch * self.y.image,
            pixels, self.depth, n, self.x.first(self.up, self.left), self.x.image, self.y.first(), self.y.image,
            int(self.result.relu),
            X_ROW=0 if self.linear else self.x.row, X_PIXEL=0 if self.linear else self.x.pixel, STRIDE=self.stride,
            Y_ROW=0 if self.linear else self.y.row, Y_PIXEL=0 if self.linear else self.y.pixel,
            HEIGHT=self.result.height, WIDTH=self.result.width, RUN=0 if self.linear and not gathered else self.run,
            GATHERED=self.depth if gathered else 0, LINEAR=self.linear and not gathered, HAS_BIAS=self.bias is not None,
            PRECISION=self.precision, BP=rows, BN=self.tile_n, BK=self.wide if gathered else wide,
            num_warps=4 if rows > 64 else warps, num_stages=2 if gathered else stages,
        )  # fmt: skip

    def backward(self, step: Step) -> None:
        if not self.stepped:
            self._weight_gradient(step)
        if self.bias is not None and not self.linear:
            self._bias_gradient(step)
        if self.source.wanted:
            self._input_gradient(step)

    def _weight_gradient(self, step: Step) -> None:
        n = self.result.stride
        pixels = self.batch * self.result.pixels
        self.splits = self.splits_for[step.clients]
        precision, most, warps, stages = self.gradient_tile
        chunk = min(most, max(16, power(pixels)))
        launch(
            gemm.weight_gradient, (self.tiles, step.clients, self.splits),
            self.source.data, self.result.grad, self.gradient,
            self.batch * self.x.image, self.batch * self.g.image, self.size, step.clients * self.size,
            pixels, self.depth, n, self.x.first(self.up, self.left), self.x.image, self.g.first(), self.g.image,
            math.ceil(pixels / (chunk * self.splits)),
            X_ROW=0 if self.linear else self.x.row, X_PIXEL=0 if self.linear else self.x.pixel, STRIDE=self.stride,
            G_ROW=0 if self.linear else self.g.row, G_PIXEL=0 if self.linear else self.g.pixel,
            HEIGHT=self.result.height, WIDTH=self.result.width, ROWS=self.rows, RUN=0 if self.linear else self.run,
            LINEAR=self.linear, HAS_BIAS=self.linear and self.bias is not None, PRECISION=precision,
            BP=chunk, BK=self.tile_k, BN=self.tile_n, num_warps=warps,
            num_stages=3 if tile(self.run, 16) < 16 else stages,
        )  # fmt: skip

    def step_with(self, step: Step, update: Update) -> bool:
        if not self.stepped:
            return False
        n = self.result.stride
        tile_n = tile(n, 128 if self.depth * n < 1 << 17 else 64)  # wide tiles for small layers, as measured
        launch(
            updates.linear_step, (math.ceil(self.depth / 64) * (n // tile_n), step.clients),
            *update.pointers(self.offset), *update.scalars, self.source.data, self.result.grad,
            self.batch * self.x.image, self.batch * self.g.image, self.batch, self.depth, n,
            HAS_BIAS=self.bias is not None, PRECISION=self.precision, **update.meta,
            BB=max(16, power(self.batch)), BK=64, BN=tile_n, num_warps=8 if tile_n >= 64 else 4,
        )  # fmt: skip
        return True

    def _bias_gradient(self, step: Step) -> None:
        """From the pooled gradient where a pool follows: its live windows each hold one pixel's gradient."""
        n = self.result.stride
        value = self.pool.result if self.pool else self.result
        place = value.grad_at
        pixels = self.batch * value.pixels
        launch(
            gemm.bias_gradient, (n // self.tile_n, step.clients, self.splits),
            value.grad, self.pool.winner if self.pool else value.grad, self.gradient[self.depth * n :],
            self.batch * place.image, self.size, step.clients * self.size, pixels * n,
            pixels, place.first(), place.image, n, math.ceil(pixels / (64 * self.splits)),
            ROW=place.row, HEIGHT=value.height, WIDTH=value.width, POOLED=self.pool is not None,
            DEAD=self.pool.window**2 if self.pool else 0, BP=64, BN=self.tile_n, num_warps=8,
        )  # fmt: skip

    def _input_gradient(self, step: Step) -> None:
        n, channels = self.result.stride, self.x.pixel
        one = 1 if self.linear else self.source.pixels
        pixels = self.batch * one
        rows = min(128, max(16, power(pixels)))
        across, deep = tile(channels, 64), tile(n, self.wide)
        gradient, g = self.spread(step) if self.spread else (self.result.grad, self.g)
        launch(
            gemm.input_gradient, (math.ceil(pixels / rows) * (channels // across), step.clients),
            gradient, step.weights[self.offset :], self.source.data, self.source.grad,
            self.batch * g.image, step.stride, self.batch * self.x.image, self.batch * self.dx.image,
            pixels, n, channels,
            g.first(self.rows - 1 - self.up, self.columns - 1 - self.left), g.image,
            self.x.first(), self.x.image, self.dx.first(), self.dx.image, int(self.source.relu),
            G_ROW=0 if self.linear else g.row, X_ROW=0 if self.linear else self.x.row,
            X_PIXEL=0 if self.linear else self.x.pixel, DX_ROW=0 if self.linear else self.dx.row,
            DX_PIXEL=0 if self.linear else self.dx.pixel,
            HEIGHT=1 if self.linear else self.source.height, WIDTH=1 if self.linear else self.source.width,
            TAPS=self.rows * self.columns, RUN=0 if self.linear else self.columns * n,
            DEPTH=0 if self.linear else n // deep, LINEAR=self.linear,
            PRECISION=self.precision, BP=rows, BN=across, BK=deep, num_warps=4, num_stages=4,
        )  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
