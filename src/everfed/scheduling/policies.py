"""Policies: each client decides, from what it can see of itself, whether to train this round.

A policy is `init(clients, round) -> state`, `step(state, view) -> (join, scale, state)` and, where a server has
the last word, `grant(wishes) -> granted`, written once over arrays whose last axis is the clients. A simulation
steps a fleet of N, a device steps a fleet of one, an audit steps S seeds of N clients (shape [S, N]), all with the
same code. `step` sees only the present, so a policy cannot use the future, unless it asks for `foresight` and is
given a forecast; `init` works at any round, so a device that lost power mid-run arrives at the same decisions as
one that did not.

A step may reuse the arrays of the state it is given: keep the returned state, drop the old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import BernoulliArrivals, Markov

State = dict[str, Any]


@dataclass(frozen=True)
class Clients:
    """What each client knows of itself for good: who it is, its cycle, when it starts, its battery.

    Clients with the same cycle and the same start are peers. Each may know its rank among them, handed
    out when it enrols: some schedules use it to keep out of each other's way.
    """

    ids: Ints
    cycles: Ints
    offsets: Ints
    seed: Seeds
    capacity: Floats  # of its battery, in units
    ranks: Ints | None = None  # 0 .. peers - 1
    peers: Ints | None = None  # how many they are, itself included
    again: Floats | None = None  # chance that a round with a unit is followed by another; NaN: not such a supply

    @classmethod
    def of(cls, fleet: Fleet, seed: Seeds) -> Clients:
        cycles, offsets = fleet.cycles(), fleet.offsets()
        ranks, peers = ranked(cycles, offsets)
        return cls(np.arange(len(fleet)), cycles, offsets, seed, fleet.capacity, ranks, peers, unit_follows_unit(fleet))

    def part(self, which: Ints) -> Clients:
        """Some of the clients, each with all that it knows: a device is a part of one."""
        knows = (self.ids, self.cycles, self.offsets, self.seed, self.capacity, self.ranks, self.peers, self.again)
        return Clients(*(k if k is self.seed or k is None else k[which] for k in knows))  # type: ignore[arg-type, index]

    def shape(self) -> tuple[int, ...]:
        """Shape of one value per client: [N], or [S, N] for S seeds side by side."""
        return np.broadcast_shapes(np.shape(self.seed), self.ids.shape)


class Forecast(NamedTuple):
    """What a client that foresees its energy knows of it: the gap that this round lies in."""

    opened: Ints  # the round of its latest unit, up to now; -1: none came yet
    closes: Ints  # the round of its next one, or where the forecast ends


class View(NamedTuple):
    """What each client can see at the start of a round, after the round's energy has arrived."""

    round: int
    affords: Bools  # its battery holds one round's energy
    level: Floats  # units in its battery
    forecast: Forecast | None = None  # given only to policies with foresight


class Decision(NamedTuple):
    join: Bools
    scale: Floats  # what the client multiplies its update by, if it joins
    state: State


class Energy(Enum):
    """What a policy makes of energy that is not there."""

    OBEYED = "obeyed"  # nobody joins without the energy of a round
    IGNORED = "ignored"  # clients join all the same, and overdraw
    UNLIMITED = "unlimited"  # energy without end is imagined, as a bound for the others


class Policy(ABC):
    """The base of every policy: `step` decides, everything else has a default. `POLICIES` lists the built-in ones."""

    energy: ClassVar[Energy] = Energy.OBEYED
    learns: ClassVar[bool] = False  # whether its state is experience, which a reboot must not lose

    @property
    def foresight(self) -> int:
        """How many rounds ahead it must be told when energy comes; 0: it lives in the present."""
        return 0

    @property
    def coordinated(self) -> bool:
        """Whether a wish to join needs the server's leave: where a class has its own `grant`."""
        return type(self).grant is not Policy.grant

    def init(self, clients: Clients, round: int = 0) -> State:
        """What the clients know when this round begins, and nothing has happened to them yet."""
        return {"clients": clients}

    @abstractmethod
    def step(self, state: State, view: View) -> Decision:
        """Who wishes to join this round, with which scale, and what they know afterwards."""

    def grant(self, wishes: Bools) -> Bools:
        """What the server lets happen, given every client's wish."""
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
    """[N] the chance that a round with a unit is followed by another one, where whole units come by chance into
    batteries that keep them; NaN elsewhere."""
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
    E[join * scale] = 1. A slot that the battery cannot pay for is skipped.

    scaled: False leaves the update as it is (an ablation: random timing, biased weights).
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
        """J for these clients' windows. A window of one round leaves no choice, so no draw."""
        cycles, ids = clients.cycles[which], clients.ids[which]
        slot = np.zeros((*clients.shape()[:-1], len(ids)), np.int64)
        waits = np.flatnonzero(cycles > 1)
        slot[..., waits] = random.below(cycles[waits], clients.seed, random.Purpose.SLOT, ids[waits], window[waits])
        return slot


@dataclass(frozen=True)
class Greedy(Policy):
    """Benchmark 1: train as soon as the battery holds one round's energy.

    scaled: True multiplies the update by E. With energy that comes at fixed times this is an
    ablation: unbiased over a window, but all rare clients speak in the same rounds. With energy that
    comes at random (bernoulli, uniform-in-block, markov) it is the unbiased rule of Güler and Yener
    (ISIT 2021): every round counts each client once on average, and no unit has to wait.
    """

    scaled: bool = False

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": _scale(clients.cycles, self.scaled)}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords, state["scale"], state)


@dataclass(frozen=True)
class WaitForAll(Policy):
    """Benchmark 2: nobody trains until every battery holds one round's energy; then all do.

    A client can only say that it is ready; the server grants the round when all are.
    """

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": np.ones(len(clients.ids))}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords, state["scale"], state)

    def grant(self, wishes: Bools) -> Bools:
        return wishes & wishes.all(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Always(Policy):
    """Everybody in every round, as if energy were free: the upper bound, FedAvg."""

    energy: ClassVar[Energy] = Energy.UNLIMITED

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"scale": np.ones(len(clients.ids))}

    def step(self, state: State, view: View) -> Decision:
        return Decision(np.ones(view.affords.shape, np.bool_), state["scale"], state)


@dataclass(frozen=True)
class Bernoulli(Policy):
    """An independent coin with chance 1/E in every round, scale E, whatever the battery holds.

    Conditionally unbiased, unlike the window schedule, at the price of more variance and of
    energy that is not there. It is what the paper's convergence proof really covers.
    """

    energy: ClassVar[Energy] = Energy.IGNORED

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        coin = random.below(clients.cycles, clients.seed, random.Purpose.COIN, clients.ids, view.round)
        return Decision((coin == 0) & (clients.offsets <= view.round), _scale(clients.cycles, True), state)
