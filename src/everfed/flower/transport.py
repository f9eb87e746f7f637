"""Messages out, replies in, within a deadline that holds whatever the other side does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

POLL_S = 1.0  # between two looks for one reply
_EACH_S = 0.02  # and at least this much for every reply that is awaited: looking is work for the server too
_MOST_WORKERS = 16


def send_and_collect(grid: Grid, messages: Sequence[Message], deadline_s: float) -> dict[int, Message]:
    """Send, and collect the replies that come in time, by the node that was written to.

    A node that is killed while it sends leaves half a reply, and Flower's pull waits minutes for the other
    half. So replies are fetched by threads that can be left behind when time is up.
    """
    until = time.monotonic() + deadline_s
    if not messages:
        return {}
    nodes = [m.metadata.dst_node_id for m in messages]
    pending = {i: node for i, node in zip(grid.push_messages(list(messages)), nodes, strict=True) if i}
    numbers = list(pending)
    arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
    over = threading.Event()
    workers = min(len(numbers), _MOST_WORKERS)
    for first in range(workers):
        own = set(numbers[first::workers])
        pause = max(POLL_S, _EACH_S * len(numbers))
        threading.Thread(target=_fetch, args=(grid, own, pause, arrived, over), daemon=True).start()
    replies: dict[int, Message] = {}
    while pending and (left := until - time.monotonic()) > 0:
        try:
            reply = arrived.get(timeout=left)
        except queue.Empty:
            break
        node = pending.pop(reply.metadata.reply_to_message_id, None)
        if node is not None:
            replies[node] = reply
    over.set()
    return replies


def _fetch(
    grid: Grid, numbers: set[str], pause_s: float, arrived: queue.SimpleQueue[Message], over: threading.Event
) -> None:
    """Look for these replies until all are there or the phase is over.

    One by one: a pull of several that gets stuck on one would keep those it had already taken.
    """
    while numbers:
        for number in sorted(numbers):
            if over.is_set():
                return
            for reply in _pull(grid, number):
                numbers.discard(number)
                arrived.put(reply)
        over.wait(pause_s)


def _pull(grid: Grid, number: str) -> Iterable[Message]:
    try:
        return grid.pull_messages([number])
    except Exception:  # the network may fail for a moment; the deadline decides
        return ()


def failure(reply: Message) -> str | None:
    """Why a reply is none: Flower reports a crashed or unreachable client as an error."""
    if not reply.has_error():
        return None
    reasons = {2: "its app raised an error", 5: "it was unreachable", 8: "its process was killed"}
    return reasons.get(reply.error.code, f"Flower's error {reply.error.code}")
