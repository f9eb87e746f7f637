"""Milliseconds a round of the CIFAR-10 network on a GPU, everything of a round included.

    python benchmarks/gpu.py rounds     # by precision, participants and trainer
    python benchmarks/gpu.py start      # process start to the first finished round, cold and warm kernel cache
    python benchmarks/gpu.py many       # 2,000 participants in one round, in chunks
    python benchmarks/gpu.py large      # 1,000 participants a round out of 10,000 clients, against 40 in a round
    python benchmarks/gpu.py flight     # 1,000 clients, about 40 at work: updates a second, with and without rounds
    python benchmarks/gpu.py recorded   # models without kernels: batched by torch.func, with and without CUDA graphs
    python benchmarks/gpu.py figure     # four methods, 1,000 rounds, evaluation every 20 (needs CIFAR-10)

Workload: 1,250 uint8 images of 32x32 a client, 5 Adam steps of batch 50, state kept per client,
random crop to 24x24 and flip, 1,068,298 parameters. Times are medians over rounds of a whole
run: schedule, sampling, augmentation, local steps, averaging, the round's record.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402

import everfed as ef  # noqa: E402
from everfed.data.augment import CropFlip  # noqa: E402


def images(clients: int, each: int = 1250) -> ef.FederatedData:
    """Random bytes: speed does not depend on what they show."""
    chance = np.random.default_rng(0)
    x = chance.integers(0, 256, (each, 3, 32, 32), dtype=np.uint8)
    data = ef.from_arrays([(x, chance.integers(0, 10, each)) for _ in range(clients)])
    return replace(data, augment=CropFlip(24))


def simulation(fleet: ef.Fleet, method: str, rounds: int, precision: str, trainer: str, **more: Any) -> ef.Run:
    settings = {"rounds": rounds, "batch_size": 50, "client": ef.Adam(1e-3), "eval_every": rounds}
    settings |= {"device": "cuda", "precision": precision, "trainer": trainer, **more}
    each = settings.pop("each", 1250)
    return ef.start("mcmahan-cnn", images(len(fleet), each), fleet, method, **settings)


def timed(run: ef.Run, skip: int) -> tuple[float, float, float]:
    """(median ms a round, its interquartile range, mean participants)."""
    records = list(run)[skip:-1]
    ms = [1000 * r.seconds for r in records]
    low, middle, high = statistics.quantiles(ms, n=4)
    return middle, high - low, statistics.mean(len(r.participants) for r in records)


def rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    fleets = {"40": ([1] * 40, "fedavg"), "14": ([1] * 14, "fedavg"), "10": ([1] * 10, "fedavg")}
    fleets["13.5 on average"] = ([1, 5, 10, 20] * 10, "algorithm1")
    for trainer in options.trainers:
        for precision in options.precisions:
            for name, (cycles, method) in fleets.items():
                fleet = ef.Fleet.from_cycles(np.array(cycles))
                run = simulation(fleet, method, options.rounds, precision, trainer)
                ms, spread, _ = timed(run, skip=options.rounds // 2)
                rows.append(
                    {"trainer": trainer, "precision": precision, "participants": name, "ms": ms, "spread": spread}
                )
                print(f"| {trainer} | {precision} | {name} | {ms:.2f} | {spread:.2f} |", flush=True)
                del run
                torch.cuda.empty_cache()
    return rows


def start(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("cold", "warm", "warm again"):
            env = {**os.environ, "TRITON_CACHE_DIR": cache}
            began = time.perf_counter()
            told = subprocess.run([sys.executable, __file__, "first"], env=env, capture_output=True, text=True)
            print(told.stderr[-2000:], end="")
            whole = time.perf_counter() - began
            rows.append({"cache": kind, "seconds": whole, **json.loads(told.stdout.splitlines()[-1])})
            print(f"| {kind} | {whole:.1f} | {told.stdout.splitlines()[-1]} |", flush=True)
    return rows


def first(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One round in this process, from its start."""
    imported = time.perf_counter() - STARTED
    run = simulation(ef.Fleet.from_cycles(np.ones(40, int)), "fedavg", 10, "bf16", "kernels")
    ready = time.perf_counter() - STARTED
    next(iter(run))
    print(json.dumps({"imported_s": imported, "set_up_s": ready, "first_round_s": time.perf_counter() - STARTED}))
    return []


