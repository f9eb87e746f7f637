"""Methods with less variance than Algorithm 1, and what that buys. Every number of docs/results/variance.md.

    python experiments/variance.py run --data cifar10 --jobs 3 --limit-s 540  # again, until it says that all is done
    python experiments/variance.py run --data digits --device cpu --jobs 14
    python experiments/variance.py table                                     # the tables, from the results file alone
    python experiments/variance.py json --out docs/results/variance.json
    python experiments/variance.py page --results docs/results/variance.json --out docs/results/variance.md

A run is one line of the results file, written when the run ends; what is there is not done again (study_runs.py).
Results of several machines are put together by joining their files. CIFAR-10 is trained in bf16 on a GPU, the digits
in float32 on CPUs, unless told otherwise. Only what trains is imported: numpy and torch are enough; for the digits,
which ship with scikit-learn, --digits FILE makes a copy where that is installed and reads it where it is not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import study_runs
import variance_tables
from study_runs import Line, Loaded, by_name, carry_out, read_lines, rounded
from variance_tables import CASES, METHODS, REFERENCE, measures

from everfed import presets
from everfed.data.dataset import Dataset
from everfed.data.datasets import Digits
from everfed.data.partition import ByEnergy, Iid, Split
from everfed.errors import DivergenceError
from everfed.learning.optim import SGD, Adam, Cosine, Optimizer
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.start import start
from everfed.server.last_updates import Varp
from everfed.server.optimizers import ServerMomentum

SPLITS: dict[str, Split] = {"iid": Iid(), "by-energy 0.5": ByEnergy(0.5)}
CLIENTS: dict[str, Optimizer] = {
    "sgd 0.1": SGD(0.1),
    "sgd 0.2, cosine": SGD(0.2, schedule=Cosine(final=0.1)),
    "adam 0.001": Adam(1e-3),
}
MOMENTUM = ServerMomentum(lr=0.1, beta=0.9)  # in the long run the pace of plain averaging
MEMORIES = {"ht-varp 0.5": Varp(memory=0.5), "ht-varp 1": Varp(memory=1.0)}

# What a stage of the study is about, (data, split, client) and whether the server has momentum; the most telling
# first: time may run out before the last.
Stage = tuple[tuple[str, str, str], bool]
STAGES: tuple[Stage, ...] = (
    *[(case, momentum) for momentum in (False, True) for case in CASES if case[0] == "cifar10"],
    *[(case, momentum) for momentum in (False, True) for case in CASES if case[0] == "digits"],
)


def bases(device: str | None = None, precision: str | None = None) -> dict[str, Experiment]:
    """What is trained for how long and where, by data set: a fleet of 40 with cycles 1, 5, 10, 20 in both."""
    digits = replace(config.from_dict(presets.content("digits")), eval_every=5)
    cifar10 = replace(config.from_dict(presets.content("paper-cifar10")), eval_every=20)
    return {
        "digits": replace(digits, device=device or "cpu", precision=precision or "float32"),
        "cifar10": replace(cifar10, device=device or "cuda", precision=precision or "bf16"),
    }


@dataclass(frozen=True)
class Run:
    data: str
    split: str
    client: str
    method: str
    momentum: bool
    seed: int

    @property
    def name(self) -> str:
        method = self.method + " + momentum" * self.momentum
        return f"{self.data} | {self.split} | {self.client} | {method} | seed {self.seed}"

    @property
    def like(self) -> dict[str, Any]:
        return {"data": self.data, "method": self.method}

    def experiment(self, base: Experiment) -> Experiment:
        one = replace(base, split=SPLITS[self.split], client=CLIENTS[self.client], seed=self.seed)
        one = one.with_method("ht-varp" if self.method in MEMORIES else self.method)
        one = replace(one, server=MEMORIES.get(self.method, one.server))
        return replace(one, server_optimizer=MOMENTUM) if self.momentum else one


@dataclass(frozen=True)
class Study:
    """All that the runs have in common, and what is varied."""

    bases: Mapping[str, Experiment] = field(default_factory=bases)
    stages: tuple[Stage, ...] = STAGES
    seeds: tuple[int, ...] = (0, 1, 2)
    closing: int = 200  # rounds at the end in which the wiggle is measured
    fine: int = 5  # rounds between evaluations there
    digits: Path | None = None  # a copy of the digits, for machines without scikit-learn

    def settings(self, data: str) -> dict[str, Any]:
        """What must agree for a line of the results file to count as one of this study."""
        base = self.bases[data]
        return {"rounds": base.rounds, "precision": base.precision, "closing": self.closing, "fine": self.fine}

    def read(self, results: Path) -> dict[str, Line]:
        known = {data: self.settings(data) for data in self.bases}
        return by_name(line for line in read_lines(results) if line["settings"] == known.get(line["data"]))

    def runs(self, done: Mapping[str, Line]) -> list[Run]:
        """One seed after the other, so that a stage cut short has all methods for some seeds."""
        return [
            Run(*case, method, momentum, seed)
            for case, momentum in self.stages
            for seed in self.seeds
            for method in (METHODS if momentum else (REFERENCE, *METHODS))
        ]

    def total(self) -> int:
        return len(self.runs({}))

    def load(self) -> dict[str, Any]:
        names = {case[0] for case, _ in self.stages}
        copied = {"digits": read_copy(self.digits)} if self.digits and "digits" in names else {}
        return {name: self.bases[name].data.load() for name in names - set(copied)} | copied

    def execute(self, data: Mapping[str, Dataset], run: Run, deadline: float = math.inf) -> Line | None:
        """Do one run; None if the deadline (of time.time) came first. A run that diverges says so in its line."""
        began = time.time()
        base = replace(self.bases[run.data], data=Loaded(data[run.data]))
        simulation = start(run.experiment(base))
        curve: dict[str, list[Any]] = {key: [] for key in ("round", "accuracy", "worst_group", "loss", "spent")}
        weights: list[float] = []
        diverged = None
        try:
            for record in simulation:
                if time.time() > deadline:
                    return None
                weights.append(record.round_weight)
                number, metrics = record.round + 1, record.metrics
                if metrics is None and number > base.rounds - self.closing and number % self.fine == 0:
                    metrics = simulation.evaluate(simulation.server.params)
                if metrics:
                    values = (metrics.accuracy, metrics.worst_group_accuracy, metrics.loss, record.energy.spent)
                    for key, value in zip(curve, (number, *map(rounded, values)), strict=True):
                        curve[key].append(value)
        except DivergenceError as error:
            diverged = str(error)
        return {
            "name": run.name,
            **asdict(run),
            "settings": self.settings(run.data),
            "seconds": round(time.time() - began, 1),
            "diverged": diverged,
            "mean_weight": rounded(statistics.fmean(weights)) if weights else None,
            "var_weight": rounded(statistics.pvariance(weights)) if weights else None,
            "curve": curve,
        }

    def told(self, line: Line) -> str:
        m = measures(line)
        return f"accuracy {100 * m['accuracy']:.1f}  wiggle {100 * m['wiggle']:.2f}" if m else line["diverged"]


# ---- the digits without scikit-learn ----

ARRAYS = ("x", "y", "test_x", "test_y")


def write_copy(file: Path) -> None:
    dataset = Digits().load()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        np.savez(out, **{name: getattr(dataset, name) for name in ARRAYS})


def read_copy(file: Path) -> Dataset:
    with np.load(file) as arrays:
        return Dataset("digits", **{name: arrays[name] for name in ARRAYS}, classes=10)


def main() -> None:
    parser = study_runs.parser(__doc__, ["run", "table", "json", "page"], "everfed-out/variance.jsonl")
    parser.add_argument("--data", nargs="+", default=["cifar10", "digits"], choices=["cifar10", "digits"])
    parser.add_argument("--device", help="cuda for CIFAR-10 and cpu for the digits unless given")
    parser.add_argument("--precision", help="bf16 for CIFAR-10 and float32 for the digits unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--digits", type=Path, help="a copy of the digits, as .npz: made if it is not there")
    options = parser.parse_args()
    if options.command == "table":
        print(variance_tables.tables(variance_tables.short_runs(options.results)))
        return
    if study_runs.write_out(parser, options, {"json": variance_tables.as_json, "page": variance_tables.fill_page}):
        return
    if options.digits and not options.digits.exists():
        write_copy(options.digits)
    study = Study(
        bases(options.device, options.precision),
        stages=tuple(stage for stage in STAGES if stage[0][0] in options.data),
        seeds=tuple(range(options.seeds)),
        digits=options.digits,
    )
    done = carry_out(study, options.results, options.jobs, options.limit_s)
    print("\n" + variance_tables.tables(variance_tables.records(done.values())))


if __name__ == "__main__":
    main()
