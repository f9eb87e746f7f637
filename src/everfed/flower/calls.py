"""What a server without rounds and its clients say to each other: calls for work, and offers of it.

Both are a record `everfed` beside whatever else a message holds, as in `wire`. A call asks a client whether it can work
now, or, with a model, hands it the work that it has offered. An offer names the work by its slot: the slots of a client
only grow, so that no work counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from everfed.energy.battery import Books
from everfed.flower.wire import RECORD, holds_in, kept, read_books, whole, written

NONE = -1  # no slot yet


@dataclass(frozen=True)
class Call:
    """The server's question, at some time of a round."""

    run: int  # a number that the run was given when it began: what a client remembers of another run is not of this
    round: int
    # Each client's last slot that has been counted or refused, and the last whose effect is on the server's disk:
    # a restarted server asks again for what came after. A node that the server does not know yet is told everybody's.
    counted: Mapping[int, int] = field(default_factory=dict)
    kept: Mapping[int, int] = field(default_factory=dict)

    def to_record(self) -> ConfigRecord:
        content: dict[str, Any] = {"run": self.run, "round": self.round, "clients": list(self.counted)}
        return ConfigRecord({**content, "counted": list(self.counted.values()), "kept": list(self.kept.values())})

    @classmethod
    def of(cls, content: RecordDict) -> Call | None:
        """The call in a message, or None if it holds none."""
        found = content.get(RECORD)
        if not isinstance(found, ConfigRecord) or "counted" not in found:
            return None
        record: Any = found
        clients, counted, kept = ([*record.get(key, [])] for key in ("clients", "counted", "kept"))
        return cls(
            whole(record, "run"), whole(record, "round"), dict(zip(clients, counted, strict=True)),
            dict(zip(clients, kept, strict=True)),
        )  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """A client's answer: the work that it can do now, or "not now"."""

    client: int
    round: int  # of the call
    join: bool
    slot: int  # of the work; NONE: not now
    steps: int  # local steps
    again: int  # the round in which it is worth asking again, once this is done
    planned: int  # works begun before this one
    energy: Books
    holds: str | None = None  # as in `Answer`

    def to_record(self) -> ConfigRecord:
        said = {key: getattr(self, key) for key in (*_NUMBERS, "join")}
        return ConfigRecord({**said, **kept(self.holds), **written(self.energy)})

    @classmethod
    def of(cls, content: RecordDict) -> Offer:
        """The offer in a reply. Raises ValueError for anything that is not one."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            raise ValueError(f"the reply holds no record '{RECORD}'")
        join = record.get("join")
        if not isinstance(join, bool):
            raise ValueError("the reply does not say whether the client works")
        numbers = {key: whole(record, key) for key in _NUMBERS}
        return cls(**numbers, join=join, energy=read_books(record), holds=holds_in(record))


_NUMBERS = ("client", "round", "slot", "steps", "again", "planned")
