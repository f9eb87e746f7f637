"""What runs are judged by: their accuracy, or the loss if some of them have none, as regressions do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from everfed.learning.metrics import Metrics
from everfed.run.history import History

_TARGET = 0.9  # of the best accuracy; a loss may exceed the best by the rest


@dataclass(frozen=True)
class Yardstick:
    """One metric of an evaluation, as a whole and by energy groups, and how people read it."""

    name: str  # in Metrics
    higher_is_better: bool
    percent: bool

    @property
    def label(self) -> str:
        return f"{self.name} %" if self.percent else self.name

    @property
    def worst_label(self) -> str:
        return "worst group %" if self.percent else f"worst group {self.name}"

    @property
    def factor(self) -> float:
        """From a value to what is shown."""
        return 100.0 if self.percent else 1.0

    def of(self, metrics: Metrics) -> float | None:
        value: float | None = getattr(metrics, self.name)
        return value

    def groups(self, metrics: Metrics) -> dict[str, float]:
        return getattr(metrics, f"group_{self.name}") or {}

    def worst_group(self, metrics: Metrics) -> float | None:
        known = [value for value in self.groups(metrics).values() if not math.isnan(value)]
        return (min if self.higher_is_better else max)(known, default=None)

    def text(self, value: float | None, digits: int = 1, sign: str = "") -> str:
        """In percent to so many places, or as it is to four significant digits, of differences three."""
        if value is None:
            return "-"
        return f"{100 * value:{sign}.{digits}f}" if self.percent else f"{value:{sign}.{3 if sign else 4}g}"

    def goal(self, values: Iterable[float | None]) -> float | None:
        """The value to reach: 0.9 of the best accuracy, or a tenth above the lowest loss; None if there is none."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return None
        if self.higher_is_better:
            return round(_TARGET * max(known), 3)
        return float(f"{min(known) + (1 - _TARGET) * abs(min(known)):.4g}")

    def reaches(self, value: float | None, target: float) -> bool:
        if value is None:
            return False
        return value >= target - 1e-12 if self.higher_is_better else value <= target + 1e-12

    def to_dict(self) -> dict[str, Any]:
        return vars(self).copy()


ACCURACY = Yardstick("accuracy", higher_is_better=True, percent=True)
LOSS = Yardstick("loss", higher_is_better=False, percent=False)


def yardstick(runs: Iterable[History]) -> Yardstick:
    """What all runs that were evaluated have in common."""
    return LOSS if any(run.final and run.final.accuracy is None for run in runs) else ACCURACY
