"""Methods by name, each a client-side policy and a server rule, and their plans before any training."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

from everfed import registry
from everfed.checks import Checked, checked
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.random import check_seed
from everfed.registry import lookup
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.plan import Schedule, check_horizon
from everfed.scheduling.planned import Plan
from everfed.scheduling.policies import Always, Bernoulli, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.silent import warn_of_silent
from everfed.scheduling.uncertain import SelfWeighted
from everfed.server.arrivals import Area, FedAsync, FedBuff, Renewal, RenewalDiscounted
from everfed.server.control import HTScaffold, Scaffold
from everfed.server.experience import Echo, FedAU
from everfed.server.gossip import FedAWE
from everfed.server.last_updates import FedVarp, LastUpdates, Mifa, Varp
from everfed.server.rules import Normalized, ServerRule, Sum, Truncated


@dataclass(frozen=True)
class Method(Checked):
    """A policy and a server rule, with a title for tables and figures and a one-line description.

    policy: when clients train.
    server: how their updates become a step.
    title: its name in tables and figures.
    about: one line on what it does.

    >>> import everfed as ef
    >>> ef.Method(ef.Greedy(), ef.Normalized(), title="Greedy, averaged").policy
    Greedy(scaled=False)
    """

    policy: Policy
    server: ServerRule = Sum()
    title: str = ""  # by default, that of its policy and server rule
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise _refused("policy", self.policy, "it must be a policy such as Greedy().")
        super().__post_init__()
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


# Random rounds, with or without the scale of Algorithm 1.
_SCALED, _UNSCALED = UniformWindow(), UniformWindow(scaled=False)
METHODS: dict[str, Method] = {
    "algorithm1": Method(_SCALED, Sum(), "Algorithm 1", "a random round in every window, updates scaled by the cycle"),
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
        _UNSCALED, Sum(), "Algorithm 1, unscaled", "ablation: random timing without the scale"
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
        Lattice(redraw=False), Sum(), "lattice, fixed phase", "the lattice drawn once: every client every E rounds"
    ),
    "ht-varp": Method(_SCALED, Varp(), "HT-VARP", "Algorithm 1, corrected by the last updates of absent clients"),
    "fedvarp": Method(
        _UNSCALED, FedVarp(), "FedVARP", "as published: the participants' mean, corrected by last updates"
    ),
    "last-updates": Method(_UNSCALED, LastUpdates(), "last updates", "the last update of every client in every round"),
    "mifa": Method(_UNSCALED, Mifa(), "MIFA", "as published: the last gradient of every client, at the current rate"),
    "fedau": Method(_UNSCALED, FedAU(), "FedAU", "random timing, weighted by the server from past participation"),
    "echo": Method(_UNSCALED, Echo(), "echo", "random timing, weighted by the rounds since the last participation"),
    "fedawe": Method(_UNSCALED, FedAWE(), "FedAWE", "as published: as echo, each client from its own last model"),
    "scaffold": Method(_UNSCALED, Scaffold(), "SCAFFOLD", "as published: corrected local steps, averaged (SGD only)"),
    "ht-scaffold": Method(
        _SCALED, HTScaffold(), "HT-SCAFFOLD", "Algorithm 1, with SCAFFOLD's corrected local steps (SGD only)"
    ),
    "truncated": Method(
        _SCALED, Truncated(), "Algorithm 1, truncated", "scales cut to a limit: less variance, known bias"
    ),
    "renewal": Method(
        Greedy(), Renewal(), "renewal", "asynchronous: each update counts for the time since the client's last one"
    ),
    "renewal-discounted": Method(
        Greedy(), RenewalDiscounted(), "renewal, discounted", "as renewal; a client's stale updates count less"
    ),
    "fedasync": Method(Greedy(), FedAsync(), "FedAsync", "asynchronous, as published: each arriving model is mixed in"),
    "fedbuff": Method(
        Greedy(), FedBuff(), "FedBuff", "asynchronous, as published: the mean of every ten arriving updates"
    ),
    "area": Method(Greedy(), Area(), "AREA", "asynchronous, as published: the mean of the clients' last models"),
    "bernoulli": Method(
        Bernoulli(), Sum(), "Bernoulli", "ablation: an independent coin each round, scaled, ignoring the battery"
    ),
}
registry.table("method", METHODS, Method)


def plan(
    fleet: Fleet, method: str | Method | Policy, rounds: int, seed: int = 0, *, strict_horizon: bool = False
) -> Plan:
    """Who trains in which round: iterate over it for one `PlanStep` per round, `.table()` collects, `.plot()` draws it.

    fleet: the clients and their energy.
    method: a name, a `Method` or a policy; plans do not depend on the server rule.
    rounds: how many.
    seed: of energy and schedule.
    strict_horizon: an error instead of a warning if some client's last window is cut short.

    If a client's cycle does not divide the horizon, its last window is cut short and it may take part once less than
    its energy allows (with Algorithm 1, rounds stay unbiased). This gives a warning, or an error with
    strict_horizon=True. Clients that never train also give a warning.

    >>> fleet = Fleet.from_cycles([1, 2])
    >>> [step.clients.tolist() for step in plan(fleet, "greedy", rounds=4)]
    [[0, 1], [0], [0, 1], [0]]
    """
    chosen = as_method(method)
    if getattr(chosen.server, "asynchronous", False):
        raise InputError(
            f"the method '{chosen.title}' has no rounds to plan: its clients begin as soon as their battery pays. "
            "`audit` shows when they arrive and what they weigh."
        )
    policy = chosen.policy
    check_seed(seed)
    checked("fleet", fleet, Fleet)
    check_horizon(fleet, rounds, checked("strict_horizon", strict_horizon, bool))
    rounds, seed = int(rounds), int(seed)
    warn_of_silent(Schedule(fleet, policy, seed), rounds, seed)
    return Plan(fleet, policy, rounds, seed, chosen.title)


# The paper's comparison: its algorithm, its two benchmarks and its upper bound.
COMPARED = ("algorithm1", "greedy", "wait-for-all", "fedavg")
