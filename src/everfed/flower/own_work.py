"""A client without rounds: what it can work with the energy that it has, decided alone whenever the server asks.

Work is paid for when it is offered, and remembered until the server has it on its disk. Asked again, after a lost
message or by a server that was restarted, the client offers the same work, which it does not pay for twice.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from everfed.energy.battery import TOLERANCE, Books, Storage
from everfed.energy.fleet import Fleet
from everfed.energy.work import MOMENTS, Pace, Work, slots_per_round
from everfed.errors import InputError
from everfed.flower.calls import NONE, Call, Offer
from everfed.flower.energy import Measured, measured_books
from everfed.flower.meters import MeterError
from everfed.flower.node_state import Arrays, Memory
from everfed.scheduling.policies import Always, Energy, Greedy, Policy
from everfed.scheduling.timeline import Timeline

if TYPE_CHECKING:
    from everfed.run.experiment import Experiment

log = logging.getLogger("flwr.everfed")

_KEPT = "work"


class Means(Protocol):
    """What a client can pay work with."""

    def advance(self, rounds: range) -> None:
        """Take in the energy of these rounds."""
        ...

    def pays(self) -> bool:
        """Whether work can begin now."""
        ...

    def take(self, round: int, slot: int) -> int:
        """Begin work, and pay for it: the local steps; 0 if the energy ran out in the middle."""
        ...

    def holds(self, steps: int) -> bool:
        """Whether work that was begun earlier can be done."""
        ...

    def next(self, round: int) -> int:
        """The first round after this one in which work could begin."""
        ...

    def books(self) -> Books: ...

    def state_dict(self) -> Arrays: ...

    def load_state_dict(self, state: Arrays) -> None: ...


def offer(means: Means, terms: Arrays, call: Call, memory: Memory) -> Offer:
    """The work that this client can do now."""
    *_, slots, _, client = terms["numbers"].tolist()
    memory.enter(call.run)
    kept = memory.load(_KEPT)
    if kept is None:
        kept = {"works": np.zeros((0, 2), np.int64), "numbers": np.array([-1, NONE, 0])}
    else:
        means.load_state_dict({name.removeprefix("means."): v for name, v in kept.items() if name.startswith("means.")})
    seen, last, begun = kept["numbers"].tolist()
    last = max(last, call.counted.get(client, NONE))  # the server knows better than a disk that was lost
    works = [(s, n) for s, n in kept["works"].tolist() if s > call.kept.get(client, NONE)]
    means.advance(range(seen + 1, call.round + 1))
    seen = max(seen, call.round)
    again = next(((slot, steps) for slot, steps in works if slot > call.counted.get(client, NONE)), None)
    slot, steps = again or (max(last + 1, call.round * slots), 0)
    if slot >= (call.round + 1) * slots:
        steps = 0  # a server that was restarted is in an earlier round again, or this one has no slot left
    elif again:
        steps = steps if means.holds(steps) else 0
    elif means.pays():
        steps, last = means.take(call.round, slot), slot
        if steps:
            works.append((slot, steps))
            begun += 1
    if again and not steps:
        later = max(slot // slots, call.round + 1)
    elif means.pays():
        later = call.round + (slot + 1 >= (call.round + 1) * slots)  # another slot of this round, if there is one
    else:
        later = means.next(seen)
    memory.save(_KEPT, {
        "works": np.array(works, np.int64).reshape(-1, 2),
        "numbers": np.array([seen, last, begun]), **{f"means.{name}": v for name, v in means.state_dict().items()},
    })  # fmt: skip
    before = begun - sum(s >= slot for s, _ in works)
    return Offer(client, call.round, steps > 0, slot if steps else NONE, steps, later, before, means.books())


class Simulated(Timeline):
    """The battery and the arrivals of one client, as the timeline of the whole fleet has them. How long work takes is
    for the device to say."""

    def __init__(self, terms: Arrays) -> None:
        local_steps, affordable, unlimited, _, sends, client = terms["numbers"].tolist()
        charging, leak, standby, start, spread, browns_out = terms["storage"].tolist()
        storage = Storage(charging, leak, standby, start, spread, bool(browns_out))
        # The harvest is known; of the fleet, the timeline needs the battery.
        fleet = Fleet.from_cycles(terms["cycle"], terms["offset"], capacity=terms["capacity"].tolist(), storage=storage)
        fleet = replace(fleet, unit_j=terms.get("unit_j"))
        work = Work(local_steps="affordable" if affordable else "all", partial="send" if sends else "lose")
        policy = Always() if unlimited else Greedy()
        super().__init__(fleet, policy, int(terms["seed"]), Pace(*terms["pace"]), work, local_steps)
        self.ids, self.harvest = np.array([client]), terms["harvest"]

    def advance(self, rounds: range) -> None:
        for number in rounds:
            self.battery.charge(self.harvest[number : number + 1] if number < len(self.harvest) else np.zeros(1))

    def pays(self) -> bool:
        return bool(self._pays(np.array([0]))[0])

    def take(self, round: int, slot: int) -> int:
        self._begin(np.array([0]), np.array([round * MOMENTS]), np.array([slot]))
        return 0 if self.fails[0] else int(self.steps[0])

    def holds(self, steps: int) -> bool:
        return True  # it has been paid for

    def next(self, round: int) -> int:
        battery, now = deepcopy(self.battery), round + 1
        self.advance(range(now, now + 1))
        while not self.pays() and now < len(self.harvest):
            now += 1
            self.advance(range(now, now + 1))
        self.battery = battery
        return now

    def books(self) -> Books:
        return self.battery.books()

    def state_dict(self) -> Arrays:
        return self.battery.state_dict()

    def load_state_dict(self, state: Arrays) -> None:
        self.battery.load_state_dict(state)


class Metered:
    """Energy that is really there, read off a meter when the server asks."""

    def __init__(self, energy: Measured, terms: Arrays) -> None:
        local_steps, affordable, unlimited, *_ = terms["numbers"].tolist()
        self.local_steps, self.affordable, self.unlimited = int(local_steps), bool(affordable), bool(unlimited)
        self.spent, self.capacity = 0.0, energy.capacity
        try:
            self.level = max(energy.meter.rounds(), 0.0)
        except MeterError as error:
            log.warning("this client cannot read its energy and does not work: %s", error)
            self.level = 0.0

    def advance(self, rounds: range) -> None:
        """The meter tells."""

    def pays(self) -> bool:
        return self.holds(1 if self.affordable else self.local_steps)

    def take(self, round: int, slot: int) -> int:
        paid = int(self.level * self.local_steps * (1.0 + TOLERANCE) + TOLERANCE)
        steps = self.local_steps if self.unlimited else min(paid, self.local_steps)
        self.spent += steps / self.local_steps
        return steps

    def holds(self, steps: int) -> bool:
        return self.unlimited or self.level >= steps / self.local_steps * (1.0 - TOLERANCE)

    def next(self, round: int) -> int:
        return round + 1

    def books(self) -> Books:
        return measured_books(self.spent, self.level, self.capacity)

    def state_dict(self) -> Arrays:
        return {"spent": np.array(self.spent)}

    def load_state_dict(self, state: Arrays) -> None:
        self.spent = float(state["spent"])


_STORAGE = ("charging", "leak", "standby", "start", "cost_spread", "browns_out")


def terms_of(
    fleet: Fleet, policy: Policy, seed: int, pace: Pace, work: Work, local_steps: int, client: int, rounds: int
) -> Arrays:
    """What one client must know of a run to decide alone, as plain arrays."""
    if not 0 <= client < len(fleet):
        raise InputError(f"this node is client {client}, but the fleet has clients 0 to {len(fleet) - 1}.")
    alone = np.array([client])
    own, unlimited = fleet.part(alone), policy.energy is Energy.UNLIMITED
    slots = slots_per_round(pace, work, local_steps)
    numbers = [local_steps, work.local_steps == "affordable", unlimited, slots, work.partial == "send", client]
    found = {
        "numbers": np.array(numbers, np.int64),
        "harvest": np.array([own.harvest(round, seed)[0] for round in range(rounds)], np.float64),
        "storage": np.array([np.ravel(getattr(own.storage, name))[0] for name in _STORAGE], np.float64),
        "capacity": own.capacity, "cycle": own.cycles(), "offset": own.offsets(), "seed": np.array(seed, np.uint64),
        "pace": np.stack([pace.train[alone], pace.air[alone], pace.radio[alone]]),
    }  # fmt: skip
    return found if own.unit_j is None else {**found, "unit_j": own.unit_j}


def terms(experiment: Experiment, client: int) -> Arrays:
    """The same of an experiment. Kept, they spare a device from reading it, which loads torch, to answer."""
    e = experiment
    if not e.asynchronous:
        raise InputError("the server has no rounds, and this client's experiment has; give both the same experiment.")
    fleet = e.make_fleet()
    pace = e.make_pace(fleet)
    return terms_of(fleet, e.policy, e.seeds.schedule, pace, e.work, e.local_steps, client, e.rounds)
