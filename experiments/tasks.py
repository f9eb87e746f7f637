"""Text, motion and adapters with rates tuned for each method: every number of docs/results/tasks.md.

    python experiments/tasks.py                 # tunes and compares three presets, writes tasks.json and the tables
    python experiments/tasks.py smartwatch      # one of them

Rates are chosen on held-out training samples under seeds 1000 and on; results are of the clients' own test samples
under seeds 0 and on. The preset 'lora' begins with the model that 'lora-base' trains first. Runs land in
everfed-out/tasks and are resumed or skipped when started again. Text takes an hour on one core.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from digits import arguments, compared, rated, tables, trained

from everfed import presets
from everfed.run import config
from everfed.stats import summarize
from everfed.store.export import export_model
from everfed.studies import sweep
from everfed.studies.tuning import MOST_STEPS, VALIDATION

ROOT = Path(__file__).parents[1]
OUT, RESULT = Path("everfed-out/tasks"), ROOT / "docs/results/tasks.json"
# Rates to try, extended where the best lies at an end; seeds to try them on; seeds of the results.
PRESETS = {
    "smartwatch": ([0.05, 0.1, 0.2, 0.4], range(1000, 1003), range(10)),
    "shakespeare": ([0.003, 0.01, 0.03], range(1000, 1001), range(5)),
    "lora": ([0.001, 0.003, 0.01, 0.03], range(1000, 1001), range(5)),
}
EXTEND = {"smartwatch": MOST_STEPS, "shakespeare": 1, "lora": 1}  # steps on one side; of text each takes minutes


def base(path: Path) -> dict[str, Any]:
    """The model that adapters are added to, trained by one client on other plays."""
    runs = sweep.plan_runs(presets.content("lora-base"), {}, [0], OUT / "lora-base")
    (stored,) = sweep.run_all(runs, jobs=1)
    if not path.exists():
        export_model(stored, path)
    assert stored.final is not None
    return {"accuracy": stored.final.accuracy, "loss": stored.final.loss}


def before(raw: dict[str, Any], seeds: range) -> dict[str, Any]:
    """The accuracy before the first round, on the samples that runs of these seeds are evaluated on."""
    from everfed.run.setup import Setup

    found = {}
    for seed in seeds:
        setup = Setup(config.from_dict({**raw, "seed": seed}))
        metrics = setup.evaluator()(setup.layout.flatten(setup.module))
        assert metrics is not None
        assert metrics.accuracy is not None
        found[seed] = metrics.accuracy
    return {"mean": sum(found.values()) / len(found), "seeds": found}


def gained(accuracies: list[float], first: dict[str, Any]) -> dict[str, Any]:
    """What was gained over the first model, seed by seed."""
    return summarize([end - start for end, start in zip(accuracies, first["seeds"].values(), strict=True)]).to_dict()


def over_clients(stored: list[Any]) -> dict[str, float]:
    """Means over seeds of what each client gets on its own samples."""
    parts = [one.final.breakdown["accuracy"] for one in stored]
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}


def main() -> None:
    options = arguments(__doc__, PRESETS).parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for preset in options.presets:
        began, more = time.perf_counter(), {}
        rates, tuned_on, seeds = PRESETS[preset]
        if preset == "lora":
            more["base"] = base(Path(presets.content("lora")["model"]["pretrained"]))
            raw = presets.content("lora")
            more["before"] = before(raw, seeds)
            more["before_tuning"] = before({**raw, "validation": VALIDATION}, tuned_on)
        found = rated(preset, rates, tuned_on, OUT / preset, options.jobs, extend=EXTEND[preset])
        labelled = trained(found, seeds, OUT / preset, options.jobs)
        results[preset] = {**compared(found, seeds, labelled), **more}
        results[preset]["seconds"] = round(time.perf_counter() - began)
        for method, row in results[preset]["methods"].items():
            row["over_clients"] = over_clients(
                [run for label, run in labelled if label == method and run.state == "done"]
            )
            if "before" in more and method not in results[preset]["diverged"]:
                row["gain"] = gained(results[preset]["accuracies"][method], more["before"])
        ordered = {name: results[name] for name in PRESETS if name in results}
        RESULT.write_text(json.dumps(ordered, indent=1, allow_nan=False) + "\n")
        print(f"\n## {preset}\n\n{tables(results[preset])}\n", flush=True)


if __name__ == "__main__":
    main()
