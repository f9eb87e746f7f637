"""A pilot: the evaluations of some short runs, and how much training lay before each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from everfed.arrays import Floats
from everfed.errors import DivergenceError, InputError, unknown
from everfed.learning.metrics import Metrics
from everfed.run.early_stopping import LOWER_IS_BETTER
from everfed.run.experiment import Experiment
from everfed.run.history import History, RoundRecord
from everfed.run.start import start

LEAST_EVALUATIONS = 6
_BOUNDS = {
    "accuracy": (0.0, 1.0), "worst_group_accuracy": (0.0, 1.0), "top-3": (0.0, 1.0), "top-5": (0.0, 1.0),
    "f1": (0.0, 1.0), "auc": (0.0, 1.0), "loss": (0.0, math.inf), "perplexity": (1.0, math.inf),
    "mae": (0.0, math.inf), "r2": (-math.inf, 1.0),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PilotRun:
    """What one run tells, at each of its evaluations. All but the values count from the run's start."""

    weight: Floats  # the round weights summed: 1 per round if every client counts fully in it
    rounds: Floats
    participations: Floats
    spent: Floats  # energy, in the fleet's unit
    values: Floats

    def first(self, part: float) -> PilotRun:
        """Its evaluations in the first part of its rounds."""
        inside = self.rounds <= part * self.rounds[-1] + 1e-9
        return PilotRun(*(column[inside] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Pilot:
    """Runs of one experiment under different seeds."""

    metric: str
    lower: bool  # whether lower values are better
    bounds: tuple[float, float]
    runs: list[PilotRun]

    @property
    def weight(self) -> float:
        """How far the longest run goes."""
        return max(float(run.weight[-1]) for run in self.runs)

    def per_weight(self, column: str) -> float:
        """Rounds, participations or energy per unit of summed weight, over all runs."""
        return sum(float(getattr(run, column)[-1]) for run in self.runs) / sum(float(r.weight[-1]) for r in self.runs)

    def first(self, part: float) -> Pilot:
        return replace(self, runs=[run.first(part) for run in self.runs])

    @property
    def evaluations(self) -> int:
        return sum(len(run.values) for run in self.runs)


def read_pilot(runs: Sequence[History], metric: str = "accuracy", better: str = "auto") -> Pilot:
    """The pilot that some runs are. better: "lower" or "higher", for a metric of one's own."""
    if not runs:
        raise InputError("a pilot needs at least one run.")
    if metric not in LOWER_IS_BETTER and better == "auto":
        raise InputError(
            f"the metric '{metric}' is one of the run's own; say which values are better: lower or higher."
        )
    lower = LOWER_IS_BETTER.get(metric, False) if better == "auto" else better == "lower"
    found = [_points(run, metric) for run in runs]
    short = [len(one.values) for one in found if len(one.values) < LEAST_EVALUATIONS]
    if short:
        raise InputError(
            f"a run of the pilot has {short[0]} evaluations of '{metric}' after its first update; at least "
            f"{LEAST_EVALUATIONS} are needed: train for more rounds, or evaluate more often (eval_every)."
        )
    return Pilot(metric, lower, _BOUNDS.get(metric, (-math.inf, math.inf)), found)


def _points(run: History, metric: str) -> PilotRun:
    records = run.rounds
    weight = np.cumsum([max(record.round_weight, 0.0) for record in records])
    participations = np.cumsum([len(record.participants) for record in records])
    rows = [
        (weight[i], record.round + 1.0, float(participations[i]), record.energy.spent, _value(record.metrics, metric))
        for i, record in enumerate(records)
        if record.metrics
    ]
    # Before the first update there is nothing to learn from.
    rows = [row for row in rows if row[0] > 0.0 and math.isfinite(row[-1])]
    return PilotRun(*np.array(rows, np.float64).reshape(-1, 5).T)


def _value(metrics: Metrics, metric: str) -> float:
    value = metrics.value(metric)
    if value is None:
        known = [name for name in ("loss", *metrics.own) if name != metric]
        raise InputError(unknown("metric of this run", metric, known))
    return float(value)


@dataclass(frozen=True, eq=False)
class Trained(History):
    """A pilot that was run here, and its experiment."""

    experiment: Experiment


def train_pilot(
    experiment: Experiment, rounds: int, watch: Callable[[Iterator[RoundRecord]], Iterator[RoundRecord]] = iter
) -> Trained:
    """The first rounds of an experiment, evaluated about twenty times. watch: passes its records on, one by one.

    Its schedules are those of all its rounds: a rate that falls until the end is still high where the pilot ends.
    """
    whole = max(experiment.rounds, rounds)
    run = start(replace(experiment, rounds=whole, eval_every=max(1, rounds // 20)))
    try:
        records = list(watch(islice(run, rounds)))
    except DivergenceError as error:
        raise InputError(f"the pilot diverged, so that nothing can be expected of the experiment: {error}") from error
    return Trained(records, run.params, experiment=experiment)
