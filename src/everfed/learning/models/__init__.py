"""Models by name, and the checks any user's module must pass.

Each model is a small class with `build(sample shape, outputs)`, and a row in `MODELS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from everfed import registry
from everfed.checks import Checked, Count
from everfed.errors import InputError
from everfed.learning.models.images import MobileNet, ResNet18
from everfed.learning.models.sequences import CharGpt, CharLstm
from everfed.learning.models.shapes import image
from everfed.learning.models.signals import DsCnn, HarCnn
from everfed.registry import lookup


class Model(Protocol):
    """The protocol of the models in `MODELS`. Fields are options.

    shape: of one sample; (length,) for tokens. outputs: the classes; for tokens the vocabulary, scored per position.
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module for samples of this shape, with torch's initial weights."""
        ...


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression: one linear layer."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


@dataclass(frozen=True)
class Mlp(Checked):
    """One hidden layer."""

    hidden: Count = 64  # units

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        inputs = math.prod(shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs))


@dataclass(frozen=True)
class SmallCnn:
    """Two 3x3 convolutions of 16 and 32 channels with pooling, for small images such as digits."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, height, width = image(shape, "small-cnn", least=4)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), outputs),
        )


@dataclass(frozen=True)
class McMahanCnn:
    """The CIFAR network of McMahan et al. (AISTATS 2017): 1,068,298 parameters at 24x24.

    conv 5x5x64, pool 3/2, conv 5x5x64, pool 3/2, 384, 192, classes; without the local response
    normalisation of the original, which has no parameters.
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, height, width = image(shape, "mcmahan-cnn", least=4)
        rows, columns = ((n + 1) // 2 for n in ((height + 1) // 2, (width + 1) // 2))
        return nn.Sequential(
            nn.Conv2d(channels, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * rows * columns, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, outputs),
        )


MODELS: dict[str, type[Any]] = {
    "logistic": Logistic,
    "mlp": Mlp,
    "small-cnn": SmallCnn,
    "mcmahan-cnn": McMahanCnn,
    "resnet18-gn": ResNet18,
    "mobilenet-gn": MobileNet,
    "ds-cnn": DsCnn,
    "har-cnn": HarCnn,
    "char-lstm": CharLstm,
    "char-gpt": CharGpt,
}
registry.table("model", MODELS, Model)


def build(name: str, shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """A model of the table for samples of this shape.

    name: one of `MODELS`.
    shape: of a sample, such as (1, 28, 28).
    outputs: classes, tokens or numbers.
    options: of the model, such as hidden=32.

    >>> import everfed as ef
    >>> sum(p.numel() for p in ef.build("mlp", (1, 8, 8), 10, hidden=32).parameters())
    2410
    """
    model: Model = lookup(MODELS, name, "model")(**options)
    return model.build(tuple(shape), outputs)


def check(module: nn.Module) -> None:
    """Reject modules that cannot be averaged or trained with other weights."""
    for name, layer in module.named_modules():
        where = f"layer '{name}' ({type(layer).__name__})" if name else f"the model ({type(layer).__name__})"
        if isinstance(layer, torch.jit.ScriptModule | nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise InputError(
                f"{where} cannot be trained with other weights; give the plain module that it was made from."
            )
        if any(t.is_meta for t in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            raise InputError(f"{where} is on the device 'meta' and has no weights; make it on the CPU.")
        if getattr(layer, "running_mean", None) is not None:
            raise InputError(
                f"{where} keeps running statistics, which scaled updates would corrupt (a variance can turn "
                "negative); use nn.GroupNorm instead."
            )
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise InputError(
                f"{where} has max_norm, which changes its weights in every forward pass, past the optimiser; "
                "leave max_norm out."
            )
        if getattr(layer, "sparse", False) and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise InputError(f"{where} has sparse gradients, which no trainer takes; leave sparse out.")
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InputError(f"the model {type(module).__name__} has no trainable parameters.")
    odd = {p.dtype for p in parameters} - {torch.float32}
    if odd:
        raise InputError(f"the model has parameters of {odd.pop()}; everfed trains float32 models: call model.float().")
