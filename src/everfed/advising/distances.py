"""How far methods are from the least variance that any unbiased schedule can have on this fleet."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from everfed.advising.advice import Distance, VarianceLimit
from everfed.advising.design import Design
from everfed.auditing.limit import limit
from everfed.auditing.noise import as_vectors
from everfed.methods import METHODS
from everfed.scheduling.plan import Schedule

# Meant to be unbiased in every round; others are not comparable with the limit.
METHODS_COMPARED = ("algorithm1", "lattice", "known-arrivals")
SEEDS = 2
MOST_STEPS = 50_000_000  # rounds times devices: some minutes


def distances(design: Design, rounds: int, target: float, tell: Callable[[str], None]) -> VarianceLimit | None:
    """For equal shares of the data and equal updates of length 1.

    None where no bound is known, where a battery or a round is impossible as it is, and for very many devices.
    """
    if design.unfit or np.any(design.capacity < 1.0) or rounds * len(design.fleet) > MOST_STEPS:
        return None
    fleet, n = design.fleet, len(design.fleet)
    seeds = np.arange(SEEDS, dtype=np.uint64)[:, None]
    tell("the least variance of any schedule")
    least = limit(fleet, np.full(n, 1.0 / n), rounds, as_vectors(None, n), seeds)
    if least is None:
        return None
    found = []
    for name in METHODS_COMPARED:
        tell(f"the variance of {name}")
        found.append(_measure(design, name, rounds, least.independent, target))
    return VarianceLimit(least.independent, least.lattice, found, _words(least.independent, found, least.starved))


def _measure(design: Design, name: str, rounds: int, least: float, target: float) -> Distance:
    """The variance of the round's weight, from the difference between two seeds, averaged over the rounds."""
    schedule = Schedule(design.fleet, METHODS[name].policy, np.arange(SEEDS, dtype=np.uint64)[:, None])
    n, squares = len(design.fleet), 0.0
    weight = np.zeros(n)
    for r in range(rounds):
        join, scale = schedule.step(r)
        weights = join * scale
        weight += weights.sum(axis=0)
        squares += float((weights[0] - weights[1]).sum() ** 2) / 2.0
    weight /= rounds * SEEDS
    by_group = np.array([weight[design.members(g)].mean() for g in range(len(design.labels))])
    unbiased = bool(np.all(np.abs(by_group - 1.0) <= 1.0 - target + 1e-12))
    variance = squares / rounds / n**2
    comparable = unbiased and 0.0 < least < math.inf
    times = variance / least if comparable else None
    return Distance(name, variance, times, unbiased, float(by_group.min()))


def _words(least: float, found: list[Distance], starved: tuple[str, ...]) -> str:
    if math.isinf(least):
        return f"No schedule is unbiased on this fleet: {', '.join(starved)} can never train."
    good = [d for d in found if d.times is not None]
    said = f"No unbiased schedule with independent clients has a variance of a round's update below {least:.3g}"
    if least == 0.0:
        exact = [d.method for d in found if d.unbiased]
        return f"An unbiased schedule without any variance exists; unbiased here: {', '.join(exact) or 'none'}."
    if not good:
        return f"{said}; no method here is unbiased on this fleet as it is, so none is compared with it."
    nearest = min(good, key=lambda d: d.times or 0.0)
    return f"{said}; the nearest unbiased method is {nearest.method}, with {nearest.times:.2f} times that."
