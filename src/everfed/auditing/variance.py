"""The variance of a round by client, and which device to upgrade first.

For given updates delta_i the variance of sum over participants of share * scale * delta is exact from the
schedule's law: sum_i p_i^2 (E_i - 1) |delta_i|^2 for Algorithm 1. It is an average over the rounds of the run,
in which clients that have not started do not take part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.auditing.noise import Noise, as_vectors
from everfed.energy.fleet import Fleet
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.laws import is_deterministic
from everfed.scheduling.policies import Policy
from everfed.server.rules import ServerRule
from everfed.units import energy

# Clients tried, the noisiest first; one of many alike stands for all of them. Those that must be tried one by one
# take longer.
_MOST_TRIED, _MOST_TRIED_ALONE = 64, 4


@dataclass(frozen=True)
class Upgrade:
    """More energy for one client, which shortens its cycle by one round."""

    client: int
    group: str
    cycle: int  # now
    energy: float  # more per round, in the fleet's unit
    energy_part: float  # the same, as a fraction of its current harvest
    unit: str
    variance: float  # of a round's update afterwards

    def words(self, before: float) -> str:
        amount = energy(self.energy) if self.unit == "J" else f"{self.energy:.3g} {self.unit}"
        more = f"{amount} more per round (+{self.energy_part:.1%})"
        who = f"{self.group} (client {self.client})" if self.unit == "J" else f"client {self.client} ({self.group})"
        return (
            f"upgrading helps most at {who}: {more} shortens its cycle from "
            f"{self.cycle} to {self.cycle - 1} and a round's variance from {before:.5g} to {self.variance:.5g}."
        )


def best_upgrade(noise: Noise, own: Floats, exact: float) -> tuple[Upgrade | None, bool]:
    """(the client with the largest drop in variance per joule or unit more per round; whether any change was known)."""
    fleet = noise.fleet
    cycles = fleet.cycles()
    unit_j = np.ones(len(fleet)) if fleet.unit_j is None else fleet.unit_j
    offered, needed = noise.harvest()
    kinds = np.stack([cycles, fleet.offsets(), noise.shares, unit_j, own, needed - offered])
    _, alike = np.unique(kinds, axis=1, return_index=True)
    waiting = alike[cycles[alike] > 1]
    promise = own[waiting] * cycles[waiting] / unit_j[waiting]
    waiting = waiting[np.argsort(-promise, kind="stable")][:_MOST_TRIED]
    best, best_worth, known = None, 0.0, False
    for client, after in _after(noise, own, exact, waiting):
        known = True
        more = float(unit_j[client] * (needed - offered)[client])
        worth = (exact - after) / max(more, 1e-12 * float(unit_j[client]))
        if worth > best_worth * (1.0 + 1e-9) + 1e-15:
            best_worth = worth
            group = next(g.label for g in fleet.groups() if client in g.clients)
            part = more / float(unit_j[client] * offered[client])
            best = Upgrade(client, group, int(cycles[client]), more, part, fleet.energy_unit, after)
    return best, known


def _after(noise: Noise, own: Floats, exact: float, clients: Ints) -> Iterator[tuple[int, float]]:
    """The variance with a cycle one round shorter, for each of these clients where it can be computed."""
    if len(clients) and type(noise.policy) is not Lattice:
        everybody = noise.of(clients).with_more_energy(np.arange(len(clients)))
        found = everybody.averages() if everybody else None
        if found is not None:
            for client, part in zip(clients.tolist(), found[0].tolist(), strict=True):
                yield client, exact - float(own[client]) + part
            return
    for client in clients[:_MOST_TRIED_ALONE].tolist():
        concerned = _sharing(noise, client)
        near = noise.of(concerned)
        richer = near.with_more_energy(np.flatnonzero(concerned == client))
        before, later = near.averages(), richer.averages() if richer else None
        if before is not None and later is not None:
            yield client, max(exact - before[1] + later[1], 0.0)


def _sharing(noise: Noise, client: int) -> Ints:
    """The clients that share a draw with this one, before or after the change; the variance of the others stays."""
    if type(noise.policy) is not Lattice:
        return np.array([client])
    cycles, offsets = noise.fleet.cycles(), noise.fleet.offsets()
    near = (cycles == cycles[client]) | (cycles == cycles[client] - 1)
    return np.flatnonzero((offsets == offsets[client]) & near)


_UNKNOWN = "unknown: this schedule has no exact law on this fleet, so the effect of a change cannot be computed."


@dataclass(frozen=True)
class Variance:
    """A round's variance for given updates, E|update - its mean|^2, averaged over the rounds."""

    measured: float | None  # over seeds; None from a single one
    exact: float | None  # None: no law
    lemma2: float | None  # the paper's bound of Algorithm 1's: the largest cycle times the longest update, squared
    by_client: Floats | None = None  # each client's own part, [N]; what peers share of a lattice comes on top
    noisiest: int | None = None  # the client with the largest part
    upgrade: Upgrade | None = None  # None if no single client with more energy would lower the variance
    upgrade_known: bool = True  # whether what more energy would do can be computed

    def without_law(self) -> Variance:
        """What was measured alone."""
        return Variance(self.measured, None, self.lemma2)

    def advice(self) -> str:
        """Which device to upgrade first."""
        if self.exact is None or not self.upgrade_known:
            return _UNKNOWN
        if self.upgrade:
            return self.upgrade.words(self.exact)
        if self.exact == 0.0:
            return "none: absent clients add no variance."
        return "no single device: shortening one cycle by a round would not lower the variance. Upgrade a whole group."

    def to_dict(self) -> dict[str, object]:
        upgrade = None if self.upgrade is None else vars(self.upgrade)
        return {**vars(self), "upgrade": upgrade, "advice": self.advice()}


def variance(
    fleet: Fleet,
    policy: Policy,
    shares: Floats,
    rounds: int,
    deltas: Floats | None = None,
    server: ServerRule | None = None,
    measured: float | None = None,
) -> Variance:
    """deltas: each client's update [N, d], or its length [N] (updates along one line); default: all alike
    with length 1. measured: the same over seeds."""
    noise = Noise(fleet, policy, shares, rounds, as_vectors(deltas, len(fleet)), server)
    lemma2 = float(fleet.cycles().max()) ** 2 * float((noise.vectors**2).sum(axis=1).max())
    if is_deterministic(fleet, policy):
        return Variance(measured, 0.0, lemma2, np.zeros(len(fleet)))
    found = noise.averages()
    if found is None:
        return Variance(measured, None, lemma2)
    own, exact = found
    upgrade, known = best_upgrade(noise, own, exact)
    noisiest = int(np.argmax(own)) if own.any() else None
    return Variance(measured, exact, lemma2, own, noisiest, upgrade, known or exact == 0.0)
