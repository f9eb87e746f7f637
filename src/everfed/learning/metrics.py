"""The result of one evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from everfed.errors import InputError, unknown


@dataclass(frozen=True)
class Metrics:
    """One evaluation on the test set. Accuracies are None for regression.

    Of each energy group: on its own clients' test samples if those are known, otherwise on the test set re-weighted by
    the group's labels.

    loss: mean over the test samples.
    accuracy: the part of the samples that are right, 0 to 1.
    class_accuracy: the same of each class.
    class_loss: the mean loss of each class.
    group_accuracy: of each energy group, by its label.
    group_loss: of each energy group, by its label.
    own: further metrics of the experiment, by name.
    breakdown: of those, by group, class and over clients.

    >>> import everfed as ef
    >>> ef.Metrics(loss=0.5, accuracy=0.9).value("accuracy")
    0.9
    """

    loss: float
    accuracy: float | None = None
    class_accuracy: tuple[float, ...] | None = None  # recall of each class; NaN if the test set has none
    class_loss: tuple[float, ...] | None = None
    group_accuracy: dict[str, float] | None = None
    group_loss: dict[str, float] | None = None
    own: dict[str, float] = field(default_factory=dict)  # further metrics, the task's and the run's
    # Of a metric, by its parts: {"f1": {"group 5": 0.8, "class 3": 0.7, "clients mean": 0.75, "clients worst tenth":
    # 0.4}}. Over clients of loss and accuracy as well.
    breakdown: dict[str, dict[str, float]] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """A metric by name, built-in or custom."""
        if name in self.own:
            return self.own[name]
        if name not in NAMES:
            raise InputError(unknown("metric", name, [*NAMES, *self.own]))
        return getattr(self, name)

    @property
    def worst_group_accuracy(self) -> float | None:
        known = [v for v in (self.group_accuracy or {}).values() if not math.isnan(v)]
        return min(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        def number(value: float) -> float | None:
            return None if math.isnan(value) else value

        def listed(values: tuple[float, ...] | None) -> list[float | None] | None:
            return None if values is None else [number(v) for v in values]

        def named(values: dict[str, float] | None) -> dict[str, float | None] | None:
            return None if values is None else {k: number(v) for k, v in values.items()}

        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "worst_group_accuracy": self.worst_group_accuracy,
            "class_accuracy": listed(self.class_accuracy),
            "class_loss": listed(self.class_loss),
            "group_accuracy": named(self.group_accuracy),
            "group_loss": named(self.group_loss),
            **({"own": named(self.own)} if self.own else {}),
            **({"breakdown": {k: named(v) for k, v in self.breakdown.items()}} if self.breakdown else {}),
        }


NAMES = list(Metrics(0.0).to_dict())
