"""Expected accuracy: what a pilot's curve becomes with more training, and how sure that is.

A pilot is extrapolated over the sum of its round weights, which is the number of rounds if every client counts fully in
each. The family of curves (`curves`) gives a median and an interval; intervals are then widened by factors that were
measured on stored runs, for how many times the pilot's length they look ahead (docs/results/expected.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from everfed.advising.curves import Curves, fit
from everfed.advising.pilot import Pilot, read_pilot
from everfed.arrays import Floats
from everfed.errors import counted
from everfed.learning.optim import Cosine
from everfed.run.experiment import Experiment
from everfed.run.history import History
from everfed.stats import finite

LEVEL = 0.9
# By how many times the pilot's length is looked ahead: what makes intervals of 90 % of them. From half of the runs of
# experiments/expected.py, tested on the other half; a test compares them with docs/results/expected.json.
WIDENING: dict[float, float] = {3.0: 0.63, 6.0: 0.73, 12.0: 1.72}
FARTHEST = max(WIDENING)
# Half an interval is at least this part of what is left to gain at the end of the pilot, times the factor.
FLOOR = 0.2
PERCENT = 0.01
_WORST_GROUP = (
    "the worst group's accuracy rises when that group is learnt, and no curve knows when: intervals contained it in "
    "two of three tests, not in nine of ten."
)


@dataclass(frozen=True)
class Estimate:
    """A median and the ends of an interval; infinite where most curves never get there."""

    value: float
    low: float
    high: float
    ahead: float = 1.0  # how many times the pilot's length it looks ahead

    @property
    def tested(self) -> bool:
        """Whether intervals that look so far ahead have been compared with runs."""
        return self.ahead <= FARTHEST * (1.0 + 1e-9)

    def to_dict(self) -> dict[str, Any]:
        ends = {"value": finite(self.value), "low": finite(self.low), "high": finite(self.high)}
        return {**ends, "ahead": self.ahead, "tested": self.tested}


@dataclass(frozen=True, eq=False)
class Expected:
    """What to expect of a metric, as `everfed.expect` finds it.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, seed=0)
    >>> pilot = ef.simulate("logistic", data, fleet, rounds=20, eval_every=2, client=ef.SGD(0.1))
    >>> found = ef.expect([pilot], "loss").after(40)
    >>> found.low <= found.value <= found.high
    True
    """

    pilot: Pilot  # the evaluations of the runs
    curves: Curves  # the family of curves that was fitted to them
    notes: tuple[str, ...]  # why not to trust it
    experiment: Experiment | None = None  # that the runs are of, where they know it

    def at(self, weight: float, widened: bool = True) -> Estimate:
        """The metric once the round weights sum up to so much: as one evaluation would find it."""
        ahead = weight / self.pilot.weight
        low, high = np.quantile(self.curves.at(weight, noisy=True)[:, 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        middle = float(np.median(self.curves.at(weight)[:, 0]))
        if widened:
            factor, floor = widening(ahead), FLOOR * self.left
            low = middle - factor * (max(middle - low, 0.0) + floor)
            high = middle + factor * (max(high - middle, 0.0) + floor)
        lowest, highest = self.pilot.bounds
        return Estimate(middle, max(float(low), lowest), min(float(high), highest), ahead)

    @property
    def left(self) -> float:
        """How far the end of the pilot is from the best value there can be; without one, the range of its values."""
        best = self.pilot.bounds[0 if self.pilot.lower else 1]
        if math.isfinite(best):
            return abs(best - float(np.mean([run.values[-1] for run in self.pilot.runs])))
        return float(np.ptp(np.concatenate([run.values for run in self.pilot.runs])))

    def after(self, amount: float, of: str = "rounds") -> Estimate:
        """The metric after so many rounds, participations, or so much energy spent, at the pilot's rates."""
        return self.at(amount / self.pilot.per_weight(of))

    def until(self, value: float) -> Estimate:
        """The sum of round weights until the metric is as good as a value; low and high are those of all curves."""
        return _quantiles(self._crossings(np.full(len(self.curves.a), value)))

    def per_percent(self, weight: float, of: str = "spent") -> Estimate:
        """The energy (or rounds, participations) that a further 0.01 costs from this sum of round weights on."""
        step = -PERCENT if self.pilot.lower else PERCENT
        crossings = self._crossings(self.curves.at(weight)[:, 0] + step)
        return _quantiles((crossings - weight) * self.pilot.per_weight(of))

    def _crossings(self, values: Floats) -> Floats:
        """[draws] where each curve reaches its value; infinite where it does not within a million pilots."""
        start, end = 1e-6 * self.pilot.weight, 1e6 * self.pilot.weight

        def reached(places: Floats) -> Any:
            y = self.curves.each_at(places)
            return y <= values if self.pilot.lower else y >= values

        low, high = np.full(len(values), start), np.full(len(values), end)
        possible = reached(high)
        for _ in range(60):
            middle = np.sqrt(low * high)
            above = reached(middle)
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.where(possible, high, math.inf)

    def to_dict(self, ahead: Sequence[float] = (1.0, 2.0, 3.0, 6.0, 12.0)) -> dict[str, Any]:
        """For JSON; ahead: lengths of the pilot at which to tell what is expected."""
        weights = [self.pilot.weight * length for length in ahead]
        per = {name: self.pilot.per_weight(name) for name in ("rounds", "participations", "spent")}
        return {
            "metric": self.pilot.metric,
            "better": "lower" if self.pilot.lower else "higher",
            "level": LEVEL,
            "pilot": {"weight": self.pilot.weight, "runs": len(self.pilot.runs), "per_weight": per},
            "expected": [{"weight": weight, **self.at(weight).to_dict()} for weight in weights],
            "energy_per_percent": self.per_percent(self.pilot.weight).to_dict(),
            "shapes": self.curves.fitted,
            "noise": self.curves.noise,
            "notes": list(self.notes),
        }


