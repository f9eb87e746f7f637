"""One round over the network: ask everybody, train those who join and may, check what comes back."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from everfed.arrays import Bools, Floats
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.flower import round_state, wire
from everfed.flower.codec import Codec
from everfed.flower.downlink import Downlink
from everfed.flower.energy_reports import total_books
from everfed.flower.identity import Roster
from everfed.flower.joining import Joining
from everfed.flower.ledger import Entry, Ledger
from everfed.flower.limits import RoundLimits, check_two_phase
from everfed.flower.mailbox import send_and_collect
from everfed.flower.norms import NormBound
from everfed.flower.outliers import odd_asking, odd_losses
from everfed.flower.pulling import ENVELOPES, Reply, pull
from everfed.flower.sleep import Sleepers
from everfed.flower.standing import Standing
from everfed.flower.supply import Supply
from everfed.flower.thinning import RECORD as UPDATE
from everfed.flower.wire import QUERY, TRAIN, Answer, Ask, RefusedError, Shapes, Update, Vector
from everfed.learning.compress import Compressed
from everfed.learning.task import PlainTrained, Trained
from everfed.scheduling.plan import PlanStep
from everfed.scheduling.policies import Policy

log = logging.getLogger("flwr.everfed")  # Flower shows what its own loggers say

_GRACE = 1.25  # a message lives this many times its deadline, so that a late reply is seen to be late


@dataclass
class Opened:
    """A round between its two halves: the model is on its way to those who train."""

    entry: Entry
    device: torch.device  # of the server's model
    model: Vector
    shapes: Shapes
    asked: dict[int, Answer | None]  # by node: what it said when it was asked; None if it was not
    messages: list[Message]
    began: float


class RoundServer:
    """The rounds of one run, seen from the server. Nothing in it waits longer than its deadlines."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        shares: Floats,
        seed: int = 0,
        *,
        limits: RoundLimits | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
        asks_as: str = QUERY,
        late_joiners: bool = False,
        codec: Codec | None = None,
        downlink: Downlink | None = None,
    ) -> None:
        """asks_as: the type of the messages that only ask; TRAIN reaches apps that have no function for queries.

        late_joiners: whether clients have no share until they are first heard, as in `joining`. codec: how updates
        travel; None: whole. downlink: how the model does.
        """
        self.codec, self.downlink = codec, downlink or Downlink()
        self.asks_as, self.joining = asks_as, Joining(shares, late_joiners)
        self.fleet, self.policy, self.limits = fleet, policy, limits or RoundLimits()
        self.roster, self.ledger = roster or Roster(), Ledger(shares, folder)
        check_two_phase(self.limits, policy.coordinated, self.downlink.differences)
        self.supply = Supply(fleet, policy, seed, self.limits.scale_slack, self.limits.check_energy)
        self.norms = NormBound(self.supply.fair, self.limits.norm_factor, codec.keep if codec else 1.0)
        self.standing = Standing(len(fleet), self.limits)
        self.granted: list[set[int]] = [set() for _ in range(len(fleet))]
        self.energy: dict[int, Books] = {}
        self.asking_j: Floats = np.zeros(len(fleet))  # as each client last said
        self.sleepers = Sleepers(len(fleet), self.limits.round_s)
        self.heard: set[int] = set()  # in this round
        self.reads: set[int] = set()  # nodes that read small models
        self.simulated: Bools = np.zeros(len(fleet), np.bool_)  # clients whose energy is the experiment's, they say
        self.run = secrets.randbits(62)
        self.told: dict[str, Any] = {}  # to those who train, beside the model
        self.unanswered: dict[str, tuple[int, str]] = {}  # messages of the last round: to which node, of which kind
        self.back_to = 0
        self.has_asked = False
        self.not_before: float | None = None  # when the next round may begin; None: none has begun yet

    def await_round(self, grid: Grid, round: int) -> None:
        """Wait until a round may begin: the first one for the fleet to connect, the others for the clock."""
        now = time.monotonic
        if self.not_before is None:
            self.ledger.rewind(round)
            until = now() + self.limits.wait_s
            asleep = sum(self.sleepers.asleep(client, round) for client in range(len(self.fleet)))
            while (connected := len(self.roster.reachable(grid))) + asleep < len(self.fleet) and now() < until:
                time.sleep(0.5)
            log.info("%d of %d clients are connected", connected, len(self.fleet))
            time.sleep(self.sleepers.early_s())
        else:
            time.sleep(max(0.0, self.not_before - now()))
        self.not_before = now() + self.limits.round_s
        self.sleepers.open_round()
        self.back_to = round  # every finished round is on the disk before the next one begins

    def round(self, grid: Grid, round: int, params: Tensor, shapes: Shapes) -> tuple[PlanStep, list[Trained]]:
        """Who took part, and what they made of these parameters (flat, float32)."""
        self.await_round(grid, round)
        opened = self.open(grid, round, params, shapes)
        return self.close(opened, self.exchange(grid, opened.messages, TRAIN, opened.model.nbytes))

    def exchange(self, grid: Grid, messages: list[Message], kind: str, size: int = 0) -> dict[int, Reply]:
        """Send messages, and wait for each node's reply as long as this node is given. size: of a reply's model."""
        limits = {m.metadata.dst_node_id: self.deadline(m.metadata.dst_node_id, kind) for m in messages}
        replies = send_and_collect(grid, messages, limits, ENVELOPES + 2 * size)
        for message in messages:
            node = message.metadata.dst_node_id
            if node in replies:
                if not replies[node].failure():
                    self.standing.answered(node, kind, replies[node].took)
            else:
                self.standing.silent(node, int(message.metadata.group_id))
                self.unanswered[message.metadata.message_id] = node, kind
        return replies

    def open(
        self, grid: Grid, round: int, params: Tensor, shapes: Shapes, config: Mapping[str, Any] | None = None
    ) -> Opened:
        """The first half: ask, and write the messages to those who train. config: for their apps."""
        model: Vector = params.cpu().numpy()
        nodes = self.roster.reachable(grid)
        entry = Entry(round, reachable=len(nodes), late=self._late(grid))
        self.supply.advance(round)
        self.standing.gone(set(nodes))
        nodes = self.sleepers.awake(nodes, round, self.roster.nodes)
        self.heard = set()
        nodes = [node for node in nodes if not self._left_out(node, entry)]
        asked = self._ask(grid, nodes, entry) if self.limits.two_phase else dict.fromkeys(nodes)
        settings = ConfigRecord({**self.told, **(config or {}), "server-round": round + 1})
        out = []
        for node, said in asked.items():
            holds = said.holds if said else "" if node in self.reads else None
            records = {**self.downlink.records(model, shapes, holds), wire.CONFIG: settings}
            if said and self.codec:
                records |= self.codec.wanted(said.client)
            out.append(self._message(TRAIN, node, round, records, said))
        entry.models_sent, entry.bytes_sent = len(out), entry.bytes_sent + sum(wire.size(m.content) for m in out)
        return Opened(entry, params.device, model, shapes, asked, out, time.monotonic())

    def _left_out(self, node: int, entry: Entry) -> bool:
        """Whether a connected node is not asked in this round; the ledger says why."""
        client = self.roster.nodes.get(node)
        why = self.standing.objection(node, client, entry.round)
        if why and client is not None:
            entry.absent[client] = why
        return why is not None

    def _late(self, grid: Grid) -> dict[str, str]:
        """Which replies of the last round have come since."""
        found = {}
        for number, (node, kind) in self.unanswered.items():
            if any(not reply.failure() for reply in pull(grid, number, ENVELOPES)):
                found[str(node)] = f"{self.named(node)}: its reply to '{kind}' came after the deadline"
                log.warning("%s", found[str(node)])
        self.unanswered = {}
        return found

    def close(self, opened: Opened, replies: Mapping[int, Reply]) -> tuple[PlanStep, list[Trained]]:
        """The second half: judge what came back, by node, and write the round into the ledger."""
        entry = opened.entry
        entry.train_s = time.monotonic() - opened.began if opened.messages else 0.0
        entry.bytes_received += sum(reply.size for reply in replies.values())
        judged = {node: self._judge(node, opened, replies.get(node)) for node in opened.asked}
        updates = self._bounded(opened, {node: update for node, update in judged.items() if update})
        for update in updates:
            entry.done.append(update.client)
            self.supply.charge(update.client)
            self.standing.right(update.client)
        for client in range(len(self.fleet)):
            if client not in self.heard and not self.sleepers.asleep(client, entry.round):
                entry.absent.setdefault(client, self._why_absent(client))
                self.ledger.due[client] += bool(self.supply.due[client])
            elif client not in entry.planned and self.simulated[client] and self.supply.due[client]:
                entry.absent[client] = "it says no in a round in which it is due by the experiment's fleet"
                self.ledger.due[client] += 1
        entry.asking_j = float(self.asking_j.sum())
        entry.odd = odd_asking(self.asking_j) | odd_losses([u.client for u in updates], [u.loss for u in updates])
        for fate, clients in (("refused", entry.refused), ("lost", entry.lost), ("odd", entry.odd)):
            for client, why in clients.items():
                log.warning("round %d: what client %d sent is %s: %s", entry.round, client, fate, why)
        entry.joined = self.joining.hear(self.heard)
        self.ledger.add(entry)
        updates.sort(key=lambda update: update.client)
        ids = np.array([u.client for u in updates], np.int64)
        scales = np.array([u.scale for u in updates], np.float64) * self.joining.factor
        step = PlanStep(entry.round, ids, scales, total_books(self.energy))
        if not updates:
            return step, []
        deltas = torch.from_numpy(np.stack([u.delta for u in updates])).to(opened.device)
        made = Compressed if self.codec else PlainTrained
        return step, [made(ids, deltas, torch.tensor([u.loss for u in updates], device=opened.device))]

    def _bounded(self, opened: Opened, updates: Mapping[int, Update]) -> list[Update]:
        """The updates that are not far too long, judged together; those that are a little too long are shortened."""
        found = list(updates.values())
        lengths = np.array([wire.norm(u.delta) for u in found])
        clients, scales = np.array([u.client for u in found], np.int64), np.array([u.scale for u in found])
        kept = []
        judged = self.norms.check(clients, lengths, scales, wire.norm(opened.model))
        for node, update, length, fate in zip(updates, found, lengths.tolist(), judged, strict=True):
            if isinstance(fate, str):
                self._refuse(node, update.client, opened.entry, fate)
                continue
            if fate < 1.0:
                opened.entry.shortened[update.client] = fate
                log.warning(
                    "round %d: the update of client %d is shortened: its length is %.3g, above %g times the usual one",
                    opened.entry.round, update.client, length, self.limits.norm_factor,
                )  # fmt: skip
                update = update._replace(delta=update.delta * np.float32(fate))
            kept.append(update)
        return kept

    def _refuse(self, node: int, client: int, entry: Entry, why: str) -> None:
        """An update that does not count, and what that means for its sender."""
        sentence = self.standing.wrong(node, client, entry.round)
        entry.refused[client] = f"{why}; {sentence}" if sentence else why

    def _why_absent(self, client: int) -> str:
        connected = any(owner == client for owner in self.roster.nodes.values())
        return "connected, but it gave no answer that counts" if connected else "not connected"

    def _ask(self, grid: Grid, nodes: list[int], entry: Entry) -> dict[int, Answer | None]:
        """Who wishes to train, and may: their nodes, with what they said."""
        began = time.monotonic()
        out = [self._message(QUERY, node, entry.round, {}) for node in nodes]
        entry.bytes_sent += sum(wire.size(message.content) for message in out)
        replies = self.exchange(grid, out, QUERY)
        self.has_asked = True
        entry.query_s = time.monotonic() - began
        entry.bytes_received += sum(reply.size for reply in replies.values())
        wishes: dict[int, tuple[int, Answer]] = {}
        for node in nodes:
            reply = replies.get(node)
            if reply is None or reply.failure():
                self._note_silence(node, reply, entry)
                continue
            answer = self._hear(node, reply, entry)
            if answer and answer.join:
                wishes[answer.client] = (node, answer)
        if not self.policy.coordinated:
            return dict(wishes.values())
        wished: Bools = np.isin(np.arange(len(self.fleet)), list(wishes))
        let = [client for client in np.flatnonzero(self.policy.grant(wished)).tolist() if client in wishes]
        for client in let:
            self.granted[client].add(entry.round)
        return dict(wishes[client] for client in let)

    def _note_silence(self, node: int, reply: Reply | None, entry: Entry) -> None:
        entry.silent += 1
        why = reply.failure() if reply else None
        if why:
            entry.failed[str(node)] = f"{self.named(node)}: {why}"
            log.warning("round %d: no answer of %s: %s", entry.round, self.named(node), why)
        if (client := self.roster.nodes.get(node)) is not None:
            entry.absent[client] = why or "no answer in time"

    def _hear(self, node: int, reply: Reply, entry: Entry, said: Answer | None = None) -> Answer | None:
        """A node's answer, if it is valid; otherwise the node is turned away, and the ledger says why.

        said: what it answered when it was asked, if this comes with its update.
        """
        strike = True
        try:
            if reply.message is None:
                raise RefusedError(reply.bad or "its reply is empty")
            answer = Answer.of(reply.message.content)
            wire.check_answer(answer, entry.round, len(self.fleet))
            if said and answer.client != said.client:
                raise RefusedError(f"it answers for client {answer.client}, and was asked as client {said.client}")
            if why := self.roster.objection(node, answer.client):
                strike = self.roster.keys is not None  # without keys, a node that was restarted meets its old self
                raise RefusedError(f"it answers for client {answer.client}, but {why}")
            if why := self.standing.barred_until(answer.client, entry.round):
                strike = False
                raise RefusedError(why)
            self.supply.check_books(answer.client, entry.round, answer.energy)
            if answer.join:
                self.supply.check_join(answer.client, answer.scale)
        except ValueError as error:
            known = self.roster.nodes.get(node)
            sentence = self.standing.wrong(node, known, entry.round) if strike else None
            why = f"{error}; {sentence}" if sentence else str(error)
            entry.turned_away[str(node)] = f"{self.named(node)}: {why}"
            log.warning("round %d: the answer of %s is ignored: %s", entry.round, self.named(node), why)
            return None
        self.energy[answer.client] = answer.energy
        self.asking_j[answer.client] = answer.asking_j
        latest = self.supply.asleep_until(answer.client, answer.round, answer.simulated)
        self.sleepers.hear(node, answer, latest)
        self.simulated[answer.client] = answer.simulated
        self.heard.add(answer.client)
        if answer.holds is not None:
            self.reads.add(node)
        self.ledger.hear(answer.client, self.supply.possible(answer.client, answer.planned))
        return answer

    def named(self, node: int) -> str:
        client = self.roster.nodes.get(node)
        return f"node {node}" if client is None else f"client {client}"

    def _judge(self, node: int, opened: Opened, reply: Reply | None) -> Update | None:
        """The update in one node's reply, if it passes; the ledger says what became of it."""
        entry, said = opened.entry, opened.asked[node]
        if said:
            entry.planned.append(said.client)
            entry.scales.append(said.scale)
        why = "no reply in time" if reply is None else reply.failure()
        if reply is None or why:
            if said:
                entry.lost[said.client] = why or ""
            else:
                self._note_silence(node, reply, entry)
            return None
        answer = self._hear(node, reply, entry, said)
        if said is None:  # the first word of this node in the round
            if answer is None or not answer.join:
                return None
            entry.planned.append(answer.client)
            entry.scales.append(answer.scale)
        elif answer is None:
            entry.refused[said.client] = entry.turned_away.pop(str(node))
            return None
        elif (answer.client, answer.scale) != (said.client, said.scale):
            why = "its answer with the update is not the one it gave when it was asked"
            self._refuse(node, said.client, entry, why)
            return None
        elif not answer.join:
            entry.lost[said.client] = "it no longer had the energy when it was told to train"
            return None
        assert reply.message is not None
        try:
            return Update(answer.client, answer.scale, *self._read(reply.message.content, answer, opened))
        except RefusedError as error:
            self._refuse(node, answer.client, entry, str(error))
            return None

    def _read(self, content: RecordDict, answer: Answer, opened: Opened) -> tuple[Vector, float]:
        """(the update in a reply, its loss), compressed as the experiment says, by the device or here."""
        codec, work = self.codec, (answer.client, answer.round)
        if codec is None and UPDATE in content:
            raise RefusedError("its update is compressed, and the experiment's are not")
        decode = (lambda found: codec.decode(found, *work, opened.model.size)) if codec else lambda found: None
        delta, loss, compressed = wire.read_update(content, opened.shapes, opened.model, self.limits.max_norm, decode)
        return delta if compressed or codec is None else codec.compress(delta, *work), loss

    def _message(
        self, kind: str, node: int, round: int, records: Mapping[str, Any], said: Answer | None = None
    ) -> Message:
        client = said.client if said else self.roster.nodes.get(node)
        told = range(len(self.fleet)) if client is None else [client]
        granted = {c: frozenset(self.granted[c]) for c in told} if self.policy.coordinated else {}
        ask = Ask(round, self.back_to, granted, self.run).to_record()
        record = ConfigRecord({**ask, **self.sleepers.entries()})
        content = RecordDict({wire.RECORD: record, **records})
        ttl = self.deadline(node, kind) * _GRACE
        return Message(content, node, self.asks_as if kind == QUERY else kind, ttl=ttl, group_id=str(round))

    def deadline(self, node: int, kind: str) -> float:
        """Seconds that a node is given. The first question may take as long as the fleet has to connect."""
        if kind in (TRAIN, wire.EVALUATE):
            return self.standing.deadline(node, kind, self.limits.train_s)
        if not self.has_asked:
            return max(self.limits.query_s, self.limits.wait_s)
        return self.standing.deadline(node, kind, self.limits.query_s)

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on, and the books of clients that may never come back."""
        return round_state.saved(self)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        round_state.restore(self, state)
