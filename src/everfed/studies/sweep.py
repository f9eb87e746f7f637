"""Sweeps: a grid of settings times seeds, in parallel.

Every run has its own folder, named after its settings. A restarted sweep skips finished runs and resumes interrupted
ones.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everfed.errors import InputError, warn
from everfed.machine import cores
from everfed.methods import METHODS, as_method
from everfed.run import config, live
from everfed.run.experiment import Experiment, Seeds, kind_of
from everfed.run.loop import Run
from everfed.run.setup import resolve_device
from everfed.scheduling.policies import Energy
from everfed.store import StoredRun, StoreError, open_run, stored_rounds
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.store.trackers import tracked
from everfed.studies.processes import Crew

_MANY_RUNS, _MOST_RUNS = 1000, 1_000_000


@dataclass(frozen=True)
class Planned:
    """A run of a sweep, and what sets it apart from the others."""

    experiment: Experiment
    settings: dict[str, Any]  # the grid's values, without the seed
    folder: Path

    @property
    def label(self) -> str:
        return ", ".join(str(v) if k in ("method", "policy") else f"{k}={v}" for k, v in self.settings.items()) or "run"

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.experiment.seed}"


@dataclass(frozen=True)
class Progress:
    """How far one of the runs is; `note` is for people."""

    run: int
    round: int
    accuracy: float | None = None
    note: str | None = None
    loss: float | None = None


Tell = Callable[[Progress], None]
Asked = Callable[[], bool]  # whether to stop
UnderWay = Callable[[bool], None]  # hears whether rounds are under way, which a stop would finish and save
# Executes runs, each with `execute` and these options; decides where, and how many in parallel.
Executor = Callable[[Sequence[Planned], dict[str, Any], Tell, Asked], None]


def plan_runs(
    raw: Mapping[str, Any] | Experiment, grid: Mapping[str, Sequence[Any]], seeds: Sequence[int], root: Path
) -> list[Planned]:
    """Every combination of the grid's values, times the seeds; seeds of one combination together.

    raw: the content of an experiment file, or an experiment. The grid's values may be live objects too, and its
    methods names, Methods or policies.
    """
    known = live.objects((raw if isinstance(raw, Experiment) else None, *map(_tuples, grid.values())))
    raw = config.to_dict(raw) if isinstance(raw, Experiment) else raw
    if not seeds:
        raise InputError("a sweep needs at least one seed.")
    _check_grid(grid, seeds)
    runs = []
    for values in itertools.product(*grid.values()):
        settings, content = {}, deepcopy(dict(raw))
        for key, value in zip(grid, values, strict=True):
            settings[key] = _set(content, key, value)
        experiment = live.restored(config.from_dict(content), known)
        for seed in seeds:
            one = replace(experiment, seed=seed).pinned()
            runs.append(Planned(one, settings, root / folder_name(one, settings)))
    _check_distinct(runs)
    return runs


def _set(content: dict[str, Any], key: str, value: Any) -> Any:
    """Set a key of an experiment's content to a value of a grid; returns what the grid calls that value."""
    if key == "method" and not isinstance(value, str):
        method = as_method(value)
        config.change(content, "policy", config.to_dict(method.policy))
        config.change(content, "server", config.to_dict(method.server))
        named = (
            name for name, known in METHODS.items() if (known.policy, known.server) == (method.policy, method.server)
        )
        return next(named, method.title)
    if isinstance(value, list | tuple):  # such as metrics
        names, parts = [], []
        for part in value:
            inner: dict[str, Any] = {}
            names.append(_set(inner, "part", part))
            parts.append(inner["part"])
        config.change(content, key, parts)
        return names
    if value is None or isinstance(value, bool | int | float | str | dict):
        config.change(content, key, value)
        return value
    written = config.to_dict(value)
    config.change(content, key, written)
    if known := live.recall(written):
        return known.label
    return kind_of(value) if value == type(value)() else repr(value)


def _tuples(values: Any) -> Any:
    """Lists as tuples, at any depth: those that a search for live objects goes through."""
    return tuple(map(_tuples, values)) if isinstance(values, list | tuple) else values


def overwritten(key: str, by: str) -> bool:
    """Whether setting `by` after `key` undoes it: a whole part replaces its options, and a method its parts."""
    if by == "method":
        return key.split(".")[0] in ("method", "policy", "server")
    whole = by.removesuffix(".kind")
    return key == whole or key.startswith((whole + ".", whole + "["))


