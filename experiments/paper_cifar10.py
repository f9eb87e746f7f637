"""The paper's figure on CIFAR-10, the controls that explain it, and a small grid: every number of docs/results.

    python experiments/paper_cifar10.py figure    # = everfed compare paper-cifar10 --seeds 3
    python experiments/paper_cifar10.py controls  # controls A-E, with and without augmentation
    python experiments/paper_cifar10.py grid      # greedy and wait-for-all over batch and learning rate

Runs land in everfed-out/paper/<part>/runs and are resumed or skipped when started again. The default
precision, bf16, needs a GPU; --jobs runs share it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from everfed import config, presets, sweep
from everfed.stats import summarize

# (label, changes to the preset): what isolates one mechanism each.
CONTROLS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"method": "fedavg"}),
    ("greedy", {"method": "greedy"}),
    ("A: best-powered group only", {"method": "greedy", "fleet.offsets": [0, 10**6, 10**6, 10**6]}),
    ("B: fedavg, server lr 0.3375", {"method": "fedavg", "server_optimizer.lr": 0.3375}),
    ("C: greedy-normalized", {"method": "greedy-normalized"}),
    ("D: algorithm1-unscaled", {"method": "algorithm1-unscaled"}),
    ("E: fedavg on 12,500 images, 10 clients", {"method": "fedavg", "fleet.clients": 10, "data.train_limit": 12500}),
]
AUGMENTS: dict[str, dict[str, Any]] = {
    "crop+flip": {"kind": "crop-flip", "size": 24},
    "none": {"kind": "centre-crop", "size": 24},
}


def planned(changes: dict[str, Any], seeds: list[int], root: Path, shared: dict[str, Any]) -> list[sweep.Planned]:
    raw = presets.content("paper-cifar10")
    for key, value in {**shared, **changes}.items():
        config.change(raw, key, value)
    return sweep.plan_runs(raw, {}, seeds, root)


def parts(part: str, root: Path, shared: dict[str, Any]) -> list[tuple[str, list[sweep.Planned]]]:
    if part == "figure":
        return [(m, planned({"method": m}, [0, 1, 2], root, shared)) for m in sweep.COMPARED]
    if part == "controls":
        return [
            (f"{label} | {name}", planned({**changes, "data.augment": augment}, [0], root, shared))
            for name, augment in AUGMENTS.items()
            for label, changes in CONTROLS
        ]
    return [
        (
            f"{method} | batch {batch} | lr {lr}",
            planned({"method": method, "batch_size": batch, "client.lr": lr}, [0], root, shared),
        )
        for method in ("greedy", "wait-for-all")
        for batch in (10, 50, 250)
        for lr in (0.0003, 0.001, 0.003)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["figure", "controls", "grid"])
    parser.add_argument("--out", type=Path, default=Path("everfed-out/paper"))
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    shared = {"precision": options.precision, "device": options.device, "rounds": options.rounds}
    rows = parts(options.part, options.out / options.part / "runs", shared)
    runs = [run for _, group in rows for run in group]
    began, last = time.monotonic(), [0.0]

    def show(progress: sweep.Progress) -> None:
        if progress.note or time.monotonic() - last[0] > 15:
            last[0] = time.monotonic()
            run = runs[progress.run]
            where = f"{run.experiment.method} seed {run.experiment.seed} round {progress.round}"
            print(f"{last[0] - began:6.0f} s  {where}  {progress.accuracy}  {progress.note or ''}", flush=True)

    stored = {run.path: run for run in sweep.run_all(runs, jobs=options.jobs, checkpoint_s=120, on_progress=show)}
    table = {}
    for label, group in rows:
        done = [stored[run.folder] for run in group]
        finals = [run.final.accuracy for run in done if run.final and run.final.accuracy is not None]
        table[label] = {**summarize(finals).to_dict(), "values": finals, "state": [run.state for run in done]}
        sd = table[label]["sd"]
        words = "1 seed" if sd is None else f"± {100 * sd:.1f} (sd)"
        print(f"{label:55s} {100 * table[label]['mean']:5.1f} {words}  {finals}", flush=True)
    summary = {
        "seconds": time.monotonic() - began,
        "settings": {k: str(v) for k, v in vars(options).items()},
        "table": table,
    }
    (options.out / f"{options.part}.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
