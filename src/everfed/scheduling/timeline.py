"""The timeline of asynchronous clients: who begins work when, and when it arrives, before any training.

Energy arrives at the beginning of a round, as in a schedule of rounds. A client that is free begins as soon as its
battery pays for the work, with the model as it is at that moment; it is busy until the work arrives, and may begin
again at once. Clients do not wait for each other, so all of them are stepped together, round by round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds, part_of
from everfed.energy.battery import TOLERANCE, Battery, Books
from everfed.energy.fleet import Fleet
from everfed.energy.work import MOMENTS, Lasting, Pace, Work, check_pace, slots_per_round
from everfed.errors import InputError
from everfed.scheduling.policies import Always, Clients, Energy, Greedy, Policy

_IDLE = -1
_KEPT = ("until", "began", "slot", "steps", "fails")


class Works(NamedTuple):
    """Pieces of work."""

    clients: Ints
    began: Ints  # the moment
    until: Ints  # the moment they arrive, or fail
    slots: Ints  # the numbers that their random draws are keyed by
    steps: Ints  # local steps
    fails: Bools  # whether the battery runs out in the middle and the work is lost

    def part(self, which: Any) -> Works:
        return Works(*(column[which] for column in self))


class Round(NamedTuple):
    """What begins and what arrives within one round, each in the order of its time and then of its client."""

    begun: Works
    arrived: Works
    energy: Books


class Timeline:
    """A fleet whose clients work as soon as they can. seed may have shape [S, 1]: clients are then numbered through,
    those of the first seed before those of the second."""

    def __init__(self, fleet: Fleet, policy: Policy, seed: Seeds, pace: Pace, work: Work, local_steps: int) -> None:
        self.fleet, self.policy, self.seed = fleet, policy, seed
        self.pace, self.work, self.local_steps = pace, work, local_steps
        self.unlimited = policy.energy is Energy.UNLIMITED
        check_policy(policy)
        check_pace(pace, None if self.unlimited else fleet.cycles().astype(np.float64))
        storage = fleet.storage
        if self.unlimited:
            storage = replace(storage, browns_out=False, cost_spread=0.0)
        clients = Clients.of(fleet, seed)
        self.battery = Battery(fleet.capacity, clients.shape()[:-1], storage, fleet.unit_j)
        self.slots = slots_per_round(pace, work, local_steps)
        self.lasting = Lasting(work.spread)
        count = self.battery.level.size
        self.member = np.arange(count) % len(fleet)  # of the fleet
        self.ids = self.member  # the numbers that random draws are keyed by
        self.seeds = np.broadcast_to(np.asarray(seed, np.uint64), clients.shape()).reshape(-1)
        self.scales = np.asarray(policy.init(clients)["scale"], np.float64)[self.member]
        # The least that a client begins with, in units.
        self.least = pace.radio + (1.0 - pace.radio) / local_steps if self._affordable else np.ones(len(fleet))
        self.until = np.full(count, _IDLE)
        self.began, self.steps, self.slot = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1)
        self.fails = np.zeros(count, np.bool_)

    @property
    def _affordable(self) -> bool:
        return self.work.local_steps == "affordable" and not self.unlimited

    def round(self, number: int) -> Round:
        """Step one round: energy arrives, clients begin and finish."""
        self.arrive(number)
        return self.decide(number)

    def arrive(self, number: int) -> None:
        """Energy arrives, at the beginning of the round."""
        self.battery.charge(self.fleet.harvest(number, self.seed))

    def decide(self, number: int) -> Round:
        """The rest of the round: clients begin and finish."""
        start, end = number * MOMENTS, (number + 1) * MOMENTS
        begun, arrived = [], []
        who = np.flatnonzero(self._pays(np.s_[:]) & (self.until == _IDLE))
        when = np.full(len(who), start)
        busy = np.flatnonzero((self.until != _IDLE) & (self.until < end))
        while len(who) or len(busy):
            # A round has as many slots as works are expected in it; more borrow from the next.
            self._begin(who, when, np.maximum(number * self.slots, self.slot[who] + 1))
            begun.append(self._works(who))
            busy = np.concatenate([busy, who[self.until[who] < end]])
            arrived.append(self._works(busy))
            # Work that takes no time is done once a round.
            again = busy[self._pays(busy) & (self.until[busy] > self.began[busy])]
            when = self.until[again]
            self.until[busy] = _IDLE
            who, busy = again, busy[:0]
        first, last = _joined(begun), _joined(arrived)
        return Round(first.part(_order(first, first.began)), last.part(_order(last, last.until)), self.battery.books())

    def _pays(self, who: Any) -> Bools:
        """Whose battery pays for work."""
        level = self.battery.level.reshape(-1)[who]
        if self.unlimited:
            return np.ones(len(level), np.bool_)
        paid: Bools = level >= self.least[self.member[who]] * (1.0 - TOLERANCE)
        return paid

    def _begin(self, who: Ints, when: Ints, slots: Ints) -> None:
        """The energy of the whole work is drawn when it begins, and with it what becomes of it."""
        member, all_steps = self.member[who], self.local_steps
        radio = self.pace.radio[member]
        level = self.battery.level.reshape(-1)[who]
        steps = np.full(len(who), all_steps)
        if self._affordable:
            steps = np.clip(_whole((level - radio) * all_steps / (1.0 - radio)), 1, all_steps)
        share = radio + (1.0 - radio) * steps / all_steps
        spread = self.battery.storage.cost_spread
        price: Any = share * self._around_one(random.Purpose.COST, who, slots, spread) if spread else share
        done = steps
        if self.battery.storage.browns_out or spread:
            # As many steps as are paid for, and the radio.
            short = price > level * (1.0 + TOLERANCE)
            dear = np.where(short, price, 1.0)  # where it matters: what costs nothing cannot be divided by
            paid = _whole((level - radio * dear / share) * steps * share / (dear * (share - radio)))
            done = np.where(short, np.clip(paid, 0, steps - 1), steps)
            if self.work.partial == "send":  # the battery is empty then, whatever the last step came to
                price = np.where(short & (done > 0), level, price)
        failed = None
        if self.unlimited or not (spread or self._affordable or self.battery.storage.browns_out):
            self.battery.pay(who, 1.0)
        else:
            failed = self.battery.pay(who, price)
        took = self.pace.air[member] + self.pace.train[member] * done / all_steps
        if self.work.spread:
            took = took * self.lasting.factors(self._bell(random.Purpose.DURATION, who, slots))
        lasts = np.ceil(took * MOMENTS - 1e-3).astype(np.int64)  # never more works than there is time for
        self.until[who] = when + np.where(self.pace.total[member] > 0.0, np.maximum(lasts, 1), 0)
        self.began[who], self.slot[who], self.steps[who] = when, slots, done
        self.fails[who] = False if failed is None else failed

    def _around_one(self, purpose: random.Purpose, who: Ints, slots: Ints, spread: float) -> Floats:
        """Random factors around 1, as a round's cost has them."""
        factors: Floats = np.maximum(1.0 + spread * self._bell(purpose, who, slots), 0.0)
        return factors

    def _bell(self, purpose: random.Purpose, who: Ints, slots: Ints) -> Floats:
        """The sum of four uniform numbers, of mean 0 and deviation 1."""
        words = random.words(self.seeds[who], purpose, self.ids[who], slots)
        bell: Floats = math.sqrt(3.0) * (words.astype(np.float64).sum(axis=0) / 2.0**32 - 2.0)
        return bell

    def _works(self, who: Ints) -> Works:
        return Works(who, self.began[who], self.until[who], self.slot[who], self.steps[who], self.fails[who])

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        kept = {f"timeline.{name}": getattr(self, name) for name in _KEPT}
        return kept | {f"battery.{name}": value for name, value in self.battery.state_dict().items()}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        for name, value in part_of(state, "timeline.").items():
            setattr(self, name, value.copy())
        self.battery.load_state_dict(part_of(state, "battery."))


