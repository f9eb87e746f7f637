"""The variance of a round by client, and which device to upgrade first.

For given updates delta_i the variance of sum over participants of share * scale * delta is exact from the
schedule's law: sum_i p_i^2 (E_i - 1) |delta_i|^2 for Algorithm 1. It is an average over the rounds of the run,
in which clients that have not started do not take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.noise import Noise, as_vectors
from everfed.auditing.upgrade import Upgrade, best_upgrade
from everfed.energy.fleet import Fleet
from everfed.scheduling.laws import is_deterministic
from everfed.scheduling.policies import Policy
from everfed.server import ServerRule

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
