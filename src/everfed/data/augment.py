"""What happens to stored images before a model sees them, on the device, per client.

An augmentation turns uint8 images [..., channels, height, width] into float inputs: one way for
training, where chance comes as words of the counter-based generator, and one for evaluation.
Each is a small class and a row in `AUGMENTS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from everfed import registry
from everfed.checks import Checked, Count
from everfed.errors import InputError


class Augment(Protocol):
    """The shape of every augmentation; `AUGMENTS` lists them. Fields are its options."""

    random: ClassVar[bool]  # whether `train` uses its words

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a sample as the model sees it."""
        ...

    def train(self, images: Tensor, words: Tensor) -> Tensor:
        """Training inputs. words: four random 32-bit integers an image, [..., 4]."""
        ...

    def evaluate(self, images: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Plain:
    """Bytes become floats in [0, 1], nothing else."""

    random: ClassVar[bool] = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return stored

    def train(self, images: Tensor, words: Tensor) -> Tensor:
        return self.evaluate(images)

    def evaluate(self, images: Tensor) -> Tensor:
        return images.to(torch.float32) / 255.0 if images.dtype == torch.uint8 else images


@dataclass(frozen=True)
class CentreCrop(Checked):
    """The middle of every image, standardised; no chance."""

    random: ClassVar[bool] = False
    size: Count = 24  # pixels of an edge

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        if len(stored) != 3 or min(stored[1:]) < self.size:
            raise InputError(f"a crop of {self.size}x{self.size} does not fit samples of shape {stored}.")
        return stored[0], self.size, self.size

    def train(self, images: Tensor, words: Tensor) -> Tensor:
        return self.evaluate(images)

    def evaluate(self, images: Tensor) -> Tensor:
        top, left = ((n - self.size) // 2 for n in images.shape[-2:])
        return standardize(images[..., top : top + self.size, left : left + self.size])


@dataclass(frozen=True)
class CropFlip(CentreCrop):
    """A random crop, mirrored half of the time, standardised; the centre crop for evaluation."""

    random: ClassVar[bool] = True

    def train(self, images: Tensor, words: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        flat = images.reshape(-1, *images.shape[-3:])
        w = words.reshape(-1, 4)
        top = (w[:, 0] * (height - self.size + 1)) >> 32
        left = (w[:, 1] * (width - self.size + 1)) >> 32
        mirrored = (w[:, 2] & 1).bool()
        along = torch.arange(self.size, device=images.device)
        columns = torch.where(mirrored[:, None], self.size - 1 - along, along) + left[:, None]
        pixels = ((along + top[:, None])[:, :, None] * width + columns[:, None, :]).flatten(1)
        channels = flat.shape[1]
        cropped = flat.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1))
        return standardize(cropped.view(*images.shape[:-2], self.size, self.size))


AUGMENTS: dict[str, type[Any]] = {"plain": Plain, "centre-crop": CentreCrop, "crop-flip": CropFlip}
registry.table("augment", AUGMENTS, Augment)


def standardize(images: Tensor) -> Tensor:
    """Zero mean and unit variance for each image; flat ones are divided by 1/sqrt(pixels), not by 0."""
    x = images.to(torch.float32)
    mean = x.mean(dim=(-3, -2, -1), keepdim=True)
    centred = x - mean
    deviation = centred.square().mean(dim=(-3, -2, -1), keepdim=True).sqrt()
    return centred / deviation.clamp_min(1.0 / math.sqrt(math.prod(images.shape[-3:])))
