"""Exact laws: the probability and scale of every client in every round, if known.

A law is looked up by the exact types of policy and arrivals, and returned only if it holds for this fleet (storage,
batteries, offsets) and horizon. Subclasses do not inherit a law, since they may decide differently; they may define
`law`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.energy.arrivals import Arrivals, Lump, Trickle
from everfed.energy.battery import Battery
from everfed.energy.changing import Changing
from everfed.energy.fleet import Fleet
from everfed.energy.profile import Profile
from everfed.energy.random_arrivals import BernoulliArrivals, UniformInBlock
from everfed.scheduling.foresight import KnownArrivals, Outlook
from everfed.scheduling.lattice import Lattice, joint_probability
from everfed.scheduling.policies import Always, Bernoulli, Energy, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.uncertain import SelfWeighted, Thrifty

# Levels (slots x clients) followed at once to see whether every fixed phase can be paid for.
_MOST_LEVELS = 1 << 21


class Block(NamedTuple):
    """Clients whose decisions in a round hang together; all of one chance and one scale."""

    clients: Ints
    joint_probability: float  # P[i and j join], the same for every pair


class Law(NamedTuple):
    """The exact distribution of one round's decisions; clients are independent but for those in one block."""

    probability: Floats  # P[join], [N]
    scale: Floats  # [N]
    blocks: tuple[Block, ...] = ()

    def weight_variance(self, shares: Floats) -> float:
        """Exact variance of the round's weight, sum over participants of share * scale."""
        total = float(shares**2 @ (self.scale**2 * self.probability * (1.0 - self.probability)))
        if self.blocks:
            everybody = np.concatenate([block.clients for block in self.blocks])
            first = np.cumsum([0] + [len(block.clients) for block in self.blocks[:-1]])
            one, p = everybody[first], shares[everybody]
            joint = np.array([block.joint_probability for block in self.blocks])
            covariance = self.scale[one] ** 2 * (joint - self.probability[one] ** 2)
            total += float(covariance @ (np.add.reduceat(p, first) ** 2 - np.add.reduceat(p**2, first)))
        return max(total, 0.0)


class RunLaw:
    """The laws of all rounds of a run, in order; and how far apart a client's participations are."""

    def __init__(self, rounds: Callable[[], Iterator[Law]], gaps: Callable[[], GapSums | None] = lambda: None) -> None:
        self.rounds, self.gaps = rounds, gaps


