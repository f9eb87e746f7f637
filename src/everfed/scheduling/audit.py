"""The audit: what a fleet and a policy do to training, before a single gradient is computed.

Measured over many seeds and, where a formula exists, exactly. The quantity that matters is the
mean of join * scale: 1 for every client means that the round's update is, on average, the one
FedAvg would have made with everybody present.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.random import check_seed
from everfed.scheduling.plan import Schedule, check_horizon
from everfed.scheduling.policies import Policy
from everfed.scheduling.variance import Variance, as_vectors, variance
from everfed.scheduling.verdict import REMEMBERED, verdict

# Rows (seeds x clients) stepped at once; bounds the memory of an audit of a large fleet.
_ROWS = 1 << 20


@dataclass(frozen=True)
class Figures:
    """What an audit reports. Per client [N], over the rounds since the client's start."""

    participation_rate: Floats | None
    mean_weight: Floats | None  # mean of join * scale; 1 is unbiased
    gap_mean: Floats | None  # rounds between two participations; NaN where there were none
    gap_variance: Floats | None
    round_weight_mean: float | None  # W_r = sum over participants of share * scale, over all rounds
    round_weight_variance: float | None
    update_variance: float | None  # of sum p_i join_i scale_i delta_i, all deltas equal with norm 1, given the round
    single_round_bias: float | None  # largest |E[join * scale] - 1| of any client in any one round; formula only
    violations: float | None  # participations a run that spend energy which is not there

    @property
    def fairness(self) -> float | None:
        """Jain's index of the participation rates: 1 if all take part alike, 1/N if one alone does."""
        if self.participation_rate is None:
            return None
        squares = len(self.participation_rate) * float((self.participation_rate**2).sum())
        return float(self.participation_rate.sum()) ** 2 / squares if squares else 1.0


