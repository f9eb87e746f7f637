"""Two checkouts of everfed side by side: whole runs, planning and training, as ratios.

Each measurement runs in a process of its own, the two checkouts in turns, so that the ratio is fair whatever else
the machine does. Run: python benchmarks/versions.py OLD/src NEW/src [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

# Each prints one number of seconds. `begin` sets a run up under the name that the checkout has for it.
_SETUP = """
import time, warnings
import numpy as np, torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
import everfed as ef
def begin(experiment):
    return ef.start(experiment) if hasattr(ef, "start") else experiment.simulation()
def fastest(work, times):
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter(); work(); best = min(best, time.perf_counter() - began)
    return best
"""
MEASURED = {
    "digits40: 400 rounds of Algorithm 1": """
print(fastest(lambda: list(begin(ef.Experiment(device="cpu"))), 2))
""",
    "digits40: 60 rounds of FedAvg": """
print(fastest(lambda: list(begin(ef.Experiment(device="cpu", rounds=60).with_method("fedavg"))), 2))
""",
    "planning: 200,000 clients, 500 rounds": """
fleet = ef.Fleet.from_cycles(np.resize([1, 5, 10, 20], 200_000))
print(fastest(lambda: sum(len(s.clients) for s in ef.plan(fleet, ef.UniformWindow(), 500)), 2))
""",
    "trainer: batched, mlp, 40 clients": """
run = begin(ef.Experiment(device="cpu", trainer="batched"))
trainer, flat = (run.source.trainer, run.server.params) if hasattr(run, "source") else (run.trainer, run.flat)
print(fastest(lambda: [None for _ in trainer.train(flat, np.arange(40), 0)], 30))
""",
    "trainer: one by one, mlp, 40 clients": """
run = begin(ef.Experiment(device="cpu", trainer="one-by-one"))
trainer, flat = (run.source.trainer, run.server.params) if hasattr(run, "source") else (run.trainer, run.flat)
print(fastest(lambda: [None for _ in trainer.train(flat, np.arange(40), 0)], 10))
""",
    "import everfed": """
import subprocess, sys
print(fastest(lambda: subprocess.run([sys.executable, "-c", "import everfed"], check=True), 5))
""",
}


def seconds(source: str, code: str) -> float:
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, "-c", _SETUP + code], env=environment, capture_output=True, text=True, check=True
    )
    return float(out.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(f"| median of {given.repeats}, in turns | old, s | new, s | new / old |")
    print("|---|---:|---:|---:|")
    for name, code in MEASURED.items():
        times = [(seconds(given.old, code), seconds(given.new, code)) for _ in range(given.repeats)]
        old, new = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        print(f"| {name} | {old:.4g} | {new:.4g} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
