"""Numbers as the page has them: five digits, and None for what is not a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.stats import summarize


def short(value: float) -> float | None:
    """Five significant digits: what a screen can show, in few bytes."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def shorts(values: Iterable[float]) -> list[float | None]:
    return [short(float(v)) for v in values]


def moments(values: Sequence[float] | Floats) -> dict[str, Any] | None:
    """Mean, sd over seeds and margin (half the mean's 95 % interval); one seed has only a mean, no run nothing."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return None
    found = summarize(array)
    sd, margin = (None if value is None else short(value) for value in (found.sd, found.margin))
    return {"mean": short(found.mean), "sd": sd, "margin": margin, "runs": found.count}
