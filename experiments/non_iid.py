"""CIFAR-10 whose classes follow the energy, looked at closely: the optimisers of docs/results/non_iid.md.

    python experiments/non_iid.py run --jobs 3 --limit-s 540   # again and again, until it says that none is left
    python experiments/non_iid.py table                        # the tables, from the runs' folders alone
    python experiments/non_iid.py json --out docs/results/non_iid-first.json

Every run is a folder of a sweep below everfed-out/non_iid: what is done is not done again (study_runs.py). `table` and
`json` take the options that the runs were made with. The default precision, bf16, needs a GPU; --jobs processes share
it. The page's other tables and its picture are of experiments/cifar10.py.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import non_iid_tables
import study_runs
import watched
from held_out import HeldOut
from non_iid_tables import COMPARED, LAST, chosen_rate, figures
from study_runs import Done, Record, carry_out, read, rounded

from everfed import presets
from everfed.data.partition import ByEnergy, Dirichlet, Split
from everfed.learning.optim import SGD, Adam, Optimizer
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.loop import Run as Started
from everfed.store import StoredRun

SPLITS: dict[str, Split] = {
    "by-energy 0.25": ByEnergy(0.25),
    "by-energy 0.5": ByEnergy(0.5),
    "by-energy 0.75": ByEnergy(0.75),
    "by-energy 1": ByEnergy(1.0),
    "dirichlet 0.3": Dirichlet(0.3, per="energy-group"),
}
# What a stage of the study is about, the most telling first: time may run out before the last.
STAGES = (
    ("sgd", "by-energy 0.5"),
    ("sgd", "by-energy 1"),
    ("adam", "by-energy 1"),
    ("adam", "by-energy 0.5"),
    ("control", "by-energy 1"),
    ("sgd", "dirichlet 0.3"),
    ("sgd", "by-energy 0.75"),
    ("sgd", "by-energy 0.25"),
)
# Taking Adam apart: its normalising without its momentum, a momentum without the normalising, no memory at all.
CONTROLS = (("adam, beta1 0", 1e-3), ("sgd, momentum 0.9", 0.005), ("adam, reset", 1e-3))


def client(kind: str, rate: float) -> tuple[Optimizer, bool]:
    """A client's optimiser, and whether it keeps its state from one of its rounds to its next."""
    optimizers: dict[str, Optimizer] = {
        "sgd": SGD(rate),
        "sgd, momentum 0.9": SGD(rate, momentum=0.9),
        "adam": Adam(rate),
        "adam, beta1 0": Adam(rate, beta1=0.0),
        "adam, reset": Adam(rate),
    }
    return optimizers[kind], kind != "adam, reset"


@dataclass(frozen=True)
class Run:
    """One run. Only the part "tune" looks at held-out training images, all others at the test set."""

    part: str
    split: str
    method: str
    client: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.part} | {self.split} | {self.method} | {self.client} {self.rate:g} | seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """All that the runs have in common, and what is varied."""

    base: Experiment
    stages: tuple[tuple[str, str], ...] = STAGES
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)
    adam_rates: tuple[float, ...] = (1e-3, 3e-4)
    seeds: tuple[int, ...] = (0, 1, 2)
    held_out: int = 5000

    def settings(self) -> dict[str, Any]:
        base = self.base
        data = config.to_dict(base.data)["kind"]
        return {"data": data, "rounds": base.rounds, "precision": base.precision, "held_out": self.held_out}

    def tuning(self, split: str, method: str) -> list[Run]:
        return [Run("tune", split, method, "sgd", rate, self.seeds[0]) for rate in self.rates]

    def finals(self, split: str, method: str, done: Done) -> list[Run]:
        """The runs at the chosen rate; none while the tuning is not complete."""
        rate = chosen_rate([done.get(run.name) for run in self.tuning(split, method)])
        return [] if rate is None else [Run("final", split, method, "sgd", rate, seed) for seed in self.seeds]

    def runs(self, done: Done) -> list[Run]:
        """Every run that is known so far, the most telling first; rates are known once their tuning is done."""
        runs: list[Run] = []
        first = self.seeds[0]
        for stage, split in self.stages:
            if stage == "sgd":
                runs += [run for method in COMPARED for run in self.tuning(split, method)]
                runs += [run for method in COMPARED for run in self.finals(split, method, done)]
            elif stage == "adam":
                runs += [Run("adam", split, m, "adam", rate, first) for rate in self.adam_rates for m in COMPARED]
            else:
                runs += [Run("control", split, "algorithm1", kind, rate, first) for kind, rate in CONTROLS]
        return runs

    def experiment(self, run: Run) -> Experiment:
        optimizer, keeps = client(run.client, run.rate)
        data = HeldOut(self.base.data, self.held_out) if run.part == "tune" else self.base.data
        return replace(
            self.base, data=data, split=SPLITS[run.split], client=optimizer, keep_state=keeps, seed=run.seed,
            eval_every=1,
        ).with_method(run.method)  # fmt: skip

    def start(self, experiment: Experiment) -> Started:
        return watched.start(experiment, self.base.evaluation_interval, watched.CLOSE_UP)

    def record(self, run: Run, stored: StoredRun) -> Record:
        """A run in short, with what the close look found."""
        close = {} if stored.state == "diverged" else {"close": closely(stored)}
        return {**asdict(run), **figures(watched.spaced(stored)), **close}


