"""How a server deals with nodes that answer late, not at all, or wrongly.

Nodes that hang are asked less and less often, and no round waits for one node much longer than that node usually takes.
Clients that send what they must not are left out for some rounds, and longer each time.
"""

from __future__ import annotations

import numpy as np

from everfed.arrays import Ints
from everfed.flower.limits import RoundLimits

_LAST = 5  # answers of a node, whose longest is what it usually takes
_SPARE = 5.0  # times that
_LEAST = 1.0 / 3.0  # of the deadline that a node is given whatever it usually takes
_LONGEST = 16  # rounds between two questions to a node that does not answer
_DOUBLED = 4  # how often a quarantine is made longer
_FORGIVEN = 10  # updates that count, after which one wrong reply is forgotten


class Standing:
    """The record of every node and client. Nodes are known by Flower's numbers, clients by the experiment's."""

    def __init__(self, clients: int, limits: RoundLimits) -> None:
        self.limits = limits
        self.strikes: Ints = np.zeros(clients, np.int64)
        self.good: Ints = np.zeros(clients, np.int64)  # updates that counted since the last wrong reply
        self.terms: Ints = np.zeros(clients, np.int64)  # how often each client has been in quarantine
        self.barred: Ints = np.zeros(clients, np.int64)  # the round until which it is
        self._strangers: dict[int, int] = {}  # wrong replies of nodes whose client is not known
        self._took: dict[tuple[int, str], list[float]] = {}
        self._missed: dict[int, int] = {}  # how many questions in a row a node has left unanswered
        self._asleep: dict[int, int] = {}  # by node: the round until which it is not asked

    def objection(self, node: int, client: int | None, round: int) -> str | None:
        """Why this node is not asked in this round; None if it is."""
        if client is not None and (why := self.barred_until(client, round)):
            return why
        if self.limits.strikes and self._strangers.get(node, 0) >= self.limits.strikes:
            return "in quarantine"
        if round < self._asleep.get(node, 0):
            return f"not asked until round {self._asleep[node]}, since it left {self._missed[node]} in a row unanswered"
        return None

    def barred_until(self, client: int, round: int) -> str | None:
        return f"in quarantine until round {self.barred[client]}" if round < self.barred[client] else None

    def deadline(self, node: int, kind: str, most: float) -> float:
        """Seconds that this node is given, by what it took lately."""
        took = self._took.get((node, kind))
        return min(most, max(_SPARE * max(took), _LEAST * most)) if took else most

    def answered(self, node: int, kind: str, took: float) -> None:
        times = self._took.setdefault((node, kind), [])
        times[:] = [*times[-_LAST + 1 :], took]
        self._missed.pop(node, None)

    def silent(self, node: int, round: int) -> None:
        """A node has left a question unanswered: the first time it is asked again at once, then later and later."""
        missed = self._missed[node] = self._missed.get(node, 0) + 1
        if missed > 1:
            self._asleep[node] = round + 1 + min(2 ** min(missed - 2, 10), _LONGEST)

    def gone(self, nodes: set[int]) -> None:
        """Only these nodes are connected: what others did not answer is forgotten, they may come back well."""
        for node in [node for node in self._missed if node not in nodes]:
            del self._missed[node]
            self._asleep.pop(node, None)

    def wrong(self, node: int, client: int | None, round: int) -> str | None:
        """A node has sent what it must not; says so if that puts it into quarantine."""
        if not self.limits.strikes:
            return None
        if client is None:
            self._strangers[node] = self._strangers.get(node, 0) + 1
            return "left out from now on" if self._strangers[node] == self.limits.strikes else None
        self.strikes[client] += 1
        self.good[client] = 0
        if self.strikes[client] < self.limits.strikes:
            return None
        length = self.limits.quarantine_rounds * 2 ** min(int(self.terms[client]), _DOUBLED)
        self.strikes[client], self.barred[client] = 0, round + 1 + length
        self.terms[client] += 1
        return f"left out until round {self.barred[client]}"

    def right(self, client: int) -> None:
        """An update counts. After some, a wrong reply is forgiven: a node may fail now and then, not half the time."""
        self.good[client] += 1
        if self.good[client] % _FORGIVEN == 0:
            self.strikes[client] = max(self.strikes[client] - 1, 0)

    def state(self) -> Ints:
        return np.stack([self.strikes, self.good, self.terms, self.barred])

    def restore(self, state: Ints) -> None:
        self.strikes, self.good, self.terms, self.barred = (row.copy() for row in state)
