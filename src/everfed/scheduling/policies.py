"""Policies: each client decides from its own state whether to train in a round.

A policy has `init(clients, round) -> state`, `step(state, view) -> (join, scale, state)` and, if the server decides,
`grant(wishes) -> granted`, over arrays whose last axis is the clients. A simulation steps a fleet of N, a device a
fleet of one, and an audit S seeds of N clients (shape [S, N]), with the same code. `step` sees only the present, so a
policy cannot use the future unless it has `foresight` and receives a forecast. `init` works at any round, so a device
makes the same decisions after a power cut.

A step may modify the arrays of its state: use only the returned state afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.checks import Checked
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import BernoulliArrivals, Markov

State = dict[str, Any]


@dataclass(frozen=True)
class Clients:
    """The constants of each client: its number, cycle, start and battery.

    Clients with the same cycle and the same start are peers. Each may know its rank among them, assigned when it
    enrols; the lattice uses it to spread peers over time.
    """

    ids: Ints
    cycles: Ints
    offsets: Ints
    seed: Seeds
    capacity: Floats  # of its battery, in units
    ranks: Ints | None = None  # 0 .. peers - 1
    peers: Ints | None = None  # the number of peers, itself included
    again: Floats | None = None  # probability that a round with a unit is followed by another; NaN: unknown

    @classmethod
    def of(cls, fleet: Fleet, seed: Seeds) -> Clients:
        cycles, offsets = fleet.cycles(), fleet.offsets()
        ranks, peers = ranked(cycles, offsets)
        return cls(np.arange(len(fleet)), cycles, offsets, seed, fleet.capacity, ranks, peers, unit_follows_unit(fleet))

    def part(self, which: Ints) -> Clients:
        """Some of the clients; for a device, one."""
        knows = (self.ids, self.cycles, self.offsets, self.seed, self.capacity, self.ranks, self.peers, self.again)
        return Clients(*(k if k is self.seed or k is None else k[which] for k in knows))  # type: ignore[arg-type, index]

    def shape(self) -> tuple[int, ...]:
        """Shape of one value per client: [N], or [S, N] for S seeds."""
        return np.broadcast_shapes(np.shape(self.seed), self.ids.shape)


class Forecast(NamedTuple):
    """A client's forecast: the gap between arrivals that contains this round."""

    opened: Ints  # the round of its latest unit; -1: none yet
    closes: Ints  # the round of its next unit, or the end of the forecast


class View(NamedTuple):
    """What each client observes at the start of a round, after the round's energy has arrived."""

    round: int
    affords: Bools  # its battery holds one round's energy
    level: Floats  # units in its battery
    forecast: Forecast | None = None  # given only to policies with foresight


class Decision(NamedTuple):
    join: Bools
    scale: Floats  # what the client multiplies its update by, if it joins
    state: State


class Energy(Enum):
    """How a policy treats missing energy."""

    OBEYED = "obeyed"  # clients join only with the energy of a round
    IGNORED = "ignored"  # clients join without it, and overdraw
    UNLIMITED = "unlimited"  # energy is assumed to be unlimited, as an upper bound


class Policy(Checked, ABC):
    """The base of every policy: `step` decides, everything else has a default. `POLICIES` lists the built-in ones.

    A policy of your own has a `step`, which sees the round and each client's battery (docs/extending.md):

    >>> import everfed as ef
    >>> from everfed.scheduling.policies import Decision
    >>> class EveryOther(ef.Policy):
    ...     def step(self, state, view):
    ...         return Decision(view.affords & (view.round % 2 == 0), np.ones(view.affords.shape), state)
    >>> [step.clients.tolist() for step in ef.plan(ef.Fleet.from_cycles([1, 2]), EveryOther(), rounds=4)]
    [[0, 1], [], [0, 1], []]
    """

    energy: ClassVar[Energy] = Energy.OBEYED
    learns: ClassVar[bool] = False  # whether its state is learnt, so that a reboot must not lose it

    @property
    def foresight(self) -> int:
        """How many rounds ahead it needs to know arrivals; 0: none."""
        return 0

    @property
    def coordinated(self) -> bool:
        """Whether the server decides who joins, which is so if a class overrides `grant`."""
        return type(self).grant is not Policy.grant

    def init(self, clients: Clients, round: int = 0) -> State:
        """The clients' initial state at the start of this round."""
        return {"clients": clients}

    @abstractmethod
    def step(self, state: State, view: View) -> Decision:
        """Which clients wish to join this round, their scales, and the new state."""

    def grant(self, wishes: Bools) -> Bools:
        """Which clients the server allows to join, given all wishes."""
        return wishes


