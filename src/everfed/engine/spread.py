"""The gradient of a convolution with a stride, with zeros in between: what one without a stride would be given."""

from __future__ import annotations

import torch
from torch import Tensor

from everfed.engine.layers import Step
from everfed.engine.values import Place, Value


class Spread:
    """A copy of a value's gradient at every stride-th place, so that the kernels for stride 1 compute the input's."""

    def __init__(
        self, result: Value, stride: int, kernel_size: tuple[int, int], padding: tuple[int, int], of: Value
    ) -> None:
        """of: the value that the convolution reads."""
        self.result, self.stride = result, stride
        (rows, columns), (up, left) = kernel_size, padding
        self.at = Place(
            of.height + 2 * up - rows + 1, of.width + 2 * left - columns + 1, result.stride,
            max(rows - 1 - up, columns - 1 - left),
        )  # fmt: skip

    def bytes(self, batch: int) -> int:
        return 4 * batch * self.at.image

    def allocate(self, clients: int, batch: int) -> None:
        """Zeros once: the places in between are never written."""
        like = self.result.grad
        self.data = torch.zeros(clients, batch, self.at.image, dtype=like.dtype, device=like.device)

    def __call__(self, step: Step) -> tuple[Tensor, Place]:
        """(the gradient with zeros in between, where it lies)"""
        r, at, s = self.result, self.at, self.stride
        b = at.border
        batch = self.data.shape[1]
        grid = self.data[: step.clients].view(step.clients, batch, at.height + 2 * b, at.width + 2 * b, at.pixel)
        inner = grid[:, :, b : b + s * (r.height - 1) + 1 : s, b : b + s * (r.width - 1) + 1 : s, : r.channels]
        inner.permute(0, 1, 4, 2, 3).copy_(r.as_torch(r.grad, r.grad_at, step.clients))
        return self.data, at
