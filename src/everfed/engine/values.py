"""What flows between the layers of a lowered model, and where it lies in memory.

Activations are [clients, batch, height, width, channels], channels last and padded to a stride that
tiles divide, inside a border of zeros, so that a convolution reads its neighbours without a check.
A flat vector is an image of one pixel. The gradient of a value has a border of its own, as wide as
the layer that made the value needs for its own backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Strides, in elements, of one sample's pixels in a bordered buffer."""

    height: int
    width: int
    pixel: int  # from one pixel to the next: the channel stride
    border: int

    @property
    def row(self) -> int:
        return (self.width + 2 * self.border) * self.pixel

    @property
    def image(self) -> int:
        return (self.height + 2 * self.border) * self.row

    def first(self, up: int = 0, left: int = 0) -> int:
        """Where the pixel (-up, -left) lies."""
        return (self.border - up) * self.row + (self.border - left) * self.pixel


@dataclass(eq=False)
class Value:
    """One layer's output, which is the input of one other layer; `Fork` makes copies for several."""

    channels: int
    height: int = 1
    width: int = 1
    flat: bool = False  # torch sees it flattened, channels first; in memory it stays as it is
    relu: bool = False  # computed by a ReLU: its gradient must be zero where it is not positive
    wanted: bool = True  # whether its gradient is needed
    border: int = 0
    grad_border: int = 0
    stride: int = 0
    of: Value | None = None  # another value, whose data this is; the gradient is its own
    data: Tensor = field(init=False, repr=False)
    grad: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # 16 is the least width of the tensor cores' operands.
        self.stride = self.stride or 16 * math.ceil(self.channels / 16)

    def bordered(self, width: int) -> None:
        """Ask for a border at least as wide around the data."""
        if self.of is not None:
            self.of.bordered(width)
        self.border = max(self.border, width)

    @property
    def at(self) -> Place:
        return self.of.at if self.of is not None else Place(self.height, self.width, self.stride, self.border)

    @property
    def grad_at(self) -> Place:
        return Place(self.height, self.width, self.stride, self.grad_border)

    @property
    def pixels(self) -> int:
        return self.height * self.width

    def bytes(self, batch: int, width: int) -> int:
        """What one client's share takes, with `width` bytes an element."""
        own = 0 if self.of is not None else self.at.image
        return batch * width * (own + (self.grad_at.image if self.wanted else 0))

    def allocate(self, clients: int, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Zeros once; borders are never written again, and padded channels only with zeros."""
        if self.of is not None:
            self.data = self.of.data
        else:
            self.data = torch.zeros(clients, batch, self.at.image, dtype=dtype, device=device)
        if self.wanted:
            self.grad = torch.zeros(clients, batch, self.grad_at.image, dtype=dtype, device=device)

    def as_torch(self, buffer: Tensor, place: Place, clients: int) -> Tensor:
        """A view [clients, batch, channels, height, width] of the data or the gradient, as torch orders it."""
        b, batch = place.border, buffer.shape[1]
        grid = buffer[:clients].view(clients, batch, place.height + 2 * b, place.width + 2 * b, place.pixel)
        inner = grid[:, :, b : b + place.height, b : b + place.width, : self.channels]
        return inner.permute(0, 1, 4, 2, 3)

    def positions(self) -> Tensor:
        """Where each of torch's flattened features lies in the unbordered buffer."""
        whole = torch.arange(self.pixels * self.stride).view(self.height, self.width, self.stride)
        return whole[:, :, : self.channels].permute(2, 0, 1).reshape(-1)
