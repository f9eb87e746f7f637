"""Models and tasks for the kernels' tests, and the models that Hypothesis draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

import everfed as ef
from everfed.learning.layout import Layout
from everfed.learning.precision import set_precision
from everfed.learning.task import DeviceData, Task

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES = 5


def images(shape: tuple[int, ...], clients: int = 3, as_bytes: bool = False, augment: Any = None) -> ef.FederatedData:
    """Random samples; clients hold different numbers of them."""
    chance = np.random.default_rng(0)

    def samples(count: int) -> Any:
        if as_bytes:
            return chance.integers(0, 256, (count, *shape), dtype=np.uint8)
        return chance.normal(size=(count, *shape)).astype(np.float32)

    data = ef.from_arrays([(samples(7 + i), chance.integers(0, CLASSES, 7 + i)) for i in range(clients)])
    return replace(data, classes=CLASSES, **({"augment": augment} if augment else {}))


def task(model: nn.Module, data: ef.FederatedData, optimizer: Any, **settings: Any) -> Task:
    known = {"local_steps": 2, "batch_size": 4, "keep_state": True, "rounds": 10, "seed": 7, **settings}
    device = known.pop("device", DEVICE)
    set_precision(known.get("precision", "float32"), device)
    model = model.to(device)
    return Task(model, Layout(model), DeviceData(data, device), known.pop("loss", F.cross_entropy), optimizer, **known)


class Residual(nn.Module):
    """Two tensors are alive at once inside, and `view` asks for a size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.out = nn.Linear(8 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = F.max_pool2d(x + F.relu(self.b(x)), 2)
        return self.out(x.view(x.size(0), -1))


class Block(nn.Module):
    """A residual block; its shortcut has a convolution where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool = True) -> None:
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
        self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=not norm)
        self.n, self.m = (nn.GroupNorm(2, outputs) if norm else nn.Identity() for _ in range(2))
        same = stride == 1 and inputs == outputs
        self.s = (
            nn.Identity()
            if same
            else chain(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(1, outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.m(self.b(F.relu(self.n(self.a(x))))) + self.s(x))


class Inverted(nn.Module):
    """1x1, depthwise, 1x1, with a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.up = chain(nn.Conv2d(channels, inner, 1, bias=False), nn.GroupNorm(1, inner), nn.ReLU6())
        self.deep = chain(nn.Conv2d(inner, inner, 3, stride, 1, groups=inner), nn.GroupNorm(2, inner), nn.ReLU())
        self.down, self.stride = nn.Conv2d(inner, channels, 1), stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.deep(self.up(x)))
        return x + y if self.stride == 1 else y


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-1, -2))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x))) + x


class ReadOften(nn.Module):
    """Values that are read three times, twice by one operation, and by a linear layer beside a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 7, 5, padding=2)
        self.c, self.out = nn.Linear(7 * 36, CLASSES), nn.Linear(7 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.a(x))
        y = self.b(x)
        y = y + y
        return self.out((x + y).add(x).flatten(1)) + self.c(x.flatten(1))


class ChangedInPlace(nn.Module):
    """The shortcut reads what the ReLU has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6 * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.b(F.relu(x, inplace=True))
        y += x
        return self.out(y.flatten(1))


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


