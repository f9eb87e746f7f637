"""Where the noise of a round comes from, client by client, and which device deserves a bigger panel.

For given updates delta_i the variance of sum over participants of share * scale * delta is exact from the
schedule's law: sum_i p_i^2 (E_i - 1) |delta_i|^2 for Algorithm 1. It is an average over the rounds of the run,
in which clients that have not started yet are silent for certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.auditing.exact import round_laws
from everfed.energy.arrivals import Cyclic
from everfed.energy.fleet import Fleet
from everfed.energy.profile import Profile
from everfed.energy.random_arrivals import RandomArrivals
from everfed.errors import InputError
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.laws import Law, is_deterministic
from everfed.scheduling.policies import Policy
from everfed.server import ServerRule

# Clients tried for a bigger panel, the noisiest first; one of many alike stands for all of them. On a lattice each
# is tried with its peers, which takes longer.
_MOST_TRIED, _MOST_TRIED_TOGETHER = 64, 4


@dataclass(frozen=True)
class Upgrade:
    """More energy for one client: its cycle falls by a round."""

    client: int
    group: str
    cycle: int  # now
    energy: float  # more per round, in the fleet's unit
    energy_part: float  # that, as a part of what it harvests now
    unit: str
    variance: float  # of a round's update afterwards

    def words(self, before: float) -> str:
        more = f"{self.energy:.3g} {self.unit} more per round (+{self.energy_part:.1%})"
        return (
            f"a bigger panel helps most at client {self.client} ({self.group}): {more} takes its cycle from "
            f"{self.cycle} to {self.cycle - 1} and a round's variance from {before:.5g} to {self.variance:.5g}."
        )


@dataclass(frozen=True)
class Variance:
    """A round's variance for given updates, E|update - its mean|^2, averaged over the rounds."""

    measured: float | None  # over seeds; None from a single one
    exact: float | None  # None: no law
    lemma2: float | None  # the paper's bound of Algorithm 1's: the largest cycle times the longest update, squared
    by_client: Floats | None  # each client's own part, [N]; what peers share of a lattice comes on top
    noisiest: int | None  # the client with the largest part
    upgrade: Upgrade | None  # None if no single client with more energy would lower the variance, or nobody knows

    def without_law(self) -> Variance:
        """What was measured alone."""
        return replace(self, exact=None, by_client=None, noisiest=None, upgrade=None)

    def advice(self) -> str:
        """Which device should get a bigger panel first."""
        if self.upgrade and self.exact is not None:
            return self.upgrade.words(self.exact)
        if self.exact is None:
            return "not known: this schedule has no exact law on this fleet, so that no change to it can be computed."
        if self.exact == 0.0:
            return "no panel needs to be bigger: nobody's absence adds noise."
        return "no single device: a round of its cycle less would not lower the variance. Give a whole group more."

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
    vectors = as_vectors(deltas, len(fleet))
    squares = (vectors**2).sum(axis=1)
    lemma2 = float(fleet.cycles().max()) ** 2 * float(squares.max())
    if is_deterministic(fleet, policy):
        return Variance(measured, 0.0, lemma2, np.zeros(len(fleet)), None, None)
    laws = round_laws(fleet, policy, rounds, server)
    if laws is None:
        return Variance(measured, None, lemma2, None, None, None)
    own, exact = _averages(laws, shares, vectors, rounds)
    upgrade = _best_upgrade(fleet, policy, shares, rounds, vectors, server, own, exact)
    noisiest = int(np.argmax(own)) if own.any() else None
    return Variance(measured, exact, lemma2, own, noisiest, upgrade)


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


def _averages(laws: Iterable[Law], shares: Floats, vectors: Floats, rounds: int) -> tuple[Floats, float]:
    """(each client's own part of the variance, the whole), averaged over the rounds."""
    squares = (vectors**2).sum(axis=1)
    own, common = np.zeros(len(shares)), 0.0
    pairs: dict[int, float] = {}  # of a block: sum over i != j of p_i p_j <delta_i, delta_j>
    for law in laws:
        own += law.scale**2 * law.probability * (1.0 - law.probability)
        for block in law.blocks:
            one = int(block.clients[0])
            if one not in pairs:
                mine = shares[block.clients, None] * vectors[block.clients]
                pairs[one] = float((mine.sum(axis=0) ** 2).sum() - (mine**2).sum())
            covariance = float(law.scale[one] ** 2 * (block.joint_probability - law.probability[one] ** 2))
            common += covariance * pairs[one]
    own *= shares**2 * squares / rounds
    return own, max(float(own.sum()) + common / rounds, 0.0)


