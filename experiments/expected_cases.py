"""The runs that the intervals of expected accuracy are tested on: small enough for one core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from everfed import presets
from everfed.run import config
from everfed.studies.sweep import Planned, plan_runs

SEEDS = (0, 1)
ROUNDS, EVAL_EVERY = 480, 4
STEADY = {"client": {"kind": "sgd", "lr": 0.2}}
METHODS = ("algorithm1", "greedy", "wait-for-all", "fedavg")


class Case(NamedTuple):
    kind: str  # what it tests; results are told by kind
    name: str
    preset: str
    changes: dict[str, Any]


def cases() -> Iterator[Case]:
    """Every case once. Rates are constant, but where the kind says otherwise."""
    for method in (*METHODS, "lattice", "greedy-scaled", "last-updates", "renewal", "fedbuff"):
        for rate in (0.05, 0.3):
            yield Case("methods", f"{method}, rate {rate:g}", "digits", {"method": method, "client.lr": rate})
    for split in ("iid", "dirichlet"):
        for method in METHODS:
            yield Case("splits", f"{method}, {split}", f"digits-{split}", {"method": method, "client.lr": 0.2})
    for model in ("logistic", "small-cnn", {"kind": "mlp", "hidden": 8}):
        for method in ("algorithm1", "greedy"):
            said = model if isinstance(model, str) else f"mlp of {model['hidden']}"
            yield Case("models", f"{said}, {method}", "digits", {"model": model, "method": method, "client.lr": 0.1})
    for cycles in ([1, 2, 5, 10], [1, 50], [20], [1, 1, 1, 40]):
        said = f"cycles {', '.join(map(str, cycles))}"
        yield Case("energy", said, "digits", {"fleet.cycles": cycles, "client.lr": 0.1})
    for arrivals in ("bernoulli", "markov"):
        for method in ("greedy", "greedy-scaled"):
            own = {"method": method, "fleet.arrivals": arrivals, "client.lr": 0.1}
            yield Case("energy", f"{arrivals} arrivals, {method}", "digits", own)
    for method in ("algorithm1", "greedy"):
        yield Case("energy", f"sun, {method}", "solar-fleet", {"method": method, "client.lr": 0.1})
    for method, rate in [("algorithm1", 0.02), *((method, 0.1) for method in METHODS)]:
        yield Case("smartwatch", f"{method}, rate {rate:g}", "smartwatch", {"method": method, "client.lr": rate})
    for method in METHODS:
        cosine = {"method": method, "client.lr": 0.3, "client.schedule": {"kind": "cosine", "final": 0.0}}
        yield Case("rate that falls to the end", method, "digits", cosine)
    for rate in (2.0, 4.0):
        for method in ("algorithm1", "fedavg"):
            yield Case("rate too high", f"{method}, rate {rate:g}", "digits", {"method": method, "client.lr": rate})
    for late in (200, 300):
        more = {"fleet.offsets": [0, 0, 0, late], "client.lr": 0.1}
        yield Case("group that appears late", f"from round {late}", "digits", more)


def planned(case: Case, root: Path) -> list[Planned]:
    """Its runs, one per seed."""
    content = presets.content(case.preset)
    content = {key: value for key, value in content.items() if key not in ("methods", "tuned_on")}  # for other lengths
    content |= {**STEADY, "rounds": ROUNDS, "eval_every": EVAL_EVERY, "device": "cpu"}
    for key, value in case.changes.items():
        config.change(content, key, value)
    return plan_runs(content, {}, SEEDS, root)
