"""The policies by name."""

from __future__ import annotations

from typing import Any

from everfed import registry
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.policies import Always, Bernoulli, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.uncertain import SelfWeighted, Thrifty

POLICIES: dict[str, type[Any]] = {
    "algorithm1": UniformWindow,
    "greedy": Greedy,
    "wait-for-all": WaitForAll,
    "fedavg": Always,
    "bernoulli": Bernoulli,
    "lattice": Lattice,
    "thrifty": Thrifty,
    "self-weighted": SelfWeighted,
    "known-arrivals": KnownArrivals,
}
registry.table("policy", POLICIES, Policy)
