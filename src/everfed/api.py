"""What Python users call: one run, or many, from live objects or from a description."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from everfed.energy.fleet import Fleet
from everfed.errors import EverfedWarning, InputError
from everfed.methods import Method
from everfed.run import start as local
from everfed.run.experiment import DataPart, Experiment, FleetSpec, ModelPart
from everfed.run.history import History
from everfed.run.loop import Run
from everfed.scheduling.silent import never_trained


def start(
    model: ModelPart | Experiment,
    data: DataPart | None = None,
    fleet: FleetSpec | Fleet | None = None,
    method: str | Method | None = None,
    *,
    on_divergence: str = "stop",
    memory_budget: int | None = None,
    strict_horizon: bool = False,
    **settings: Any,
) -> Run:
    """A run, set up and ready: iterate over it for one RoundRecord per round. Takes what `simulate` takes."""
    experiment = _experiment(model, data, fleet, method, settings)
    return local.start(
        experiment, on_divergence=on_divergence, memory_budget=memory_budget, strict_horizon=strict_horizon
    )


def simulate(
    model: ModelPart | Experiment,
    data: DataPart | None = None,
    fleet: FleetSpec | Fleet | None = None,
    method: str | Method | None = None,
    **settings: Any,
) -> History:
    """Run a whole simulation and return its history.

    model: a torch.nn.Module (its weights are the start and are left as they are), a function without
        arguments that makes one (called under the seed), a name such as "mlp", or a whole `Experiment`.
    data: from `load(...).partition(...)` or `from_arrays(...)`, a list of (x, y), one per client, or
        `OnDemand(...)` for samples that are read when they are needed.
    fleet: from `Fleet.from_cycles(...)`, or a description such as `CycleFleet(...)`.
    method: a name of `METHODS`, or a Method of your own; None: algorithm1.
    settings: any field of `Experiment`, with its default: rounds, local_steps, batch_size, client, gradients,
        compression, server_optimizer, keep_state, state_place, eval_every, seed, init_seed, batch_seed,
        schedule_seed, device, trainer, check_trainer, precision, loss; and, of this run alone,
        on_divergence="stop" (raise DivergenceError) or "skip" (leave non-finite updates out),
        memory_budget (bytes for the clients trained at once) and strict_horizon.
        A loss of your own takes (outputs, targets) and returns a scalar; the metrics of a
        classification still report cross entropy, so that runs can be compared.

    To watch a run, or to stop it early, iterate over `start(...)` with the same arguments.
    """
    run = start(model, data, fleet, method, **settings)
    records = list(run)
    if not run.looked_ahead:
        silent = np.ones(len(run.setup.fleet), np.bool_)
        silent[np.concatenate([record.participants for record in records])] = False
        if silent.any():
            e = run.experiment
            said = never_trained(run.setup.fleet, e.policy, silent, e.rounds, e.seeds.schedule)
            warnings.warn(said, EverfedWarning, stacklevel=2)
    return History(records, run.params)


def _experiment(
    model: ModelPart | Experiment,
    data: DataPart | None,
    fleet: FleetSpec | Fleet | None,
    method: str | Method | None,
    settings: dict[str, Any],
) -> Experiment:
    if isinstance(model, Experiment):
        if data is not None or fleet is not None or method is not None or settings:
            raise InputError(
                "an Experiment holds its data, fleet, method and settings; change it with dataclasses.replace, or its "
                "method with with_method."
            )
        return model
    if data is None or fleet is None:
        raise InputError("give a model, data and a fleet, or an Experiment.")
    return Experiment.of(model, data, fleet, "algorithm1" if method is None else method, **settings)
