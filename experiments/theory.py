"""Theory against simulation: every number and the figure of docs/results/theory.md.

    python experiments/theory.py gaps    # the real simulator beside the bound, about ten minutes on one core
    python experiments/theory.py steady  # scalar quadratics at a constant step, about five minutes
    python experiments/theory.py page    # docs/results/theory.md and theory.png from theory.json

Each part replaces its own section of docs/results/theory.json. --missing keeps the gaps that were measured before and
computes their bounds anew. --small is a quick trial that writes elsewhere.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import everfed as ef
from everfed.testbed import Gaps, Problem, logistic, measure, quadratics
from everfed.testbed.steady import (
    METHODS_COMPARED,
    coin_mse,
    paper_fleet,
    steady,
    window_bias,
    window_mse,
)

RESULTS = Path(__file__).parents[1] / "docs" / "results"
# Rows of the tables: a method, and whose step size and bound.
COMPARED = {
    "algorithm1": ("algorithm1", "windows"),
    "algorithm1, smaller step": ("algorithm1", "windows_smooth"),
    "bernoulli": ("bernoulli", "independent"),
    "fedavg": ("fedavg", "independent"),
}
STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
# (step a, noise): the columns of the table of methods.
SETTINGS = ((0.02, 0.0), (0.1, 0.0), (0.3, 0.0), (0.1, 2.0), (0.3, 2.0))
# What a prototype, written apart from this code, gave in the same columns.
PROTOTYPE = {
    "fedavg": (0.0, 0.0, 0.0, 0.0052, 0.018),
    "greedy": (1.19, 1.18, 1.15, 1.18, 1.17),
    "algorithm1-unscaled": (1.19, 1.18, 1.15, 1.18, 1.17),
    "greedy-normalized": (1.76, 1.76, 1.77, 1.78, 1.83),
    "greedy-scaled": (0.0036, 0.133, 2.44, 0.209, 2.87),
    "bernoulli": (0.0029, 0.0156, 0.053, 0.063, 0.216),
    "algorithm1": (0.00037, 0.0071, 0.0425, 0.056, 0.209),
    "lattice": (0.000027, 0.00057, 0.0051, 0.0485, 0.169),
    "fedau": (0.00036, 0.0070, 0.042, 0.055, 0.207),
    "echo": (0.00041, 0.0091, 0.055, 0.065, 0.249),
    "last-updates": (0.0, 0.0, 0.0, 0.048, 0.120),
    "ht-varp, memory 1": (0.0, 0.0, 0.0, 0.087, 0.331),
}


def problems(fleet: ef.Fleet) -> dict[str, tuple[Problem, int, int]]:
    """Each problem with its local steps a round and its rounds."""
    n = len(fleet)
    return {
        "quadratics": (quadratics(n, 40), 5, 1000),
        "digits": (logistic(fleet, "by-energy", mu=0.5, batch_size=1), 5, 1000),
        # Its ball has room for the runs that the proof of windows_smooth imagines.
        "alike": (quadratics(n, 40, spread=0.0, L=2.0, room=2.25), 1, 2000),
        "noiseless": (quadratics(n, 40, noise=0.0), 1, 2000),
    }


def gaps(small: bool, only: str | None, before: dict[str, Any]) -> dict[str, Any]:
    """before: what was found earlier; its runs are kept."""
    fleet, _ = paper_fleet()
    seeds = 2 if small else 3
    out: dict[str, Any] = {"seeds": seeds, "problems": {}}
    # Common windows of 20 rounds: their middles and their ends, evenly spaced in the logarithm.
    ends = np.unique(np.round(np.geomspace(1, 100, 16)).astype(int)) * 20
    middles_and_ends = sorted([*(ends - 10), *ends])
    for name, (problem, local_steps, rounds) in problems(fleet).items():
        methods = {}
        if only and name != only:
            continue
        rounds = rounds // 20 if small else rounds
        at = middles_and_ends if name == "noiseless" and not small else None
        known = before.get("problems", {}).get(name, {}).get("methods", {})
        for row, (method, constant) in COMPARED.items():
            measured = known.get(row) or _measured(
                measure(
                    problem, fleet, method, rounds=rounds, local_steps=local_steps, seeds=range(seeds), at=at,
                    constant=constant,
                ),
                windows=at is not None,
            )  # fmt: skip
            cycles = np.ones_like(fleet.cycles()) if method == "fedavg" else fleet.cycles()
            bound = problem.bound(cycles, local_steps, rounds * local_steps, of_samples=constant == "windows_smooth")
            inside = measured["reach"] <= problem.radius
            methods[row] = measured | _bounded(bound, constant, measured) | {"inside": inside}
            print(f"{name}, {row}: {methods[row]['slope']:.2f}, {methods[row]['mean'][-1]:.3g}", flush=True)
        out["problems"][name] = {
            **_constants(problem),
            "local_steps": local_steps,
            "rounds": rounds,
            "methods": methods,
        }
    return out


def _measured(found: Gaps, windows: bool) -> dict[str, Any]:
    last = found.iterations[-1]
    late = found.iterations >= last // 10
    places = {"slope_in_the_middle": 10, "slope_at_the_end": 0} if windows else {}
    return {
        "iterations": found.iterations.tolist(),
        "mean": found.mean.tolist(),
        "error": found.error.tolist(),
        "slope": found.slope(since=last // 10),  # of the last factor of ten
        **{name: _slope(found, late & (found.iterations % 20 == place)) for name, place in places.items()},
        "reach": found.reach,
    }


def _bounded(bound: ef.theory.Bound, constant: str, measured: dict[str, Any]) -> dict[str, Any]:
    values = bound.curve(measured["iterations"])[constant]
    return {
        "bound": values.tolist(),
        "constant": constant,
        "validity": bound.validity[constant],
        "B": bound.B,
        "C": bound.constants[constant],
        "gamma": bound.gammas[constant],
        "below": bool(np.all(np.array(measured["mean"]) < values)),
    }


def _slope(found: Gaps, which: Any) -> float:
    x = np.log(found.gamma + found.iterations[which])
    return float(np.polyfit(x, np.log(found.mean[which]), 1)[0])


def _constants(problem: Problem) -> dict[str, Any]:
    return {
        "mu": problem.mu,
        "L": problem.L,
        "sample_smoothness": problem.sample_smoothness,
        "G": problem.G,
        "sigma": [float(problem.sigma.min()), float(problem.sigma.max())],
        "heterogeneity": problem.heterogeneity,
        "initial_distance_sq": problem.initial_distance_sq,
        "radius": problem.radius,
        "batch_size": problem.batch_size,
        "dimensions": len(problem.optimum),
    }


def stationary(small: bool) -> dict[str, Any]:
    fleet, centres = paper_fleet()
    effort: dict[str, Any] = {"seeds": 20, "rounds": 200} if small else {"seeds": 100, "rounds": 2000}

    def cell(name: str, step: float, noise: float = 0.0, places: Any = centres, **more: Any) -> dict[str, float]:
        return vars(steady(METHODS_COMPARED[name], fleet, places, step, noise, **{**effort, **more}))

    table: dict[str, Any] = {}
    for name in METHODS_COMPARED:
        table[name] = [cell(name, step, noise) for step, noise in SETTINGS]
        print(name, " ".join(f"{c['mse']:.3g}" for c in table[name]), flush=True)
    by_step = {name: [cell(name, a) for a in STEPS] for name in ("bernoulli", "algorithm1", "lattice", "fixed-phase")}
    print("steps done", flush=True)
    # Centres that have nothing to do with energy: every group holds the same ten.
    apart = np.repeat(np.linspace(0.0, 3.0, 10), 4)
    mixed = {name: cell(name, 0.05, places=apart) for name in ("bernoulli", "algorithm1", "lattice", "fixed-phase")}
    pull = {"windows": [cell("algorithm1", a, seeds=2 * effort["seeds"]) for a in STEPS]}
    return {
        **effort,
        "settings": SETTINGS,
        "table": table,
        "steps": STEPS,
        "by_step": by_step,
        "coin_formula": [coin_mse(fleet, centres, a) for a in STEPS],
        "window_formula": [window_mse(fleet, centres, a) for a in STEPS],
        "bias": pull["windows"],
        "bias_formula": [window_bias(fleet, centres, a) for a in STEPS],
        "unrelated_centres": mixed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["gaps", "steady", "page"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", help="of gaps: this problem alone")
    parser.add_argument("--missing", action="store_true", help="of gaps: measure only what is not there yet")
    parser.add_argument("--small", action="store_true", help="a quick trial; give --out too")
    options = parser.parse_args()
    if options.small and options.out == RESULTS:
        parser.error("--small would overwrite the published numbers: give --out too")
    warnings.simplefilter("ignore", ef.EverfedWarning)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "theory.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.part == "page":
        import theory_page

        theory_page.write(found, PROTOTYPE, options.out)
        return
    known = found.get("gaps", {}) if options.missing else {}
    part = gaps(options.small, options.only, known) if options.part == "gaps" else stationary(options.small)
    # Read again: the other part may have finished meanwhile.
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.only and "gaps" in found:
        part["problems"] = found["gaps"]["problems"] | part["problems"]
    path.write_text(json.dumps({**found, options.part: part}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
