"""Dropout whose masks are a pure function of (seed, client, step, layer, element).

torch's own dropout draws from a global generator, so its masks would depend on how clients are
grouped, and a resumed run would differ. Inside `counted_dropout`, every call of torch's dropout
functions takes its mask from the counter-based generator instead, under vmap too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from everfed.random import Purpose, philox

# How many leading dimensions one mask value covers: dropout drops elements, dropoutNd whole channels.
_ELEMENTWISE = {F.dropout, torch.dropout}
_CHANNELWISE = {F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class counted_dropout(TorchFunctionMode):
    """Replace torch's dropout for one forward pass of one client (a scalar tensor, maybe vmapped)."""

    def __init__(self, seed: int, client: Tensor, step: int | Tensor, calls: int = 0) -> None:
        super().__init__()
        self.key = (seed & 0xFFFFFFFF, seed >> 32)
        self.client, self.step = client, step
        self.calls = calls  # dropout calls so far in this pass; not 0 for the later part of a model

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ELEMENTWISE or func in _CHANNELWISE:
            return self._drop(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(
        self,
        func: Callable[..., Any],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool = True,  # torch.dropout's name for `training`
    ) -> Tensor:
        if not (training and train) or p == 0.0:
            return input
        if p >= 1.0:
            return input * 0.0
        shape = list(input.shape)
        if func in _CHANNELWISE:
            spatial = _CHANNELWISE[func]
            shape[len(shape) - spatial :] = [1] * spatial
        keep = self._uniform(shape, input.device) >= p
        return input * keep / (1.0 - p)

    def _uniform(self, shape: list[int], device: torch.device) -> Tensor:
        count = 1
        for n in shape:
            count *= n
        # Each layer's call takes a block range of its own: the layer number fills the upper bits.
        block = torch.arange((count + 3) // 4, device=device) + (self.calls << 26)
        self.calls += 1
        counter = (torch.zeros_like(block) + self.step, block, self.client.expand(block.shape), int(Purpose.DROPOUT))
        words = torch.stack(philox(counter, self.key), dim=-1).reshape(-1)[:count]
        return (words.to(torch.float32) * 2.0**-32).reshape(shape)
