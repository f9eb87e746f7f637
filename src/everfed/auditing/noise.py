"""The exact variance of a round's update, from the schedule's law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.auditing.exact import round_laws
from everfed.energy.arrivals import Cyclic
from everfed.energy.fleet import Fleet
from everfed.energy.profile import Profile
from everfed.energy.random_arrivals import RandomArrivals
from everfed.errors import InputError
from everfed.scheduling.policies import Policy
from everfed.server.rules import ServerRule


@dataclass(frozen=True)
class Noise:
    """Whose updates are summed by which schedule: what the variance of a round depends on."""

    fleet: Fleet
    policy: Policy
    shares: Floats
    rounds: int
    vectors: Floats  # [N, d] the updates
    server: ServerRule | None = None

    def of(self, clients: Ints) -> Noise:
        """These clients alone."""
        fleet, shares, vectors = self.fleet.part(clients), self.shares[clients], self.vectors[clients]
        return replace(self, fleet=fleet, shares=shares, vectors=vectors)

    def harvest(self) -> tuple[Floats, Floats]:
        """[N] units per round that each client is offered now, and those that a cycle one round shorter needs.

        Cycles of devices are rounded up, so that it may take less to shorten one than the cycle says; what charging
        and standby take must be harvested on top.
        """
        cycles, storage = self.fleet.cycles().astype(np.float64), self.fleet.storage
        shorter = 1.0 / np.maximum(cycles - 1.0, 1.0)
        if not isinstance(self.fleet.arrivals, Profile):
            return 1.0 / cycles, shorter
        with np.errstate(divide="ignore"):
            needed = (shorter + np.asarray(storage.standby)) / np.asarray(storage.charging)
        offered = self.fleet.arrivals.mean
        return offered, np.maximum(needed, offered)

    def with_more_energy(self, clients: Ints) -> Noise | None:
        """The same with one round shorter cycles for these clients; None: not computable for these arrivals."""
        sooner = self.fleet.cycles().copy()
        sooner[clients] -= 1
        arrivals = self.fleet.arrivals
        try:
            if isinstance(arrivals, Profile):
                offered, needed = self.harvest()
                gain = arrivals.gain.copy()
                with np.errstate(divide="ignore"):  # no panel is large enough for a client that harvests nothing
                    gain[clients] *= (needed / offered)[clients]
                changed = replace(self.fleet, arrivals=replace(arrivals, gain=gain, known_cycles=sooner))
            elif isinstance(arrivals, Cyclic | RandomArrivals):
                own = arrivals.part(np.arange(len(self.fleet)))  # with a memory of its own
                changed = replace(self.fleet, arrivals=replace(own, cycles=sooner))
            else:
                return None
        except InputError:  # such spells cannot come more often
            return None
        return replace(self, fleet=changed)

    def averages(self) -> tuple[Floats, float] | None:
        """(each client's own part of the variance, the whole), averaged over the rounds; None without a law."""
        laws = round_laws(self.fleet, self.policy, self.rounds, self.server)
        if laws is None:
            return None
        own, common = np.zeros(len(self.fleet)), 0.0
        pairs: dict[int, float] = {}  # of a block: sum over i != j of p_i p_j <delta_i, delta_j>
        for law in laws:
            own += law.scale**2 * law.probability * (1.0 - law.probability)
            for block in law.blocks:
                one = int(block.clients[0])
                if one not in pairs:
                    mine = self.shares[block.clients, None] * self.vectors[block.clients]
                    pairs[one] = float((mine.sum(axis=0) ** 2).sum() - (mine**2).sum())
                covariance = float(law.scale[one] ** 2 * (block.joint_probability - law.probability[one] ** 2))
                common += covariance * pairs[one]
        own *= self.shares**2 * (self.vectors**2).sum(axis=1) / self.rounds
        return own, max(float(own.sum()) + common / self.rounds, 0.0)


def as_vectors(deltas: Floats | Sequence[float] | None, n: int) -> Floats:
    """Updates as [N, d]: given so, as their lengths [N] along one line, or all alike with length 1."""
    if deltas is None:
        return np.ones((n, 1))
    try:
        vectors = np.asarray(deltas, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"deltas must be numbers, one length or one vector per client ({n} clients).") from None
    if vectors.ndim not in (1, 2) or len(vectors) != n:
        raise InputError(
            f"deltas have the shape {list(vectors.shape)}; give one length or one vector per client ({n} clients)."
        )
    if not np.all(np.isfinite(vectors)):
        raise InputError("deltas must be finite numbers.")
    return vectors[:, None] if vectors.ndim == 1 else vectors
