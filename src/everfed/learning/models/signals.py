"""Small networks for what devices sense: spoken words and motion."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from everfed.checks import Checked, Count
from everfed.learning.models.images import GlobalMean, depthwise, normed, pointwise
from everfed.learning.models.shapes import image, signal


@dataclass(frozen=True)
class DsCnn(Checked):
    """The keyword spotter DS-CNN of Zhang et al., "Hello Edge" (2017), on (1, time, frequencies).

    A 10x4 convolution of stride 2, then `blocks` of a depthwise 3x3 and a 1x1 convolution, then the mean. The defaults
    are the paper's small network. Group normalisation replaces batch normalisation.

    width: channels.
    blocks: how many.
    groups: of the group normalisation.
    """

    width: Count = 64
    blocks: Count = 4
    groups: Count = 8

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _, _ = image(shape, "ds-cnn", least=4)
        stem = nn.Conv2d(channels, self.width, (10, 4), stride=2, padding=(5, 2), bias=False)
        layers = [normed(stem, self.groups), nn.ReLU()]
        for _ in range(self.blocks):
            for convolution in (depthwise(self.width), pointwise(self.width, self.width)):
                layers += [normed(convolution, self.groups), nn.ReLU()]
        return nn.Sequential(*layers, GlobalMean(), nn.Linear(self.width, outputs))


@dataclass(frozen=True)
class HarCnn(Checked):
    """Activity recognition from windows of sensor values (channels, length).

    Two convolutions of 5 with pooling, of `width` and twice as many channels, and one hidden layer.

    width: channels of the first convolution.
    hidden: units of the hidden layer.
    """

    width: Count = 32
    hidden: Count = 128

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, length = signal(shape, "har-cnn", least=4)
        return nn.Sequential(
            nn.Conv1d(channels, self.width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(self.width, 2 * self.width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(2 * self.width * (length // 4), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, outputs),
        )
