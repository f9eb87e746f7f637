"""Plans for whatever names a method: who trains in which round, before any training."""

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
    """Yield one PlanStep a round. method: a name, a `Method` or a policy; the server's rule has no part in a plan.

    A horizon that some client's cycle does not divide cuts that client's last window short: it may
    then take part once less than its energy allows (in Algorithm 1, rounds stay unbiased). That is a warning, or
    an error with strict_horizon=True. Clients that will never train are a warning, too.

    >>> fleet = Fleet.from_cycles([1, 2])
    >>> [step.clients.tolist() for step in plan(fleet, "greedy", rounds=4)]
    [[0, 1], [0], [0, 1], [0]]
    """
    policy = as_method(method).policy
    check_seed(seed)
    check_horizon(fleet, rounds, strict_horizon)
    warn_of_silent(Schedule(fleet, policy, seed), rounds, seed)
    return Schedule(fleet, policy, seed).rounds(0, rounds)
