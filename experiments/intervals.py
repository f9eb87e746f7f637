"""Means over seeds with 95 % intervals, and differences between methods that met the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean, half the width of its interval by Student's t, and of how many values; None for a single one."""

    mean: float
    half: float | None
    count: int

    def text(self, scale: float = 100, digits: int = 1, sign: str = "") -> str:
        spread = "" if self.half is None else f" ± {scale * self.half:.{digits}f}"
        return f"{scale * self.mean:{sign}.{digits}f}{spread}"


def mean(values: Sequence[float]) -> Estimate:
    if len(values) < 2:
        return Estimate(statistics.fmean(values), None, len(values))
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return Estimate(statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values)), len(values))


@dataclass(frozen=True)
class Difference:
    """How much more one method has than another on the same seeds, and the p of the paired t test."""

    estimate: Estimate
    p: float | None


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Over the seeds that both have, by seed; None if there are none."""
    gains = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    if not gains:
        return None
    estimate = mean(gains)
    if estimate.half is None:
        return Difference(estimate, None)
    spread = statistics.stdev(gains) / math.sqrt(len(gains))
    if spread == 0.0:  # the test divides by it
        return Difference(estimate, 1.0 if estimate.mean == 0.0 else 0.0)
    return Difference(estimate, float(2 * stats.t.sf(abs(estimate.mean) / spread, len(gains) - 1)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p values of tests that are made together, so that one false alarm among all of them has the stated rate."""
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    out: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        out[place] = highest
    return out


def told(p: float | None) -> str:
    if p is None:
        return "one seed"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
