"""A run whose clients are devices on a network: its rounds come over Flower.

The loop, the server rule, its optimiser, evaluation, checkpoints and records are those of every run. Where a run on
this machine plans and trains, this one asks the clients and collects what they send.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from everfed.data.federated import FederatedData
from everfed.errors import InputError
from everfed.flower.checks import Update
from everfed.flower.identity import Roster
from everfed.flower.limits import RoundLimits
from everfed.flower.protocol import RoundServer, Shapes
from everfed.learning.task import PlainTrained, Trained
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.run.loop import Run
from everfed.run.rounds import Training
from everfed.run.setup import Setup
from everfed.scheduling.plan import PlanStep
from everfed.server.step import Server
from everfed.store import stored_rounds


class RemoteRounds:
    """Rounds as the clients live them: they decide, train and send."""

    def __init__(self, protocol: RoundServer, grid: Grid, shapes: Shapes) -> None:
        self.protocol, self.grid, self.shapes = protocol, grid, shapes
        self.not_before: float | None = None  # when the next round may begin; None: none has begun yet

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        protocol = self.protocol
        if self.not_before is None:
            protocol.ledger.rewind(round)
            protocol.wait(self.grid)
        else:
            time.sleep(max(0.0, self.not_before - time.monotonic()))
        self.not_before = time.monotonic() + protocol.terms.round_s
        protocol.back_to = round  # every finished round is on the disk before the next one begins
        updates, energy = protocol.round(self.grid, round, params.cpu().numpy(), self.shapes)
        clients = np.array([u.client for u in updates], np.int64)
        step = PlanStep(round, clients, np.array([u.scale for u in updates], np.float64), energy)
        return step, as_results(updates, params.device)

    def training(self) -> Training:
        return Training("Flower", len(self.protocol.fleet), ["the whole model: by the clients, over the network"], None)

    def state_dict(self) -> dict[str, Tensor]:
        """The clients' own state stays with them."""
        return {name: torch.from_numpy(np.asarray(value)) for name, value in self.protocol.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.protocol.load_state_dict({n: v.cpu().numpy() for n, v in state.items() if n.startswith("protocol.")})


def as_results(updates: Sequence[Update], device: torch.device) -> list[Trained]:
    """What the clients sent, as a trainer would hand it over."""
    if not updates:
        return []
    deltas = torch.from_numpy(np.stack([u.delta for u in updates])).to(device)
    losses = torch.tensor([u.loss for u in updates], device=device)
    return [PlainTrained(np.array([u.client for u in updates], np.int64), deltas, losses)]


def remote_run(
    experiment: Experiment,
    grid: Grid,
    *,
    data: FederatedData | None = None,
    terms: RoundLimits | None = None,
    roster: Roster | None = None,
    folder: Path | None = None,
) -> Run:
    """An experiment whose clients are nodes of this grid: iterate over it for one RoundRecord a round.

    data: what the server knows of the clients' data, their sizes and a test set; None: the experiment's.
    """
    if data is not None and experiment.validation:
        raise InputError("validation and data are both given; leave validation at 0 and put its samples into data.")
    setup = Setup(experiment, data)
    server = setup.server(on_divergence="skip")
    refuse_what_is_not_sent(server)
    protocol = RoundServer(
        setup.fleet, experiment.policy, setup.data.shares(), experiment.seeds.schedule,
        terms=terms, roster=roster, folder=folder,
    )  # fmt: skip
    setup.look_ahead(server.rule.waits)
    rounds = RemoteRounds(protocol, grid, setup.layout.shapes_by_name())
    return Run(setup, rounds, server, setup.evaluator())


def refuse_what_is_not_sent(server: Server) -> None:
    """Refuse server rules that would have to send clients more than the model."""
    if server.rule.gradients:
        raise InputError(
            "this server rule changes the clients' gradients with what the server keeps, which is not sent to "
            "devices; choose another, such as sum or ht-varp."
        )
    if server.rule.starts:
        raise InputError(
            "this server rule starts each client from a model of its own, and over the network all are sent the same; "
            "choose another, such as echo, or simulate it with '--engine local'."
        )


def stored_remote_rounds(
    experiment: Experiment, grid: Grid, folder: Path, **settings: Any
) -> Iterator[tuple[RoundRecord, RoundServer]]:
    """The same in a run folder, with a checkpoint after every round; killed and called again, it goes on there."""
    made: list[Run] = []

    def make(experiment: Experiment) -> Run:
        made.append(remote_run(experiment, grid, folder=folder, **settings))
        return made[0]

    for record in stored_rounds(experiment, folder, checkpoint_s=0.0, make=make):
        source = made[0].source
        assert isinstance(source, RemoteRounds)
        yield record, source.protocol
