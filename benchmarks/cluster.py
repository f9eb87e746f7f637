"""What it costs to share one run's rounds among Ray workers, against one process that does it all.

Both run the same rounds, in turns. 'shared' is the time of a round over the workers, 'ideal' that of one process
divided by the workers (or by the cores, where there are fewer), and 'overhead' what lies between: parameters out,
sums back, and Ray's own. Run: python benchmarks/cluster.py [--workers 2] [--rounds 20] [--address auto]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import torch

from everfed.learning.models import Mlp
from everfed.learning.optim import SGD, Adam
from everfed.ray import connect, sharded
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.loop import Run
from everfed.run.start import start

SIZES = ((40, 64), (400, 64), (40, 4096))  # participants, hidden units


def milliseconds(run: Run, round: int) -> float:
    """One round of every client, without evaluation."""
    clients = np.arange(len(run.setup.data))
    began = time.perf_counter()
    run.server.open(round, clients, np.ones(len(clients)))
    for trained in run.source.trainer.train(run.server.params, clients, round):
        run.server.add(trained)
    run.server.aggregate()
    return 1000 * (time.perf_counter() - began)


def compared(one: Run, run: Run, rounds: int) -> tuple[float, float]:
    """Medians over rounds, in turns, so that the ratio is fair whatever else the machine does."""
    times = [(milliseconds(one, r), milliseconds(run, r)) for r in range(rounds + 1)][1:]  # the first warms up
    alone, shared = (statistics.median(column) for column in zip(*times, strict=True))
    return alone, shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--address")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as many as a worker has
    cores = len(os.sched_getaffinity(0))
    print(
        f"{given.workers} workers on {cores} cores, one thread each; median of {given.rounds} rounds, 5 local steps\n"
    )
    print("| client state | participants | parameters | one process, ms | shared, ms | ideal, ms | overhead, ms |")
    print("|---|---|---|---|---|---|---|")
    with connect(given.address, cpus=given.workers) as cluster:
        for clients, hidden in SIZES:
            for name, client, place in (("none", SGD(0.1), "worker"), ("Adam, with its worker", Adam(), "worker"),
                                        ("Adam, with the driver", Adam(), "driver")):  # fmt: skip
                experiment = Experiment(
                    fleet=CycleFleet(clients, cycles=(1,)), model=Mlp(hidden), client=client, rounds=1000, device="cpu"
                )
                one = start(experiment)
                with sharded(experiment, cluster, given.workers, state=place) as run:
                    alone, shared = compared(one, run, given.rounds)
                ideal = alone / min(given.workers, cores)
                row = (
                    name,
                    clients,
                    f"{one.setup.layout.size:,}",
                    *(f"{v:.1f}" for v in (alone, shared, ideal, shared - ideal)),
                )
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
