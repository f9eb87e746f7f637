"""Where the noise of a round comes from, client by client, and which device deserves a bigger panel.

For given updates delta_i the variance of sum over participants of share * scale * delta is exact from
the policy's law: sum_i p_i^2 (E_i - 1) |delta_i|^2 for Algorithm 1. It is computed for the cycles as they
are, as if every slot could be paid for: what a planner can change is the cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.scheduling.policies import Law, Policy

# Clients tried for a bigger panel, the noisiest first; one of many alike stands for all of them.
_MOST_TRIED = 64


@dataclass(frozen=True)
class Upgrade:
    """More energy for one client: its cycle falls by a round."""

    client: int
    cycle: int  # now
    energy: float  # more a round, in the fleet's unit
    energy_part: float  # that, as a part of what it harvests now
    unit: str
    variance: float  # of a round's update afterwards

    def words(self, before: float) -> str:
        more = f"{self.energy:.3g} {self.unit} more a round (+{self.energy_part:.1%})"
        return (
            f"a bigger panel helps most at client {self.client}: {more} takes its cycle from {self.cycle} to "
            f"{self.cycle - 1} and a round's variance from {before:.5g} to {self.variance:.5g}."
        )


@dataclass(frozen=True)
class Variance:
    """A round's variance for given updates."""

    exact: float  # E|update - its mean|^2
    lemma2: float  # the paper's bound of the same: the largest cycle squared times the longest update squared
    by_client: Floats  # each client's own part, [N]; what peers share of a lattice comes on top
    noisiest: int  # the client with the largest part
    loosest: int  # the client whose part in Lemma 2's bound is most too large
    upgrade: Upgrade | None  # None if no single client with more energy would lower the variance

    def advice(self) -> str:
        """Which device should get a bigger panel first."""
        if self.upgrade:
            return self.upgrade.words(self.exact)
        if self.exact == 0.0:
            return "no panel needs to be bigger: nobody's absence adds noise."
        return (
            "no single device: with a cycle of its own it would leave its peers' lattice, and the variance would "
            "rise. Give a whole group bigger panels."
        )

    def to_dict(self) -> dict[str, object]:
        upgrade = None if self.upgrade is None else vars(self.upgrade)
        return {**vars(self), "by_client": self.by_client.tolist(), "upgrade": upgrade, "advice": self.advice()}


def variance(fleet: Fleet, policy: Policy, shares: Floats, deltas: Floats | None = None) -> Variance | None:
    """The variance of a round, or None where timing leaves nothing to chance or has no law.

    deltas: each client's update [N, d], or its length [N] (updates along one line); default: all alike
    with length 1.
    """
    vectors = as_vectors(deltas, len(fleet))
    law = _law(policy, fleet.cycles())
    if law is None or not policy.unbiased:
        return None
    squares = (vectors**2).sum(axis=1)
    own = _own_parts(law, shares, squares)
    exact = _total(law, shares, vectors)
    with np.errstate(divide="ignore"):
        looseness = shares * float(fleet.cycles().max()) ** 2 * squares.max() / own
    lemma2 = float(fleet.cycles().max()) ** 2 * float(squares.max())
    best = _best_upgrade(fleet, policy, law, shares, vectors, own, exact)
    return Variance(exact, lemma2, own, int(np.argmax(own)), int(np.argmax(looseness)), best)


def as_vectors(deltas: Floats | Sequence[float] | None, n: int) -> Floats:
    """Updates as [N, d]."""
    if deltas is None:
        return np.ones((n, 1))
    vectors = np.asarray(deltas, np.float64)
    if vectors.ndim not in (1, 2) or len(vectors) != n:
        raise InputError(
            f"deltas have the shape {list(vectors.shape)}; give one length, or one vector, for each of {n} clients."
        )
    if not np.all(np.isfinite(vectors)):
        raise InputError("deltas must be finite numbers.")
    return vectors[:, None] if vectors.ndim == 1 else vectors


def _law(policy: Policy, cycles: Ints) -> Law | None:
    """The policy's law where energy comes as regularly as the cycles say."""
    return policy.law(Fleet.from_cycles(cycles), 0)


def _own_parts(law: Law, shares: Floats, squares: Floats) -> Floats:
    parts: Floats = shares**2 * law.scale**2 * law.probability * (1.0 - law.probability) * squares
    return parts


def _total(law: Law, shares: Floats, vectors: Floats) -> float:
    weighed = shares[:, None] * vectors
    total = float(_own_parts(law, shares, (vectors**2).sum(axis=1)).sum())
    for clients, both in law.blocks:
        one, mine = clients[0], weighed[clients]
        covariance = float(law.scale[one] ** 2 * (both - law.probability[one] ** 2))
        total += covariance * float((mine.sum(axis=0) ** 2).sum() - (mine**2).sum())
    return max(total, 0.0)


def _best_upgrade(
    fleet: Fleet, policy: Policy, law: Law, shares: Floats, vectors: Floats, own: Floats, exact: float
) -> Upgrade | None:
    """The client with the largest drop in variance for a joule (or unit) more a round."""
    cycles = fleet.cycles()
    unit_j = np.ones(len(fleet)) if fleet.unit_j is None else fleet.unit_j
    # Among clients alike one stands for all. The noisiest per joule first: only so many are tried.
    _, alike = np.unique(np.stack([cycles, shares, unit_j, own]), axis=1, return_index=True)
    waiting = alike[cycles[alike] > 1]
    if len(waiting) == 0:
        return None
    promise = own[waiting] * cycles[waiting] / unit_j[waiting]
    waiting = waiting[np.argsort(-promise, kind="stable")][:_MOST_TRIED]
    best, best_worth = None, 0.0
    for client in waiting.tolist():
        now = int(cycles[client])
        energy = float(unit_j[client]) * (1.0 / (now - 1) - 1.0 / now)
        if law.blocks:
            # Clients of other cycles are in other blocks, whose variance stays.
            near = np.flatnonzero((cycles == now) | (cycles == now - 1))
            changed = np.where(near == client, now - 1, cycles[near])
            two = [_law(policy, c) for c in (cycles[near], changed)]
            parts = [_total(one, shares[near], vectors[near]) for one in two if one is not None]
            after = exact if len(parts) < 2 else exact - parts[0] + parts[1]
        else:  # independent clients: only this one's part changes, from E - 1 to E - 2
            after = exact - float(own[client]) / (now - 1)
        if (exact - after) / energy > best_worth:
            best_worth = (exact - after) / energy
            best = Upgrade(client, now, energy, 1.0 / (now - 1), fleet.energy_unit, after)
    return best