class GapSums:
    """Expected number, sum and sum of squares of the gaps between participations within a run, [N] each."""

    def __init__(self, clients: int) -> None:
        self.count, self.total, self.squares = np.zeros(clients), np.zeros(clients), np.zeros(clients)

    def add(self, who: Any, often: Floats, mean: Floats, variance: Floats) -> None:
        self.count[who] += often
        self.total[who] += often * mean
        self.squares[who] += often * (variance + mean**2)

    def mean_and_variance(self) -> tuple[Floats, Floats]:
        """NaN for clients that cannot take part twice."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.total / self.count
            return mean, np.maximum(self.squares / self.count - mean**2, 0.0)


def law_of(fleet: Fleet, policy: Policy, rounds: int) -> RunLaw | None:
    """The exact law of this policy on this fleet over rounds 0 .. rounds - 1, or None if there is no formula."""
    known = _LAWS.get(type(policy))
    if known is not None:
        return known(fleet, policy, rounds)
    own = vars(type(policy)).get("law")
    if own is None or policy.law(fleet, 0) is None:  # type: ignore[attr-defined]
        return None
    return RunLaw(lambda: (policy.law(fleet, r) for r in range(rounds)))  # type: ignore[attr-defined]


def is_deterministic(fleet: Fleet, policy: Policy) -> bool:
    """Whether nothing is left to chance, so that every seed gives the same plan."""
    decided = type(policy) in (Greedy, WaitForAll, Always, SelfWeighted)
    decided |= type(policy) is Thrifty and policy.chance == 1.0
    spread = 0.0 if policy.energy is Energy.UNLIMITED else fleet.storage.cost_spread
    return bool(decided and spread == 0.0 and (type(policy) is Always or seedless(fleet.arrivals)))


def are_independent(policy: Policy) -> bool:
    """Whether clients are known to decide independently of each other (or, on a lattice, to avoid each other)."""
    return type(policy) in _LAWS or type(policy) in (SelfWeighted, Thrifty)


def comes_evenly(fleet: Fleet, policy: Policy) -> bool:
    """Whether participations are known not to come in bursts that some runs have and others have not."""
    known = are_independent(policy) or type(policy) is WaitForAll
    return bool(known and policy.energy is Energy.OBEYED and seedless(fleet.arrivals))


def seedless(arrivals: Arrivals) -> bool:
    """Whether the arrivals are known to be the same under every seed."""
    if type(arrivals) is Changing:
        return seedless(arrivals.before) and seedless(arrivals.after)
    return type(arrivals) in (Lump, Trickle, Profile)


class _Windows(NamedTuple):
    opened: Ints  # [N] the round in which the client's present window opened; -1: none has
    closes: Ints  # [N] the first round after it


def _cyclic_windows(fleet: Fleet, rounds: int) -> Iterator[_Windows]:
    cycles, offsets = fleet.cycles(), fleet.offsets()
    opened, closes = np.full(len(fleet), -1), offsets.copy()
    for r in range(rounds):
        opens = np.flatnonzero(closes == r)
        opened[opens] = r
        closes[opens] = r + cycles[opens]
        yield _Windows(opened, closes)


def _uniform_window(fleet: Fleet, policy: UniformWindow, rounds: int) -> RunLaw | None:
    def windows() -> Iterator[_Windows]:
        return _cyclic_windows(fleet, rounds)

    return _window_law(fleet, windows, rounds, policy.scaled) if _slots_paid_for(fleet, windows) else None


def _known_arrivals(fleet: Fleet, policy: KnownArrivals, rounds: int) -> RunLaw | None:
    def windows() -> Iterator[_Windows]:
        outlook = Outlook(fleet, 0, (len(fleet),), policy.horizon)
        return (_Windows(*outlook.at(r)) for r in range(rounds))

    if not _slots_paid_for(fleet, windows):
        return None
    law = _window_law(fleet, windows, rounds)
    early = any(bool(np.any((w.opened >= 0) & (w.opened < fleet.offsets()))) for w in windows())
    # Who holds a unit before its start opens a window then: participations that do not count may come before those
    # that do, and the law of the gaps is another one.
    return RunLaw(law.rounds) if early else law


def _lattice(fleet: Fleet, policy: Lattice, rounds: int) -> RunLaw | None:
    def windows() -> Iterator[_Windows]:
        return _cyclic_windows(fleet, rounds)

    if not _slots_paid_for(fleet, windows) and (policy.redraw or not _phases_paid_for(fleet, rounds)):
        return None
    cycles, offsets = fleet.cycles(), fleet.offsets()
    peers = [c for c in fleet.peers if len(c) > 1 and cycles[c[0]] > 1]
    blocks = [(int(offsets[c[0]]), Block(c, joint_probability(len(c), int(cycles[c[0]])))) for c in peers]
    alone = _window_law(fleet, windows, rounds, policy.scaled)

    def laws() -> Iterator[Law]:
        for r, law in enumerate(alone.rounds()):
            yield law._replace(blocks=tuple(block for start, block in blocks if start <= r))

    def gaps() -> GapSums:
        sums = alone.gaps() or GapSums(len(fleet))
        if not policy.redraw:  # always the same place in the window: a cut one is met less often, but never sooner
            sums.total, sums.squares = sums.count * cycles, sums.count * cycles.astype(np.float64) ** 2
        return sums

    return RunLaw(laws, gaps)


def _window_law(fleet: Fleet, windows: Callable[[], Iterator[_Windows]], rounds: int, scaled: bool = True) -> RunLaw:
    """One participation in each window, at a uniformly random round of it, scaled by the window's length."""

    def laws() -> Iterator[Law]:
        for r, (opened, closes) in enumerate(windows()):
            length = np.maximum(closes - opened, 1).astype(np.float64)
            inside: Bools = (opened >= 0) & (r < closes)
            yield Law(np.where(inside, 1.0 / length, 0.0), length if scaled else np.ones(len(fleet)))

    def gaps() -> GapSums:
        sums, before, length = GapSums(len(fleet)), np.full(len(fleet), -1), np.zeros(len(fleet))
        for r, (opened, closes) in enumerate(windows()):
            new = np.flatnonzero(opened == r)
            # Of a window that the end of the run cuts, only a part is seen.
            seen = np.minimum(closes[new], rounds) - r
            twice = before[new] >= 0
            who, here, last = new[twice], seen[twice], length[new[twice]]
            mean = r - before[who] + (here - last) / 2.0
            sums.add(who, here / (closes[who] - r), mean, (here**2 + last**2 - 2.0) / 12.0)
            before[new], length[new] = r, seen
        return sums

    return RunLaw(laws, gaps)


