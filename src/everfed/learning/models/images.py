"""Residual networks for images of about 32x32, with group normalisation.

Batch normalisation keeps running statistics, which averages of scaled updates would corrupt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from everfed.checks import Checked, Count, Positive
from everfed.learning.models.shapes import image


def normed(convolution: nn.Conv2d, groups: int) -> nn.Sequential:
    """A convolution and its normalisation, in at most this many groups that the channels divide into."""
    channels = convolution.out_channels
    return nn.Sequential(convolution, nn.GroupNorm(math.gcd(groups, channels), channels))


def depthwise(channels: int, stride: int = 1) -> nn.Conv2d:
    """3x3, each channel by itself."""
    return nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)


def pointwise(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """1x1, across channels."""
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class GlobalMean(nn.Module):
    """The mean over all places of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = normed(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), groups)
        self.second = normed(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), groups)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else normed(pointwise(inputs, outputs, stride), groups)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


@dataclass(frozen=True)
class ResNet18(Checked):
    """ResNet-18 (He et al., CVPR 2016) for small images, with group normalisation (Wu & He, ECCV 2018).

    The stem is one 3x3 convolution without a pool, as is usual for 32x32: 11,173,962 parameters for 10 classes.

    width: channels of the first stage; later ones have two, four and eight times as many.
    groups: of the group normalisation.
    """

    width: Count = 64
    groups: Count = 32

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _, _ = image(shape, "resnet18-gn", least=8)
        layers = [normed(nn.Conv2d(channels, self.width, 3, padding=1, bias=False), self.groups), nn.ReLU()]
        inputs = self.width
        for stage in range(4):
            wide = self.width << stage
            layers += [
                _Residual(inputs, wide, 1 if stage == 0 else 2, self.groups),
                _Residual(wide, wide, 1, self.groups),
            ]
            inputs = wide
        return nn.Sequential(*layers, GlobalMean(), nn.Linear(inputs, outputs))


class _Inverted(nn.Module):
    """1x1 up, 3x3 depthwise, 1x1 down; a shortcut where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, groups: int) -> None:
        super().__init__()
        inner = inputs * expansion
        up = [normed(pointwise(inputs, inner), groups), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(
            *up, normed(depthwise(inner, stride), groups), nn.ReLU6(), normed(pointwise(inner, outputs), groups)
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.same else y


# (expansion, channels, blocks, stride of the first), as in the paper but for two strides that 32x32 has no room for.
_STAGES = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


@dataclass(frozen=True)
class MobileNet(Checked):
    """MobileNetV2 (Sandler et al., CVPR 2018) for small images, with group normalisation.

    width scales the channels of every layer: 2,236,682 parameters for 10 classes at width 1.

    width: a factor of the channels of every layer.
    groups: of the group normalisation.
    """

    width: Positive = 1.0
    groups: Count = 8

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _, _ = image(shape, "mobilenet-gn", least=16)
        stem, last = self._scaled(32), self._scaled(1280)
        return nn.Sequential(
            normed(nn.Conv2d(channels, stem, 3, padding=1, bias=False), self.groups),
            nn.ReLU6(),
            *self._blocks(stem),
            normed(pointwise(self._scaled(320), last), self.groups),
            nn.ReLU6(),
            GlobalMean(),
            nn.Linear(last, outputs),
        )

    def _blocks(self, inputs: int) -> Iterator[nn.Module]:
        for expansion, channels, blocks, stride in _STAGES:
            for block in range(blocks):
                wide = self._scaled(channels)
                yield _Inverted(inputs, wide, stride if block == 0 else 1, expansion, self.groups)
                inputs = wide

    def _scaled(self, channels: int) -> int:
        """A multiple of 8, so that groups of channels exist."""
        return max(8, round(channels * self.width / 8) * 8)
