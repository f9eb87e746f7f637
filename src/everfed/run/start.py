"""A run on this machine: the parts, put together."""

from __future__ import annotations

from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.run.rounds import LocalRounds
from everfed.run.setup import Setup


def start(
    experiment: Experiment,
    *,
    on_divergence: str = "stop",
    memory_budget: int | None = None,
    strict_horizon: bool = False,
) -> Run:
    """An experiment, set up to run here: iterate over it for one RoundRecord per round.

    on_divergence: "stop" raises DivergenceError, "skip" leaves updates that are not finite out.
    memory_budget: bytes for the clients trained at once; None: from what is free.
    strict_horizon: refuse a horizon that cuts some client's last window short, rather than warn of it.
    """
    setup = Setup(experiment)
    server = setup.server(on_divergence)
    trainer = setup.trainer(server.rule.gradients, server.rule.starts, memory_budget)
    looked_ahead = setup.look_ahead(server.rule.waits, strict_horizon)
    return Run(setup, LocalRounds(setup.schedule(), trainer), server, setup.evaluator(), looked_ahead)
