"""Statistics over seeds: means with Student's t intervals, paired differences with tests, Jain's index.

Values come from independent seeds. An interval is absent where there is nothing to measure it by: one
seed has no spread. Tests on the same seeds are paired, since the methods compared under one seed meet
the same data, initial weights and minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.errors import InputError

LEVEL = 0.95
MOST_FLIPPED = 16  # pairs up to which all 2**n signs are tried

# The mean of equal numbers may miss them by an ulp, which is no spread.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Summary:
    """A sample in a few numbers; sd and margin are None for a single value."""

    mean: float
    sd: float | None  # of the sample (n - 1)
    margin: float | None  # half the width of the 95 % Student-t interval of the mean
    count: int

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.margin is None else (self.mean - self.margin, self.mean + self.margin)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; null for what is unknown or not finite."""
        low, high = self.interval or (math.nan, math.nan)
        interval = [low, high] if math.isfinite(high - low) else None
        return {"mean": finite(self.mean), "sd": finite(self.sd), "ci95": interval, "runs": self.count}


def summarize(values: Sequence[float] | Floats) -> Summary:
    """Mean, standard deviation and 95 % interval of a sample.

    >>> summarize([1.0, 2.0, 3.0]).sd
    1.0
    >>> summarize([1.0])
    Summary(mean=1.0, sd=None, margin=None, count=1)
    """
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or len(sample) == 0:
        raise InputError("a summary needs at least one value.")
    mean = math.fsum(sample) / len(sample) if np.isfinite(sample).all() else float(sample.mean())
    if len(sample) == 1:
        return Summary(mean, None, None, 1)
    with np.errstate(invalid="ignore"):
        sd, size = float(sample.std(ddof=1)), float(np.abs(sample).max())
    sd = 0.0 if sd <= _ROUNDING * size else sd
    return Summary(mean, sd, t_quantile(0.5 + LEVEL / 2, len(sample) - 1) * sd / math.sqrt(len(sample)), len(sample))


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution.

    >>> round(t_quantile(0.975, 9), 3)
    2.262
    """
    from scipy.special import stdtrit  # a tenth of a second to import

    return float(stdtrit(freedom, probability))


def t_tails(t: float, freedom: float) -> float:
    """P(|T| >= |t|) for Student's t distribution."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(freedom, -abs(t)))


@dataclass(frozen=True)
class PairedDifference:
    """a - b over the seeds that both have."""

    mean: float
    margin: float | None  # half the width of the 95 % Student-t interval; None for one pair
    p: float | None  # two-sided paired t test; None where the differences do not vary
    p_flip: float | None  # two-sided exact test over all signs; None for one pair, or too many
    count: int

    @property
    def tested(self) -> bool:
        """Whether there is a test of it at all: one pair says nothing of chance."""
        return self.count > 1

    def to_dict(self) -> dict[str, Any]:
        interval = None if self.margin is None else [self.mean - self.margin, self.mean + self.margin]
        return {"mean": self.mean, "ci95": interval, "p": self.p, "p_flip": self.p_flip, "pairs": self.count}


def paired(a: Sequence[float] | Floats, b: Sequence[float] | Floats) -> PairedDifference:
    """The mean of a - b with its interval, and how likely so large a one is if there is none.

    p is from the paired t test, which takes the differences as normal. p_flip takes only their signs as
    chance: the part of all 2**n ways to swap a and b within the pairs that give a mean as far from 0.
    It cannot go below 2 / 2**n.

    >>> paired([3.0, 4.0, 6.0], [1.0, 2.0, 3.0]).p_flip
    0.25
    """
    one, two = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if one.shape != two.shape or one.ndim != 1 or len(one) == 0:
        raise InputError(f"{len(one)} and {len(two)} values cannot be paired; give one of each per seed.")
    difference = one - two
    if not np.isfinite(difference).all():
        raise InputError("some of the values to be paired are not finite numbers.")
    summary = summarize(difference)
    if summary.sd is None:
        return PairedDifference(summary.mean, None, None, None, 1)
    n = len(difference)
    scale = float(np.abs(np.stack([one, two])).max())
    p: float | None
    if summary.sd > _ROUNDING * scale:
        p = t_tails(summary.mean / (summary.sd / math.sqrt(n)), n - 1)
    else:
        p = 1.0 if abs(summary.mean) <= _ROUNDING * scale else None
    return PairedDifference(summary.mean, summary.margin, p, sign_flips(difference) if n <= MOST_FLIPPED else None, n)


def sign_flips(differences: Floats) -> float:
    """The part of all 2**n sign patterns whose sum is as far from 0 as the one found."""
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    found, scale = abs(float(differences.sum())), float(np.abs(differences).sum())
    return float(np.mean(np.abs(sums) >= found - _ROUNDING * scale))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p values corrected for having made all of these tests (Holm 1979).

    None is a test that gave no p value, such as that of a constant difference: it stays so, and counts as made.

    Calling differences real where the corrected value is below 0.05 errs in at most 5 % of such families.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.04, 0.09, None, 0.09]
    """
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    out: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(ps) - rank) * p))
        out[i] = highest
    return out


def jain(counts: Sequence[float] | Floats | Ints) -> float:
    """Jain's index, (sum n)^2 / (N sum n^2): 1 if all alike, 1/N if one alone, and 1 if all are 0.

    >>> jain([1, 0])
    0.5
    """
    values = np.asarray(counts, np.float64)
    squares = len(values) * float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares else 1.0


def margins(values: Floats) -> Floats:
    """Half the widths of the 95 % intervals of the means over the first axis; NaN for one value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    sd: Floats = values.std(axis=0, ddof=1)
    return np.asarray(t_quantile(0.5 + LEVEL / 2, len(values) - 1) * sd / math.sqrt(len(values)))


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
