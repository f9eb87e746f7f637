"""Where the method matters most: CIFAR-10 whose classes follow the energy. Every number of docs/results/non_iid.md.

    python experiments/non_iid.py run --jobs 3 --limit-s 540   # again and again, until it says that all is done
    python experiments/non_iid.py table                        # the tables, from the results file alone
    python experiments/non_iid.py json --out docs/results/non_iid-first.json
    python experiments/non_iid.py figure --results docs/results/non_iid-first.json --out docs/images/non_iid.png

A run is one line of the results file, written when the run ends; what is there is not done again (study_runs.py).
The default precision, bf16, needs a GPU; --jobs processes share it. Only what trains is imported: numpy and torch
are enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import non_iid_tables
import numpy as np
import study_runs
import torch
from non_iid_tables import COMPARED, LAST, chosen_rate, measures, rare_accuracy, rare_classes
from study_runs import Line, Loaded, carry_out, read, rounded

from everfed import presets
from everfed.data.dataset import Dataset
from everfed.data.partition import ByEnergy, Dirichlet, Split
from everfed.energy.fleet import Group
from everfed.errors import DivergenceError
from everfed.learning.optim import SGD, Adam, Optimizer
from everfed.learning.task import Trained
from everfed.random import Purpose, permutation
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.rounds import Rounds
from everfed.run.start import start
from everfed.scheduling.plan import PlanStep

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
CLOSE_UP = 40  # rounds at the end that are evaluated one by one: two of the longest windows


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

    @property
    def like(self) -> dict[str, Any]:
        return {"method": self.method}


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
        """What must agree for a line of the results file to count as one of this study."""
        base = self.base
        data = config.to_dict(base.data)["kind"]
        return {"data": data, "rounds": base.rounds, "precision": base.precision, "held_out": self.held_out}

    def tuning(self, split: str, method: str) -> list[Run]:
        return [Run("tune", split, method, "sgd", rate, self.seeds[0]) for rate in self.rates]

    def finals(self, split: str, method: str, done: Mapping[str, Line]) -> list[Run]:
        """The runs at the chosen rate; none while the tuning is not complete."""
        rate = chosen_rate([done.get(run.name) for run in self.tuning(split, method)])
        return [] if rate is None else [Run("final", split, method, "sgd", rate, seed) for seed in self.seeds]

    def runs(self, done: Mapping[str, Line]) -> list[Run]:
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

    def total(self) -> int:
        sizes = {
            "sgd": len(COMPARED) * (len(self.rates) + len(self.seeds)),
            "adam": len(COMPARED) * len(self.adam_rates),
            "control": len(CONTROLS),
        }
        return sum(sizes[stage] for stage, _ in self.stages)

    def read(self, results: Path) -> dict[str, Line]:
        return read(results, self.settings())

    def load(self) -> Dataset:
        return self.base.data.load()

    def execute(self, data: Dataset, run: Run, deadline: float) -> Line | None:
        return execute(self, data, run, deadline)

    def told(self, line: Line) -> str:
        m = measures(line)
        return f"accuracy {100 * m['last5']:.1f}  rare {100 * m['rare']:.1f}" if m else line["diverged"]


# ---- one run ----


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """The data set with `count` training samples as its test set: always the same ones, drawn at random.

    Rates are chosen on these, so that the test set has no part in the choice.
    """
    order = permutation(len(dataset.y), seed=0, purpose=Purpose.PARTITION, stream=2**20)  # a stream no split uses
    held, kept = np.sort(order[:count]), np.sort(order[count:])
    return replace(
        dataset, x=dataset.x[kept], y=dataset.y[kept], test_x=dataset.x[held], test_y=dataset.y[held]
    )  # fmt: skip


class Watched:
    """Rounds of which the losses of the clients are kept too and, looking closely, how long their updates are and
    which way they push the outputs.

    The push is the update's last parameters: in all built-in models the biases of the output, one a class.
    """

    def __init__(self, source: Rounds, groups: Sequence[Group], clients: int, classes: int, closely: bool) -> None:
        self.source, self.classes, self.closely = source, classes, closely
        self.group_of = np.empty(clients, np.int64)
        for number, group in enumerate(groups):
            self.group_of[group.clients] = number
        self.seen: list[tuple[Any, torch.Tensor]] = []

    def next(self, round: int, params: torch.Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step, results = self.source.next(round, params)
        return step, self._watch(results)

    def _watch(self, results: Iterable[Trained]) -> Iterator[Trained]:
        for trained in results:
            # Copies, left on the device: nothing waits for the numbers before a block of rounds is over.
            numbers = [trained.losses[:, None]]
            if self.closely:  # some trainers have to put the updates together first, which takes time
                deltas = trained.deltas
                numbers += [deltas.norm(dim=1)[:, None], deltas[:, -self.classes :]]
            self.seen.append((trained.clients, torch.cat(numbers, dim=1)))
            yield trained

    def block(self) -> dict[str, list[Any]]:
        """The means of each group since the last call; None for a group that was not heard."""
        out: dict[str, list[Any]] = {"length": [], "train_loss": [], "push": []}
        groups = self.group_of[np.concatenate([clients for clients, _ in self.seen])] if self.seen else np.empty(0)
        values = torch.cat([values for _, values in self.seen]).double().cpu().numpy() if self.seen else np.empty(0)
        self.seen.clear()
        for number in range(int(self.group_of.max()) + 1):
            mean = values[groups == number].mean(axis=0) if (groups == number).any() else None
            close = self.closely and mean is not None
            out["train_loss"].append(None if mean is None else rounded(mean[0]))
            out["length"].append(rounded(mean[1]) if close else None)
            out["push"].append([round(float(v), 7) for v in mean[2:]] if close else None)
        return out


def observe(
    experiment: Experiment, closely: bool, deadline: float = math.inf, points: Collection[int] = (), patience: int = 0
) -> Line | None:
    """Do one run and write down its curve; None if the deadline (of time.time) came first.

    A run that diverges says so. points: rounds to evaluate besides those of the experiment. patience: evaluations in a
    row after which a model that puts every image into one class is given up; 0: never.
    """
    begun = start(experiment)
    groups, counts = begun.setup.fleet.groups(), begun.setup.data.label_counts()
    watched = Watched(begun.source, groups, *counts.shape, closely)
    simulation = replace(begun, source=watched)
    keys = ("round", "accuracy", "worst_group", "rare", "loss", "class_accuracy", "length", "train_loss", "push")
    curve: dict[str, list[Any]] = {key: [] for key in keys}
    close_up: list[dict[str, Any]] = []
    diverged = collapsed = None
    books: dict[str, float] = {}
    try:
        for record in simulation:
            if time.time() > deadline:
                return None
            number, metrics, books = record.round + 1, record.metrics, record.energy.to_dict()
            if metrics is None and number in points:
                metrics = simulation.evaluate(simulation.server.params)
            if closely and number > experiment.rounds - CLOSE_UP:
                now = metrics or simulation.evaluate(simulation.server.params)
                heard = np.bincount(watched.group_of[record.participants], minlength=len(groups)).tolist()
                recalls = [rounded(v) for v in now.class_accuracy]
                close_up.append({"round": number, "heard": heard, "class_accuracy": recalls})
            if metrics:
                point = {
                    "round": number,
                    "accuracy": rounded(metrics.accuracy),
                    "worst_group": rounded(metrics.worst_group_accuracy),
                    "rare": rounded(rare_accuracy(experiment.split, metrics, counts, groups)),
                    "loss": rounded(metrics.loss),
                    "class_accuracy": [rounded(v) for v in metrics.class_accuracy],
                    **watched.block(),
                }
                for key in keys:
                    curve[key].append(point[key])
                ends = curve["class_accuracy"][-patience:] if patience else []
                if len(ends) == patience > 0 and all(max(end) == sum(end) == 1.0 for end in ends):
                    collapsed = curve["round"][-patience]
                    break
    except DivergenceError as error:
        diverged = str(error)
    curve["push"] = curve["push"][-LAST:]  # the long part of a line, and only its end is looked at
    return {
        "diverged": diverged,
        "collapsed": collapsed,
        "energy": {key: books[key] for key in ("harvested", "spent", "wasted") if books},
        "groups": [group.label for group in groups],
        "shares": [rounded(counts[group.clients].sum() / counts.sum()) for group in groups],
        "rare_classes": rare_classes(counts, groups),
        "curve": curve,
        "close_up": close_up,
    }


def execute(study: Study, dataset: Dataset, run: Run, deadline: float = math.inf) -> Line | None:
    """Do one run; None if the deadline (of time.time) came first."""
    began = time.time()
    optimizer, keeps = client(run.client, run.rate)
    data = hold_out(dataset, study.held_out) if run.part == "tune" else dataset
    experiment = replace(
        study.base, data=Loaded(data), split=SPLITS[run.split], client=optimizer, keep_state=keeps, seed=run.seed
    ).with_method(run.method)
    seen = observe(experiment, run.part != "tune" and run.seed == study.seeds[0], deadline)
    if seen is None:
        return None
    seconds = round(time.time() - began, 1)
    return {"name": run.name, **asdict(run), "settings": study.settings(), "seconds": seconds, **seen}


def main() -> None:
    parser = study_runs.parser(__doc__, ["run", "table", "json", "figure"], "everfed-out/non_iid.jsonl")
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
    if options.command == "table":
        print(non_iid_tables.tables(read(options.results)))
        return
    if study_runs.write_out(parser, options, {"json": non_iid_tables.records, "figure": non_iid_tables.draw}):
        return
    base = replace(
        config.from_dict(presets.content(options.preset)),
        rounds=options.rounds, device=options.device, precision=options.precision,
    )  # fmt: skip
    study = Study(
        base,
        stages=tuple(stage for stage in STAGES if stage[1] in options.splits),
        rates=tuple(options.rates),
        adam_rates=tuple(options.adam_rates),
        seeds=tuple(range(options.seeds)),
        held_out=options.held_out,
    )
    done = carry_out(study, options.results, options.jobs, options.limit_s)
    print("\n" + non_iid_tables.tables(done))


if __name__ == "__main__":
    main()
