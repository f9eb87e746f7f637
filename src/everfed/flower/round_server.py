"""One round over the network: ask everybody, train those who join and may, check what comes back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
from everfed.errors import InputError, unknown
from everfed.flower import wire
from everfed.flower.identity import Roster
from everfed.flower.ledger import Entry, Ledger
from everfed.flower.mailbox import send_and_collect
from everfed.flower.sleep import Sleepers
from everfed.flower.wire import QUERY, TRAIN, Answer, Ask, RefusedError, Shapes, Update, Vector
from everfed.learning.task import PlainTrained, Trained
from everfed.scheduling.plan import PlanStep
from everfed.scheduling.policies import Clients, Energy, Policy

log = logging.getLogger("flwr.everfed")  # Flower shows what its own loggers say


@dataclass(frozen=True)
class RoundLimits:
    """What a server holds its clients to: deadlines in seconds, and bounds.

    query_s, train_s: how long a round waits for answers, and for trained models. wait_s: how long the
    first round waits for the whole fleet to be connected, and at least for its answers: what a node does once,
    such as working its rounds out, it does when it is first asked. round_s: a round begins at most this often
    (0: as soon as the one before it is over); where energy is measured, the length of a round in the cycles.
    two_phase: ask first, and send the model only to those who said yes; False sends it to everybody.
    max_norm: the longest update that is taken (0: any finite one). scale_slack: how many times the scale
    that follows from its cycle a client may claim.
    """

    query_s: float = 30.0
    train_s: float = 120.0
    wait_s: float = 60.0
    round_s: float = 0.0
    two_phase: bool = True
    max_norm: float = 0.0
    scale_slack: float = 1.0

    def __post_init__(self) -> None:
        for name in ("query_s", "train_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; a deadline is a positive number of seconds.")
        for name in ("wait_s", "round_s", "max_norm"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number of at least 0.")
        if not 1.0 <= self.scale_slack < math.inf:
            raise InputError(f"scale_slack is {self.scale_slack}; it must be at least 1.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RoundLimits:
        """From a run's configuration: `query-s = 30`, with dashes as Flower likes them."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        given = {key.replace("-", "_"): value for key, value in config.items()}
        for key in given:
            if key not in kinds:
                raise InputError(unknown("limit", key, kinds))
        return cls(**{key: kinds[key](value) for key, value in given.items()})


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
    ) -> None:
        self.fleet, self.policy, self.limits = fleet, policy, limits or RoundLimits()
        self.roster, self.ledger = roster or Roster(), Ledger(shares, folder)
        if policy.coordinated and not self.limits.two_phase:
            raise InputError(
                "with this policy the server decides who trains, so clients must be asked first; set two_phase to true."
            )
        self.most = fair_scales(fleet, policy, seed) * self.limits.scale_slack
        self.rations = spends_at_most(fleet, policy)
        self.claimed: Floats = np.zeros(len(fleet))  # the scales of each client's participations, summed
        self.granted: list[set[int]] = [set() for _ in range(len(fleet))]
        self.energy: dict[int, Books] = {}
        self.asking_j: Floats = np.zeros(len(fleet))  # as each client last said
        self.sleepers = Sleepers(len(fleet), self.limits.round_s)
        self.heard: set[int] = set()  # in this round
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
        return self.close(opened, send_and_collect(grid, opened.messages, self.limits.train_s))

    def open(
        self, grid: Grid, round: int, params: Tensor, shapes: Shapes, config: Mapping[str, Any] | None = None
    ) -> Opened:
        """The first half: ask, and write the messages to those who train. config: for their apps."""
        model: Vector = params.cpu().numpy()
        nodes = self.roster.reachable(grid)
        entry = Entry(round, reachable=len(nodes))
        nodes = self.sleepers.awake(nodes, round, self.roster.nodes)
        self.heard = set()
        asked = self._ask(grid, nodes, entry) if self.limits.two_phase else dict.fromkeys(nodes)
        settings = ConfigRecord({**(config or {}), "server-round": round + 1})
        records = {wire.ARRAYS: wire.as_record(model, shapes), wire.CONFIG: settings}
        out = [self._message(TRAIN, node, round, records, said) for node, said in asked.items()]
        entry.models_sent, entry.bytes_sent = len(out), len(out) * model.nbytes
        return Opened(entry, params.device, model, shapes, asked, out, time.monotonic())

    def close(self, opened: Opened, replies: Mapping[int, Message]) -> tuple[PlanStep, list[Trained]]:
        """The second half: judge what came back, by node, and write the round into the ledger."""
        entry = opened.entry
        entry.train_s = time.monotonic() - opened.began if opened.messages else 0.0
        judged = (self._judge(node, opened, replies.get(node)) for node in opened.asked)
        updates = [update for update in judged if update]
        for update in updates:
            entry.done.append(update.client)
            self.claimed[update.client] += update.scale
        quiet = (c for c in range(len(self.fleet)) if c not in self.heard)
        entry.absent = [c for c in quiet if not self.sleepers.asleep(c, entry.round)]
        entry.asking_j = float(self.asking_j.sum())
        for fate, clients in (("refused", entry.refused), ("lost", entry.lost)):
            for client, why in clients.items():
                log.warning("round %d: the update of client %d is %s: %s", entry.round, client, fate, why)
        self.ledger.add(entry)
        updates.sort(key=lambda update: update.client)
        ids = np.array([u.client for u in updates], np.int64)
        step = PlanStep(entry.round, ids, np.array([u.scale for u in updates], np.float64), total_books(self.energy))
        if not updates:
            return step, []
        deltas = torch.from_numpy(np.stack([u.delta for u in updates])).to(opened.device)
        return step, [PlainTrained(ids, deltas, torch.tensor([u.loss for u in updates], device=opened.device))]

    def _ask(self, grid: Grid, nodes: list[int], entry: Entry) -> dict[int, Answer | None]:
        """Who wishes to train, and may: their nodes, with what they said."""
        began = time.monotonic()
        out = [self._message(QUERY, node, entry.round, {}) for node in nodes]
        replies = send_and_collect(grid, out, self._deadline(QUERY))
        self.has_asked = True
        entry.query_s = time.monotonic() - began
        wishes: dict[int, tuple[int, Answer]] = {}
        for node in nodes:
            reply = replies.get(node)
            if reply is None or wire.failure(reply):
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
        """A node's answer, if it is valid; otherwise the node is turned away, and the ledger says why."""
        try:
            answer = Answer.of(reply.content)
            wire.check_answer(answer, entry.round, self.most)
            why = self.roster.objection(node, answer.client)
            if why:
                raise RefusedError(f"it answers for client {answer.client}, but {why}")
            if answer.join and self.rations:
                self._check_ration(answer)
        except ValueError as error:
            entry.turned_away[str(node)] = f"{self._named(node)}: {error}"
            log.warning("round %d: the answer of %s is ignored: %s", entry.round, self._named(node), error)
            return None
        self.energy[answer.client] = answer.energy
        self.asking_j[answer.client] = answer.asking_j
        self.sleepers.hear(node, answer)
        self.heard.add(answer.client)
        self.ledger.hear(answer.client, answer.planned)
        return answer

    def _named(self, node: int) -> str:
        client = self.roster.nodes.get(node)
        return f"node {node}" if client is None else f"client {client}"

    def _check_ration(self, answer: Answer) -> None:
        """A client's scales add up to the rounds since its energy began, and to one cycle more at most."""
        cycle = float(self.fleet.cycles()[answer.client])
        passed = answer.round - float(self.fleet.offsets()[answer.client])
        total = self.claimed[answer.client] + answer.scale
        if total > (passed + cycle) * self.limits.scale_slack + 1e-6:
            raise RefusedError(f"its scales would add up to {total:g} rounds after {passed + 1:g} rounds")

    def _judge(self, node: int, opened: Opened, reply: Message | None) -> Update | None:
        """The update in one node's reply, if it passes; the ledger says what became of it."""
        entry, said = opened.entry, opened.asked[node]
        if said:
            entry.planned.append(said.client)
            entry.scales.append(said.scale)
        why = "no reply in time" if reply is None else wire.failure(reply)
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
            changed = "its answer with the update is not the one it gave when it was asked"
            entry.refused[said.client] = entry.turned_away.pop(str(node), changed)
            return None
        elif not answer.join:
            entry.lost[said.client] = "it no longer had the energy when it was told to train"
            return None
        try:
            read = wire.read_update(reply.content, opened.shapes, opened.model, self.limits.max_norm)
            return Update(answer.client, answer.scale, *read)
        except RefusedError as error:
            entry.refused[answer.client] = str(error)
            return None

    def _message(
        self, kind: str, node: int, round: int, records: Mapping[str, Any], said: Answer | None = None
    ) -> Message:
        client = said.client if said else self.roster.nodes.get(node)
        told = range(len(self.fleet)) if client is None else [client]
        granted = {c: frozenset(self.granted[c]) for c in told} if self.policy.coordinated else {}
        record = ConfigRecord({**Ask(round, self.back_to, granted).to_record(), **self.sleepers.entries()})
        content = RecordDict({wire.RECORD: record, **records})
        return Message(content, node, kind, ttl=self._deadline(kind), group_id=str(round))

    def _deadline(self, kind: str) -> float:
        """Seconds that replies may take. The first question may take as long as the fleet has to connect."""
        if kind == TRAIN:
            return self.limits.train_s
        return self.limits.query_s if self.has_asked else max(self.limits.query_s, self.limits.wait_s)

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on. The clients' energy comes again with their next answers."""
        granted = [(client, round) for client, rounds in enumerate(self.granted) for round in sorted(rounds)]
        return {
            "protocol.spoken": torch.tensor(self.claimed),
            "protocol.own": torch.tensor(self.ledger.own),
            "protocol.granted": torch.tensor(granted, dtype=torch.int64).reshape(-1, 2).T.contiguous(),
            "protocol.asleep": torch.tensor(self.sleepers.until),
            "protocol.next_at": torch.tensor(self.sleepers.next_at, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.claimed = state["protocol.spoken"].cpu().numpy().copy()
        self.ledger.own = state["protocol.own"].cpu().numpy().copy()
        self.granted = [set() for _ in range(len(self.fleet))]
        for client, round in state["protocol.granted"].T.tolist():
            self.granted[client].add(round)
        if "protocol.asleep" in state:  # which earlier versions did not save
            self.sleepers.load(state["protocol.asleep"].cpu().numpy(), float(state["protocol.next_at"]))


def total_books(reports: Mapping[int, Books]) -> Books:
    """The fleet's energy: the sum of what each client last said of its own."""
    total: dict[str, Any] = {}
    for client in sorted(reports):
        for name, value in reports[client].to_dict().items():
            total[name] = total.get(name, 0) + value
    return Books(**total)


def fair_scales(fleet: Fleet, policy: Policy, seed: int) -> Floats:
    """The largest scale that follows from each client's cycle, [N]."""
    state = policy.init(Clients.of(fleet, seed))
    known = np.broadcast_to(np.asarray(state.get("scale", 1.0), np.float64), len(fleet))
    most = np.maximum(known, fleet.cycles())
    cutoff = getattr(policy, "cutoff", None)  # of weights that a client learns
    return most if cutoff is None else np.maximum(most, float(cutoff))


def spends_at_most(fleet: Fleet, policy: Policy) -> bool:
    """Whether no client can take part more often than once a cycle: energy comes at fixed times and is obeyed."""
    empty = not np.any(np.asarray(fleet.storage.start))
    return bool(fleet.arrivals.regular and policy.energy is Energy.OBEYED and empty)
