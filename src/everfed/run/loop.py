"""The training loop, independent of where clients train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from everfed.learning.compress import compress_all
from everfed.learning.metrics import Metrics
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.run.rounds import Rounds
from everfed.run.setup import Setup
from everfed.server.step import Server


@dataclass
class Run:
    """A run, ready to start: iterate over it for one RoundRecord per round.

    `params` is the server's current model, so a consumer may inspect it, or stop early with `break` and keep it.
    Progress bars, early stopping and storage are consumers too.
    """

    setup: Setup
    source: Rounds
    server: Server
    evaluate: Callable[[Tensor], Metrics | None]
    looked_ahead: bool = True  # whether clients that never train have been warned of
    memory_budget: int | None = None  # bytes for the clients trained at once
    done: int = field(default=0, init=False)  # rounds

    @property
    def experiment(self) -> Experiment:
        return self.setup.experiment

    @property
    def rounds(self) -> int:
        return self.experiment.rounds

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[RoundRecord]:
        """Continues from the current round: the first, or the one set by `load_state_dict`."""
        server, experiment = self.server, self.experiment
        every, bits = experiment.evaluation_interval, self.setup.fleet.message_bits
        for number in range(self.done, self.rounds):
            began = time.perf_counter()
            # Plan: who takes part, and the scale of each.
            step, results = self.source.next(number, server.params)
            server.open(number, step.clients, step.scales)
            # Train, as many participants at once as memory allows; compress; add up.
            for trained in results:
                server.add(compress_all(trained, experiment.compression, bits, number, experiment.seeds.batch))
            # Step: the round's update moves the model.
            moved = server.step(server.aggregate())
            self.done = number + 1
            due = self.done % every == 0 or self.done == self.rounds
            metrics = self.evaluate(server.params) if due else None
            yield RoundRecord(
                number, step.clients, step.scales, moved.weight, step.energy, moved.length, moved.train_loss,
                metrics, time.perf_counter() - began, moved.dropped,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that later rounds depend on. Random draws need no state: they are functions of the round."""
        # Copies, since safetensors cannot write tensors that share memory.
        parts = self.setup.layout.unflatten(self.server.params).items()
        model = {f"model.{name}": value.clone() for name, value in parts}
        return {**model, "round": torch.tensor(self.done), **self.source.state_dict(), **self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from the state of a run with the same settings, bit for bit."""
        model = [state[f"model.{name}"].reshape(-1) for name in self.setup.layout.names]
        self.server.params = torch.cat(model).to(self.setup.device)
        self.done = int(state["round"])
        self.source.load_state_dict(state)
        self.server.load_state_dict(state)

    @property
    def params(self) -> dict[str, Tensor]:
        """The server's current model, as a state_dict on the CPU (buffers and frozen parameters included)."""
        return self.setup.state_dict(self.server.params)
