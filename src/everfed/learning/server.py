"""Server rules: how participants' updates are weighed into the round's update.

A rule turns shares p_i and scales into one coefficient a participant; the round's update is the
sum of coefficient * delta. Non-participants keep the server's parameters, so nothing is divided
by who happened to show up, unless the rule's name says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from everfed.arrays import Floats
from everfed.errors import InputError


class ServerRule(Protocol):
    """The shape of every server rule; `SERVER_RULES` lists them."""

    def coefficients(self, shares: Floats, scales: Floats) -> Floats:
        """One coefficient a participant; both arguments are of the participants only."""
        ...


@dataclass(frozen=True)
class Sum:
    """w + lr * sum over participants of share * scale * delta: Algorithm 1, and the paper's FedAvg.

    lr: the server's learning rate; 1 in the paper.
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        if not (self.lr > 0.0 and math.isfinite(self.lr)):
            raise InputError(f"the server's lr is {self.lr}; it must be a positive number.")

    def coefficients(self, shares: Floats, scales: Floats) -> Floats:
        return self.lr * (shares * scales)


@dataclass(frozen=True)
class Normalized:
    """The weighted mean over participants, as in most frameworks: biased towards the frequent."""

    def coefficients(self, shares: Floats, scales: Floats) -> Floats:
        weights = shares * scales
        return weights / weights.sum() if len(weights) else weights


SERVER_RULES: dict[str, type[Any]] = {"sum": Sum, "normalized": Normalized}
