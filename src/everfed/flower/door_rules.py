"""What the door holds those to who knock: proofs count once, replies are one's own, and nobody lingers.

A node proves its key by signing the time, so whoever has seen the headers of one call could make others for five
minutes: every proof is good for one. And SuperLink (Flower 1.41) knows who calls, but takes a reply's own word for who
sent it, and a message that is no reply for the server's: a node could answer for others, or tell them what to do, if it
knew their numbers. Only replies of the caller itself are passed on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from everfed.flower.device_check import AHEAD_S, BEHIND_S

_SUPERLINK = 1  # its number among the nodes


class Proofs:
    """The signatures of calls that have been let in, for as long as their times are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._used: set[tuple[int, int]] = set()
        self._order: deque[tuple[float, tuple[int, int]]] = deque()

    def use(self, client: int, signature: bytes) -> bool:
        """Take note of a signature; False if it has been used. It must be a good one."""
        now = self.clock()
        while self._order and self._order[0][0] < now:
            self._used.discard(self._order.popleft()[1])
        mark = client, decode_dss_signature(signature)[0]  # the half of it that cannot be changed by others
        if mark in self._used:
            return False
        self._used.add(mark)
        self._order.append((now + AHEAD_S + BEHIND_S, mark))
        return True


def not_its_own(content: bytes) -> str | None:
    """What is wrong with a call that pushes replies: None if it holds one reply, of the node that it says it is.

    SuperLink holds that node's number against the key.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    request = PushMessagesRequest()
    try:
        request.ParseFromString(content)
    except DecodeError:
        return "its call to push a reply cannot be read"
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return f"it pushes {len(request.messages_list)} replies in one call, not one"
    about = request.messages_list[0].metadata
    if not about.reply_to_message_id or about.dst_node_id != _SUPERLINK:
        return "it pushes a message that is no reply to the server"
    if about.src_node_id != request.node.node_id:
        return f"it pushes a reply of node {about.src_node_id}, and is node {request.node.node_id}"
    return None


class Lingerers:
    """Connections on which nothing is asked for: who opens many, or says a word a minute, keeps nobody out."""

    def __init__(self, patience_s: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """patience_s: how long one may linger. most: how many may, before those that came first are ended."""
        self.patience_s, self.most, self.clock = patience_s, most, clock
        self._since: WeakKeyDictionary[Any, tuple[float, Any]] = WeakKeyDictionary()  # by uvicorn's protocol

    def end(self, connections: Iterable[Any]) -> int:
        """End those that have lingered; returns how many."""
        now, idle = self.clock(), []
        for connection in list(connections):
            cycle = connection.cycle  # the latest call; None before the first one has come as a whole
            if cycle is not None and not cycle.response_complete:
                self._since.pop(connection, None)
                continue
            since = self._since.get(connection)
            if since is None or since[1] is not cycle:  # a call has been answered meanwhile
                since = self._since[connection] = now, cycle
            idle.append((since[0], connection))
        idle.sort(key=lambda pair: pair[0])
        many = max(len(idle) - self.most, 0)
        over = [pair[1] for i, pair in enumerate(idle) if i < many or now - pair[0] > self.patience_s]
        for connection in over:
            connection.transport.abort()
        return len(over)
