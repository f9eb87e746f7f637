"""Stored runs compared: means over seeds, paired differences and their tests, as `everfed compare` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everfed.errors import InputError, counted, some, unknown, warn
from everfed.methods import METHODS
from everfed.report.clock import clock
from everfed.report.distinct import distinct
from everfed.report.figure import over_time
from everfed.report.lines import curve, evaluated_on, lines, seeds_said
from everfed.report.measures import with_measures
from everfed.report.notes import notes as notes_on
from everfed.report.table import difference_text, p_text, pairs_text, spread_text, table
from everfed.showing import axes, svg
from everfed.showing.card import Card, Grid, Shown
from everfed.showing.frames import frame
from everfed.store.reading import StoredRun, find_runs, open_runs
from everfed.studies.comparison import Labelled, differences, incomparable, reference_of, summarize, unfinished
from everfed.studies.yardstick import yardstick


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """What runs came to, label by label: a method, or a method with the settings that set it apart.

    The numbers are those of `everfed compare` and of its summary.json.

    >>> import tempfile, everfed as ef
    >>> experiment = ef.Experiment(rounds=20, model="logistic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("algorithm1", "greedy"):
    ...         run = ef.simulate(experiment.with_method(name), out=f"{folder}/{name}", progress=False)
    ...     found = ef.compare_runs(folder)
    >>> found.reference, list(found.differences)
    ('algorithm1', ['greedy'])
    """

    runs: Sequence[StoredRun]  # those that were compared
    titles: dict[str, str]  # by label: the method's title
    summary: dict[str, dict[str, Any]]  # by label: means over seeds with intervals, energy, fairness
    reference: str | None  # the label that the others are compared with
    differences: dict[str, dict[str, Any]]  # by label: paired over seeds, with p values
    unfinished: dict[str, dict[str, list[int]]]  # by label: the seeds in each state other than done
    notes: list[str]  # what a reader should know, in words

    def table(self) -> Any:
        """The tables that `everfed compare` prints (of rich): `rich.print(comparison.table())`."""
        finished = [run for run in self.runs if run.final]
        return table(self.summary, self.titles, finished, self.differences, self.reference)

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per label.

        Means over seeds and the ends of their 95 % intervals, differences from the reference in the same way, the pairs
        of seeds they are of, p of the paired t test, p_holm corrected for all tests made, and p_flip of the exact
        sign-flip test.
        """
        rows: list[dict[str, Any]] = []
        for label, found in self.summary.items():
            row: dict[str, Any] = {"label": label, "seeds": len(found["seeds"])}
            for name in self._measures():
                row |= _spread_columns(name, found[name])
                if difference := self.differences.get(label, {}).get(name):
                    row |= _spread_columns(f"{name}_difference", difference)
                    row |= {f"{name}_{p}": difference[p] for p in ("pairs", "p", "p_holm", "p_flip")}
            rows.append(row | {"participations": found["participations"], "fairness": found["fairness"]["mean"]})
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [np.nan if row.get(name) is None else row[name] for row in rows] for name in names}
        return frame(columns, index="label")

    def plot(self, *, ax: Any = None) -> Any:
        """Accuracy or loss over the rounds: mean over seeds with its 95 % interval; returns Matplotlib's axes."""
        judged, shown = yardstick(self.runs), [run for run in self.runs if run.final]
        if not shown:
            raise InputError("there is no accuracy or loss to draw: the runs diverged, or they were not evaluated.")
        ax = axes.axes(ax, (7.2, 4.2))
        over_time(ax, lines(shown), judged.of, judged, clock(shown))
        ax.set_ylabel(judged.label.replace(" %", " (%)"))
        if judged.percent:
            axes.percents(ax)
        axes.title(ax, f"{evaluated_on(shown).capitalize()} {judged.name}, {seeds_said(shown)}: mean, 95 % interval")
        axes.grid(ax)
        axes.legend(ax)
        return ax

    def _measures(self) -> tuple[str, str]:
        name = yardstick(self.runs).name
        return name, f"worst_group_{name}"

    def _card(self) -> Card:
        judged, name = yardstick(self.runs), self._measures()[0]
        # A difference may be of fewer seeds than the means beside it.
        counts = {len(found["seeds"]) for found in self.summary.values()}
        pairs = {row[name]["pairs"] for row in self.differences.values() if name in row}
        fewer = bool(pairs) and pairs != counts
        rows = []
        for label, found in self.summary.items():
            difference = self.differences.get(label, {}).get(name)
            rows.append(
                (
                    self.titles[label] if label in METHODS else label,
                    str(len(found["seeds"])),
                    spread_text(found[name], judged),
                    spread_text(found[f"worst_group_{name}"], judged),
                    *([pairs_text([difference] if difference else [])] if fewer else []),
                    "reference" if label == self.reference else difference_text(difference, judged),
                    p_text(difference and difference["p_holm"]),
                )
            )
        paired = ["pairs"] if fewer else []
        columns = ["method", "seeds", judged.label, judged.worst_label, *paired, "difference [95 %]", "p (Holm)"]
        facts = [*self._places(), *(("note", note) for note in self.notes[:3])]
        if self.unfinished:
            facts.append(("not done", "; ".join(map(_states_said, self.unfinished, self.unfinished.values()))))
        title = f"{type(self).__name__} of {counted(len(self.runs), 'run')}, {evaluated_on(self.runs)} set"
        return Card(title, facts, Grid.of(columns, rows) if rows else None, self._picture)

    def _places(self) -> list[tuple[str, str]]:
        """Where more is to be found."""
        return []

    def _picture(self) -> str:
        judged = yardstick(self.runs)
        drawn = []
        for line in lines([run for run in self.runs if run.rounds]) if self.summary else []:
            if points := curve(line.runs, judged.of):
                drawn.append((line.method, points.rounds.tolist(), (judged.factor * points.mean).tolist()))
        return svg.lines(drawn, judged.label, 0.0)