def expect(runs: Sequence[History], metric: str = "accuracy", better: str = "auto") -> Expected:
    """What to expect of a metric, from some runs of one experiment.

    runs: finished or stopped, each with at least four evaluations.
    metric: accuracy, loss, worst_group_accuracy, or one of your own.
    better: "lower" or "higher", for a metric of one's own.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, seed=0)
    >>> pilot = ef.simulate("logistic", data, fleet, rounds=20, eval_every=2, client=ef.SGD(0.1))
    >>> expect([pilot]).after(60).value > pilot.final.accuracy
    True
    """
    once = list({_name(run): run for run in runs}.values())
    notes = doubts(once)
    if len(once) < len(runs):
        notes.append(f"{counted(len(runs) - len(once), 'run')} of the pilot was given more than once, and counts once.")
    runs = once
    found = extrapolated(read_pilot(runs, metric, better), notes)
    return replace(found, experiment=next(_experiments(runs), None))


def extrapolated(pilot: Pilot, notes: Sequence[str] = ()) -> Expected:
    """What to expect, from a pilot's points."""
    if pilot.metric == "worst_group_accuracy":
        notes = (*notes, _WORST_GROUP)
    curves = fit([(run.weight, run.values) for run in pilot.runs], not pilot.lower, pilot.bounds)
    return Expected(pilot, curves, (*notes, *_worsening(pilot, curves)))


def widening(ahead: float) -> float:
    """The factor for looking so many pilots ahead: between those measured, and on beyond them in the logarithm."""
    known = np.log(list(WIDENING))
    factors = np.array(list(WIDENING.values()))
    place = math.log(max(ahead, 1.0))
    if place <= known[-1]:
        return float(np.interp(place, known, factors))
    slope = (factors[-1] - factors[-2]) / (known[-1] - known[-2])
    return float(factors[-1] + max(slope, 0.0) * (place - known[-1]))


def doubts(runs: Sequence[History]) -> list[str]:
    """What makes an extrapolation of these runs doubtful, however well it fits."""
    notes = []
    if any(getattr(run, "state", "done") == "diverged" for run in runs):
        notes.append("a run of the pilot diverged: only its rounds before that are used, and others may follow it.")
    for experiment in islice(_experiments(runs), 1):  # the others differ in their seeds
        schedule, rounds = getattr(experiment.client, "schedule", None), max(len(run.rounds) for run in runs)
        if isinstance(schedule, Cosine) and rounds < experiment.rounds:
            notes.append(
                f"the learning rate falls until round {experiment.rounds:,}, and the pilot has {rounds:,}: the metric "
                "may still improve by more than is expected here when the rate has fallen."
            )
        elif isinstance(schedule, Cosine):
            notes.append(
                f"the learning rate fell over the {rounds:,} rounds of the pilot, so that its curve flattens earlier "
                "than that of a longer run would."
            )
        absent = _absent(experiment, runs)
        if absent:
            notes.append(
                f"no client of {', '.join(absent)} took part in the pilot: what their data change is not in its curve."
            )
    return notes


def _name(run: History) -> object:
    """What two readings of one stored run have in common."""
    path = getattr(run, "path", None)
    return path.resolve() if isinstance(path, Path) else id(run)


def _experiments(runs: Sequence[History]) -> Iterator[Experiment]:
    """Of runs that were stored, or trained by `train_pilot`."""
    return (found for run in runs if isinstance(found := getattr(run, "experiment", None), Experiment))


def _absent(experiment: Experiment, runs: Sequence[History]) -> list[str]:
    """The groups of which no client took part."""
    seen = {int(client) for run in runs for record in run.rounds for client in record.participants}
    return [group.label for group in experiment.make_fleet().groups() if seen.isdisjoint(group.clients.tolist())]


def _worsening(pilot: Pilot, curves: Curves) -> list[str]:
    """Whether the pilot's last quarter is worse than the one before by more than its noise."""
    falls = []
    for run in pilot.runs:
        quarter = max(len(run.values) // 4, 1)
        before, last = run.values[-2 * quarter : -quarter].mean(), run.values[-quarter:].mean()
        falls.append((last - before) if pilot.lower else (before - last))
    if float(np.mean(falls)) > max(curves.noise / math.sqrt(len(falls)), 1e-9):
        return [f"the {pilot.metric} got worse towards the end of the pilot; curves that improve do not describe it."]
    return []


def _quantiles(values: Floats) -> Estimate:
    # "lower" and "higher" are values of draws: between a number and infinity there is nothing to interpolate.
    low = np.quantile(values, (1 - LEVEL) / 2, method="lower")
    high = np.quantile(values, (1 + LEVEL) / 2, method="higher")
    return Estimate(float(np.quantile(values, 0.5, method="lower")), float(low), float(high))
