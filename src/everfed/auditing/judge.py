"""Is a schedule biased? Judged exactly where its law is known, and by statistics with a stated error rate elsewhere.

Two questions, each answered by itself. *Over the run*: is every client's mean weight 1 over its rounds? *In
every round*: is it 1 in each of them? An unbiased schedule is called biased with a chance of at most
ERROR_RATE, over all groups, clients and rounds together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.exact import Exact
from everfed.auditing.tally import Moments, Tally
from everfed.stats import t_quantile

ERROR_RATE = 0.01
# A weight that is off by less than this is not worth a word, however certain it is.
NEGLIGIBLE = 1e-3
# Without a deviation that was noticed, this much must have been noticeable before a schedule is called unbiased.
RESOLUTION = 0.1
# With fewer runs a spread over seeds says too little: two that happen to agree would look like certainty.
FEWEST_SEEDS = 5
# Exact values that measurement contradicts at this error rate are not printed.
_IMPOSSIBLE = 1e-9


@dataclass(frozen=True)
class Judgement:
    """The answer to one of the two questions."""

    unbiased: bool | None  # None: nothing was noticed, but too little could have been
    exact: bool  # from the schedule's law, not from a sample
    resolution: float | None = None  # deviations of this size would have been noticed; None: exact
    alike: bool = False  # over the run: all clients count alike, if not 1 time
    by_group: dict[str, float] = field(default_factory=dict)  # mean weight; in every round: the round's, if it is off
    round: int | None = None  # in every round: where the deviation is clearest


def over_the_run(tally: Tally, exact: Floats | None) -> Judgement:
    """exact: every client's mean weight, where it is known."""
    labels = [group.label for group in tally.groups]
    if exact is not None:
        means = [float(exact[g.clients] @ tally.parts(g)) for g in tally.groups]
        spread = float(np.abs(exact - tally.shares @ exact).max())
        off = float(np.abs(exact - 1.0).max())
        return Judgement(off <= NEGLIGIBLE, True, None, spread <= NEGLIGIBLE, dict(zip(labels, means, strict=True)))
    seeds = tally.seeds
    by_group = dict(zip(labels, tally.in_groups.mean(seeds).tolist(), strict=True))
    quantum = tally.largest / tally.active()  # one participation more or less
    in_groups = np.array([quantum[g.clients] @ tally.parts(g) for g in tally.groups])
    # Half of the error rate for the groups, which see small deviations, and half for the clients within them.
    kinds = ((tally.in_groups, in_groups), (tally.clients, quantum))
    bands = [_band(moments, seeds, step, ERROR_RATE / 2) for moments, step in kinds]
    away = [np.abs(moments.mean(seeds) - 1.0) for moments, _ in kinds]
    resolution = float((away[0] + bands[0]).max())
    if not any(bool(np.any(a > np.maximum(b, NEGLIGIBLE))) for a, b in zip(away, bands, strict=True)):
        return Judgement(True if resolution <= RESOLUTION else None, False, resolution, False, by_group)
    contrasts = ((tally.group_contrasts, in_groups), (tally.client_contrasts, quantum))
    alike = all(
        bool(np.all(np.abs(c.mean(seeds) - 1.0) <= np.maximum(_band(c, seeds, step, ERROR_RATE / 2), NEGLIGIBLE)))
        for c, step in contrasts
    )
    return Judgement(False, False, resolution, alike, by_group)


def contradicts(tally: Tally, exact: Floats) -> bool:
    """Whether measured mean weights rule these out: a law that does not hold must not be printed."""
    if tally.seeds < FEWEST_SEEDS:
        return False
    band = _band(tally.clients, tally.seeds, tally.largest / tally.active(), _IMPOSSIBLE)
    return bool(np.any(np.abs(tally.clients.mean(tally.seeds) - exact) > band + 1e-9))


def _band(moments: Moments, seeds: int, quantum: Floats, error_rate: float) -> Floats:
    """How far means over seeds may stray by chance, all of them together: Student's t, and a quantum.

    A spread over seeds knows only what was seen. Runs that differ by one participation, but did not turn up in
    so many seeds, may have a chance of up to `unseen`, and would move the mean by that much of a quantum.
    """
    if seeds < FEWEST_SEEDS:
        return np.full(len(quantum), np.inf)
    each = error_rate / len(quantum)
    t = t_quantile(1.0 - each / 2.0, seeds - 1)
    unseen = -math.expm1(math.log(each) / seeds)
    band: Floats = t * moments.standard_error(seeds) + unseen * quantum + 1e-12
    return band


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
    if tally.seeds < 2:
        return Judgement(None, False, math.inf)
    rounds = np.arange(tally.rounds)
    present = np.stack(
        [np.searchsorted(np.sort(tally.fleet.offsets()[g.clients]), rounds, side="right") for g in tally.groups], axis=1
    )
    limit = math.log(2.0 * max(int(np.count_nonzero(present)), 1) / ERROR_RATE)
    largest = np.array([max(tally.largest[g.clients].max(), 1.0) for g in tally.groups])
    evidence = tally.seeds * (present if independent else np.minimum(present, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = tally.by_round / (tally.seeds * present)
        surprise = np.where(present > 0, evidence * _divergence(mean, largest), 0.0)
    round_, group = np.unravel_index(int(np.argmax(surprise)), surprise.shape)
    resolution = max(_noticeable(limit / max(int(e.max()), 1), c) for e, c in zip(evidence.T, largest, strict=True))
    if surprise[round_, group] > limit and abs(mean[round_, group] - 1.0) > NEGLIGIBLE:
        found = {tally.groups[group].label: float(mean[round_, group])}
        return Judgement(False, False, resolution, False, found, int(round_))
    return Judgement(True if resolution <= RESOLUTION else None, False, resolution)


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
