"""Measuring a schedule: running sums over rounds and seeds, whose memory grows with neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.energy.fleet import Fleet, Group
from everfed.machine import check_memory
from everfed.scheduling.plan import Schedule
from everfed.server.aggregate import Weighting
from everfed.server.rules import ServerRule
from everfed.stats import jain


@dataclass(frozen=True)
class Figures:
    """Per client [N], over the rounds since the client's start; or one number for the fleet."""

    participation_rate: Floats | None = None
    mean_weight: Floats | None = None  # mean of join * scale; 1 is unbiased
    gap_mean: Floats | None = None  # rounds between two participations in a run; NaN: clients cannot take part twice
    gap_variance: Floats | None = None
    round_weight_mean: float | None = None  # W_r = sum over participants of share * scale, over all rounds
    round_weight_variance: float | None = None
    update_variance: float | None = None  # of sum p_i join_i scale_i delta_i, deltas equal with norm 1, given the round
    single_round_bias: float | None = None  # largest |E[join * scale] - 1| of a client in one round; exact only
    violations: float | None = None  # participations per run without enough energy

    @property
    def fairness(self) -> float | None:
        """Jain's index of the participation rates: 1 if all are equal, 1/N if only one client takes part."""
        return None if self.participation_rate is None else jain(self.participation_rate)


def measured(tally: Tally) -> Figures:
    """The values of a tally. Variances over seeds are population variances; one seed has none."""
    seeds = tally.seeds
    with np.errstate(invalid="ignore", divide="ignore"):
        gap_mean = tally.gap_sum / tally.gaps
        gap_variance = tally.gap_squares / tally.gaps - gap_mean**2
    mean, variance = tally.weight_variances()
    return Figures(
        participation_rate=tally.joins / (tally.active() * seeds),
        mean_weight=tally.clients.mean(seeds),
        gap_mean=gap_mean,
        gap_variance=np.maximum(gap_variance, 0.0),
        round_weight_mean=float(mean.mean()),
        round_weight_variance=float(variance.mean() + mean.var()),
        update_variance=float(variance.mean()) * seeds / max(seeds - 1, 1),
        violations=tally.violations / seeds,
    )


# Numbers (rounds x clients) up to which single rounds of single clients are followed; beyond it, groups alone are.
_MOST_FOLLOWED = 1 << 22


class Moments:
    """Sums over seeds of values that are 1 for an unbiased client, and of their squares."""

    def __init__(self, values: int) -> None:
        self.total, self.squares = np.zeros(values), np.zeros(values)

    def add(self, rows: Floats) -> None:
        """rows: [seeds, values]. Taken from 1, so that nothing is lost where they hardly vary."""
        self.total += (rows - 1.0).sum(axis=0)
        self.squares += ((rows - 1.0) ** 2).sum(axis=0)

    def mean(self, seeds: int) -> Floats:
        mean: Floats = 1.0 + self.total / seeds
        return mean

    def standard_error(self, seeds: int) -> Floats:
        """Of the mean; from the spread over seeds."""
        spread = np.maximum(self.squares - self.total**2 / seeds, 0.0)
        error: Floats = np.sqrt(spread / max(seeds - 1, 1) / seeds)
        return error


