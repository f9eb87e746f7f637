"""How much faster the batched and the compiled trainer are than one client at a time, on digits, motion and text.

The trainers run the same rounds in one process, alternating, so that the ratios are fair whatever
else the machine does. Run: python benchmarks/trainers.py [--repeats 7] [--cpu]

'ready' is how long it takes to make the compiled trainer, with the compiler's cache empty. Ratios are to one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import everfed as ef

# Of models that digits are nothing for: samples of the shape of UCI HAR and of LEAF's Shakespeare, of random numbers.
MADE_UP = {"har-cnn": ((9, 128), 6), "char-lstm": ((80,), 80), "char-gpt": ((80,), 80)}


class NextCharacter(nn.Module):
    """A model of text as a classifier: 80 characters in, the scores of the next one out."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.inner = ef.build(model, *MADE_UP[model])

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.long())[:, -1]


def made_up(model: str, clients: int) -> ef.FederatedData:
    chance = np.random.default_rng(0)
    shape, classes = MADE_UP[model]

    def samples() -> tuple[np.ndarray, np.ndarray]:
        x = chance.integers(0, classes, (20, *shape)) if model.startswith("char") else chance.normal(size=(20, *shape))
        return x.astype(np.float32), np.arange(20) * classes // 20

    return ef.from_arrays([samples() for _ in range(clients)], test=samples())


def simulation(model: str, clients: int, trainer: str, steps: int) -> ef.Run:
    data = made_up(model, clients) if model in MADE_UP else ef.load("digits").partition(clients, "iid")
    made = NextCharacter(model) if model.startswith("char") else model
    fleet = ef.Fleet.from_cycles(np.ones(clients, int))
    settings = {"rounds": 1000, "local_steps": steps, "batch_size": 10, "client": ef.SGD(0.1), "device": "cpu"}
    return ef.start(made, data, fleet, "fedavg", trainer=trainer, **settings)


def milliseconds(run: ef.Run, round: int, clock: Callable[[], float]) -> float:
    """One round's training of every client, without evaluation."""
    clients = np.arange(len(run.setup.data))
    began = clock()
    for _ in run.source.trainer.train(run.server.params, clients, round):
        pass
    return 1000 * (clock() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=["mlp", "small-cnn", *MADE_UP])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="count the process's own time, for a machine that is busy")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    repeats, steps = arguments.repeats, arguments.steps
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; median of {repeats} rounds of {steps} steps\n"
    )
    print("| model | participants | one by one, ms | batched, ms | ratio | compiled, ms | ratio | ready, s |")
    print("|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        for clients in (40,) if model in MADE_UP else (10, 40, 400):
            runs = {name: simulation(model, clients, name, steps) for name in ("one-by-one", "batched")}
            began = time.perf_counter()
            ready = ""
            with contextlib.suppress(ef.InputError), tempfile.TemporaryDirectory() as cache:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
                runs["compiled"] = simulation(model, clients, "compiled", steps)
                ready = f"{time.perf_counter() - began:.0f}"
            for run in runs.values():
                milliseconds(run, 0, clock)  # warm up: the first call allocates
            times = [[milliseconds(run, r, clock) for run in runs.values()] for r in range(repeats)]
            one, *faster = (statistics.median(column) for column in zip(*times, strict=True))
            ratios = [f"{ms:.1f} | {one / ms:.1f}" for ms in faster] + ["refused | "] * (3 - len(runs))
            print(f"| {model} | {clients} | {one:.1f} | {' | '.join(ratios)} | {ready} |", flush=True)


if __name__ == "__main__":
    main()