def ranked(cycles: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """Each client's rank among its peers (same cycle, same start), in order of their numbers, and their count."""
    key = cycles * (int(offsets.max(initial=0)) + 1) + offsets
    _, group, count = np.unique(key, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    first = np.cumsum(count) - count  # where each group begins in that order
    ranks = np.empty(len(cycles), np.int64)
    ranks[order] = np.arange(len(cycles)) - first[group[order]]
    return ranks, count[group].astype(np.int64)


def unit_follows_unit(fleet: Fleet) -> Floats:
    """[N] the probability that a round with a unit is followed by another one, for random whole units and lossless
    batteries; NaN otherwise."""
    arrivals, storage = fleet.arrivals, fleet.storage
    if storage.lossless:
        if type(arrivals) is BernoulliArrivals:
            return 1.0 / arrivals.cycles
        if type(arrivals) is Markov:
            return arrivals.stays_good()
    return np.full(len(fleet), np.nan)


def _scale(cycles: Ints, scaled: bool) -> Floats:
    return cycles.astype(np.float64) if scaled else np.ones(len(cycles))


@dataclass(frozen=True)
class UniformWindow(Policy):
    """Algorithm 1 of Güler & Yener (2021): one uniformly random round in every window of E.

    Window q of a client covers rounds o + qE .. o + (q+1)E - 1; its slot is o + qE + J with J
    uniform on 0..E-1, and the update is scaled by E. Then P[join] = 1/E in every round, so
    E[join * scale] = 1. Slots without enough energy are skipped.

    scaled: False leaves the update as it is (an ablation: random timing, biased weights).

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.UniformWindow(), rounds=4, seed=0)]
    [[0], [0, 1], [0, 1, 2], [0]]
    """

    scaled: bool = True

    def init(self, clients: Clients, round: int = 0) -> State:
        since_start = round - clients.offsets
        window = np.maximum(since_start, 0) // clients.cycles
        opened = clients.offsets + window * clients.cycles
        return {
            "clients": clients,
            "scale": _scale(clients.cycles, self.scaled),
            "slot": opened + self._slot(clients, np.s_[:], window),
            "opens": opened + clients.cycles,
        }

    def step(self, state: State, view: View) -> Decision:
        clients, slot, opens = state["clients"], state["slot"], state["opens"]
        opening = np.flatnonzero(opens == view.round)
        if len(opening):
            cycles = clients.cycles[opening]
            window = (view.round - clients.offsets[opening]) // cycles
            slot[..., opening] = view.round + self._slot(clients, opening, window)
            opens[opening] += cycles
        return Decision((slot == view.round) & view.affords, state["scale"], state)

    def _slot(self, clients: Clients, which: Any, window: Ints) -> Ints:
        """J for these clients' windows. A window of one round needs no draw."""
        cycles, ids = clients.cycles[which], clients.ids[which]
        slot = np.zeros((*clients.shape()[:-1], len(ids)), np.int64)
        waits = np.flatnonzero(cycles > 1)
        slot[..., waits] = random.below(cycles[waits], clients.seed, random.Purpose.SLOT, ids[waits], window[waits])
        return slot


@dataclass(frozen=True)
class Greedy(Policy):
    """Benchmark 1: train as soon as the battery holds one round's energy.

    scaled: True multiplies the update by E. If energy arrives at fixed times, this is an ablation: unbiased over a
    window, but all rare clients train in the same rounds. If energy arrives at random (bernoulli, uniform-in-block,
    markov), it is the unbiased rule of Güler and Yener (ISIT 2021): the mean weight of each client is 1 in every round,
    and no unit has to wait.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.Greedy(), rounds=4, seed=0)]
    [[0, 1, 2], [0], [0, 1], [0]]
    """

    scaled: bool = False

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": _scale(clients.cycles, self.scaled)}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords, state["scale"], state)


@dataclass(frozen=True)
class WaitForAll(Policy):
    """Benchmark 2: all clients train when every battery holds one round's energy, and none before.

    Clients report that they are ready; the server grants the round when all are.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.WaitForAll(), rounds=4, seed=0)]
    [[0, 1, 2], [], [], []]
    """

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": np.ones(len(clients.ids))}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords, state["scale"], state)

    def grant(self, wishes: Bools) -> Bools:
        return wishes & wishes.all(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Always(Policy):
    """FedAvg with unlimited energy: every client in every round, as an upper bound.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.Always(), rounds=4, seed=0)]
    [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """

    energy: ClassVar[Energy] = Energy.UNLIMITED

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": np.ones(len(clients.ids))}

    def step(self, state: State, view: View) -> Decision:
        return Decision(np.ones(view.affords.shape, np.bool_), state["scale"], state)


@dataclass(frozen=True)
class Bernoulli(Policy):
    """Train with probability 1/E in every round, independently and whatever the battery holds; scale E.

    Conditionally unbiased, unlike the window schedule, but with more variance, and it overspends energy. This is the
    schedule that the paper's convergence proof covers.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.Bernoulli(), rounds=4, seed=0)]
    [[0], [0, 2], [0, 1, 2], [0]]
    """

    energy: ClassVar[Energy] = Energy.IGNORED

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        coin = random.below(clients.cycles, clients.seed, random.Purpose.COIN, clients.ids, view.round)
        return Decision((coin == 0) & (clients.offsets <= view.round), _scale(clients.cycles, True), state)
