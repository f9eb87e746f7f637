"""Evaluation: overall, per class, per energy group, and over clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everfed.arrays import Floats, Inputs, Ints, each
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.data.plain import Pair
from everfed.data.targets import CLASSIFICATION, NEXT_TOKEN, REGRESSION
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, first_line, warn
from everfed.learning.calling import outputs_of
from everfed.learning.generators import undisturbed
from everfed.learning.layout import Layout
from everfed.learning.measures import BROUGHT, METRICS, Measure, Metric, measured, name_of, own_metrics
from everfed.learning.metrics import NAMES, Metrics as Metrics
from everfed.learning.objectives import LOSSES, Targets, per_target
from everfed.learning.precision import autocast
from everfed.learning.task import Loss, own_tensor
from everfed.machine import check_memory

# Test samples per forward pass, and bytes of their outputs: bounds the memory of an evaluation.
_BATCH = 2048
_OUTPUT_BYTES = 128 << 20
# Classes that are looked at one by one: an evaluation of a large vocabulary would fill pages.
_MOST_CLASSES = 1000
# Test samples that are also evaluated alone, and how far their outputs may then be apart, relative to the largest:
# products of another size are rounded otherwise.
_TRIED_ALONE = 3
_ROUNDING = {"float32": 1e-3, "tf32": 0.05, "bf16": 0.1}


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
        test: Pair | None = None,
    ) -> None:
        """test: samples and targets to evaluate on; None: the test set of the data."""
        self.module, self.layout, self.loss, self.task = module, layout, loss, data.task
        self.augment, self.precision = data.augment, precision
        x, y = test or (data.test_x, data.test_y)
        self.x, self.y = each(lambda part: own_tensor(part, device), x), own_tensor(y, device)
        self.classes = data.classes
        # By name: comparing objects of libraries may give anything.
        self.asked = [m if isinstance(m, str) else name_of(m) for m in metrics]
        self.metrics = self._chosen(metrics)
        self.groups = {g.label: g.clients for g in fleet.groups()}
        self.owner = data.test_owner if test is None else None
        if self.owner is not None and not np.any(self.owner >= 0):
            self.groups = {}  # nobody's samples say nothing of anybody
        self.clients, self.batch = len(data), _BATCH
        if self.owner is not None:
            self.owner_on_device = own_tensor(self.owner, device)
        # Without owners: the labels of each group, and of each client, by which the test set is re-weighted.
        self.mixes: dict[str, Floats] = {}
        self.client_mixes: Floats | None = None
        if self.task == CLASSIFICATION and self.owner is None:
            self.mixes = dict(zip(self.groups, data.label_mixes(list(self.groups.values())), strict=True))
            self.client_mixes = data.label_counts().astype(np.float64) if isinstance(data, FederatedData) else None
        if len(self.y):  # what metrics get wrong shows now, and not after the first rounds
            with undisturbed(device):
                self._prepare()
                mixing = self._mixes_samples()
            if mixing:
                warn(
                    f"the outputs of the model {type(module).__name__} for a sample depend on the other samples of its "
                    "batch, so evaluations depend on how the test set is cut. If that is not meant: nn.LSTM, "
                    "nn.MultiheadAttention and layers of transformers take samples first only with batch_first=True.",
                    5,
                )

    def _chosen(self, metrics: Sequence[str | Metric]) -> dict[str, Metric]:
        names = [name for name in BROUGHT[self.task] if name not in self.asked]
        found = own_metrics([*names, *metrics], NAMES)
        for name, metric in found.items():
            if isinstance(metric, Measure) and self.task not in metric.tasks:
                usable = [n for n, m in METRICS.items() if isinstance(m, Measure) and self.task in m.tasks]
                raise InputError(
                    f"the metric '{name}' is of {' and '.join(metric.tasks)}, but the task is {self.task}; choose "
                    f"among {', '.join(usable)}."
                )
        if self.task == NEXT_TOKEN:
            found.pop("perplexity", None)  # from the loss
        return found

    def _mixes_samples(self) -> bool:
        """Whether some test samples have other outputs alone than together, beyond rounding."""
        params = self.layout.flatten(self.module)
        together = self._outputs(params, slice(0, _TRIED_ALONE))
        alone = [self._outputs(params, slice(i, i + 1)) for i in range(len(together))]
        if any(one.shape[1:] != together.shape[1:] for one in alone):
            return True
        apart = _ROUNDING.get(self.precision, 0.0) * together.abs().max()
        return bool(((torch.cat(alone) - together).abs() > apart).any())

    def _prepare(self) -> None:
        params = self.layout.flatten(self.module)
        try:
            first = self._outputs(params, slice(0, 1))
        except Exception as error:  # the user's own module; on training samples it was tried before
            raise InputError(
                f"the model fails on a test sample alone ({first_line(error)}); samples are evaluated in batches of "
                "any size, so use layers that do not mix those of a batch, such as nn.GroupNorm for nn.BatchNorm."
            ) from error
        if self.task == NEXT_TOKEN:
            size = int(first.nbytes)
            self.batch = max(1, min(_BATCH, _OUTPUT_BYTES // size))
            if self.metrics:
                what = f"the outputs for {len(self.y):,} test samples, of which metrics are computed,"
                check_memory(what, size * len(self.y), "use fewer test samples, or no metrics")
        if self.task == REGRESSION and first.shape[1:] != self.y.shape[1:]:  # with a loss of the user's own
            self.metrics = {n: m for n, m in self.metrics.items() if n not in BROUGHT[REGRESSION] or n in self.asked}
        found = self._own(self._all_outputs(params), {}) if self.metrics else {}
        for name, value in found.items():
            if math.isnan(value) and name in self.asked:
                raise InputError(
                    f"the metric '{name}' is NaN on this test set with the initial model; it must be a number."
                )

    def __call__(self, params: Tensor) -> Metrics | None:
        """None without a test set."""
        if len(self.y) == 0:
            return None
        outputs = self._all_outputs(params) if self.metrics or self.task != NEXT_TOKEN else None
        if self.task == REGRESSION and self.loss is not F.mse_loss:
            assert outputs is not None
            breakdown: dict[str, dict[str, float]] = {}
            loss = float(self.loss(outputs.clone(), self.y.clone()))
            return Metrics(loss, own=self._own(outputs, breakdown), breakdown=breakdown)
        return self._judged(self._targets(params, outputs), outputs)

    def _judged(self, targets: Targets, outputs: Tensor | None) -> Metrics:
        class_loss, class_accuracy = self._by_class(targets)
        breakdown = {"loss": self._over_clients(targets.loss, targets.sample, class_loss, worst=max)}
        if targets.hit is not None:
            breakdown["accuracy"] = self._over_clients(targets.hit, targets.sample, class_accuracy, worst=min)
        group_loss = self._by_group(targets.loss, targets.sample, class_loss)
        loss = float(targets.loss.mean() if outputs is None or self.task != REGRESSION else self.loss(outputs, self.y))
        own: dict[str, float] = {}
        if self.task == NEXT_TOKEN:
            own["perplexity"] = float(_exp(loss))
            over = self._over_clients(targets.loss, targets.sample, None, worst=max, change=_exp)
            groups = {f"group {label}": float(_exp(np.float64(value))) for label, value in (group_loss or {}).items()}
            breakdown["perplexity"] = {**groups, **over}
        if outputs is not None:
            own |= self._own(outputs, breakdown)
        return Metrics(
            loss,
            None if targets.hit is None else float(targets.hit.to(torch.float64).mean()),
            None if class_accuracy is None else tuple(class_accuracy.tolist()),
            None if class_loss is None else tuple(class_loss.tolist()),
            None if targets.hit is None else self._by_group(targets.hit, targets.sample, class_accuracy),
            group_loss,
            own,
            {name: parts for name, parts in breakdown.items() if parts},
        )

    def _targets(self, params: Tensor, outputs: Tensor | None) -> Targets:
        if outputs is not None:
            return per_target(self.task, outputs, self.y)
        found = []
        for start in range(0, len(self.y), self.batch):  # outputs for a whole vocabulary are not kept
            part = slice(start, start + self.batch)
            some = per_target(self.task, self._outputs(params, part), self.y[part])
            found.append(some._replace(sample=some.sample + start))
        joined: list[Any] = [None if c[0] is None else torch.cat(c) for c in zip(*found, strict=True)]
        return Targets(*joined)

    def _by_class(self, targets: Targets) -> tuple[Floats | None, Floats | None]:
        """(the mean loss, the accuracy) of each class; NaN for classes that the test set lacks."""
        if targets.label is None or targets.hit is None or self.classes > _MOST_CLASSES:
            return None, None
        totals = _sums(torch.ones_like(targets.loss), targets.label, self.classes)
        with np.errstate(invalid="ignore"):
            losses, hits = (
                _sums(values.to(targets.loss.dtype), targets.label, self.classes) / totals
                for values in (targets.loss, targets.hit)
            )
        return losses, hits

    def _by_group(self, values: Tensor, sample: Tensor, per_class: Floats | None) -> dict[str, float] | None:
        """The mean of each energy group; None if it is not known what belongs to whom."""
        if self.owner is not None:
            if not self.groups:
                return None
            sums, counts = self._client_means(values, sample)
            return {label: _ratio(sums[who].sum(), counts[who].sum()) for label, who in self.groups.items()}
        if per_class is None or not self.mixes:
            return None
        return {label: _mixed(per_class, mix) for label, mix in self.mixes.items()}

    def _client_means(self, values: Tensor, sample: Tensor) -> tuple[Floats, Floats]:
        """[clients] (the sum over each client's targets, their number)."""
        owner = self.owner_on_device[sample]
        counts = owner >= 0
        values, owner = values[counts].to(torch.float64), owner[counts]
        return _sums(values, owner, self.clients), _sums(torch.ones_like(values), owner, self.clients)

    def _over_clients(
        self, values: Tensor, sample: Tensor, per_class: Floats | None, worst: Any, change: Any = None
    ) -> dict[str, float]:
        """Mean and worst tenth of the clients' own means. worst: max for losses, min for what should be high."""
        if self.owner is not None:
            sums, counts = self._client_means(values, sample)
        elif per_class is not None and self.client_mixes is not None:
            weights = np.where(np.isnan(per_class), 0.0, self.client_mixes)
            sums, counts = weights @ np.nan_to_num(per_class), weights.sum(axis=1)
        else:
            return {}
        each_client = sums[counts > 0] / counts[counts > 0]
        return _spread(each_client if change is None else change(each_client), worst)

    def _own(self, outputs: Tensor, breakdown: dict[str, dict[str, float]]) -> dict[str, float]:
        """The task's and the run's further metrics, and in `breakdown` their parts."""
        found = {}
        for name, metric in self.metrics.items():
            found[name] = self._measured(name, metric, outputs, self.y)
            parts = self._own_by_group(name, metric, outputs)
            if isinstance(metric, Measure) and metric.per_class and self.classes <= _MOST_CLASSES:
                values = metric.each(outputs, self.y)
                parts |= {f"class {c}": float(value) for c, value in enumerate(values[: self.classes])}
            if parts:
                breakdown[name] = parts
        return found

    def _measured(self, name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
        return measured(name, metric, outputs, targets, self.task, scores=self.loss is LOSSES[self.task])

    def _own_by_group(self, name: str, metric: Metric, outputs: Tensor) -> dict[str, float]:
        if self.owner is None:
            if not (self.mixes and isinstance(metric, Measure)):
                return {}  # a user's function takes no weights
            labels = self.y.cpu().numpy()
            totals = np.maximum(np.bincount(labels, minlength=self.classes), 1)
            weights = {label: (mix / totals)[labels] for label, mix in self.mixes.items()}
            return {f"group {label}": metric(outputs, self.y, weight) for label, weight in weights.items()}

        def of(clients: Ints) -> float:
            some = torch.as_tensor(np.flatnonzero(np.isin(self.owner, clients)), device=self.y.device)  # type: ignore[arg-type]
            try:
                return self._measured(name, metric, outputs[some], self.y[some]) if len(some) else math.nan
            except InputError:  # undefined for these few, such as those of one class alone
                return math.nan

        groups = {f"group {label}": of(clients) for label, clients in self.groups.items()}
        holders = np.unique(self.owner[self.owner >= 0])
        each_client = np.array([of(np.array([client])) for client in holders])
        return groups | _spread(each_client[~np.isnan(each_client)], _worst(name, metric))

    def _all_outputs(self, params: Tensor) -> Tensor:
        batches = [slice(start, start + self.batch) for start in range(0, len(self.y), self.batch)]
        return torch.cat([self._outputs(params, part) for part in batches])

    def _outputs(self, params: Tensor, part: slice) -> Tensor:
        # Into the module, so that weights that it shares between its parts stay shared.
        self.layout.load(params, self.module)
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), autocast(self.precision):
                # Copies, since a model may change its inputs in place.
                inputs: Inputs = each(lambda x: self.augment.evaluate(x[part].clone()), self.x)
                return outputs_of(self.module, inputs).float()
        finally:
            self.module.train(training)


def _exp(losses: Any) -> Any:
    with np.errstate(over="ignore"):  # infinite from 710 on
        return np.exp(losses)


def _sums(values: Tensor, numbers: Tensor, count: int) -> Floats:
    sums = torch.zeros(count, dtype=torch.float64, device=values.device)
    sums.index_add_(0, numbers, values.to(torch.float64))
    return sums.cpu().numpy()


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count else math.nan


def _worst(name: str, metric: Metric) -> Any:
    """max if high values are bad, min if low ones are, None if that is not known."""
    if isinstance(metric, Measure):
        return max if name in ("mae", "perplexity") else min
    better = getattr(metric, "higher_is_better", None)  # as torchmetrics has it; a function may have it too
    return None if better is None else min if better else max


def _spread(values: Floats, worst: Any) -> dict[str, float]:
    """Mean and worst tenth, rounded up to whole clients; both ends where the worse one is not known."""
    if len(values) == 0:
        return {}
    ordered, count = np.sort(values), -(-len(values) // 10)
    ends = {"lowest": float(ordered[:count].mean()), "highest": float(ordered[-count:].mean())}
    if worst is not None:
        ends = {"worst": ends["highest" if worst is max else "lowest"]}
    return {"clients mean": float(values.mean()), **{f"clients {end} tenth": value for end, value in ends.items()}}


def _mixed(per_class: Floats, mix: Floats) -> float:
    """The mean over classes as one group holds them; classes that the test set lacks are left out."""
    weights = np.where(np.isnan(per_class), 0.0, mix)
    total = weights.sum()
    return float(np.nansum(per_class * weights) / total) if total else math.nan
