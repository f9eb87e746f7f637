"""Clients with and without rounds, with rates tuned for each method: tables of accuracy, time and energy.

    python experiments/asynchronous.py           # tunes and compares, writes asynchronous.json and the tables
    python experiments/asynchronous.py digits    # one of the presets

Rates are chosen on held-out training samples under seeds 1000 and on; results are of the test set under seeds 0 and
on. All methods have the same fleet, energy and time; in the asynchronous ones, a client's work takes half a round, give
or take a fifth, where devices do not say how long it takes. Runs land in everfed-out/asynchronous and are resumed or
skipped when started again. The smartwatch and CIFAR-10 want a GPU.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from digits import arguments, compared, rated, tables

from everfed.run import config
from everfed.store import StoredRun
from everfed.studies import sweep
from everfed.studies.tuning import Tuned

ROOT = Path(__file__).parents[1]
OUT, RESULT = Path("everfed-out/asynchronous"), ROOT / "docs/results/asynchronous.json"
METHODS = ("algorithm1", "fedavg", "renewal", "renewal-discounted", "fedbuff", "fedasync", "area")
HALF = {"work": {"duration": 0.5, "spread": 0.2}}
# Rates to try, extended where the best lies at an end; seeds to try them on; seeds of the results; settings.
PRESETS: dict[str, tuple[list[float], range, range, dict[str, Any]]] = {
    "digits": ([0.2, 0.4, 0.8], range(1000, 1003), range(10), HALF),
    "solar-fleet": ([0.1, 0.2, 0.4], range(1000, 1002), range(5), {}),
    "smartwatch": ([0.1, 0.2, 0.4], range(1000, 1002), range(5), HALF),
    "cifar10-by-energy": ([0.05, 0.1, 0.2], range(1000, 1001), range(5), {**HALF, "precision": "bf16"}),
}
# Parts of the time at which accuracies are told.
PARTS = (0.1, 0.25, 0.5, 1.0)
# What one thing costs or saves: settings of renewal beside the others, at its own rate.
VARIED: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        f"work of {duration:g} rounds": {"work.duration": duration, "work.spread": 0.0}
        for duration in (0.0, 0.25, 0.5, 1.0)
    },
    "solar-fleet": {
        "all steps, costs as expected": {},
        "costs vary by 30 %, work without energy is lost": {"fleet.cost_spread": 0.3},
        "costs vary by 30 %, the steps done are sent": {"fleet.cost_spread": 0.3, "work.partial": "send"},
        "as many steps as the battery pays for": {"work.local_steps": "affordable"},
    },
}


def at(run: StoredRun, part: float) -> float:
    """The accuracy at a part of the time."""
    rounds, values = run.curve()
    return values[int(np.searchsorted(rounds, part * rounds[-1]))]


def against_time(labelled: Sequence[tuple[str, StoredRun]]) -> dict[str, Any]:
    """By method: accuracies at parts of the time, energy spent, and what arrivals are like."""
    found: dict[str, Any] = {}
    for method in dict.fromkeys(name for name, _ in labelled):
        runs = [run for name, run in labelled if name == method]
        row: dict[str, Any] = {
            "accuracy_at": {f"{part:g}": statistics.fmean(at(run, part) for run in runs) for part in PARTS},
            "spent": statistics.fmean(run.energy.spent for run in runs),
            "lost": statistics.fmean(run.energy.lost for run in runs),
        }
        stale = [record.arrived.staleness for run in runs for record in run.rounds if record.arrived]
        if stale:
            steps = [record.arrived.steps for run in runs for record in run.rounds if record.arrived]
            row["staleness"] = float(np.concatenate(stale).mean())
            row["steps"] = float(np.concatenate(steps).mean())
            row["versions"] = statistics.fmean(run.rounds[-1].arrived.version for run in runs if run.rounds[-1].arrived)
        found[method] = row
    return found


def stored(found: Tuned, seeds: range, out: Path, changes: dict[str, Any], method: Sequence[str], jobs: int) -> Any:
    content = found.content()
    for key, value in changes.items():
        config.change(content, key, value)
    runs = sweep.plan_runs(content, {"method": method}, seeds, out)
    return [(run.label, one) for run, one in zip(runs, sweep.run_all(runs, jobs=jobs), strict=True)]


def varied(found: Tuned, preset: str, seeds: range, jobs: int) -> dict[str, Any]:
    """Renewal under other settings."""
    result = {}
    for said, changes in VARIED.get(preset, {}).items():
        runs = [run for _, run in stored(found, seeds, OUT / preset / "varied", changes, ["renewal"], jobs)]
        (row,) = against_time([("renewal", run) for run in runs]).values()
        finals = [run.final for run in runs if run.final]
        worst = [min((final.group_accuracy or {"": float("nan")}).values()) for final in finals]
        row |= {"accuracy": [final.accuracy for final in finals], "worst_group": worst}
        row["arrivals"] = statistics.fmean(run.participations for run in runs)
        row["brownouts"] = statistics.fmean(run.energy.brownouts for run in runs)
        result[said] = row
    return result


def time_table(rows: dict[str, Any]) -> str:
    parts = " | ".join(f"{100 * part:g} %" for part in PARTS)
    lines = [
        f"| accuracy % after, of the time | {parts} | energy spent | arrivals stale by | versions |",
        "|---|" + "---:|" * (len(PARTS) + 3),
    ]
    for method, row in rows.items():
        cells = [f"{100 * value:.1f}" for value in row["accuracy_at"].values()]
        cells.append(f"{row['spent']:,.0f}")
        cells += [f"{row['staleness']:.1f}", f"{row['versions']:,.0f}"] if "staleness" in row else ["", ""]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def varied_table(rows: dict[str, Any]) -> str:
    lines = [
        "| renewal | accuracy % | worst group % | arrivals | mean steps | stale by | energy spent | lost |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for said, row in rows.items():
        score, worst = (100 * statistics.fmean(row[name]) for name in ("accuracy", "worst_group"))
        lines.append(
            f"| {said} | {score:.1f} | {worst:.1f} | {row['arrivals']:,.0f} | {row['steps']:.2f} | "
            f"{row['staleness']:.1f} | {row['spent']:,.0f} | {row['lost']:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = arguments(__doc__, PRESETS).parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for preset in options.presets:
        began = time.perf_counter()
        rates, tuned_on, seeds, more = PRESETS[preset]
        found = rated(preset, rates, tuned_on, OUT / preset, options.jobs, METHODS, **more)
        result = compared(found, seeds, OUT / preset, options.jobs)
        result["time"] = against_time(stored(found, seeds, OUT / preset / "runs", {}, METHODS, options.jobs))
        result["varied"] = varied(found, preset, seeds, options.jobs)
        result["seconds"] = round(time.perf_counter() - began)
        results[preset] = result
        RESULT.write_text(
            json.dumps({n: results[n] for n in PRESETS if n in results}, indent=1, allow_nan=False) + "\n"
        )
        print(f"\n## {preset}\n\n{tables(result)}\n\n{time_table(result['time'])}\n", flush=True)
        if result["varied"]:
            print(varied_table(result["varied"]), flush=True)


if __name__ == "__main__":
    main()
