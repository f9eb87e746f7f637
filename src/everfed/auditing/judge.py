"""Decide whether a schedule is biased: exactly if its law is known, otherwise by tests with a stated error rate.

There are two separate verdicts. *Over the run*: every client's mean weight over its rounds is 1. *In every round*: it
is 1 in each of them. An unbiased schedule is called biased with probability at most ERROR_RATE, over all groups,
clients and rounds together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.auditing.exact import Exact
from everfed.auditing.tally import Moments, Tally
from everfed.stats import t_quantile

ERROR_RATE = 0.01
# Smaller deviations are ignored, even if they are significant.
NEGLIGIBLE = 1e-3
# A schedule is called unbiased only if a deviation of this size would have been detected.
RESOLUTION = 0.1
# With fewer runs the spread over seeds is unreliable: two that happen to agree would look like certainty.
FEWEST_SEEDS = 5
# The number of independent participations, or spells of them, from which on Student's t is accurate enough.
_ENOUGH_BURSTS = 500
# Exact values that measurement contradicts at this error rate are not printed.
_IMPOSSIBLE = 1e-9


@dataclass(frozen=True)
class Judgement:
    """One of the two verdicts."""

    unbiased: bool | None  # None: no deviation was detected, but the test had too little power
    exact: bool  # from the schedule's law, not from a sample
    resolution: float | None = None  # deviations of this size would have been detected; None: exact
    alike: bool = False  # over the run: all clients have the same weight, though not 1
    by_group: dict[str, float] = field(default_factory=dict)  # mean weight; in every round: the round's, if it is off
    round: int | None = None  # in every round: where the deviation is clearest


def over_the_run(tally: Tally, exact: Floats | None, even: bool) -> Judgement:
    """exact: every client's mean weight, where it is known. even: participations are known not to come in bursts."""
    labels = [group.label for group in tally.groups]
    counts = tally.shares > 0.0  # the weight of clients without data does not matter
    if exact is not None:
        means = [float(exact[g.clients] @ tally.parts(g)) for g in tally.groups]
        spread = float(np.abs(exact - tally.shares @ exact)[counts].max())
        off = float(np.abs(exact - 1.0)[counts].max())
        return Judgement(off <= NEGLIGIBLE, True, None, spread <= NEGLIGIBLE, dict(zip(labels, means, strict=True)))
    seeds = tally.seeds
    by_group = dict(zip(labels, tally.in_groups.mean(seeds).tolist(), strict=True))
    matters = np.array([bool(counts[g.clients].any()) for g in tally.groups])
    # Half of the error rate for the groups, which see small deviations, and half for the clients within them.
    samples = [_in_groups(tally, tally.in_groups), _by_client(tally, tally.clients)]
    bands = [sample.band(ERROR_RATE / 2) for sample in samples]
    off_by = [np.abs(sample.mean - 1.0) * which for sample, which in zip(samples, (matters, counts), strict=True)]
    resolution = float((off_by[0] + bands[0])[matters].max())
    surprising = [sample.surprising(ERROR_RATE / 2, even) for sample in samples]
    found = [o > np.maximum(b, NEGLIGIBLE) for o, b in zip(off_by, bands, strict=True)]
    if not any(bool(np.any(f & s)) for f, s in zip(found, surprising, strict=True)):
        # A deviation that a burst might explain is undecided.
        open_ = any(bool(np.any(f)) for f in found) or resolution > RESOLUTION
        return Judgement(None if open_ else True, False, resolution, False, by_group)
    contrasts = [_in_groups(tally, tally.group_contrasts), _by_client(tally, tally.client_contrasts)]
    alike = all(
        bool(np.all((np.abs(c.mean - 1.0) <= np.maximum(c.band(ERROR_RATE / 2), NEGLIGIBLE))[which]))
        for c, which in zip(contrasts, (matters, counts), strict=True)
    )
    return Judgement(False, False, resolution, alike, by_group)


def contradicts(tally: Tally, exact: Floats, even: bool) -> bool:
    """Whether measured mean weights contradict these, so that they must not be printed."""
    if tally.seeds < FEWEST_SEEDS:
        return False
    sample = _by_client(tally, tally.clients)
    judged = np.full(len(exact), even) | (sample.bursts >= _ENOUGH_BURSTS)
    return bool(np.any(judged & (np.abs(sample.mean - exact) > sample.band(_IMPOSSIBLE) + 1e-9)))


@dataclass(frozen=True)
class _Sample:
    """Means over seeds of clients' or groups' weights over the run, and what their uncertainty depends on."""

    mean: Floats
    standard_error: Floats
    seeds: int
    largest: Floats  # what a participation can count
    quantum: Floats  # what one more participation adds to the mean of a run
    bursts: Floats  # how many there were, in all seeds
    ends: Floats  # what the ends of a run may change

    def band(self, error_rate: float) -> Floats:
        """How far the means may stray from the truth by chance, all of them together: Student's t, and a quantum.

        A spread over seeds knows only what was seen. Runs that differ by one participation, but did not turn up in
        so many seeds, may have a chance of up to `unseen`, and would move the mean by that much of a quantum.
        """
        if self.seeds < FEWEST_SEEDS:
            return np.full(len(self.mean), np.inf)
        each = error_rate / len(self.mean)
        t = t_quantile(1.0 - each / 2.0, self.seeds - 1)
        unseen = -math.expm1(math.log(each) / self.seeds)
        band: Floats = t * self.standard_error + unseen * self.quantum + self.ends + 1e-12
        return band

    def surprising(self, error_rate: float, even: bool) -> Bools:
        """Where Student's t can be trusted, or Chernoff's bound, which trusts nothing, excludes a mean of 1.

        Where energy comes in spells, a run has few of them and some runs none: means of so few independent events are
        far from normal, and what was not seen may be a whole spell.
        """
        trusted = np.full(len(self.mean), even) | (self.bursts >= _ENOUGH_BURSTS)
        limit = math.log(2.0 * len(self.mean) / error_rate)
        return trusted | (self.seeds * _divergence(self.mean, np.maximum(self.largest, 1.0)) > limit)


