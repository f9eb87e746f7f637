"""Many runs: a grid of settings times seeds, side by side on the cores there are.

Every run has a folder of its own, named after what sets it apart. A sweep that is started again
skips what is done and resumes what was cut off.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import queue
import re
import signal
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from everfed import config
from everfed.errors import EverfedWarning, InputError
from everfed.experiment import Experiment
from everfed.simulate import resolve_device
from everfed.store import StoredRun, open_run, stored_rounds
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.trackers import tracked

COMPARED = ("algorithm1", "greedy", "wait-for-all", "fedavg")


@dataclass(frozen=True)
class Planned:
    """A run of a sweep, and what sets it apart from the others."""

    experiment: Experiment
    settings: dict[str, Any]  # the grid's values, without the seed
    folder: Path

    @property
    def label(self) -> str:
        return ", ".join(str(v) if k in ("method", "policy") else f"{k}={v}" for k, v in self.settings.items()) or "run"


@dataclass(frozen=True)
class Progress:
    """How far one of the runs is; `note` is for people."""

    run: int
    round: int
    accuracy: float | None = None
    note: str | None = None


class Executor(Protocol):
    """Where and how many at a time runs are executed; it does each of them with `execute`."""

    def __call__(
        self,
        runs: Sequence[Planned],
        options: dict[str, Any],
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None: ...


def plan_runs(
    raw: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], seeds: Sequence[int], root: Path
) -> list[Planned]:
    """Every combination of the grid's values, times the seeds; seeds of one combination together."""
    if not seeds:
        raise InputError("a sweep needs at least one seed.")
    runs = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        content = deepcopy(dict(raw))
        for key, value in settings.items():
            config.change(content, key, value)
        for seed in seeds:
            experiment = replace(config.from_dict(content), seed=seed).pinned()
            runs.append(Planned(experiment, settings, root / folder_name(experiment, settings)))
    doubles = len(runs) - len({run.folder for run in runs})
    if doubles:
        raise InputError(f"the grid names {doubles} run{'s' * (doubles > 1)} twice; give each value once.")
    return runs


def folder_name(experiment: Experiment, settings: Mapping[str, Any] | None = None) -> str:
    """What sets a run apart, for people, and a short hash of the whole experiment."""
    parts = [experiment.method]
    parts += [f"{key}={value}" for key, value in (settings or {}).items() if key not in ("method", "policy")]
    parts.append(f"seed={experiment.seed}")
    tag = hashlib.sha256(config.identity(experiment).encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "_", "-".join([*parts, tag]))


def run_all(
    runs: Sequence[Planned],
    *,
    jobs: int | None = None,
    checkpoint_s: float = DEFAULT_CHECKPOINT_S,
    on_divergence: str = "stop",
    trackers: Sequence[str] = (),
    on_progress: Callable[[Progress], None] = lambda p: None,
    stop: Callable[[], bool] = lambda: False,
    executor: Executor | None = None,
) -> list[StoredRun]:
    """Do what is still to do; returns all runs as stored, in the order given.

    On a CPU one process a core; on a GPU one run after the other, unless `jobs` says how many share
    it, or an `executor` has them done elsewhere. A run that fails (it diverges) does not end the
    others. Once `stop` says so, every run saves its state after its round.
    """
    options = {"checkpoint_s": checkpoint_s, "on_divergence": on_divergence, "trackers": tuple(trackers)}
    (executor or _Here(jobs))(runs, options, on_progress, stop)
    return [open_run(run.folder) for run in runs if (run.folder / "experiment.toml").exists()]


