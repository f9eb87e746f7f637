"""Time and memory to plan a million clients for a thousand rounds, streaming.

Run: python benchmarks/planning.py [--clients 1000000] [--rounds 1000]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import everfed as ef


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    fleet = ef.Fleet.from_cycles(np.resize([1, 5, 10, 20], options.clients))
    began = time.perf_counter()
    participations, step = 0, None
    for step in ef.plan(fleet, ef.UniformWindow(), options.rounds):
        participations += len(step.clients)
    seconds = time.perf_counter() - began
    assert step is not None
    assert step.energy.violations == 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rate = options.clients * options.rounds / seconds / 1e6
    print("| clients | rounds | participations | seconds | million client-rounds a second | peak memory, GiB |")
    print("|---|---|---|---|---|---|")
    size = f"{options.clients:,} | {options.rounds:,} | {participations:,}"
    print(f"| {size} | {seconds:.1f} | {rate:.1f} | {peak:.2f} |")


if __name__ == "__main__":
    main()
