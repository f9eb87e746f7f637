"""Who trains when, decided by each client for itself."""

from everfed.scheduling.audit import Audit, audit
from everfed.scheduling.plan import PlanStep, Schedule, participations, plan
from everfed.scheduling.policies import (
    POLICIES,
    Always,
    Bernoulli,
    Clients,
    Greedy,
    IndependentPolicy,
    Policy,
    UniformWindow,
    View,
    WaitForAll,
)

__all__ = [
    "POLICIES",
    "Always",
    "Audit",
    "Bernoulli",
    "Clients",
    "Greedy",
    "IndependentPolicy",
    "PlanStep",
    "Policy",
    "Schedule",
    "UniformWindow",
    "View",
    "WaitForAll",
    "audit",
    "participations",
    "plan",
]
