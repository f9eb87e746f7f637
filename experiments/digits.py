"""The comparison on the digits with rates tuned for each method: every number of docs/results/digits.md.

    python experiments/digits.py          # tunes and compares three splits, then writes digits.json and the tables
    python experiments/digits.py digits   # one of them

Rates are chosen on held-out training samples under seeds 1000 and on; results are of the test set under
seeds 0 and on. Runs land in everfed-out/digits and are resumed or skipped when started again. It takes half an hour
on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everfed import presets
from everfed.methods import COMPARED
from everfed.report.measures import with_measures
from everfed.run import config
from everfed.store import StoredRun
from everfed.studies import sweep
from everfed.studies.comparison import differences, summarize, unfinished
from everfed.studies.seed_variance import seed_effects
from everfed.studies.tuning import MOST_STEPS, Tuned, tune

ROOT = Path(__file__).parents[1]
OUT, RESULT = Path("everfed-out/digits"), ROOT / "docs/results/digits.json"
# Rates to try, extended where the best lies at an end, and seeds to try them on.
PRESETS = {
    "digits": ([0.1, 0.2, 0.4, 0.8, 1.6, 3.2], range(1000, 1005)),
    "digits-dirichlet": ([0.4, 0.8, 1.6], range(1000, 1003)),
    "digits-iid": ([0.4, 0.8, 1.6], range(1000, 1003)),
}
SEEDS = range(10)


def arguments(about: str, known: Iterable[str]) -> argparse.ArgumentParser:
    """Of a study of presets. about: its docstring."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("presets", nargs="*", default=[*known], help="which")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    return parser


def rated(
    preset: str,
    rates: list[float],
    seeds: range,
    out: Path,
    jobs: int,
    methods: Sequence[str] = COMPARED,
    changes: Mapping[str, Any] | None = None,
    extend: int = MOST_STEPS,
) -> Tuned:
    """Rates for a preset, without those it has. changes: of its settings, by their dotted names. extend: as in tune."""
    raw = {key: value for key, value in presets.content(preset).items() if key not in ("methods", "tuned_on")}
    for key, value in (changes or {}).items():
        config.change(raw, key, value)
    return tune(raw, {"client.lr": rates}, methods=methods, seeds=seeds, out=out / "tune", extend=extend, jobs=jobs)


def trained(found: Tuned, seeds: range, out: Path, jobs: int) -> list[tuple[str, StoredRun]]:
    """Every method's runs at its rate, to be evaluated on the test set. Some may diverge, but none is left undone."""
    runs = sweep.plan_runs(found.content(), {"method": found.methods}, seeds, out / "runs")
    stored = sweep.run_all(runs, jobs=jobs)
    left = [run.name for run, one in zip(runs, stored, strict=True) if one.state not in ("done", "diverged")]
    if left:
        raise SystemExit(f"{len(left)} runs are not finished ({left[0]}, ...); the same command goes on with them.")
    return [(run.label, one) for run, one in zip(runs, stored, strict=True)]


def compared(found: Tuned, seeds: range, labelled: Sequence[tuple[str, StoredRun]]) -> dict[str, Any]:
    """The methods at their rates, on the test set."""
    finals = {
        label: [one.final.accuracy for name, one in labelled if name == label and one.final and one.state == "done"]
        for label in found.methods
    }
    return {
        "tuned": found.to_dict(),
        "rates": {method: found.best(method).settings["client.lr"] for method in found.methods},
        "seeds": list(seeds),
        "diverged": {label: states["diverged"] for label, states in unfinished(labelled).items()},
        "methods": with_measures(summarize(labelled), labelled),
        "differences": differences(labelled, "algorithm1"),
        "accuracies": finals,
    }


def percent(found: dict[str, Any]) -> str:
    low, high = found["ci95"]
    return f"{100 * found['mean']:.1f} ± {50 * (high - low):.1f}"


def points(found: dict[str, Any]) -> str:
    low, high = found["ci95"]
    p = "< 0.0001" if found["p_holm"] < 1e-4 else f"{found['p_holm']:.2g}"
    return f"{100 * found['mean']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] | {p} | {found['p_flip']:.2g}"


def tables(result: dict[str, Any]) -> str:
    """Markdown of one split: results, differences, and what was tried."""
    lines = [
        "| method | rate | accuracy % | worst group % | late variation % | participations |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method, row in result["methods"].items():
        late = row["late_variation"] if "late_variation" in row else row["wiggle"]  # its name in older files
        cells = [percent(row["accuracy"]), percent(row["worst_group_accuracy"]), f"{100 * late['mean']:.2f}"]
        lines.append(f"| {method} | {result['rates'][method]:g} | {' | '.join(cells)} | {row['participations']:,.0f} |")
    for method, seeds in result.get("diverged", {}).items():
        lines += ["", f"{method} diverged under {len(seeds)} of {len(result['seeds'])} seeds, which are left out."]
    lines += [
        "",
        "| minus algorithm1 | accuracy | p | exact | worst group | p | exact |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method, row in result["differences"].items():
        lines.append(f"| {method} | {points(row['accuracy'])} | {points(row['worst_group_accuracy'])} |")
    grid = result["tuned"]["extended_grid"]["client.lr"]
    lines += [
        "",
        f"| validation accuracy % at | {' | '.join(f'{rate:g}' for rate in grid)} |",
        "|---|" + "---:|" * len(grid),
    ]
    for method, rate in result["rates"].items():
        scores = [trial for trial in result["tuned"]["trials"] if trial["method"] == method]
        cells = ["diverged" if t["mean"] is None else f"{100 * t['mean']:.1f}" for t in scores]
        marked = [f"**{c}**" if value == rate else c for c, value in zip(cells, grid, strict=True)]
        lines.append(f"| {method} | {' | '.join(marked)} |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__, PRESETS)
    parser.add_argument("--repeats", type=int, default=0, help="also say where the variance comes from: repeats")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for preset in options.presets:
        found = rated(preset, *PRESETS[preset], OUT / preset, options.jobs)
        labelled = trained(found, SEEDS, OUT / preset, options.jobs)
        results[preset] = {**results.get(preset, {}), **compared(found, SEEDS, labelled)}
        if options.repeats:
            one = config.from_dict({**found.content(), "method": "algorithm1"})
            effects = seed_effects(one, options.repeats, out=OUT / preset / "seeds", jobs=options.jobs)
            results[preset]["seed_effects"] = effects.to_dict()
        ordered = {name: results[name] for name in PRESETS if name in results}
        RESULT.write_text(json.dumps(ordered, indent=1, allow_nan=False) + "\n")
        print(f"\n## {preset}\n\n{tables(results[preset])}", flush=True)


if __name__ == "__main__":
    main()
