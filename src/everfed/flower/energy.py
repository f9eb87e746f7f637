"""Where a client's energy comes from: the simulator's arrivals and battery, or a meter on the device.

Either way the decision is the policy's own code, stepped for a fleet of one under the client's own
number. With simulated energy it follows from the client, the public seed and the round alone, so a
device that lost power arrives at the decisions of one that did not.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from everfed.arrays import Bools
from everfed.energy.battery import TOLERANCE, Books
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.meters import Meter, MeterError
from everfed.flower.node_state import Arrays, Memory
from everfed.flower.sleep import MOST_ROUNDS
from everfed.flower.wire import BOOKS, Ask
from everfed.scheduling.plan import Schedule, decided
from everfed.scheduling.policies import Clients, Decision, Energy, Policy, View

log = logging.getLogger("flwr.everfed")


class Choice(NamedTuple):
    """What a client decides for a round."""

    join: bool
    scale: float
    planned: int  # participations so far, this round's included
    energy: Books
    next: int = 0  # the first round in which it is worth asking again; 0: every round
    simulated: bool = False  # whether all of this follows from the experiment's fleet, as a server can tell


class EnergySource(Protocol):
    """The shape of every source."""

    def choose(self, policy: Policy, client: int, ask: Ask, memory: Memory) -> Choice:
        """Whether this client takes part in the round that the server asks about."""
        ...


def own_schedule(fleet: Fleet, policy: Policy, seed: int, client: int, granted: Set[int] = frozenset()) -> Schedule:
    """One client's own schedule: the simulator's, for a fleet of one.

    granted: the rounds in which the server let the client take part, where that is the server's decision.
    """
    if not 0 <= client < len(fleet):
        raise InputError(f"this node is client {client}, but the fleet has clients 0 to {len(fleet) - 1}.")
    alone = np.array([client])
    own = cast(Policy, _Granted(policy, granted)) if policy.coordinated else policy
    schedule = Schedule(fleet.part(alone), own, seed)
    # Its number and its rank are those it has in the whole fleet.
    schedule.clients = Clients.of(fleet, seed).part(alone)
    schedule.state = policy.init(schedule.clients)
    return schedule


class _Granted:
    """A policy whose clients take part in the rounds that the server granted."""

    def __init__(self, policy: Policy, rounds: Set[int]) -> None:
        self.policy, self.rounds, self.granted = policy, rounds, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def step(self, state: Any, view: View) -> Decision:
        self.granted = view.round in self.rounds
        return decided(self.policy, state, view)

    def grant(self, wishes: Bools) -> Bools:
        return wishes & self.granted


def own_plan(fleet: Fleet, policy: Policy, seed: int, client: int, rounds: int) -> Arrays:
    """All rounds of one client as arrays over the rounds: whether it joins, its scale, its energy's books."""
    schedule = own_schedule(fleet, policy, seed, client)
    join, scale, books = np.zeros(rounds, np.bool_), np.zeros(rounds), np.zeros((rounds, len(BOOKS)))
    for round in range(rounds):
        joins, scales = schedule.step(round)
        join[round], scale[round] = joins[0], scales[0]
        kept = schedule.battery.books().to_dict()
        books[round] = [kept[name] for name in BOOKS]
    return {"join": join, "scale": scale, "books": books}


def planned_choice(plan: Arrays, round: int) -> Choice:
    """A round of `own_plan`."""
    books = {name: kind(value) for (name, kind), value in zip(BOOKS.items(), plan["books"][round], strict=True)}
    planned = int(np.count_nonzero(plan["join"][: round + 1]))
    later = np.flatnonzero(plan["join"][round + 1 :])
    # At the latest in the last round, so that the books are whole in the end.
    again = round + 1 + int(later[0]) if len(later) else max(len(plan["join"]) - 1, round + 1)
    return Choice(bool(plan["join"][round]), float(plan["scale"][round]), planned, Books(**books), again, True)


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
        schedule = own_schedule(self.fleet, policy, self.seed, client, granted)
        planned = sum(bool(schedule.step(r)[0][0]) for r in range(ask.round))
        schedule.arrive(ask.round)
        again = ask.round + 1
        if policy.coordinated and ask.round not in granted:  # a wish, for which nothing is paid yet
            forecast = schedule.outlook.at(ask.round) if schedule.outlook else None
            view = View(ask.round, schedule.battery.affords(), schedule.battery.level, forecast)
            joins, scales, _ = decided(policy, schedule.state, view)
        else:
            joins, scales = schedule.decide(ask.round)
            planned += bool(joins[0])
        choice = Choice(bool(joins[0]), float(scales[0]), planned, schedule.battery.books(), again, True)
        return choice if policy.coordinated else choice._replace(next=_next_slot(schedule, again))


