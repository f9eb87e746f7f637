"""Pretrained weights, and small trained parts (LoRA) beside frozen layers.

Hu et al. (2021): of a linear layer's weight W only a product of low rank is trained, W + scale * B A. Clients share the
frozen W and send A and B alone.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from everfed.errors import InputError, first_line, some
from everfed.files import read_file

# alpha / rank in the words of the paper, there mostly 1 or 2.
_SCALE = 2.0


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained product of rank `rank` added; at first it changes nothing."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + _SCALE * F.linear(F.linear(x, self.a), self.b)
        return out


def add_lora(module: nn.Module, rank: int, layers: str) -> nn.Module:
    """Freeze a module, and add adapters to all of its linear layers of this name."""
    module.requires_grad_(False)
    for name, layer in list(module.named_modules()):
        parent, _, last = name.rpartition(".")
        if isinstance(layer, nn.Linear) and last == layers:
            setattr(module.get_submodule(parent), last, LoraLinear(layer, rank))
    return module


def digest(path: str) -> str:
    """The SHA-256 of a file of weights."""
    return hashlib.sha256(_content(path)).hexdigest()


def load_pretrained(module: nn.Module, path: str, sha256: str = "") -> nn.Module:
    """Weights of the same model from a safetensors file, such as `everfed export` writes. sha256: what it must be."""
    content = _content(path)
    found = hashlib.sha256(content).hexdigest()
    if sha256 and found != sha256:
        raise InputError(
            f"the pretrained weights in '{path}' are not those that this run began with: their SHA-256 is {found}, "
            f"not {sha256}."
        )
    try:
        weights = load(content)
    except (SafetensorError, ValueError) as error:
        raise InputError(f"'{path}' is not a safetensors file ({first_line(error)}).") from error
    own = module.state_dict()
    wrong = [name for name in own.keys() | weights.keys() if _shape(own, name) != _shape(weights, name)]
    if wrong:
        raise InputError(
            f"the pretrained weights in '{path}' are of another model: {some(sorted(wrong))} differ; give the options "
            "that they were trained with."
        )
    module.load_state_dict(weights)
    return module


def _shape(weights: dict[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(weights[name].shape) if name in weights else None


def _content(path: str) -> bytes:
    try:
        return read_file(Path(path))
    except FileNotFoundError:
        raise InputError(
            f"there is no file '{path}' of pretrained weights; train a model and write it with 'everfed export'."
        ) from None
