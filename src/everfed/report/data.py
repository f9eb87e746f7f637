"""What the page shows, as plain data, from stored runs alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.learning.metrics import Metrics
from everfed.report.arrivals import arrivals
from everfed.report.clock import clock
from everfed.report.distinct import distinct
from everfed.report.fleets import Fleets
from everfed.report.headline import headline, mean_of, summary_of, title_of
from everfed.report.lines import Curve, Line, by_group, curve, evaluated_on, evaluations, lines, show
from everfed.report.measures import (
    ACCOUNTS,
    LATE_ROUNDS,
    Unit,
    accounts,
    amount,
    fairness,
    late_variation,
    wasted_part,
)
from everfed.report.notes import notes
from everfed.report.numbers import moments, short, shorts
from everfed.report.raster import MOST_ROUNDS, batteries, raster
from everfed.report.settings import environments, settings
from everfed.report.sweeps import sweeps
from everfed.report.verdicts import verdicts
from everfed.store.reading import StoredRun
from everfed.studies.comparison import differences, incomparable
from everfed.studies.yardstick import Yardstick, yardstick

_MOST_BINS = 36
_WIDTHS = (1 / 12, 1 / 8, 1 / 6, 1 / 4, 1 / 2, 1)  # of a bin; 1 is a whole number of them
_MOST_POINTS = 2000  # of a curve: more than a screen has columns


def page_data(runs: Sequence[StoredRun], title: str | None = None) -> dict[str, Any]:
    """A JSON-able dict; numbers to five digits, and None for what is not a number."""
    known = distinct(runs)
    begun = [run for run in known.runs if run.rounds]
    if not begun:
        raise InputError("there is nothing to report: none of the runs has finished a round.")
    # One that diverged in its first round has nothing to draw, but it is a result.
    drawn = lines([run for run in known.runs if run.rounds or run.state == "diverged"])
    order = [(run, i) for i, line in enumerate(drawn) for run in (*line.runs, *line.unfinished) if run.rounds]
    fleets = Fleets()
    edges = _edges(begun)
    unit, books, judged = Unit.of(begun), accounts(begun), yardstick(begun)
    bodies = [_line(line, edges, unit, judged, [fleets.of(run) for run in line.runs]) for line in drawn]
    for body, verdict in zip(bodies, verdicts(drawn), strict=True):
        body["verdict"] = verdict
    swept = sweeps(drawn)
    return {
        "title": title or title_of(begun),
        "headline": headline(begun, bodies, judged, bool(swept)),
        "summary": summary_of(known.runs, drawn),
        "notes": [*notes(known, drawn), *incomparable(_labelled(drawn), _reference(drawn))],
        "lines": bodies,
        "sweeps": [sweep.to_dict() for sweep in swept],
        "runs": [_run(run, i, fleets, unit, judged) for run, i in order],
        "fleets": fleets.shown,
        "clock": clock(begun).to_dict(),
        "energy": {
            "unit": unit.name,
            "words": unit.words,
            "mixed": unit.mixed,
            "accounts": [{"key": a.key, "name": a.name, "hint": a.hint, "in": a.comes_in} for a in books],
        },
        "weight_edges": [short(e) for e in edges.tolist()],
        "differences": _differences(drawn),
        "measure": judged.to_dict(),
        "target": judged.goal(mean_of(body, judged.name) for body in bodies),
        "evaluated_on": evaluated_on(begun),
        "late_rounds": LATE_ROUNDS,
        "settings": settings(begun, drawn),
        "environments": environments(begun),
    }


def _line(line: Line, edges: Floats, unit: Unit, judged: Yardstick, fleets: Sequence[Fleet]) -> dict[str, Any]:
    begun = [(run, fleet) for run, fleet in zip(line.runs, fleets, strict=True) if run.rounds]
    runs = [run for run, _ in begun]
    return {
        "label": line.label,
        "title": line.experiment.title,
        "method": line.method,
        "style": line.style.to_dict(),
        "settings": {key: show(value) for key, value in line.settings.items()},
        "not_done": dict(Counter(run.state for run in (*line.runs, *line.unfinished) if run.state != "done")),
        "diverged": line.diverged_said,
        "lost": line.lost,
        "seeds": [run.experiment.seed for run in line.runs],
        "accuracy": _curve(curve(line.runs, lambda m: m.accuracy), unit),
        "loss": _curve(curve(line.runs, lambda m: m.loss), unit),
        "worst": _curve(curve(line.runs, judged.worst_group), unit),
        "groups": {label: moments(values) for label, values in by_group(line.runs, judged).items()},
        "classes": _classes(line),
        "weights": _weights(runs, edges),
        "arrivals": arrivals(runs, fleets[0]) if runs else None,
        "final": _final(runs, unit, judged, [len(fleet) for _, fleet in begun]),
    }


def _weights(runs: Sequence[StoredRun], edges: Floats) -> dict[str, Any] | None:
    weights = np.array([record.round_weight for run in runs for record in run.rounds])
    if not len(weights):
        return None
    return {
        "mean": short(float(weights.mean())),
        "variance": short(round(float(weights.var()), 12)),  # a constant sum is off by a few ulps
        "rounds": len(weights),
        "counts": np.histogram(np.clip(weights, edges[0], edges[-1]), edges)[0].tolist(),
    }


def _curve(points: Curve | None, unit: Unit) -> dict[str, Any] | None:
    if points is None:
        return None
    keep = _thin(len(points.rounds))
    return {
        "rounds": points.rounds[keep].tolist(),
        "spent": shorts(points.spent[keep] * unit.factor),
        "mean": shorts(points.mean[keep]),
        "sd": shorts(points.sd[keep]),
    }


def _thin(n: int) -> list[int]:
    """At most _MOST_POINTS places out of n, first and last among them."""
    if n <= _MOST_POINTS:
        return list(range(n))
    return sorted({round(i * (n - 1) / (_MOST_POINTS - 1)) for i in range(_MOST_POINTS)})


def _classes(line: Line) -> list[float | None] | None:
    finals = [run.final.class_accuracy for run in line.runs if run.final and run.final.class_accuracy]
    return shorts(np.array(finals).mean(axis=0)) if finals else None


def _final(runs: Sequence[StoredRun], unit: Unit, judged: Yardstick, sizes: Sequence[int]) -> dict[str, Any]:
    def metric(value: Callable[[Metrics], float | None]) -> dict[str, Any] | None:
        return moments([v for run in runs if run.final and (v := value(run.final)) is not None])

    own = dict.fromkeys(name for run in runs if run.final for name in run.final.own)
    return {
        "accuracy": metric(lambda m: m.accuracy),
        "worst_group": metric(judged.worst_group),
        "loss": metric(lambda m: m.loss),
        "metrics": {name: metric(lambda m, name=name: m.own.get(name)) for name in own},  # type: ignore[misc]
        "late_variation": moments([v for run in runs if (v := late_variation(run, judged=judged)) is not None]),
        "participations": moments([run.participations for run in runs]),
        "fairness": moments([fairness(run, n) for run, n in zip(runs, sizes, strict=True)]),
        "wasted_part": moments([p for run in runs if (p := wasted_part(run)) is not None]),
        "brownouts": moments([run.energy.brownouts for run in runs]),
        **{a.key: moments([amount(run, a.key, unit) for run in runs]) for a in ACCOUNTS},
    }


def _differences(drawn: Sequence[Line]) -> dict[str, Any] | None:
    """Accuracies (or losses) minus those of the reference, seed by seed; None where there is no pair."""
    reference = _reference(drawn)
    rows = differences(_labelled(drawn), reference)
    return {"reference": reference, "rows": [{"label": label, **row} for label, row in rows.items()]} if rows else None


def _reference(drawn: Sequence[Line]) -> str:
    return next((line.label for line in drawn if line.method == "algorithm1"), drawn[0].label)


def _labelled(drawn: Sequence[Line]) -> list[tuple[str, StoredRun]]:
    return [(line.label, run) for line in drawn for run in line.runs]


def _edges(runs: Sequence[StoredRun]) -> Floats:
    """Bins that all methods share, centred on 0 and on 1, where many schedules put all their rounds."""
    found = (record.round_weight for run in runs for record in run.rounds)
    highest = max((w for w in found if math.isfinite(w)), default=1.0)
    width = next((w for w in _WIDTHS if highest / w <= _MOST_BINS), math.ceil(highest / _MOST_BINS))
    bins = max(1, round(highest / width)) + 1
    return np.asarray((np.arange(bins + 1) - 0.5) * width, np.float64)


def _run(run: StoredRun, line: int, fleets: Fleets, unit: Unit, judged: Yardstick) -> dict[str, Any]:
    place = fleets.add(run.experiment)
    points = evaluations(run)
    keep = _thin(len(points))
    chosen = [b["client"] for b in fleets.shown[place]["batteries"]]
    return {
        "name": run.name,
        "line": line,
        "seed": run.experiment.seed,
        "state": run.state,
        "done": len(run.rounds),
        "fleet": place,
        "rounds": [points[i][0].round + 1 for i in keep],
        "spent": shorts(points[i][0].energy.spent * unit.factor for i in keep),
        judged.name: [None if (v := judged.of(points[i][1])) is None else short(v) for i in keep],
        "raster": raster(run, np.array(fleets.shown[place]["ids"])),
        "battery": batteries(run, fleets.built[place], chosen),
        "cut": len(run.rounds) > MOST_ROUNDS,
    }