def _next_slot(schedule: Schedule, first: int) -> int:
    """The first round from this one on in which a client takes part, as far as that is known."""
    known = getattr(schedule.fleet.arrivals, "known_rounds", None)
    last = first + MOST_ROUNDS if known is None else min(first + MOST_ROUNDS, known)
    return next((round for round in range(first, last) if schedule.step(round)[0][0]), max(last, first))


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
            log.warning("client %d cannot read its energy and skips the round: %s", client, error)
            level = 0.0
        affords = level >= 1.0 - TOLERANCE
        kept = memory.load("decision") or {}
        planned = int(kept.get("planned", 0))
        books = measured_books(_trained(memory), level, self.capacity)
        if kept and int(kept["round"]) == ask.round:
            join = bool(kept["join"]) and (affords or policy.energy is Energy.UNLIMITED)
            again = self._next(policy, client, ask.round + 1)
            return Choice(join, float(kept["scale"]), planned, books, again)
        join, scale, state = self._step(policy, client, ask.round, level, kept)
        planned += join
        told = {"round": ask.round, "join": join, "scale": scale, "planned": planned}
        learnt = {f"policy.{k}": v for k, v in state.items() if policy.learns and isinstance(v, np.ndarray)}
        memory.save("decision", {**{k: np.array(v) for k, v in told.items()}, **learnt})
        again = self._next(policy, client, ask.round + 1)
        return Choice(join, scale, planned, books, again)

    def _alone(self, client: int) -> Clients:
        number, cycle, offset = (np.array([value]) for value in (client, self.cycle, self.offset))
        return Clients(number, cycle, offset, self.seed, np.array([self.capacity]))

    def _next(self, policy: Policy, client: int, first: int) -> int:
        """The first round from this one on in which the client would take part, had it the energy."""
        if policy.learns or policy.coordinated:
            return first
        state = policy.init(self._alone(client), first)
        for round in range(first, first + MOST_ROUNDS):
            joins, _, state = decided(policy, state, View(round, np.array([True]), np.array([self.capacity])))
            if joins[0]:
                return round
        return first + MOST_ROUNDS

    def _step(self, policy: Policy, client: int, round: int, level: float, kept: Any) -> tuple[bool, float, Any]:
        state = policy.init(self._alone(client), round)
        if policy.learns and kept:
            state |= {k.removeprefix("policy."): v for k, v in kept.items() if k.startswith("policy.")}
            for missed in range(int(kept["round"]) + 1, round):  # rounds that passed while the device was away
                state = decided(policy, state, View(missed, np.array([False]), np.array([0.0]))).state
        view = View(round, np.array([level >= 1.0 - TOLERANCE]), np.array([level]))
        decision = decided(policy, state, view)
        return bool(decision.join[0]), float(decision.scale[0]), decision.state


def note_training(round: int, memory: Memory) -> None:
    """Count a round whose energy has been spent: one that was agreed to, and then lost, has cost nothing."""
    kept = memory.load("trained") or {}
    if memory.load("decision") is not None and int(kept.get("round", -1)) < round:  # measured, and not counted yet
        memory.save("trained", {"round": np.array(round), "count": np.array(int(kept.get("count", 0)) + 1)})


def _trained(memory: Memory) -> int:
    return int((memory.load("trained") or {}).get("count", 0))


def measured_books(spent: float, level: float, capacity: float) -> Books:
    """What can be known from the outside: what was spent and what is there must have come from somewhere."""
    stored = min(level, capacity)  # a meter may count a battery of which training gets a part
    return Books(harvested=spent + stored, spent=float(spent), stored=stored)
