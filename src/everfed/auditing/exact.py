"""Exact values of a schedule, from its law or, for deterministic schedules, from one run.

They hold for this fleet with its storage and offsets, this policy, this server rule and this horizon; otherwise none
are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.tally import Figures, Tally, measured
from everfed.energy.fleet import Fleet
from everfed.scheduling.laws import Law, are_independent, is_deterministic, law_of, seedless
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Energy, Policy, WaitForAll
from everfed.server.control import HTScaffold
from everfed.server.rules import ServerRule, Sum, Truncated

# Rules whose factor for a participant depends only on its scale.
_MEMORYLESS = (Sum, Truncated, HTScaffold)


class Extreme(NamedTuple):
    """A client's mean weight in one round."""

    weight: float
    client: int
    round: int


class Exact(NamedTuple):
    """Values, and the rounds in which clients have the largest and smallest weight (None: unknown)."""

    figures: Figures
    most: Extreme | None = None
    least: Extreme | None = None


def exactly(fleet: Fleet, policy: Policy, shares: Floats, rounds: int, server: ServerRule | None) -> Exact:
    """server: its weights replace the clients' scales (None: the scales are used)."""
    known = are_independent(policy) or type(policy) is WaitForAll
    violations = 0.0 if known and policy.energy is Energy.OBEYED else None
    if is_deterministic(fleet, policy):
        return _of_one_run(fleet, policy, shares, rounds, server)
    laws = round_laws(fleet, policy, rounds, server)
    if laws is None:
        return Exact(Figures(violations=violations))
    rate, weight = np.zeros(len(fleet)), np.zeros(len(fleet))
    means, variances = np.zeros(rounds), np.zeros(rounds)
    most = least = Extreme(1.0, 0, 0)
    for r, law in enumerate(laws):
        started = fleet.offsets() <= r
        counted = law.probability * law.scale
        rate += law.probability * started
        weight += counted * started
        means[r], variances[r] = shares @ counted, law.weight_variance(shares)
        most, least = _extremes(most, least, np.where(started, counted, 1.0), r)
    active = np.maximum(rounds - fleet.offsets(), 1)
    run_law = law_of(fleet, policy, rounds)
    sums = run_law.gaps() if run_law else None
    gap_mean, gap_variance = sums.mean_and_variance() if sums else (None, None)
    figures = Figures(
        participation_rate=rate / active,
        mean_weight=weight / active,
        gap_mean=gap_mean,
        gap_variance=gap_variance,
        round_weight_mean=float(means.mean()),
        round_weight_variance=float(variances.mean() + means.var()),
        update_variance=float(variances.mean()),
        single_round_bias=max(most.weight - 1.0, 1.0 - least.weight),
        violations=violations,
    )
    return Exact(figures, most, least)


def round_laws(fleet: Fleet, policy: Policy, rounds: int, server: ServerRule | None) -> Iterator[Law] | None:
    """The law of every round, with the server's factors in place of the clients' scales."""
    if server is not None and type(server) not in _MEMORYLESS:
        return None
    run_law = law_of(fleet, policy, rounds)
    if run_law is None or server is None:
        return run_law.rounds() if run_law else None
    everybody, weigher = np.arange(len(fleet)), server.weighting(len(fleet))
    return (law._replace(scale=weigher.factors(r, everybody, law.scale)) for r, law in enumerate(run_law.rounds()))


def _of_one_run(fleet: Fleet, policy: Policy, shares: Floats, rounds: int, server: ServerRule | None) -> Exact:
    """Exact values of a deterministic schedule, whose runs are the same for every seed."""
    most = least = Extreme(1.0, 0, 0)

    class Watched(Tally):
        def _round(self, round: int, weights: Floats) -> None:
            nonlocal most, least
            super()._round(round, weights)
            with np.errstate(invalid="ignore", divide="ignore"):
                counted = weights[0] / shares
            seen = (fleet.offsets() <= round) & (shares > 0.0)
            most, least = _extremes(most, least, np.where(seen, counted, 1.0), round)

    tally = Watched(fleet, shares, rounds, server)
    tally.run(Schedule(fleet, policy, 0))
    figures = replace(measured(tally), single_round_bias=max(most.weight - 1.0, 1.0 - least.weight))
    if not seedless(fleet.arrivals):  # joins are the same for every seed, but missing energy is not
        figures = replace(figures, violations=None)
    return Exact(figures, most, least)


def _extremes(most: Extreme, least: Extreme, counted: Floats, round: int) -> tuple[Extreme, Extreme]:
    high, low = int(np.argmax(counted)), int(np.argmin(counted))
    if counted[high] > most.weight:
        most = Extreme(float(counted[high]), high, round)
    if counted[low] < least.weight:
        least = Extreme(float(counted[low]), low, round)
    return most, least