def many(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for clients in (400, 2000):
        for keep in (False, True):
            fleet = ef.Fleet.from_cycles(np.ones(clients, int))
            run = simulation(fleet, "fedavg", 6, "bf16", "kernels", keep_state=keep)
            torch.cuda.reset_peak_memory_stats()
            ms, _, _ = timed(run, skip=2)
            peak = torch.cuda.max_memory_allocated() / 2**30
            rows.append({"participants": clients, "kept_state": keep, "ms": ms, "peak_gib": peak})
            print(f"| {clients} | {keep} | {ms:.0f} | {peak:.1f} |", flush=True)
            del run
            torch.cuda.empty_cache()
    return rows


def large(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A thousand participants a round out of many clients, against a round of 40 clients times their numbers.

    Kept Adam state takes 8.5 MB a client here, and its table grows by doubling: 5,000 clients fit, 10,000 do not.
    """
    rows = []
    for precision in options.precisions:
        few, _, _ = timed(simulation(ef.Fleet.from_cycles([1] * 40), "fedavg", 60, precision, "kernels"), skip=20)
        for clients, cycle, keep in ((10_000, 10, False), (5_000, 5, True)):
            torch.cuda.empty_cache()
            fleet = ef.Fleet.from_cycles(np.full(clients, cycle))
            run = simulation(fleet, "algorithm1", 40, precision, "kernels", keep_state=keep, each=100)
            torch.cuda.reset_peak_memory_stats()
            ms, _, participants = timed(run, skip=25)  # by then every client has been met
            peak = torch.cuda.max_memory_allocated() / 2**30
            ideal = few * participants / 40
            row = {"precision": precision, "clients": clients, "kept_state": keep, "participants": participants}
            rows.append({**row, "ms": ms, "ms_of_40": few, "ideal_ms": ideal, "peak_gib": peak})
            cells = f"{participants:.0f} | {ms:.0f} | {1000 / ms:.1f} | {few:.2f} | {ms / ideal:.2f} | {peak:.1f}"
            print(f"| {precision} | {clients} | {keep} | {cells} |", flush=True)
            del run
    return rows


def flight(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Asynchronous clients against rounds of about as many: each a unit of energy with chance 1/25 a round."""
    rows = []
    fleet = ef.Fleet.from_cycles(np.full(1000, 25), arrivals="bernoulli")
    cases = {"rounds": ("greedy", ef.Work()), "one after the other": ("renewal", ef.Work(duration=1.0, spread=0.2))}
    cases["many at a moment"] = ("renewal", ef.Work(duration=1.0))
    for precision in options.precisions:
        first = None
        for name, (method, work) in cases.items():
            run = simulation(fleet, method, options.rounds, precision, "auto", each=100, work=work)
            records = list(run)[options.rounds // 2 : -1]
            updates = sum(len(r.participants) for r in records) / sum(r.seconds for r in records)
            first = first or updates
            row = {"precision": precision, "arrivals": name, "trainer": run.source.training().trainer}
            rows.append({**row, "updates_per_s": updates, "of_rounds": updates / first})
            print(f"| {precision} | {name} | {row['trainer']} | {updates:,.0f} | {updates / first:.2f} |", flush=True)
            del run
            torch.cuda.empty_cache()
    return rows


def recorded(options: argparse.Namespace) -> list[dict[str, Any]]:
    """40 clients, 5 steps of SGD with batches of 20, by the batched trainer: passes of Python, and recorded ones."""
    chance = np.random.default_rng(0)
    tokens = [(chance.integers(0, 80, (40, 80)), chance.integers(0, 80, (40, 80))) for _ in range(40)]
    models = {"char-lstm": tokens, "char-gpt": tokens}
    for name, shape in {"har-cnn": (6, 100), "ds-cnn": (1, 49, 10), "mobilenet-gn": (3, 32, 32)}.items():
        models[name] = [(chance.random((40, *shape), np.float32), chance.integers(0, 10, 40)) for _ in range(40)]
    rows = []
    for precision in options.precisions:
        for name, pairs in models.items():
            ms = {}
            for way in ("plain", "recorded"):
                run = ef.start(name, ef.from_arrays(pairs), ef.Fleet.from_cycles([1] * 40), "fedavg", batch_size=20,
                               rounds=14, client=ef.SGD(0.01), device="cuda", precision=precision, trainer="batched",
                               check_trainer=False, eval_every=14)  # fmt: skip
                if way == "plain":
                    run.source.trainer.gradients = run.source.trainer._gradients
                ms[way], _, _ = timed(run, skip=5)
                said = run.source.trainer.explain()[0]
                del run
                torch.cuda.empty_cache()
            rows.append({"precision": precision, "model": name, **ms, "trainer": said})
            ratio = ms["plain"] / ms["recorded"]
            print(
                f"| {precision} | {name} | {ms['plain']:.1f} | {ms['recorded']:.1f} | {ratio:.1f} | {said[-60:]} |",
                flush=True,
            )
    return rows


def figure(options: argparse.Namespace) -> list[dict[str, Any]]:
    from everfed.data.images import Cifar10
    from everfed.learning.models import McMahanCnn
    from everfed.run.experiment import Experiment
    from everfed.run.fleets import CycleFleet

    rows = []
    shared = Experiment(
        data=Cifar10(augment=CropFlip(24)), split=ef.SPLITS["iid"](), fleet=CycleFleet(), model=McMahanCnn(),
        client=ef.Adam(1e-3), rounds=options.rounds, batch_size=50, eval_every=20, device="cuda", precision="bf16",
    )  # fmt: skip
    for method in ("algorithm1", "greedy", "wait-for-all", "fedavg"):
        began = time.perf_counter()
        records = list(ef.start(shared.with_method(method)))
        seconds = time.perf_counter() - began
        accuracy = records[-1].metrics.accuracy if records[-1].metrics else None
        rows.append({"method": method, "seconds": seconds, "accuracy": accuracy})
        print(f"| {method} | {seconds:.1f} | {accuracy} |", flush=True)
    rows.append({"method": "all, from process start", "seconds": time.perf_counter() - STARTED, "accuracy": None})
    print(f"| all, from process start | {rows[-1]['seconds']:.1f} | |")
    return rows


def main() -> None:
    parts = {"rounds": rounds, "start": start, "first": first, "many": many, "large": large, "flight": flight}
    parts |= {"recorded": recorded, "figure": figure}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "tf32", "float32"])
    parser.add_argument("--trainers", nargs="+", default=["kernels"])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    rows = parts[options.part](options)
    if options.json:
        told = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
