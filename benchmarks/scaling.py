"""What a round costs as clients, participants and parameters grow, on synthetic data made on demand.

python benchmarks/scaling.py million                      # a million clients, 200 rounds
python benchmarks/scaling.py clients                      # 1e3 to 1e6 clients, about 1,000 participants a round
python benchmarks/scaling.py participants                 # 10 to 10,000 participants of 100,000 clients
python benchmarks/scaling.py parameters                   # models of 1e3 to 1e7 parameters, 20 participants a round
python benchmarks/scaling.py clients participants parameters --json points.json --plot scaling.png

Each point runs in a process of its own, so that its peak memory is its own. `--threads 2` lets torch use two cores.
A second of CPU time is counted on every core that works; on a busy machine it tells more than the clock does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

TABLES = ("million", "clients", "participants", "parameters")
INPUTS, CLASSES = 64, 10


def points(table: str, rounds: int) -> list[dict[str, int]]:
    """The settings of a table's rows; width 0: the built-in mlp."""
    if table == "million":
        return [{"clients": 1_000_000, "participants": 979, "width": 0, "rounds": rounds or 200}]
    if table == "clients":
        sizes = (1_000, 10_000, 100_000, 1_000_000)
        return [{"clients": n, "participants": min(n, 1000), "width": 0, "rounds": rounds or 15} for n in sizes]
    if table == "participants":
        sizes = (10, 100, 1_000, 10_000)
        return [{"clients": 100_000, "participants": p, "width": 0, "rounds": rounds or 8} for p in sizes]
    widths = (13, 133, 1_333, 13_333, 133_333)
    return [{"clients": 1_000, "participants": 20, "width": w, "rounds": rounds or 4} for w in widths]


def longest_cycle(clients: int, participants: int) -> int:
    """K such that with the cycles 1..K, dealt round the clients, about so many take part in a round."""
    cycles = np.arange(1, clients + 1)
    rate = np.cumsum(1.0 / cycles) / cycles  # the mean of 1/E
    return int(cycles[np.argmin(np.abs(rate - participants / clients))])


def measure(point: dict[str, int], threads: int) -> dict[str, Any]:
    """One row, in this process."""
    import torch
    from torch import nn

    import everfed as ef
    from everfed.data.on_demand_synthetic import Synthetic

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", ef.EverfedWarning)
    began = time.perf_counter()
    longest = longest_cycle(point["clients"], point["participants"])
    fleet = ef.Fleet.from_cycles(np.resize(np.arange(1, longest + 1), point["clients"]))
    data = Synthetic().load().partition(point["clients"], "iid")
    width = point["width"]
    wide = nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, width or 1), nn.ReLU(), nn.Linear(width or 1, CLASSES))
    run = ef.start(
        wide if width else "mlp", data, fleet, rounds=point["rounds"], client=ef.SGD(0.2),
        local_steps=5, batch_size=10, eval_every=point["rounds"], device="cpu", trainer="batched",
    )  # fmt: skip
    set_up = time.perf_counter() - began
    cpu, wall, present, last, record = [], [], [], time.process_time(), None
    for record in run:
        wall.append(record.seconds)
        cpu.append(time.process_time() - last)
        last = time.process_time()
        present.append(len(record.participants))
    assert record is not None
    # Energy comes to all clients in round 0; a few rounds later the run is what it will be.
    steady = slice(min(2, len(wall) - 1), None)
    return {
        **point,
        "longest_cycle": longest,
        "parameters": run.setup.layout.size,
        "participants": float(np.mean(present[steady])),
        "cpu_s": float(np.median(cpu[steady])),
        "wall_s": float(np.median(wall[steady])),
        "set_up_s": set_up,
        "total_s": set_up + sum(wall),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "accuracy": record.metrics.accuracy if record.metrics else None,
    }


def in_a_process(point: dict[str, int], threads: int) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--point", json.dumps(point), "--threads", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def show(table: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{table}\n")
    print(
        "| clients | cycles | participants per round | parameters | CPU s per round | s per round | set-up, s "
        "| peak, GiB |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        cost = f"{r['cpu_s']:.3g} | {r['wall_s']:.3g} | {r['set_up_s']:.1f} | {r['peak_gib']:.2f}"
        size = f"{r['clients']:,} | 1–{r['longest_cycle']:,} | {r['participants']:,.0f} | {r['parameters']:,}"
        print(f"| {size} | {cost} |")
    if table == "million":
        r = rows[0]
        print(f"\n{r['rounds']} rounds in {r['total_s']:.0f} s, set-up included; test accuracy {r['accuracy']:.3f}.")


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """CPU seconds a round = d + clients * a + participants * (b + parameters * c), by relative least squares."""
    from scipy.optimize import nnls

    columns = np.array([terms(r) for r in rows])
    cost = np.array([r["cpu_s"] for r in rows])
    # What a client costs is small beside the others' errors: it is read off the largest fleets, at equal participants.
    alike = [r for r in rows if r["width"] == 0 and 900 < r["participants"] < 1100]
    sizes, costs = [r["clients"] for r in alike], [r["cpu_s"] for r in alike]
    a = max(float(np.polyfit(sizes, costs, 1)[0]), 0.0) if len(set(sizes)) > 1 else 0.0
    rest = columns[:, [0, 2, 3]] / cost[:, None]
    scale = rest.max(axis=0)
    d, b, c = nnls(rest / scale, 1.0 - a * columns[:, 1] / cost)[0] / scale
    errors = columns @ np.array([d, a, b, c]) / cost
    found = {"d": float(d), "a": a, "b": float(b), "c": float(c)}
    return {**found, "worst": float(max(errors.max(), 1 / errors.min()))}


def terms(row: dict[str, Any]) -> list[float]:
    return [1.0, row["clients"], row["participants"], row["participants"] * row["parameters"]]


def plot(tables: dict[str, list[dict[str, Any]]], model: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [name for name in tables if name != "million"]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.6 * len(shown), 3.2), squeeze=False, sharey=True)
    for axis, name in zip(axes[0], shown, strict=True):
        rows = tables[name]
        x = np.array([r[name] for r in rows])
        made = [float(np.dot(terms(r), [model[name] for name in "dabc"])) for r in rows]
        axis.loglog(x, [r["cpu_s"] for r in rows], "o", color="#0072b2", label="measured")
        axis.loglog(x, made, "-", color="#999999", label="model")
        axis.set_xlabel(name)
        axis.grid(True, which="major", alpha=0.3)
    axes[0][0].set_ylabel("CPU seconds a round")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--rounds", type=int, default=0, help="of every point, instead of its own number")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the points to this file, which --plot then draws")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(options.point, options.threads)))
        return
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"unknown table '{unknown[0]}'; choose from {', '.join(TABLES)}")
    known: dict[str, list[dict[str, Any]]] = {}
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())
    for table in options.tables:
        known[table] = [in_a_process(point, options.threads) for point in points(table, options.rounds)]
        show(table, known[table])
    if options.json:
        options.json.write_text(json.dumps(known, indent=1) + "\n")
    rows = [row for name, found in known.items() if name != "million" for row in found]
    if len(rows) > 4:
        model = fit(rows)
        d, a, b, c = (f"{model[name]:.3g}" for name in "dabc")
        print(f"\nCPU seconds a round = {d} + {a} x clients + participants x ({b} + {c} x parameters)")
        print(f"within a factor of {model['worst']:.2f}")
        if options.plot:
            plot(known, model, options.plot)


if __name__ == "__main__":
    main()
