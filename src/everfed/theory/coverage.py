"""Which theorem covers a method on a fleet: one kind of participation of `PROVEN`, or a refusal that says why.

The theorem is about the weight that client i has in round r, beta_i^r: its scale if it takes part, else 0.
It covers three ways of taking part (docs/theory.md):

everybody   beta = 1, always
coins       beta = E_i with chance 1/E_i in every round, independently of everything before the round
windows     beta = E_i in one round of every window of E_i rounds, drawn uniformly as the window opens,
            independently of everything before. "lattice": the same, where peers share the draw.

A method is any policy with any server rule, and what it does depends on the fleet: on a battery that is too
small even Algorithm 1 skips slots. Whatever is not shown to be one of the three is refused, so classes are
compared exactly: subclasses may behave differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everfed.energy.arrivals import Lump, Trickle
from everfed.energy.battery import TOLERANCE
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import BernoulliArrivals, Markov, UniformInBlock
from everfed.errors import InputError
from everfed.learning.attacks import Attack, NoAttack
from everfed.learning.compress import Compressor, Whole
from everfed.learning.gradients import GradientRule
from everfed.learning.optim import SGD, Optimizer
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.policies import Always, Bernoulli, Greedy, Policy, UniformWindow, WaitForAll
from everfed.scheduling.uncertain import SelfWeighted, Thrifty
from everfed.server.optimizers import ServerOptimizer, ServerSGD
from everfed.server.robust import Defence, NoDefence
from everfed.server.rules import Normalized, ServerRule, Sum, Truncated

# Policies whose clients take part, with scale 1, in every round that their cycle of 1 pays for.
_SPEND_EVERY_UNIT = (UniformWindow, Lattice, KnownArrivals, Greedy, WaitForAll, Bernoulli)


# Why, for the policies that are never covered.
_UNPROVEN = {
    WaitForAll: "nobody trains until everybody can, so that most rounds move nothing while the step shrinks",
    SelfWeighted: "clients scale by what they have learnt of their own past, and not by one over their chance",
    Thrifty: "the scale is right in the long run only, and participation hangs on what the battery has kept",
}


def participation(policy: Policy, server: ServerRule, fleet: Fleet) -> str:
    """The kind of participation, a key of `PROVEN`; an `InputError` says why none is proven."""
    if type(server) not in (Sum, Truncated, Normalized):
        raise _refused(
            f"the server rule {type(server).__name__} does something else than to add up shares times scales times "
            "updates, the step that the theorem is about"
        )
    kind = _kind(policy, fleet)
    if kind == "everybody":
        return kind  # all weights are 1 and sum to 1: nothing to cut, nothing to divide by
    if isinstance(server, Normalized):
        raise _refused("dividing by the round's weight makes the server's step biased")
    if isinstance(server, Truncated) and fleet.cycles().max() > server.limit:
        raise _refused(f"the server cuts scales to {server.limit:g}, which counts the rare clients too little")
    return kind


def check_training(
    client: Optimizer,
    gradients: Sequence[GradientRule],
    compression: Compressor,
    server: ServerOptimizer,
    downlink: str = "full",
) -> None:
    """Refuse local steps other than plain SGD's, and anything between an update and the model."""
    if type(client) is not SGD or client.momentum:
        name = "SGD with momentum" if type(client) is SGD else type(client).__name__
        raise _refused(f"clients train with {name}, and the theorem is about plain SGD")
    if gradients:
        names = ", ".join(type(rule).__name__ for rule in gradients)
        raise _refused(f"{names} changes the clients' gradients, and the theorem is about plain SGD")
    if type(compression) is not Whole:
        raise _refused(f"{type(compression).__name__} adds noise to every update that the theorem does not count")
    if downlink != "full":
        raise _refused(f"clients train from a model rounded to {downlink}, and the theorem is about the server's own")
    if server != ServerSGD():
        raise _refused(
            f"the server's step is {server}, and the theorem adds the round's update as it is (ServerSGD, lr 1)"
        )


