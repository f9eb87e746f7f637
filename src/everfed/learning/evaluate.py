"""Evaluation: overall, per class, and weighted by each energy group's labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from everfed import registry
from everfed.arrays import Floats
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, first_line, shown, unknown
from everfed.learning.layout import Layout
from everfed.learning.precision import autocast
from everfed.learning.task import Loss, own_tensor
from everfed.learning.trial import undisturbed
from everfed.registry import lookup

# Test samples per forward pass: bounds the memory of an evaluation.
_BATCH = 2048

Metric = Callable[[Tensor, Tensor], Any]  # of all outputs and their targets; returns a number
METRICS: dict[str, Metric] = {}
registry.table("metrics", METRICS, given=("outputs", "targets"))


@dataclass(frozen=True)
class Metrics:
    """One evaluation on the test set. Accuracies are None for regression."""

    loss: float
    accuracy: float | None = None
    class_accuracy: tuple[float, ...] | None = None  # recall of each class; NaN if the test set has none
    class_loss: tuple[float, ...] | None = None
    group_accuracy: dict[str, float] | None = None  # test set re-weighted by each energy group's labels
    group_loss: dict[str, float] | None = None
    own: dict[str, float] = field(default_factory=dict)  # the run's additional metrics

    def value(self, name: str) -> Any:
        """A metric by name, built-in or custom."""
        if name in self.own:
            return self.own[name]
        if name not in _NAMES:
            raise InputError(unknown("metric", name, [*_NAMES, *self.own]))
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
        }


_NAMES = list(Metrics(0.0).to_dict())


def own_metrics(metrics: Sequence[str | Metric]) -> dict[str, Metric]:
    """Functions by name, from names of `METRICS` and functions, which go by their own names."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
        if name in found or name in _NAMES:
            raise InputError(f"two metrics are called '{name}'; give each its own name.")
        if isinstance(metric, type):
            raise InputError(f"the metric is the class {name}; give a function of (outputs, targets), or an instance.")
        found[name] = lookup(METRICS, metric, "metric") if isinstance(metric, str) else metric
    return found


class Evaluator:
    """Evaluates flat parameters on a federation's test set."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        data: FederatedData | OnDemand,
        fleet: Fleet,
        loss: Loss,
        device: torch.device,
        precision: str = "float32",
        metrics: Sequence[str | Metric] = (),
    ) -> None:
        self.metrics = own_metrics(metrics)
        self.module, self.layout, self.loss = module, layout, loss
        self.augment, self.precision = data.augment, precision
        self.x, self.y = own_tensor(data.test_x, device), own_tensor(data.test_y, device)
        self.classes = data.classes
        self.mixes: dict[str, Floats] = {}
        if self.classes:
            groups = fleet.groups()
            mixes = data.label_mixes([g.clients for g in groups])
            self.mixes = {g.label: mix for g, mix in zip(groups, mixes, strict=True)}
        if self.metrics and len(self.y):  # what they get wrong shows now, and not after the first rounds
            with undisturbed(device):
                self._own(self._outputs(layout.flatten(module)))

    def __call__(self, params: Tensor) -> Metrics | None:
        """None without a test set."""
        if len(self.y) == 0:
            return None
        outputs = self._outputs(params)
        if not self.classes:
            return Metrics(float(self.loss(outputs.clone(), self.y.clone())), own=self._own(outputs))
        losses = F.cross_entropy(outputs, self.y, reduction="none")
        correct = outputs.argmax(dim=1) == self.y
        totals = _by_class(torch.ones_like(losses), self.y, self.classes)
        with np.errstate(invalid="ignore"):
            class_accuracy = _by_class(correct.to(losses.dtype), self.y, self.classes) / totals
            class_loss = _by_class(losses, self.y, self.classes) / totals
        return Metrics(
            float(losses.mean()),
            float(correct.to(torch.float64).mean()),
            tuple(class_accuracy.tolist()),
            tuple(class_loss.tolist()),
            {label: _mixed(class_accuracy, mix) for label, mix in self.mixes.items()},
            {label: _mixed(class_loss, mix) for label, mix in self.mixes.items()},
            self._own(outputs),
        )

    def _own(self, outputs: Tensor) -> dict[str, float]:
        """The run's additional metrics, each of copies, since a user's function may write into what it is given."""
        found = {}
        for name, metric in self.metrics.items():
            try:
                value = metric(outputs.clone(), self.y.clone())
            except Exception as error:  # the user's own code, which may raise anything
                said = f"the metric '{name}' fails ({first_line(error)})"
                raise InputError(f"{said}; it takes (outputs, targets) and returns a number.") from error
            found[name] = _number(name, value)
        return found

    def _outputs(self, params: Tensor) -> Tensor:
        weights = self.layout.unflatten(params)
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), autocast(self.precision):
                # Copies, since a model may change its inputs in place.
                inputs = (self.augment.evaluate(x.clone()) for x in self.x.split(_BATCH))
                return torch.cat([functional_call(self.module, weights, (x,)) for x in inputs]).float()
        finally:
            self.module.train(training)


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):  # of which float would read some
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"the metric '{name}' is {shown(value)}; it must be a number.")


def _by_class(values: Tensor, labels: Tensor, classes: int) -> Floats:
    sums = torch.zeros(classes, dtype=torch.float64, device=values.device)
    sums.index_add_(0, labels, values.to(torch.float64))
    return sums.cpu().numpy()


def _mixed(per_class: Floats, mix: Floats) -> float:
    """The mean over classes as one group holds them; classes that the test set lacks are left out."""
    weights = np.where(np.isnan(per_class), 0.0, mix)
    total = weights.sum()
    return float(np.nansum(per_class * weights) / total) if total else math.nan
