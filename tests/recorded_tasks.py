"""Models and data of the recorded runs that experiment files have no words for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS = 6


def write_trace(folder: Path) -> None:
    """A recorded supply: two days by the hour, in watts."""
    rows = [f"2024-06-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z,{(hour * 7) % 5 * 0.25}" for hour in range(48)]
    (folder / "supply.csv").write_text("time,power_w\n" + "\n".join(rows) + "\n")


def _lines(strange: bool = False) -> list[tuple[Any, Any]]:
    """Regression: each client has a line of its own; a strange one's samples are too large to square."""
    chance = np.random.default_rng(1)
    data = []
    for client in range(CLIENTS):
        x = chance.normal(size=(9 + client, 3)).astype(np.float32)
        if strange and client == 1:
            x *= np.float32(1e25)
        data.append((x, (x.sum(1, keepdims=True) * 0.1 * client).astype(np.float32)))
    return data


def _linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(3, 1)


class _Point(nn.Module):
    """Its parameter is its output: with squared error, each client's loss is a quadratic around its own mean."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return self.at.expand(len(x), 3) + 0.0 * x


def _quadratics() -> list[tuple[Any, Any]]:
    x = [np.full((4, 3), float(client), np.float32) for client in range(CLIENTS)]
    return [(part, part + np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)) for part in x]


def _pictures() -> list[tuple[Any, Any]]:
    """Images of 8x8 in five classes."""
    chance = np.random.default_rng(2)
    sizes = range(7, 7 + CLIENTS)
    return [(chance.integers(0, 256, (n, 3, 8, 8), dtype=np.uint8), np.arange(n) % 5) for n in sizes]


def _conv(side: int, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * (side // 2) ** 2, 5))


class _Text(nn.Module):
    """An LSTM with dropout that scores the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.drop = nn.Embedding(9, 4), nn.Dropout(0.2)
        self.lstm, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 9)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = self.out(self.lstm(self.drop(self.embedding(tokens)) * mask[..., None])[0])
        return scores


def _texts() -> list[tuple[Any, Any]]:
    chance = np.random.default_rng(6)
    data = []
    for client in range(CLIENTS):
        tokens = chance.integers(0, 9, (6 + client, 5))
        mask = np.arange(5) < chance.integers(2, 6, (len(tokens), 1))
        data.append(({"tokens": tokens, "mask": mask}, np.where(mask, (tokens + 1) % 9, -100)))
    return data


# name: (model, samples of each client, settings of the simulation; augment: how the samples are cropped)
TASKS: dict[str, Any] = {
    "regression": lambda: (_linear(), _lines(), {}),
    "quadratic": lambda: (_Point(), _quadratics(), {}),
    "tokens": lambda: (_Text(), _texts(), {}),
    "own-loss": lambda: (_linear(), _lines(), {"loss": nn.functional.smooth_l1_loss}),
    "strange-client": lambda: (_linear(), _lines(strange=True), {"on_divergence": "skip"}),
    "dropout": lambda: (_conv(8, 0.3), _pictures(), {}),
    "centre-crop": lambda: (_conv(6), _pictures(), {"augment": ("centre-crop", 6)}),
    "crop-flip": lambda: (_conv(6), _pictures(), {"augment": ("crop-flip", 6)}),
    "little-memory": lambda: (_conv(8), _pictures(), {"memory_budget": 60_000}),
}
