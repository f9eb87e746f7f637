"""The words at the top of a page: what the runs are of, what they came to, and how many there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from everfed.errors import counted
from everfed.report.lines import Line, evaluated_on, fleet_key
from everfed.run.config import to_dict
from everfed.run.experiment import kind_of
from everfed.run.live import KIND
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import Yardstick


def title_of(runs: Sequence[StoredRun]) -> str:
    """What the runs are of: "Digits, by-energy and iid splits, 12 to 40 clients"."""
    each = {fleet_key(run.experiment): run.experiment for run in runs}
    sizes = sorted({len(experiment.make_fleet()) for experiment in each.values()})
    # Data that are by clients already have no split.
    whole = [run.experiment for run in runs if to_dict(run.experiment.data)["kind"] != KIND]
    splits = list(dict.fromkeys(kind_of(experiment.split) for experiment in whole))
    said = _several(_data_names(runs), "data sets")
    parts = [said[0].upper() + said[1:]]
    if splits:
        parts.append(f"{_several(splits, 'kinds of')} split{'s' * (len(splits) > 1)}")
    clients = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return ", ".join([*parts, f"{clients} client{'s' * (sizes != [1])}"])


def _data_names(runs: Sequence[StoredRun]) -> list[str]:
    data = [to_dict(run.experiment.data) for run in runs]
    return list(dict.fromkeys(str(one["name"] if one["kind"] == KIND else one["kind"]) for one in data))


def headline(runs: Sequence[StoredRun], bodies: Sequence[dict[str, Any]], judged: Yardstick, swept: bool) -> str:
    """The finding in one sentence. Of runs on several data sets none is better than another."""
    if len(names := _data_names(runs)) > 1:
        return f"Runs on {_several(names, 'data sets')}: their results stand side by side below, and are not ranked."
    return _ranked(bodies, evaluated_on(runs), judged, swept)


def _several(names: Sequence[str], what: str) -> str:
    """Up to three names, or how many there are."""
    if len(names) > 3:
        return f"{len(names)} {what}"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _ranked(bodies: Sequence[dict[str, Any]], tested: str, judged: Yardstick, swept: bool) -> str:
    """Algorithm 1 first where it is there, then the others by accuracy; of a sweep, the
    best settings of each method."""
    bodies = [b for b in bodies if not b["lost"]] or bodies  # what diverged is not the best, whatever it had reached
    known = [b for b in bodies if mean_of(b, "accuracy") is not None]
    if not known or not judged.percent:
        losses = [(mean_of(b, "loss"), b["label"]) for b in bodies if b["final"]["loss"]]
        if not losses:
            return "No run has been evaluated yet."
        losses.sort(key=lambda pair: math.inf if pair[0] is None else pair[0])
        said = [f"{label} {'is not finite' if loss is None else f'{loss:.4g}'}" for loss, label in losses]
        more = [f"({len(said) - 3} more lie between)"] if len(said) > 4 else []
        return f"Final {tested} loss: {'; '.join([*said[:2], *more, said[-1]] if more else said)}."
    known.sort(key=lambda b: -b["final"]["accuracy"]["mean"])
    best: dict[str, dict[str, Any]] = {}
    for body in known:
        best.setdefault(body["method"] if swept else body["label"], body)
    # By accuracy, after the best of Algorithm 1.
    ranked = sorted(best.values(), key=lambda b: b["method"] != "algorithm1")
    chosen = ranked if len(ranked) <= 4 else [ranked[0], ranked[1], ranked[-1]]
    parts = [_reached(body, first=body is ranked[0]) for body in chosen]
    rest = f" ({len(ranked) - 3} more lie between the last two)" if len(ranked) > 4 else ""
    chosen_by = "With the best settings" + " of each method" * (len(best) > 1) + ": " if len(best) < len(known) else ""
    return chosen_by + "; ".join(parts) + rest + "."


def mean_of(body: dict[str, Any], name: str) -> float | None:
    moments = body["final"][name]
    return None if moments is None else moments["mean"]


def _reached(body: dict[str, Any], first: bool) -> str:
    final = body["final"]
    words = f"{body['label']} {'reaches ' if first else ''}{100 * final['accuracy']['mean']:.1f} %"
    if mean_of(body, "worst_group") is not None:
        words += f" ({'worst energy group ' if first else ''}{100 * final['worst_group']['mean']:.1f} %)"
    return words + (f", but {body['diverged']} diverged" if body["diverged"] else "")


def summary_of(runs: Sequence[StoredRun], drawn: Sequence[Line]) -> str:
    seeds = {run.experiment.seed for run in runs}
    methods = {line.method for line in drawn}
    parts = [counted(len(runs), "run"), counted(len(methods), "method"), counted(len(seeds), "seed")]
    states = Counter(run.state for run in runs)
    words = ", ".join(parts)
    if set(states) == {"done"}:
        return f"{words}; all done."
    said = ", ".join(f"{count} {state}" for state, count in states.most_common())
    words += f"; not all are done: {said}."
    if any(run.state != "done" for line in drawn for run in line.runs):
        words += " Where no run of a method is done, runs count with their last evaluation."
    empty = sum(not run.rounds and run.state != "diverged" for run in runs)
    return words + (f" {counted(empty, 'run')} without a finished round left out." if empty else "")
