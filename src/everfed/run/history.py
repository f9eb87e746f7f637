"""The results of a run: one record per round, and the trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.checks import checked
from everfed.energy.battery import Books
from everfed.learning.metrics import Metrics


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
    """The record of one round."""

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


@dataclass(frozen=True, eq=False)
class History:
    """A finished run: its records and the trained model."""

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
