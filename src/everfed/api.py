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
from everfed.run.following import followed
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
    """Set up a run; iterate over it for one `RoundRecord` per round, to monitor it or to stop early.

    Takes the arguments of `simulate`, without `out` and `mixed_versions`.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, how="iid", seed=0)
    >>> for record in ef.start("logistic", data, fleet, rounds=20, eval_every=1, client=ef.SGD(0.5)):
    ...     if record.metrics.accuracy > 0.5:
    ...         break
    >>> record.round < 19
    True
    """
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
    progress: bool | None = None,
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
    progress: whether to show a line of progress; None: in notebooks and terminals, of runs longer than half a second.
    settings: any other field of `Experiment`: rounds, local_steps, batch_size, client, gradients, compression,
        server_optimizer, keep_state, state_place, eval_every, seed, init_seed, batch_seed, schedule_seed, device,
        trainer, check_trainer, precision, loss. A custom loss takes (outputs, targets) and returns a scalar; metrics of
        a classification still report cross entropy, so that runs stay comparable.

    To monitor a run or stop it early, iterate over `start` with the same arguments.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, how="iid", seed=0)
    >>> history = ef.simulate("logistic", data, fleet, method="greedy", rounds=8, client=ef.SGD(0.5))
    >>> history.participations, history.energy.spent
    (16, 16.0)
    """
    experiment = _experiment(model, data, fleet, method, settings)
    how: dict[str, Any] = {
        "on_divergence": on_divergence,
        "memory_budget": memory_budget,
        "strict_horizon": strict_horizon,
    }
    if out is not None:
        from everfed.store import open_run, stored_rounds

        rounds = stored_rounds(experiment, check_folder(out), mixed_versions=mixed_versions, **how)
        for _ in followed(rounds, experiment.rounds, experiment.title, progress):
            pass
        return open_run(out)
    run = local.start(experiment, **how)
    records = list(followed(iter(run), experiment.rounds, experiment.title, progress))
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
    progress: bool | None = None,
) -> Conclusion:
    """Run a grid of settings over seeds and summarise it, like `everfed sweep`.

    experiment: what all runs have in common.
    grid: dotted keys of the experiment with the values to try, such as {"client.lr": [0.05, 0.2]}; values may be
        live objects.
    seeds: their number (0, 1, 2, ...) or a list.
    out: the folder of the runs, a report, a figure and summary.json; interrupted runs resume.
    jobs: parallel processes; more than one requires objects that can be pickled, and `if __name__ == "__main__"` in a
        script.
    on_divergence: "stop" ends a run that diverges, "skip" ignores updates that are not finite.
    mixed_versions: resume runs even if they were begun by other code or with another version of torch or numpy.
    on_progress: called after every round of a run.
    progress: whether to show a line of progress; None: in notebooks and terminals.

    >>> import tempfile, everfed as ef
    >>> experiment = ef.Experiment(rounds=20, model="logistic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = ef.sweep(experiment, {"client.lr": [0.1, 0.4]}, seeds=1, out=folder)
    >>> sorted(result.summary)
    ['client.lr=0.1', 'client.lr=0.4']
    """
    from everfed.report.conclusion import conclude
    from everfed.studies.following import followed as all_followed
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
    with all_followed(runs, progress, on_progress) as tell:
        stored = run_all(runs, jobs=jobs, on_divergence=on_divergence, mixed_versions=mixed_versions, on_progress=tell)
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
    progress: bool | None = None,
    **settings: Any,
) -> Conclusion:
    """Run the same experiment with several methods, paired by seed, like `everfed compare`.

    Takes a model, data, a fleet and settings like `simulate`, or an Experiment; other arguments are those of `sweep`.

    methods: names, Methods or policies.

    >>> import tempfile, everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2])
    >>> data = ef.load("digits").partition(clients=2, how="iid", seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = ef.compare("logistic", data, fleet, ["algorithm1", "greedy"], rounds=4, seeds=2, out=folder)
    >>> result.reference, sorted(result.differences)
    ('algorithm1', ['greedy'])
    """
    if "seed" in settings:
        raise InputError("seed is given, but the runs have the seeds of `seeds`; write seeds=[4, 7] for these two.")
    experiment = _experiment(model, data, fleet, None, settings)
    return sweep(
        experiment, {"method": methods}, seeds=seeds, out=out, jobs=jobs, on_divergence=on_divergence,
        mixed_versions=mixed_versions, on_progress=on_progress, progress=progress,
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
