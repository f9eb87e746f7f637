"""Lines: runs that differ in their seed alone, averaged and drawn as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.config import differences, to_dict
from everfed.errors import InputError
from everfed.experiment import Experiment
from everfed.learning.evaluate import Metrics
from everfed.methods import METHODS
from everfed.report.style import Style, styles
from everfed.simulate import RoundRecord
from everfed.stats import margins
from everfed.store.run import StoredRun

# They change how often one looks and where it runs, not what is run.
_NOT_A_DIFFERENCE = ("seed", "eval_every", "device")
_MOST_LISTED = 60  # values of a list that are written out


@dataclass(frozen=True)
class Line:
    """All seeds of one method under one set of settings."""

    label: str
    method: str
    runs: tuple[StoredRun, ...]
    style: Style

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment


FleetKey = tuple[Any, ...]


def fleet_key(experiment: Experiment) -> FleetKey:
    """All that `make_fleet` depends on: equal keys, equal fleets, so that each is built once."""
    return experiment.fleet, experiment.local_steps, experiment.compression


@dataclass(frozen=True)
class Curve:
    """A metric over the rounds that all seeds have evaluated."""

    rounds: Ints
    spent: Floats  # energy spent by then, mean over seeds
    mean: Floats
    sd: Floats  # NaN for a single seed
    margin: Floats  # half the width of the mean's 95 % interval; NaN for a single seed


def lines(runs: Sequence[StoredRun]) -> list[Line]:
    """Runs grouped by method and by every setting that differs, in the order they come."""
    if not runs:
        raise InputError("there is no run to report on; give at least one.")
    keys = differing_keys(runs)
    groups: dict[tuple[str, ...], list[StoredRun]] = {}
    for run in runs:
        groups.setdefault((run.experiment.method, *_settings(run.experiment, keys)), []).append(run)
    looks = styles(method for method, *_ in groups)
    # Where every method has one line, its name says it all, though each may have a rate of its own.
    alone = len({method for method, *_ in groups}) == len(groups)
    return [
        Line(" · ".join([members[0].experiment.title, *(() if alone else settings)]), method, tuple(members), look)
        for ((method, *settings), members), look in zip(groups.items(), looks, strict=True)
    ]


def differing_keys(runs: Sequence[StoredRun]) -> list[str]:
    """Dotted keys in which some run differs from the first, method and seed included."""
    first = runs[0].experiment
    return list(dict.fromkeys(key for run in runs[1:] for key in differences(first, run.experiment)))


def _settings(experiment: Experiment, keys: Sequence[str]) -> list[str]:
    """'client.lr=0.01' for every key that sets this run apart from others of its method."""
    flat = flatten(to_dict(experiment))
    named = experiment.method in METHODS  # then its policy and server rule are in its name
    return [
        f"{key.removesuffix('.kind')}={show(flat[key])}"
        for key in keys
        if key in flat
        and key not in _NOT_A_DIFFERENCE
        and not (named and key.split(".")[0] in ("policy", "server"))
        # The kinds of an unnamed method's policy and server rule are its name.
        and key not in ("policy.kind", "server.kind")
    ]


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def show(value: Any) -> str:
    """A setting's value as people write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        if is_tables(value):
            # Too long to write out; the mark tells two of them apart.
            return f"{len(value)} {'entry' if len(value) == 1 else 'entries'} #{_mark(value)}"
        parts = [show(part) for part in value[:_MOST_LISTED]]
        if len(value) > _MOST_LISTED:
            return f"{', '.join(parts[:3])}, ..., {show(value[-1])} ({len(value):,} values #{_mark(value)})"
        return ", ".join(parts) or "none"
    if isinstance(value, Mapping):  # an entry of a list: clip(norm=1)
        options = ", ".join(f"{key}={show(part)}" for key, part in value.items() if key != "kind")
        return f"{value.get('kind', '')}({options})" if options else str(value.get("kind", ""))
    return str(value)


def _mark(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:4]


def is_tables(value: Any) -> bool:
    """Whether a setting is a list of tables such as a fleet's groups, which are no short words of a kind."""
    return isinstance(value, list | tuple) and any(isinstance(part, Mapping) and "kind" not in part for part in value)


def evaluated_on(runs: Sequence[StoredRun]) -> str:
    """What the accuracies of these runs are of."""
    names = {"validation" if run.experiment.validation else "test" for run in runs}
    return " or ".join(sorted(names))


def seeds_said(runs: Sequence[StoredRun]) -> str:
    """'5 seeds'."""
    count = len({run.experiment.seed for run in runs})
    return f"{count} seed{'s' * (count != 1)}"


def evaluations(run: StoredRun) -> list[tuple[RoundRecord, Metrics]]:
    return [(record, record.metrics) for record in run.rounds if record.metrics]


def curve(runs: Sequence[StoredRun], value: Callable[[Metrics], float | None]) -> Curve | None:
    """Mean and sd over seeds of one metric; None where some run has no such value at all."""
    tables = []
    for run in runs:
        points = [(r.round + 1, r.energy.spent, value(m)) for r, m in evaluations(run)]
        tables.append({done: (spent, float(v)) for done, spent, v in points if v is not None})
    common = sorted(set(tables[0]).intersection(*tables[1:]))
    if not common:
        return None
    both = np.array([[table[done] for done in common] for table in tables])
    spent, values = both[:, :, 0].mean(axis=0), both[:, :, 1]
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(len(common), np.nan)
    return Curve(np.array(common), spent, values.mean(axis=0), sd, margins(values))


def by_group(runs: Sequence[StoredRun]) -> dict[str, Floats]:
    """Final accuracy of every energy group, one value a run that has it."""
    finals = [run.final.group_accuracy for run in runs if run.final and run.final.group_accuracy]
    labels = dict.fromkeys(label for final in finals for label in final)
    return {label: np.array([final[label] for final in finals if label in final]) for label in labels}