def closely(run: StoredRun) -> Record:
    """What clients send, early and late in the run, by the best- and the worst-powered group; how output biases are
    pushed at its end; and how much a round that hears the rarest group adds to the recall of its classes, and of the
    others, on average."""
    spaced = watched.spaced(run)
    ends = list(run.final.group_accuracy or {}) if run.final else []
    found: Record = {"groups": [ends[0], ends[-1]]}
    for name in ("length", "train_loss"):
        for group in found["groups"]:
            values = spaced.curve(f"{name} {group}")[1]
            tenth = max(1, len(values) // 10)
            found[f"{name} {group}"] = [heard_mean(values[:tenth]), heard_mean(values[-tenth:])]
    for name in ("push own", "push others", "push rest"):
        found[name] = heard_mean(spaced.curve(name)[1][-LAST:], digits=7)
    last = [r.metrics.own for r in run.rounds if r.metrics and "rarest heard" in r.metrics.own]
    for name in ("rare", "others"):
        gains = [b[f"recall {name}"] - a[f"recall {name}"] for a, b in pairwise(last) if b["rarest heard"]]
        found[f"jump {name}"] = heard_mean(gains)
    return found


def heard_mean(values: Sequence[float], digits: int = 5) -> float | None:
    known = [value for value in values if value == value]  # NaN where nobody was heard
    return rounded(statistics.fmean(known), digits) if known else None


def study_of(options: argparse.Namespace) -> Study:
    base = replace(
        config.from_dict(presets.content(options.preset)),
        rounds=options.rounds, device=options.device, precision=options.precision,
    )  # fmt: skip
    return Study(
        base,
        stages=tuple(stage for stage in STAGES if stage[1] in options.splits),
        rates=tuple(options.rates),
        adam_rates=tuple(options.adam_rates),
        seeds=tuple(range(options.seeds)),
        held_out=options.held_out,
    )


def main() -> None:
    parser = study_runs.parser(__doc__, ["run", "table", "json"], "everfed-out/non_iid")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--preset", default="paper-cifar10", help="whose data, model, fleet and batch to use")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.05, 0.1], help="the grid for SGD")
    parser.add_argument("--adam-rates", type=float, nargs="+", default=[1e-3, 3e-4])
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=list(SPLITS), help="only these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=5000, help="training samples to choose the rates on")
    options = parser.parse_args()
    study = study_of(options)
    if options.command == "run":
        carry_out(study, options.results, options.jobs, options.limit_s)
    done = read(study, options.results)
    if options.command == "json":
        records = [{key: value for key, value in run.items() if key != "close"} for run in done.values()]
        study_runs.write_json(study_runs.out_of(parser, options), study.settings(), records)
    else:
        print("\n" + non_iid_tables.tables(list(done.values())))


if __name__ == "__main__":
    main()
