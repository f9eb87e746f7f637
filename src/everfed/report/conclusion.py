"""What a sweep came to: a summary with differences, a page and a figure, from Python and for the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everfed.report.figure import figure
from everfed.report.measures import with_measures
from everfed.report.notes import silences
from everfed.report.page import page
from everfed.report.table import table
from everfed.run import config
from everfed.store.files import write_atomically
from everfed.store.reading import StoredRun
from everfed.studies.comparison import differences, incomparable, reference_of, summarize, unfinished
from everfed.studies.sweep import Planned, overwritten
from everfed.studies.yardstick import yardstick


@dataclass(frozen=True)
class Conclusion:
    """A finished sweep. `summary` and `differences` are also in summary.json, beside the page and the figure."""

    planned: Sequence[Planned] = field(repr=False)
    runs: Sequence[StoredRun] = field(repr=False)
    summary: dict[str, dict[str, Any]]  # by label: means over seeds with intervals, energy, fairness
    reference: str | None  # the label that the others are compared with
    differences: dict[str, dict[str, Any]]  # by label: paired over seeds, with p values
    unfinished: dict[str, dict[str, list[int]]]  # by label: the seeds in each state other than done
    notes: list[str]
    own_settings: dict[str, dict[str, Any]]  # keys that differ between labels and are in no grid
    report: Path | None
    figure: Path | None

    def table(self) -> Any:
        """The summary as a table for a terminal (of rich)."""
        titles = {run.label: run.experiment.title for run in self.planned}
        finished = [run for run in self.runs if run.final]
        return table(self.summary, titles, finished, self.differences, self.reference)

    def to_dict(self) -> dict[str, Any]:
        return {
            "measure": yardstick(self.runs).to_dict(),
            "methods": self.summary,
            "own_settings": self.own_settings,
            "unfinished": self.unfinished,
            "differences": {"reference": self.reference, "methods": self.differences},
            "report": str(self.report) if self.report else None,
            "notes": self.notes,
        }


def conclude(planned: Sequence[Planned], runs: Sequence[StoredRun], out: Path, seconds: float) -> Conclusion:
    """Summarise a sweep's runs, and write its summary, page and figure."""
    labels = {run.folder: run.label for run in planned}
    labelled = [(labels[run.path], run) for run in runs]  # one that was lost before it began has no folder
    summary = with_measures(summarize(labelled), labelled)
    reference = reference_of(list(summary))
    by_label = {label: [run for name, run in labelled if name == label] for label, _ in labelled}
    notes = silences(by_label.items()) + (incomparable(labelled, reference) if reference else [])
    begun = any(run.rounds for run in runs)
    made = Conclusion(
        planned,
        runs,
        summary,
        reference,
        differences(labelled, reference) if reference else {},
        unfinished(labelled),
        notes,
        _own_settings(planned),
        page(runs, out / "report.html") if begun else None,
        # A summary has accuracies or losses, so there is one to draw.
        figure([run for run in runs if run.final], out / "figure.png") if summary else None,
    )
    content = {**made.to_dict(), "seconds": seconds, "figure": str(made.figure) if made.figure else None}
    content["experiment"] = config.to_dict(planned[0].experiment)
    write_atomically(out / "summary.json", json.dumps(content, indent=1) + "\n")
    return made


def _own_settings(runs: Sequence[Planned]) -> dict[str, dict[str, Any]]:
    """{"client.lr": {"algorithm1": 0.8, "greedy": 1.6}}: keys that differ between labels and are in no grid."""
    flat = {run.label: config.flat(config.to_dict(run.experiment)) for run in runs}
    swept = {key for run in runs for key in run.settings}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    out = {}
    for key in keys:
        values = {label: mine.get(key) for label, mine in flat.items()}
        if (
            key not in ("seed", "plugins")
            and not of_grid(key, swept)
            and len({str(value) for value in values.values()}) > 1
        ):
            out[key] = values
    return out


def of_grid(key: str, swept: set[str]) -> bool:
    """Whether the grid sets this key."""
    return any(overwritten(key, axis) for axis in swept)
