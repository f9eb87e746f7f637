"""The arrivals of many asynchronous runs at once, weighed by the rule that a server runs, before any training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.battery import Books
from everfed.energy.work import MOMENTS
from everfed.scheduling.timeline import Round, Timeline, Works
from everfed.server.arrivals import (
    Area,
    ArrivalRule,
    Arrivals,
    FedAsync,
    FedBuff,
    PlainArrivals,
    Renewal,
    RenewalDiscounted,
    Weigher,
)

# Rules whose coefficients are known to take arrivals of several runs at once.
_TAKE_MANY = (Area, FedAsync, FedBuff, PlainArrivals, Renewal, RenewalDiscounted)


class Weighed(NamedTuple):
    """What arrives within a round, run by run in the order in which the server adds it."""

    clients: Ints  # those of the second run after those of the first, numbered through
    moments: Ints
    coefficients: Floats
    staleness: Ints
    steps: Ints
    intervals: Floats  # rounds since the client's last arrival, or since the start
    begun: int  # works
    lost: int  # works that failed in the middle
    energy: Books  # of all runs, up to and including this round


def at_once(rule: ArrivalRule, most: int) -> int:
    """How many runs `weighed` may take together."""
    return max(1, most) if type(rule) in _TAKE_MANY else 1


def weighed(timeline: Timeline, rule: ArrivalRule, shares: Floats, rounds: int) -> Iterator[Weighed]:
    """One value per round. timeline: of one run, or of seeds of shape [S, 1]."""
    weigher = _Weighers(rule, shares, timeline.local_steps, len(timeline.seeds) // len(shares))
    began = np.zeros(len(timeline.seeds), np.int64)  # the version that each client began with
    for number in range(rounds):
        happened = timeline.round(number)
        yield _round(happened, number, weigher, began, timeline.scales)


class _Weighers(Weigher):
    """A weigher of several runs, whose clients are numbered through; no two arrivals of a run at a time."""

    version: Ints  # type: ignore[assignment]
    waiting: Ints  # type: ignore[assignment]

    def __init__(self, rule: ArrivalRule, shares: Floats, local_steps: int, runs: int) -> None:
        super().__init__(rule, np.tile(shares, runs), local_steps)
        self.fleet = len(shares)
        self.version, self.waiting = np.zeros(runs, np.int64), np.zeros(runs, np.int64)

    def weigh(self, arrivals: Arrivals) -> tuple[Floats, Ints]:
        stale = self.version[arrivals.clients // self.fleet] - arrivals.versions
        return self.rule.coefficients(self, arrivals, stale), stale

    def settle(self, arrivals: Arrivals) -> bool:
        self.last[arrivals.clients] = arrivals.moment
        self.waiting += np.bincount(arrivals.clients // self.fleet, minlength=len(self.waiting))
        full = self.waiting >= self.rule.needed
        self.version[full] += 1
        self.waiting[full] = 0
        return bool(full.any())


def _round(happened: Round, number: int, weigher: _Weighers, began: Ints, scales: Floats) -> Weighed:
    arrived, begun, fleet = happened.arrived.part(~happened.arrived.fails), happened.begun, weigher.fleet
    # What a run adds at one time has one key: arrivals of a moment, then, with begun work between, those in no time.
    keys = _key(arrived, arrived.until, number, fleet) + (arrived.until == arrived.began)
    order = np.argsort(keys, kind="stable")
    arrived, keys = arrived.part(order), keys[order]
    first = np.ones(len(keys), np.bool_)
    if weigher.rule.together:
        first[1:] = keys[1:] != keys[:-1]
    unit = np.cumsum(first) - 1
    unit_keys = keys[first]
    runs = np.arange(len(weigher.version) + 1) << _RUN
    start = np.searchsorted(unit_keys, runs)  # the first unit of each run
    turn = unit - start[arrived.clients // fleet]
    # Who begins downloads what all earlier units have made of the model.
    after = np.searchsorted(unit_keys, _key(begun, begun.began, number, fleet) + 1) - start[begun.clients // fleet]
    coefficients, stale, intervals = np.zeros(len(keys)), np.zeros(len(keys), np.int64), np.zeros(len(keys))
    adds, begins = _by_turn(turn), _by_turn(after)
    for now in range(max(len(adds), len(begins))):
        if now < len(begins):
            who = begun.clients[begins[now]]
            began[who] = weigher.version[who // fleet]
        if now < len(adds):
            rows = adds[now]
            who = arrived.clients[rows]
            moments: Any = arrived.until[rows]
            arrivals = Arrivals(who, moments, arrived.steps[rows], began[who], scales[who])
            intervals[rows] = weigher.intervals(arrivals)
            coefficients[rows], stale[rows] = weigher.weigh(arrivals)
            weigher.settle(arrivals)
    lost = int(np.count_nonzero(happened.arrived.fails))
    return Weighed(
        arrived.clients, arrived.until, coefficients, stale, arrived.steps, intervals, len(begun.clients), lost,
        happened.energy,
    )  # fmt: skip


_RUN = 2 * MOMENTS.bit_length()  # bits of a key below the run's number


def _key(works: Works, moments: Ints, number: int, fleet: int) -> Ints:
    """By run, then by moment; even."""
    keys: Ints = (works.clients // fleet << _RUN) + 2 * (moments - number * MOMENTS)
    return keys


def _by_turn(turn: Ints) -> list[Ints]:
    """The places of 0, of 1, ..., each in order."""
    order = np.argsort(turn, kind="stable")
    return np.split(order, np.searchsorted(turn[order], np.arange(1, int(turn.max(initial=-1)) + 1)))
