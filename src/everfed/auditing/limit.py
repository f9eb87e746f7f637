"""Lower bounds on the variance of unbiased schedules.

Let a be a client's weight in a round (join times scale) and pi the chance that it joins. Unbiased means E[a] = 1,
so E[a^2] >= 1 / pi by Cauchy and Schwarz; a schedule can join at most as often as greedy does, so by convexity
the average over the rounds of the variance is at least 1 / pi_greedy - 1. Algorithm 1 attains it where no slot
is lost. Only clients that share their draws can do better: the lattice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.noise import Noise
from everfed.energy.fleet import Fleet
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.laws import law_of, seedless
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Decision, Greedy, Policy, State, View


@dataclass(frozen=True)
class Limit:
    """The least variance of a round's update, averaged over the rounds, for the updates the audit was given."""

    independent: float  # of unbiased schedules whose clients draw independently; inf: none exists
    exact: bool  # False: the rates of greedy were measured over the audit's seeds
    lattice: float | None  # the lattice's variance; None if it has no exact law
    starved: tuple[str, ...] = ()  # groups with clients that can never train


def limit(fleet: Fleet, shares: Floats, rounds: int, vectors: Floats, seeds: Any) -> Limit | None:
    """None where a round's cost is random: then trying early may lose energy, and greedy is no bound; and where
    greedy's rate had to be measured and some client was not seen at all."""
    if fleet.storage.cost_spread > 0.0:
        return None
    rate, exact = _most_often(fleet, rounds, seeds)
    squares = (vectors**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        active = np.maximum(rounds - fleet.offsets(), 0) / rounds
        parts = np.where(active > 0.0, shares**2 * squares * active * (1.0 / rate - 1.0), np.inf)
    parts = np.where(shares * squares > 0.0, parts, 0.0)
    if not exact and np.any(rate[active > 0.0] == 0.0):
        return None  # clients not seen in these seeds may still train in others
    never = (rate == 0.0) & (shares > 0.0)
    starved = tuple(g.label for g in fleet.groups() if np.any(never[g.clients]))
    best = Noise(fleet, Lattice(), shares, rounds, vectors).averages()
    return Limit(float(parts.sum()), exact, best[1] if best else None, starved)


def _most_often(fleet: Fleet, rounds: int, seeds: Any) -> tuple[Floats, bool]:
    """Each client's highest possible rate of participation since its start, and whether that is exact."""
    n, active = len(fleet), np.maximum(rounds - fleet.offsets(), 1)
    law = None if seedless(fleet.arrivals) else law_of(fleet, Greedy(), rounds)
    if law is not None:
        return sum((one.probability for one in law.rounds()), np.zeros(n)) / active, True
    fixed = seedless(fleet.arrivals)
    schedule = Schedule(fleet, _FromTheStart(), 0 if fixed else seeds)
    joins, runs = np.zeros(n), 1 if fixed else len(seeds)
    for r in range(rounds):
        joins += schedule.step(r)[0].reshape(-1, n).sum(axis=0)
    return joins / runs / active, fixed


class _FromTheStart(Policy):
    """Greedy from each client's start on. No schedule takes part more often: spending a unit later loses at least as
    much to leakage and overflow."""

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        return Decision(view.affords & (clients.offsets <= view.round), np.ones(len(clients.ids)), state)