@dataclass(frozen=True)
class _Here:
    """On this machine: one after the other, or in processes side by side."""

    jobs: int | None

    def __call__(
        self,
        runs: Sequence[Planned],
        options: dict[str, Any],
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None:
        on_gpu = resolve_device(runs[0].experiment.device).type == "cuda"
        workers = min(self.jobs or (1 if on_gpu else len(os.sched_getaffinity(0))), len(runs))
        if workers > 1:
            _in_processes(runs, workers, options, on_progress, stop)
            return
        for i, run in enumerate(runs):
            if not stop():
                execute(i, run, options, on_progress, stop)


def longest_first(runs: Sequence[Planned]) -> list[int]:
    """The longest runs (most participants) first, so that nobody idles at the end."""
    return sorted(range(len(runs)), key=lambda i: runs[i].experiment.policy.obeys_energy)


def execute(
    index: int, run: Planned, options: dict[str, Any], tell: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """One run, in its folder; `tell` hears of every round."""
    accuracy = None
    trackers = options["trackers"]
    storing = {key: value for key, value in options.items() if key != "trackers"}
    try:
        rounds = stored_rounds(run.experiment, run.folder, stop=stop, **storing)
        for record in tracked(rounds, trackers, run.experiment, run.folder):
            if record.metrics:
                accuracy = record.metrics.accuracy
            tell(Progress(index, record.round + 1, accuracy))
    except InputError:
        raise
    except RuntimeError as error:  # it diverged, or its folder cannot be written: the others go on
        tell(Progress(index, run.experiment.rounds, accuracy, note=f"{run.label}, seed {run.experiment.seed}: {error}"))
        return
    if not stop():
        final = open_run(run.folder).final
        tell(Progress(index, run.experiment.rounds, final.accuracy if final else None))


def _in_processes(
    runs: Sequence[Planned],
    workers: int,
    options: dict[str, Any],
    on_progress: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> None:
    # Spawned, not forked: a forked child of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    inbox: Any = context.Queue()
    stopping = context.Event()
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(inbox, stopping, threads)
    ) as pool:
        pending: set[Future[None]] = {pool.submit(_work, i, runs[i], options) for i in longest_first(runs)}
        try:
            while pending:
                done, pending = wait(pending, timeout=0.1)
                if stop() and not stopping.is_set():
                    stopping.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                _drain(inbox, on_progress)
                for future in done:
                    if not future.cancelled():
                        future.result()  # bad input stops the sweep now, not at its end
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _drain(inbox, on_progress)  # after the workers have ended, nothing is still on its way


def _drain(inbox: Any, on_progress: Callable[[Progress], None]) -> None:
    while True:
        try:
            on_progress(inbox.get_nowait())
        except queue.Empty:
            return


_inbox: Any = None  # in a worker process: where progress goes
_stopping: Any = None  # and the event that ends it


def _start_worker(inbox: Any, stopping: Any, threads: int) -> None:
    global _inbox, _stopping
    _inbox, _stopping = inbox, stopping
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks the workers to save
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", EverfedWarning)  # the parent has said them once


def _work(index: int, run: Planned, options: dict[str, Any]) -> None:
    execute(index, run, options, _inbox.put, _stopping.is_set)


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


def summarize(labelled: Sequence[tuple[str, StoredRun]]) -> dict[str, dict[str, Any]]:
    """Label by label: mean and sd over finished seeds, and the mean energy books."""
    summary: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(label for label, _ in labelled):
        runs = [run for name, run in labelled if name == label and run.state == "done"]
        finals = [run.final for run in runs if run.final and run.final.accuracy is not None]
        if not runs or not finals:
            continue
        books = [run.energy.to_dict() for run in runs]
        summary[label] = {
            "accuracy": Spread.of([f.accuracy or 0.0 for f in finals]).to_dict(),
            "worst_group_accuracy": Spread.of([f.worst_group_accuracy or 0.0 for f in finals]).to_dict(),
            "group_accuracy": {
                group: Spread.of([(f.group_accuracy or {}).get(group, 0.0) for f in finals]).to_dict()
                for group in finals[0].group_accuracy or {}
            },
            "loss": Spread.of([f.loss for f in finals]).to_dict(),
            "participations": statistics.fmean(run.participations for run in runs),
            "energy": {key: statistics.fmean(b[key] for b in books) for key in books[0]},
            "seeds": [run.experiment.seed for run in runs],
        }
    return summary