def _slots_paid_for(fleet: Fleet, windows: Callable[[], Iterator[_Windows]]) -> bool:
    """Whether every round of every window can be paid for, whatever rounds were chosen before.

    Spending later never leaves more in the battery: a round's losses and overflow shrink differences between
    levels, they never turn them round. So the worst past is the one that spent in the last round of every
    window, and it is enough to follow that one.
    """
    if not seedless(fleet.arrivals) or fleet.storage.cost_spread > 0.0:
        return False
    battery = Battery(fleet.capacity, (), fleet.storage)
    for r, (opened, closes) in enumerate(windows()):
        battery.charge(fleet.harvest(r, 0))
        inside: Bools = (opened >= 0) & (r < closes)
        if np.any(inside & ~battery.affords()):
            return False
        battery.spend(inside & (closes == r + 1))
    return True


def _phases_paid_for(fleet: Fleet, rounds: int) -> bool:
    """The same where a client takes the same place in every window: each place is followed by itself."""
    cycles, offsets = fleet.cycles(), fleet.offsets()
    places = int(cycles.max())
    if places * len(fleet) > _MOST_LEVELS or not seedless(fleet.arrivals) or fleet.storage.cost_spread > 0.0:
        return False
    battery = Battery(fleet.capacity, (places,), fleet.storage)
    place = np.minimum(np.arange(places)[:, None], cycles - 1)
    for r in range(rounds):
        battery.charge(fleet.harvest(r, 0))
        join: Bools = (r >= offsets) & ((r - offsets) % cycles == place)
        if np.any(join & ~battery.affords()):
            return False
        battery.spend(join)
    return True


def _greedy(fleet: Fleet, policy: Greedy, rounds: int) -> RunLaw | None:
    """Whole units that come by chance are spent as they come: the chance to join is that of a unit."""
    storage, arrivals = fleet.storage, fleet.arrivals
    if not storage.lossless or np.any(storage.start):
        return None
    if any(arrivals.chance(r) is None for r in range(rounds)):
        return None
    scale = fleet.cycles().astype(np.float64) if policy.scaled else np.ones(len(fleet))

    def laws() -> Iterator[Law]:
        for r in range(rounds):
            chance = arrivals.chance(r)
            assert chance is not None
            yield Law(chance, scale)

    if type(arrivals) is BernoulliArrivals:
        return RunLaw(laws, lambda: _coin_gaps(fleet, rounds))
    if type(arrivals) is UniformInBlock:
        return RunLaw(laws, _window_law(fleet, lambda: _cyclic_windows(fleet, rounds), rounds).gaps)
    return RunLaw(laws)


def _always(fleet: Fleet, policy: Always, rounds: int) -> RunLaw:
    law, n = Law(np.ones(len(fleet)), np.ones(len(fleet))), len(fleet)

    def gaps() -> GapSums:
        sums = GapSums(n)
        sums.add(slice(None), np.maximum(rounds - 1.0 - fleet.offsets(), 0.0), np.ones(n), np.zeros(n))
        return sums

    return RunLaw(lambda: (law for _ in range(rounds)), gaps)


def _bernoulli(fleet: Fleet, policy: Bernoulli, rounds: int) -> RunLaw | None:
    if fleet.storage.browns_out or fleet.storage.cost_spread > 0.0:
        return None  # rounds without the energy are lost
    cycles = fleet.cycles().astype(np.float64)

    def laws() -> Iterator[Law]:
        for r in range(rounds):
            yield Law(np.where(fleet.offsets() <= r, 1.0 / cycles, 0.0), cycles)

    return RunLaw(laws, lambda: _coin_gaps(fleet, rounds))


def _coin_gaps(fleet: Fleet, rounds: int) -> GapSums:
    """Independent coins of chance q over A rounds: (A - g) q^2 (1 - q)^(g - 1) gaps of g rounds are expected."""
    sums = GapSums(len(fleet))
    kinds = np.stack([fleet.cycles(), np.maximum(rounds - fleet.offsets(), 0)])
    for (cycle, active), which in _kinds(kinds):
        gap = np.arange(1.0, max(active, 1))
        often = (active - gap) / cycle**2 * (1.0 - 1.0 / cycle) ** (gap - 1.0)
        sums.count[which], sums.total[which] = often.sum(), often @ gap
        sums.squares[which] = often @ gap**2
    return sums


def _kinds(keys: Ints) -> Iterator[tuple[tuple[int, int], Ints]]:
    """Each distinct column of `keys`, and the clients that have it."""
    distinct, kind = np.unique(keys, axis=1, return_inverse=True)
    for number, (first, second) in enumerate(distinct.T.tolist()):
        yield (first, second), np.flatnonzero(kind.reshape(-1) == number)


_LAWS: dict[type, Callable[[Fleet, Any, int], RunLaw | None]] = {
    UniformWindow: _uniform_window,
    Lattice: _lattice,
    KnownArrivals: _known_arrivals,
    Greedy: _greedy,
    Always: _always,
    Bernoulli: _bernoulli,
}
