"""Where a client's energy comes from: the simulator's arrivals and battery, or a measurement.

Either way the decision is the policy's own code, stepped for a fleet of one under the client's own
number. With simulated energy it follows from the client, the public seed and the round alone, so a
device that lost power arrives at the decisions of one that did not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from everfed.arrays import Bools
from everfed.energy.battery import TOLERANCE, Books
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.messages import Ask
from everfed.flower.meters import Meter, MeterError
from everfed.flower.node_state import Memory
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, Energy, Policy, View

log = logging.getLogger("flwr.everfed")


class Choice(NamedTuple):
    """What a client decides for a round."""

    join: bool
    scale: float
    planned: int  # participations so far, this round's included
    energy: Books


class EnergySource(Protocol):
    """The shape of every source."""

    def choose(self, policy: Policy, client: int, ask: Ask, memory: Memory) -> Choice:
        """Whether this client takes part in the round that the server asks about."""
        ...


class Solo(Schedule):
    """One client's own schedule: the simulator's, for a fleet of one.

    granted: the rounds in which a server let the client take part, where that is the server's decision.
    """

    def __init__(self, fleet: Fleet, policy: Policy, seed: int, client: int, granted: frozenset[int]) -> None:
        if not 0 <= client < len(fleet):
            raise InputError(f"this node is client {client}, but the fleet has clients 0 to {len(fleet) - 1}.")
        self.leave = _Leave(policy)
        # A policy whose clients need a server's leave gets what the server said.
        own = cast(Policy, self.leave) if policy.coordinated else policy
        super().__init__(fleet.part(np.array([client])), own, seed)
        # It is a client of the whole fleet: its number and its rank are those of there.
        self.clients = Clients.of(fleet, seed).part(np.array([client]))
        self.state = policy.init(self.clients)
        self.granted = granted

    def decide(self, round: int) -> tuple[Bools, Any]:
        self.leave.given = round in self.granted
        return super().decide(round)

    def wish(self, round: int) -> tuple[bool, float]:
        """What the client would do now, if it were let. The last thing to ask: nothing is paid."""
        forecast = self.outlook.at(round) if self.outlook else None
        view = View(round, self.battery.affords(), self.battery.level, forecast)
        decision = self.policy.step(self.state, view)
        return bool(decision.join[0]), float(decision.scale[0])


class _Leave:
    """A policy with the server's word in place of its rule for granting."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.given = policy, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def grant(self, wishes: Bools) -> Bools:
        return wishes & self.given


@dataclass(frozen=True)
class Simulated:
    """Arrivals and battery as in a simulation of this fleet under this seed.

    Nothing is stored: every answer steps the client's own rounds from the first, which takes some
    20 microseconds each.
    """

    fleet: Fleet
    seed: int = 0

    def choose(self, policy: Policy, client: int, ask: Ask, memory: Memory) -> Choice:
        granted = ask.granted_to(client)
        schedule = Solo(self.fleet, policy, self.seed, client, granted)
        planned = sum(bool(schedule.step(r)[0][0]) for r in range(ask.round))
        if policy.coordinated and ask.round not in granted:
            schedule.arrive(ask.round)
            join, scale = schedule.wish(ask.round)
            return Choice(join, scale, planned, schedule.battery.books())
        joins, scales = schedule.step(ask.round)
        return Choice(bool(joins[0]), float(scales[0]), planned + bool(joins[0]), schedule.battery.books())


@dataclass(frozen=True)
class Measured:
    """Energy that is really there, read off a meter when the server asks.

    cycle: rounds that the device needs to harvest one round's energy, for policies that wait or weigh by
    it; offset: its first round. capacity: of the battery, in rounds of training. What the client said in
    a round is remembered until the next, so that a second question gets the same answer, unless the
    energy has gone meanwhile.
    """

    meter: Meter
    cycle: int = 1
    offset: int = 0
    seed: int = 0
    capacity: float = 1.0

    def choose(self, policy: Policy, client: int, ask: Ask, memory: Memory) -> Choice:
        try:
            level = max(self.meter.rounds(), 0.0)
        except MeterError as error:
            log.warning("client %d does not know its energy and stays away: %s", client, error)
            level = 0.0
        affords = level >= 1.0 - TOLERANCE
        kept = memory.load("decision") or {}
        spent = int(kept.get("planned", 0))
        if kept and int(kept["round"]) == ask.round:
            join = bool(kept["join"]) and (affords or policy.energy is Energy.UNLIMITED)
            return Choice(join, float(kept["scale"]), spent, self._books(spent, level))
        join, scale, state = self._step(policy, client, ask.round, level, kept)
        spent += join
        told = {"round": ask.round, "join": join, "scale": scale, "planned": spent}
        learnt = {f"policy.{k}": v for k, v in state.items() if policy.learns and isinstance(v, np.ndarray)}
        memory.save("decision", {**{k: np.array(v) for k, v in told.items()}, **learnt})
        return Choice(join, scale, spent, self._books(spent, level))

    def _step(self, policy: Policy, client: int, round: int, level: float, kept: Any) -> tuple[bool, float, Any]:
        one = Clients(
            np.array([client]), np.array([self.cycle]), np.array([self.offset]), self.seed, np.array([self.capacity])
        )
        state = policy.init(one, round)
        if policy.learns and kept:
            state |= {k.removeprefix("policy."): v for k, v in kept.items() if k.startswith("policy.")}
            for missed in range(int(kept["round"]) + 1, round):  # rounds that passed while the device was away
                state = policy.step(state, View(missed, np.array([False]), np.array([0.0]))).state
        view = View(round, np.array([level >= 1.0 - TOLERANCE]), np.array([level]))
        decision = policy.step(state, view)
        return bool(decision.join[0]), float(decision.scale[0]), decision.state

    @staticmethod
    def _books(spent: int, level: float) -> Books:
        """What can be known from the outside: what was spent and what is there must have come from somewhere."""
        return Books(harvested=spent + level, spent=float(spent), stored=level)
