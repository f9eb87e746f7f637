"""A run on this machine."""

from __future__ import annotations

from everfed.checks import checked
from everfed.learning.task import free_budget
from everfed.run.asynchronous import Airborne, AsynchronousRun
from everfed.run.experiment import Experiment
from everfed.run.flight import Flight
from everfed.run.loop import Run
from everfed.run.setup import Setup
from everfed.server.step import Server


def start(
    experiment: Experiment,
    *,
    on_divergence: str = "stop",
    memory_budget: int | None = None,
    strict_horizon: bool = False,
) -> Run:
    """Set up an experiment on this machine; iterate over the result for one RoundRecord per round.

    on_divergence: "stop" raises DivergenceError, "skip" ignores updates that are not finite.
    memory_budget: bytes for the clients trained at once; None: from the free memory.
    strict_horizon: raise an error instead of a warning if the horizon cuts some client's last window short.
    """
    checked("strict_horizon", strict_horizon, bool)
    setup = Setup(checked("experiment", experiment, Experiment))
    server = setup.server(on_divergence)
    if memory_budget is None:
        memory_budget = free_budget(setup.device)
    if experiment.asynchronous:
        return _asynchronous(setup, server, memory_budget)
    trainer = setup.trainer(server.rule.gradients, server.rule.starts, memory_budget)
    looked_ahead = setup.look_ahead(server.rule.waits, strict_horizon)
    return Run(setup, setup.local_rounds(trainer), server, setup.evaluator(), looked_ahead, memory_budget)


def _asynchronous(setup: Setup, server: Server, memory_budget: int) -> AsynchronousRun:
    e, timeline = setup.experiment, setup.timeline()
    flight = Flight(server.params, e.compression, setup.fleet.message_bits, e.seeds.batch)
    flight.train_by(setup.trainer((), flight.starts, memory_budget, timeline.slots))
    looked_ahead = setup.look_ahead()
    return AsynchronousRun(setup, Airborne(timeline, flight), server, setup.evaluator(), looked_ahead, memory_budget)
