"""How much faster the batched trainer is than one client at a time, on the digits models.

Both trainers run the same rounds in one process, alternating, so that the ratio is fair whatever
else the machine does. Run: python benchmarks/trainers.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import everfed as ef


def simulation(model: str, clients: int, trainer: str) -> ef.Run:
    data = ef.load("digits").partition(clients, "iid")
    fleet = ef.Fleet.from_cycles(np.ones(clients, int))
    settings = {"rounds": 1000, "batch_size": 10, "client": ef.SGD(0.1), "device": "cpu"}
    return ef.start(model, data, fleet, "fedavg", trainer=trainer, **settings)


def milliseconds(run: ef.Run, round: int) -> float:
    """One round's training of every client, without evaluation."""
    clients = np.arange(len(run.setup.data))
    began = time.perf_counter()
    for _ in run.source.trainer.train(run.server.params, clients, round):
        pass
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; median of {repeats} rounds, 5 local steps\n")
    print("| model | participants | one by one, ms | batched, ms | ratio |")
    print("|---|---|---|---|---|")
    for model in ("mlp", "small-cnn"):
        for clients in (10, 40, 400):
            slow, fast = (simulation(model, clients, trainer) for trainer in ("one-by-one", "batched"))
            milliseconds(fast, 0)  # warm up: the first call allocates
            times = [(milliseconds(slow, r), milliseconds(fast, r)) for r in range(repeats)]
            one, many = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"| {model} | {clients} | {one:.1f} | {many:.1f} | {one / many:.1f} |", flush=True)


if __name__ == "__main__":
    main()
