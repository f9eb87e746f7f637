"""A strongly convex problem with all the constants of the theorem, computed from its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from everfed.arrays import Floats, Ints
from everfed.data.federated import FederatedData
from everfed.learning.task import Loss
from everfed.theory import Bound, bound


@dataclass(frozen=True)
class Problem:
    """What the simulator trains, and what the theorem needs to know of it.

    G and sigma hold in the ball of `radius` about the optimum: no strongly convex loss has bounded
    gradients everywhere. `measure` checks that a run stays inside.
    """

    name: str
    data: FederatedData
    module: nn.Module  # its weights are the start
    loss: Loss
    weight_decay: float  # the L2 term, which SGD adds to every gradient
    batch_size: int
    start: Floats  # [d]
    optimum: Floats  # [d] w*
    minimum: float  # F*
    local_minima: Floats  # [N] F_i*
    mu: float
    L: float  # of every client's loss
    sample_smoothness: float  # of every single sample's, and so of every minibatch's
    G: float
    sigma: Floats  # [N] of a minibatch gradient
    radius: float
    steepest: float  # no single sample's gradient at the optimum is longer
    value: Callable[[Floats], float]  # F

    @property
    def heterogeneity(self) -> float:
        """Gamma = F* - sum p_i F_i*."""
        return self.minimum - float(self.data.shares() @ self.local_minima)

    @property
    def initial_distance_sq(self) -> float:
        return float(np.sum((self.start - self.optimum) ** 2))

    def gap(self, w: Floats) -> float:
        return self.value(w) - self.minimum

    def bound(self, cycles: Ints, local_steps: int, iterations: int, of_samples: bool = False) -> Bound:
        """of_samples: with L of every minibatch's loss, as `windows_smooth` asks."""
        return bound(
            cycles,
            self.data.shares(),
            mu=self.mu,
            L=self.sample_smoothness if of_samples else self.L,
            G=self.G,
            sigma=self.sigma,
            heterogeneity=self.heterogeneity,
            initial_distance_sq=self.initial_distance_sq,
            local_steps=local_steps,
            iterations=iterations,
        )