class Tally:
    """What happened in all rounds of all seeds."""

    ends: float | Floats = 0.0  # how much the ends of a run may change a client's mean weight

    def __init__(
        self,
        fleet: Fleet,
        shares: Floats,
        rounds: int,
        server: ServerRule | None = None,
        vectors: Floats | None = None,
    ) -> None:
        """server: whose weights take the place of the clients' scales. vectors: [N, d] updates."""
        n = len(fleet)
        self.fleet, self.shares, self.rounds, self.server, self.vectors = fleet, shares, rounds, server, vectors
        self.seeds = 0
        self.groups = fleet.groups()
        kept = 3 + len(self.groups) + (0 if vectors is None else vectors.shape[1])
        check_memory(f"an audit of {rounds:,} rounds", 8 * kept * rounds, "use fewer rounds")
        self.group_of = np.zeros(n, np.int64)
        for number, group in enumerate(self.groups):
            self.group_of[group.clients] = number
        self.joins, self.largest = np.zeros(n), np.zeros(n)
        self.bursts = np.zeros(n)  # participations in successive rounds count as one
        self.gaps, self.gap_sum, self.gap_squares = np.zeros(n), np.zeros(n), np.zeros(n)
        self.gap_min, self.gap_max = 0, 0
        self.round_sum, self.round_squares = np.zeros(rounds), np.zeros(rounds)
        # join * scale of every round, summed over seeds: by group, and by client where that is not too much.
        self.by_round = np.zeros((rounds, len(self.groups)))
        self.by_client = np.zeros((rounds, n)) if rounds * n <= _MOST_FOLLOWED else None
        self.update_sum = np.zeros((rounds, vectors.shape[1])) if vectors is not None else None
        self.update_squares = np.zeros(rounds)
        # A client's weight over a run, and the same against the fleet's mean in that run (1: as the others).
        self.clients, self.in_groups = Moments(n), Moments(len(self.groups))
        self.client_contrasts, self.group_contrasts = Moments(n), Moments(len(self.groups))
        self.violations = 0

    def run(self, schedule: Schedule, tell: Callable[[], None] = lambda: None) -> None:
        """All rounds of a batch of seeds; tell: called after each."""
        n, shape = len(self.fleet), schedule.battery.level.shape
        per_seed = np.zeros((int(np.prod(shape[:-1], dtype=np.int64)), n))
        last = np.full(per_seed.size, -1, np.int64)
        # One weigher for all seeds: client i of seed s is number s * N + i.
        weigher = self.server.weighting(per_seed.size) if self.server else None
        for r in range(self.rounds):
            join, scale = schedule.step(r)
            join = join.reshape(per_seed.shape)
            if r in (0, self.rounds - 1):  # what those ask for who may never be seen to join
                np.maximum(self.largest, np.max(np.broadcast_to(scale, per_seed.shape), axis=0), out=self.largest)
            if weigher:
                scale = self._reweighed(weigher, r, join, scale)
            self._round(r, join * (scale * self.shares))
            rows = np.flatnonzero(join & (self.fleet.offsets() <= r))
            who, factors = rows % n, np.broadcast_to(scale, per_seed.shape).reshape(-1)[rows]
            self.joins += np.bincount(who, minlength=n)
            np.maximum.at(self.largest, who, factors)
            self.by_round[r] += np.bincount(self.group_of[who], factors, minlength=len(self.groups))
            if self.by_client is not None:
                self.by_client[r] += np.bincount(who, factors, minlength=n)
            self.bursts += np.bincount(who[r - last[rows] > 1], minlength=n) if r else np.bincount(who, minlength=n)
            per_seed.reshape(-1)[rows] += factors
            self._gaps(r - last[rows], who, last[rows] >= 0)
            last[rows] = r
            tell()
        self._runs(per_seed / self.active())
        self.violations += schedule.battery.violations

    def _round(self, round: int, weights: Floats) -> None:
        """weights: [seeds, N] what multiplies each client's update in this round."""
        total = weights.sum(axis=-1)
        self.round_sum[round] += total.sum()
        self.round_squares[round] += (total**2).sum()
        if self.vectors is not None and self.update_sum is not None:
            updates = weights @ self.vectors
            self.update_sum[round] += updates.sum(axis=0)
            self.update_squares[round] += (updates**2).sum()

    def _runs(self, weight: Floats) -> None:
        """weight: [seeds, N] each client's mean weight in each run."""
        self.seeds += len(weight)
        in_groups = np.stack([weight[:, g.clients] @ self.parts(g) for g in self.groups], axis=1)
        contrast = (weight @ self.shares)[:, None] - 1.0
        self.clients.add(weight)
        self.in_groups.add(in_groups)
        self.client_contrasts.add(weight - contrast)
        self.group_contrasts.add(in_groups - contrast)

    def parts(self, group: Group) -> Floats:
        """Each client's part of its group's data."""
        p = self.shares[group.clients]
        return p / p.sum() if p.sum() > 0 else np.full(len(p), 1.0 / len(p))

    def _reweighed(self, weigher: Weighting, round: int, join: Bools, scale: Floats) -> Floats:
        """The server's factors in place of the scales, as an array like `join`."""
        rows = np.flatnonzero(join)
        factors = np.zeros(join.shape)
        asked = np.broadcast_to(scale, join.shape).reshape(-1)[rows]
        if len(rows):
            factors.reshape(-1)[rows] = weigher.factors(round, rows, asked)
        if self.server and self.server.normalizes:
            total = (factors * self.shares).sum(axis=-1, keepdims=True)
            factors = np.divide(factors, total, out=factors, where=total > 0.0)
        return factors

    def _gaps(self, gap: Ints, who: Ints, known: Bools) -> None:
        gap, who, n = gap[known], who[known], len(self.fleet)
        if len(gap) == 0:
            return
        self.gap_min = min(self.gap_min or int(gap.min()), int(gap.min()))
        self.gap_max = max(self.gap_max, int(gap.max()))
        self.gaps += np.bincount(who, minlength=n)
        self.gap_sum += np.bincount(who, gap, minlength=n)
        self.gap_squares += np.bincount(who, gap.astype(np.float64) ** 2, minlength=n)

    def active(self) -> Floats:
        """Rounds since each client's start; at least 1, so that a client that never starts is 0."""
        return np.maximum(self.rounds - self.fleet.offsets(), 1).astype(np.float64)

    def started_part(self) -> Floats:
        """The part of the run for which each client has started."""
        part: Floats = np.maximum(self.rounds - self.fleet.offsets(), 0) / self.rounds
        return part

    def weight_variances(self) -> tuple[Floats, Floats]:
        """Mean and variance over seeds of every round's weight, [rounds] each."""
        mean = self.round_sum / self.seeds
        return mean, np.maximum(self.round_squares / self.seeds - mean**2, 0.0)

    def update_variance(self) -> float | None:
        """E|update - its mean|^2 for the given vectors, averaged over rounds; None from one seed."""
        if self.update_sum is None or self.seeds < 2:
            return None
        mean = self.update_sum / self.seeds
        variances = np.maximum(self.update_squares / self.seeds - (mean**2).sum(axis=1), 0.0)
        return float(variances.mean()) * self.seeds / (self.seeds - 1)
