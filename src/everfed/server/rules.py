"""Server rules: how participants' updates are combined into the round's update.

A rule's `weighting` turns a participant's scale into a factor; the round's update is the sum of share * factor * delta
over the participants. It is not divided by the participants' weights unless the rule normalizes. Rules that store
updates (`last_updates`, `control`) add to that sum in their own `Aggregator`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import Checked
from everfed.learning.rows import Place
from everfed.server.aggregate import Aggregator, Arrays, Setting, Weighting, WeightingRule


class ServerRule(WeightingRule, Protocol):
    """The protocol of the server rules in `SERVER_RULES`."""

    heeds_scales: ClassVar[bool]  # whether it uses the clients' scales, or computes weights itself
    remembers: ClassVar[bool]  # whether it stores clients' updates and uses them in their absence
    asynchronous: ClassVar[bool]  # whether it takes updates as they arrive, instead of round by round

    def start(self, setting: Setting) -> Aggregator:
        """The state of the rule in one run."""
        ...


class ClientScales:
    """Factors equal to the clients' scales, without state. A base for other weightings without state."""

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return scales

    def state_dict(self) -> Arrays:
        return {}

    def load_state_dict(self, state: Arrays) -> None:
        pass


class UnitScales(ClientScales):
    """Factors of 1, whatever the clients' scales."""

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return np.ones(len(clients))


class PlainRule(Checked):
    """Defaults of a rule that stores no updates: a base for new rules."""

    normalizes: ClassVar[bool] = False
    heeds_scales: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False

    def weighting(self, clients: int) -> Weighting:
        return ClientScales() if self.heeds_scales else UnitScales()

    def start(self, setting: Setting) -> Aggregator:
        return Aggregator(self, setting)


class KeepingRule(PlainRule):
    """Base of rules that store a vector per client. place: where, 'device' or 'disk'."""

    place: Place


@dataclass(frozen=True)
class Sum(PlainRule):
    """w + sum over participants of share * scale * delta: Algorithm 1, and the paper's FedAvg.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> found = ef.audit(fleet, ef.UniformWindow(), rounds=40, seeds=20, server=ef.Sum())
    >>> found.mean_weight.round(1).tolist()
    [1.0, 1.0, 1.0]
    """


@dataclass(frozen=True)
class Normalized(PlainRule):
    """The weighted mean over participants, as in most frameworks: biased towards frequent clients.

    Algorithm 1 must not do this: dividing by the round's weight keeps the step size constant, but the bias does not
    fade with the learning rate.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> found = ef.audit(fleet, ef.UniformWindow(), rounds=40, seeds=20, server=ef.Normalized())
    >>> found.mean_weight.round(1).tolist()
    [1.6, 0.9, 0.5]
    """

    normalizes: ClassVar[bool] = True


@dataclass(frozen=True)
class Truncated(PlainRule):
    """As `Sum`, with scales limited to `limit`: no client's weight exceeds limit * share in a round.

    It bounds the weight of a round, but a client of scale s > limit has only limit / s of its weight; `everfed audit`
    shows that bias. Not for fleets whose rare clients hold distinct data.

    limit: the largest scale.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> found = ef.audit(fleet, ef.UniformWindow(), rounds=40, seeds=20, server=ef.Truncated(limit=2))
    >>> found.mean_weight.round(1).tolist()
    [1.0, 1.0, 0.5]
    """

    limit: Annotated[float, "[1, inf)"] = 10.0  # 1 is the scale of a client with cycle 1

    def weighting(self, clients: int) -> Weighting:
        return CappedScales(self.limit)


class CappedScales(ClientScales):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return np.minimum(scales, self.limit)
