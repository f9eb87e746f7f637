"""Lines: runs that differ in their seed alone, averaged and drawn as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, counted
from everfed.learning.metrics import Metrics
from everfed.methods import METHODS
from everfed.report.distinct import NOT_WHAT_IS_RUN, distinct, exactly
from everfed.report.style import Style, styles
from everfed.run.config import by_content, differences, flat, to_dict
from everfed.run.experiment import Experiment
from everfed.run.fingerprint import fingerprint
from everfed.run.history import RoundRecord
from everfed.stats import margins
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import ACCURACY, Yardstick

_NOT_A_DIFFERENCE = ("seed", *NOT_WHAT_IS_RUN)
_MOST_LISTED = 60  # values of a list that are written out
_MOST_NAMED = 4  # settings in a label; of more, those that it takes to tell lines apart


@dataclass(frozen=True)
class Line:
    """All seeds of one method under one set of settings, each once."""

    label: str
    method: str
    runs: tuple[StoredRun, ...]  # that are averaged: those that came furthest, as `_averaged` says
    style: Style
    unfinished: tuple[StoredRun, ...] = ()  # that are not averaged
    settings: Mapping[str, Any] = field(default_factory=dict)  # that set it apart from other lines, by key
    folder: str = ""  # of a run that another one of the same experiment and seed contradicts

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def diverged(self) -> int:
        """How many of its seeds did, in their first round or later."""
        return sum(run.state == "diverged" for run in (*self.runs, *self.unfinished))

    @property
    def lost(self) -> bool:
        """Whether none is left to average; the last evaluation of a run that diverged is not its end."""
        return all(run.state == "diverged" for run in self.runs)

    @property
    def diverged_said(self) -> str:
        """'2 of 6 seeds', empty if none diverged."""
        return f"{self.diverged} of {counted(len(self.runs) + len(self.unfinished), 'seed')}" if self.diverged else ""


FleetKey = tuple[Any, ...]


def fleet_key(experiment: Experiment) -> FleetKey:
    """All that `make_fleet` depends on: equal keys, equal fleets, so that each is built once."""
    fleet = by_content(experiment).fleet
    return fingerprint(fleet) if isinstance(fleet, Fleet) else fleet, experiment.local_steps, experiment.encoding


@dataclass(frozen=True)
class Curve:
    """A metric over the rounds that all seeds have evaluated."""

    rounds: Ints
    spent: Floats  # energy spent by then, mean over seeds
    mean: Floats
    sd: Floats  # NaN for a single seed
    margin: Floats  # half the width of the mean's 95 % interval; NaN for a single seed


def lines(runs: Sequence[StoredRun]) -> list[Line]:
    """Runs grouped by method and by every setting that differs; copies count once.

    Methods come in the order of their runs, lines of one method by their settings' values.
    """
    if not runs:
        raise InputError("there is no run to report on; give at least one.")
    known = distinct(runs)
    keys = differing_keys(known.runs)
    groups: dict[tuple[str, str, str], list[StoredRun]] = {}
    for run, apart in zip(known.runs, known.contradicted, strict=True):
        # Values in full: labels are shortened, and two settings may look alike in them.
        exact = exactly(own_settings(run.experiment, keys))
        groups.setdefault((run.experiment.method, str(run.path) if apart else "", exact), []).append(run)
    found = [(*key[:2], own_settings(members[0].experiment, keys), members) for key, members in groups.items()]
    found = _ordered(found)
    looks = styles(method for method, *_ in found)
    labels = _labels([(method, folder, own) for method, folder, own, _ in found], [m[0].experiment for *_, m in found])
    return [
        _line(Line(label, method, tuple(members), look, settings=own, folder=folder))
        for label, (method, folder, own, members), look in zip(labels, found, looks, strict=True)
    ]


_Found = tuple[str, str, dict[str, Any], list[StoredRun]]


def _ordered(found: Sequence[_Found]) -> list[_Found]:
    methods = list(dict.fromkeys(method for method, *_ in found))
    names = list(dict.fromkeys(name for _, _, own, _ in found for name in own))
    ranks = {name: ranked(own[name] for _, _, own, _ in found if name in own) for name in names}

    def place(one: _Found) -> tuple[int, ...]:
        method, _, own, _ = one
        return methods.index(method), *(ranks[n].index(exactly(own[n])) if n in own else -1 for n in names)

    return sorted(found, key=place)


def ranked(values: Iterable[Any]) -> list[str]:
    """Distinct values, exactly written: numbers by size, lists of numbers by length and then by their numbers, others
    in the order they come."""
    known = {exactly(value): value for value in values}
    if all(map(_is_number, known.values())):
        return sorted(known, key=lambda text: known[text])
    if all(isinstance(value, list | tuple) and all(map(_is_number, value)) for value in known.values()):
        return sorted(known, key=lambda text: (len(known[text]), *known[text]))
    return list(known)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(line: Line) -> Line:
    averaged = _averaged(line.runs)
    return replace(line, runs=averaged, unfinished=tuple(run for run in line.runs if run not in averaged))


def _averaged(runs: tuple[StoredRun, ...]) -> tuple[StoredRun, ...]:
    """Those that are done; else those that have begun and may go on; else those that have begun; else all.

    A run that was cut off has the accuracy of an earlier round: no seed like the others.
    """
    done = tuple(run for run in runs if run.state == "done")
    begun = tuple(run for run in runs if run.rounds)
    return done or tuple(run for run in begun if run.state != "diverged") or begun or runs


def _labels(groups: Sequence[tuple[str, str, Mapping[str, Any]]], firsts: Sequence[Experiment]) -> list[str]:
    """A label for each group: short, and in full where short ones are the same."""

    def written(shown: Callable[[Any], str], with_method: bool = False) -> list[str]:
        out = []
        for (method, folder, own), first in zip(groups, firsts, strict=True):
            named = [f"{first.title} ({method})" if with_method else first.title]
            settings = [] if alone else [f"{key}={shown(value)}" for key, value in own.items() if key in told]
            more = ["…"] if settings and any(key not in told for key in own) else []
            out.append(" · ".join([*named, *settings, *more, *([f"in {folder}"] if folder else [])]))
        return out

    # Where every method has one line, its name says it all, though each may have a rate of its own.
    alone = len({method for method, *_ in groups}) == len(groups)
    told = _telling(groups)
    short, full, longest = written(show), written(exactly), written(exactly, True)
    labels = [b if short.count(a) > 1 else a for a, b in zip(short, full, strict=True)]
    return [b if labels.count(a) > 1 else a for a, b in zip(labels, longest, strict=True)]


def _telling(groups: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[str]:
    """The settings that labels name: all, or if those are many, enough to tell the lines of each method apart."""
    keys = list(dict.fromkeys(key for *_, own in groups for key in own))
    if len(keys) <= _MOST_NAMED:
        return keys
    told: list[str] = []

    def apart(chosen: Sequence[str]) -> int:
        return len({(m, f, *(exactly(own[k]) if k in own else None for k in chosen)) for m, f, own in groups})

    # Keys that all have come first: a line without any of the chosen ones would have no name of its own.
    common = [k for k in keys if all(k in own for *_, own in groups)]
    for among in (common, keys):
        while apart(told) < apart(among):
            told.append(max((k for k in among if k not in told), key=lambda k: apart([*told, k])))
    return told


def differing_keys(runs: Sequence[StoredRun]) -> list[str]:
    """Dotted keys in which some run differs from the first, method and seed included."""
    first = runs[0].experiment
    keys = dict.fromkeys(key for run in runs[1:] for key in differences(first, run.experiment))
    values = [flat(to_dict(by_content(run.experiment))) for run in runs]
    return [key for key in keys if not _follows(key, values)]


def _follows(key: str, runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a part's kind says all about this option of it: runs of one kind have it alike."""
    part = key.rpartition(".")[0]
    by_kind: dict[Any, set[str]] = {}
    for values in runs:
        by_kind.setdefault(values.get(f"{part}.kind"), set()).add(exactly(values[key]) if key in values else "absent")
    return bool(part) and not key.endswith(".kind") and all(len(known) == 1 for known in by_kind.values())


def own_settings(experiment: Experiment, keys: Sequence[str]) -> dict[str, Any]:
    """{"client.lr": 0.01}: the settings among these keys that may set this run apart from others of its method."""
    values = flat(to_dict(experiment))
    named = experiment.method in METHODS  # then its policy and server rule are in its name
    return {
        key.removesuffix(".kind"): values[key]
        for key in keys
        if key in values
        and key not in _NOT_A_DIFFERENCE
        and not (named and key.split(".")[0] in ("policy", "server"))
        # The kinds of an unnamed method's policy and server rule are its name.
        and key not in ("policy.kind", "server.kind")
    }


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
    return counted(len({run.experiment.seed for run in runs}), "seed")


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


def by_group(runs: Sequence[StoredRun], judged: Yardstick = ACCURACY) -> dict[str, Floats]:
    """Final accuracy or loss of every energy group, one value per run that has it."""
    finals = [found for run in runs if run.final and (found := judged.groups(run.final))]
    labels = dict.fromkeys(label for final in finals for label in final)
    return {label: np.array([final[label] for final in finals if label in final]) for label in labels}
