"""Means over seeds with 95 % intervals, and differences between methods that met the same seeds, for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everfed import stats
from everfed.stats import holm as holm


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
    found = stats.summarize(values)
    return Estimate(found.mean, found.margin, found.count)


@dataclass(frozen=True)
class Difference:
    """How much more one method has than another on the same seeds, and the p of the paired t test."""

    estimate: Estimate
    p: float | None


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Over the seeds that both have, by seed; None if there are none."""
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    found = stats.paired([one[s] for s in seeds], [other[s] for s in seeds])
    return Difference(Estimate(found.mean, found.margin, found.count), found.p)


def told(p: float | None) -> str:
    if p is None:
        return "no test"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
