"""One round over the network: ask everybody, let those who may, train them, judge what comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from everfed.arrays import Bools, Floats
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.checks import RefusedError, Update, check_answer, read_update
from everfed.flower.identity import Roster
from everfed.flower.ledger import Entry, Ledger
from everfed.flower.limits import RoundLimits, fair_scales, spends_at_most
from everfed.flower.messages import ARRAYS, CONFIG, QUERY, RECORD, TRAIN, Answer, Ask, Vector, as_record, message
from everfed.flower.transport import failure, send_and_collect
from everfed.scheduling.policies import Policy

log = logging.getLogger("flwr.everfed")  # Flower shows what its own loggers say

Shapes = Mapping[str, tuple[int, ...]]


class Collected(NamedTuple):
    """A round's updates that count, by client, and the fleet's energy as far as it is known."""

    updates: list[Update]
    energy: Books


@dataclass
class Opened:
    """A round between its two halves: the model is on its way to those who train."""

    entry: Entry
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
        terms: RoundLimits | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
    ) -> None:
        self.fleet, self.policy, self.terms = fleet, policy, terms or RoundLimits()
        self.roster, self.ledger = roster or Roster(), Ledger(shares, folder)
        if policy.coordinated and not self.terms.two_phase:
            raise InputError("this policy waits for the server's leave, so its clients must be asked first: two_phase.")
        self.most = fair_scales(fleet, policy, seed) * self.terms.scale_slack
        self.rations = spends_at_most(fleet, policy)
        self.spoken: Floats = np.zeros(len(fleet))  # the scales of each client's participations, summed
        self.granted: list[set[int]] = [set() for _ in range(len(fleet))]
        self.energy: dict[int, Books] = {}
        self.heard: set[int] = set()  # in this round
        self.back_to = 0
        self.begun = False

    def wait(self, grid: Grid) -> None:
        """Until the whole fleet is there, or its time is up."""
        until = time.monotonic() + self.terms.wait_s
        while (there := len(self.roster.reachable(grid))) < len(self.fleet) and time.monotonic() < until:
            time.sleep(0.5)
        log.info("%d of %d clients are there", there, len(self.fleet))

    def round(self, grid: Grid, round: int, model: Vector, shapes: Shapes) -> Collected:
        """One round; model: the flat parameters to train from, float32."""
        opened = self.open(grid, round, model, shapes)
        return self.close(opened, send_and_collect(grid, opened.messages, self.terms.train_s))

    def open(
        self, grid: Grid, round: int, model: Vector, shapes: Shapes, config: Mapping[str, Any] | None = None
    ) -> Opened:
        """The first half: ask, and write the messages to those who train. config: for their apps."""
        entry = Entry(round)
        self.heard = set()
        nodes = self.roster.reachable(grid)
        entry.reachable = len(nodes)
        asked = self._ask(grid, nodes, entry) if self.terms.two_phase else dict.fromkeys(nodes)
        records = {
            ARRAYS: as_record(model, shapes),
            CONFIG: ConfigRecord({**(config or {}), "server-round": round + 1}),
        }
        out = [self._message(TRAIN, node, round, records, said) for node, said in asked.items()]
        entry.models_sent, entry.bytes_sent = len(out), len(out) * model.nbytes
        return Opened(entry, model, shapes, asked, out, time.monotonic())

    def close(self, opened: Opened, replies: Mapping[int, Message]) -> Collected:
        """The second half: judge what came back, by node, and write the round into the books."""
        entry, updates = opened.entry, []
        entry.train_s = time.monotonic() - opened.began if opened.messages else 0.0
        for node in opened.asked:
            update = self._judge(node, opened, replies.get(node))
            if update:
                updates.append(update)
                entry.done.append(update.client)
                self.spoken[update.client] += update.scale
        entry.absent = [c for c in range(len(self.fleet)) if c not in self.heard]
        for client, why in entry.refused.items():
            log.warning("round %d: the update of client %d is refused: %s", entry.round, client, why)
        for client, why in entry.lost.items():
            log.warning("round %d: the update of client %d is lost: %s", entry.round, client, why)
        self.ledger.add(entry)
        return Collected(sorted(updates, key=lambda u: u.client), self._books())

    def _ask(self, grid: Grid, nodes: list[int], entry: Entry) -> dict[int, Answer | None]:
        """Who wishes to train, and may: their nodes, with what they said."""
        began = time.monotonic()
        out = [self._message(QUERY, node, entry.round, {}) for node in nodes]
        replies = send_and_collect(grid, out, self._patience(QUERY))
        self.begun = True
        entry.query_s = time.monotonic() - began
        wishes: dict[int, tuple[int, Answer]] = {}
        for node in nodes:
            reply = replies.get(node)
            if reply is None or failure(reply):
                entry.silent += 1
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

    def _hear(self, node: int, reply: Message, entry: Entry) -> Answer | None:
        """A node's answer, if it counts; otherwise the node is turned away, and the books say why."""
        try:
            answer = Answer.of(reply.content)
            check_answer(answer, entry.round, self.most)
            why = self.roster.objection(node, answer.client)
            if why:
                raise RefusedError(f"it speaks for client {answer.client}, but {why}")
            if answer.join and self.rations:
                self._check_ration(answer)
        except ValueError as error:
            entry.turned_away[str(node)] = f"{self._named(node)}: {error}"
            log.warning("round %d: %s does not count: %s", entry.round, self._named(node), error)
            return None
        self.energy[answer.client] = answer.energy
        self.heard.add(answer.client)
        self.ledger.hear(answer.client, answer.planned)
        return answer

    def _named(self, node: int) -> str:
        client = self.roster.nodes.get(node)
        return f"node {node}" if client is None else f"client {client}"

    def _check_ration(self, answer: Answer) -> None:
        """Nobody speaks for more rounds than have passed since its energy began, but for one cycle ahead."""
        cycle = float(self.fleet.cycles()[answer.client])
        passed = answer.round - float(self.fleet.offsets()[answer.client])
        total = self.spoken[answer.client] + answer.scale
        if total > (passed + cycle) * self.terms.scale_slack + 1e-6:
            raise RefusedError(f"it would have spoken for {total:g} rounds of {passed + 1:g}")

    def _judge(self, node: int, opened: Opened, reply: Message | None) -> Update | None:
        """What one node's reply comes to, and the books on it."""
        entry, said = opened.entry, opened.asked[node]
        if said:
            entry.planned.append(said.client)
            entry.scales.append(said.scale)
        why = "no reply in time" if reply is None else failure(reply)
        if reply is None or why:
            if said:
                entry.lost[said.client] = why or ""
            else:
                entry.silent += 1
            return None
        answer = self._hear(node, reply, entry)
        if said is None:  # the first word of this node in the round
            if answer is None or not answer.join:
                return None
            entry.planned.append(answer.client)
            entry.scales.append(answer.scale)
        elif answer is None or (answer.client, answer.scale) != (said.client, said.scale):
            told = entry.turned_away.pop(str(node), "it changed its mind between question and training")
            entry.refused[said.client] = told
            return None
        elif not answer.join:
            entry.lost[said.client] = "its energy had gone when it was to train"
            return None
        try:
            return read_update(reply.content, answer, opened.shapes, opened.model, self.terms.max_norm)
        except RefusedError as error:
            entry.refused[answer.client] = str(error)
            return None

    def _message(
        self, kind: str, node: int, round: int, records: Mapping[str, Any], said: Answer | None = None
    ) -> Message:
        client = said.client if said else self.roster.nodes.get(node)
        told = range(len(self.fleet)) if client is None else [client]
        granted = {c: frozenset(self.granted[c]) for c in told} if self.policy.coordinated else {}
        ask = Ask(round, self.back_to, granted)
        return message(kind, node, round, {RECORD: ask.to_record(), **records}, ttl=self._patience(kind))

    def _patience(self, kind: str) -> float:
        """How long replies may take. The first question of a server may take as long as the fleet to gather."""
        if kind == TRAIN:
            return self.terms.train_s
        return self.terms.query_s if self.begun else max(self.terms.query_s, self.terms.wait_s)

    def _books(self) -> Books:
        """The fleet's energy: the sum of what each client last said of its own."""
        total: dict[str, Any] = {}
        for client in sorted(self.energy):
            for name, value in self.energy[client].to_dict().items():
                total[name] = total.get(name, 0) + value
        return Books(**total)

    def state_dict(self) -> dict[str, Any]:
        """What later rounds depend on. The books of energy come again with the next answers."""
        clients = [c for c, rounds in enumerate(self.granted) for _ in rounds]
        rounds = [r for own in self.granted for r in sorted(own)]
        return {
            "protocol.spoken": self.spoken.copy(),
            "protocol.own": self.ledger.own.copy(),
            "protocol.granted": np.array([clients, rounds], np.int64).reshape(2, -1),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.spoken = np.array(state["protocol.spoken"])
        self.ledger.own = np.array(state["protocol.own"])
        self.granted = [set() for _ in range(len(self.fleet))]
        for client, round in np.array(state["protocol.granted"]).T.tolist():
            self.granted[client].add(round)
