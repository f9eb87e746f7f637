"""How good a model is: overall, per class, and as each energy group would see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from everfed.arrays import Floats
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.energy.fleet import Fleet
from everfed.learning.layout import Layout
from everfed.learning.precision import autocast
from everfed.learning.task import Loss, own_tensor

# Test samples per forward pass: bounds the memory of an evaluation.
_BATCH = 2048


@dataclass(frozen=True)
class Metrics:
    """One evaluation on the test set. Accuracies are None for regression."""

    loss: float
    accuracy: float | None = None
    class_accuracy: tuple[float, ...] | None = None  # recall of each class; NaN where the test set has none
    class_loss: tuple[float, ...] | None = None
    group_accuracy: dict[str, float] | None = None  # test set re-weighted by each energy group's labels
    group_loss: dict[str, float] | None = None

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
        }


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
    ) -> None:
        self.module, self.layout, self.loss = module, layout, loss
        self.augment, self.precision = data.augment, precision
        self.x, self.y = own_tensor(data.test_x, device), own_tensor(data.test_y, device)
        self.classes = data.classes
        self.mixes: dict[str, Floats] = {}
        if self.classes:
            groups = fleet.groups()
            mixes = data.label_mixes([g.clients for g in groups])
            self.mixes = {g.label: mix for g, mix in zip(groups, mixes, strict=True)}

    def __call__(self, params: Tensor) -> Metrics | None:
        """None without a test set."""
        if len(self.y) == 0:
            return None
        outputs = self._outputs(params)
        if not self.classes:
            return Metrics(float(self.loss(outputs, self.y)))
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
        )

    def _outputs(self, params: Tensor) -> Tensor:
        weights = self.layout.unflatten(params)
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), autocast(self.precision):
                inputs = (self.augment.evaluate(x) for x in self.x.split(_BATCH))
                return torch.cat([functional_call(self.module, weights, (x,)) for x in inputs]).float()
        finally:
            self.module.train(training)


def _by_class(values: Tensor, labels: Tensor, classes: int) -> Floats:
    sums = torch.zeros(classes, dtype=torch.float64, device=values.device)
    sums.index_add_(0, labels, values.to(torch.float64))
    return sums.cpu().numpy()


def _mixed(per_class: Floats, mix: Floats) -> float:
    """The mean over classes as one group holds them; classes that the test set lacks are left out."""
    weights = np.where(np.isnan(per_class), 0.0, mix)
    total = weights.sum()
    return float(np.nansum(per_class * weights) / total) if total else math.nan