def check_policy(policy: Policy) -> None:
    """Refuse policies that choose among rounds."""
    if type(policy) not in (Greedy, Always):
        raise InputError(
            f"the policy {type(policy).__name__} chooses rounds, and asynchronous clients have none: they begin as "
            "soon as their battery pays. Use the policy greedy, or always for unlimited energy."
        )


def _whole(steps: Floats) -> Ints:
    """Rounded down, but for what sums of 1/E miss by."""
    return np.floor(steps * (1.0 + TOLERANCE) + TOLERANCE).astype(np.int64)


def _joined(parts: list[Works]) -> Works:
    none = np.zeros(0, np.int64)
    return Works(*map(np.concatenate, zip((none, none, none, none, none, none.astype(bool)), *parts, strict=True)))


def _order(works: Works, moments: Ints) -> Ints:
    """By time, then by client."""
    return np.lexsort((works.clients, moments))


def by_moment(happened: Round) -> Iterator[tuple[Works, Works, Works]]:
    """(what arrives, what begins, what begins and arrives in no time) at each moment of a round, in turn.

    That is also the order within the moment: who begins downloads the model with all that has arrived, and work that
    takes no time arrives after all have begun. Work that is lost never arrives.
    """
    begun, arrived = happened.begun, happened.arrived
    arrived = arrived.part(~arrived.fails & (arrived.until > arrived.began))
    times = np.union1d(begun.began, arrived.until)
    edges = [(np.searchsorted(column, times), np.searchsorted(column, times, "right")) for column in (
        arrived.until, begun.began,
    )]  # fmt: skip
    for (a0, a1), (b0, b1) in zip(*(zip(*pair, strict=True) for pair in edges), strict=True):
        starting = begun.part(slice(b0, b1))
        yield arrived.part(slice(a0, a1)), starting, starting.part((starting.until == starting.began) & ~starting.fails)
