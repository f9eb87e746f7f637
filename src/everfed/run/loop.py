"""The training loop, independent of where clients train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from everfed.learning.compress import compress_all
from everfed.learning.downlink import as_sent
from everfed.learning.metrics import Metrics
from everfed.run.experiment import Experiment
from everfed.run.history import History, RoundRecord
from everfed.run.rounds import Rounds
from everfed.run.setup import Setup
from everfed.server.step import Server


@dataclass
class Run:
    """A run, ready to start: iterate over it for one RoundRecord per round.

    `params` is the server's current model, so a consumer may inspect it, or stop early with `break` and keep it.
    Progress bars and storage are consumers too.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2])
    >>> data = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2, test=([[0.0], [1.0]], [0, 1]))
    >>> run = ef.start("logistic", data, fleet, rounds=10, batch_size=2, eval_every=1, client=ef.SGD(1.0))
    >>> for record in run:
    ...     if record.metrics.accuracy == 1.0:
    ...         break
    >>> run.done < 10, sorted(run.params)
    (True, ['1.bias', '1.weight'])
    """

    setup: Setup
    source: Rounds
    server: Server
    evaluate: Callable[[Tensor], Metrics | None]
    looked_ahead: bool = True  # whether clients that never train have been warned of
    memory_budget: int | None = None  # bytes for the clients trained at once
    done: int = field(default=0, init=False)  # rounds

    def __post_init__(self) -> None:
        self.watch = self.setup.watch()  # of a validation set; None: there is none

    @property
    def experiment(self) -> Experiment:
        return self.setup.experiment

    @property
    def rounds(self) -> int:
        return self.experiment.rounds

    def __len__(self) -> int:
        return self.rounds

    @property
    def ended(self) -> bool:
        """Whether there is no further round: all are done, or the validation metric no longer improves."""
        return self.done >= self.rounds or (self.watch is not None and self.watch.course.ended)

    def __iter__(self) -> Iterator[RoundRecord]:
        """Continues from the current round: the first, or the one set by `load_state_dict`."""
        server, experiment = self.server, self.experiment
        every, bits = experiment.evaluation_interval, self.setup.fleet.message_bits
        while not self.ended:
            number, began = self.done, time.perf_counter()
            # Plan: who takes part, and the scale of each.
            step, results = self.source.next(number, as_sent(server.params, experiment.downlink))
            server.open(number, step.clients, step.scales)
            # Train, as many participants at once as memory allows; compress; add up.
            for trained in results:
                server.add(compress_all(trained, experiment.compression, bits, number, experiment.seeds.batch))
            # Step: the round's update moves the model.
            moved = server.step(server.aggregate())
            self.done = number + 1
            due = self.done % every == 0 or self.done == self.rounds
            metrics = self.evaluate(server.params) if due else None
            validation = self.watch.look(server.params, self.done) if due and self.watch else None
            yield RoundRecord(
                number, step.clients, step.scales, moved.weight, step.energy, moved.length, moved.train_loss,
                metrics, time.perf_counter() - began, moved.dropped, validation,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that later rounds depend on. Random draws need no state: they are functions of the round."""
        # Copies, since safetensors cannot write tensors that share memory.
        parts = self.setup.layout.unflatten(self.server.params).items()
        model = {f"model.{name}": value.clone() for name, value in parts}
        watch = self.watch.state_dict(self.setup.layout) if self.watch else {}
        return {
            **model, "round": torch.tensor(self.done), **watch, **self.source.state_dict(), **self.server.state_dict()
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from the state of a run with the same settings, bit for bit."""
        model = [state[f"model.{name}"].reshape(-1) for name in self.setup.layout.names]
        self.source.load_state_dict(state)  # first: a state of another number of GPUs, say, is refused there
        self.server.params = torch.cat(model).to(self.setup.device)
        self.done = int(state["round"])
        self.server.load_state_dict(state)
        if self.watch:
            self.watch.load_state_dict(state, self.setup.layout, self.setup.device)

    @property
    def params(self) -> dict[str, Tensor]:
        """The server's current model, as a state_dict on the CPU (buffers and frozen parameters included)."""
        return self.setup.state_dict(self.server.params)

    @property
    def kept(self) -> dict[str, Tensor]:
        """The same of the model that the run would end with now: the best so far, where early stopping keeps that."""
        best = self.watch.best if self.watch else None
        return self.setup.state_dict(self.server.params if best is None else best)

    def history(self, records: list[RoundRecord]) -> History:
        """The finished run, from the records that it yielded."""
        return History(records, self.kept, model_round=self.watch.course.kept(self.done) if self.watch else None)
