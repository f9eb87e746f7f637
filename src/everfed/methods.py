"""Methods by name: a client-side policy and a server rule."""

from __future__ import annotations

from dataclasses import dataclass

from everfed.learning.server import Normalized, ServerRule, Sum
from everfed.scheduling.policies import Always, Bernoulli, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.uncertain import SelfWeighted


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
    "bernoulli": Method(
        Bernoulli(), Sum(), "Bernoulli", "ablation: an independent coin each round, scaled, ignoring the battery"
    ),
}
