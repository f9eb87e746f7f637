"""The paper's figure: accuracy (or loss) over the rounds, and what each energy group gets in the end.

With asynchronous runs, time takes the place of rounds, and two panels are added: the worst energy group over time, and
the whole over the energy spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everfed.checks import check_file
from everfed.errors import InputError, warn
from everfed.learning.metrics import Metrics
from everfed.report.clock import Clock, clock
from everfed.report.distinct import distinct
from everfed.report.lines import Line, by_group, curve, evaluated_on, lines, seeds_said
from everfed.report.measures import Unit
from everfed.report.sweep_figure import draw_sweeps
from everfed.report.sweeps import sweeps
from everfed.showing.axes import whole_rounds
from everfed.showing.labels import fit_names
from everfed.stats import margins
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import Yardstick, yardstick

KINDS = ("auto", "curves", "sweep")
Value = Callable[[Metrics], float | None]
_MOST_NIGHTS = 60  # more would be grey
_ROOM = 50  # letters below the panel of groups
_FORMATS = (".pdf", ".png", ".svg")
_LOOK: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    # Fonts as text that can be selected and edited; publishers refuse type 3.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "everfed",  # the same numbers give the same file
    "text.parse_math": False,  # names are shown as they are, dollars included
}


def figure(runs: Sequence[StoredRun], path: Path, title: str | None = None, kind: str = "auto") -> Path:
    """Draw the runs into a .pdf, .png or .svg file and return its path.

    kind: "curves" over time; "sweep", the last evaluation against each setting that was varied; "auto", a sweep if
    there is one.
    """
    path = check_file(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"a figure is a {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} file; got '{path.name}'.")
    for note in distinct(runs).notes:
        warn(note)
    judged = yardstick(runs)
    known = lines(runs)
    drawn = [line for line in known if curve(line.runs, judged.of) is not None]
    if not drawn:
        raise InputError("there is no accuracy or loss to draw: the runs diverged, or they were not evaluated.")
    if kind not in KINDS:
        raise InputError(f"a figure's kind is one of {', '.join(KINDS)}; got '{kind}'.")
    points = [line for line in known if line in drawn or line.lost]  # a cross, where no evaluation is left
    swept = [] if kind == "curves" else sweeps(points)
    if kind == "sweep" and not swept:
        raise InputError("there is no sweep to draw: no two runs of one method differ in a single setting.")
    import matplotlib

    with matplotlib.rc_context(_LOOK):
        shown = title and title.encode(errors="backslashreplace").decode()
        picture = draw_sweeps(points, swept, judged, shown) if swept else _draw(drawn, judged, shown)
        path.parent.mkdir(parents=True, exist_ok=True)
        undated = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
        picture.savefig(path, dpi=200, metadata=undated)
    return path


def _draw(drawn: Sequence[Line], judged: Yardstick, title: str | None) -> Any:
    # Figure and not pyplot: no global state, so a notebook's or a server's backend stays as it is.
    from matplotlib.figure import Figure

    runs = [run for line in drawn for run in line.runs]
    time, unit = clock(runs), Unit.of(runs)
    more = time.asynchronous
    picture = Figure(figsize=(11, 8.4 if more else 4.4), layout="constrained")
    # Losses begin high: on their scale, what the groups end with would be flat.
    panels = picture.subplots(1 + more, 2, sharey=judged.percent, width_ratios=(1.45, 1), squeeze=False)
    whole, by_energy_group = panels[0][0], panels[-1][1]
    what = f"{evaluated_on(runs).capitalize()} {judged.name}"
    over_time(whole, drawn, judged.of, judged, time)
    whole.set(title=f"{what}{_spread_said(drawn)}")
    if more:
        over_time(panels[0][1], drawn, judged.worst_group, judged, time)
        panels[0][1].set(title=f"{judged.name.capitalize()} of the worst energy group")
        for line in drawn:
            _curve(panels[1][0], line, judged, judged.of, spent=unit.factor)
        panels[1][0].set(title=f"{what} over energy", xlabel=f"energy spent ({unit.name})")
        panels[1][0].set_xlim(left=0)
    _final_groups(by_energy_group, drawn, judged)
    for row in panels:
        row[0].set_ylabel(f"{judged.name} (%)" if judged.percent else judged.name)
    for axes in panels.flat:
        if judged.percent:
            axes.set_ylim(0, 101)
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
        axes.set_axisbelow(True)
    if title:
        picture.suptitle(title, fontsize=11, x=0.01, ha="left")
    longest = max(len(line.label) for line in drawn)
    columns = min(len(drawn), 4 if longest < 30 else 2 if longest < 60 else 1)
    picture.legend(*whole.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    return picture


def over_time(axes: Any, drawn: Sequence[Line], value: Value, judged: Yardstick, time: Clock) -> None:
    """Every line's mean with its interval, against rounds or time; nights are shaded."""
    last = max(len(run.rounds) for line in drawn for run in line.runs)
    for line in drawn:
        _curve(axes, line, judged, value, time.per_round)
    for first, after in time.dark if len(time.dark) <= _MOST_NIGHTS else ():
        axes.axvspan(first * time.per_round, after * time.per_round, color="#000000", alpha=0.06, linewidth=0)
    label = "round" if time.title == "rounds" else f"time ({time.unit})"
    nights = "; shaded: no device harvests" if 0 < len(time.dark) <= _MOST_NIGHTS else ""
    axes.set(xlabel=label + nights, xlim=(0, last * time.per_round))
    if time.title == "rounds":
        whole_rounds(axes)
    if time.dates:
        axes.set_xlabel(f"date by the fleet's clock ({last * time.per_round:.4g} {time.unit}){nights}")
        axes.set_xticks([at * time.per_round for at, _ in time.dates], [text for _, text in time.dates])


