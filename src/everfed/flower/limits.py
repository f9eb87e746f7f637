"""What a server holds its clients to: how long they may take, and how far they may go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, unknown
from everfed.scheduling.policies import Clients, Energy, Policy


@dataclass(frozen=True)
class RoundLimits:
    """Deadlines in seconds, and bounds.

    query_s, train_s: how long a round waits for answers, and for trained models. wait_s: how long the
    first round waits for the whole fleet to be there, and at least for its answers: what a node does once, such
    as working its rounds out, it does when it is first asked. round_s: a round begins at most this often (0: as
    soon as the one before it is over); where energy is measured, the length of a round in the cycles.
    two_phase: ask first, and send the model only to those who said yes; False sends it to everybody.
    max_norm: the longest update that is taken (0: any finite one). scale_slack: how many times its own
    fair scale a client may claim.
    """

    query_s: float = 30.0
    train_s: float = 120.0
    wait_s: float = 60.0
    round_s: float = 0.0
    two_phase: bool = True
    max_norm: float = 0.0
    scale_slack: float = 1.0

    def __post_init__(self) -> None:
        for name in ("query_s", "train_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; a deadline is a positive number of seconds.")
        for name in ("wait_s", "round_s", "max_norm"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number of at least 0.")
        if not 1.0 <= self.scale_slack < math.inf:
            raise InputError(f"scale_slack is {self.scale_slack}; it must be at least 1.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RoundLimits:
        """From a run's configuration: `query-s = 30`, with dashes as Flower likes them."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        given = {key.replace("-", "_"): value for key, value in config.items()}
        for key in given:
            if key not in kinds:
                raise InputError(unknown("term", key, kinds))
        return cls(**{key: kinds[key](value) for key, value in given.items()})


def fair_scales(fleet: Fleet, policy: Policy, seed: int) -> Floats:
    """The largest scale that each client may honestly claim, [N]: the server knows the fleet's cycles."""
    state = policy.init(Clients.of(fleet, seed))
    known = np.broadcast_to(np.asarray(state.get("scale", 1.0), np.float64), len(fleet))
    most = np.maximum(known, fleet.cycles())
    cutoff = getattr(policy, "cutoff", None)  # of weights that a client learns
    return most if cutoff is None else np.maximum(most, float(cutoff))


def spends_at_most(fleet: Fleet, policy: Policy) -> bool:
    """Whether no client can take part more often than once a cycle: energy comes at fixed times and is obeyed."""
    empty = not np.any(np.asarray(fleet.storage.start))
    return bool(fleet.arrivals.regular and policy.energy is Energy.OBEYED and empty)
