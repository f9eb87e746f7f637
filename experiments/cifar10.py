"""CIFAR-10 with every method at its own best rate: every number of docs/results/cifar10.md, most of non_iid.md.

    everfed data get cifar10
    python experiments/cifar10.py plan                             # the runs, and about how long they take on a GPU
    python experiments/cifar10.py run --jobs 4 --limit-s 540       # again and again, until it says that none is left
    python experiments/cifar10.py table                            # the tables, from the runs' folders alone
    python experiments/cifar10.py json --out docs/results          # cifar10.json, non_iid.json; with these two:
    python experiments/cifar10.py figure --results docs/results --out docs/images   # cifar10.png, non_iid.png
    python experiments/cifar10.py page --results docs/results --out docs/results    # tables of cifar10.md, non_iid.md

A rate is chosen for each method in each case on 5,000 held-out training images, with a seed that no other run has; if
the best is the largest or smallest tried, the grid goes on beyond it. Runs at the chosen rate train on all images and
are evaluated on the test set. Every run is a folder of a sweep below everfed-out/cifar10: what is done is not done
again, and what was cut off goes on (study_runs.py). Results of several machines are put together by copying their
folders into one. `table` and `json` take the options that the runs were made with. The default precision, bf16, needs a
GPU; --jobs processes share it. Prose with outcomes in it is marked TODO in the pages: look for it after `page`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import study_runs
import watched
from held_out import HeldOut
from non_iid import SPLITS, client
from non_iid_tables import COMPARED, figures
from study_runs import Done, Record, carry_out, read, read_json

from everfed import presets
from everfed.data.augment import CentreCrop, CropFlip
from everfed.data.images import Cifar10
from everfed.data.partition import Iid
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.loop import Run as Started
from everfed.store import StoredRun

EARLIER = Path(__file__).parents[1] / "docs" / "results" / "non_iid-first.json"  # rates 0.02 to 0.1 were tried there
LADDERS = {"adam": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "sgd": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)}
TUNING_SEED = 0

# What isolates one mechanism each: changes to the experiment of a method.
Change = Callable[[Experiment], Experiment]
CONTROLS: dict[str, tuple[str, Change]] = {
    "best-powered-only": ("greedy", lambda e: replace(e, fleet=replace(e.fleet, offsets=(0, 10**6, 10**6, 10**6)))),
    "fedavg-small-steps": ("fedavg", lambda e: replace(e, server_optimizer=replace(e.server_optimizer, lr=0.3375))),
    "fedavg-quarter": (
        "fedavg",
        lambda e: replace(e, fleet=replace(e.fleet, clients=10), data=replace(e.data, train_limit=12_500)),
    ),
}
AUGMENTS = {"crop+flip": CropFlip(24), "none": CentreCrop(24)}


@dataclass(frozen=True)
class Case:
    """A setting in which methods are compared."""

    split: str
    client: str
    batch: int = 50
    augment: str = "crop+flip"

    @property
    def name(self) -> str:
        return f"{self.split}, {self.client}, batch {self.batch}, {self.augment}"


@dataclass(frozen=True)
class Run:
    """One run. Only the part "tune" looks at held-out training images, all others at the test set."""

    part: str  # tune; final, at the rate that tuning chose; fixed, at a rate given beforehand
    case: Case
    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.part} | {self.case.name} | {self.method} | {self.rate:g} | seed {self.seed}"

    def values(self) -> Record:
        """Its fields, those of the case among them."""
        return {"part": self.part, **asdict(self.case), "method": self.method, "rate": self.rate, "seed": self.seed}


@dataclass(frozen=True)
class Stage:
    """Methods in one case, each with these seeds: at rates that are chosen from `rates` on, or at a fixed one."""

    case: Case
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()
    fixed: float | None = None


def stages() -> tuple[Stage, ...]:
    """What is looked at, the most telling first: time may run out before the last."""
    five, three = (1, 2, 3, 4, 5), (1, 2, 3)
    adam, sgd = (3e-4, 1e-3, 3e-3), (0.02, 0.05, 0.1, 0.2, 0.4)

    def skewed(split: str) -> Stage:
        return Stage(Case(split, "sgd"), COMPARED, five, sgd)

    def batch(size: int, seeds: tuple[int, ...]) -> Stage:
        return Stage(Case("iid", "adam", size), COMPARED, seeds, adam)

    ablations = ("greedy", "algorithm1-unscaled", "fedavg", *CONTROLS, "greedy-normalized")
    return (
        Stage(Case("iid", "adam"), COMPARED, tuple(range(1, 11)), adam),  # the paper's figure
        skewed("by-energy 0.5"),
        skewed("by-energy 1"),
        batch(10, five),
        batch(250, three),
        skewed("dirichlet 0.3"),
        skewed("by-energy 0.75"),
        skewed("by-energy 0.25"),
        Stage(Case("iid", "adam"), ablations[:2], three, fixed=1e-3),
        Stage(Case("iid", "adam", augment="none"), ablations[:2], three, fixed=1e-3),
        batch(250, five),
        Stage(Case("iid", "adam"), ablations, three, fixed=1e-3),
        Stage(Case("iid", "adam", augment="none"), ablations, three, fixed=1e-3),
        Stage(Case("by-energy 1", "adam"), COMPARED, three, fixed=1e-3),
        Stage(Case("by-energy 0.5", "sgd"), ("lattice",), five, (0.05, 0.1, 0.2, 0.4)),
        Stage(Case("by-energy 1", "sgd"), ("lattice",), five, (0.05, 0.1, 0.2, 0.4)),
        Stage(Case("by-energy 0.5", "adam"), COMPARED, three, fixed=1e-3),
    )


# ---- choosing rates ----


def score(run: Mapping[str, Any]) -> float:
    """A run in short by its validation accuracy; one that diverged is worst."""
    return -1.0 if run.get("diverged") else run["last5"]


def best(runs: Iterable[Mapping[str, Any]]) -> float:
    """The rate with the best validation accuracy; the smaller of two equals."""
    return max(sorted(runs, key=lambda run: run["rate"]), key=score)["rate"]


def extended(rates: Sequence[float], chosen: float, ladder: Sequence[float]) -> list[float]:
    """The rates, and the next one of the ladder where the chosen one is at an end of them."""
    low, high = ladder.index(min(rates)), ladder.index(max(rates))
    more = []
    if chosen == ladder[high] and high + 1 < len(ladder):
        more.append(ladder[high + 1])
    if chosen == ladder[low] and low > 0:
        more.append(ladder[low - 1])
    return sorted([*rates, *more])


@lru_cache
def earlier() -> dict[str, Record]:
    """The runs in short that an earlier study tuned with: the same settings, seed and held-out images, by name."""
    found = {}
    for run in read_json(EARLIER) if EARLIER.exists() else []:
        if run["part"] == "tune" and run["seed"] == TUNING_SEED:
            of = Run("tune", Case(run["split"], run["client"]), run["method"], run["rate"], run["seed"])
            found[of.name] = run | {"earlier": True}
    return found


# ---- the study ----


@dataclass(frozen=True)
class Study:
    """All that the runs have in common, and what is varied."""

    base: Experiment
    stages: tuple[Stage, ...]
    held_out: int = 5000
    reuse: bool = True  # rates that the earlier study tried

    def settings(self) -> dict[str, Any]:
        base = self.base
        data = config.to_dict(base.data)["kind"]
        return {"data": data, "rounds": base.rounds, "precision": base.precision, "held_out": self.held_out}

    def known(self, run: Run, done: Done) -> Record | None:
        """A tuning run in short, if it is done."""
        return done.get(run.name) or (earlier().get(run.name) if self.reuse else None)

    def tuning(self, stage: Stage, method: str, done: Done) -> tuple[list[Run], float | None]:
        """The tuning runs that are known to be needed, and the rate that they choose once all are done."""
        rates = list(stage.rates)
        while True:
            runs = [Run("tune", stage.case, method, rate, TUNING_SEED) for rate in rates]
            results = [result for run in runs if (result := self.known(run, done))]
            if len(results) < len(runs):
                return [run for run in runs if not self.known(run, done) or run.name in done], None
            chosen = best(results)
            rates = extended(rates, chosen, LADDERS[stage.case.client])
            if len(rates) == len(runs):
                return [run for run in runs if run.name in done], chosen

    def runs(self, done: Done) -> list[Run]:
        """Every run that is known so far, the most telling first; rates are known once their tuning is done.

        One seed after the other, so that a stage cut short has all methods for some seeds.
        """
        runs: dict[tuple[Any, ...], Run] = {}
        for stage in self.stages:
            rates = dict.fromkeys(stage.methods, stage.fixed)
            if stage.rates:
                for method in stage.methods:
                    tuning, rates[method] = self.tuning(stage, method, done)
                    runs |= {(run.part, run): run for run in tuning}
            part = "final" if stage.rates else "fixed"
            for seed in stage.seeds:
                for method, rate in rates.items():
                    if rate is not None:  # a fixed rate may be one that was chosen: that run is not done again
                        runs.setdefault((stage.case, method, rate, seed), Run(part, stage.case, method, rate, seed))
        return list(runs.values())

    def experiment(self, run: Run) -> Experiment:
        data = self.base.data
        if isinstance(data, Cifar10):
            data = replace(data, augment=AUGMENTS[run.case.augment])
        if run.part == "tune":
            data = HeldOut(data, self.held_out)
        method, change = CONTROLS.get(run.method, (run.method, lambda e: e))
        optimizer, keeps = client(run.case.client, run.rate)
        split = {"iid": Iid(), **SPLITS}[run.case.split]
        made = replace(
            self.base, data=data, split=split, client=optimizer, keep_state=keeps, batch_size=run.case.batch,
            seed=run.seed,
        )  # fmt: skip
        return change(made.with_method(method))

    def start(self, experiment: Experiment) -> Started:
        return watched.start(experiment)

    def record(self, run: Run, stored: StoredRun) -> Record:
        """A run in short: what it is, its figures as fractions of 1, and what the figure and the energy columns need
        besides, of the runs that are in them."""
        found = run.values() | figures(stored)
        if run.part == "tune":  # only its end is of interest
            found.pop("late_variation", None)
        if run.part == "final" and run.case.split == "iid" and "diverged" not in found:
            energy, (rounds, accuracy) = stored.energy.to_dict(), stored.curve()
            found["energy"] = {key: energy[key] for key in ("harvested", "spent", "wasted")}
            found |= {"rounds": rounds, "accuracy": [round(value, 5) for value in accuracy]}
        return found

    def records(self, root: Path) -> list[Record]:
        """The runs that have ended, those of the earlier study's that were tuned with among them."""
        runs = list(read(self, root).values())
        tried = {(run["split"], run["method"]) for run in runs if run["part"] == "tune"}
        used = earlier().values() if self.reuse else []
        more = [run for run in used if (run["split"], run["method"]) in tried]
        return runs + [{**run, "batch": 50, "augment": "crop+flip"} for run in more]


