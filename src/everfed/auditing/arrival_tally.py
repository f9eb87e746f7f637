"""Measuring asynchronous runs: running sums over rounds and seeds, whose memory grows with neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.auditing.tally import Tally
from everfed.auditing.weighing import Weighed, weighed
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.energy.work import MOMENTS
from everfed.scheduling.timeline import Timeline
from everfed.server.arrivals import Area, ArrivalRule, FedAsync, FedBuff, Renewal, RenewalDiscounted


@dataclass(frozen=True)
class Staleness:
    """Versions of the model that were made while the work was done."""

    mean: float
    most: float  # the 95th percentile
    largest: int


class ArrivalTally(Tally):
    """What arrived in all runs.

    The weight of an arrival is its coefficient over the client's share, times the part of the local steps that were
    done. Divided by rounds it is 1 for a client that counts as in FedAvg with all clients.
    """

    def __init__(self, fleet: Fleet, shares: Floats, rounds: int, rule: ArrivalRule) -> None:
        super().__init__(fleet, shares, rounds)
        self.rule = rule
        # Weights that are times add up to the time of the client's last arrival, not to the end of the run.
        self.timed = isinstance(rule, Renewal | RenewalDiscounted)
        # Rules whose step is anybody's choice: only the ratio of weights says who is favoured.
        self.relative = isinstance(rule, FedAsync | FedBuff)
        n = len(fleet)
        self.steps, self.squares, self.covered = np.zeros(n), np.zeros(n), np.zeros(n)
        self.per_round, self.stale, self.first = np.zeros(n), np.zeros(n), np.zeros(n)
        self.heard = np.zeros(n, np.int64)  # runs in which the client was heard
        self.totals: list[Floats] = []  # of each run: all weights times shares, per round since the client's start
        self.stale_counts = [np.zeros(0, np.int64) for _ in self.groups]
        self.begun = self.lost = 0
        self.books = Books()

    def follow(self, timeline: Timeline, tell: Callable[[], None] = lambda: None) -> None:
        """All rounds of a batch of seeds; tell: called after each."""
        n, rows = len(self.fleet), len(timeline.seeds)
        weight, last, first = np.zeros(rows), np.zeros(rows), np.full(rows, np.inf)
        idle = 1.0 + 1e-9 + timeline.pace.total  # longer intervals separate bursts
        for found in weighed(timeline, self.rule, self.shares, self.rounds):
            who, part = found.clients % n, found.steps / timeline.local_steps
            each = found.coefficients * part
            per_share = np.divide(each, self.shares[who], out=np.zeros(len(who)), where=self.shares[who] > 0.0)
            weight += np.bincount(found.clients, per_share, minlength=rows)
            np.maximum.at(self.largest, who, per_share)
            times = found.moments / MOMENTS
            np.maximum.at(last, found.clients, times)
            np.minimum.at(first, found.clients, times)
            self._count(found, who, part, each**2, found.intervals > idle[who])
            self.begun, self.lost = self.begun + found.begun, self.lost + found.lost
            tell()
        self.books = _added(self.books, found.energy)
        runs = weight.reshape(-1, n)
        heard = np.isfinite(first).reshape(-1, n)
        self.heard += heard.sum(axis=0)
        self.first += np.where(heard, first.reshape(-1, n), 0.0).sum(axis=0)
        self.covered += last.reshape(-1, n).sum(axis=0)
        self.per_round += runs.sum(axis=0) / self.rounds
        self.totals.append((runs / self.active()) @ self.shares)
        self._runs(self._judged(runs, last.reshape(-1, n)))

    def _count(self, found: Weighed, who: Ints, part: Floats, squares: Floats, apart: Bools) -> None:
        n, known = len(self.fleet), found.intervals < found.moments / MOMENTS
        self.joins += np.bincount(who, minlength=n)
        self.steps += np.bincount(who, part, minlength=n)
        self.squares += np.bincount(who, squares, minlength=n)
        self.stale += np.bincount(who, found.staleness, minlength=n)
        self.bursts += np.bincount(who, apart | ~known, minlength=n)
        # The first interval, from the start of the run, is not one between two arrivals.
        self.gaps += np.bincount(who, known, minlength=n)
        self.gap_sum += np.bincount(who, found.intervals * known, minlength=n)
        self.gap_squares += np.bincount(who, found.intervals**2 * known, minlength=n)
        group = self.group_of[who]
        for number in np.unique(group).tolist():
            counts = np.bincount(found.staleness[group == number])
            longer, shorter = sorted((counts, self.stale_counts[number]), key=len, reverse=True)
            longer[: len(shorter)] += shorter
            self.stale_counts[number] = longer

    def _judged(self, weight: Floats, last: Floats) -> Floats:
        """weight: [runs, N] sums. Returns what is 1 for a client that counts by its data."""
        time = last if self.timed else np.broadcast_to(self.active(), weight.shape)
        found = np.divide(weight, time, out=np.zeros(weight.shape), where=time > 0.0)
        return relative_to_mean(found, self.shares) if self.relative else found

    @property
    def ends(self) -> Floats:  # type: ignore[override]
        """A run begins and ends between two arrivals; by renewal theory, that is worth about as many of them."""
        if self.rule == Renewal():
            return np.zeros(len(self.fleet))
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.nan_to_num(self.gap_squares * self.gaps / self.gap_sum**2, nan=1.0, posinf=1.0)
            each = np.nan_to_num(self.per_round * self.rounds / self.joins)
        worth: Floats = (1.0 + spread / 2.0) * each / self.active()
        return worth / max(self.speed, 1e-300) if self.relative else worth

    def finish(self) -> None:
        """After all runs."""
        if self.relative:
            self.largest /= max(self.speed, 1e-300)

    @property
    def speed(self) -> float:
        """The mean of all weights times shares, per round since each client's start."""
        return float(np.concatenate(self.totals).mean())

    def arrival_rate(self) -> Floats:
        rate: Floats = self.joins / (super().active() * self.seeds)
        return rate

    def noise(self, lengths: Floats) -> Floats | None:
        """[N] the squares of what multiplies a client's updates, per round; of relative rules, at a speed of 1."""
        if isinstance(self.rule, Area):
            return None
        time = self.covered if self.timed else self.active() * self.seeds
        found = np.divide(self.squares, time, out=np.zeros(len(time)), where=time > 0.0) * lengths**2
        return found / max(self.speed, 1e-300) ** 2 if self.relative else found

    def staleness(self) -> dict[str, Staleness]:
        """Of each energy group, and of all."""
        counts = dict(zip((g.label for g in self.groups), self.stale_counts, strict=True))
        longest = max(map(len, self.stale_counts))
        counts["all"] = np.sum([np.pad(c, (0, longest - len(c))) for c in self.stale_counts], axis=0)
        return {label: _staleness(found) for label, found in counts.items()}

    def active(self) -> Floats:
        return np.full(len(self.fleet), float(self.rounds)) if self.timed else super().active()

    def started_part(self) -> Floats:
        return np.ones(len(self.fleet)) if self.timed else super().started_part()


def relative_to_mean(weights: Floats, shares: Floats) -> Floats:
    """[..., N] over their mean by shares."""
    mean = (weights @ shares)[..., None]
    return np.divide(weights, mean, out=np.zeros(weights.shape), where=mean > 0.0)


def _staleness(counts: Ints) -> Staleness:
    total = int(counts.sum())
    if total == 0:
        return Staleness(np.nan, np.nan, 0)
    most = int(np.searchsorted(np.cumsum(counts), 0.95 * total))
    return Staleness(float(counts @ np.arange(len(counts))) / total, float(most), len(counts) - 1)


def _added(one: Books, two: Books) -> Books:
    return Books(**{f.name: getattr(one, f.name) + getattr(two, f.name) for f in fields(Books)})
