"""Schedules: each client decides when it trains."""

from everfed.scheduling.foresight import KnownArrivals, Outlook
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.plan import PlanStep, Schedule, participations
from everfed.scheduling.policies import (
    Always,
    Bernoulli,
    Clients,
    Decision,
    Energy,
    Greedy,
    Policy,
    State,
    UniformWindow,
    View,
    WaitForAll,
)
from everfed.scheduling.table import POLICIES
from everfed.scheduling.uncertain import SelfWeighted, Thrifty, participation_chance

__all__ = [
    "POLICIES",
    "Always",
    "Bernoulli",
    "Clients",
    "Decision",
    "Energy",
    "Greedy",
    "KnownArrivals",
    "Lattice",
    "Outlook",
    "PlanStep",
    "Policy",
    "Schedule",
    "SelfWeighted",
    "State",
    "Thrifty",
    "UniformWindow",
    "View",
    "WaitForAll",
    "participation_chance",
    "participations",
]