def _by_client(tally: Tally, moments: Moments) -> _Sample:
    started = tally.fleet.offsets() < tally.rounds  # clients that never start have weight 0 exactly
    quantum = np.where(started, tally.largest / tally.active(), 0.0)
    return _Sample(
        moments.mean(tally.seeds), moments.standard_error(tally.seeds), tally.seeds,
        np.where(started, tally.largest, 0.0), quantum, tally.bursts, np.broadcast_to(tally.ends, len(quantum)),
    )  # fmt: skip


def _in_groups(tally: Tally, moments: Moments) -> _Sample:
    one = _by_client(tally, tally.clients)
    largest, quantum, ends = (
        np.array([values[g.clients] @ tally.parts(g) for g in tally.groups])
        for values in (one.largest, one.quantum, one.ends)
    )
    # The least of the clients': bursts may come to all of a group together.
    bursts = np.array([tally.bursts[g.clients].min() for g in tally.groups])
    return _Sample(
        moments.mean(tally.seeds), moments.standard_error(tally.seeds), tally.seeds, largest, quantum, bursts, ends
    )


def in_every_round(tally: Tally, exact: Exact, independent: bool) -> Judgement:
    """independent: clients decide independently, so that every one of a group is evidence of its own.

    Measured by Chernoff's bound for numbers between 0 and the largest weight with a mean of 1, which needs no
    normal distribution: most rounds see few participations of a group.
    """
    if exact.most is not None and exact.least is not None:
        worst = max(exact.most, exact.least, key=lambda e: abs(e.weight - 1.0))
        if abs(worst.weight - 1.0) <= NEGLIGIBLE:
            return Judgement(True, True)
        label = tally.groups[tally.group_of[worst.client]].label
        return Judgement(False, True, None, False, {label: worst.weight}, worst.round)
    offsets, rounds = tally.fleet.offsets(), np.arange(tally.rounds)
    present = [np.searchsorted(np.sort(offsets[g.clients]), rounds, side="right") for g in tally.groups]
    in_groups = np.stack(present, axis=1)
    largest = np.array([max(tally.largest[g.clients].max(), 1.0) for g in tally.groups])
    units = in_groups if independent else np.minimum(in_groups, 1)
    labels = [g.label for g in tally.groups]
    tests = [_rounds_off(tally.by_round, in_groups, units, largest, tally.seeds)]
    if tally.by_client is not None:
        started = (offsets <= rounds[:, None]) & (tally.shares > 0.0)
        tests.append(_rounds_off(tally.by_client, started, started, np.maximum(tally.largest, 1.0), tally.seeds))
    # As before, half of the error rate for groups and half for clients.
    for number, test in enumerate(tests):
        if test.surprise > test.limit(ERROR_RATE / 2) and abs(test.mean - 1.0) > NEGLIGIBLE:
            label = labels[test.whose if number == 0 else tally.group_of[test.whose]]
            return Judgement(False, False, None, False, {label: test.mean}, test.round)
    # What was found alike in groups may still differ among their clients, so it is these that must be known well.
    resolution = tests[1].noticeable(ERROR_RATE / 2) if len(tests) > 1 else math.inf
    return Judgement(True if resolution <= RESOLUTION else None, False, resolution)


@dataclass(frozen=True)
class _RoundsOff:
    """The round in which some mean weight is least likely to be 1."""

    surprise: float  # in nats
    mean: float
    round: int
    whose: int
    tests: int
    fewest: int  # independent values behind a mean, at least
    largest: float

    def limit(self, error_rate: float) -> float:
        return math.log(2.0 * max(self.tests, 1) / error_rate)

    def noticeable(self, error_rate: float) -> float:
        """Excesses over 1 of this size would have been found in any round."""
        return _noticeable(self.limit(error_rate) / max(self.fewest, 1), self.largest)


def _rounds_off(sums: Floats, present: Ints | Bools, units: Ints | Bools, largest: Floats, seeds: int) -> _RoundsOff:
    """sums: [rounds, whose] of weights; present: how many they are of; units: how many of those are independent."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums / (seeds * present)
        surprise = np.where(present > 0, seeds * units * _divergence(mean, largest), 0.0)
    at, whose = (int(v) for v in np.unravel_index(int(np.argmax(surprise)), surprise.shape))
    known = units[units > 0]
    return _RoundsOff(
        float(surprise[at, whose]), float(mean[at, whose]), at, whose, int(np.count_nonzero(present)),
        seeds * int(known.min()) if known.size else 0, float(largest.max()),
    )  # fmt: skip


def _divergence(mean: Floats, largest: Floats) -> Floats:
    """Relative entropy of coins that show `largest` with this mean, against those with a mean of 1."""
    p, q = np.minimum(mean / largest, 1.0), 1.0 / largest
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.where(p > 0.0, p * np.log(p / q), 0.0)
        hidden = np.where(p < 1.0, (1.0 - p) * np.log((1.0 - p) / (1.0 - q)), 0.0)
    result: Floats = shown + hidden
    return result


def _noticeable(nats: float, largest: float) -> float:
    """The smallest excess over 1 whose divergence reaches this."""
    if largest <= 1.0:
        return 0.0
    low, high = 0.0, largest - 1.0
    if float(_divergence(np.array(largest), np.array(largest))) < nats:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2.0
        if float(_divergence(np.array(1.0 + middle), np.array(largest))) < nats:
            low = middle
        else:
            high = middle
    return high
