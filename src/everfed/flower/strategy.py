"""A Strategy for Flower apps of one's own: un-normalised scaled sums, in the rounds that clients choose.

Flower's own averaging divides by the weights of whoever answered, which is the very bias that scheduling
by energy has to avoid. Here the server rules and optimisers of everfed decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from everfed.arrays import Floats
from everfed.checks import check_count, checked
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.codec import Codec
from everfed.flower.downlink import Downlink
from everfed.flower.evaluation import mean_metrics, read_metrics
from everfed.flower.identity import Roster
from everfed.flower.joining import check_rule
from everfed.flower.limits import RoundLimits
from everfed.flower.pulling import Reply
from everfed.flower.round_server import Opened, RoundServer
from everfed.flower.server import refuse_what_is_not_sent
from everfed.flower.wire import ARRAYS, CONFIG, EVALUATE, TRAIN, Shapes, as_record, size
from everfed.learning.compress import Compressor
from everfed.learning.downlink import DOWNLINKS, as_sent
from everfed.scheduling.policies import Policy
from everfed.server.aggregate import Setting
from everfed.server.optimizers import ServerOptimizer, ServerSGD
from everfed.server.robust import Defence
from everfed.server.rules import ServerRule, Sum
from everfed.server.step import Server
from everfed.store.checkpoint import Checkpoint, load_checkpoints, save_checkpoint


class EnergyStrategy(Strategy):
    """Rounds of a fleet whose clients decide for themselves, with `EnergyMod`, when to take part.

    fleet: what the server knows of the clients' energy; policy: the clients' own. shares: the part of all data that
    each client holds, in the order of the clients' numbers. server, server_optimizer: how updates are weighed, and what
    is done with their sum. robust: a defence in the sum's place. folder: where the state is saved after every round; a
    strategy that is started again with the same folder goes on there. late_joiners: clients have no share until they
    are first heard. evaluate_every: rounds between evaluations on all connected clients, by their apps'
    `@app.evaluate`; 0: none, since they cost energy that is not in the books (bytes are). compression: of updates,
    which `EnergyMod` does on the devices. downlink: "bf16" rounds the model that clients train from, and halves its
    bytes. differences: clients that hold an earlier model are sent what has changed.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        shares: Floats | Sequence[float],
        *,
        server: ServerRule | None = None,
        server_optimizer: ServerOptimizer | None = None,
        robust: Defence | None = None,
        seed: int = 0,
        limits: RoundLimits | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
        late_joiners: bool = False,
        evaluate_every: int = 0,
        compression: Compressor | None = None,
        downlink: str = "full",
        differences: bool = False,
    ) -> None:
        weights = np.asarray(shares, np.float64)
        if weights.shape != (len(fleet),) or not np.isclose(weights.sum(), 1.0):
            raise InputError(f"shares must be one number for each of {len(fleet)} clients, and add up to 1.")
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        check_count("evaluate_every", evaluate_every, least=0)
        self.evaluate_every = evaluate_every
        self.downlink: str = checked("downlink", downlink, Annotated[str, tuple(DOWNLINKS)])
        self.round_server = RoundServer(
            fleet, policy, weights, seed,
            limits=limits, roster=roster, folder=folder, asks_as=TRAIN, late_joiners=late_joiners,
            codec=Codec(compression, fleet.message_bits, seed) if compression else None,
            downlink=Downlink(downlink, differences),
        )  # fmt: skip
        self.shares, self.folder, self.robust = weights, folder, robust
        self.rule, self.optimizer = server or Sum(), server_optimizer or ServerSGD()
        if late_joiners:
            check_rule(self.rule)
        self.opened: Opened | None = None
        self.shapes: Shapes = {}
        self.evaluating: list[Message] = []

    def begin(self, arrays: ArrayRecord, rounds: int = 1) -> None:
        """Take a model as the start."""
        self.shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        start = self._flatten(arrays)
        setting = Setting(self.shares, len(start), start.device, None, 1, rounds, start)
        self.server = Server(self.rule, self.optimizer, setting, on_divergence="skip", robust=self.robust)
        refuse_what_is_not_sent(self.server)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask everybody, and write to those who said yes. Flower counts rounds from 1."""
        if not self.shapes:
            self.begin(arrays)
        self.server.params = self._flatten(arrays)
        model = as_sent(self.server.params, self.downlink)
        self.opened = self.round_server.open(grid, server_round - 1, model, self.shapes, dict(config))
        return self.opened.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self.opened is not None
        return self._aggregate(_by_node(self.opened.messages, replies))

    def _aggregate(self, by_node: Mapping[int, Reply]) -> tuple[ArrayRecord, MetricRecord]:
        assert self.opened is not None
        step, results = self.round_server.close(self.opened, by_node)
        self.server.open(step.round, step.clients, step.scales)
        for trained in results:
            self.server.add(trained)
        weight = self.server.step(self.server.aggregate()).weight
        entry = self.round_server.ledger.entries[-1]
        counts = {name: len(getattr(entry, name)) for name in ("planned", "done", "lost", "refused")}
        return self._arrays(), MetricRecord({**counts, "round-weight": weight})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Everybody who is connected and not left out, every `evaluate_every` rounds.

        To evaluate here, give `start` an evaluate_fn.
        """
        self.evaluating = []
        if not self.evaluate_every or server_round % self.evaluate_every:
            return []
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config, "server-round": server_round})})
        server, number = self.round_server, server_round - 1
        nodes = server.roster.reachable(grid)
        free = [node for node in nodes if not server.standing.objection(node, server.roster.nodes.get(node), number)]
        self.evaluating = [
            Message(content, node, EVALUATE, ttl=server.deadline(node, EVALUATE), group_id=str(number)) for node in free
        ]
        return self.evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self._evaluated(server_round, _by_node(self.evaluating, replies))

    def _evaluated(self, server_round: int, replies: Mapping[int, Reply]) -> MetricRecord | None:
        """The fleet's metrics. Whoever says what makes no sense is left out by name, as with updates."""
        server = self.round_server
        self._book(replies)
        said, wrong = read_metrics(replies, server.roster.nodes)
        for node, why in wrong.items():
            client = server.roster.nodes.get(node)
            to_blame = client is not None and not replies[node].failure()
            sentence = server.standing.wrong(node, client, server_round - 1) if to_blame else None
            named = f"{why}; {sentence}" if sentence else why
            log(WARNING, "the evaluation of %s is left out: %s", server.named(node), named)
        return mean_metrics(said, self.shares)

    def _book(self, replies: Mapping[int, Reply]) -> None:
        """The bytes of an evaluation, in the round that it followed."""
        ledger = self.round_server.ledger
        if self.evaluating and ledger.entries:
            entry = ledger.entries[-1]
            entry.models_sent += len(self.evaluating)
            entry.bytes_sent += sum(size(message.content) for message in self.evaluating)
            entry.bytes_received += sum(reply.size for reply in replies.values())
            ledger.amend()

    def summary(self) -> None:
        for name, value in self.round_server.ledger.summary().items():
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
        """All rounds, then the summary. timeout is Flower's and not used: `RoundLimits` has the deadlines."""
        self.begin(initial_arrays, num_rounds)
        self.round_server.not_before = None
        first, result = self._restore(), Result()
        for number in range(first, num_rounds):
            self.round_server.await_round(grid, number)
            config = train_config or ConfigRecord()
            messages = list(self.configure_train(number + 1, self._arrays(), config, grid))
            replies = self.round_server.exchange(grid, messages, TRAIN, self.server.params.nbytes)
            made, metrics = self._aggregate(replies)
            result.train_metrics_clientapp[number + 1] = metrics
            asked = list(self.configure_evaluate(number + 1, made, evaluate_config or ConfigRecord(), grid))
            heard = self.round_server.exchange(grid, asked, EVALUATE)
            if (seen := self._evaluated(number + 1, heard)) is not None:
                result.evaluate_metrics_clientapp[number + 1] = seen
            found = evaluate_fn(number + 1, made) if evaluate_fn else None
            if found is not None:
                result.evaluate_metrics_serverapp[number + 1] = found
            log(INFO, "round %d: %s %s", number + 1, dict(metrics), dict(found or {}))
            self._save(number + 1)
        result.arrays = self._arrays()
        self.summary()
        return result

    def _arrays(self) -> ArrayRecord:
        return as_record(self.server.params.numpy(), self.shapes)

    def _flatten(self, arrays: ArrayRecord) -> Tensor:
        parts = [arrays[name].numpy() for name in self.shapes]
        odd = [name for name, part in zip(self.shapes, parts, strict=True) if part.dtype != np.float32]
        if odd:
            raise InputError(f"the array '{odd[0]}' is not float32; send trainable parameters only.")
        return torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]))

    def _save(self, round: int) -> None:
        if self.folder:
            state = {**self.round_server.state_dict(), **self.server.state_dict()}
            save_checkpoint(self.folder, round, {"flat": self.server.params.clone(), **state}, {})

    def _restore(self) -> int:
        """The round to go on with: 0, or the one after the newest good checkpoint."""
        for found in load_checkpoints(self.folder) if self.folder else ():
            if isinstance(found, Checkpoint) and len(found.tensors["flat"]) == len(self.server.params):
                state = found.tensors
                self.server.params = state["flat"]
                self.round_server.load_state_dict(state)
                self.server.load_state_dict(state)
                return found.round
        return 0


def _by_node(asked: Iterable[Message], replies: Iterable[Message]) -> dict[int, Reply]:
    """The first reply of each node that was asked, in a loop of Flower's; others are none."""
    nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}
    found: dict[int, Reply] = {}
    for message in replies:
        number = message.metadata.reply_to_message_id
        if number in nodes:
            found.setdefault(nodes[number], Reply(number, message))
    return found
