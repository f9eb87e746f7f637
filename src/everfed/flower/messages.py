"""What the server and its clients say to each other, as Flower records.

A question is a record `everfed` beside whatever else a message holds; so is its answer. A model travels
as Flower's own apps send it: `arrays` by parameter name, `metrics` on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from everfed.energy.battery import Books

RECORD = "everfed"
QUERY = "query.everfed"  # "will you train in round r?"
TRAIN = "train"
ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"

Vector = npt.NDArray[np.float32]
_BOOKS: dict[str, Any] = {part.name: type(part.default) for part in fields(Books)}


@dataclass(frozen=True)
class Ask:
    """The server's question."""

    round: int
    back_to: int = 0  # the earliest round that a restarted server may ask for again
    # Where a server decides who trains: the rounds in which it let a client. A node that the server does
    # not know yet is told everybody's, and finds its own.
    granted: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def granted_to(self, client: int) -> frozenset[int]:
        return self.granted.get(client, frozenset())

    def to_record(self) -> ConfigRecord:
        content: dict[str, Any] = {"round": self.round, "back-to": self.back_to}
        pairs = [(client, r) for client, rounds in self.granted.items() for r in sorted(rounds)]
        if pairs:
            content |= {"granted-clients": [c for c, _ in pairs], "granted-rounds": [r for _, r in pairs]}
        return ConfigRecord(content)

    @classmethod
    def of(cls, content: RecordDict) -> Ask | None:
        """The question in a message, or None if it holds none."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            return None
        granted: dict[int, frozenset[int]] = {}
        clients: Any = record.get("granted-clients", [])
        rounds: Any = record.get("granted-rounds", [])
        for client, r in zip(clients, rounds, strict=True):
            granted[client] = granted.get(client, frozenset()) | {r}
        return cls(_whole(record, "round"), _whole(record, "back-to"), granted)


@dataclass(frozen=True)
class Answer:
    """A client's word: who it is, whether it takes part in the round, and what its energy came to."""

    client: int
    round: int
    join: bool
    scale: float
    planned: int  # participations up to and including this round, by the client's own schedule
    energy: Books

    def to_record(self) -> ConfigRecord:
        books = {f"energy.{name}": kind(getattr(self.energy, name)) for name, kind in _BOOKS.items()}
        return ConfigRecord(
            {
                "client": self.client,
                "round": self.round,
                "join": self.join,
                "scale": self.scale,
                "planned": self.planned,
                **books,
            }
        )

    @classmethod
    def of(cls, content: RecordDict) -> Answer:
        """The answer in a reply. Raises ValueError for anything that is not one."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            raise ValueError(f"the reply holds no record '{RECORD}'")
        join, scale = record.get("join"), record.get("scale")
        if not isinstance(join, bool) or not isinstance(scale, float):
            raise ValueError("the reply does not say whether it joins, and with which scale")
        books = {name: _number(record, f"energy.{name}", kind) for name, kind in _BOOKS.items()}
        client, round, planned = (_whole(record, key) for key in ("client", "round", "planned"))
        return cls(client, round, join, scale, planned, Books(**books))


def message(kind: str, node: int, round: int, records: Mapping[str, Any], ttl: float) -> Message:
    return Message(RecordDict(dict(records)), node, kind, ttl=ttl, group_id=str(round))


def reply(to: Message, answer: Answer) -> Message:
    return Message(RecordDict({RECORD: answer.to_record()}), reply_to=to)


def as_record(model: Vector, shapes: Mapping[str, tuple[int, ...]]) -> ArrayRecord:
    """A flat vector as Flower's arrays by name."""
    parts, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        parts[name] = Array(model[at : at + size].reshape(shape))
        at += size
    return ArrayRecord(parts)


def _whole(record: ConfigRecord, key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"'{key}' of the message is {value!r}; it must be a whole number")
    return value


def _number(record: ConfigRecord, key: str, kind: type[Any]) -> Any:
    value = record.get(key, kind())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"'{key}' of the reply is {value!r}; it must be a number")
    return kind(value)
