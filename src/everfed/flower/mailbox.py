"""Messages to nodes, and the replies to them, without waiting for any of them in particular.

Flower's grid pushes messages and is asked for each reply; nodes never speak first. A node that is killed while it
sends leaves half a reply, and a pull then waits minutes for the other half. So replies are fetched by threads that can
be left behind.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from flwr.app import Message

from everfed.flower.pulling import ENVELOPES, Reply, pull

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL_S = 1.0  # between two looks for one reply, unless time is short
_EACH_S = 0.02  # and at least this much for every reply that is awaited: looking is work for the server too
_WORKERS = 16
_STUCK_S = 10.0  # a pull that takes longer has its thread replaced
_CLOSE_S = 2.0  # to wait for threads at the end


class Mailbox:
    """What was sent, and what has come back."""

    def __init__(self, grid: Grid, poll_s: float = POLL_S, most: int = ENVELOPES) -> None:
        """poll_s: between two looks for one reply. most: bytes of the largest reply that is read."""
        self.grid, self.poll_s, self.most = grid, poll_s, most
        self.waiting: dict[str, int] = {}  # messages without a reply yet, and the node each was sent to
        self._arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._turns: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()  # when to look for which reply
        self._pulls: dict[int, float] = {}  # by thread: when the pull that it is in began
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Look for replies no longer.

        Threads that are idle end here: one that is left in Flower's code when the interpreter ends can abort it.
        """
        self._over.set()
        for _ in self._threads:
            self._turns.put((0.0, ""))  # so that those who wait for a turn look up
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def send(self, messages: Sequence[Message]) -> list[str | None]:
        """The messages' numbers; None for one that the grid did not take."""
        if not messages:
            return []
        nodes = [message.metadata.dst_node_id for message in messages]
        pushed: Iterable[str | None] = self.grid.push_messages(list(messages))
        numbers = [number or None for number in pushed] or [None] * len(nodes)
        for number, node in zip(numbers, nodes, strict=True):
            if number:
                self.waiting[number] = node
                self._turns.put((0.0, number))
        self._staff()
        return numbers

    def get(self, timeout_s: float) -> Reply | None:
        """The next reply to a message that is waited for; None if none came in time."""
        until = time.monotonic() + timeout_s
        while True:
            self._staff()
            left = max(until - time.monotonic(), 0.0)
            try:
                reply = self._arrived.get(timeout=min(left, _STUCK_S)) if left else self._arrived.get_nowait()
            except queue.Empty:
                if time.monotonic() >= until:
                    return None
                continue
            if self.waiting.pop(reply.number, None) is not None:
                return reply

    def forget(self, number: str) -> None:
        """Wait for this reply no longer."""
        self.waiting.pop(number, None)

    def _staff(self) -> None:
        """As many threads as there are replies to look for, up to a limit, besides those that are stuck."""
        now = time.monotonic()
        stuck = sum(now - began > _STUCK_S for began in list(self._pulls.values()))
        while len(self._threads) - stuck < min(len(self.waiting), _WORKERS):
            thread = threading.Thread(target=self._look, args=(len(self._threads),), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _look(self, thread: int) -> None:
        while not self._over.is_set():
            try:
                due, number = self._turns.get(timeout=self.poll_s)
            except queue.Empty:
                continue
            if self._over.wait(max(due - time.monotonic(), 0.0)):
                return
            if number not in self.waiting:
                continue
            self._pulls[thread] = time.monotonic()
            try:  # one by one: a pull of several that gets stuck on one would keep those it had already taken
                replies = pull(self.grid, number, self.most)
            except Exception:  # the network may fail for a moment; deadlines decide
                replies = []
            del self._pulls[thread]
            for reply in replies:
                self._arrived.put(reply)
            if not replies:
                pause = max(self.poll_s, _EACH_S * len(self.waiting))
                self._turns.put((time.monotonic() + pause, number))


def send_and_collect(
    grid: Grid, messages: Sequence[Message], deadlines: Mapping[int, float], most: int = ENVELOPES
) -> dict[int, Reply]:
    """Send, and collect the replies by the node that was written to, each until its own deadline. most: bytes."""
    began = time.monotonic()
    replies: dict[int, Reply] = {}
    with Mailbox(grid, most=most) as mail:
        mail.send(messages)
        while mail.waiting:
            ends = {number: began + deadlines[node] for number, node in mail.waiting.items()}
            nodes = dict(mail.waiting)
            reply = mail.get(min(ends.values()) - time.monotonic())
            if reply:
                replies[nodes[reply.number]] = replace(reply, took=time.monotonic() - began)
                continue
            for number, end in ends.items():
                if end <= time.monotonic():
                    mail.forget(number)
    return replies
