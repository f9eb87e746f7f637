"""Metrics beside loss and accuracy: those that come with a task, those by name, and a user's own.

A metric is a function of (outputs, targets) that returns a number. Those of this file also take weights of the samples,
so that a test set can be re-weighted as an energy group's own; a user's own is computed on the group's samples, where
it is known whose they are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import Tensor

from everfed import registry
from everfed.arrays import Floats
from everfed.data.targets import CLASSIFICATION, IGNORED, MULTILABEL, NEXT_TOKEN, REGRESSION
from everfed.errors import InputError, first_line, shown
from everfed.registry import lookup

Metric = Callable[[Tensor, Tensor], Any]  # of all outputs and their targets; returns a number
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measure:
    """A metric of the table. compute(outputs, targets, weights) -> [classes] or [1]: its mean is the metric."""

    compute: Callable[[Array, Array, Floats | None], Floats]
    tasks: tuple[str, ...]  # that it can judge
    per_class: bool = False

    def each(self, outputs: Tensor, targets: Tensor, weights: Floats | None = None) -> Floats:
        """The metric for every class, or alone."""
        y, found = targets.detach().cpu().numpy(), outputs.detach().cpu().numpy()
        if y.dtype.kind == "i" and y.ndim == 2:  # tokens: each position that counts is a sample
            counts = y != IGNORED
            weights = np.repeat(weights, counts.sum(axis=1)) if weights is not None else None
            y, found = y[counts], found[counts]
        if weights is not None:  # samples without weight would still count as classes
            y, found, weights = y[weights > 0], found[weights > 0], weights[weights > 0]
        if len(y) == 0:
            return np.array([math.nan])
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):  # NaN says what is undefined
            warnings.simplefilter("ignore")
            return self.compute(found, y, weights)

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Floats | None = None) -> float:
        return mean_of(self.each(outputs, targets, weights))


def mean_of(values: Floats) -> float:
    """The mean over those that are defined."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _f1(outputs: Array, y: Array, weights: Floats | None) -> Floats:
    from sklearn.metrics import f1_score  # a second to import, here and below

    if y.ndim == 2:  # NaN: a label that is neither there nor predicted, here and below
        pairs = zip(y.T, outputs.T > 0, strict=True)
        return np.array([f1_score(right, said, sample_weight=weights, zero_division=np.nan) for right, said in pairs])
    found = f1_score(
        y, outputs.argmax(axis=1), labels=np.arange(outputs.shape[1]), average=None, sample_weight=weights,
        zero_division=np.nan,
    )  # fmt: skip
    return np.atleast_1d(found)


def _auc(outputs: Array, y: Array, weights: Floats | None) -> Floats:
    from sklearn.metrics import roc_auc_score

    right, scores = y, outputs
    if y.ndim == 1:  # one class against the rest, by its probability: a score says nothing without the others
        right, scores = y[:, None] == np.arange(outputs.shape[1]), softmax(outputs.astype(np.float64), axis=1)
    both = (right.min(axis=0) < right.max(axis=0)).nonzero()[0]
    found = np.full(outputs.shape[1], math.nan)
    for c in both:
        found[c] = roc_auc_score(right[:, c], scores[:, c], sample_weight=weights)
    return found


def _top(k: int) -> Callable[[Array, Array, Floats | None], Floats]:
    def compute(outputs: Array, y: Array, weights: Floats | None) -> Floats:
        own, place = np.take_along_axis(outputs, y[:, None], axis=1), np.arange(outputs.shape[1])
        before = (outputs > own) | ((outputs == own) & (place < y[:, None]))  # of equals the first, as argmax has it
        hits = before.sum(axis=1) < k
        return np.array([np.average(hits, weights=weights)])

    return compute


def _perplexity(outputs: Array, y: Array, weights: Floats | None) -> Floats:
    losses = torch.nn.functional.cross_entropy(torch.tensor(outputs), torch.tensor(y), reduction="none")
    return np.exp([np.average(losses.double().numpy(), weights=weights)])


def _mae(outputs: Array, y: Array, weights: Floats | None) -> Floats:
    return np.array([np.average(np.abs(outputs - y).reshape(len(y), -1).mean(axis=1), weights=weights)])


