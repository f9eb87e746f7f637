"""The log of work that arrived at a server, and the run that it describes, made again on this machine.

A server on a network writes a line for every work that ends: what began when and with which version, and when it
arrived. Local training follows from these alone, and so does the model, to the last bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.energy.battery import Books
from everfed.energy.work import MOMENTS
from everfed.errors import InputError
from everfed.learning.task import PlainTrained, Trained, Trainer
from everfed.run.asynchronous import AsynchronousRun
from everfed.run.experiment import Experiment
from everfed.run.flight import Flight
from everfed.run.rounds import Training
from everfed.run.setup import Setup
from everfed.scheduling.policies import Clients
from everfed.scheduling.timeline import Works
from everfed.server.arrivals import Intake

LOG = "arrivals.jsonl"
_EMPTY = np.zeros(0, np.int64)
NOTHING = Works(_EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY.astype(np.bool_))


@dataclass(frozen=True)
class LoggedWork:
    """A line of the log, in the order of arrival."""

    client: int
    slot: int  # the number that its random draws are keyed by
    steps: int
    version: int  # of the model that it began with
    began: int  # the moment
    arrived: int  # alike; no two things happen at one moment
    added: bool = True  # False: it was refused and moved nothing, but the client did train
    part: float = 1.0  # what the server multiplied the update by; below 1: it was too long

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    def works(self) -> Works:
        client, began, arrived, slot, steps = np.array(
            [[self.client], [self.began], [self.arrived], [self.slot], [self.steps]]
        )
        return Works(client, began, arrived, slot, steps, np.array([False]))


def read_log(folder: Path) -> list[LoggedWork]:
    """The log in a run folder; a line that a power cut left unfinished is not one."""
    found = []
    try:
        for line in (folder / LOG).read_text(encoding="utf-8").splitlines():
            found.append(LoggedWork(**json.loads(line)))
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, TypeError):
        return found
    return found


class Journal:
    """The log of a run that goes on, kept in its folder."""

    def __init__(self, folder: Path, round: int) -> None:
        """round: the first that is to be logged; what the log says of later ones is forgotten."""
        kept = [work.line() for work in read_log(folder) if work.arrived < round * MOMENTS]
        unfinished = folder / f"{LOG}.unfinished"
        unfinished.write_text("".join(kept), encoding="utf-8")
        os.replace(unfinished, folder / LOG)
        self.file = open(folder / LOG, "a", encoding="utf-8")  # noqa: SIM115 - as long as the run

    def add(self, work: LoggedWork) -> None:
        self.file.write(work.line())

    def sync(self) -> None:
        """Everything added is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())


def replay(experiment: Experiment, log: Iterable[LoggedWork]) -> AsynchronousRun:
    """The run of a log; iterate over it for its records. Their energy is not known from the log."""
    setup = Setup(experiment)
    server = setup.server(on_divergence="skip")
    intake: Any = server.rule
    if not isinstance(intake, Intake):
        raise InputError(f"mode is '{experiment.mode}': only asynchronous runs are made again from a log of arrivals.")
    flight = Flight(server.params, experiment.compression, setup.fleet.message_bits, experiment.seeds.batch)
    flight.train_by(_OneAtATime(setup.trainer((), flight.starts, slots=setup.timeline().slots), flight))
    source = Replayed(list(log), flight, intake, policy_scales(setup))
    return AsynchronousRun(setup, source, server, setup.evaluator())


def policy_scales(setup: Setup) -> Floats:
    """What the policy multiplies each client's updates by, [N]."""
    e = setup.experiment
    scales: Floats = np.asarray(e.policy.init(Clients.of(setup.fleet, e.seeds.schedule))["scale"], np.float64)
    return scales


class Replayed:
    """The traffic of a log."""

    def __init__(self, log: list[LoggedWork], flight: Flight, intake: Intake, scales: Floats) -> None:
        self.flight, self.intake, self.scales = flight, intake, scales
        events = [(work.began, False, work) for work in log] + [(work.arrived, True, work) for work in log]
        self.events = sorted(events, key=lambda event: event[:2])

    def moments(self, number: int) -> Iterator[tuple[Works, Works, Works]]:
        for moment, arrives, work in self.events:
            if moment // MOMENTS != number:
                continue
            if not arrives:
                if work.version != self.intake.weigher.version:
                    raise InputError(
                        f"the log does not fit the experiment: client {work.client} began slot {work.slot} with "
                        f"version {work.version} of the model, and here it is at {self.intake.weigher.version}."
                    )
                yield NOTHING, work.works(), NOTHING
            elif work.added:
                self.flight.shorten(work.client, work.part)
                yield work.works(), NOTHING, NOTHING
            else:  # the client's optimiser has gone on all the same
                self.flight.land(np.array([work.client]), self.flight.initial)

    def energy(self) -> Books:
        return Books()

    def training(self) -> Training:
        trainer = self.flight.trainer
        return Training(type(trainer).__name__, trainer.at_once, trainer.explain(), trainer.check)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["round"]:
            raise InputError("a replay begins with the first round; start it anew.")


class _OneAtATime:
    """A trainer as devices use it: one client alone, since larger batches round otherwise; and what arrives is the
    client's model, whose difference from the server's is taken there."""

    at_once = 1

    def __init__(self, trainer: Trainer, flight: Flight) -> None:
        self.trainer, self.flight, self.check = trainer, flight, trainer.check

    def explain(self) -> list[str]:
        return self.trainer.explain()

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        slots = np.broadcast_to(round, len(clients))
        for i in range(len(clients)):
            one = clients[i : i + 1]
            begun = self.flight.starts(one)
            alone = self.trainer.train(params, one, slots[i : i + 1], None if steps is None else steps[i : i + 1])
            for trained in alone:
                yield PlainTrained(one, (begun + trained.deltas) - begun, trained.losses.clone())

    def state_dict(self) -> dict[str, Tensor]:
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.trainer.load_state_dict(state)
