"""What every layer of a lowered model offers, and what it is given.

A layer reads its source's data and writes its result's; backward it reads the result's gradient and
writes the source's, and the gradient of its own parameters, which the optimiser's kernel consumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from everfed.engine.values import Value


@dataclass(frozen=True)
class Step:
    """One local step of some clients: what layers need to know beyond their own buffers."""

    clients: int
    number: int  # of the step in the round
    weights: Tensor  # parameters as the kernels' operands, one client after another
    masters: Tensor  # the same in float32
    stride: int  # from one client's parameters to the next; 0: all are at the server's
    who: Tensor  # the clients' numbers
    first: Tensor  # each client's first iteration, on the device
    seed: int


@dataclass(frozen=True)
class Update:
    """What the optimiser's kernels need besides gradients, for the layer whose parameters start at `offset`."""

    pointers: Callable[[int], tuple[Tensor, ...]]
    scalars: tuple[float, ...]
    meta: dict[str, Any]


class Layer(Protocol):
    """The shape of every layer of a lowered model."""

    source: Value
    result: Value
    results: list[Value]  # all that it makes
    title: str  # of the operation it was made for
    offset: int  # where its parameters lie in a client's row
    size: int  # how many elements they take there; 0 without parameters
    splits: int  # parts in which its last parameter gradient was left
    gradient: Tensor  # [splits, clients, size]

    def step_with(self, step: Step, update: Update) -> bool:
        """Launch the gradient and the optimiser's step as one kernel, if there is one for this layer."""
        ...

    def parameters(self) -> dict[str, Tensor]:
        """For each torch parameter, where its elements lie, counted from the offset."""
        ...

    def bytes(self, batch: int) -> int:
        """Memory that one client takes here, besides the values."""
        ...

    def allocate(self, clients: int, batch: int, device: torch.device) -> None: ...

    def forward(self, step: Step) -> None: ...

    def backward(self, step: Step) -> None: ...


class Plain:
    """What layers without parameters share."""

    title = ""
    offset = size = splits = 0
    gradient = torch.empty(0)

    def __init__(self, source: Value, result: Value) -> None:
        self.source, self.result, self.results = source, result, [result]

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def step_with(self, step: Step, update: Update) -> bool:
        return False

    def bytes(self, batch: int) -> int:
        return 0

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        pass


def tile(n: int, most: int) -> int:
    """The largest power of two that divides n, up to `most`."""
    return min(n & -n, most)


def power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
