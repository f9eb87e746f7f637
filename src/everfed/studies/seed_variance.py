"""Where the variance over seeds comes from: the split, the initial weights, the minibatches or the schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from everfed.checks import check_count
from everfed.errors import InputError, some
from everfed.run.experiment import Experiment, Seeds
from everfed.stats import Summary, summarize
from everfed.store import StoredRun, open_run
from everfed.studies.sweep import Planned, folder_name, run_all

KINDS = Seeds._fields


@dataclass(frozen=True)
class SeedEffects:
    """The variance of a run's result over seeds, and the part that each kind of chance has in it.

    A part is the variance that is left if all other kinds of chance are held still, on average over
    them. Kinds that act together count in each of their parts, so the parts may add up to more than 1.
    """

    variance: float
    parts: dict[str, Summary]  # of KINDS that the experiment does not pin: variance, over repeats

    def share(self, kind: str) -> float:
        return self.parts[kind].mean / self.variance if self.variance else 0.0

    def to_dict(self) -> dict[str, Any]:
        parts = {kind: {**part.to_dict(), "share": self.share(kind)} for kind, part in self.parts.items()}
        return {"sd": self.variance**0.5, "parts": parts}


def accuracy(run: StoredRun) -> float:
    """The last evaluation's accuracy."""
    if run.final is None or run.final.accuracy is None:
        raise InputError(f"the run '{run.path}' has no accuracy to compare.")
    return run.final.accuracy


def seed_effects(
    experiment: Experiment,
    repeats: int = 10,
    *,
    out: Path | str = "everfed-out/seed-effects",
    value: Callable[[StoredRun], float] = accuracy,
    jobs: int | None = 1,
) -> SeedEffects:
    """Run an experiment `repeats` times, and as often with one kind of random draw redrawn: 5 runs per repeat.

    Half the mean square of the change is the variance that this kind causes (Jansen's estimator of the
    total effect). Seeds are chosen here, whatever the experiment's own `seed` is: 0, 2, 4, ... for the runs and
    1, 3, 5, ... for what is drawn anew. A kind that the experiment pins (`split_seed = 3`) is held still, and has
    no part.

    experiment: what to run.
    repeats: how often, at least 2.
    out: the folder of the runs; what is done there already is not done again.
    value: the number of a run that is looked at; by default its final accuracy.
    jobs: parallel processes.

    >>> import tempfile, everfed as ef
    >>> experiment = ef.Experiment(rounds=20, model="logistic", split_seed=0, init_seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = ef.seed_effects(experiment, repeats=2, out=folder)
    >>> sorted(found.parts)
    ['batch', 'schedule']
    """
    check_count("repeats", repeats, least=2)  # a variance needs two
    kinds = [kind for kind in KINDS if getattr(experiment, f"{kind}_seed") is None]
    if not kinds:
        raise InputError("the experiment fixes all four seeds, so its runs are identical; remove one of them.")
    runs = [run for repeat in range(repeats) for run in _designed(experiment, kinds, repeat, Path(out))]
    left = [run for run in runs if not (run.folder / "result.json").exists()]
    if left:
        run_all(left, jobs=jobs)
    stored = [open_run(run.folder) for run in runs]
    if cut := [f"'{run.path}' ({run.state})" for run in stored if run.state != "done"]:
        raise InputError(f"{len(cut)} of {len(stored)} runs have no final result to compare: {some(cut)}.")
    values = np.array([value(run) for run in stored]).reshape(repeats, 1 + len(kinds))
    halves = (values[:, 1:] - values[:, :1]) ** 2 / 2
    parts = {kind: summarize(halves[:, i]) for i, kind in enumerate(kinds)}
    return SeedEffects(float(values.var(axis=0, ddof=1).mean()), parts)


def _designed(experiment: Experiment, kinds: Sequence[str], repeat: int, root: Path) -> Sequence[Planned]:
    """A run under one seed, and those with one kind of chance under another."""
    seed, other = 2 * repeat, 2 * repeat + 1
    base = replace(experiment, seed=seed)
    chosen: list[dict[str, Any]] = [{}, *({f"{kind}_seed": other} for kind in kinds)]
    made = [(replace(base, **own), own) for own in chosen]
    return [Planned(one, own, root / folder_name(one, own)) for one, own in made]
