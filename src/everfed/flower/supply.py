"""What a client's energy allows, as far as a server can know it: how often it can take part, and what it can claim.

The experiment says how each client harvests. A battery that loses nothing, filled by that harvest, holds at least what
the client's own can hold; so whoever takes part without a unit in it claims energy that it cannot have.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.flower.sleep import MOST_ROUNDS
from everfed.flower.wire import RefusedError
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, Energy, Policy

_ROUNDING = 1e-6
_WIDEST = 2.0 * 3.0**0.5  # standard deviations: the farthest that a round's cost can be from its mean


class Supply:
    """The best case of every client's energy, round by round, and what its own schedule would do."""

    def __init__(self, fleet: Fleet, policy: Policy, seed: int, slack: float = 1.0, checked: bool = True) -> None:
        """slack: how many times the stated energy and scale a client may claim. checked: False takes any energy."""
        self.fleet, self.policy, self.seed, self.slack, self.checked = fleet, policy, seed, slack, checked
        self.rationed = checked and policy.energy is Energy.OBEYED
        spread = float(fleet.storage.cost_spread)
        self.least, self.most = max(1.0 - _WIDEST * spread, 0.0), 1.0 + _WIDEST * spread
        self.capacity = fleet.capacity * slack
        self.level = np.minimum(np.broadcast_to(fleet.storage.start, len(fleet)), fleet.capacity).astype(np.float64)
        self.harvested: Floats = np.zeros(len(fleet))
        self.passed = 0  # rounds whose energy has arrived
        state = policy.init(Clients.of(fleet, seed))
        known = np.broadcast_to(np.asarray(state.get("scale", 1.0), np.float64), len(fleet))
        # The weights that a client learns end at a cutoff; others are the policy's own.
        self.fair: Floats = np.maximum(known, float(getattr(policy, "cutoff", 1.0)))
        self._schedule = None if policy.coordinated else Schedule(fleet, policy, seed)
        self._ahead: deque[tuple[Bools, Floats]] = deque()  # the schedule's rounds from the last one on
        self._cycles = fleet.cycles()
        self._known = getattr(fleet.arrivals, "known_rounds", None)
        self.scales = self.fair

    def advance(self, round: int) -> None:
        """Let the energy of all rounds up to this one arrive."""
        for number in range(self.passed, round + 1):
            arrived = self.fleet.harvest(number, self.seed)
            self.harvested += arrived
            self.level = np.minimum(self.level + arrived * self.slack, self.capacity)
            if self._schedule:
                if number and self._ahead:
                    self._ahead.popleft()
                self._look(number, number)
                self.scales = np.maximum(self.fair, self._ahead[0][1])
        self.passed = max(self.passed, round + 1)

    def _look(self, first: int, last: int) -> None:
        """Step the schedule up to a round. first: the round that it now begins with."""
        assert self._schedule
        for number in range(first + len(self._ahead), last + 1):
            self._ahead.append(self._schedule.step(number))

    @property
    def due(self) -> Bools:
        """Who takes part in the last round by its own schedule, if its energy is the experiment's."""
        return self._ahead[0][0] if self._ahead else np.zeros(len(self.fleet), np.bool_)

    def asleep_until(self, client: int, round: int, simulated: bool) -> int:
        """The last round until which a client can have reason to sleep, from this one on. simulated: as in `Answer`."""
        if self._schedule is None or not simulated or round != self.passed - 1:
            return round + 2 * int(self._cycles[client])
        last = round + MOST_ROUNDS if self._known is None else min(round + MOST_ROUNDS, self._known - 1)
        for number in range(round + 1, last + 1):
            self._look(round, number)
            if self._ahead[number - round][0][client]:
                return number
        return round + MOST_ROUNDS

    def check_join(self, client: int, scale: float) -> None:
        """Refuse a scale that the policy does not give, and a participation without the energy for it."""
        limit = float(self.scales[client]) * self.slack
        if scale > limit * (1.0 + 1e-9):
            raise RefusedError(f"its scale is {scale:g}, above its limit of {limit:g}")
        if scale < min(limit, 1.0) * (1.0 - 1e-9):  # no policy gives less; some rules divide by it
            raise RefusedError(f"its scale is {scale:g}, below {min(limit, 1.0):g}")
        if self.rationed and self.level[client] < min(self.least, 1.0) - _ROUNDING:
            raise RefusedError(
                f"it takes part without energy: its battery can hold {self.level[client]:.3g} units by now, by the "
                "experiment's fleet, and a round takes 1 (check_energy)"
            )

    def possible(self, client: int, planned: int) -> int:
        """Of the participations that a client says it planned, those for which there can have been energy."""
        if not self.rationed or not self.least:
            return planned
        most = (float(self.harvested[client]) * self.slack + float(self.capacity[client])) / self.least
        return min(planned, int(most + _ROUNDING))

    def charge(self, client: int) -> None:
        """Take note of a participation."""
        self.level[client] = max(self.level[client] - self.least, 0.0)

    def check_books(self, client: int, round: int, books: Books, works: int = 1) -> None:
        """Refuse claims of energy that cannot be. works: how many a client can do in a round."""
        for name, value in books.to_dict().items():
            if not 0.0 <= value < 1e15:  # false for NaN as well
                raise RefusedError(f"its energy.{name} is {value:g}; it must be a number of at least 0")
        if abs(books.imbalance()) > _ROUNDING * (1.0 + books.harvested + books.shortfall + books.initial):
            raise RefusedError(f"its energy does not add up: {books.imbalance():.3g} came from nowhere, or went there")
        if not self.checked:
            return
        unit = 1.0 if self.fleet.unit_j is None else float(self.fleet.unit_j[client])
        rounds = works * (round + 1)
        battery = float(self.capacity[client])
        most = {
            "harvested": float(self.harvested[client]) * self.slack + battery,
            "stored": battery, "initial": battery, "spent": rounds * self.most, "shortfall": rounds * self.most,
        }  # fmt: skip
        for name, units in most.items():
            if (claimed := getattr(books, name) / unit) > units * (1.0 + _ROUNDING) + _ROUNDING:
                raise RefusedError(
                    f"it claims energy.{name} of {claimed:.4g} rounds, and by the experiment's fleet it is {units:.4g} "
                    "at most (check_energy)"
                )
        for name in ("violations", "brownouts"):
            if getattr(books, name) > rounds:
                raise RefusedError(f"it claims {getattr(books, name)} {name} in {rounds} rounds")