# name: (model, sample shape, data options)
MODELS: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "linear": (lambda: chain(nn.Linear(10, CLASSES)), (10,), {}),
    "mlp": (lambda: chain(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, CLASSES)), (10,), {}),
    "cnn": (
        lambda: chain(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(8 * 4, CLASSES),
        ),
        (3, 8, 8), {"as_bytes": True},
    ),
    "cropped": (
        lambda: chain(
            nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 9, CLASSES)
        ),
        (3, 8, 8), {"as_bytes": True, "augment": ef.AUGMENTS["crop-flip"](6)},
    ),
    "means and dropout": (
        lambda: chain(
            nn.Conv2d(3, 17, 3), nn.ReLU(), nn.Conv2d(17, 8, 3, padding=2), nn.ReLU(), nn.AvgPool2d(2),
            nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 16, 16, bias=False), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(16, CLASSES),
        ),
        (3, 8, 8), {},
    ),
    "in part": (
        lambda: chain(
            nn.Conv2d(3, 16, 3, padding=1), nn.Softplus(), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(16, 8, 3, padding=1), nn.ELU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 16, CLASSES),
        ),
        (3, 8, 8), {},
    ),
    "no pool": (
        lambda: chain(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(6 * 36, CLASSES),
        ),
        (3, 6, 6), {},
    ),
    "residual": (Residual, (3, 6, 6), {}),
    "norms": (
        lambda: chain(
            nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(4, 12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 20, 3, 2, 1, bias=False), nn.GroupNorm(5, 20, affine=False, eps=0.1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(80, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, CLASSES),
        ),
        (3, 7, 8), {},
    ),
    "strides": (
        lambda: chain(
            nn.Conv2d(3, 6, 5, 2, 2), nn.ReLU(), nn.Conv2d(6, 8, (3, 2), 3, (2, 0), bias=False), nn.ReLU(),
            nn.Conv2d(8, 4, 1, 2), nn.Flatten(), nn.Linear(8, CLASSES),
        ),
        (3, 13, 11), {"as_bytes": True},
    ),
    "resnet": (
        lambda: chain(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU(), Block(8, 8, 1), Block(8, 12, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
        ),
        (3, 6, 6), {"as_bytes": True},
    ),
    "mobile": (
        lambda: chain(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), Inverted(6, 18, 1), Inverted(6, 10, 2), Mean(),
            nn.Linear(6, CLASSES),
        ),
        (3, 5, 6), {},
    ),
    "a little of all": (
        lambda: chain(
            nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(1, 4), nn.ReLU(), Inverted(4, 4, 1), Mean(), nn.Linear(4, CLASSES)
        ),
        (3, 4, 4), {},
    ),
    "activations": (
        lambda: chain(
            nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 20), nn.GELU("tanh"), nn.Linear(20, 20), nn.SiLU(),
            nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 20), nn.Tanh(), nn.Dropout(0.2), nn.ReLU(),
            nn.Linear(20, CLASSES), nn.ReLU6(),
        ),
        (10,), {},
    ),
    "read often": (ReadOften, (3, 6, 6), {}),
    "changed in place": (ChangedInPlace, (3, 6, 6), {}),
    "residual around the input": (lambda: chain(Around(), nn.Flatten(), nn.Linear(108, CLASSES)), (3, 6, 6), {}),
    "ends in a convolution": (
        lambda: chain(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, CLASSES, 4), nn.Flatten()), (3, 6, 6), {},
    ),
    "starts with torch": (
        lambda: chain(nn.Tanh(), nn.Conv2d(3, 6, 3), nn.LeakyReLU(inplace=True), nn.Flatten(), nn.Linear(96, CLASSES)),
        (3, 6, 6), {},
    ),
    "a pool with ceil_mode": (
        lambda: chain(
            nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(), nn.Linear(54, CLASSES)
        ),
        (3, 8, 8), {},
    ),
}  # fmt: skip


class Added(nn.Module):
    """A residual connection around a convolution that keeps the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


# What may stand after any layer: nothing, one, or two.
_AFTER: list[Any] = [
    [], [], [nn.ReLU], [nn.ReLU], [nn.GELU], [nn.ReLU6], [nn.LeakyReLU], [nn.ReLU, nn.ReLU], [nn.Tanh, nn.ReLU],
    [nn.ReLU, nn.SiLU],
]  # fmt: skip


@st.composite
def drawn_models(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], int]:
    """(a chain of layers with random shapes, activations after any of them, its sample shape, a batch size)."""
    channels, side = draw(st.integers(1, 6)), draw(st.integers(5, 9))
    shape = (channels, side, side)
    layers: list[nn.Module] = []

    def add(layer: nn.Module) -> None:
        layers.append(layer)
        layers.extend(kind() for kind in draw(st.sampled_from(_AFTER)))

    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.sampled_from([1, 3, 5]))
        padding = draw(st.integers(0, kernel - 1))
        if side + 2 * padding - kernel + 1 < 2:
            padding = kernel // 2
        out, step = draw(st.integers(1, 20)), draw(st.sampled_from([1, 1, 2, 3]))
        groups = 1
        if layers and channels > 1 and draw(st.booleans()):
            out = groups = channels
        add(nn.Conv2d(channels, out, kernel, step, padding, bias=draw(st.booleans()), groups=groups))
        channels, side = out, (side + 2 * padding - kernel) // step + 1
        for kind in draw(st.permutations(["norm", "pool", "sum"])):
            window, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            if not draw(st.booleans()):
                continue
            if kind == "norm" and side > 2:  # of very few values the variance is hardly more than rounding
                groups = draw(st.sampled_from([n for n in range(1, channels + 1) if channels % n == 0]))
                add(nn.GroupNorm(groups, channels, affine=draw(st.booleans()), eps=0.01))
            elif kind == "sum":
                add(Added(channels))
            elif kind == "pool" and side >= window and draw(st.booleans()):
                pad = draw(st.integers(0, window // 2))
                add(nn.MaxPool2d(window, stride, pad))
                side = (side + 2 * pad - window) // stride + 1
            elif kind == "pool" and side >= window:
                add(nn.AvgPool2d(window, stride))
                side = (side - window) // stride + 1
    add(nn.Flatten())
    features = channels * side * side
    if draw(st.booleans()):
        hidden = draw(st.integers(1, 40))
        add(nn.Linear(features, hidden))
        add(nn.Dropout(draw(st.sampled_from([0.0, 0.4]))))
        features = hidden
    add(nn.Linear(features, CLASSES))
    layers.extend(draw(st.sampled_from([[], [nn.Identity()], [nn.Dropout(0.0)], [nn.Flatten()]])))
    return chain(*layers), shape, draw(st.integers(1, 9))
