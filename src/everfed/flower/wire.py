"""What travels between the server and its clients: the records of a message, and how replies are checked.

A question is a record `everfed` beside whatever else a message holds; so is its answer. A model travels
as Flower's own apps send it: `arrays` by parameter name, `metrics` on the way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from everfed.energy.battery import Books
from everfed.errors import shown
from everfed.flower import payload

RECORD = "everfed"
QUERY = "query.everfed"  # "will you train in round r?"
TRAIN, EVALUATE = "train", "evaluate"
ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"

NAME = 16  # letters of a model's name

_MOST_J = 1e12  # more than a device uses in its life

Vector = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]  # of the model's parameters, in the flat vector's order
_MOST_LOSS = 1e30  # squared errors of large targets are honest; the mean over any number of clients stays finite
BOOKS: dict[str, Any] = {part.name: type(part.default) for part in fields(Books)}  # the type of each number


@dataclass(frozen=True)
class Ask:
    """The server's question."""

    round: int
    back_to: int = 0  # the earliest round that a restarted server may ask for again
    # Where a server decides who trains: the rounds in which it let a client. A node that the server does
    # not know yet is told everybody's, and finds its own.
    granted: Mapping[int, frozenset[int]] = field(default_factory=dict)
    run: int | None = None  # the run's own number: what a client remembers of another run is not of this

    def granted_to(self, client: int) -> frozenset[int]:
        return self.granted.get(client, frozenset())

    def to_record(self) -> ConfigRecord:
        content: dict[str, Any] = {"round": self.round, "back-to": self.back_to}
        pairs = [(client, r) for client, rounds in self.granted.items() for r in sorted(rounds)]
        if self.run is not None:
            content["run"] = self.run
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
        run = whole(record, "run") if "run" in record else None
        return cls(whole(record, "round"), whole(record, "back-to"), granted, run)


@dataclass(frozen=True)
class Answer:
    """A client's answer: who it is, whether it takes part in the round, and its energy so far."""

    client: int
    round: int
    join: bool
    scale: float
    planned: int  # participations up to and including this round, by the client's own schedule
    energy: Books
    next: int = 0  # the first round in which it is worth asking again, as in `sleep`
    simulated: bool = False  # whether its energy is the experiment's, so that the server knows its rounds as well
    asking_j: float = 0.0  # joules that being asked has cost the device so far
    holds: str | None = None  # the name of the model that it has kept, "" if none; None: it reads whole models only

    def to_record(self) -> ConfigRecord:
        said = {key: getattr(self, key) for key in ("client", "round", "join", "scale", "planned", "next", "simulated")}
        return ConfigRecord({**said, "asking-j": float(self.asking_j), **kept(self.holds), **written(self.energy)})

    @classmethod
    def of(cls, content: RecordDict) -> Answer:
        """The answer in a reply. Raises ValueError for anything that is not one."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            raise ValueError(f"the reply holds no record '{RECORD}'")
        join, scale = record.get("join"), record.get("scale")
        if not isinstance(join, bool) or not isinstance(scale, float):
            raise ValueError("the reply does not say whether it joins, and with which scale")
        if not 0.0 <= scale < math.inf:  # false for NaN as well
            raise RefusedError(f"its scale is {scale}, not a number of at least 0")
        client, round, planned = (whole(record, key) for key in ("client", "round", "planned"))
        again = whole(record, "next") if "next" in record else 0  # older clients do not say
        asking_j = _number(record, "asking-j", float)
        if not 0.0 <= asking_j <= _MOST_J:  # false for NaN as well
            raise ValueError(f"'asking-j' of the reply is {asking_j}; it must be from 0 to {_MOST_J:g}")
        simulated = record.get("simulated") is True
        return cls(
            client, round, join, scale, planned, read_books(record), again, simulated, asking_j, holds_in(record)
        )


def kept(holds: str | None) -> dict[str, str]:
    """The entry of a record that names the model a device has kept."""
    return {} if holds is None else {"holds": holds}


def holds_in(record: ConfigRecord) -> str | None:
    said = record.get("holds")
    if said is not None and not (isinstance(said, str) and len(said) in (0, NAME)):
        raise ValueError(f"'holds' of the reply is {shown(said)}, which is no model's name")
    return said


def as_record(model: npt.NDArray[Any], shapes: Shapes) -> ArrayRecord:
    """A flat vector as Flower's arrays by name."""
    parts, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        parts[name] = Array(model[at : at + size].reshape(shape))
        at += size
    return ArrayRecord(parts)