@dataclass(frozen=True)
class Audit(Figures):
    """Measured figures; `exact` holds the same fields by formula, None where there is none."""

    gap_min: int
    gap_max: int
    exact: Figures
    verdict: str
    rounds: int
    seeds: int
    variance: Variance | None  # of a round's update by client, where timing is left to chance

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; NaN becomes None."""
        out = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in ("exact", "variance")}
        out["exact"] = {f.name: _plain(getattr(self.exact, f.name)) for f in fields(Figures)}
        out["fairness"], out["exact"]["fairness"] = self.fairness, self.exact.fairness
        out["variance"] = self.variance.to_dict() if self.variance else None
        return out


def audit(
    fleet: Fleet,
    policy: Policy,
    rounds: int = 1000,
    seeds: int | Sequence[int] = 200,
    *,
    shares: Sequence[float] | Floats | None = None,
    server: Weighing | None = None,
    deltas: Sequence[float] | Floats | None = None,
) -> Audit:
    """Measure a policy on a fleet over many runs of `rounds` rounds, and compute what can be.

    seeds: how many runs (seeds 0, 1, 2, ...), or which seeds.
    shares: p_i, each client's part of the data (default: equal).
    server: a server rule, whose weights take the place of the clients' scales (default: `Sum`).
    deltas: updates whose variance is wanted, [N, d], or their lengths [N] (default: all alike, length 1).
    """
    n = len(fleet)
    p = _shares(shares, n)
    check_horizon(fleet, rounds, strict=False)
    rounds = int(rounds)
    numbers = _seed_numbers(seeds)
    for seed in numbers:
        check_seed(seed)
    tally = _Tally(fleet, p, rounds, None if server is None or server.remembers else server)
    batch = max(1, _ROWS // n)
    for start in range(0, len(numbers), batch):
        some_seeds = np.array(numbers[start : start + batch], dtype=np.uint64)
        tally.run(Schedule(fleet, policy, some_seeds[:, None]))
    measured = tally.figures(len(numbers))
    exact = _exact(fleet, policy, p, rounds, tally.server)
    doubt = tally.doubt(len(numbers))
    return Audit(
        **{f.name: getattr(measured, f.name) for f in fields(Figures)},
        gap_min=tally.gap_min,
        gap_max=tally.gap_max,
        exact=exact,
        verdict=(
            REMEMBERED
            if server and server.remembers and not policy.unbiased
            else verdict(fleet, measured, exact, p, doubt, rounds)
        ),
        rounds=rounds,
        seeds=len(numbers),
        variance=_variance(fleet, policy, p, server, deltas),
    )


class Weighing(Protocol):
    """What an audit needs to know of a server rule."""

    @property
    def normalizes(self) -> bool: ...

    @property
    def heeds_scales(self) -> bool: ...

    @property
    def remembers(self) -> bool: ...

    def weigher(self, clients: int) -> Any: ...


class _Tally:
    """Running sums over rounds and seeds; memory does not grow with either."""

    def __init__(self, fleet: Fleet, shares: Floats, rounds: int, server: Weighing | None) -> None:
        n = len(fleet)
        self.fleet, self.shares, self.rounds, self.server = fleet, shares, rounds, server
        self.joins, self.weight, self.weight_squares = np.zeros(n), np.zeros(n), np.zeros(n)
        self.gaps, self.gap_sum, self.gap_squares = np.zeros(n), np.zeros(n), np.zeros(n)
        self.gap_min, self.gap_max = 0, 0
        self.round_sum, self.round_squares = np.zeros(rounds), np.zeros(rounds)
        self.violations = 0

    def run(self, schedule: Schedule) -> None:
        n = len(self.fleet)
        per_seed = np.zeros(schedule.battery.level.shape)
        last = np.full(per_seed.size, -1, np.int64)
        # One weigher for all seeds: client i of seed s is number s * N + i.
        weigher = self.server.weigher(per_seed.size) if self.server else None
        for r in range(self.rounds):
            join, scale = schedule.step(r)
            if weigher:
                scale = self._reweighed(weigher, r, join, scale)
            row_weight = (join * (scale * self.shares)).sum(axis=-1)
            self.round_sum[r] += row_weight.sum()
            self.round_squares[r] += (row_weight**2).sum()
            rows = np.flatnonzero(join & (self.fleet.offsets() <= r))
            who = rows % n
            self.joins += np.bincount(who, minlength=n)
            per_seed.reshape(-1)[rows] += np.broadcast_to(scale, join.shape).reshape(-1)[rows]
            self._gaps(r - last[rows], who, last[rows] >= 0)
            last[rows] = r
        self.weight += per_seed.sum(axis=0)
        self.weight_squares += (per_seed**2).sum(axis=0)
        self.violations += schedule.battery.violations

    def _reweighed(self, weigher: Any, round: int, join: Bools, scale: Floats) -> Floats:
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

    def figures(self, seeds: int) -> Figures:
        chances = self.active() * seeds
        with np.errstate(invalid="ignore", divide="ignore"):
            gap_mean = self.gap_sum / self.gaps
            gap_variance = self.gap_squares / self.gaps - gap_mean**2
        mean_by_round = self.round_sum / seeds
        variance_by_round = np.maximum(self.round_squares / seeds - mean_by_round**2, 0.0)
        return Figures(
            self.joins / chances,
            self.weight / chances,
            gap_mean,
            gap_variance,
            float(mean_by_round.mean()),
            float(variance_by_round.mean() + mean_by_round.var()),
            float(variance_by_round.mean()) * seeds / max(seeds - 1, 1),
            None,
            self.violations / seeds,
        )

    def doubt(self, seeds: int) -> Floats:
        """How far a client's measured mean weight may stray from the true one by chance.

        A two-sided 99.9 % band over all clients together (Bonferroni), from the spread over seeds;
        one seed alone says nothing about it.
        """
        if seeds < 2:
            return np.full(len(self.weight), np.inf)
        mean = self.weight / seeds
        spread = np.sqrt(np.maximum(self.weight_squares / seeds - mean**2, 0.0) / max(seeds - 1, 1))
        z = NormalDist().inv_cdf(1 - 0.0005 / len(mean))
        return z * spread / self.active() + 1e-9


def _exact(fleet: Fleet, policy: Policy, shares: Floats, rounds: int, server: Weighing | None) -> Figures:
    """The same figures by formula, from the chances of every round."""
    rate, weight = np.zeros(len(fleet)), np.zeros(len(fleet))
    means, variances, worst = np.zeros(rounds), np.zeros(rounds), 0.0
    violations = 0.0 if policy.obeys_energy else None
    for r in range(rounds):
        law = policy.law(fleet, r)
        if law is None or (server and (server.normalizes or not server.heeds_scales)):
            return Figures(None, None, None, None, None, None, None, None, violations)
        if server:
            law = law._replace(scale=server.weigher(len(fleet)).factors(r, np.arange(len(fleet)), law.scale))
        started = fleet.offsets() <= r
        rate += law.probability * started
        weight += law.probability * law.scale * started
        worst = max(worst, float(np.max(np.abs(law.probability * law.scale - 1.0), where=started, initial=0.0)))
        means[r] = shares @ (law.probability * law.scale)
        variances[r] = law.weight_variance(shares)
    active = np.maximum(rounds - fleet.offsets(), 1)
    gap_mean, gap_variance = policy.gaps(fleet) or (None, None)
    return Figures(
        rate / active,
        weight / active,
        gap_mean,
        gap_variance,
        float(means.mean()),
        float(variances.mean() + means.var()),
        float(variances.mean()),
        worst,
        violations,
    )


def _variance(
    fleet: Fleet, policy: Policy, shares: Floats, server: Weighing | None, deltas: Sequence[float] | Floats | None
) -> Variance | None:
    """Where a round's variance comes from, if the server takes the clients' scales as they are."""
    vectors = as_vectors(deltas, len(fleet))
    if server is not None:
        scales = fleet.cycles().astype(np.float64)
        if server.normalizes or server.remembers or not server.heeds_scales:
            return None
        if not np.array_equal(server.weigher(len(fleet)).factors(0, np.arange(len(fleet)), scales), scales):
            return None
    return variance(fleet, policy, shares, vectors)


def _seed_numbers(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        numbers = list(range(int(seeds)))
    elif isinstance(seeds, list | tuple | range):
        numbers = list(seeds)
    else:
        raise InputError(f"seeds is {seeds!r}; it must be how many (200), or which ones ([0, 5, 7]).")
    if not numbers:
        raise InputError(f"seeds is {seeds}; an audit needs at least 1.")
    return numbers


def _shares(shares: Sequence[float] | Floats | None, n: int) -> Floats:
    if shares is None:
        return np.full(n, 1.0 / n)
    try:
        p = np.asarray(shares, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"shares must be numbers, one a client; got {shares!r}.") from None
    if p.shape != (n,):
        raise InputError(f"{p.size} shares were given for {n} clients; give one share a client.")
    if not (np.all(p >= 0) and math.isclose(p.sum(), 1.0, rel_tol=1e-6)):
        raise InputError(f"shares must be non-negative and sum to 1; these sum to {p.sum():g}.")
    return p


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [None if math.isnan(v) else v for v in value.tolist()]
    return value
