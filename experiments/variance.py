"""Methods with less variance than Algorithm 1, and what that buys. Every number of docs/results/variance.md.

    python experiments/variance.py run --data cifar10 --jobs 3 --limit-s 540  # again, until it says that none is left
    python experiments/variance.py run --data digits --device cpu --jobs 14
    python experiments/variance.py table                                     # the tables, from the runs' folders alone
    python experiments/variance.py json --out docs/results/variance.json
    python experiments/variance.py page --results docs/results/variance.json --out docs/results/variance.md

Every run is a folder of a sweep below everfed-out/variance: what is done is not done again, and what was cut off goes
on (study_runs.py). Results of several machines are put together by copying their folders into one. CIFAR-10 is trained
in bf16 on a GPU, the digits in float32 on CPUs, unless told otherwise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import study_runs
import variance_tables
from study_runs import Done, Record, carry_out, read, rounded
from variance_tables import CASES, METHODS, REFERENCE

from everfed import presets
from everfed.data.partition import ByEnergy, Iid, Split
from everfed.learning.optim import SGD, Adam, Cosine, Optimizer
from everfed.report.measures import late_variation
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.loop import Run as Started
from everfed.run.start import start
from everfed.server.last_updates import Varp
from everfed.server.optimizers import ServerMomentum
from everfed.store import StoredRun

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
    closing: int = 200  # rounds at the end in which the late variation is measured
    fine: int = 5  # rounds between evaluations there

    def settings(self) -> dict[str, Any]:
        shared = {"closing": self.closing, "fine": self.fine}
        return {data: {"rounds": e.rounds, "precision": e.precision, **shared} for data, e in self.bases.items()}

    def runs(self, done: Done) -> list[Run]:
        """One seed after the other, so that a stage cut short has all methods for some seeds."""
        return [
            Run(*case, method, momentum, seed)
            for case, momentum in self.stages
            for seed in self.seeds
            for method in (METHODS if momentum else (REFERENCE, *METHODS))
        ]

    def experiment(self, run: Run) -> Experiment:
        """Evaluated as often as its end needs it."""
        base = self.bases[run.data]
        return run.experiment(replace(base, eval_every=math.gcd(base.evaluation_interval, self.fine)))

    def start(self, experiment: Experiment) -> Started:
        return start(experiment)

    def record(self, run: Run, stored: StoredRun) -> Record:
        """What a run is, and its curve."""
        rows = [r if self.counts(run, r.round + 1) else replace(r, metrics=None) for r in stored.rounds]
        seen = replace(stored, rounds=rows)
        (rounds, accuracy), (_, worst) = seen.curve(), seen.curve("worst_group_accuracy")
        spent = [record.energy.spent for record in seen.rounds if record.metrics]
        weights = [record.round_weight for record in stored.rounds]
        return {
            **asdict(run),
            "diverged": stored.state == "diverged",
            "mean_weight": rounded(statistics.fmean(weights)) if weights else None,
            "var_weight": rounded(statistics.pvariance(weights)) if weights else None,
            "late_variation": rounded(late_variation(seen, self.closing)),
            "curve": {"round": rounds, "accuracy": accuracy, "worst_group": worst, "spent": spent},
        }

    def counts(self, run: Run, number: int) -> bool:
        """Whether an evaluation after so many rounds is one of the curve: before the closing, those of the base."""
        base = self.bases[run.data]
        closing = number > base.rounds - self.closing
        return number % base.evaluation_interval == 0 or (closing and number % self.fine == 0) or number == base.rounds


def main() -> None:
    parser = study_runs.parser(__doc__, ["run", "table", "json", "page"], "everfed-out/variance")
    parser.add_argument("--data", nargs="+", default=["cifar10", "digits"], choices=["cifar10", "digits"])
    parser.add_argument("--device", help="cuda for CIFAR-10 and cpu for the digits unless given")
    parser.add_argument("--precision", help="bf16 for CIFAR-10 and float32 for the digits unless given")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    study = Study(
        bases(options.device, options.precision),
        stages=tuple(stage for stage in STAGES if stage[0][0] in options.data),
        seeds=tuple(range(options.seeds)),
    )
    if options.command == "page":
        found = variance_tables.blocks(study_runs.read_json(options.results))
        study_runs.fill_page(study_runs.out_of(parser, options), found)
        return
    if options.command == "run":
        carry_out(study, options.results, options.jobs, options.limit_s)
    runs = variance_tables.records(list(read(study, options.results).values()))
    if options.command == "json":
        study_runs.write_json(study_runs.out_of(parser, options), study.settings(), runs)
    else:
        print("\n" + variance_tables.tables(runs))


if __name__ == "__main__":
    main()
