"""The results of a run: one record per round, and the trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.checks import checked
from everfed.energy.battery import Books
from everfed.errors import InputError, counted
from everfed.learning.metrics import Metrics
from everfed.showing import axes, svg
from everfed.showing.card import Card, Grid, Shown, numeral
from everfed.showing.frames import frame


@dataclass(frozen=True)
class Arrived:
    """What an asynchronous run's record says of each arrival, in the order of `participants`."""

    times: Floats  # in rounds
    staleness: Ints  # versions of the model made since the client began
    steps: Ints  # local steps
    version: int  # of the model, after the round

    def to_dict(self) -> dict[str, Any]:
        lists = {name: getattr(self, name).tolist() for name in ("times", "staleness", "steps")}
        return {**lists, "version": self.version}


@dataclass(frozen=True)
class RoundRecord:
    """The record of one round.

    round: its number, from 0.
    participants: [C] the clients that took part.
    scales: [C] what each multiplied its update by.
    round_weight: W_r, the participants' coefficients summed; 1 on average if unbiased.
    energy: of the fleet, up to and including this round.
    update_norm: the length of the server's step.
    train_loss: mean minibatch loss of the participants; None if no client trained.
    metrics: the evaluation after the update, in rounds that have one.
    seconds: that the round took.
    dropped: participants whose update was not finite and was left out.
    validation: the same as metrics on the validation set of early stopping, where there is one.
    arrived: of asynchronous runs, whose participants are those that arrived in the round.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2])
    >>> data = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2, test=([[0.0], [1.0]], [0, 1]))
    >>> record = next(iter(ef.start("logistic", data, fleet, "greedy", rounds=4, batch_size=2)))
    >>> record.round, record.participants.tolist()
    (0, [0, 1])
    """

    round: int
    participants: Ints
    scales: Floats  # what each participant multiplied its update by
    round_weight: float  # W_r: the participants' coefficients summed; 1 on average if unbiased
    energy: Books  # up to and including this round
    update_norm: float  # length of the server's step
    train_loss: float | None  # mean minibatch loss of the participants; None if no client trained
    metrics: Metrics | None  # where evaluated: after the update
    seconds: float
    dropped: tuple[int, ...] = ()  # participants whose update was not finite and was left out
    validation: Metrics | None = None  # the same on the validation set of early stopping, where there is one
    arrived: Arrived | None = None  # of asynchronous runs, whose participants are those that arrived in the round

    def to_dict(self) -> dict[str, Any]:
        lists = {
            "participants": self.participants.tolist(),
            "scales": self.scales.tolist(),
            "dropped": list(self.dropped),
        }
        found = {**vars(self), **lists, "energy": self.energy.to_dict()}
        found["metrics"] = self.metrics.to_dict() if self.metrics else None
        later = {name: part.to_dict() for name in ("validation", "arrived") if (part := found.pop(name)) is not None}
        return {**found, **later}