def compare_runs(
    runs: StoredRun | str | Path | Iterable[StoredRun | str | Path], *, reference: str | None = None
) -> Comparison:
    """Compare stored runs, paired by seed, as `everfed compare` does with its own.

    runs: stored runs, run folders, or folders of them, such as ["everfed-out/compare"]. Copies of a run count once.
    reference: the label that the others are compared with (default: algorithm1, or the first).

    >>> compare_runs("everfed-out/compare").differences["greedy"]["accuracy"]["p_holm"]  # doctest: +SKIP
    """
    found = distinct(_opened([runs] if isinstance(runs, StoredRun | str | Path) else list(runs)))
    drawn = lines(found.runs)
    often = Counter(line.method for line in drawn)
    # As a sweep over methods labels them, where each method has one line.
    labels = [line.method if often[line.method] == 1 and line.method in METHODS else line.label for line in drawn]
    labelled: Labelled = [
        (label, run) for label, line in zip(labels, drawn, strict=True) for run in (*line.runs, *line.unfinished)
    ]
    if reference is not None and reference not in labels:
        raise InputError(unknown("label", reference, labels))
    titles = {label: line.experiment.title for label, line in zip(labels, drawn, strict=True)}
    return compared(labelled, titles, reference, notes_on(found, drawn))


def compared(labelled: Labelled, titles: dict[str, str], reference: str | None, notes: list[str]) -> Comparison:
    """The comparison of runs that have labels."""
    summary = with_measures(summarize(labelled), labelled)
    base = reference_of(list(summary)) if reference is None else reference
    return Comparison(
        runs=[run for _, run in labelled],
        titles=titles,
        summary=summary,
        reference=base,
        differences=differences(labelled, base) if base else {},
        unfinished=unfinished(labelled),
        notes=notes + (incomparable(labelled, base) if base else []),
    )


def _opened(given: Sequence[StoredRun | str | Path]) -> list[StoredRun]:
    """Runs, read from their folders where they are not yet; a warning names those that cannot be read."""
    out: list[StoredRun] = []
    for one in given:
        if isinstance(one, StoredRun):
            out.append(one)
            continue
        if not isinstance(one, str | Path):
            raise InputError(f"a run to compare is {one!r}; give stored runs (ef.open_run) or their folders.")
        if not (paths := find_runs(one)):
            raise InputError(f"there are no runs in '{one}'; give a run folder, or a folder that contains some.")
        readable, unreadable = open_runs(paths)
        if unreadable:
            why = some([f"'{run.path}' ({run.reason.rstrip('.')})" for run in unreadable], 2)
            warn(f"{len(unreadable)} of {len(paths)} runs in '{one}' cannot be read and are left out: {why}.", 3)
        out += readable
    if not out:
        raise InputError("there is no run to compare; give at least one.")
    return out


def _states_said(label: str, states: dict[str, list[int]]) -> str:
    """'client.lr=3.0: seeds 0, 1, 2 diverged, seed 4 stopped'."""
    said = (f"seed{'s' * (len(seeds) > 1)} {some(seeds)} {state}" for state, seeds in states.items())
    return f"{label}: {', '.join(said)}"


def _spread_columns(name: str, found: dict[str, Any] | None) -> dict[str, Any]:
    low, high = (found and found["ci95"]) or (None, None)
    return {name: found and found["mean"], f"{name}_low": low, f"{name}_high": high}