def study_of(options: argparse.Namespace) -> Study:
    base = replace(
        config.from_dict(presets.content(options.preset)),
        rounds=options.rounds, device=options.device, precision=options.precision,
    )  # fmt: skip
    chosen = stages()
    if options.stages:
        chosen = tuple(chosen[number] for number in options.stages)
    # Runs of another length or data set choose other rates.
    reuse = not options.no_reuse and (options.preset, options.rounds) == ("paper-cifar10", 1000)
    return Study(base, chosen, options.held_out, reuse)


def main() -> None:
    parser = study_runs.parser(__doc__, ["plan", "run", "table", "json", "figure", "page"], "everfed-out/cifar10")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--preset", default="paper-cifar10", help="whose data, model and fleet to use")
    parser.add_argument("--held-out", type=int, default=5000, help="training samples to choose the rates on")
    parser.add_argument("--stages", type=int, nargs="+", help="only these, numbered from 0 in the order of the plan")
    parser.add_argument("--no-reuse", action="store_true", help="try every rate again, those of the earlier study too")
    options = parser.parse_args()
    study = study_of(options)
    if options.command == "plan":
        import cifar10_plan

        print(cifar10_plan.plan(study, read(study, options.results)))
        return
    if options.command == "run":
        carry_out(study, options.results, options.jobs, options.limit_s)
    import cifar10_tables  # imports this module

    if options.command in ("run", "table"):
        print("\n" + cifar10_tables.tables(study.records(options.results)))
    elif options.command == "json":
        cifar10_tables.write(study.records(options.results), study.settings(), study_runs.out_of(parser, options))
    elif options.command == "page":
        cifar10_tables.fill(options.results, study_runs.out_of(parser, options))
    else:
        import cifar10_figures  # needs matplotlib

        cifar10_figures.draw(options.results, study_runs.out_of(parser, options))


if __name__ == "__main__":
    main()
