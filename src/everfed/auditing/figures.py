"""Values of a schedule, measured or exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.tally import Tally
from everfed.stats import jain


@dataclass(frozen=True)
class Figures:
    """Per client [N], over the rounds since the client's start; or one number for the fleet."""

    participation_rate: Floats | None = None
    mean_weight: Floats | None = None  # mean of join * scale; 1 is unbiased
    gap_mean: Floats | None = None  # rounds between two participations in a run; NaN: clients cannot take part twice
    gap_variance: Floats | None = None
    round_weight_mean: float | None = None  # W_r = sum over participants of share * scale, over all rounds
    round_weight_variance: float | None = None
    update_variance: float | None = None  # of sum p_i join_i scale_i delta_i, deltas equal with norm 1, given the round
    single_round_bias: float | None = None  # largest |E[join * scale] - 1| of a client in one round; exact only
    violations: float | None = None  # participations per run without enough energy

    @property
    def fairness(self) -> float | None:
        """Jain's index of the participation rates: 1 if all are equal, 1/N if only one client takes part."""
        return None if self.participation_rate is None else jain(self.participation_rate)


def measured(tally: Tally) -> Figures:
    """The values of a tally. Variances over seeds are population variances; one seed has none."""
    seeds = tally.seeds
    with np.errstate(invalid="ignore", divide="ignore"):
        gap_mean = tally.gap_sum / tally.gaps
        gap_variance = tally.gap_squares / tally.gaps - gap_mean**2
    mean, variance = tally.weight_variances()
    return Figures(
        participation_rate=tally.joins / (tally.active() * seeds),
        mean_weight=tally.clients.mean(seeds),
        gap_mean=gap_mean,
        gap_variance=np.maximum(gap_variance, 0.0),
        round_weight_mean=float(mean.mean()),
        round_weight_variance=float(variance.mean() + mean.var()),
        update_variance=float(variance.mean()) * seeds / max(seeds - 1, 1),
        violations=tally.violations / seeds,
    )
