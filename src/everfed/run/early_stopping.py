"""Early stopping: a run watches a validation set of its own, keeps its best model, and may end before all rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import torch
from torch import Tensor

from everfed.arrays import part_of
from everfed.checks import BelowOne, Checked, CountOrZero
from everfed.errors import InputError, unknown, warn
from everfed.learning.layout import Layout
from everfed.learning.metrics import Metrics
from everfed.run.history import RoundRecord

# Whether lower values are better, of the metrics that everfed computes itself.
LOWER_IS_BETTER = {
    "loss": True, "perplexity": True, "mae": True, "accuracy": False, "worst_group_accuracy": False, "top-3": False,
    "top-5": False, "f1": False, "auc": False, "r2": False,
}  # fmt: skip

_OVERALL = ("loss", "accuracy", "worst_group_accuracy")


@dataclass(frozen=True)
class EarlyStopping(Checked):
    """A part of the training samples is held out, evaluated on beside the test set, and says when to end.

    >>> import everfed as ef
    >>> ef.Experiment(early_stopping=ef.EarlyStopping(part=0.1, patience=5)).early_stopping.keep
    'best'
    """

    part: BelowOne = 0.0  # of the training samples, or of the natural clients; 0: no validation set
    by: Annotated[str, ("sample", "client")] = "sample"  # client: whole natural clients are held out
    # Of the validation set: loss, accuracy, worst_group_accuracy or one of the run's further metrics.
    metric: str = "loss"
    better: Annotated[str, ("auto", "lower", "higher")] = "auto"  # auto: known for all but one's own metrics
    patience: CountOrZero = 0  # evaluations without an improvement after which the run ends; 0: it never does
    keep: Annotated[str, ("best", "last")] = "best"  # the model that the run ends with

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.part and any(getattr(self, f.name) != f.default for f in fields(self)):
            raise InputError(
                "part is 0, so that there is no validation set to watch; hold some samples out, as in part = 0.1."
            )

    def check(self, own: Collection[str]) -> None:
        """Refuse a metric that the run does not have. own: the names of its additional metrics."""
        known = [name for name in LOWER_IS_BETTER if not name.startswith("top-")]  # those that some task brings
        if self.metric not in (*known, *own):
            more = f"; add it to the run's metrics: metrics = ['{self.metric}']." * (self.metric in LOWER_IS_BETTER)
            names = {*known, *own}
            raise InputError(unknown("early_stopping.metric", self.metric, names).rstrip(".") + (more or "."))
        if self.metric not in LOWER_IS_BETTER and self.better == "auto":
            raise InputError(
                f"early_stopping.metric is '{self.metric}', one of the run's own; say which values are better: "
                "early_stopping.better = 'lower' or 'higher'."
            )

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        return LOWER_IS_BETTER[self.metric] if self.better == "auto" else self.better == "lower"

    def outlasts(self, other: EarlyStopping) -> bool:
        """Whether it is more patient."""
        return bool(other.patience) and (not self.patience or self.patience > other.patience)


@dataclass
class Course:
    """How the metric went: where its best value was, and how many evaluations ago."""

    setting: EarlyStopping
    value: float = math.nan
    done: int = 0  # rounds until then; 0: there was no value yet
    since: int = 0

    def add(self, metrics: Metrics, done: int) -> bool:
        """Whether an evaluation after so many rounds is the best so far; a NaN never is."""
        value = float(metrics.value(self.setting.metric))
        better = value < self.value if self.setting.lower else value > self.value
        improved = better or (not self.done and not math.isnan(value))
        if improved:
            self.value, self.done = value, done
        self.since = 0 if improved else self.since + 1
        return improved

    @property
    def ended(self) -> bool:
        return 0 < self.setting.patience <= self.since

    def kept(self, done: int) -> int:
        """The rounds that the model has seen which the run ends with after so many."""
        return self.done if self.setting.keep == "best" and self.done else done


def course_of(setting: EarlyStopping, records: Sequence[RoundRecord]) -> Course:
    """The course that records tell."""
    course = Course(setting)
    for record in records:
        if record.validation:
            course.add(record.validation, record.round + 1)
    return course


class Watch:
    """Evaluates a run's models on its validation set, and keeps the best of them."""

    def __init__(self, setting: EarlyStopping, evaluate: Callable[[Tensor], Metrics | None], first: Tensor) -> None:
        """first: the initial model, on which the metric is tried, so that a run does not end over it later."""
        self.setting, self.evaluate, self.course = setting, evaluate, Course(setting)
        self.best: Tensor | None = None
        self.told = False
        found = evaluate(first)
        known = [] if found is None else [n for n in (*_OVERALL, *found.own) if isinstance(found.value(n), int | float)]
        if setting.metric not in known:
            why = " (energy groups are told apart there by the classes of the samples)" * ("group" in setting.metric)
            raise InputError(
                f"early_stopping.metric is '{setting.metric}', which the validation set of this run does not have{why};"
                f" it has {', '.join(known)}, and what 'metrics' adds."
            )

    def look(self, params: Tensor, done: int) -> Metrics:
        """The validation metrics of the model after so many rounds."""
        metrics = self.evaluate(params)
        assert metrics is not None
        if self.course.add(metrics, done):
            if self.setting.keep == "best":
                self.best = params.clone()
        elif math.isnan(metrics.value(self.setting.metric)) and not self.told:
            warn(f"the validation {self.setting.metric} is NaN after round {done}; that counts as no improvement.")
            self.told = True
        return metrics

    def state_dict(self, layout: Layout) -> dict[str, Tensor]:
        course = torch.tensor([self.course.value, self.course.done, self.course.since], dtype=torch.float64)
        best = {} if self.best is None else layout.unflatten(self.best)
        return {"watch.course": course, **{f"best.{name}": value.clone() for name, value in best.items()}}

    def load_state_dict(self, state: dict[str, Tensor], layout: Layout, device: torch.device) -> None:
        value, done, since = state["watch.course"].tolist()
        self.course = Course(self.setting, value, int(done), int(since))
        if best := part_of(state, "best."):
            self.best = torch.cat([best[name].reshape(-1) for name in layout.names]).to(device)