def exact_variance(
    fleet: Fleet, policy: Policy, shares: Floats, rounds: int, vectors: Floats, server: ServerRule | None = None
) -> float | None:
    """The exact variance alone, or None without a law."""
    laws = round_laws(fleet, policy, rounds, server)
    return None if laws is None else _averages(laws, shares, vectors, rounds)[1]


def _best_upgrade(
    fleet: Fleet,
    policy: Policy,
    shares: Floats,
    rounds: int,
    vectors: Floats,
    server: ServerRule | None,
    own: Floats,
    exact: float,
) -> Upgrade | None:
    """The client with the largest drop in variance per joule (or unit) more per round."""
    cycles, offsets = fleet.cycles(), fleet.offsets()
    unit_j = np.ones(len(fleet)) if fleet.unit_j is None else fleet.unit_j
    # Among clients alike one stands for all. The noisiest per joule first: only so many are tried.
    _, alike = np.unique(np.stack([cycles, offsets, shares, unit_j, own]), axis=1, return_index=True)
    waiting = alike[cycles[alike] > 1]
    promise = own[waiting] * cycles[waiting] / unit_j[waiting]
    most = _MOST_TRIED_TOGETHER if type(policy) is Lattice else _MOST_TRIED
    waiting = waiting[np.argsort(-promise, kind="stable")][:most]
    best, best_worth = None, 0.0
    for client, after in _after(fleet, policy, shares, rounds, vectors, server, own, exact, waiting):
        now = int(cycles[client])
        energy = float(unit_j[client]) * (1.0 / (now - 1) - 1.0 / now)
        if (exact - after) / energy > best_worth * (1.0 + 1e-9) + 1e-15:
            best_worth = (exact - after) / energy
            group = next(g.label for g in fleet.groups() if client in g.clients)
            best = Upgrade(client, group, now, energy, 1.0 / (now - 1), fleet.energy_unit, after)
    return best


def _after(
    fleet: Fleet,
    policy: Policy,
    shares: Floats,
    rounds: int,
    vectors: Floats,
    server: ServerRule | None,
    own: Floats,
    exact: float,
    clients: Ints,
) -> Iterator[tuple[int, float]]:
    """The variance with a cycle less a round, for each of these clients whose change can be computed."""
    cycles, offsets = fleet.cycles(), fleet.offsets()
    if type(policy) is Lattice:
        for client in clients.tolist():
            # Whoever shares a draw with it, before or after; the variance of all others stays as it is.
            near = np.flatnonzero((offsets == offsets[client]) & (np.abs(2 * (cycles - cycles[client]) + 1) == 1))
            whose = shares[near], rounds, vectors[near], server
            before = exact_variance(fleet.part(near), policy, *whose)
            sooner = _faster(fleet.part(near), np.flatnonzero(near == client))
            later = None if sooner is None else exact_variance(sooner, policy, *whose)
            if before is not None and later is not None:
                yield client, max(exact - before + later, 0.0)
        return
    sooner = _faster(fleet.part(clients), np.arange(len(clients))) if len(clients) else None
    laws = None if sooner is None else round_laws(sooner, policy, rounds, server)
    if laws is not None:
        parts, _ = _averages(laws, shares[clients], vectors[clients], rounds)
        for client, part in zip(clients.tolist(), parts.tolist(), strict=True):
            yield client, exact - float(own[client]) + part


def _faster(fleet: Fleet, clients: Ints) -> Fleet | None:
    """The fleet with so much more energy for these that their cycles are a round shorter; None: nobody knows how."""
    sooner = fleet.cycles().copy()
    sooner[clients] -= 1
    arrivals = fleet.arrivals
    try:
        if isinstance(arrivals, Profile):
            gain = arrivals.gain * (fleet.cycles() / sooner)
            return replace(fleet, arrivals=replace(arrivals, gain=gain, known_cycles=sooner))
        if isinstance(arrivals, Cyclic | RandomArrivals):
            return replace(fleet, arrivals=replace(arrivals.part(np.arange(len(fleet))), cycles=sooner))
    except InputError:  # such spells cannot come more often
        pass
    return None