def _r2(outputs: Array, y: Array, weights: Floats | None) -> Floats:
    """The part of the variance that is explained; of several targets, the mean. NaN where there is no variance."""
    out, right = outputs.reshape(len(y), -1).astype(np.float64), y.reshape(len(y), -1).astype(np.float64)
    spread = right - np.average(right, axis=0, weights=weights)
    error, whole = (np.average(np.square(part), axis=0, weights=weights) for part in (out - right, spread))
    parts = np.where(whole > 0, 1.0 - error / np.where(whole > 0, whole, 1.0), math.nan)
    return np.array([mean_of(parts)])


_CLASSES = (CLASSIFICATION, NEXT_TOKEN)
METRICS: dict[str, Metric] = {
    "top-3": Measure(_top(3), _CLASSES),
    "top-5": Measure(_top(5), _CLASSES),
    "perplexity": Measure(_perplexity, _CLASSES),
    "f1": Measure(_f1, (*_CLASSES, MULTILABEL), per_class=True),
    "auc": Measure(_auc, (*_CLASSES, MULTILABEL), per_class=True),
    "mae": Measure(_mae, (REGRESSION,)),
    "r2": Measure(_r2, (REGRESSION,)),
}
registry.table("metrics", METRICS, given=("outputs", "targets"))

# What a task brings without being asked. Perplexity follows from the loss and costs nothing.
BROUGHT: dict[str, tuple[str, ...]] = {
    CLASSIFICATION: (),
    NEXT_TOKEN: (),
    MULTILABEL: ("f1", "auc"),
    REGRESSION: ("mae", "r2"),
}


def name_of(metric: Metric) -> str:
    """A function's own name, an object's that has one, or that of its class."""
    if getattr(metric, "only_named", False):  # of a stored run, whose function is not here
        return str(metric.name)  # type: ignore[attr-defined]
    return str(getattr(metric, "__name__", type(metric).__name__))


def own_metrics(metrics: Sequence[str | Metric], reserved: Sequence[str] = ()) -> dict[str, Metric]:
    """Functions by name, from names of `METRICS` and functions, which go by their own names."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        name = metric if isinstance(metric, str) else name_of(metric)
        if isinstance(metric, str) and metric in reserved:
            raise InputError(f"'{metric}' is part of every evaluation; leave it out of metrics.")
        if name in reserved:
            raise InputError(f"a metric is called '{name}', as one of everfed's own; give it another name.")
        if name in found:
            raise InputError(f"two metrics are called '{name}'; give each its own name.")
        if isinstance(metric, type):
            raise InputError(f"the metric is the class {name}; give a function of (outputs, targets), or an instance.")
        found[name] = lookup(METRICS, metric, "metric") if isinstance(metric, str) else metric
    return found


def _arranged(metric: Metric, outputs: Tensor, targets: Tensor, task: str, scores: bool) -> tuple[Tensor, Tensor]:
    """Outputs and targets as torchmetrics wants them of a metric for classes; for other metrics as they are.

    scores: whether the outputs are known to be logits; it takes numbers from 0 to 1 for probabilities.
    """
    inside = metric.modules() if isinstance(metric, torch.nn.Module) else [getattr(metric, "func", metric)]
    kinds = [kind for part in inside for kind in (part, *type(part).__mro__)]
    if task == REGRESSION or not any(".classification." in str(getattr(k, "__module__", "")) for k in kinds):
        return outputs, targets
    if task == NEXT_TOKEN and any("ExactMatch" in getattr(kind, "__name__", "") for kind in kinds):
        return outputs.movedim(-1, 1), targets  # of whole sequences
    if task == NEXT_TOKEN:
        outputs, targets = outputs[targets != IGNORED], targets[targets != IGNORED]
    if scores and bool(((outputs >= 0) & (outputs <= 1)).all()):
        outputs = outputs.sigmoid() if task == MULTILABEL else outputs.softmax(dim=1)
    return outputs, targets.long()


def measured(name: str, metric: Metric, outputs: Tensor, targets: Tensor, task: str, scores: bool = True) -> float:
    """A metric of copies, since a user's function may write into what it is given.

    One that collects batches, as those of torchmetrics do, begins anew.
    """
    reset = getattr(metric, "reset", None)
    outputs, targets = _arranged(metric, outputs, targets, task, scores)
    try:
        if callable(reset):
            reset()
        value = metric(outputs.clone(), targets.clone())
    except Exception as error:  # the user's own code, which may raise anything
        said = f"the metric '{name}' fails ({first_line(error)})"
        raise InputError(f"{said}; it takes (outputs, targets) and returns a number.") from error
    finally:
        if callable(reset):
            reset()
    try:
        if not isinstance(value, str | bytes):  # of which float would read some
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"the metric '{name}' is {shown(value)}; it must be a number.")
