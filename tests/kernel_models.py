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
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(16, 8, 3, padding=1), nn.Tanh(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 16, CLASSES),
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


@st.composite
def drawn_models(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], int]:
    """(a chain of layers with random shapes, its sample shape, a batch size)."""
    channels, side = draw(st.integers(1, 6)), draw(st.integers(5, 9))
    shape = (channels, side, side)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.sampled_from([1, 3, 5]))
        padding = draw(st.integers(0, kernel - 1))
        if side + 2 * padding - kernel + 1 < 2:
            padding = kernel // 2
        out = draw(st.integers(1, 20))
        layers.append(nn.Conv2d(channels, out, kernel, padding=padding, bias=draw(st.booleans())))
        channels, side = out, side + 2 * padding - kernel + 1
        if draw(st.booleans()):
            layers.append(nn.ReLU())
        pool = draw(st.sampled_from(["max", "mean", "none"]))
        window, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        if pool == "max" and side >= window:
            pad = draw(st.integers(0, window // 2))
            layers.append(nn.MaxPool2d(window, stride, pad))
            side = (side + 2 * pad - window) // stride + 1
        elif pool == "mean" and side >= window:
            layers.append(nn.AvgPool2d(window, stride))
            side = (side - window) // stride + 1
    layers.append(nn.Flatten())
    features = channels * side * side
    if draw(st.booleans()):
        hidden = draw(st.integers(1, 40))
        layers += [nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(draw(st.sampled_from([0.0, 0.4])))]
        features = hidden
    return chain(*layers, nn.Linear(features, CLASSES)), shape, draw(st.integers(1, 9))
