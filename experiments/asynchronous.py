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
from digits import arguments, compared, rated, tables, trained

from everfed.store import StoredRun
from everfed.studies.tuning import Tuned

ROOT = Path(__file__).parents[1]
OUT, RESULT = Path("everfed-out/asynchronous"), ROOT / "docs/results/asynchronous.json"
METHODS = ("algorithm1", "fedavg", "renewal", "renewal-discounted", "fedbuff", "fedasync", "area")
HALF = {"work.duration": 0.5, "work.spread": 0.2}
# When each of the 40 clients gets its first energy, so that those of one cycle do not all begin at once.
SCATTERED = [(client // 4) * (1, 5, 10, 20)[client % 4] // 10 for client in range(40)]
# Rates to try, extended where the best lies at an end; seeds to try them on; seeds of the results; settings.
PRESETS: dict[str, tuple[list[float], range, range, dict[str, Any]]] = {
    "digits": ([0.2, 0.4, 0.8], range(1000, 1003), range(10), HALF),
    "digits-scattered": ([0.2, 0.4, 0.8], range(1000, 1003), range(10), {**HALF, "fleet.offsets": SCATTERED}),
    "solar-fleet": ([0.1, 0.2, 0.4], range(1000, 1002), range(5), {}),
    "smartwatch": ([0.1, 0.2, 0.4], range(1000, 1002), range(5), HALF),
    "cifar10-by-energy": ([0.05, 0.1, 0.2], range(1000, 1001), range(5), {**HALF, "precision": "bf16"}),
}
OF = {"digits-scattered": "digits"}  # the preset, where it has another name here
# Parts of the time at which accuracies are told.
PARTS = (0.1, 0.25, 0.5, 1.0)
# What one thing costs or saves: settings of renewal beside the others, each at a rate of its own.
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


def evaluated(run: StoredRun) -> list[tuple[float, float, float, float]]:
    """(round, energy spent by then, accuracy, worst group's accuracy) of each evaluation."""
    found = ((record.round + 1, record.energy.spent, record.metrics) for record in run.rounds if record.metrics)
    return [(when, spent, m.accuracy or 0.0, min((m.group_accuracy or {"": 0.0}).values())) for when, spent, m in found]


def at_time(run: StoredRun, part: float) -> tuple[float, float]:
    """Accuracy and worst group's, at the first evaluation from a part of the time on."""
    last = run.experiment.rounds
    return next(found[2:] for found in evaluated(run) if found[0] >= part * last)


def at_energy(run: StoredRun, joules: float) -> float | None:
    """The accuracy of the last evaluation before more energy was spent; None if there was none."""
    before = [found[2] for found in evaluated(run) if found[1] <= joules * (1.0 + 1e-9)]
    return before[-1] if before else None


def against_time(labelled: Sequence[tuple[str, StoredRun]]) -> dict[str, Any]:
    """By method: accuracies at parts of the time and of Algorithm 1's energy, and what arrivals are like."""
    found: dict[str, Any] = {}
    budget = [run.energy.spent for name, run in labelled if name == "algorithm1" and run.state == "done"]
    for method in dict.fromkeys(name for name, _ in labelled):
        runs = [run for name, run in labelled if name == method and run.state == "done"]
        if not runs:
            continue
        row: dict[str, Any] = {
            "accuracy_at": {f"{part:g}": statistics.fmean(at_time(run, part)[0] for run in runs) for part in PARTS},
            "worst_group_at": {f"{part:g}": statistics.fmean(at_time(run, part)[1] for run in runs) for part in PARTS},
            "spent": statistics.fmean(run.energy.spent for run in runs),
            "lost": statistics.fmean(run.energy.lost for run in runs),
        }
        if budget:
            row["accuracy_at_energy"] = {}
            for part in PARTS:
                seen = [score for run in runs if (score := at_energy(run, part * statistics.fmean(budget))) is not None]
                row["accuracy_at_energy"][f"{part:g}"] = statistics.fmean(seen) if len(seen) == len(runs) else None
        stale = [record.arrived.staleness for run in runs for record in run.rounds if record.arrived]
        if stale:
            steps = [record.arrived.steps for run in runs for record in run.rounds if record.arrived]
            row["staleness"] = float(np.concatenate(stale).mean())
            row["steps"] = float(np.concatenate(steps).mean())
            row["versions"] = statistics.fmean(run.rounds[-1].arrived.version for run in runs if run.rounds[-1].arrived)
        found[method] = row
    return found


def varied(preset: str, found: Tuned, labelled: Sequence[tuple[str, StoredRun]], jobs: int) -> dict[str, Any]:
    """Renewal under other settings; found, labelled: without any."""
    rates, tuned_on, seeds, more = PRESETS[preset]
    result, compared_with = {}, (found, [one for one in labelled if one[0] == "renewal"])
    for said, changes in VARIED.get(preset, {}).items():
        found, labelled = compared_with
        if changes:
            place = OUT / preset / "varied" / "".join(c if c.isalnum() else "-" for c in said)
            found = rated(preset, rates, tuned_on, place, jobs, ["renewal"], {**more, **changes})
            labelled = trained(found, seeds, place, jobs)
        runs = [run for _, run in labelled if run.state == "done"]
        (row,) = against_time(labelled).values()
        finals = [run.final for run in runs if run.final]
        worst = [min((final.group_accuracy or {"": float("nan")}).values()) for final in finals]
        row |= {"accuracy": [final.accuracy for final in finals], "worst_group": worst}
        row["rate"], row["diverged"] = found.best("renewal").settings["client.lr"], len(labelled) - len(runs)
        row["arrivals"] = statistics.fmean(run.participations for run in runs)
        row["brownouts"] = statistics.fmean(run.energy.brownouts for run in runs)
        result[said] = row
    return result


def time_table(rows: dict[str, Any]) -> str:
    """Accuracy and worst group by time; accuracy by energy, and what arrivals are like."""
    times, some = (" | ".join(f"{100 * part:g} %" for part in parts) for parts in (PARTS, PARTS[1:]))
    lines = [f"| accuracy (worst group) % after, of the time | {times} |", "|---|" + "---:|" * len(PARTS)]
    for method, row in rows.items():
        both = zip(row["accuracy_at"].values(), row["worst_group_at"].values(), strict=True)
        lines.append(f"| {method} | {' | '.join(f'{100 * all:.1f} ({100 * worst:.1f})' for all, worst in both)} |")
    lines += [
        "",
        f"| accuracy % with, of Algorithm 1's energy | {some} | energy spent in all | stale by | versions |",
        "|---|" + "---:|" * (len(PARTS) + 2),
    ]
    for method, row in rows.items():
        scores = [*row["accuracy_at_energy"].values()][1:]
        cells = ["" if score is None else f"{100 * score:.1f}" for score in scores]
        cells.append(f"{row['spent']:,.0f}")
        cells += [f"{row['staleness']:.1f}", f"{row['versions']:,.0f}"] if "staleness" in row else ["", ""]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def varied_table(rows: dict[str, Any]) -> str:
    lines = [
        "| renewal | rate | accuracy % | worst group % | arrivals | mean steps | stale by | energy spent | lost |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for said, row in rows.items():
        score, worst = (100 * statistics.fmean(row[name]) for name in ("accuracy", "worst_group"))
        lines.append(
            f"| {said} | {row['rate']:g} | {score:.1f} | {worst:.1f} | {row['arrivals']:,.0f} | {row['steps']:.2f} | "
            f"{row['staleness']:.1f} | {row['spent']:,.0f} | {row['lost']:,.0f} |"
        )
        if row["diverged"]:
            lines.append(f"| (diverged under {row['diverged']} seeds, which are left out) | | | | | | | | |")
    return "\n".join(lines)


def main() -> None:
    options = arguments(__doc__, PRESETS).parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for preset in options.presets:
        began = time.perf_counter()
        rates, tuned_on, seeds, more = PRESETS[preset]
        found = rated(OF.get(preset, preset), rates, tuned_on, OUT / preset, options.jobs, METHODS, more)
        labelled = trained(found, seeds, OUT / preset, options.jobs)
        result = {**compared(found, seeds, labelled), "time": against_time(labelled)}
        result["varied"] = varied(preset, found, labelled, options.jobs)
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
