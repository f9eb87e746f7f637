"""The real simulator under the theorem's step size, beside the theorem's bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.learning.optim import SGD, InverseTime
from everfed.methods import METHODS
from everfed.registry import lookup
from everfed.run.experiment import Experiment
from everfed.run.start import start
from everfed.testbed.problem import Problem
from everfed.theory import PROVEN, Bound
from everfed.theory.coverage import participation

# All of the same step size, so that methods can be compared.
DEFAULT_CONSTANT = {"everybody": "independent", "coins": "independent", "windows": "windows", "lattice": "windows"}


@dataclass(frozen=True)
class Gaps:
    """F(w) - F* of several runs at some iterations, and the bound there."""

    method: str
    iterations: Ints  # [P]
    each: Floats  # [seeds, P]
    bound: Bound
    constant: str  # whose step size the runs took, and whose bound is held against them
    reach: float  # an upper bound on the distance of any server or local iterate from the optimum
    radius: float  # where the bound's G holds

    @property
    def gamma(self) -> float:
        return self.bound.gammas[self.constant]

    @property
    def mean(self) -> Floats:
        average: Floats = self.each.mean(axis=0)
        return average

    @property
    def error(self) -> Floats:
        """Standard error of the mean over seeds."""
        spread: Floats = self.each.std(axis=0, ddof=1) / math.sqrt(len(self.each))
        return spread

    @property
    def inside(self) -> bool:
        """Whether the runs stayed where the bound's constants hold."""
        return self.reach <= self.radius

    @property
    def bounds(self) -> Floats:
        """The bound at each of the iterations."""
        values: Floats = self.bound.curve(self.iterations)[self.constant]
        return values

    def slope(self, since: int = 0) -> float:
        """Of log(mean gap) over log(gamma + K), from iteration `since` on: -1 is the theorem's rate."""
        late = self.iterations >= since
        x = np.log(self.gamma + self.iterations[late])
        return float(np.polyfit(x, np.log(self.mean[late]), 1)[0])


def measure(
    problem: Problem,
    fleet: Fleet,
    method: str,
    *,
    rounds: int,
    local_steps: int = 5,
    seeds: Sequence[int] = range(5),
    points: int = 30,
    at: Sequence[int] | None = None,
    constant: str | None = None,
) -> Gaps:
    """Train `problem` with each seed and record the gap `points` times, evenly spaced in log(gamma + K).

    at: after which rounds to record instead, ascending. Without minibatch noise the error of windows follows them:
    where all clients' windows end together it is far smaller than between.
    constant: whose step size to take, of those that are proven for the method.
    """
    chosen = lookup(METHODS, method, "method")
    kind = participation(chosen.policy, chosen.server, fleet)
    constant = constant or DEFAULT_CONSTANT[kind]
    if constant not in PROVEN[kind]:
        raise InputError(f"the constant '{constant}' is not proven for {method}; use one of {', '.join(PROVEN[kind])}.")
    cycles = np.ones(len(fleet), np.int64) if kind == "everybody" else fleet.cycles()
    result = problem.bound(cycles, local_steps, rounds * local_steps, of_samples=constant == "windows_smooth")
    gamma, first_rate = result.gammas[constant], result.first_step(constant)
    optimizer = SGD(lr=first_rate, weight_decay=problem.weight_decay, schedule=InverseTime(gamma=gamma))
    first = gamma / local_steps
    spaced = np.geomspace(first + 1, first + rounds, points) - first
    recorded = np.unique(np.round(spaced) if at is None else np.asarray(at)).astype(np.int64)
    if recorded[0] < 1 or recorded[-1] > rounds:
        raise InputError(f"gaps were asked for after round {recorded[0]} to {recorded[-1]} of {rounds}.")
    each = np.empty((len(seeds), len(recorded)))
    reach = 0.0
    for row, seed in enumerate(seeds):
        experiment = Experiment.of(
            problem.module, problem.data, fleet, method, rounds=rounds, local_steps=local_steps,
            batch_size=problem.batch_size, client=optimizer, loss=problem.loss, seed=seed,
            device="cpu", eval_every=rounds,
        )  # fmt: skip
        run = start(experiment)
        reach = max(reach, _local_reach(problem, problem.start, local_steps, first_rate))
        column = 0
        for record in run:
            w = run.server.params.numpy().astype(np.float64)
            rate = first_rate * gamma / (gamma + (record.round + 1) * local_steps)
            reach = max(reach, _local_reach(problem, w, local_steps, rate))
            if column < len(recorded) and record.round + 1 == recorded[column]:
                each[row, column] = problem.gap(w)
                column += 1
    if constant == "windows_smooth":
        reach += _aside(problem, cycles, local_steps * first_rate, reach)
    return Gaps(method, recorded * local_steps, each, result, constant, reach, problem.radius)


def _local_reach(problem: Problem, w: Floats, local_steps: int, rate: float) -> float:
    """How far from the optimum local steps from w can lead, at most.

    A gradient step of a convex smooth loss brings no two points further apart, so each local step
    adds at most rate * |gradient at the optimum| to the distance from it.
    """
    return float(np.linalg.norm(w - problem.optimum)) + local_steps * rate * problem.steepest


def _aside(problem: Problem, cycles: Ints, steps: float, reach: float) -> float:
    """How far a run without one client's latest update can be from the real one, at most.

    Nothing amplifies that update (docs/theory.md), which is no longer than the local steps times the longest gradient.
    """
    longest = problem.steepest + problem.sample_smoothness * reach
    return float((problem.data.shares() * cycles).max()) * steps * longest
