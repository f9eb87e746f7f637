"""Attackers against defences, on the digits with the paper's cycles: tables of accuracy, with and without an attack.

    python experiments/attacks.py          # some ten minutes on one core; writes attacks.json, prints the tables
    python experiments/attacks.py table    # prints the tables of what is there

Attackers are clients of the longest cycle, which have the most weight in a round, and send minus their update, as long
as it is or longer. Runs that attacks.json has are not run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from intervals import text

from everfed import stats
from everfed.run import config
from everfed.run.start import start

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs/results/attacks.json"
EXAMPLE = ROOT / "examples/flower-fleet/fleet_app/experiment.toml"
DEFENCES: dict[str, Any] = {
    "none": "none",
    "clip, factor 2": {"kind": "clip", "factor": 2.0},
    "clip, factor 1": {"kind": "clip", "factor": 1.0},
    "median": "median",
    "trimmed-mean": "trimmed-mean",
    "geometric-median": "geometric-median",
    "krum": "krum",
    "multi-krum": "multi-krum",
}
METHODS = ("algorithm1", "last-updates")
# Every fourth client has the cycle 20.
ATTACKS: dict[str, dict[str, Any] | None] = {
    "honest": None,
    "1 attacker": {"kind": "sign-flip", "clients": [3]},
    "1 attacker, 3 times as long": {"kind": "sign-flip", "clients": [3], "factor": 3.0},
    "1 attacker, 10 times as long": {"kind": "sign-flip", "clients": [3], "factor": 10.0},
    "2 attackers": {"kind": "sign-flip", "clients": [3, 7]},
    "2 attackers, 3 times as long": {"kind": "sign-flip", "clients": [3, 7], "factor": 3.0},
}
# What each fleet changes of the example, its attacks, and its seeds.
FLEETS: dict[str, tuple[dict[str, Any], tuple[str, ...], range]] = {
    "8 clients": (
        {},
        ("honest", "1 attacker", "1 attacker, 3 times as long", "1 attacker, 10 times as long", "2 attackers"),
        range(4),
    ),
    "40 clients": (
        {"fleet.clients": 40, "rounds": 100, "local_steps": 5},
        ("honest", "2 attackers, 3 times as long"),
        range(3),
    ),
}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, content of an experiment file), seed by seed, so that a study that is cut short has whole seeds."""
    for seed in range(max(len(seeds) for *_, seeds in FLEETS.values())):
        for fleet, (changes, attacks, seeds) in FLEETS.items():
            for method in METHODS:
                for attack in attacks if seed in seeds else ():
                    for defence, robust in DEFENCES.items():
                        raw = config.read(EXAMPLE)
                        settings = {**changes, "method": method, "eval_every": 5, "robust": robust}
                        for key, value in settings.items():
                            config.change(raw, key, value)
                        if ATTACKS[attack]:
                            raw["attack"] = ATTACKS[attack]
                        raw |= {"seed": seed, "check_trainer": False}
                        yield " / ".join((fleet, method, attack, defence, str(seed))), raw


def late_accuracy(raw: dict[str, Any]) -> float:
    """The mean over the evaluations of the last quarter: single rounds of so few clients are noisy."""
    run = start(config.from_dict(raw), on_divergence="skip")
    history = run.history(list(run))
    rounds, values = history.curve("accuracy")
    return float(np.mean([value for done, value in zip(rounds, values, strict=True) if done > 0.75 * run.rounds]))


def table(found: dict[str, float], fleet: str, method: str) -> str:
    attacks, seeds = FLEETS[fleet][1:]
    lines = ["| defence | " + " | ".join(attacks) + " |", "|---|" + "---:|" * len(attacks)]
    for defence in DEFENCES:
        cells = []
        for attack in attacks:
            names = (" / ".join((fleet, method, attack, defence, str(seed))) for seed in seeds)
            values = [found[name] for name in names if name in found]
            cells.append(text(stats.summarize(values)) if values else "")
        lines.append(f"| {defence} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    found: dict[str, float] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for name, raw in cases() if sys.argv[1:] != ["table"] else ():
        if name not in found:
            found[name] = round(late_accuracy(raw), 4)
            print(name, found[name], flush=True)
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for fleet in FLEETS:
        for method in METHODS:
            print(f"\n{fleet}, {method}: accuracy in %, with 95 % intervals\n\n{table(found, fleet, method)}")


if __name__ == "__main__":
    main()
