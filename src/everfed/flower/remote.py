"""A run whose clients are elsewhere: a simulation's loop, store and records, with the network in its middle.

The loop, the server rule, the server's optimiser, evaluation, checkpoints and records are the
simulator's. Only two parts are others: the schedule, which asks the clients, and the trainer, which
hands over what they sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from everfed.arrays import Ints
from everfed.data.federated import FederatedData
from everfed.errors import InputError
from everfed.flower.checks import Update
from everfed.flower.identity import Roster
from everfed.flower.limits import RoundLimits
from everfed.flower.protocol import RoundServer
from everfed.learning.check import Check
from everfed.learning.task import PlainTrained, Trained
from everfed.run.experiment import Experiment
from everfed.run.loop import RoundRecord, Simulation
from everfed.scheduling.plan import PlanStep
from everfed.store import stored_rounds


class RemoteRounds:
    """In the place of a schedule: rounds as the clients live them."""

    def __init__(self, run: Simulation, protocol: RoundServer, grid: Grid) -> None:
        self.run, self.protocol, self.grid, self.fleet = run, protocol, grid, protocol.fleet
        layout = run.layout
        self.shapes = {name: tuple(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
        self.updates: list[Update] = []

    def rounds(self, first: int, last: int) -> Iterator[PlanStep]:
        protocol = self.protocol
        protocol.ledger.rewind(first)
        if first < last:
            protocol.wait(self.grid)
        for round in range(first, last):
            began = time.monotonic()
            protocol.back_to = round  # every finished round is on the disk before the next one begins
            model = self.run.flat.cpu().numpy()
            self.updates, energy = protocol.round(self.grid, round, model, self.shapes)
            clients = np.array([u.client for u in self.updates], np.int64)
            yield PlanStep(round, clients, np.array([u.scale for u in self.updates], np.float64), energy)
            pause = protocol.terms.round_s - (time.monotonic() - began)
            if pause > 0.0 and round + 1 < last:
                time.sleep(pause)

    def state_dict(self) -> dict[str, Any]:
        return self.protocol.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.protocol.load_state_dict(state)


class RemoteTrainer:
    """In the place of a trainer: what the clients sent. Their optimisers' state stays with them."""

    def __init__(self, rounds: RemoteRounds) -> None:
        self.rounds = rounds
        self.at_once = len(rounds.protocol.fleet)
        self.check: Check | None = None

    def explain(self) -> list[str]:
        return ["the whole model: by the clients themselves, over the network"]

    def train(self, params: Tensor, clients: Ints, round: int) -> Iterator[Trained]:
        updates, self.rounds.updates = self.rounds.updates, []
        if updates:
            deltas = torch.from_numpy(np.stack([u.delta for u in updates])).to(params.device)
            losses = torch.tensor([u.loss for u in updates], device=params.device)
            yield PlainTrained(clients, deltas, losses)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


def remote_run(
    experiment: Experiment,
    grid: Grid,
    *,
    data: FederatedData | None = None,
    terms: RoundLimits | None = None,
    roster: Roster | None = None,
    folder: Path | None = None,
) -> Simulation:
    """An experiment whose clients are nodes of this grid: iterate over it for one RoundRecord a round.

    data: what the server knows of the clients' data, their sizes and a test set; None: the experiment's.
    """
    if data is not None and experiment.validation:
        raise InputError("validation and data are both given; leave validation at 0 and put its samples into data.")
    # The server trains nothing, and may have no samples.
    run = replace(experiment, check_trainer=False).simulation(data, on_divergence="skip")
    if run.aggregator.gradients:
        raise InputError(
            "this server rule changes the clients' gradients with what the server keeps, which is not sent to "
            "devices; choose another, such as sum or ht-varp."
        )
    if run.aggregator.starts:
        raise InputError(
            "this server rule starts each client from a model of its own, and over the network all are sent the same; "
            "choose another, such as echo, or simulate it with '--engine local'."
        )
    protocol = RoundServer(
        experiment.make_fleet(), experiment.policy, run.data.shares(), experiment.seeds.schedule,
        terms=terms, roster=roster, folder=folder,
    )  # fmt: skip
    rounds = RemoteRounds(run, protocol, grid)
    run.schedule = rounds  # type: ignore[assignment]
    run.trainer = RemoteTrainer(rounds)
    return run


def stored_remote_rounds(
    experiment: Experiment, grid: Grid, folder: Path, **settings: Any
) -> Iterator[tuple[RoundRecord, RoundServer]]:
    """The same in a run folder, with a checkpoint after every round; killed and called again, it goes on there."""
    made: list[Simulation] = []

    def make(described: Experiment) -> Simulation:
        made.append(remote_run(described, grid, folder=folder, **settings))
        return made[0]

    for record in stored_rounds(experiment, folder, checkpoint_s=0.0, make=make):
        schedule: Any = made[0].schedule
        yield record, schedule.protocol
