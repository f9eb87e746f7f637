"""A model's parameters as one flat vector, and back.

Clients are rows of a matrix [clients, parameters]: one operation then updates, scales or averages
all parameters of all participants, and per-client optimiser state is gathered by row.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from everfed.errors import InputError, first_line
from everfed.learning.hooks import copy_hooks


class Layout:
    """Where each trainable parameter of a module lies in the flat vector."""

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trainable]
        self.shapes = [p.shape for _, p in trainable]
        self.sizes = [p.numel() for _, p in trainable]
        self.size = sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters, [size]."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by parameter name. One split, so that its gradient is one concatenation."""
        parts = flat.split(self.sizes)
        return {n: part.view(shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def shapes_by_name(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in zip(self.names, self.shapes, strict=True)}

    def load(self, flat: Tensor, module: nn.Module) -> None:
        """Copy a flat vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.unflatten(flat).items():
                parameters[name].copy_(value)


def copied(module: nn.Module, device: torch.device | None = None) -> nn.Module:
    """A copy to train, which shares the frozen parameters: nobody writes into them, and they may be most of the model.

    device: where the copy will be moved, so that only what lies there already can be shared.
    """
    frozen = [p for p in module.parameters() if not p.requires_grad and device in (None, p.device)]
    known: dict[int, Any] = {id(p): p for p in frozen}
    for layer in module.modules():
        for value in vars(layer).values():
            # Computed from weights, as by torch.nn.utils.weight_norm, which computes it anew at every call.
            if isinstance(value, Tensor) and not value.is_leaf:
                known[id(value)] = value.detach().clone()
    made = copy.deepcopy(module, known)
    copy_hooks(module, made)
    for layer in made.modules():
        if isinstance(layer, nn.RNNBase):  # a copy's weights lie apart, which cuDNN would warn of at every call
            layer.flatten_parameters()
    return made


def own_copy(module: nn.Module, device: torch.device | None = None) -> nn.Module:
    """The same of a user's module, which may hold what cannot be copied."""
    try:
        return copied(module, device)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the model {type(module).__name__} cannot be copied, as training needs it ({first_line(error)}); keep "
            "open files, modules of Python and tensors that were computed from others out of its attributes."
        ) from error
