"""What a sweep found, label by label: means over seeds with their intervals, and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everfed.learning.metrics import Metrics
from everfed.run.config import to_dict
from everfed.run.experiment import Experiment
from everfed.stats import holm, paired, summarize as moments
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import yardstick

Labelled = Sequence[tuple[str, StoredRun]]


def summarize(labelled: Labelled) -> dict[str, dict[str, Any]]:
    """Label by label: mean, sd and 95 % interval over finished seeds, and the mean energy books.

    Of the accuracy, its groups and the loss; where runs have no accuracy, of the loss and its groups.
    """
    judged = yardstick(run for _, run in labelled)
    summary: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(label for label, _ in labelled):
        runs = [run for name, run in labelled if name == label and run.state == "done"]
        finals = [run.final for run in runs if run.final]
        if not runs or not finals:
            continue
        books = [run.energy.to_dict() for run in runs]
        summary[label] = {
            judged.name: _moments(map(judged.of, finals)),
            f"worst_group_{judged.name}": _moments(map(judged.worst_group, finals)),
            f"group_{judged.name}": {
                group: _moments(judged.groups(f).get(group) for f in finals) for group in judged.groups(finals[0])
            },
            "loss": _moments(f.loss for f in finals),
            **({"metrics": own} if (own := further(finals)) else {}),
            "participations": statistics.fmean(run.participations for run in runs),
            "energy": {key: statistics.fmean(b[key] for b in books) for key in books[0]},
            "seeds": [run.experiment.seed for run in runs],
        }
    return summary


def further(finals: Sequence[Metrics]) -> dict[str, dict[str, Any] | None]:
    """Mean, sd and 95 % interval of every metric beside accuracy and loss."""
    names = dict.fromkeys(name for final in finals for name in final.own)
    return {name: _moments(final.own.get(name) for final in finals) for name in names}


def _moments(values: Iterable[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return moments(known).to_dict() if known else None


def unfinished(labelled: Labelled) -> dict[str, dict[str, list[int]]]:
    """Label by label, for those with runs that are not done: the seeds in each state, such as diverged."""
    out: dict[str, dict[str, list[int]]] = {}
    for label, run in labelled:
        if run.state != "done":
            out.setdefault(label, {}).setdefault(run.state, []).append(run.experiment.seed)
    return out


def reference_of(labels: Sequence[str]) -> str | None:
    """What the others are compared with: Algorithm 1 where it is there, otherwise the first."""
    return "algorithm1" if "algorithm1" in labels else next(iter(labels), None)


def differences(labelled: Labelled, reference: str) -> dict[str, dict[str, Any]]:
    """Label by label: accuracies or losses minus the reference's, of seeds that both finished, on the same samples.

    p is of the paired t test, p_holm the same corrected for all tests that were made, p_flip of the exact sign-flip
    test (see `stats.paired`). A label with one pair is not tested.
    """
    labels = [label for label in dict.fromkeys(label for label, _ in labelled) if label != reference]
    out: dict[str, dict[str, Any]] = {label: {} for label in labels}
    judged = yardstick(run for _, run in labelled)
    for name, value in ((judged.name, judged.of), (f"worst_group_{judged.name}", judged.worst_group)):
        pairs = {label: _pairs(labelled, label, reference, value) for label in labels}
        there = [label for label in labels if pairs[label]]
        made = [paired(*zip(*pairs[label], strict=True)) for label in there]
        corrected = iter(holm([d.p for d in made if d.tested]))
        for label, difference in zip(there, made, strict=True):
            out[label][name] = {**difference.to_dict(), "p_holm": next(corrected) if difference.tested else None}
    return {label: row for label, row in out.items() if row}


def incomparable(labelled: Labelled, reference: str) -> list[str]:
    """A note if some labels were evaluated on other samples than the reference, seed by seed: no differences there."""
    base, apart = _done(labelled, reference), []
    for label in dict.fromkeys(label for label, _ in labelled):
        mine = _done(labelled, label)
        if any(_evaluated_on(mine[s].experiment) != _evaluated_on(base[s].experiment) for s in mine.keys() & base):
            apart.append(label)
    if not apart:
        return []
    return [
        f"Not evaluated on the same samples as {reference} (such as validation and test samples), so no differences "
        f"are computed between those runs: {'; '.join(apart[:4])}{f' and {len(apart) - 4} more' * (len(apart) > 4)}."
    ]


def _pairs(
    labelled: Labelled, label: str, reference: str, value: Callable[[Metrics], float | None]
) -> list[tuple[float, float]]:
    """(its value, the reference's) under each seed that both finished, on the same samples."""
    mine, base = _done(labelled, label), _done(labelled, reference)
    out = []
    for seed in sorted(mine.keys() & base):
        both = [v for run in (mine[seed], base[seed]) if run.final and (v := value(run.final)) is not None]
        known = len(both) == 2 and all(map(math.isfinite, both))
        if known and _evaluated_on(mine[seed].experiment) == _evaluated_on(base[seed].experiment):
            out.append((both[0], both[1]))
    return out


def _done(labelled: Labelled, label: str) -> dict[int, StoredRun]:
    return {run.experiment.seed: run for name, run in labelled if name == label and run.state == "done"}


def _evaluated_on(experiment: Experiment) -> tuple[Any, ...]:
    """What the samples depend on that a run is evaluated on; held-out ones are drawn from what is trained on."""
    held = experiment.validation
    aside = {"folder", "augment"} if held else {"folder", "augment", "train_limit"}
    data = {key: value for key, value in to_dict(experiment.data).items() if key not in aside}
    return data, held, experiment.seeds.split if held else None
