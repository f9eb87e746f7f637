"""Where a command's work runs: on this machine, or on a Ray cluster (Ray is imported only when requested)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from everfed.cli.options import ENGINES, Place, Work
from everfed.errors import InputError, unknown
from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.run.start import start
from everfed.studies import sweep


@contextmanager
def executor(work: Work, experiment: Experiment) -> Iterator[sweep.Executor | None]:
    """The executor of a sweep's runs; None: local processes. experiment: one of the runs, to check the input."""
    if _is_local(work):
        start(experiment)  # reject bad input, and print notes once, before workers start
        yield None
        return
    from everfed.ray import OnCluster, connect, on_driver

    with connect(work.address or os.environ.get("RAY_ADDRESS")) as cluster:
        start(on_driver(experiment, cluster.on_gpu(experiment.device)))
        yield OnCluster(cluster, work.jobs)


@contextmanager
def maker(
    place: Place, workers: int, state: str | None, on_divergence: str
) -> Iterator[Callable[[Experiment], Run] | None]:
    """The function that sets up a run; None: on this machine."""
    if _is_local(place, {"--workers": workers, "--client-state": state}):
        yield None
        return
    from everfed.ray import connect, sharded

    with connect(place.address or os.environ.get("RAY_ADDRESS")) as cluster, ExitStack() as stack:

        def make(experiment: Experiment) -> Run:
            made = sharded(experiment, cluster, workers, state=state or "worker", on_divergence=on_divergence)
            return stack.enter_context(made)

        yield make


def _is_local(place: Place, of_ray: dict[str, object] | None = None) -> bool:
    if place.engine not in ENGINES:
        raise InputError(unknown("engine", place.engine, ENGINES))
    given = [flag for flag, value in {"--address": place.address, **(of_ray or {})}.items() if value]
    if place.engine == "local" and given:
        raise InputError(f"{', '.join(given)} applies to clusters; add --engine ray.")
    return place.engine == "local"
