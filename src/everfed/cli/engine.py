"""Who does a command's work: this machine, or a cluster through Ray (imported only where it is asked for)."""

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
    """What executes the runs of a sweep; None: processes of this machine. experiment: one of them, to try."""
    if _is_local(work):
        start(experiment)  # refuse bad input, and say notes once, before workers start
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
    """What sets up a run; None: on this machine alone."""
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
        raise InputError(f"{', '.join(given)} is for clusters; give --engine ray as well.")
    return place.engine == "local"
