"""A server without rounds: it asks those who may have energy, hands each the model at once, and adds what arrives.

Nodes cannot speak first on Flower, so a client is asked, and says when to ask it again. Nothing here waits for anybody:
whoever answers is served, in the order of the answers. The server's clock counts rounds of `round_s` seconds each,
while it is up and listens: it stands while the server is down, evaluates or saves.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from everfed.energy.battery import Books
from everfed.energy.work import MOMENTS
from everfed.errors import InputError
from everfed.flower import wire
from everfed.flower.admission import Terms
from everfed.flower.calls import NONE, Call, Offer
from everfed.flower.codec import Codec
from everfed.flower.downlink import Downlink
from everfed.flower.energy_reports import books_of_table, books_table, total_books
from everfed.flower.identity import Roster
from everfed.flower.ledger import Entry, Ledger
from everfed.flower.limits import RoundLimits
from everfed.flower.mailbox import POLL_S, Mailbox
from everfed.flower.norms import NormBound
from everfed.flower.outliers import odd_losses
from everfed.flower.own_data import told_of
from everfed.flower.pulling import ENVELOPES, Reply
from everfed.flower.received import Received
from everfed.flower.standing import Standing
from everfed.flower.wire import QUERY, TRAIN, RefusedError
from everfed.run.flight import Flight
from everfed.run.replay import NOTHING, Journal, LoggedWork, policy_scales
from everfed.run.rounds import Training
from everfed.run.setup import Setup
from everfed.scheduling.timeline import Works

log = logging.getLogger("flwr.everfed")

_LOOK_S = 2.0  # between two looks for nodes that have connected
_POLL = 0.05  # of a round, between two looks for one reply, if that is less than is usual
_SPARE = 16  # moments at the end of a round, for what arrives as it ends

Event = tuple[Works, Works, Works]


@dataclass(frozen=True)
class Errand:
    """A message on its way."""

    node: int
    kind: str
    round: int
    sent: float
    offer: Offer | None = None  # of the work that a model was sent for
    began: int = 0  # the moment


class ArrivalServer:
    """The traffic of one run over a network, for `AsynchronousRun`."""

    def __init__(
        self,
        setup: Setup,
        flight: Flight,
        grid: Grid,
        *,
        limits: RoundLimits | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
        differences: bool = False,
    ) -> None:
        self.setup, self.flight, self.limits = setup, flight, limits or RoundLimits()
        check_limits(self.limits)
        self.received = Received()
        flight.train_by(self.received)
        self.grid, self.roster = grid, roster or Roster()
        self.shapes = setup.layout.shapes_by_name()
        model_bytes = 4 * sum(prod(shape) for shape in self.shapes.values())
        self.mail = Mailbox(grid, min(POLL_S, self.limits.round_s * _POLL), ENVELOPES + 2 * model_bytes)
        e = setup.experiment
        self.codec = Codec(e.compression, setup.fleet.message_bits, e.seeds.batch)
        self.downlink = Downlink(e.downlink, differences)
        self.standing = Standing(len(setup.fleet), self.limits)
        self.norms = NormBound(np.ones(len(setup.fleet)), self.limits.norm_factor, self.codec.keep)
        self.ledger, self.folder = Ledger(setup.data.shares(), folder), folder
        self.scales, self.terms = policy_scales(setup), Terms(setup, self.roster, self.limits)
        self.run = secrets.randbits(62)
        self.counted, self.kept = (np.full(len(setup.fleet), NONE) for _ in range(2))  # slots, as in `Call`
        self.reports: dict[int, Books] = {}
        self.losses: dict[int, float] = {}  # the latest of each client
        self.errands: dict[str, Errand] = {}  # by the message's number
        self.next_call: dict[int, int] = {}  # by node: the round in which to ask it
        self.nodes: list[int] = []
        self.looked = self.opened = 0.0
        self.number = self.moment = -1
        self.entry = Entry(-1)
        self.journal: Journal | None = None

    # What the run asks for

    def moments(self, number: int) -> Iterator[Event]:
        try:
            yield from self._listen(number)
        except BaseException:  # an interrupted run, too, ends its threads
            self.mail.close()
            raise

    def _listen(self, number: int) -> Iterator[Event]:
        self._open(number)
        until = self.opened + self.limits.round_s
        while True:
            self._call()
            left = until - time.monotonic()
            reply = self.mail.get(min(max(left, 0.0), _LOOK_S))
            if reply is not None:
                yield from self._hear(self.errands.pop(reply.number), reply)
            self._expire()
            if left <= 0.0:
                break
        self._close()

    def energy(self) -> Books:
        return total_books(self.reports)

    def training(self) -> Training:
        clients = len(self.setup.fleet)
        return Training("Flower", clients, ["the whole model: by the clients, over the network"], None)

    def state_dict(self) -> dict[str, Tensor]:
        """Without what is in flight: a restarted server asks for it again."""
        kept = {
            "counted": self.counted, "units": self.terms.units, "own": self.ledger.own, "run": np.array(self.run),
            "norms": self.norms.state(), "standing": self.standing.state(),
            "energy": books_table(self.reports, len(self.setup.fleet)),
        }  # fmt: skip
        return {f"protocol.{name}": torch.from_numpy(value.copy()) for name, value in kept.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.counted, self.terms.units, self.ledger.own = (
            state[f"protocol.{name}"].cpu().numpy().copy() for name in ("counted", "units", "own")
        )
        self.run = int(state["protocol.run"])
        if "protocol.norms" in state:  # earlier versions did not keep them
            self.norms.restore(state["protocol.norms"].cpu().numpy())
            self.standing.restore(state["protocol.standing"].cpu().numpy())
            self.reports = books_of_table(state["protocol.energy"].cpu().numpy())

    # The clock and the books

    def _open(self, number: int) -> None:
        first, self.number, self.entry = self.number < 0, number, Entry(number)
        self.kept = self.counted.copy()  # every finished round is on the disk before the next one begins
        if first:
            self.ledger.rewind(number)  # a killed server may have written more than its checkpoint knows
            self.journal = Journal(self.folder, number) if self.folder else None
            until = time.monotonic() + self.limits.wait_s
            while len(self._look()) < len(self.setup.fleet) and time.monotonic() < until:
                time.sleep(0.5)
            log.info("%d of %d clients are connected", len(self.nodes), len(self.setup.fleet))
        self.moment = max(self.moment, number * MOMENTS - 1)
        self.opened = time.monotonic()

    def _close(self) -> None:
        self.entry.reachable = len(self.nodes)
        odd = odd_losses(list(self.losses), list(self.losses.values()))
        self.entry.odd = {client: why for client, why in odd.items() if client in self.entry.done}
        named = (("refused", self.entry.refused), ("lost", self.entry.lost), ("odd", self.entry.odd))
        for fate, clients in named:
            for client, why in clients.items():
                log.warning("round %d: the work of client %d is %s: %s", self.number, client, fate, why)
        self.ledger.add(self.entry)
        if self.journal:
            self.journal.sync()
        if self.number + 1 == self.setup.experiment.rounds:
            self.mail.close()

    def _now(self) -> int:
        """The moment; no two things happen at the same."""
        passed = (time.monotonic() - self.opened) / self.limits.round_s
        within = min(int(passed * MOMENTS), MOMENTS - _SPARE)
        self.moment = max(self.number * MOMENTS + within, self.moment + 1)
        return self.moment

    def _look(self) -> list[int]:
        self.nodes, self.looked = self.roster.reachable(self.grid), time.monotonic()
        self.standing.gone(set(self.nodes))
        return self.nodes

    # Messages out

    def _call(self) -> None:
        """Ask every node that is free and may have energy."""
        if time.monotonic() - self.looked >= _LOOK_S or self.looked < self.opened:
            self._look()
        busy = {errand.node for errand in self.errands.values()}
        free = [n for n in self.nodes if n not in busy and self.next_call.get(n, 0) <= self.number]
        free = [n for n in free if not self.standing.objection(n, self.roster.nodes.get(n), self.number)]
        self._send([Errand(node, QUERY, self.number, time.monotonic()) for node in free], {})

    def _hand(self, node: int, offer: Offer, began: int) -> None:
        """Send the model to a client that has begun."""
        model = self.flight.starts(np.array([offer.client]))[0].cpu().numpy()
        settings = ConfigRecord({**told_of(self.setup.data), "server-round": self.number + 1})
        records = {**self.downlink.records(model, self.shapes, offer.holds), wire.CONFIG: settings}
        records |= self.codec.wanted(offer.client)
        self.entry.models_sent += 1
        self._send([Errand(node, TRAIN, self.number, time.monotonic(), offer, began)], records)

    def _send(self, errands: list[Errand], records: Mapping[str, Any]) -> None:
        messages = [self._message(errand, records) for errand in errands]
        self.entry.bytes_sent += sum(wire.size(message.content) for message in messages)
        for errand, number in zip(errands, self.mail.send(messages), strict=True):
            if number is None:
                self._end(errand, "the grid did not take the message")
            else:
                self.errands[number] = errand

    def _message(self, errand: Errand, records: Mapping[str, Any]) -> Message:
        client = errand.offer.client if errand.offer else self.roster.nodes.get(errand.node)
        told = range(len(self.counted)) if client is None else [client]
        call = Call(
            self.run, errand.round, {c: int(self.counted[c]) for c in told}, {c: int(self.kept[c]) for c in told}
        )
        content = RecordDict({wire.RECORD: call.to_record(), **records})
        return Message(content, errand.node, errand.kind, ttl=self._deadline(errand), group_id=str(errand.round))

    def _deadline(self, errand: Errand) -> float:
        """Seconds. What a node does once, such as loading its data, it may do when it is first asked."""
        limits = self.limits
        if errand.kind == TRAIN:
            return self.standing.deadline(errand.node, TRAIN, limits.train_s)
        if errand.node not in self.next_call:
            return max(limits.query_s, limits.wait_s)
        return self.standing.deadline(errand.node, QUERY, limits.query_s)

    def _expire(self) -> None:
        now = time.monotonic()
        for number, errand in list(self.errands.items()):
            if now - errand.sent > self._deadline(errand):
                self.mail.forget(number)
                self.standing.silent(errand.node, self.number)
                self._end(self.errands.pop(number), "no reply in time")

    def _end(self, errand: Errand, why: str, fate: dict[int, str] | None = None) -> None:
        """A message without a reply that counts: its node is asked again in the next round. fate: default: lost."""
        self.next_call[errand.node] = self.number + 1
        if errand.offer is None:
            self.entry.silent += 1
        else:
            self.entry.planned.append(errand.offer.client)
            (self.entry.lost if fate is None else fate)[errand.offer.client] = why
            self.flight.drop(errand.offer.client)

    # Messages in

    def _hear(self, errand: Errand, reply: Reply) -> Iterator[Event]:
        took = time.monotonic() - errand.sent
        self.entry.bytes_received += reply.size
        if why := reply.failure():
            self._end(errand, why)
            return
        self.standing.answered(errand.node, errand.kind, took)
        try:
            offer = self.terms.checked(reply, errand.node, errand.round, errand.offer, self.counted)
        except ValueError as error:
            known = self.roster.nodes.get(errand.node)
            name = f"node {errand.node}" if known is None else f"client {known}"
            sentence = self.standing.wrong(errand.node, known, self.number)
            why = f"{error}; {sentence}" if sentence else str(error)
            self.entry.turned_away[str(errand.node)] = f"{name}: {why}"
            log.warning("round %d: the answer of %s is ignored: %s", self.number, name, why)
            self._end(errand, why, self.entry.refused)
            return
        self.reports[offer.client] = offer.energy
        self.ledger.hear(offer.client, self.terms.possible(offer))
        if errand.offer is None:
            self.entry.query_s = max(self.entry.query_s, took)
            self.next_call[errand.node] = max(offer.again, self.number + 1)
            if offer.join:
                yield from self._begin(errand.node, offer)
        elif not offer.join:
            self._end(errand, "it no longer had the energy when it was told to train")
        else:
            self.entry.train_s = max(self.entry.train_s, took)
            self.next_call[errand.node] = offer.again
            assert reply.message is not None
            yield from self._arrive(errand, errand.offer, reply.message)

    def _begin(self, node: int, offer: Offer) -> Iterator[Event]:
        for number, errand in list(self.errands.items()):
            if errand.offer and errand.offer.client == offer.client:  # of the same client, before its node restarted
                self.mail.forget(number)
                self._end(self.errands.pop(number), "its node was started again")
        began = self._now()
        work = LoggedWork(offer.client, offer.slot, offer.steps, 0, began, began)
        yield NOTHING, work.works(), NOTHING  # the run notes the version and its model
        self._hand(node, offer, began)

    def _arrive(self, errand: Errand, offer: Offer, reply: Message) -> Iterator[Event]:
        """Count a work, or refuse it: once, whatever becomes of it."""
        client = offer.client
        sent = self.flight.starts(np.array([client]))[0].cpu().numpy()
        self.counted[client] = offer.slot
        self.terms.charge(offer)
        self.entry.planned.append(client)
        piece = self.flight.pieces[client]
        work = LoggedWork(client, offer.slot, offer.steps, piece.version, errand.began, self._now())
        try:
            delta, loss = self._read(reply, offer, sent)
            part = self._bounded(client, wire.norm(delta), wire.norm(sent))
        except RefusedError as error:
            sentence = self.standing.wrong(errand.node, client, self.number)
            self.entry.refused[client] = f"{error}; {sentence}" if sentence else str(error)
            self.flight.drop(client)
            if self.journal:
                self.journal.add(replace(work, added=False))
            return
        self.entry.done.append(client)
        self.standing.right(client)
        if part < 1.0:
            delta = delta * np.float32(part)
            self.entry.shortened[client] = part
        if self.journal:
            self.journal.add(replace(work, part=part))
        self.losses[client] = loss
        device = self.setup.device
        self.received.results[client] = torch.from_numpy(delta).to(device), torch.tensor(loss, device=device)
        yield work.works(), NOTHING, NOTHING

    def _bounded(self, client: int, length: float, model_length: float) -> float:
        """What an update is multiplied by, 1 or less; RefusedError if it is far too long."""
        fate = self.norms.check(np.array([client]), np.array([length]), np.ones(1), model_length)[0]
        if isinstance(fate, str):
            raise RefusedError(fate)
        if fate < 1.0:
            log.warning(
                "round %d: the update of client %d is shortened: its length is %.3g, above %g times the usual one",
                self.number, client, length, self.limits.norm_factor,
            )  # fmt: skip
        return fate

    def _read(self, reply: Message, offer: Offer, sent: wire.Vector) -> tuple[wire.Vector, float]:
        """(the update in a reply, its loss), compressed as the experiment says, by the device or here."""
        work = offer.client, offer.slot
        delta, loss, compressed = wire.read_update(
            reply.content, self.shapes, sent, self.limits.max_norm, lambda r: self.codec.decode(r, *work, sent.size)
        )
        return delta if compressed or not self.codec.active else self.codec.compress(delta, *work), loss


def check_limits(limits: RoundLimits) -> None:
    if limits.round_s <= 0.0:
        raise InputError(
            f"round_s is {limits.round_s:g}, but without rounds the time between two updates of a client counts: give "
            "the length of a round of time in seconds (round-s in the run's configuration)."
        )
    if not limits.two_phase:
        raise InputError("two_phase is false, but without rounds clients are asked first; leave it at true.")
