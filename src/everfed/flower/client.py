"""A whole ClientApp from an experiment: what a node runs.

Most messages only ask whether the client takes part, and a small device should not load a machine
learning framework to say no. So nothing here imports one before there is something to train: a client
whose energy is simulated works its rounds out once and keeps them as plain numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.flower.identity import client_of
from everfed.flower.messages import Ask
from everfed.flower.mod import EnergyMod
from everfed.flower.node_state import Arrays, Memory
from everfed.flower.sources import Choice, EnergySource, Simulated, Solo
from everfed.scheduling.policies import Policy

if TYPE_CHECKING:
    from everfed.run.experiment import Experiment

Samples = Callable[[int], tuple[Any, Any]]
_PLAN = "plan"


def client_app(
    experiment: Experiment | Path | str, *, samples: Samples | None = None, energy: EnergySource | None = None
) -> ClientApp:
    """A ClientApp that trains as the simulator does, in the rounds that its energy allows.

    experiment: an Experiment, or the path of its file; the run's configuration may change it (`set`).
    samples: gives a client's own (x, y); None: its part of the experiment's data set. energy: None is
    the experiment's fleet, simulated.
    """
    return _Client(experiment, samples, energy).app()


class _Client(EnergyMod):
    """The mod, once the run's configuration has said which experiment it is."""

    def __init__(
        self, experiment: Experiment | Path | str, samples: Samples | None, energy: EnergySource | None
    ) -> None:
        self.experiment, self.samples, self.given = experiment, samples, energy

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        self.name = fingerprint(self.experiment, context.run_config)
        return super().__call__(message, context, call_next)

    def choose(self, client: int, ask: Ask, memory: Memory, context: Context) -> Choice:
        kept = memory.load(_PLAN) if self.given is None else None
        if kept is not None and ask.round < len(kept["join"]):
            return _read(kept, ask.round)
        from everfed.flower.load import load_experiment

        experiment = load_experiment(self.experiment, context.run_config)
        self.policy = experiment.policy
        if self.given is not None:
            self.energy = self.given
            return super().choose(client, ask, memory, context)
        fleet = experiment.make_fleet()
        if not self.policy.coordinated and ask.round < experiment.rounds:
            plan = own_plan(fleet, self.policy, experiment.seeds.schedule, client, experiment.rounds)
            memory.save(_PLAN, plan)
            return _read(plan, ask.round)
        self.energy = Simulated(fleet, experiment.seeds.schedule)
        return super().choose(client, ask, memory, context)

    def app(self) -> ClientApp:
        app = super().app()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            from everfed.flower.load import load_experiment
            from everfed.flower.local import LocalTraining

            ask = Ask.of(message.content)
            if ask is None:
                raise InputError("the message does not say which round it is of; the server must be everfed's.")
            experiment = load_experiment(self.experiment, context.run_config)
            memory = self.memory(context)
            local = LocalTraining(experiment, client_of(context), self.samples, memory)
            return local.reply(message, ask, memory)

        return app


def own_plan(fleet: Fleet, policy: Policy, seed: int, client: int, rounds: int) -> Arrays:
    """All rounds of one client as arrays over the rounds: whether it joins, its scale, its energy's books."""
    schedule = Solo(fleet, policy, seed, client, frozenset())
    names = [part.name for part in fields(Books)]
    join, scale, books = np.zeros(rounds, np.bool_), np.zeros(rounds), np.zeros((rounds, len(names)))
    for round in range(rounds):
        joins, scales = schedule.step(round)
        join[round], scale[round] = joins[0], scales[0]
        kept = schedule.battery.books().to_dict()
        books[round] = [kept[name] for name in names]
    return {"join": join, "scale": scale, "books": books}


def _read(plan: Arrays, round: int) -> Choice:
    kinds: dict[str, Any] = {part.name: type(part.default) for part in fields(Books)}
    values = {name: kind(value) for (name, kind), value in zip(kinds.items(), plan["books"][round], strict=True)}
    planned = int(np.count_nonzero(plan["join"][: round + 1]))
    return Choice(bool(plan["join"][round]), float(plan["scale"][round]), planned, Books(**values))


def fingerprint(experiment: Experiment | Path | str, run_config: Mapping[str, Any]) -> str:
    """A short name of an experiment, the same on every device: what is kept of one run is not used in another."""
    content = Path(experiment).read_bytes() if isinstance(experiment, Path | str) else None
    if content is None or b"trace" in content:  # what a file names is part of it
        from everfed.run import config  # loads torch, which a device without traces need not wait for

        whole = experiment if content is None else config.from_dict(config.read(Path(str(experiment))))
        content = config.identity(whole).encode()  # type: ignore[arg-type]
    return hashlib.sha256(content + str(run_config.get("set") or "").encode()).hexdigest()[:16]
