"""Plans: which clients train in which round, before any training."""

from __future__ import annotations

from collections.abc import Iterator

from everfed.energy.fleet import Fleet
from everfed.methods import Method, as_method
from everfed.random import check_seed
from everfed.scheduling.plan import PlanStep, Schedule, check_horizon
from everfed.scheduling.policies import Policy
from everfed.scheduling.silent import warn_of_silent


def plan(
    fleet: Fleet, method: str | Method | Policy, rounds: int, seed: int = 0, *, strict_horizon: bool = False
) -> Iterator[PlanStep]:
    """Yield one PlanStep per round. method: a name, a `Method` or a policy; plans do not depend on the server rule.

    If a client's cycle does not divide the horizon, its last window is cut short and it may take part once less than
    its energy allows (with Algorithm 1, rounds stay unbiased). This gives a warning, or an error with
    strict_horizon=True. Clients that never train also give a warning.

    >>> fleet = Fleet.from_cycles([1, 2])
    >>> [step.clients.tolist() for step in plan(fleet, "greedy", rounds=4)]
    [[0, 1], [0], [0, 1], [0]]
    """
    policy = as_method(method).policy
    check_seed(seed)
    check_horizon(fleet, rounds, strict_horizon)
    warn_of_silent(Schedule(fleet, policy, seed), rounds, seed)
    return Schedule(fleet, policy, seed).rounds(0, rounds)