def written(books: Books) -> dict[str, Any]:
    """Energy accounts as entries of a record."""
    return {f"energy.{name}": kind(getattr(books, name)) for name, kind in BOOKS.items()}


def read_books(record: ConfigRecord) -> Books:
    return Books(**{name: _number(record, f"energy.{name}", kind) for name, kind in BOOKS.items()})


def whole(record: ConfigRecord, key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"'{key}' of the message is {shown(value)}; it must be a whole number")
    return value


def _number(record: ConfigRecord, key: str, kind: type[Any]) -> Any:
    value = record.get(key, kind())
    right = isinstance(value, int) if kind is int else isinstance(value, int | float) and math.isfinite(value)
    if isinstance(value, bool) or not right:
        wanted = "whole" if kind is int else "finite"
        raise RefusedError(f"its '{key}' is {shown(value)}; it must be a {wanted} number")
    return kind(value)


def failure(reply: Message) -> str | None:
    """Why there is no reply; None if there is one. Flower reports a crashed or unreachable client as an error."""
    if not reply.has_error():
        return None
    reasons = {2: "its app raised an error", 5: "it was unreachable", 8: "its process was killed"}
    said = printable(str(reply.error.reason or "")) if reply.error.code == 2 else ""
    return reasons.get(reply.error.code, f"Flower's error {reply.error.code}") + (f": {said}" if said else "")


def printable(text: str, most: int = 200) -> str:
    """A stranger's words, fit for a line of a log."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def size(content: RecordDict) -> int:
    """Bytes of a message's records, without Flower's envelopes."""
    arrays = sum(len(a.data) for r in content.array_records.values() for a in r.values())
    others = [*content.config_records.values(), *content.metric_records.values()]
    return arrays + sum(len(record.deflate()) for record in others)


class RefusedError(ValueError):
    """A reply that must not reach the model; the message says why, after the client's name."""


class Update(NamedTuple):
    """A trained client's reply that passed the checks."""

    client: int
    scale: float
    delta: Vector  # flat: local parameters minus the server's
    loss: float


def check_answer(answer: Answer, round: int, clients: int) -> None:
    if answer.round != round:
        raise RefusedError(f"the answer is for round {answer.round}, and the question was for round {round}")
    if not 0 <= answer.client < clients:
        raise RefusedError(f"there is no client {answer.client} in this fleet")
    if not 0 <= answer.planned <= round + 1:
        raise RefusedError(f"it says that it has planned {answer.planned} participations in {round + 1} rounds")


Decode = Callable[[RecordDict], Vector | None]  # a compressed update, or None if there is a whole model


def read_update(
    content: RecordDict, shapes: Shapes, sent: Vector, max_norm: float, decode: Decode = lambda content: None
) -> tuple[Vector, float, bool]:
    """(the update in a reply, its mean loss, whether it came compressed), or RefusedError.

    max_norm: its largest length; 0: any finite one.
    """
    delta = decode(content)
    compressed = delta is not None
    if delta is None:
        flat = _model(content, shapes)
        if not np.isfinite(flat).all():
            raise RefusedError("its parameters are not finite")
        with np.errstate(over="ignore"):
            delta = flat - sent
    length = norm(delta)
    if not math.isfinite(length):
        raise RefusedError("its update is not finite")
    if max_norm and length > max_norm:
        raise RefusedError(f"its update has length {length:.3g}, above the bound of {max_norm:g} (max_norm)")
    return delta, _loss(content), compressed


def _model(content: RecordDict, shapes: Shapes) -> Vector:
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise RefusedError("the reply holds no model")
    if set(arrays) != set(shapes):
        odd = sorted(set(arrays) ^ set(shapes))
        raise RefusedError(f"the reply's parameters are not the model's ({shown(odd[0])})")
    try:
        return np.concatenate([payload.values(name, arrays[name], shape) for name, shape in shapes.items()])
    except ValueError as error:
        raise RefusedError(str(error)) from None


def norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _loss(content: RecordDict) -> float:
    """The mean loss that the client reports, for the records only; 0 if it reports none."""
    metrics = content.get(METRICS)
    value = metrics.get("train_loss", 0.0) if isinstance(metrics, MetricRecord) else 0.0
    if isinstance(value, list) or not abs(value) <= _MOST_LOSS:  # false for NaN as well
        raise RefusedError(f"its loss is {shown(value)}, not a number of at most {_MOST_LOSS:g}")
    return float(value)
