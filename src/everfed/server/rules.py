"""Server rules: how participants' updates become the round's update.

A rule is a value. Its `weigher` turns what a participant reports into a factor; the round's update is
the sum of share * factor * delta over the participants. Non-participants keep the server's
parameters, so nothing is divided by who happened to show up, unless the rule's name says so. Rules
that remember past updates (`memory`, `control`) add to that sum in an `Aggregator` of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.errors import InputError
from everfed.server.aggregate import Aggregator, Arrays, Setting, Weighting, WeightingRule


class ServerRule(WeightingRule, Protocol):
    """The shape of every server rule; `SERVER_RULES` lists them."""

    heeds_scales: ClassVar[bool]  # whether it multiplies by the client's own scale, or finds weights itself
    remembers: ClassVar[bool]  # whether it keeps updates of clients and uses them in their absence

    def start(self, setting: Setting) -> Aggregator:
        """The rule at work in one run."""
        ...


class ClientScales:
    """Factors that are the clients' own scales: no memory. A base for weighers without any."""

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return scales

    def state_dict(self) -> Arrays:
        return {}

    def load_state_dict(self, state: Arrays) -> None:
        pass


class UnitScales(ClientScales):
    """Factors of 1, whatever the clients ask for."""

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return np.ones(len(clients))


class PlainRule:
    """Defaults of a rule that remembers no updates: a base for new ones."""

    normalizes: ClassVar[bool] = False
    heeds_scales: ClassVar[bool] = True
    remembers: ClassVar[bool] = False

    def weighting(self, clients: int) -> Weighting:
        return ClientScales()

    def start(self, setting: Setting) -> Aggregator:
        return Aggregator(self, setting)


@dataclass(frozen=True)
class Sum(PlainRule):
    """w + sum over participants of share * scale * delta: Algorithm 1, and the paper's FedAvg."""


@dataclass(frozen=True)
class Normalized(PlainRule):
    """The weighted mean over participants, as in most frameworks: biased towards the frequent.

    Also what Algorithm 1 must not do: dividing by the round's weight keeps steps of one size, but the
    bias it brings does not fade with the learning rate.
    """

    normalizes: ClassVar[bool] = True


@dataclass(frozen=True)
class Truncated(PlainRule):
    """As `Sum`, with scales above `limit` cut to it: no client can count more than limit * share in a round.

    It bounds the weight of a round, and counts a client of scale s only limit / s of what it should:
    `everfed audit` shows that bias. Not for fleets whose rare clients hold data of their own.
    """

    limit: float = 10.0

    def __post_init__(self) -> None:
        if not (self.limit >= 1.0 and math.isfinite(self.limit)):
            raise InputError(f"limit is {self.limit}; it must be at least 1, the scale of a client with cycle 1.")

    def weighting(self, clients: int) -> Weighting:
        return CappedScales(self.limit)


class CappedScales(ClientScales):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return np.minimum(scales, self.limit)