def _final_groups(axes: Any, drawn: Sequence[Line], judged: Yardstick) -> None:
    groups = list(dict.fromkeys(label for line in drawn for label in by_group(line.runs, judged)))
    for place, line in enumerate(drawn):
        _groups(axes, line, judged, groups, place, len(drawn))
    named = any(not label.startswith("E=") for label in groups)
    same = ", same interval" if any(len(line.runs) > 1 for line in drawn) else ""
    axes.set(
        title=f"Final {judged.name} by energy group{same}",
        xlabel="" if named else "rounds to harvest one round's energy",
    )
    names = fit_names(groups, _ROOM)
    axes.set_xticks(names.at, names.texts, **names.how)


def _spread_said(drawn: Sequence[Line]) -> str:
    """What the bands are, for the title of the panel."""
    seeds = seeds_said([run for line in drawn for run in line.runs])
    several = any(len(line.runs) > 1 for line in drawn)
    return f": mean over {seeds}, 95 % interval of the mean" if several else f", {seeds}"


def _curve(
    axes: Any, line: Line, judged: Yardstick, value: Value, per_round: float = 1.0, spent: float | None = None
) -> None:
    """Against time, or against the energy spent, times this factor."""
    points = curve(line.runs, value)
    if points is None:  # no energy groups, say
        return
    x = points.rounds * per_round if spent is None else points.spent * spent
    mean, margin, look = judged.factor * points.mean, judged.factor * points.margin, line.style
    axes.plot(
        x, mean, color=look.colour, label=line.label, marker=look.marker, markersize=4,
        linestyle=look.linestyle,
        linewidth=2.2 if line.method == "algorithm1" else 1.6, markevery=max(1, len(mean) // 8),
    )  # fmt: skip
    if len(line.runs) > 1:
        low, high = mean - margin, mean + margin
        if judged.percent:
            low, high = np.maximum(low, 0), np.minimum(high, 100)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0)


def _groups(axes: Any, line: Line, judged: Yardstick, groups: Sequence[str], place: int, among: int) -> None:
    finals = by_group(line.runs, judged)
    shown = [(x, judged.factor * finals[label]) for x, label in enumerate(groups) if label in finals]
    width = 0.8 / among
    axes.bar(
        [x + (place - (among - 1) / 2) * width for x, _ in shown],
        [values.mean() for _, values in shown],
        width * 0.92,
        yerr=[float(margins(values)) for _, values in shown] if len(line.runs) > 1 else None,
        color=line.style.colour,
        error_kw={"linewidth": 1, "ecolor": "#333333"},
    )
