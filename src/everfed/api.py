"""The Python interface: one run, or many, from live objects or from a description."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from everfed.checks import Count, Seed, check_folder, checked
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, warn
from everfed.methods import COMPARED, Method
from everfed.run import start as local
from everfed.run.experiment import DataPart, Experiment, ModelPart
from everfed.run.fleets import FleetSpec
from everfed.run.history import History
from everfed.run.loop import Run
from everfed.scheduling.policies import Policy
from everfed.scheduling.silent import never_trained

if TYPE_CHECKING:
    from everfed.report.conclusion import Conclusion
    from everfed.studies.sweep import Tell

# Stored runs and reports are imported where they are used: a plain simulation needs neither pyarrow nor matplotlib.

_SEEDS = Annotated[int, "[1, 1000000]"]  # their number


def start(
    model: ModelPart | Experiment,
    data: DataPart | None = None,
    fleet: FleetSpec | Fleet | None = None,
    method: str | Method | Policy | None = None,
    *,
    on_divergence: str = "stop",
    memory_budget: int | None = None,
    strict_horizon: bool = False,
    **settings: Any,
) -> Run:
    """Set up a run; iterate over it for one RoundRecord per round. Takes the arguments of `simulate`."""
    experiment = _experiment(model, data, fleet, method, settings)
    return local.start(
        experiment, on_divergence=on_divergence, memory_budget=memory_budget, strict_horizon=strict_horizon
    )


def simulate(
    model: ModelPart | Experiment,
    data: DataPart | None = None,
    fleet: FleetSpec | Fleet | None = None,
    method: str | Method | Policy | None = None,
    *,
    out: str | Path | None = None,
    on_divergence: str = "stop",
    memory_budget: int | None = None,
    strict_horizon: bool = False,
    mixed_versions: bool = False,
    **settings: Any,
) -> History:
    """Run a whole simulation and return its history.

    model: a torch.nn.Module (training starts from a copy of its weights), a function without arguments that returns one
        (called with the seed set), a name such as "mlp", or a whole `Experiment`.
    data: from `load(...).partition(...)` or `from_arrays(...)`, a list of (x, y), one per client, or
        `OnDemand(...)` for samples that are loaded on demand.
    fleet: from `Fleet.from_cycles(...)`, or a description such as `CycleFleet(...)`.
    method: a name in `METHODS`, a Method, or a policy, whose updates are then summed.
    out: a folder to store the run in. Calling again with the same folder resumes an interrupted run. `everfed report`
        and `everfed runs` read the folder. The result is then a `StoredRun`.
    on_divergence: "stop" raises DivergenceError, "skip" ignores updates that are not finite.
    memory_budget: bytes for the clients trained at once (default: from the free memory).
    strict_horizon: raise an error instead of a warning if the horizon cuts some client's last window short.
    mixed_versions: resume a stored run even if it was begun by other code or with another version of torch or numpy.
    settings: any other field of `Experiment`: rounds, local_steps, batch_size, client, gradients, compression,
        server_optimizer, keep_state, state_place, eval_every, seed, init_seed, batch_seed, schedule_seed, device,
        trainer, check_trainer, precision, loss. A custom loss takes (outputs, targets) and returns a scalar; metrics of
        a classification still report cross entropy, so that runs stay comparable.

    To monitor a run or stop it early, iterate over `start(...)` with the same arguments.
    """
    experiment = _experiment(model, data, fleet, method, settings)
    how: dict[str, Any] = {
        "on_divergence": on_divergence,
        "memory_budget": memory_budget,
        "strict_horizon": strict_horizon,
    }
    if out is not None:
        from everfed.store import open_run, stored_rounds

        for _ in stored_rounds(experiment, check_folder(out), mixed_versions=mixed_versions, **how):
            pass
        return open_run(out)
    run = local.start(experiment, **how)
    records = list(run)
    if not run.looked_ahead:
        silent = np.ones(len(run.setup.fleet), np.bool_)
        silent[np.concatenate([record.participants for record in records])] = False
        if silent.any():
            e = run.experiment
            said = never_trained(run.setup.fleet, e.policy, silent, e.rounds, e.seeds.schedule)
            warn(said)
    return run.history(records)


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Any],
    *,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    jobs: int = 1,
    on_divergence: str = "stop",
    mixed_versions: bool = False,
    on_progress: Tell = lambda progress: None,
) -> Conclusion:
    """Run a grid of settings over seeds and summarise it, like `everfed sweep`.

    grid: dotted keys of the experiment with the values to try, such as {"client.lr": [0.05, 0.2]}; values may be
        live objects. seeds: their number (0, 1, 2, ...) or a list. out: the folder of the runs, a report, a figure and
        summary.json; interrupted runs resume. jobs: parallel processes; more than one requires objects that can be
        pickled, and `if __name__ == "__main__"` in a script.
    """
    from everfed.report.conclusion import conclude
    from everfed.studies.sweep import plan_runs, run_all

    began = time.perf_counter()
    checked("experiment", experiment, Experiment)
    checked("on_divergence", on_divergence, Annotated[str, ("stop", "skip")])
    checked("jobs", jobs, Count)
    root = check_folder(out)
    numbers = seeds if isinstance(seeds, Sequence | np.ndarray) else range(checked("seeds", seeds, _SEEDS))
    for key, values in checked("grid", grid, Mapping).items():
        checked("a key of the grid", key, str)
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise InputError(f"the values of '{key}' are {values!r}; they must be a list, as in [{values!r}].")
    tried = {key: values.tolist() if isinstance(values, np.ndarray) else values for key, values in grid.items()}
    runs = plan_runs(experiment, tried, list(checked("seeds", numbers, tuple[Seed, ...])), root / "runs")
    stored = run_all(
        runs, jobs=jobs, on_divergence=on_divergence, mixed_versions=mixed_versions, on_progress=on_progress
    )
    return conclude(runs, stored, root, time.perf_counter() - began)


def compare(
    model: ModelPart | Experiment,
    data: DataPart | None = None,
    fleet: FleetSpec | Fleet | None = None,
    methods: Sequence[str | Method | Policy] = COMPARED,
    *,
    seeds: int | Sequence[int] = 5,
    out: str | Path,
    jobs: int = 1,
    on_divergence: str = "stop",
    mixed_versions: bool = False,
    on_progress: Tell = lambda progress: None,
    **settings: Any,
) -> Conclusion:
    """Run the same experiment with several methods, paired by seed, like `everfed compare`.

    Takes a model, data, a fleet and settings like `simulate`, or an Experiment. methods: names, Methods or policies.
    The other arguments are those of `sweep`.
    """
    if "seed" in settings:
        raise InputError("seed is given, but the runs have the seeds of `seeds`; write seeds=[4, 7] for these two.")
    experiment = _experiment(model, data, fleet, None, settings)
    return sweep(
        experiment, {"method": methods}, seeds=seeds, out=out, jobs=jobs, on_divergence=on_divergence,
        mixed_versions=mixed_versions, on_progress=on_progress,
    )  # fmt: skip


def _experiment(
    model: ModelPart | Experiment,
    data: DataPart | None,
    fleet: FleetSpec | Fleet | None,
    method: str | Method | Policy | None,
    settings: dict[str, Any],
) -> Experiment:
    if isinstance(model, Experiment):
        if data is not None or fleet is not None or method is not None or settings:
            raise InputError(
                "an Experiment holds its data, fleet, method and settings; change it with dataclasses.replace or "
                "with_method."
            )
        return model
    if data is None or fleet is None:
        raise InputError("give a model, data and a fleet, or an Experiment.")
    return Experiment.of(model, data, fleet, "algorithm1" if method is None else method, **settings)
