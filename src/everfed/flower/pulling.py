"""Fetching replies, which may come from anybody with a key: nothing larger than expected is taken in.

Flower unpacks a reply into Python objects, many times its size, before an app sees it. So the parts of a reply are
fetched here one by one, and weighed first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from everfed.flower import wire

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_PARTS = 100_000  # of a reply: an array has a few
_SMALL = 64 * 1024  # bytes of a part that holds settings or metrics
_NAMES = 8 * 1024 * 1024  # of one that holds the names of arrays
_SMALL_KINDS = ("ConfigRecord", "MetricRecord", "RecordDict", "Message")
ENVELOPES = 1024 * 1024  # bytes that all a reply's records may have besides its model


@dataclass(frozen=True)
class Reply:
    """What came back for a message."""

    number: str  # of the message that it answers
    message: Message | None
    bad: str | None = None  # why it cannot be read
    size: int = 0  # bytes
    took: float = 0.0  # seconds from the question to it

    def failure(self) -> str | None:
        """Why there is no answer in it, through no fault of the answer's; None if there is one."""
        return wire.failure(self.message) if self.message else None


class _TooLargeError(Exception):
    """A reply is larger than what was asked for."""


def pull(grid: Grid, number: str, most: int) -> list[Reply]:
    """The reply to a message, if it has come. most: bytes; a larger one is not read."""
    if hasattr(type(grid), "_runtime_client"):
        return _weighed(grid, number, most)
    replies = []
    for message in grid.pull_messages([number]):
        found = wire.size(message.content) if message.has_content() else 0
        bad = _too_large(found, most) if found > most else None
        replies.append(Reply(number, None if bad else message, bad, found))
    return replies


def _too_large(size: int, most: int) -> str:
    return f"its reply has {size:,} bytes or more, and {most:,} at most are expected"


def _weighed(grid: Any, number: str, most: int) -> list[Reply]:
    """The same from a SuperLink, as `HttpGrid.pull_messages` does it."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=[number]))
    replies = []
    for envelope, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        if envelope.metadata.reply_to_message_id != number:
            continue
        # It is gone from the SuperLink now: whatever fails from here on is a bad reply, and not one to wait for.
        try:
            parts = [part.object_id for _, part in zip(range(_PARTS + 1), iterate_object_tree(tree), strict=False)]
            replies.append(_inflated(grid, number, envelope.metadata.message_id, parts, most))
        except _TooLargeError as error:
            replies.append(Reply(number, None, str(error)))
        except Exception as error:  # whatever a hostile reply makes the decoder raise
            replies.append(Reply(number, None, f"its reply cannot be read ({type(error).__name__})"))
    return replies


def _inflated(grid: Any, number: str, identity: str, parts: list[str], most: int) -> Reply:
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    client, run = grid._runtime_client, grid.run.run_id
    fetch = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=grid.node, run_id=run)
    lock, total = threading.Lock(), 0

    def weigh(part: str) -> bytes:
        nonlocal total
        content: bytes = fetch(part)
        kind = get_object_head_values_from_object_content(content)[0]
        small = _SMALL if kind in _SMALL_KINDS else _NAMES if kind in ("ArrayRecord", "Array") else most
        with lock:
            total += len(content)
        if len(content) > small:
            raise _TooLargeError(f"its reply has a {kind[:20]} of {len(content):,} bytes; {small:,} are the most")
        if total > most:
            raise _TooLargeError(_too_large(total, most))
        return content

    try:
        if len(parts) > _PARTS:
            raise _TooLargeError(f"its reply has more than {_PARTS:,} parts")
        contents = pull_objects(object_ids=parts, pull_object_fn=weigh)
    finally:  # the SuperLink need not keep it, whatever it was
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=identity)
        )
    message: Any = inflate_object_from_contents(identity, contents)
    if not isinstance(message, Message):
        raise TypeError
    message.metadata.__dict__["_message_id"] = identity
    return Reply(number, message, None, total)
