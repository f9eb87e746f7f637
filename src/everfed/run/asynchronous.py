"""The loop of asynchronous runs: clients begin and arrive at their own times, and each arrival moves the model.

A record covers one round of time, which is one step of the energy process, so that runs with and without rounds are
compared at the same times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Bools, Floats, Ints, part_of
from everfed.energy.battery import Books
from everfed.energy.work import MOMENTS
from everfed.learning.downlink import as_sent
from everfed.run.flight import Flight
from everfed.run.history import Arrived, RoundRecord
from everfed.run.loop import Run
from everfed.run.rounds import Training
from everfed.scheduling.timeline import Timeline, Works, by_moment
from everfed.server.arrivals import Arrivals, Intake


class Traffic(Protocol):
    """Where the work of an asynchronous run comes from: clients of this machine, of a network, or of a log."""

    flight: Flight
    scales: Floats  # what the policy multiplies each client's updates by

    def moments(self, number: int) -> Iterator[tuple[Works, Works, Works]]:
        """What arrives, what begins, and what does both in no time, moment by moment of a round, as `by_moment`."""
        ...

    def energy(self) -> Books:
        """Up to and including the round."""
        ...

    def training(self) -> Training: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class Airborne:
    """A timeline of clients, and their work in flight."""

    def __init__(self, timeline: Timeline, flight: Flight) -> None:
        self.timeline, self.flight, self.scales = timeline, flight, timeline.scales

    def moments(self, number: int) -> Iterator[tuple[Works, Works, Works]]:
        return by_moment(self.timeline.round(number))

    def energy(self) -> Books:
        return self.timeline.battery.books()

    def training(self) -> Training:
        trainer = self.flight.trainer
        return Training(type(trainer).__name__, trainer.at_once, trainer.explain(), trainer.check)

    def state_dict(self) -> dict[str, Tensor]:
        kept = {name: torch.from_numpy(np.asarray(v)) for name, v in self.timeline.state_dict().items()}
        kept |= {f"flight.{name}": value for name, value in self.flight.state_dict().items()}
        return kept | {f"trainer.{name}": value for name, value in self.flight.trainer.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        arrays: dict[str, Any] = {
            n: v.cpu().numpy() for n, v in state.items() if n.startswith(("timeline.", "battery."))
        }
        # First: it may refuse, and then nothing has changed.
        self.flight.trainer.load_state_dict(part_of(state, "trainer."))
        self.timeline.load_state_dict(arrays)
        self.flight.load_state_dict(part_of(state, "flight."))


@dataclass
class AsynchronousRun(Run):
    """A run without rounds: iterate over it for one RoundRecord per round of time."""

    source: Traffic  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RoundRecord]:
        every = self.experiment.evaluation_interval
        while not self.ended:
            number, began = self.done, time.perf_counter()
            before = self.server.params
            log = Log(self.setup.data.shares())
            for arrived, begun, at_once in self.source.moments(number):
                self._add(arrived, number, log)
                self._begin(begun)
                self._add(at_once, number, log)
            if self.server.params is not before:
                self._intake.round, self._intake.clients = number, log.who()
                self.server.check()
            self.done = number + 1
            due = self.done % every == 0 or self.done == self.rounds
            metrics = self.evaluate(self.server.params) if due else None
            validation = self.watch.look(self.server.params, self.done) if due and self.watch else None
            moved = float((self.server.params - before).norm()) if self.server.params is not before else 0.0
            yield log.record(
                number, self.source.energy(), moved, metrics, time.perf_counter() - began, validation,
                self._intake.weigher.version,
            )  # fmt: skip

    @property
    def _intake(self) -> Intake:
        intake: Any = self.server.rule
        assert isinstance(intake, Intake)
        return intake

    def _begin(self, works: Works) -> None:
        if len(works.clients):
            model = as_sent(self.server.params, self.experiment.downlink)
            self.source.flight.begin(works, self._intake.weigher.version, model)

    def _add(self, works: Works, number: int, log: Log) -> None:
        """Updates that arrive at one moment: all together, or one after the other, as the rule has it."""
        if len(works.clients) == 0:
            return
        intake, server = self._intake, self.server
        found = self.source.flight.land(works.clients, server.params)
        log.land(found.losses, found.finite, works.clients)
        if not found.finite.all() and not server.skips:
            server.refuse(number, works.clients[~found.finite])
        fine = np.flatnonzero(found.finite)
        parts = [fine] if intake.rule.together else [fine[i : i + 1] for i in range(len(fine))]
        for part in parts:
            if len(part) == 0:
                continue
            who = works.clients[part]
            arrivals = Arrivals(
                who, int(works.until[0]), found.steps[part], found.versions[part], self.source.scales[who]
            )
            deltas, begun = found.deltas, found.begun
            if len(part) < len(deltas):
                rows = torch.from_numpy(part).to(deltas.device)
                deltas, begun = deltas[rows], begun[rows]
            coefficients, stale = intake.add(arrivals, deltas, begun, server.params)
            log.add(arrivals, coefficients, stale)
            update = intake.update(arrivals)
            if update is not None:
                server.move(update)


class Log:
    """What arrived within a round, for its record."""

    def __init__(self, shares: Floats) -> None:
        self.shares = shares
        self.clients: list[Ints] = []
        self.coefficients: list[Floats] = []
        self.columns: list[tuple[Floats, Ints, Ints]] = []
        self.losses: list[Floats] = []
        self.dropped: list[int] = []

    def land(self, losses: Floats, finite: Bools, clients: Ints) -> None:
        self.losses.append(losses[finite])
        self.dropped += clients[~finite].tolist()

    def who(self) -> Ints:
        """All that arrived."""
        found: Ints = _joined(self.clients, np.int64)
        return found

    def add(self, arrivals: Arrivals, coefficients: Floats, stale: Ints) -> None:
        self.clients.append(arrivals.clients)
        self.coefficients.append(coefficients)
        times = np.full(len(arrivals.clients), arrivals.moment / MOMENTS)
        self.columns.append((times, stale, arrivals.steps))

    def record(
        self, number: int, energy: Books, moved: float, metrics: Any, seconds: float, validation: Any, version: int
    ) -> RoundRecord:
        clients = self.who()
        coefficients: Floats = _joined(self.coefficients, np.float64)
        times, stale, steps = (
            _joined([column[i] for column in self.columns], kind) for i, kind in enumerate((float, np.int64, np.int64))
        )
        losses: Floats = _joined(self.losses, np.float64)
        shares = self.shares[clients]
        scales = np.divide(coefficients, shares, out=np.zeros(len(shares)), where=shares > 0.0)
        return RoundRecord(
            number, clients, scales, float(coefficients.sum()), energy, moved,
            float(losses.mean()) if len(losses) else None, metrics, seconds, tuple(self.dropped), validation,
            Arrived(times, stale, steps, version),
        )  # fmt: skip


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
