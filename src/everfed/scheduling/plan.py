"""The plan: which clients train in which round with which scale, before any training.

It depends only on energy and random draws, not on the model, and is computed one round at a time, without a
rounds-by-clients matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed import random
from everfed.arrays import Bools, Floats, Ints, Seeds, part_of
from everfed.energy.battery import Battery, Books
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, counted, shown, some, warn
from everfed.scheduling.foresight import Outlook
from everfed.scheduling.policies import Clients, Decision, Energy, Policy, State, View


@dataclass(frozen=True)
class PlanStep:
    """One round of a plan.

    round: its number, from 0.
    clients: [C] those who train, ascending.
    scales: [C] what each multiplies its update by.
    energy: of the whole fleet, up to and including this round.

    >>> import everfed as ef
    >>> first = next(iter(ef.plan(ef.Fleet.from_cycles([1, 2]), "greedy", rounds=4)))
    >>> first.round, first.clients.tolist(), first.scales.tolist()
    (0, [0, 1], [1.0, 1.0])
    """

    round: int
    clients: Ints  # the participants, ascending
    scales: Floats  # what each multiplies its update by
    energy: Books  # the fleet's energy accounts, up to and including this round


class Schedule:
    """A fleet under a policy, stepped round by round: energy arrives, clients decide, pay.

    seed may have shape [S, 1]; every array then has shape [S, N], one row per seed.
    """

    def __init__(self, fleet: Fleet, policy: Policy, seed: Seeds) -> None:
        self.fleet, self.policy, self.seed = fleet, policy, seed
        clients = Clients.of(fleet, seed)
        # Policies that assume unlimited energy have no brown-outs.
        storage = fleet.storage
        if policy.energy is Energy.UNLIMITED:
            storage = replace(storage, browns_out=False, cost_spread=0.0)
        self.battery = Battery(fleet.capacity, clients.shape()[:-1], storage, fleet.unit_j)
        self.clients = clients
        self.state = policy.init(clients)
        self.outlook = Outlook(fleet, seed, clients.shape(), policy.foresight) if policy.foresight else None

    def rounds(self, first: int, last: int) -> Iterator[PlanStep]:
        """The plan's rounds first .. last - 1; earlier ones must have been stepped or restored."""
        return map(self.plan_round, range(first, last))

    def plan_round(self, round: int) -> PlanStep:
        join, scale = self.step(round)
        clients = np.flatnonzero(join)
        return PlanStep(round, clients, scale[clients], self.battery.books())

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that later rounds depend on: the policy's state and the batteries."""
        kept = {f"policy.{k}": v for k, v in self.state.items() if isinstance(v, np.ndarray)}
        return kept | {f"battery.{k}": v for k, v in self.battery.state_dict().items()}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.state |= {k: v.copy() for k, v in part_of(state, "policy.").items()}
        self.battery.load_state_dict(part_of(state, "battery."))

    def step(self, round: int) -> tuple[Bools, Floats]:
        """Which clients join this round, and the scale of each."""
        self.arrive(round)
        return self.decide(round)

    def arrive(self, round: int) -> None:
        """The first half of a round: energy arrives."""
        self.battery.charge(self.fleet.harvest(round, self.seed))

    def decide(self, round: int) -> tuple[Bools, Floats]:
        """The second half: clients decide, and those that join spend energy."""
        forecast = self.outlook.at(round) if self.outlook else None
        view = View(round, self.battery.affords(), self.battery.level, forecast)
        wishes, scale, self.state = decided(self.policy, self.state, view)
        join = _flags(self.policy, self.policy.grant(wishes), "grant", view)
        lost = self.battery.spend(join, self._cost(round))
        if lost is not None:
            join = join & ~lost
        return join, scale

    def _cost(self, round: int) -> float | Floats:
        """What a round costs each client, in units: 1, or around 1 where that varies."""
        spread = self.battery.storage.cost_spread
        if spread == 0.0:
            return 1.0
        # The sum of four uniform numbers, scaled to this deviation, is near enough to a normal one.
        words = random.words(self.seed, random.Purpose.COST, self.clients.ids, round)
        bell = words.astype(np.float64).sum(axis=0) / 2.0**32 - 2.0
        cost: Floats = np.maximum(1.0 + spread * math.sqrt(3.0) * bell, 0.0)
        return cost


def decided(policy: Policy, state: State, view: View) -> Decision:
    """The policy's step, refused if it is no decision: policies may come from anywhere, and sums hide a NaN."""
    found = policy.step(state, view)
    if not isinstance(found, tuple) or len(found) != 3 or not isinstance(found[2], dict):
        raise _refused(policy, "step", view, "", found, "Decision(join, scale, state), its state a dict")
    join, scale = _flags(policy, found[0], "step", view), found[1]
    shapes = view.affords.shape, view.affords.shape[-1:]
    if type(scale) is not np.ndarray or scale.dtype.kind not in "fiu" or scale.shape not in shapes:
        raise _refused(policy, "step", view, "scale = ", scale, f"an array of numbers of shape {shapes[1]}")
    if not (scale.min() >= 0.0 and scale.max() < np.inf):  # false for NaN as well
        usable = (scale >= 0.0) & (scale < np.inf)
        bad = np.argwhere(join & ~usable)
        if len(bad):
            client = int(bad[0, -1])
            value = np.broadcast_to(scale, join.shape)[tuple(bad[0])]
            right = f"finite numbers of at least 0 for all who join; client {client} has {value:g}"
            raise _refused(policy, "step", view, "scale = ", scale, right)
        scale = np.where(usable, scale, 0.0)  # of clients that do not join
    return Decision(join, scale, found[2])


def _flags(policy: Policy, join: Any, method: str, view: View) -> Bools:
    shape = view.affords.shape
    if type(join) is not np.ndarray or join.dtype != np.bool_ or join.shape != shape:
        what = "join = " if method == "step" else ""
        raise _refused(policy, method, view, what, join, f"a boolean array of shape {shape}")
    return join


def _refused(policy: Policy, method: str, view: View, what: str, value: Any, right: str) -> InputError:
    array = isinstance(value, np.ndarray)
    got = (
        f"{type(value).__name__} of {value.dtype} and shape {value.shape}" if array else " ".join(shown(value).split())
    )
    return InputError(
        f"the policy {type(policy).__name__}: its {method} returned {what}{got} in round {view.round}; "
        f"it must be {right}."
    )


def check_rounds(fleet: Fleet, rounds: int) -> int:
    """The same number as Python's, if it is a possible number of rounds."""
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or not 1 <= rounds < 2**32:
        raise InputError(f"rounds is {rounds!r}; it must be a whole number of at least 1 and below 2**32.")
    fleet.check_rounds(int(rounds))
    return int(rounds)


def check_horizon(fleet: Fleet, rounds: int, strict: bool) -> None:
    rounds = check_rounds(fleet, rounds)
    cut = fleet.undivided(rounds)
    if len(cut) == 0:
        return
    first = cut[0]
    message = (
        f"{counted(rounds, 'round')} do{'es' * (rounds == 1)} not contain a whole number of windows for {len(cut)} of "
        f"{counted(len(fleet), 'client')} "
        f"(client {some(cut, 3)}; the first has a cycle of {fleet.cycles()[first]}"
        + (f" from round {fleet.offsets()[first]}" if fleet.offsets()[first] else "")
        + "); their last window is cut short."
    )
    if strict:
        raise InputError(message + " Choose a multiple of every cycle, or turn strict_horizon off.")
    warn(message, 2)
