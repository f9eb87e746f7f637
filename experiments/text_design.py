"""How the presets 'shakespeare' and 'lora' were designed: what docs/results/tasks.md says was tried before.

    python experiments/text_design.py     # writes text_design.json; half an hour on one core

Adapters: base models of 1, 2, 3 or 27 plays; then adapters or all parameters, trained by one client that has the
large roles of five other plays ("pooled"), and by FedAvg of 20 roles. The LSTM: FedAvg of 20 large roles with other
optimisers and widths. All accuracies are of held-out training samples of seed 1000, and of no method but FedAvg; test
samples are not looked at (but for those of the plays that base models are trained on). Runs land in everfed-out/probe
and are skipped when started again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everfed.run import config
from everfed.run.setup import Setup
from everfed.store import StoredRun
from everfed.store.export import export_model
from everfed.studies import sweep

OUT = Path("everfed-out/probe")
RESULT = Path(__file__).parents[1] / "docs/results/text_design.json"
SEED = 1000
GPT = {"kind": "char-gpt", "layers": 2, "width": 96}
FIVE = ["hamlet", "othello", "macbeth", "lear", "julius_caesar"]
TEN = [*FIVE, "tempest", "twelfth_night", "as_you_like_it", "richard_iii", "henry_v"]
TWO = ["romeo_and_juliet", "midsummer_nights_dream"]
THREE = [*TWO, "merchant_of_venice"]
# Plays, rounds of 10 steps of 64 windows, rate, rounds between evaluations.
BASES: dict[str, tuple[dict[str, Any], int, float, int]] = {
    "base1": ({"plays": TWO[:1]}, 60, 0.003, 20),
    "base2": ({"plays": TWO}, 100, 0.003, 20),
    "base3": ({"plays": THREE}, 100, 0.001, 0),
    "base27": ({"without": TEN}, 100, 0.003, 100),
}
# Rank (0: all parameters) and rate of what is trained on pooled roles.
POOLED = {
    "base1": [(8, 0.01), (8, 0.03), (64, 0.003), (0, 0.002)],
    "base2": [(8, 0.01), (32, 0.003), (32, 0.01), (96, 0.003), (0, 0.002)],
    "base3": [(8, 0.01), (64, 0.003), (64, 0.01), (0, 0.002)],
    "base27": [(8, 0.01), (32, 0.003), (0, 0.0005), (0, 0.002)],
}
LARGE = {"without": TWO, "least": 10_000}
# Of FedAvg: the base, the roles, rank, rate, rounds, steps and batch of a round, rounds between evaluations.
FEDAVG: list[tuple[str, dict[str, Any], int, float, int, int, int, int]] = [
    ("base3", {"without": THREE, "least": 10_000}, 8, 0.003, 60, 5, 10, 0),
    ("base3", {"without": THREE, "least": 10_000}, 8, 0.01, 60, 5, 10, 0),
    ("base3", {"without": THREE, "least": 10_000}, 0, 0.001, 60, 5, 10, 0),
    ("base2", LARGE, 8, 0.003, 30, 5, 10, 0),
    ("base2", LARGE, 32, 0.003, 30, 5, 10, 0),
    ("base2", LARGE, 32, 0.01, 20, 5, 10, 5),
    ("base2", LARGE, 32, 0.01, 20, 10, 5, 5),
    ("base1", LARGE, 32, 0.01, 20, 5, 10, 5),
    ("base27", {"plays": TEN}, 8, 0.001, 20, 5, 10, 5),
    ("base27", {"plays": TEN}, 0, 0.001, 20, 5, 10, 5),
]
# Width, optimiser, rate, and whether its state is kept from round to round.
LSTM: list[tuple[int, str, float, bool]] = [
    (128, "adam", 0.01, True),
    (128, "adam", 0.01, False),
    (128, "sgd", 4.0, True),
    (256, "adam", 0.01, False),
]
ALONE = {"local_steps": 10, "split": "iid", "fleet": {"kind": "cycles", "clients": 1, "cycles": [1]}}
ROLES = {
    "split": {"kind": "natural", "match": "random"},
    "fleet": {"kind": "cycles", "clients": 20, "cycles": [1, 5, 10, 20]},
    "validation": 0.1,
}


def ran(raw: dict[str, Any], data: dict[str, Any], rate: float, kind: str = "adam") -> StoredRun:
    content = {
        **raw,
        "method": "fedavg",
        "data": {"kind": "shakespeare", **data},
        "client": {"kind": kind, "lr": rate, "schedule": {"kind": "cosine", "final": 0.1}},
    }
    (stored,) = sweep.run_all(sweep.plan_runs(content, {}, [SEED], OUT / "runs"), jobs=1)
    return stored


def first(raw: dict[str, Any], data: dict[str, Any]) -> float | None:
    """The accuracy before the first round."""
    setup = Setup(config.from_dict({**raw, "data": {"kind": "shakespeare", **data}, "seed": SEED}))
    found = setup.evaluator()(setup.layout.flatten(setup.module))
    return found.accuracy if found else None


def last(stored: StoredRun) -> float | None:
    return stored.final.accuracy if stored.final else None


def base(name: str) -> dict[str, Any]:
    """Trains a base model, and exports it."""
    data, rounds, rate, every = BASES[name]
    raw = {**ALONE, "rounds": rounds, "batch_size": 64, "model": GPT, "eval_every": every}
    stored = ran(raw, data, rate)
    if not weights(name).exists():
        export_model(stored, weights(name))
    return {"data": data, "steps": 10 * rounds, "rate": rate, "own_plays": last(stored)}


def weights(name: str) -> Path:
    return OUT / f"{name}.safetensors"


def with_rank(name: str, rank: int) -> dict[str, Any]:
    return {**GPT, "pretrained": str(weights(name)), "lora": rank}


def pooled(name: str) -> list[dict[str, Any]]:
    raw = {**ALONE, "rounds": 20, "batch_size": 48, "eval_every": 20, "validation": 0.1}
    data = {"plays": FIVE, "least": 10_000}
    out: list[dict[str, Any]] = [
        {"before": first({**raw, "method": "fedavg", "model": with_rank(name, 8)}, data), "steps": 200, "batch": 48}
    ]
    for rank, rate in POOLED[name]:
        stored = ran({**raw, "model": with_rank(name, rank)}, data, rate)
        out.append({"rank": rank, "rate": rate, "accuracy": last(stored)})
    return out


def federated(
    name: str, data: dict[str, Any], rank: int, rate: float, rounds: int, steps: int, batch: int, every: int
) -> dict[str, Any]:
    raw = {
        **ROLES,
        "rounds": rounds,
        "local_steps": steps,
        "batch_size": batch,
        "eval_every": every,
        "model": with_rank(name, rank),
    }
    stored = ran(raw, data, rate)
    return {
        "base": name,
        "data": data,
        "rank": rank,
        "rate": rate,
        "rounds": rounds,
        "steps": steps,
        "batch": batch,
        "before": first({**raw, "method": "fedavg"}, data),
        "accuracy": last(stored),
    }


def lstm(hidden: int, kind: str, rate: float, keep: bool) -> dict[str, Any]:
    model = {"kind": "char-lstm", "hidden": hidden}
    raw = {**ROLES, "rounds": 40, "local_steps": 5, "batch_size": 10, "model": model, "keep_state": keep}
    stored = ran(raw, {"least": 10_000}, rate, kind)
    course = {one.round + 1: one.metrics.accuracy for one in stored.rounds if one.metrics}
    return {"hidden": hidden, "client": kind, "rate": rate, "keep_state": keep, "accuracy": course}


def main() -> None:
    result: dict[str, Any] = {"seed": SEED, "model": GPT, "bases": {}, "pooled": {}, "fedavg": []}
    for name in BASES:
        result["bases"][name] = base(name)
        result["pooled"][name] = pooled(name)
        print(name, result["bases"][name], *result["pooled"][name], sep="\n  ", flush=True)
    for one in FEDAVG:
        result["fedavg"].append(federated(*one))
        print(result["fedavg"][-1], flush=True)
    result["lstm"] = [lstm(*one) for one in LSTM]
    print(*result["lstm"], sep="\n")
    RESULT.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
