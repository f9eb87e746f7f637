"""Group normalisation, and layer normalisation of flat values, with the ReLU after it."""

from __future__ import annotations

import torch
from torch import Tensor

from everfed.engine.kernels import norm
from everfed.engine.launch import launch
from everfed.engine.layers import Plain, Step, power
from everfed.engine.values import Value

# Elements of a tile: more would not stay in registers.
_TILE = 4096


class GroupNorm(Plain):
    """Values of each sample normalised in groups of channels. Layer normalisation of a vector is one group."""

    def __init__(
        self, source: Value, result: Value, groups: int, eps: float, weight: str | None, bias: str | None
    ) -> None:
        super().__init__(source, result)
        self.groups, self.eps, self.weight, self.bias = groups, eps, weight, bias
        self.wide = source.channels // groups
        self.size = 2 * source.stride if weight else 0

    def parameters(self) -> dict[str, Tensor]:
        if not self.weight:
            return {}
        channels = torch.arange(self.source.channels)
        assert self.bias is not None
        return {self.weight: channels, self.bias: self.source.stride + channels}

    def bytes(self, batch: int) -> int:
        return 4 * batch * (self.size + 2 * self.groups)

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.batch, self.splits = batch, batch
        self.gradient = torch.empty(batch * clients * self.size, device=device)
        self.kept = torch.empty(clients, batch * self.groups * 2, device=device)
        self.tile_c = power(self.wide)
        self.tile_p = max(1, min(power(self.source.pixels), _TILE // self.tile_c))

    def forward(self, step: Step) -> None:
        s, r = self.source, self.result
        launch(
            norm.group_norm, (self.batch * self.groups, step.clients),
            s.data, self._weights(step), r.data, self.kept, self.batch * s.at.image, step.stride,
            self.batch * r.at.image, self.kept.shape[1], s.at.first(), s.at.image, r.at.first(), r.at.image, self.eps,
            int(r.relu), X_ROW=s.at.row, Y_ROW=r.at.row, STRIDE=s.stride, HEIGHT=s.height, WIDTH=s.width,
            GROUPS=self.groups, WIDE=self.wide, AFFINE=bool(self.size), BP=self.tile_p, BC=self.tile_c, num_warps=4,
        )  # fmt: skip

    def backward(self, step: Step) -> None:
        s, r = self.source, self.result
        if not (s.wanted or self.size):
            return
        padding = s.stride - s.channels
        dx, dx_at = (s.grad, s.grad_at) if s.wanted else (r.grad, r.grad_at)  # not written if not wanted
        launch(
            norm.group_norm_gradient, (self.batch * self.groups, step.clients),
            s.data, r.grad, self._weights(step), self.kept, dx, self.gradient, self.batch * s.at.image,
            self.batch * r.grad_at.image, step.stride, self.kept.shape[1], self.batch * dx_at.image, self.size,
            step.clients * self.size, s.at.first(), s.at.image, r.grad_at.first(), r.grad_at.image, dx_at.first(),
            dx_at.image, int(s.relu), X_ROW=s.at.row, G_ROW=r.grad_at.row, DX_ROW=dx_at.row, STRIDE=s.stride,
            CHANNELS=s.channels, HEIGHT=s.height, WIDTH=s.width, GROUPS=self.groups, WIDE=self.wide,
            AFFINE=bool(self.size), WANTED=s.wanted, PADDED=power(padding) if padding else 0,
            BP=self.tile_p, BC=self.tile_c, num_warps=4,
        )  # fmt: skip

    def _weights(self, step: Step) -> Tensor:
        """In float32, as torch normalises under autocast."""
        return step.masters.view(-1)[self.offset :]
