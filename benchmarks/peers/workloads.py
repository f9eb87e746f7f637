"""The two workloads, as plain NumPy, and what every script of this folder has in common.

No framework is imported here, so that each script can use this file in an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CLIENTS = 40
LOCAL_STEPS = 5
CLASSES = 10
CROP = 24  # paper40 trains on 24x24 crops of its 32x32 images
PROBE = 2000  # samples on which the server's model is tried before and after, outside the timing

Arrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Workload:
    """One federated task: every client takes LOCAL_STEPS steps a round, the server averages."""

    name: str
    batch: int
    optimizer: str  # "adam" or "sgd", with fresh state in every round
    lr: float
    parameters: int  # of the model, to check that every framework trains the same one

    def clients(self) -> list[Arrays]:
        """One (x, y) a client. All clients hold equally many, so that weighted and plain means agree."""
        x, y = (_images if self.name == "paper40" else _digits)()
        return list(zip(np.split(x, CLIENTS), np.split(y, CLIENTS), strict=True))


WORKLOADS = {
    "paper40": Workload("paper40", batch=50, optimizer="adam", lr=1e-3, parameters=1_068_298),
    "digits40": Workload("digits40", batch=10, optimizer="sgd", lr=0.1, parameters=4_810),
}


def _images() -> Arrays:
    """50,000 random images of CIFAR-10's size. Each class has a tint, so that a falling loss can be seen."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 50_000)
    tints = rng.integers(0, 64, (CLASSES, 3, 1, 1), dtype=np.uint8)
    x = rng.integers(0, 192, (50_000, 3, 32, 32), dtype=np.uint8) + tints[y]
    return x, y


def _digits() -> Arrays:
    """scikit-learn's digits, shuffled; 1,760 of 1,797, which is 44 a client."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[: 44 * CLIENTS]
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)


def probe(clients: list[Arrays]) -> Arrays:
    """Some samples of every client."""
    each = PROBE // CLIENTS
    return np.concatenate([x[:each] for x, _ in clients]), np.concatenate([y[:each] for _, y in clients])


def arguments(description: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """The options of every script; `more` adds a script's own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=WORKLOADS, default="digits40")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before the timed ones")
    parser.add_argument("--threads", type=int, help="CPU cores to use; all unless said")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    options = parser.parse_args()
    if options.precision != "float32" and options.device == "cpu":
        parser.error("tf32 and bf16 are for GPUs")
    cores = sorted(os.sched_getaffinity(0))
    options.threads = min(options.threads or len(cores), len(cores))
    # Bound to its cores, a framework cannot take more, however it makes its threads and processes.
    os.sched_setaffinity(0, cores[: options.threads])
    return options


def report(
    peer: str,
    packages: list[str],
    options: argparse.Namespace,
    ms: list[float],  # of every round, the warm-up's included
    losses: tuple[float, float],  # before and after all rounds
    steps: int | None = None,  # local steps taken in all rounds, counted where they happen
    **more: Any,
) -> None:
    """Check that the work was done, and print the one line of JSON that the runner reads."""
    before, after = losses
    if not after < before:
        raise SystemExit(f"the loss did not fall: {before} before, {after} after")
    due = CLIENTS * LOCAL_STEPS * len(ms)
    if steps is not None and steps != due:
        raise SystemExit(f"{steps} local steps were taken, not {due}")
    timed = ms[options.warmup :]
    versions = {"python": platform.python_version()} | {name: version(name) for name in packages}
    result = {
        "peer": peer,
        "versions": versions,
        "workload": options.workload,
        "device": options.device,
        "precision": options.precision,
        "ms_per_round": statistics.median(timed),
        "ms_each": [round(t, 3) for t in timed],
        "ms_warmup": [round(t, 3) for t in ms[: options.warmup]],
        "loss_before": before,
        "loss_after": after,
        "threads": options.threads,
    }
    print(json.dumps(result | more), flush=True)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # used from its source, without being installed
        return str(importlib.import_module(package).__version__)
