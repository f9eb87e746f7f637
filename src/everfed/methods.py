"""Methods by name: a client-side policy and a server rule."""

from __future__ import annotations

from dataclasses import dataclass

from everfed import registry
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.policies import Always, Bernoulli, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.uncertain import SelfWeighted
from everfed.server import (
    Echo,
    FedAU,
    FedAWE,
    FedVarp,
    HTScaffold,
    LastUpdates,
    Mifa,
    Normalized,
    Scaffold,
    ServerRule,
    Sum,
    Truncated,
    Varp,
)


@dataclass(frozen=True)
class Method:
    """Who trains when, what the server does with it, and one line on why one would use it."""

    policy: Policy
    server: ServerRule
    title: str
    about: str = ""


METHODS: dict[str, Method] = {
    "algorithm1": Method(
        UniformWindow(), Sum(), "Algorithm 1", "a random round in every window, updates scaled by the cycle: unbiased"
    ),
    "greedy": Method(Greedy(), Sum(), "Benchmark 1 (greedy)", "train as soon as there is energy"),
    "wait-for-all": Method(WaitForAll(), Sum(), "Benchmark 2 (wait for all)", "train when everybody has energy"),
    "fedavg": Method(Always(), Sum(), "FedAvg (unlimited energy)", "everybody in every round: the upper bound"),
    "greedy-normalized": Method(
        Greedy(), Normalized(), "greedy, normalized", "ablation: greedy, averaged over the participants"
    ),
    "greedy-scaled": Method(
        Greedy(scaled=True), Sum(), "greedy, scaled", "ablation: greedy timing with the scale of Algorithm 1"
    ),
    "algorithm1-unscaled": Method(
        UniformWindow(scaled=False), Sum(), "Algorithm 1, unscaled", "ablation: random timing without the scale"
    ),
    "self-weighted": Method(
        SelfWeighted(), Sum(), "self-weighted", "greedy timing, scaled by the client's own mean interval"
    ),
    "known-arrivals": Method(
        KnownArrivals(), Sum(), "known arrivals", "a random round up to the next arrival, scaled by the gap: unbiased"
    ),
    "lattice": Method(
        Lattice(), Sum(), "lattice", "Algorithm 1 with clients of one cycle spread evenly over it: less variance"
    ),
    "fixed-phase": Method(
        Lattice(redraw=False),
        Sum(),
        "lattice, fixed phase",
        "the lattice drawn once: every client every E rounds",
    ),
    "ht-varp": Method(
        UniformWindow(), Varp(), "HT-VARP", "Algorithm 1, with the last updates of the absent as a correction"
    ),
    "fedvarp": Method(
        UniformWindow(scaled=False),
        FedVarp(),
        "FedVARP",
        "as published: the participants' mean, corrected by last updates",
    ),
    "last-updates": Method(
        UniformWindow(scaled=False), LastUpdates(), "last updates", "everybody's last update in every round"
    ),
    "mifa": Method(
        UniformWindow(scaled=False), Mifa(), "MIFA", "as published: everybody's last gradients, at the current rate"
    ),
    "fedau": Method(
        UniformWindow(scaled=False), FedAU(), "FedAU", "random timing, weighed by the server from who took part when"
    ),
    "echo": Method(
        UniformWindow(scaled=False), Echo(), "echo", "random timing, weighed by the rounds since the last time"
    ),
    "fedawe": Method(
        UniformWindow(scaled=False), FedAWE(), "FedAWE", "as published: as echo, each client from its own last model"
    ),
    "scaffold": Method(
        UniformWindow(scaled=False), Scaffold(), "SCAFFOLD", "as published: corrected local steps, averaged (SGD only)"
    ),
    "ht-scaffold": Method(
        UniformWindow(), HTScaffold(), "HT-SCAFFOLD", "Algorithm 1, with SCAFFOLD's corrected local steps (SGD only)"
    ),
    "truncated": Method(
        UniformWindow(), Truncated(), "Algorithm 1, truncated", "scales cut to a limit: less variance, known bias"
    ),
    "bernoulli": Method(
        Bernoulli(), Sum(), "Bernoulli", "ablation: an independent coin each round, scaled, ignoring the battery"
    ),
}
registry.table("method", METHODS, Method)
