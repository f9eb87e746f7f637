"""Many runs: over methods and seeds, side by side on the cores there are."""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import torch

from everfed.energy.battery import Books
from everfed.errors import InputError, lookup
from everfed.experiment import Experiment
from everfed.learning.evaluate import Metrics
from everfed.methods import METHODS
from everfed.simulate import resolve_device

COMPARED = ("algorithm1", "greedy", "wait-for-all", "fedavg")


@dataclass(frozen=True)
class Progress:
    """How far one of the runs is."""

    run: int
    round: int
    accuracy: float | None


@dataclass(frozen=True)
class Outcome:
    """What a comparison needs to know of a finished run."""

    experiment: Experiment
    rounds: tuple[int, ...]  # rounds done at each evaluation
    metrics: tuple[Metrics, ...]
    spent: tuple[float, ...]  # energy spent by then, in units
    participations: int
    energy: Books


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds (0 for a single seed)."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    def to_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "sd": self.sd}


def grid(base: Experiment, methods: Sequence[str], seeds: Sequence[int]) -> list[Experiment]:
    """One experiment for every method and seed, seeds of one method together."""
    if not methods or not seeds:
        raise InputError("a comparison needs at least one method and one seed.")
    for name in methods:
        lookup(METHODS, name, "method")
    return [replace(base, method=m, seed=s) for m in methods for s in seeds]


def execute(experiment: Experiment, report: Callable[[int, float | None], None] = lambda r, a: None) -> Outcome:
    """Run one experiment to its end; `report` hears of every round."""
    run = experiment.simulation()
    rounds, metrics, spent, participations = [], [], [], 0
    record = None
    for record in run:
        participations += len(record.participants)
        if record.metrics:
            rounds.append(record.round + 1)
            metrics.append(record.metrics)
            spent.append(record.energy.spent)
        report(record.round + 1, record.metrics.accuracy if record.metrics else None)
    assert record is not None
    return Outcome(experiment, tuple(rounds), tuple(metrics), tuple(spent), participations, record.energy)


def run_all(
    experiments: Sequence[Experiment], jobs: int | None = None, on_progress: Callable[[Progress], None] = lambda p: None
) -> list[Outcome]:
    """Outcomes in the order given. On a CPU, one process a core; on a GPU, one after the other."""
    on_gpu = resolve_device(experiments[0].device).type == "cuda"
    workers = 1 if on_gpu else min(jobs or len(os.sched_getaffinity(0)), len(experiments))
    if workers == 1:
        return [
            execute(e, lambda r, a, i=i: on_progress(Progress(i, r, a)))  # type: ignore[misc]
            for i, e in enumerate(experiments)
        ]
    return list(_in_processes(experiments, workers, on_progress))


def _in_processes(
    experiments: Sequence[Experiment], workers: int, on_progress: Callable[[Progress], None]
) -> Iterator[Outcome]:
    # Spawned, not forked: a forked child of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    inbox: Any = context.Queue()
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(inbox, threads))
    # The longest runs (most participants) first, so that no core idles at the end.
    order = sorted(range(len(experiments)), key=lambda i: experiments[i].method != "fedavg")
    futures: dict[int, Future[Outcome]] = {}
    try:
        for i in order:
            futures[i] = pool.submit(_work, i, experiments[i])
        pending: set[Future[Outcome]] = set(futures.values())
        while pending:
            done, pending = wait(pending, timeout=0.1)
            for future in done:
                future.result()  # an error stops the comparison now, not at its end
            _drain(inbox, on_progress)
        yield from (futures[i].result() for i in range(len(experiments)))
    finally:
        for process in list((pool._processes or {}).values()):
            if any(not f.done() for f in futures.values()):
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _drain(inbox: Any, on_progress: Callable[[Progress], None]) -> None:
    while True:
        try:
            on_progress(inbox.get_nowait())
        except queue.Empty:
            return


_inbox: Any = None  # in a worker process: where progress goes


def _start_worker(inbox: Any, threads: int) -> None:
    global _inbox
    _inbox = inbox
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # the parent has said it once


def _work(index: int, experiment: Experiment) -> Outcome:
    return execute(experiment, lambda r, a: _inbox.put(Progress(index, r, a)))


def summarize(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Method by method: mean and sd over seeds, and the mean energy books."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(o.experiment.method for o in outcomes):
        runs = [o for o in outcomes if o.experiment.method == method]
        finals = [o.metrics[-1] for o in runs]
        books = [o.energy.to_dict() for o in runs]
        summary[method] = {
            "accuracy": Spread.of([f.accuracy or 0.0 for f in finals]).to_dict(),
            "worst_group_accuracy": Spread.of([f.worst_group_accuracy or 0.0 for f in finals]).to_dict(),
            "group_accuracy": {
                label: Spread.of([(f.group_accuracy or {})[label] for f in finals]).to_dict()
                for label in finals[0].group_accuracy or {}
            },
            "loss": Spread.of([f.loss for f in finals]).to_dict(),
            "participations": statistics.fmean(o.participations for o in runs),
            "energy": {key: statistics.fmean(b[key] for b in books) for key in books[0]},
        }
    return summary
