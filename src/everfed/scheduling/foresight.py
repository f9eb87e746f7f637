"""Energy that arrives at irregular but known times: a timetable, a tide, an exact forecast.

A client that knows when its next unit arrives can choose a random round before it and scale by the number of rounds to
choose from, as Algorithm 1 does with equal windows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.checks import Count
from everfed.energy.battery import IDEAL, TOLERANCE
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.scheduling.policies import Clients, Decision, Forecast, Policy, State, View

_NEVER = -1


@dataclass(frozen=True)
class KnownArrivals(Policy):
    """A uniformly random round from one arrival up to the next, scaled by the length of the gap.

    A unit comes in round r and the next one in r + G: train in r + J, J uniform on 0..G-1, scale G.
    Whatever the arrivals are, each round between them has P[join] = 1/G, so E[join * scale] = 1 in
    every round from the first arrival on, nights included (Güler and Yener, ISIT 2021). With even
    gaps this is Algorithm 1. Do not use it for units that arrive independently at random: a round is more likely to lie
    in a long gap, and the variance of the weight is twice that of a client that trains on arrival.

    horizon: how many rounds ahead the client knows. If nothing arrives within it, the client chooses among these rounds
    and does not train in the rest of the gap. Slots without enough energy are skipped; energy that accumulates
    gradually needs a battery of two units.
    """

    horizon: Count = 1000

    @property
    def foresight(self) -> int:
        return self.horizon

    def init(self, clients: Clients, round: int = 0) -> State:
        shape = clients.shape()
        # No gap is known yet, so the first step draws the slots of those that are open then.
        return {
            "clients": clients,
            "opened": np.full(shape, _NEVER),
            "slot": np.full(shape, _NEVER),
            "scale": np.full(shape, clients.cycles, np.float64),
        }

    def step(self, state: State, view: View) -> Decision:
        if view.forecast is None:
            raise InputError("known-arrivals needs a forecast, but the view has none.")
        opened, slot, scale = (state[name].reshape(-1) for name in ("opened", "slot", "scale"))
        known, closes = view.forecast.opened.reshape(-1), view.forecast.closes.reshape(-1)
        fresh = np.flatnonzero(opened != known)
        if len(fresh):
            began, gap = known[fresh], closes[fresh] - known[fresh]
            opened[fresh] = began
            slot[fresh] = began + self._wait(state["clients"], fresh, began, gap)
            scale[fresh] = gap
        return Decision((state["slot"] == view.round) & view.affords, state["scale"].copy(), state)

    @staticmethod
    def _wait(clients: Clients, rows: Ints, began: Ints, gap: Ints) -> Ints:
        """J for these rows, of the flattened clients. The round a gap began in tells its draw from others."""
        ids = clients.ids[rows % len(clients.ids)]
        seed: Any = clients.seed
        if isinstance(seed, np.ndarray):
            seed = np.broadcast_to(seed, clients.shape()).reshape(-1)[rows]
        return random.below(gap, seed, random.Purpose.SLOT, ids, began)


class Outlook:
    """When each client's units arrive: the last one up to a round, and the next one.

    Arrivals are functions of the round, so a simulation can read them ahead. A unit
    "comes" in the round in which a client's spare energy, that which no earlier unit is made of,
    reaches one unit: with whole units when they arrive, with a trickle when it has added up. Losses
    in charging, standby and leakage are taken off, except what leaks from a unit that waits. Of
    several units at once, one per round comes.

    Every round is looked at once, and at most `horizon` rounds ahead; a gap that is longer closes
    there.
    """

    def __init__(self, fleet: Fleet, seed: Seeds, shape: tuple[int, ...], horizon: int) -> None:
        self.seed, self.horizon = seed, horizon
        # A copy, since random arrivals remember the last round they were asked for.
        self.fleet = replace(fleet, arrivals=fleet.arrivals.part(np.arange(len(fleet))))
        self.spare: Floats = np.zeros(shape)
        self.spare += np.minimum(fleet.storage.start, fleet.capacity)
        self.opened, self.closes = np.full(shape, _NEVER), np.zeros(shape, np.int64)
        self.round = 0  # the next round to be told
        self.scanned = 0  # the next round to be looked at
        # One note for every unit that was seen and has not been told: the round of the client's next unit. Notes lie
        # in a ring in the order of their rounds; `latest` is each client's last one, counted from the beginning.
        self.coming: deque[Ints] = deque()  # the rows whose unit comes in rounds round, round + 1, ... scanned - 1
        self.notes = np.full(64, _NEVER)
        self.first = self.end = 0
        self.latest = np.full(self.spare.size, _NEVER)

    def at(self, round: int) -> Forecast:
        """What clients know in this round. Rounds are asked for in ascending order; some may be left out."""
        while self.round <= round:
            self._tell()
        return Forecast(self.opened, self.closes)

    def _tell(self) -> None:
        """The next round: units that come in it open a gap each."""
        if self.scanned == self.round:
            self._scan()
        rows = self.coming.popleft()
        places = np.arange(self.first, self.first + len(rows))
        limit = self.round + self.horizon
        while self.scanned <= limit and np.any(self.notes[places % len(self.notes)] == _NEVER):
            self._scan()
        following = self.notes[places % len(self.notes)]
        self.opened.reshape(-1)[rows] = self.round
        self.closes.reshape(-1)[rows] = np.where(following == _NEVER, limit, following)
        self.first += len(rows)
        self.round += 1

    def _scan(self) -> None:
        """Look one round further: note each unit that comes, and tell the client's unit before it."""
        rows = np.flatnonzero(self._completes(self.scanned))
        self._make_room(len(rows))
        before = self.latest[rows]
        before = before[before >= self.first]
        self.notes[before % len(self.notes)] = self.scanned
        places = np.arange(self.end, self.end + len(rows))
        self.notes[places % len(self.notes)] = _NEVER
        self.latest[rows] = places
        self.end += len(rows)
        self.coming.append(rows)
        self.scanned += 1

    def _make_room(self, more: int) -> None:
        size = len(self.notes)
        if self.end - self.first + more <= size:
            return
        larger = np.full(2 * (self.end - self.first + more), _NEVER)
        kept = np.arange(self.first, self.end)
        larger[kept % len(larger)] = self.notes[kept % size]
        self.notes = larger

    def _completes(self, round: int) -> Bools:
        """Who has a spare unit in this round, which is then no longer spare."""
        storage, spare = self.fleet.storage, self.spare
        arrived = self.fleet.harvest(round, self.seed)
        if storage is not IDEAL:
            spare -= spare * storage.leak
            arrived = arrived * storage.charging
        spare += arrived
        np.minimum(spare, self.fleet.capacity, out=spare)
        if storage is not IDEAL:
            spare -= np.minimum(spare, storage.standby)
        complete: Bools = spare >= 1.0 - TOLERANCE
        spare -= complete
        np.maximum(spare, 0.0, out=spare)
        return complete
