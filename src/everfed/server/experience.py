"""Server rules that compute a client's weight from its participations, without its cycle.

Both ignore the clients' scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import Count
from everfed.server.aggregate import Arrays, Weighting
from everfed.server.rules import PlainRule


@dataclass(frozen=True)
class FedAU(PlainRule):
    """Weight: the mean number of rounds between a client's past participations (Wang & Ji, ICLR 2024).

    The mean is that of the intervals before this round, so that it does not depend on whether the
    client takes part now; before the first one it is 1. An interval ends after `cutoff` rounds at the latest, which
    bounds the weight; clients that train less often have too little weight. Under Algorithm 1's windows no interval is
    cut if cutoff >= 2E - 1, and the weight is off by O(1/m) after m of them.

    Not for short runs: the weight of a client that takes part only a few times is inaccurate.

    cutoff: rounds after which an interval ends, at the latest.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> found = ef.audit(fleet, ef.UniformWindow(), rounds=40, seeds=20, server=ef.FedAU(cutoff=20))
    >>> found.mean_weight.round(1).tolist()
    [1.0, 0.9, 0.8]
    """

    heeds_scales: ClassVar[bool] = False
    cutoff: Count = 50

    def weighting(self, clients: int) -> Weighting:
        return _MeanInterval(clients, self.cutoff)


class _MeanInterval:
    """FedAU's three numbers per client, updated when the client takes part."""

    def __init__(self, clients: int, cutoff: int) -> None:
        self.cutoff = cutoff
        self.last = np.full(clients, -1, np.int64)  # the round of the last record
        self.records = np.zeros(clients, np.int64)
        self.mean = np.ones(clients)

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        since = round - self.last[clients]  # at least 1
        # Whole cut-offs that passed in absence, each a record of its own.
        cuts = (since - 1) // self.cutoff
        records = self.records[clients] + cuts
        known = self.records[clients] * self.mean[clients] + cuts * float(self.cutoff)
        weight: Floats = np.where(records > 0, known / np.maximum(records, 1), 1.0)
        self.mean[clients] = (known + (since - cuts * self.cutoff)) / (records + 1)
        self.records[clients] = records + 1
        self.last[clients] = round
        return weight

    def state_dict(self) -> Arrays:
        return {"last": self.last, "records": self.records, "mean": self.mean}

    def load_state_dict(self, state: Arrays) -> None:
        self.last, self.records, self.mean = (state[name].copy() for name in ("last", "records", "mean"))


@dataclass(frozen=True)
class Echo(PlainRule):
    """Weight: the rounds since the client's last participation.

    The weight of `FedAWE`, but with clients that start from the server's model, as in every other rule.
    A client makes up for missed rounds at once. Weights are equal on average over a window, not in every round: with
    Algorithm 1's windows, ((E + 1) / 2 + k) / E at place k of E. It needs one number per client, no cutoff and no
    learning, but is noisier than `FedAU`, which is better for long runs.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> found = ef.audit(fleet, ef.UniformWindow(), rounds=40, seeds=20, server=ef.Echo())
    >>> found.mean_weight.round(1).tolist()
    [1.0, 1.0, 1.0]
    """

    heeds_scales: ClassVar[bool] = False

    def weighting(self, clients: int) -> Weighting:
        return SinceLast(clients)


class SinceLast:
    """Factors that are the rounds since a client's last participation; before the first, since the start."""

    def __init__(self, clients: int) -> None:
        self.last = np.full(clients, -1, np.int64)

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        weight: Floats = (round - self.last[clients]).astype(np.float64)
        self.last[clients] = round
        return weight

    def state_dict(self) -> Arrays:
        return {"last": self.last}

    def load_state_dict(self, state: Arrays) -> None:
        self.last = state["last"].copy()
