"""Sleep until the slot: who need not be asked, and until when.

With rounds of a fixed length (`round-s`), a question says how long rounds are and when the next one begins. A client
that does not take part names the first round in which it is worth asking again; the server leaves it alone until then,
and the device may disconnect. One that takes part is asked in the next round too: that question tells it that its
update is on the server's disk, and before that it stays within reach of a server that was restarted. Peers that do not
know these entries ask and answer every round, as before.

Nobody sleeps longer than it can have reason to. With simulated energy the server knows the client's next round as well
as the client. With a meter, a policy of windows has a slot in each, so that the next one is within two windows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from everfed.arrays import Ints
from everfed.flower.wire import Answer

MOST_ROUNDS = 64  # between two questions: a client that died in its sleep is noticed


def spare_s(ask: Any, answer: Any) -> float:
    """Seconds that a device may be away after an answer, from the moment it was asked; 0: it must stay.

    ask, answer: the records of both, whatever they hold.
    """
    if not (isinstance(ask, Mapping) and isinstance(answer, Mapping)) or answer.get("join", True):
        return 0.0
    length, first = (_seconds(ask.get(key)) for key in ("round-s", "next-s"))
    now, then = ask.get("round"), answer.get("next")
    if not length or not isinstance(now, int) or not isinstance(then, int) or then <= now:
        return 0.0
    return first + (min(then - now, MOST_ROUNDS) - 1) * length


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0.0 <= value < math.inf else 0.0


class Sleepers:
    """What a server knows of its clients' next rounds."""

    def __init__(self, clients: int, round_s: float) -> None:
        """round_s: without a length of rounds, nobody sleeps."""
        self.round_s = round_s
        self.until: Ints = np.zeros(clients, np.int64)  # by client: the round in which to ask it
        self.client_of: dict[int, int] = {}  # by node, as far as they have answered
        self.next_at = 0.0  # when the next round may begin, by the wall clock

    def hear(self, node: int, answer: Answer, latest: int) -> None:
        """latest: the last round until which this client may sleep, by what the server knows of it."""
        self.client_of[node] = answer.client
        most = answer.round + 1 if answer.join else min(latest, answer.round + MOST_ROUNDS)
        self.until[answer.client] = min(max(answer.next, 0), most) if self.round_s else 0

    def asleep(self, client: int, round: int) -> bool:
        return bool(self.until[client] > round)

    def awake(self, nodes: list[int], round: int, known: Mapping[int, int]) -> list[int]:
        """Of these nodes, those to ask. known: the clients of nodes by their keys."""
        clients = {**self.client_of, **known}
        return [node for node in nodes if node not in clients or not self.asleep(clients[node], round)]

    def open_round(self) -> None:
        self.next_at = time.time() + self.round_s

    def entries(self) -> dict[str, float]:
        """What a question says of the clock."""
        return {"round-s": self.round_s, "next-s": max(self.next_at - time.time(), 0.0)} if self.round_s else {}

    def early_s(self) -> float:
        """Seconds that a restarted server waits, so as not to begin a round before the devices expect it."""
        return min(max(self.next_at - time.time(), 0.0), self.round_s)

    def load(self, until: Ints, next_at: float) -> None:
        self.until, self.next_at = until.copy(), next_at
