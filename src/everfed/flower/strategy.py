"""A Strategy for Flower apps of one's own: un-normalised scaled sums, in the rounds that clients choose.

Flower's own averaging divides by the weights of whoever answered, which is the very bias that scheduling
by energy has to avoid. Here the server rules and optimisers of everfed decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from everfed.arrays import Floats
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.identity import Roster
from everfed.flower.limits import RoundLimits
from everfed.flower.messages import Vector, as_record
from everfed.flower.protocol import Collected, Opened, RoundServer, Shapes
from everfed.flower.remote import as_results, refuse_what_is_not_sent
from everfed.flower.transport import send_and_collect
from everfed.scheduling.policies import Policy
from everfed.server.aggregate import Setting
from everfed.server.optimizers import ServerOptimizer, ServerSGD
from everfed.server.rules import ServerRule, Sum
from everfed.server.step import Server
from everfed.store.checkpoint import Checkpoint, load_checkpoints, save_checkpoint


class EnergyStrategy(Strategy):
    """Rounds of a fleet whose clients decide for themselves, with `EnergyMod`, when to take part.

    fleet: what the server knows of the clients' energy; policy: the clients' own. shares: the part of all
    data that each client holds, in the order of the clients' numbers. server, server_optimizer: how
    updates are weighed, and what is done with their sum. folder: where the state is saved after every
    round; a strategy that is started again with the same folder goes on there.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        shares: Floats,
        *,
        server: ServerRule | None = None,
        server_optimizer: ServerOptimizer | None = None,
        seed: int = 0,
        terms: RoundLimits | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
    ) -> None:
        weights = np.asarray(shares, np.float64)
        if weights.shape != (len(fleet),) or not np.isclose(weights.sum(), 1.0):
            raise InputError(f"shares must be one number for each of {len(fleet)} clients, 1 in all.")
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        self.protocol = RoundServer(fleet, policy, weights, seed, terms=terms, roster=roster, folder=folder)
        self.shares, self.folder = weights, folder
        self.rule, self.optimizer = server or Sum(), server_optimizer or ServerSGD()
        self.opened: Opened | None = None
        self.shapes: Shapes = {}

    @property
    def flat(self) -> Vector:
        """The model now, as one vector."""
        params: Vector = self.server.params.numpy()
        return params

    def begin(self, arrays: ArrayRecord, rounds: int = 1) -> None:
        """Take a model as the start."""
        self.shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        start = torch.from_numpy(self._flatten(arrays))
        setting = Setting(self.shares, len(start), start.device, None, 1, rounds, start)
        self.server = Server(self.rule, self.optimizer, setting, on_divergence="skip")
        refuse_what_is_not_sent(self.server)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask everybody, and write to those who said yes. Flower counts rounds from 1."""
        if not self.shapes:
            self.begin(arrays)
        self.server.params = torch.from_numpy(self._flatten(arrays))
        self.opened = self.protocol.open(grid, server_round - 1, self.flat, self.shapes, dict(config))
        return self.opened.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self.opened is not None
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.opened.messages}
        by_node = {nodes[m.metadata.reply_to_message_id]: m for m in replies}
        collected = self.protocol.close(self.opened, by_node)
        weight = self._apply(server_round - 1, collected)
        entry = self.protocol.ledger.entries[-1]
        counts = {name: len(getattr(entry, name)) for name in ("planned", "done", "lost", "refused")}
        return as_record(self.flat, self.shapes), MetricRecord({**counts, "round-weight": weight})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody: an evaluation on devices costs them energy too. Give `start` an evaluate_fn."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        for name, value in self.protocol.ledger.summary().items():
            log(INFO, "\t%s: %s", name, value)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """All rounds. timeout: not used; the deadlines are those of the terms. The summary comes last."""
        self.begin(initial_arrays, num_rounds)
        first, result = self._restore(), Result()
        self.protocol.ledger.rewind(first)
        self.protocol.wait(grid)
        for number in range(first, num_rounds):
            began = time.monotonic()
            self.protocol.back_to = number
            arrays = as_record(self.flat, self.shapes)
            messages = list(self.configure_train(number + 1, arrays, train_config or ConfigRecord(), grid))
            replies = send_and_collect(grid, messages, self.protocol.terms.train_s)
            made, metrics = self.aggregate_train(number + 1, replies.values())
            assert made is not None
            assert metrics is not None
            result.train_metrics_clientapp[number + 1] = metrics
            found = evaluate_fn(number + 1, made) if evaluate_fn else None
            if found is not None:
                result.evaluate_metrics_serverapp[number + 1] = found
            log(INFO, "round %d: %s %s", number + 1, dict(metrics), dict(found or {}))
            self._save(number + 1)
            if number + 1 < num_rounds:
                time.sleep(max(0.0, self.protocol.terms.round_s - (time.monotonic() - began)))
        result.arrays = as_record(self.flat, self.shapes)
        self.summary()
        return result

    def _apply(self, round: int, collected: Collected) -> float:
        """Move the model by a round's updates; returns their weight."""
        updates = collected.updates
        clients, scales = np.array([u.client for u in updates], np.int64), np.array([u.scale for u in updates])
        self.server.open(round, clients, scales)
        for results in as_results(updates, torch.device("cpu")):
            self.server.add(results)
        return self.server.step(self.server.aggregate()).weight

    def _flatten(self, arrays: ArrayRecord) -> Vector:
        parts = [arrays[name].numpy() for name in self.shapes]
        odd = [name for name, part in zip(self.shapes, parts, strict=True) if part.dtype != np.float32]
        if odd:
            raise InputError(f"the array '{odd[0]}' is not float32; send trainable parameters only.")
        return np.concatenate([part.reshape(-1) for part in parts])

    def _save(self, round: int) -> None:
        if not self.folder:
            return
        kept: dict[str, Any] = {name: torch.as_tensor(v) for name, v in self.protocol.state_dict().items()}
        save_checkpoint(
            self.folder, round, {"flat": self.server.params.clone(), **kept, **self.server.state_dict()}, {}
        )

    def _restore(self) -> int:
        """The round to go on with: 0, or the one after the newest good checkpoint."""
        for found in load_checkpoints(self.folder) if self.folder else ():
            if isinstance(found, Checkpoint) and len(found.tensors["flat"]) == len(self.flat):
                state = found.tensors
                self.server.params = state["flat"]
                self.protocol.load_state_dict({n: v.numpy() for n, v in state.items() if n.startswith("protocol.")})
                self.server.load_state_dict(state)
                return found.round
        return 0
