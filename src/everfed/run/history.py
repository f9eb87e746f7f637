"""The results of a run: one record per round, and the trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.energy.battery import Books
from everfed.learning.metrics import Metrics


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

    def to_dict(self) -> dict[str, Any]:
        lists = {
            "participants": self.participants.tolist(),
            "scales": self.scales.tolist(),
            "dropped": list(self.dropped),
        }
        metrics = self.metrics.to_dict() if self.metrics else None
        return {**vars(self), **lists, "energy": self.energy.to_dict(), "metrics": metrics}


@dataclass(frozen=True, eq=False)
class History:
    """A finished run: its records and the trained model."""

    rounds: list[RoundRecord]
    params: dict[str, Tensor]  # a state_dict

    @property
    def final(self) -> Metrics | None:
        """The last evaluation."""
        return next((r.metrics for r in reversed(self.rounds) if r.metrics), None)

    @property
    def energy(self) -> Books:
        return self.rounds[-1].energy

    @property
    def participations(self) -> int:
        return sum(len(r.participants) for r in self.rounds)

    def curve(self, metric: str = "accuracy") -> tuple[list[int], list[float]]:
        """(rounds done, values) of a metric, where it was evaluated."""
        points = [(r.round + 1, r.metrics.value(metric)) for r in self.rounds if r.metrics]
        return [x for x, _ in points], [y for _, y in points]