def check_honest(robust: Defence, attack: Attack) -> None:
    """Refuse a defence in the place of the sum, and clients that send something else than their update."""
    if type(robust) is not NoDefence:
        raise _refused(f"the defence {type(robust).__name__} makes the server's step biased")
    if type(attack) is not NoAttack:
        raise _refused(f"attackers ({type(attack).__name__}) do not send the updates that the theorem is about")


def _kind(policy: Policy, fleet: Fleet) -> str:
    kind = type(policy)
    if kind is Always:
        return "everybody"  # on any fleet: it assumes unlimited energy
    if fleet.offsets().any():
        raise _refused("some clients start later than round 0, and the rounds before leave them out")
    if _always_charged(fleet) and kind in _SPEND_EVERY_UNIT:
        return "everybody"
    if kind is Bernoulli:
        if fleet.storage.browns_out or fleet.storage.cost_spread:
            raise _refused("coins are tossed whatever the battery holds, and here rounds without the energy are lost")
        return "coins"
    if type(policy) is Greedy:
        return _as_energy_comes(policy, fleet)
    if type(policy) is UniformWindow or type(policy) is Lattice or type(policy) is KnownArrivals:
        return _in_windows(policy, fleet)
    raise _refused(_UNPROVEN.get(kind, f"{kind.__name__} has no proof"))


def _as_energy_comes(policy: Greedy, fleet: Fleet) -> str:
    if not policy.scaled:
        raise _refused("greedy clients are not scaled, so the run heads for the optimum of the well-powered ones")
    if not fleet.storage.lossless or np.any(np.asarray(fleet.storage.start) > 0.0):
        raise _refused("with losses or a charged battery, greedy clients do not train exactly as units arrive")
    if type(fleet.arrivals) is BernoulliArrivals:
        return "coins"
    if type(fleet.arrivals) is UniformInBlock:
        return "windows"
    raise _refused(
        f"with {type(fleet.arrivals).__name__.lower()} arrivals greedy clients take part neither by independent coins "
        "nor in uniformly drawn slots, so single rounds are biased given the past"
    )


def _in_windows(policy: UniformWindow | KnownArrivals, fleet: Fleet) -> str:
    if isinstance(policy, UniformWindow) and not policy.scaled:
        raise _refused("updates are not scaled by the cycle, so the run heads for the optimum of the well-powered")
    if isinstance(policy, Lattice) and not policy.redraw:
        raise _refused("a phase that is drawn once ties all windows to the first, and the proof needs a new draw each")
    if type(fleet.arrivals) not in (Lump, Trickle):
        raise _refused("no unit is sure to be there as a window opens, so that some slots cannot be paid for")
    if not fleet.storage.lossless:
        raise _refused("batteries lose energy (or a round's cost varies), so that some slots cannot be paid for")
    if np.any(fleet.capacity < fleet.arrivals.window_capacity - TOLERANCE):
        raise _refused(
            f"batteries are too small for {type(fleet.arrivals).__name__.lower()} arrivals (2 - 1/E units would do), "
            "so that some slots cannot be paid for"
        )
    if isinstance(policy, KnownArrivals):
        if np.any(np.asarray(fleet.storage.start) > 0.0):
            raise _refused("batteries are charged at the start, so that the first gap is not a whole window")
        if fleet.cycles().max() > policy.horizon:
            raise _refused(f"clients look {policy.horizon} rounds ahead, which is less than the longest cycle")
    return "lattice" if isinstance(policy, Lattice) else "windows"


def _always_charged(fleet: Fleet) -> bool:
    """Whether every client has a unit in every round."""
    steady = type(fleet.arrivals) in (Lump, Trickle, BernoulliArrivals, UniformInBlock, Markov)
    holds = bool(np.all(fleet.capacity >= 1.0))
    return steady and holds and bool(np.all(fleet.cycles() == 1)) and fleet.storage.lossless


def _refused(why: str) -> InputError:
    return InputError(f"no theorem covers this: {why}.")