def _check_grid(grid: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> None:
    if "seed" in grid:
        values = ",".join(map(str, grid["seed"]))
        raise InputError(f"seeds are not part of the grid: write --seeds {values} instead of --grid seed={values}.")
    if double := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise InputError(f"seed {double[0]} is given {seeds.count(double[0])} times; give each seed once.")
    runs = len(seeds) * math.prod(map(len, grid.values()))
    if runs > _MOST_RUNS:
        raise InputError(f"the grid and the seeds make {runs:,} runs; split them into sweeps of up to {_MOST_RUNS:,}.")
    if runs > _MANY_RUNS:
        warn(f"planning {runs:,} runs, which takes a while.", 3)
    for i, key in enumerate(grid):
        if not grid[key]:
            raise InputError(f"the grid has no value for '{key}'; give at least one.")
        for later in list(grid)[i + 1 :]:
            if overwritten(key, later):
                raise InputError(f"the grid's '{later}' overrides its '{key}'; put '{later}' first, or remove one.")


def _check_distinct(runs: Sequence[Planned]) -> None:
    """Nothing is run twice, since one experiment may be written in two ways, such as 1 and 1.0; and no label stands
    for two experiments, whose runs would be averaged as seeds of one."""
    first: dict[str, Planned] = {}
    labelled: dict[str, dict[str, Any]] = {}
    for run in runs:
        twin = first.setdefault(config.to_toml(run.experiment.same_run()), run)
        if twin is not run:
            a, b = (f"'{one.name}'" for one in (twin, run))
            if twin.experiment.seed != run.experiment.seed:
                pinned = ", ".join(f"{kind}_seed" for kind in Seeds._fields)
                raise InputError(
                    f"{pinned} are all set, so every seed gives the same run, as {a} and {b} would; give one seed, or "
                    "remove one of them."
                )
            raise InputError(f"the grid contains one run twice, as {a} and as {b}; give each value once.")
        if labelled.setdefault(run.label, run.settings) is not run.settings:
            raise InputError(f"two settings of the grid are both called '{run.label}'; give them different names.")


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
    mixed_versions: bool = False,
    trackers: Sequence[str] = (),
    on_progress: Tell = lambda progress: None,
    stop: Asked = lambda: False,
    under_way: UnderWay = lambda rounds: None,
    executor: Executor | None = None,
    make: Callable[[Experiment], Run] | None = None,
) -> list[StoredRun]:
    """Do what is still to do; returns all runs as stored, in the order given.

    On a CPU one process per core; on a GPU one run after the other, unless `jobs` says how many share
    it, or an `executor` has them done elsewhere. A run that fails (it diverges, or its process is lost twice) does not
    end the others. Once `stop` says so, every run saves its state after its round. make: sets each run up in another
    way than `start`, as for `stored_rounds`; with processes it must be a function that can be imported.
    """
    options = {
        "checkpoint_s": checkpoint_s,
        "on_divergence": on_divergence,
        "mixed_versions": mixed_versions,
        "trackers": tuple(trackers),
        "make": make,
    }
    notes: dict[int, str] = {}

    def tell(progress: Progress) -> None:
        if progress.note:
            notes[progress.run] = progress.note
        on_progress(progress)

    if executor:
        under_way(True)
    (executor or _Here(jobs, under_way))(runs, options, tell, stop)
    under_way(False)
    opened = [_opened(run) if (run.folder / "experiment.toml").exists() else None for run in runs]
    left = [i for i, run in enumerate(opened) if run is None or run.state not in ("done", "diverged")]
    if left and not stop():
        why = next((f" ({notes[i]})" for i in left if i in notes), "")
        warn(f"{len(left)} of {len(runs)} runs are not finished{why}; the same call goes on with them.", 3)
    return [run for run in opened if run]


def _opened(run: Planned) -> StoredRun | None:
    """A run as stored, with the live objects that its folder only names; None if it cannot be read, which is said."""
    try:
        stored = open_run(run.folder)
    except StoreError as error:
        warn(f"{error}.")
        return None
    return replace(stored, experiment=live.restored(stored.experiment, live.objects(run.experiment)))


@dataclass(frozen=True)
class _Here:
    """On this machine: one after the other, or in processes side by side."""

    jobs: int | None
    under_way: UnderWay

    def __call__(self, runs: Sequence[Planned], options: dict[str, Any], on_progress: Tell, stop: Asked) -> None:
        on_gpu = resolve_device(runs[0].experiment.device).type == "cuda"
        workers = min(self.jobs or (1 if on_gpu else cores()), len(runs))
        if workers > 1:
            self.under_way(True)
            self._in_processes(runs, workers, options, on_progress, stop)
            return
        for i, run in enumerate(runs):
            if not stop():
                execute(i, run, options, on_progress, stop, self.under_way)
                self.under_way(False)

    def _in_processes(
        self, runs: Sequence[Planned], workers: int, options: dict[str, Any], on_progress: Tell, stop: Asked
    ) -> None:
        reached = [0] * len(runs)

        def tell(progress: Progress) -> None:
            reached[progress.run] = progress.round
            on_progress(progress)

        def on_loss(i: int, how: str, again: bool) -> None:
            then = "resuming it from its last checkpoint" if again else "the same command resumes it"
            note = f"{runs[i].name}: its process was lost{' again' * (not again)} ({how}); {then}."
            on_progress(Progress(i, reached[i], note=note))

        tasks = [(i, run, options) for i, run in enumerate(runs)]
        threads = max(1, cores() // workers)
        Crew(execute, tasks, longest_first(runs), workers, threads, tell, on_loss, stop).run()


def longest_first(runs: Sequence[Planned]) -> list[int]:
    """The longest runs (most participants) first, so that no process idles at the end."""
    return sorted(range(len(runs)), key=lambda i: runs[i].experiment.policy.energy is Energy.OBEYED)


def execute(
    index: int,
    run: Planned,
    options: dict[str, Any],
    tell: Tell,
    stop: Asked,
    under_way: UnderWay = lambda rounds: None,
) -> None:
    """One run, in its folder; `tell` hears of every round."""
    last = Progress(index, 0)
    trackers = options["trackers"]
    storing = {key: value for key, value in options.items() if key != "trackers"}
    try:
        rounds = stored_rounds(run.experiment, run.folder, stop=stop, on_start=lambda made: under_way(True), **storing)
        for record in tracked(rounds, trackers, run.experiment, run.folder):
            if record.metrics:
                last = replace(last, accuracy=record.metrics.accuracy, loss=record.metrics.loss)
            tell(replace(last, round=record.round + 1))
    except InputError:
        raise
    except (RuntimeError, MemoryError) as error:  # it diverged, or its folder cannot be written: the others go on
        tell(replace(last, round=run.experiment.rounds, note=f"{run.name}: {error}"))
        return
    if not stop():
        final = open_run(run.folder).final
        last = replace(last, accuracy=final.accuracy, loss=final.loss) if final else last
        tell(replace(last, round=run.experiment.rounds))