@dataclass(frozen=True, eq=False, repr=False)
class History(Shown):
    """A finished run: its records and the trained model.

    rounds: one RoundRecord per round.
    params: the trained model, a state_dict.
    model_round: rounds that this model has seen: all of them, unless early stopping kept the best.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2])
    >>> data = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2, test=([[0.0], [1.0]], [0, 1]))
    >>> history = ef.simulate("logistic", data, fleet, "greedy", rounds=4, batch_size=2)
    >>> history.participations, history.energy.spent, history.final.accuracy
    (6, 6.0, 1.0)
    """

    rounds: list[RoundRecord]
    params: dict[str, Tensor]  # a state_dict
    # How many rounds that model has seen: all of them, unless early stopping kept the best.
    model_round: int | None = field(default=None, kw_only=True)

    @property
    def final(self) -> Metrics | None:
        """The last evaluation of the model that the run ended with."""
        seen = self.rounds[: self.model_round]
        return next((r.metrics for r in reversed(seen) if r.metrics), None)

    @property
    def validation(self) -> Metrics | None:
        """The same on the validation set of early stopping."""
        return next((r.validation for r in reversed(self.rounds[: self.model_round]) if r.validation), None)

    @property
    def energy(self) -> Books:
        return self.rounds[-1].energy

    @property
    def participations(self) -> int:
        return sum(len(r.participants) for r in self.rounds)

    def curve(self, metric: str = "accuracy", on: str = "test") -> tuple[list[int], list[float]]:
        """(rounds done, values) of a metric, where it was evaluated. on: "test", or "validation" (early stopping)."""
        checked("on", on, Annotated[str, ("test", "validation")])
        found = [(r.round + 1, r.metrics if on == "test" else r.validation) for r in self.rounds]
        points = [(done, metrics.value(metric)) for done, metrics in found if metrics]
        return [x for x, _ in points], [y for _, y in points]

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per round; NaN where a round was not evaluated.

        Energy is what was harvested, spent, ... up to and including the round; groups are columns such as
        "accuracy[E=5]".
        """
        rows = [_row(record) for record in self.rounds]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return frame({name: [row.get(name, np.nan) for row in rows] for name in names}, index="round")

    def plot(self, metric: str | None = None, *, on: str = "test", groups: bool = True, ax: Any = None) -> Any:
        """A metric over the rounds, and thinner what each energy group has of it; returns Matplotlib's axes.

        metric: by name, "accuracy" (default; without classes "loss") or a metric of your own. on: "test", or
        "validation" (early stopping). groups: whether to draw the energy groups, of accuracy and loss.
        """
        name = self._judged_by() if metric is None else metric
        rounds, values = self.curve(name, on)
        if not rounds:
            raise InputError(f"the run was never evaluated on {on} samples, so there is no {name} to draw.")
        if any(value is not None and np.ndim(value) for value in values):
            raise InputError(f"'{name}' has several values a round; draw one such as {self._judged_by()}.")
        ax = axes.axes(ax)
        percent = 100.0 if "accuracy" in name else 1.0
        inside = self._group_curves(name, on) if groups else {}
        # One evaluation is a point, seen whole at the end of the axis.
        alone: dict[str, Any] = {"marker": "o", "clip_on": False} if len(rounds) == 1 else {}
        for place, (label, (x, y)) in enumerate(inside.items()):
            ax.plot(x, percent * np.array(y, float), **axes.look(place), linewidth=1.0, label=label, **alone)
        whole = percent * np.array(values, float)
        ax.plot(rounds, whole, color="#222222", linewidth=2.2, label="all", **alone)
        ax.set(xlabel="round", ylabel=f"{name} (%)" if percent > 1 else name, xlim=(0, len(self.rounds)))
        axes.whole_rounds(ax)
        if percent > 1:
            axes.percents(ax)
        axes.title(ax, f"{on.capitalize()} {name.replace('_', ' ')}{self._said()}")
        axes.grid(ax)
        axes.legend(ax)
        return ax

    def _judged_by(self) -> str:
        return "loss" if self.final and self.final.accuracy is None else "accuracy"

    def _group_curves(self, name: str, on: str = "test") -> dict[str, tuple[list[int], list[float]]]:
        found: dict[str, tuple[list[int], list[float]]] = {}
        for record in self.rounds:
            metrics = record.metrics if on == "test" else record.validation
            for label, value in (getattr(metrics, f"group_{name}", None) or {}).items():
                x, y = found.setdefault(label, ([], []))
                x.append(record.round + 1)
                y.append(value)
        return found

    def _said(self) -> str:
        """What run it is, behind the title of a plot."""
        return ""

    def _energy_unit(self) -> str:
        return ""

    def _facts(self) -> list[tuple[str, str]]:
        facts = []
        if final := self.final:
            known = {"accuracy": final.accuracy, "worst group": final.worst_group_accuracy}
            said = [f"{name} {_percent(value)}" for name, value in known.items() if value is not None]
            own = [f"{name} {numeral(value)}" for name, value in list(final.own.items())[:4]]
            facts.append(("test set", ", ".join([*said, f"loss {numeral(final.loss)}", *own])))
        if self.model_round is not None and self.model_round < len(self.rounds):
            facts.append(("model", f"of round {self.model_round}, kept by early stopping"))
        if self.rounds:
            books, unit = self.energy, self._energy_unit()
            facts.append(("participations", f"{self.participations:,}"))
            # Not "of": batteries may begin with energy that was not harvested.
            spent = f"{numeral(books.spent)}{unit} spent, {numeral(books.harvested)} harvested"
            facts.append(("energy", f"{spent}, {numeral(books.wasted)} wasted"))
        facts.append(("parameters", f"{sum(value.numel() for value in self.params.values()):,}"))
        return facts

    def _card(self) -> Card:
        return Card(
            f"{type(self).__name__}: {counted(len(self.rounds), 'round')}", self._facts(), self._grid(), self._picture
        )

    def _grid(self) -> Grid | None:
        final = self.final
        accuracies, losses = (final.group_accuracy or {}, final.group_loss or {}) if final else ({}, {})
        rows = []
        for label in dict.fromkeys([*accuracies, *losses]):
            rows.append((label, _percent(accuracies.get(label)), numeral(losses.get(label))))
        return Grid.of(("energy group", "accuracy", "loss"), rows) if rows else None

    def _picture(self) -> str:
        name = self._judged_by()
        rounds, values = self.curve(name)
        shown: list[tuple[str, Any, Any]] = [("all", rounds, np.array(values, float))]
        by_round: dict[int, list[float]] = {}
        for x, y in self._group_curves(name).values():
            for done, value in zip(x, np.array(y, float), strict=True):
                if not np.isnan(value):
                    by_round.setdefault(done, []).append(value)
        if by_round:
            at, worst = sorted(by_round), min if name == "accuracy" else max
            shown.append(("worst group", at, [worst(by_round[done]) for done in at]))
        if name == "accuracy":
            shown = [(label, x, 100.0 * np.asarray(y, float)) for label, x, y in shown]
        return svg.lines(shown, f"{name} %" if name == "accuracy" else name, 0.0)


def _percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


def _row(record: RoundRecord) -> dict[str, Any]:
    """One line of a frame."""
    row: dict[str, Any] = {
        "round": record.round,
        "participants": len(record.participants),
        "round_weight": record.round_weight,
        "update_norm": record.update_norm,
        "train_loss": np.nan if record.train_loss is None else record.train_loss,
        "dropped": len(record.dropped),
        **record.energy.to_dict(),
        "seconds": record.seconds,
    }
    if record.arrived:
        stale = record.arrived.staleness
        row |= {"version": record.arrived.version, "staleness": float(stale.mean()) if len(stale) else np.nan}
    for before, metrics in (("", record.metrics), ("validation_", record.validation)):
        if metrics:
            row |= {f"{before}loss": metrics.loss, f"{before}accuracy": metrics.accuracy}
            row |= {f"{before}worst_group_accuracy": metrics.worst_group_accuracy}
            for name in ("accuracy", "loss"):
                groups = getattr(metrics, f"group_{name}") or {}
                row |= {f"{before}{name}[{label}]": value for label, value in groups.items()}
            row |= {before + name: value for name, value in metrics.own.items()}
    return {name: value for name, value in row.items() if value is not None}
