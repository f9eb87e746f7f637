"""What a sweep came to: a summary with differences, a page and a figure, from Python and for the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everfed.report.compared import Comparison, compared
from everfed.report.figure import figure
from everfed.report.notes import silences
from everfed.report.page import page
from everfed.run import config
from everfed.store.files import strict, write_atomically
from everfed.store.reading import StoredRun
from everfed.studies.sweep import Planned, overwritten
from everfed.studies.yardstick import yardstick


@dataclass(frozen=True, repr=False)
class Conclusion(Comparison):
    """A finished sweep. `summary` and `differences` are also in summary.json, beside the page and the figure."""

    planned: Sequence[Planned]
    own_settings: dict[str, dict[str, Any]]  # keys that differ between labels and are in no grid
    report: Path | None
    figure: Path | None

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

    def _places(self) -> list[tuple[str, str]]:
        return [(name, str(path)) for name, path in (("report", self.report), ("figure", self.figure)) if path]


def conclude(planned: Sequence[Planned], runs: Sequence[StoredRun], out: Path, seconds: float) -> Conclusion:
    """Summarise a sweep's runs, and write its summary, page and figure."""
    labels = {run.folder: run.label for run in planned}
    labelled = [(labels[run.path], run) for run in runs]  # one that was lost before it began has no folder
    by_label = {label: [run for name, run in labelled if name == label] for label, _ in labelled}
    titles = {run.label: run.experiment.title for run in planned}
    found = compared(labelled, titles, None, silences(by_label.items()))
    begun = any(run.rounds for run in runs)
    made = Conclusion(
        **vars(found),
        planned=planned,
        own_settings=_own_settings(planned),
        report=page(runs, out / "report.html") if begun else None,
        # A summary has accuracies or losses, so there is one to draw.
        figure=figure(runs, out / "figure.png") if found.summary else None,
    )
    content = {**made.to_dict(), "seconds": seconds, "figure": str(made.figure) if made.figure else None}
    content["experiment"] = config.to_dict(planned[0].experiment)
    write_atomically(out / "summary.json", json.dumps(strict(content), indent=1) + "\n")
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
