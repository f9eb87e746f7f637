"""What both sides of the duel share: the network, the clients' images, the options and the line they answer with.

Neither everfed nor pfl is imported here, so that each side can use this file in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from workloads import Arrays, version

EACH, BATCH = 50, 10  # images a client, and of a minibatch: one epoch is five steps
STEPS = EACH // BATCH
EVERY = 10  # rounds between evaluations
PARAMETERS = 1_626_442


def network() -> nn.Module:
    """pfl's simple CNN. Without padding: 32 pixels become 30 and 28, and 14 when pooled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )
        for part in model:
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(part.weight)  # as in pfl's benchmark
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    return model


def images(path: Path, clients: int) -> tuple[list[Arrays], Arrays]:
    """One (x, y) a client and the test set, from bytes; every channel is standardised by the training images."""
    stored = np.load(path)
    train, test = stored["train_x"], stored["test_x"]
    mean, deviation = (f(train, axis=(0, 2, 3), dtype=np.float64, keepdims=True) for f in (np.mean, np.std))

    def prepared(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return (x - mean.astype(np.float32)) / deviation.astype(np.float32)

    order = np.random.default_rng(0).permutation(len(train))[: clients * EACH]
    x, y = prepared(train[order]), stored["train_y"][order].astype(np.int64)
    split = list(zip(np.split(x, clients), np.split(y, clients), strict=True))
    return split, (prepared(test), stored["test_y"].astype(np.int64))


def arguments(description: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """The options of either side, which duel.py gives it; `more` adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--arrays", type=Path, required=True, help="an .npz of bytes, made by duel.py")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rate", type=float, required=True)
    for name in ("rounds", "clients", "cohort", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def due(done: int, rounds: int) -> bool:
    """Whether to evaluate when so many rounds are done: every tenth time, and at the end."""
    return done % EVERY == 0 or done == rounds


def answer(
    name: str,
    packages: list[str],
    first_at: float,  # time.time() when the first round was done
    accuracies: dict[int, float],  # by rounds done
    **more: Any,
) -> None:
    versions = {"python": platform.python_version()} | {package: version(package) for package in packages}
    result = {
        "peer": name,
        "versions": versions,
        "parameters": PARAMETERS,
        "first_at": first_at,
        "accuracy": list(accuracies.values())[-1],
        "accuracies": accuracies,
    }
    print(json.dumps(result | more), flush=True)
