"""Tuning: settings per method, chosen on the same held-out samples with equal budgets.

A sweep over methods, candidates and seeds in which a part of the training samples is held out and
evaluated on. The test set is not loaded into any of these runs. If the best value is at the edge of its grid, the grid
is extended there for all methods, so that each has the same number of runs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everfed.checks import check_count, check_within
from everfed.errors import InputError, counted
from everfed.methods import COMPARED, METHODS
from everfed.registry import lookup
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.stats import finite, summarize
from everfed.store import StoredRun, StoreError, open_run
from everfed.store.files import write_atomically
from everfed.studies.following import followed
from everfed.studies.sweep import Planned, plan_runs, run_all
from everfed.studies.yardstick import ACCURACY, LOSS, Yardstick, yardstick

VALIDATION = 0.1  # of the training samples, where the experiment does not say
MOST_STEPS = 6  # by which a grid is extended on one side
SEEDS = (1000, 1001, 1002)  # far from those that results are reported on
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # the default grid, around the experiment's own rate
_SCORED = ("rounds", "eval_every")  # how long a run is, and where it is looked at: alike for all
_WORK = ("local_steps", "batch_size")  # what a round costs in samples
_LAST = 0.1  # of the rounds: evaluations in there are averaged into a run's score

Run = Callable[[Sequence[Planned]], object]


@dataclass(frozen=True)
class Trial:
    """One candidate of one method, and its score under each seed; None where the run diverged."""

    method: str
    settings: dict[str, Any]
    scores: tuple[float | None, ...]

    @property
    def score(self) -> float:
        """The mean over seeds; a candidate that diverged under any of them is worse than all that did not."""
        known = [score for score in self.scores if score is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(self.scores) else -math.inf

    def to_dict(self) -> dict[str, Any]:
        known = [score for score in self.scores if score is not None]
        ci = summarize(known).to_dict()["ci95"] if len(known) == len(self.scores) else None
        return {**vars(self), "scores": list(self.scores), "mean": finite(self.score), "ci95": ci}


@dataclass(frozen=True)
class Tuned:
    """What was tried, and what came out."""

    raw: dict[str, Any]  # the experiment that was tuned, as in a file
    grid: dict[str, list[Any]]  # as extended
    first_grid: dict[str, list[Any]]  # as given
    seeds: tuple[int, ...]
    validation: float
    trials: tuple[Trial, ...]
    judged: Yardstick = ACCURACY
    notes: tuple[str, ...] = ()  # in words: best values that still lie at an edge, methods that always diverge

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(trial.method for trial in self.trials))

    @property
    def runs_per_method(self) -> int:
        return len(self.trials) // len(self.methods) * len(self.seeds)

    def best(self, method: str) -> Trial:
        """The highest score; of equal ones, that with the smallest values."""
        mine = [trial for trial in self.trials if trial.method == method]
        if not mine:
            lookup({name: None for name in self.methods}, method, "tuned method")
        return max(mine, key=lambda trial: trial.score)  # trials are in ascending order, and max takes the first

    def content(self) -> dict[str, Any]:
        """The experiment with what was chosen in a table for each method: what `compare` takes."""
        out = {key: value for key, value in deepcopy(self.raw).items() if key != "validation"}
        out["tuned_on"] = sorted({*config.tuned_on(out), *self.seeds})
        for method in self.methods:
            for key, value in self.best(method).settings.items():
                config.change(out, f"methods.{method}.{key}", value)
        return out

    def experiment(self, method: str) -> Experiment:
        """The experiment of one method with what was chosen for it, on the test set."""
        self.best(method)
        content = self.content()
        config.change(content, "method", method)
        return config.from_dict(content)

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": f"{'' if self.judged.higher_is_better else 'minus the '}validation {self.judged.name}, mean over "
            f"seeds and over evaluations in the last {_LAST:g} of the rounds",
            "validation": self.validation,
            "seeds": list(self.seeds),
            "grid": self.first_grid,
            "extended_grid": self.grid,
            "runs_per_method": self.runs_per_method,
            "best": {method: self.best(method).to_dict() for method in self.methods},
            "notes": list(self.notes),
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def save(self, folder: Path) -> tuple[Path, Path]:
        """tuned.toml, an experiment file, and tuned.json with all that was tried."""
        folder.mkdir(parents=True, exist_ok=True)
        spelled = " ".join(f"--grid {key}={','.join(map(str, values))}" for key, values in self.grid.items())
        head = (
            f"# Chosen for each method on {self.validation:g} of the training samples, held out, over seeds "
            f"{', '.join(map(str, self.seeds))}.\n# Report on other seeds. Tried: {spelled}\n"
        )
        write_atomically(folder / "tuned.toml", head + config.raw_to_toml(self.content()))
        write_atomically(folder / "tuned.json", json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        return folder / "tuned.toml", folder / "tuned.json"


def tune(
    experiment: Experiment | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    methods: Sequence[str] = COMPARED,
    seeds: Sequence[int] = SEEDS,
    out: Path | str = "everfed-out/tune",
    validation: float | None = None,
    extend: int = MOST_STEPS,
    budget: int | None = None,
    run: Run | None = None,
    jobs: int | None = 1,
    progress: bool | None = None,
) -> Tuned:
    """Choose settings for each method on held-out samples; every method has the same number of runs.

    experiment: an Experiment, or the content of a file.
    grid: values by key; None: the experiment's own client.lr times 1/4, 1/2, 1, 2 and 4.
    methods: their names.
    seeds: to tune on; report results on others.
    out: the folder of the runs; finished ones are not repeated.
    validation: the fraction held out; None: the experiment's own, or 0.1.
    extend: maximum steps by which a numeric grid is extended if the best value is at its edge.
    budget: maximum runs per method.
    run: executes the runs instead of local processes, and then also shows how far they are.
    jobs: parallel processes.
    progress: whether to show a line of progress; None: in notebooks and terminals.

    A run's score is its validation accuracy, averaged over the evaluations in the last tenth of its rounds
    (without classes: minus the validation loss).

    >>> import tempfile, everfed as ef
    >>> experiment = ef.Experiment(rounds=20, model="logistic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tuned = ef.tune(experiment, {"client.lr": [0.1, 0.4]}, methods=["greedy"], seeds=[7], extend=0, out=folder)
    >>> sorted(tuned.best("greedy").settings)
    ['client.lr']
    """
    raw = config.to_dict(experiment) if isinstance(experiment, Experiment) else deepcopy(dict(experiment))
    if validation is not None:
        check_within("(0, 1)", validation=validation)
    held = float(validation or config.from_dict(raw).validation or VALIDATION)
    config.change(raw, "validation", held)
    first = {key: _ordered(values) for key, values in (grid or default_grid(raw)).items()}
    _check(methods, seeds, first, extend, budget)
    _check_budgets(raw, methods, first)

    def here(runs: Sequence[Planned]) -> None:
        with followed(runs, progress) as tell:
            run_all(runs, jobs=jobs, on_progress=tell)

    carry_out = run or here
    axes, steps = dict(first), {(key, side): 0 for key in first for side in (0, -1)}
    while True:
        trials, judged = _trials(raw, axes, methods, seeds, Path(out) / "runs", carry_out)
        found = Tuned(raw, axes, first, tuple(seeds), held, tuple(trials), judged)
        wider, stuck = dict(axes), dict[tuple[str, int], str]()
        for key, side in edges(found):
            value = _beyond(axes[key], side)
            reason: str | None
            if value is None:
                reason = "it cannot be extended geometrically"
            elif steps[key, side] >= extend:
                reason = f"it was extended by {counted(extend, 'step')} already"
            elif budget and _size({**wider, key: [*wider[key], value]}) * len(seeds) > budget:
                reason = f"the budget of {budget} runs for each method is used up"
            else:
                reason = _refusal(raw, key, value)
            if reason is None:
                wider[key] = _ordered([*wider[key], value])
                steps[key, side] += 1
            else:
                stuck[key, side] = reason
        if wider == axes:
            return replace(found, notes=tuple(_notes(found, stuck)))
        axes = wider


def default_grid(raw: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Rates around the experiment's own."""
    lr = getattr(config.from_dict({k: v for k, v in raw.items() if k != "methods"}).client, "lr", None)
    if lr is None:
        raise InputError("the clients' optimiser has no lr to tune; give a grid.")
    return {"client.lr": [float(f"{lr * factor:.6g}") for factor in _FACTORS]}


def edges(found: Tuned) -> list[tuple[str, int]]:
    """(key, 0 for the lower or -1 for the upper end) where some method has its best at the end of a numeric axis.

    Not where another value is as good: a method that learns nothing at any rate would have all others try more.
    """
    out = []
    for key, values in found.grid.items():
        if len(values) > 1 and all(_is_number(value) for value in values):
            alone = [_alone(found, method, key) for method in found.methods]
            out += [(key, side) for side in (0, -1) if values[side] in alone]
    return out


def _alone(found: Tuned, method: str, key: str) -> Any:
    """A setting's best value; None if several are as good. If all diverged, the smallest: less may be right."""
    best = found.best(method)
    values = {t.settings[key] for t in found.trials if t.method == method and t.score == best.score}
    return best.settings[key] if len(values) == 1 or best.score == -math.inf else None


def score(run: StoredRun) -> float | None:
    """Validation accuracy at the end of a run, or minus what should be low; None if it diverged."""
    if run.state == "diverged":
        return None
    if run.state != "done":
        raise StoreError(f"the run '{run.path}' did not finish, so nothing can be chosen; restart to resume.")
    last = [r.metrics for r in run.rounds if r.metrics and r.round + 1 > (1 - _LAST) * len(run.rounds)]
    judged = yardstick([run])  # the same for all candidates, which have the same data
    values = [value for m in last if (value := judged.of(m)) is not None]
    mean = math.fsum(values) / len(values) if values else math.nan
    return (mean if judged.higher_is_better else -mean) if math.isfinite(mean) else None


def _check(
    methods: Sequence[str], seeds: Sequence[int], grid: Mapping[str, Sequence[Any]], extend: int, budget: int | None
) -> None:
    for name in methods:
        lookup(METHODS, name, "method")
    if not methods or len(set(methods)) < len(methods):
        raise InputError("tuning needs at least one method, each given once.")
    for key in grid:
        if key.split(".")[0] in ("method", "methods", "validation") or key == "seed" or key.endswith("_seed"):
            raise InputError(f"'{key}' cannot be tuned; methods are given by --methods and seeds by --seeds.")
    check_count("extend", extend, least=0)
    if budget is not None and _size(grid) * len(seeds) > budget:
        raise InputError(
            f"the grid needs {_size(grid)} x {len(seeds)} runs for each method, more than the budget of {budget}; "
            "give fewer values or seeds."
        )


def _check_budgets(raw: Mapping[str, Any], methods: Sequence[str], grid: Mapping[str, Sequence[Any]]) -> None:
    """Runs of different lengths are no fair comparison, whichever way a length is given."""
    for key in _SCORED:
        if key in grid:
            raise InputError(f"'{key}' cannot be tuned: every candidate must have the same rounds and evaluations.")
        for method, values in _own(raw, methods, [key]).items():
            raise InputError(
                f"methods.{method} sets {key} to {values[key]}, but tuning uses the same for every method; remove it, "
                f"or set {key} for all of them."
            )


def _own(raw: Mapping[str, Any], methods: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Which of these keys a method's table sets to another value than all others have, by method."""
    tables = config.method_settings(raw.get("methods", {}))
    shared = config.from_dict({key: value for key, value in raw.items() if key != "methods"})
    out = {}
    for method in methods:
        own = {key: tables[method][key] for key in keys if key in tables.get(method, {})}
        if apart := {key: value for key, value in own.items() if value != getattr(shared, key)}:
            out[method] = apart
    return out


def _trials(
    raw: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    methods: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    run: Run,
) -> tuple[list[Trial], Yardstick]:
    planned = plan_runs(raw, {"method": methods, **axes}, seeds, root)
    left = [one for one in planned if not (one.folder / "result.json").exists()]
    if left:
        run(left)
    out, judged = [], ACCURACY
    for _, group in itertools.groupby(planned, key=lambda one: json.dumps(one.settings, default=str)):
        members = list(group)
        settings = {key: value for key, value in members[0].settings.items() if key != "method"}
        stored = [open_run(one.folder) for one in members]
        judged = judged if judged is LOSS else yardstick(stored)
        scores = tuple(map(score, stored))
        out.append(Trial(members[0].settings["method"], settings, scores))
    return out, judged


def _beyond(values: Sequence[Any], side: int) -> Any:
    """The next value past one end, at the ratio of the two that are there; None where there is none."""
    end, inner = values[side], values[1 if side == 0 else -2]
    if end <= 0 or inner <= 0:
        return None
    value = end * end / inner
    if isinstance(end, int) and isinstance(inner, int):
        value = round(value)
        return value if value >= 1 and value != end else None
    value = float(f"{value:.6g}")
    return value if math.isfinite(value) and value > 0 else None


def _refusal(raw: Mapping[str, Any], key: str, value: Any) -> str | None:
    """Why the experiment does not take a value, in its own words."""
    content = deepcopy(dict(raw))
    config.change(content, key, value)
    try:
        config.from_dict(content)
    except InputError as error:
        return str(error).rstrip(".")
    return None


def _notes(found: Tuned, stuck: Mapping[tuple[str, int], str]) -> list[str]:
    own = {*found.grid} | {key for apart in _own(found.raw, found.methods, _WORK).values() for key in apart}
    out = [f"candidates differ in {key}, so they train on different numbers of samples." for key in _WORK if key in own]
    out += [
        f"{key} has one value in the grid, {values[0]}, so there was nothing to compare."
        for key, values in found.grid.items()
        if len(values) == 1
    ]
    for method in found.methods:
        best = found.best(method)
        if best.score == -math.inf:
            out.append(f"every candidate of {method} diverged with some seed; give smaller values.")
            continue
        out += [
            f"the best {key} of {method}, {best.settings[key]}, is at the edge of the grid: {stuck[key, side]}."
            for key, side in edges(found)
            if best.settings[key] == found.grid[key][side]
        ]
    return out


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Numbers in ascending order, other values as given."""
    return sorted(values) if all(_is_number(value) for value in values) else list(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(grid: Mapping[str, Sequence[Any]]) -> int:
    return math.prod(len(values) for values in grid.values())
