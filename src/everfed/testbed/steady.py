"""Scalar quadratics at a constant step: what is left of a method's error when nothing else is.

Client i's loss is (w - c_i)^2 / 2, and a round of local training covers a part a of the way to c_i,
with noise: delta_i = a (c_i + noise * xi - w), a = 1 - (1 - eta)^T. The schedule, the policies and the
server's weighing are the real ones, stepped for many seeds side by side; rules that remember updates
are written out here, because the server's own keep tensors (a test holds the two together).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.methods import METHODS, Method
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import UniformWindow
from everfed.server.last_updates import LastUpdates, Varp

# The comparison of docs/results/theory.md. HT-VARP with full memory, where the table's methods take half.
METHODS_COMPARED: dict[str, Method] = {
    **{
        name: METHODS[name]
        for name in (
            "fedavg", "greedy", "algorithm1-unscaled", "greedy-normalized", "greedy-scaled", "bernoulli",
            "algorithm1", "lattice", "fixed-phase", "fedau", "echo", "last-updates",
        )
    },
    "ht-varp, memory 1": Method(UniformWindow(), Varp(memory=1.0), "HT-VARP, memory 1"),
}  # fmt: skip


@dataclass(frozen=True)
class Steady:
    """Error about the optimum, averaged over rounds and seeds."""

    mse: float
    mse_error: float  # standard error over seeds
    bias: float  # mean of w - w*
    bias_error: float


def paper_fleet() -> tuple[Fleet, Floats]:
    """The paper's 40 clients, with centres 0, 1, 2, 3 that follow the energy."""
    return Fleet.from_cycles([1, 5, 10, 20] * 10), np.tile([0.0, 1.0, 2.0, 3.0], 10)


def trajectory(
    method: Method, fleet: Fleet, centres: Floats, step: float, noise: float, rounds: int, seeds: Ints, start: float
) -> Iterator[Floats]:
    """w after every round, [S]: one number per seed."""
    schedule = Schedule(fleet, method.policy, seeds.astype(np.uint64)[:, None])
    count, clients = len(seeds), len(fleet)
    weigher = method.server.weighting(count * clients)
    # Noise of minibatches: any generator will do, since it has nothing to do with who takes part.
    chance = np.random.default_rng([int(seeds[0]), count])
    share = 1.0 / clients
    w = np.full(count, float(start))
    last, seen = np.zeros((count, clients)), np.zeros((count, clients), np.bool_)
    for r in range(rounds):
        join, scale = schedule.step(r)
        targets = centres + noise * chance.standard_normal((count, clients)) if noise else centres
        delta = step * (targets - w[:, None])
        rows = np.flatnonzero(join)
        weight = np.zeros((count, clients))
        asked = np.broadcast_to(scale, join.shape).reshape(-1)[rows]
        weight.reshape(-1)[rows] = share * weigher.factors(r, rows, asked)
        if method.server.normalizes:
            weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        if isinstance(method.server, LastUpdates):
            last, seen = np.where(join, delta, last), seen | join
            # Until a client has taken part, the others stand in for it.
            w = w + last.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        elif isinstance(method.server, Varp):
            recalled = method.server.memory * last
            w = w + share * recalled.sum(axis=1) + (weight * (delta - recalled)).sum(axis=1)
            last = np.where(join, delta, last)
        else:
            w = w + (weight * delta).sum(axis=1)
        yield w


def steady(
    method: Method,
    fleet: Fleet,
    centres: Floats,
    step: float,
    noise: float = 0.0,
    *,
    seeds: int = 100,
    rounds: int = 2000,
    warm_up: int | None = None,
) -> Steady:
    """The stationary error of a method, from `rounds` rounds after a warm-up (default: 20 / step, at least 1000).

    rounds should be a multiple of every cycle: some methods' errors follow the windows.
    """
    optimum = float(centres.mean())
    skipped = max(1000, math.ceil(20.0 / step)) if warm_up is None else warm_up
    square, total = np.zeros(seeds), np.zeros(seeds)
    run = trajectory(method, fleet, centres, step, noise, skipped + rounds, np.arange(seeds), optimum)
    for r, w in enumerate(run):
        if r >= skipped:
            total += w - optimum
            square += (w - optimum) ** 2
    square, total = square / rounds, total / rounds
    return Steady(*_mean(square), *_mean(total))


def coin_mse(fleet: Fleet, centres: Floats, step: float, noise: float = 0.0, shares: Floats | None = None) -> float:
    """The stationary error of Bernoulli participation, exactly."""
    p, away = _about_the_optimum(centres, shares)
    waits = p**2 * (fleet.cycles() - 1.0)
    squares = waits @ away**2 + noise**2 * float(p**2 @ fleet.cycles())
    return float(step * squares / (2.0 - step - step * waits.sum()))


def window_variance(fleet: Fleet, centres: Floats, step: float, shares: Floats | None = None) -> float:
    """The stationary variance of Algorithm 1 without noise, to leading order in step * cycle."""
    p, away = _about_the_optimum(centres, shares)
    return float(step**2 * (p**2 * (fleet.cycles() ** 2 - 1.0) / 6.0) @ away**2)


def window_bias(fleet: Fleet, centres: Floats, step: float, shares: Floats | None = None) -> float:
    """How far Algorithm 1 is pulled towards rare clients, to leading order in the step."""
    p, away = _about_the_optimum(centres, shares)
    return float(step / 2.0 * (p**2 * (fleet.cycles() - 1.0)) @ away)


def window_mse(fleet: Fleet, centres: Floats, step: float, shares: Floats | None = None) -> float:
    """The stationary error of Algorithm 1 without noise, to leading order: the variance, and the squared pull.

    Both are of the order of step^2. With many clients the pull is small; with one that weighs much it is not.
    """
    pull = window_bias(fleet, centres, step, shares)
    return window_variance(fleet, centres, step, shares) + pull**2


def _about_the_optimum(centres: Floats, shares: Floats | None) -> tuple[Floats, Floats]:
    """(shares, equal unless given; how far each centre lies from the optimum)."""
    p = np.full(len(centres), 1.0 / len(centres)) if shares is None else np.asarray(shares)
    return p, centres - p @ centres


def _mean(values: Floats) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
