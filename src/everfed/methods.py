"""Methods by name: a client-side policy and a server rule."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

from everfed import registry
from everfed.errors import InputError
from everfed.registry import lookup
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
    """A policy and a server rule, with a title for tables and figures and a one-line description."""

    policy: Policy
    server: ServerRule = Sum()
    title: str = ""  # by default, that of its policy and server rule
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise _refused("policy", self.policy, "it must be a policy such as Greedy().")
        if not self.title:
            parts = [self.policy, *([] if self.server == Sum() else [self.server])]
            object.__setattr__(self, "title", " + ".join(map(_shown, parts)))


def as_method(what: str | Method | Policy, server: ServerRule | None = None) -> Method:
    """A method from a name in `METHODS`, a `Method`, or a policy, whose updates are then summed.

    server: a server rule to use with a policy. For a method, it must equal the method's own.

    >>> as_method("truncated").policy, as_method(Greedy()).server
    (UniformWindow(scaled=True), Sum())
    """
    if isinstance(what, Policy):
        return Method(what, Sum() if server is None else server)
    if isinstance(what, str):
        method = lookup(METHODS, what, "method")
    elif isinstance(what, Method):
        method = what
    else:
        raise _refused("method", what, "it must be a name such as 'algorithm1', a Method or a policy such as Greedy().")
    if server is not None and server != method.server:
        raise InputError(
            f"the server rule is {server}, but the method '{method.title}' has its own, {method.server}; give one of "
            f"them, or only the policy: {method.policy}."
        )
    return method


def _refused(kind: str, what: Any, right: str) -> InputError:
    """right: what to suggest if nothing more specific applies."""
    if isinstance(what, type) and issubclass(what, Policy):
        right = f"that is a class; give an instance, such as {what.__name__}()."
    elif hasattr(what, "step"):
        right = "it has a step but is not a policy: derive its class from everfed.Policy."
    return InputError(f"the {kind} is {what!r}; {right}")


def _shown(part: Any) -> str:
    return repr(part).removesuffix("()") if is_dataclass(part) else type(part).__name__


METHODS: dict[str, Method] = {
    "algorithm1": Method(
        UniformWindow(), Sum(), "Algorithm 1", "a random round in every window, updates scaled by the cycle"
    ),
    "greedy": Method(Greedy(), Sum(), "Benchmark 1 (greedy)", "train as soon as there is energy"),
    "wait-for-all": Method(WaitForAll(), Sum(), "Benchmark 2 (wait for all)", "train when every client has energy"),
    "fedavg": Method(Always(), Sum(), "FedAvg (unlimited energy)", "every client in every round: the upper bound"),
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
        KnownArrivals(), Sum(), "known arrivals", "a random round up to the next arrival, scaled by the gap"
    ),
    "lattice": Method(
        Lattice(), Sum(), "lattice", "Algorithm 1 with clients of equal cycle spread evenly: less variance"
    ),
    "fixed-phase": Method(
        Lattice(redraw=False),
        Sum(),
        "lattice, fixed phase",
        "the lattice drawn once: every client every E rounds",
    ),
    "ht-varp": Method(
        UniformWindow(), Varp(), "HT-VARP", "Algorithm 1, corrected by the last updates of absent clients"
    ),
    "fedvarp": Method(
        UniformWindow(scaled=False),
        FedVarp(),
        "FedVARP",
        "as published: the participants' mean, corrected by last updates",
    ),
    "last-updates": Method(
        UniformWindow(scaled=False), LastUpdates(), "last updates", "the last update of every client in every round"
    ),
    "mifa": Method(
        UniformWindow(scaled=False),
        Mifa(),
        "MIFA",
        "as published: the last gradient of every client, at the current rate",
    ),
    "fedau": Method(
        UniformWindow(scaled=False), FedAU(), "FedAU", "random timing, weighted by the server from past participation"
    ),
    "echo": Method(
        UniformWindow(scaled=False),
        Echo(),
        "echo",
        "random timing, weighted by the rounds since the last participation",
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
