"""The figure of a sweep: the final result against each setting that was varied."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from everfed.report.lines import Line, evaluated_on, seeds_said
from everfed.report.style import method_styles
from everfed.report.sweeps import Sweep
from everfed.showing.axes import percents
from everfed.showing.labels import fit_names
from everfed.stats import summarize
from everfed.studies.yardstick import Yardstick

_MOST_COLUMNS = 3
_MOST_SAID = 3  # points with seeds that diverged; all of them have their number beside a cross


def draw_sweeps(drawn: Sequence[Line], found: Sequence[Sweep], judged: Yardstick, title: str | None) -> Any:
    """One panel per setting, and a second one below it (beside it if alone) for the worst energy group."""
    from matplotlib.figure import Figure

    runs = [run for line in drawn for run in line.runs]
    everything = [run for line in drawn for run in (*line.runs, *line.unfinished)]
    several = any(len(line.runs) > 1 for line in drawn)
    what = f"Final {evaluated_on(runs)} {judged.name}"
    rows: list[tuple[str, Any]] = [(what, judged.of)]
    if any(run.final and judged.worst_group(run.final) is not None for run in runs):
        rows.append(("Worst energy group", judged.worst_group))
    panels = [(sweep, name, value) for name, value in rows for sweep in found]
    if len(found) > _MOST_COLUMNS:  # setting by setting, so that both panels of each lie side by side
        panels = [(sweep, name, value) for sweep in found for name, value in rows]
    columns = 2 if len(found) == 1 or len(found) > _MOST_COLUMNS else len(found)
    lines = -(-len(panels) // columns)
    picture = Figure(figsize=(max(8.0, 4.6 * columns), 3.6 * lines + 0.6), layout="constrained")
    grid = picture.subplots(lines, columns, squeeze=False).flat
    for axes, (sweep, name, value) in zip(grid, panels, strict=False):
        _panel(axes, drawn, sweep, judged, value)
        axes.set_title(name)
        axes.set_ylabel(f"{judged.name} (%)" if judged.percent else judged.name)
        axes.set_xlabel(sweep.key)
    for axes in list(grid)[len(panels) :]:
        axes.set_axis_off()
    spread = "; mean and its 95 % interval over " if several else "; "
    said = [*([title] if title else []), _keys_said(found) + spread + seeds_said(everything), *_partly_lost(drawn)]
    picture.suptitle("\n".join(said), fontsize=10, x=0.01, ha="left")
    _legend(picture, drawn, found)
    return picture


def _keys_said(found: Sequence[Sweep]) -> str:
    keys = [sweep.key for sweep in found]
    return "Against " + " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))


def _partly_lost(drawn: Sequence[Line]) -> list[str]:
    """Points whose mean is over the seeds that did not diverge, in words."""
    found = [line for line in drawn if line.diverged and not line.lost]
    said = "; ".join(f"{line.label}: {line.diverged_said} diverged" for line in found[:_MOST_SAID])
    more = f"; and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
    return textwrap.wrap(f"Hollow: the mean over the seeds that did not diverge. {said}{more}.", 110) if found else []


def _panel(axes: Any, drawn: Sequence[Line], sweep: Sweep, judged: Yardstick, value: Any) -> None:
    at, count = sweep.positions, len(sweep.series)
    crosses = Counter[int]()  # at each place: those of several series stand above each other
    for k, one in enumerate(sweep.series):
        # Whiskers of several series at one value stand side by side.
        aside = (k - (count - 1) / 2) / count
        points = []
        for line, place in zip(one.lines, one.places, strict=True):
            here = _beside(sweep, at[place], aside)
            if drawn[line].diverged:
                _cross(axes, here, 0.03 + 0.06 * crosses[place], drawn[line], one.style.colour)
                crosses[place] += 1
            if drawn[line].lost:
                continue
            values = [v for run in drawn[line].runs if run.final and (v := value(run.final)) is not None]
            if values:
                shown = summarize(judged.factor * np.array(values))
                points.append((here, shown.mean, shown.margin or 0.0))
                if drawn[line].diverged:  # hollow
                    axes.plot(
                        here, shown.mean, one.style.marker, color=one.style.colour, markerfacecolor="white",
                        markersize=4.5, zorder=3,
                    )  # fmt: skip
        if not points:
            continue
        x, y, margin = zip(*points, strict=True)
        joined = one.style.linestyle if sweep.kind != "names" else "none"
        axes.errorbar(
            x, y, margin, color=one.style.colour, marker=one.style.marker, markersize=4.5, linestyle=joined,
            linewidth=1.6, elinewidth=1, capsize=2,
        )  # fmt: skip
    if sweep.kind == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    names = fit_names(sweep.shown, 48)
    axes.set_xticks([at[i] for i in names.at], names.texts, **names.how)
    if sweep.kind in ("names", "steps"):
        axes.set_xlim(-0.5, len(at) - 0.5)
    if judged.percent:
        percents(axes)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)


def _cross(axes: Any, x: float, y: float, line: Line, colour: str) -> None:
    """At the bottom; with the number of seeds where it is not all of them."""
    axes.plot(x, y, "x", color=colour, transform=axes.get_xaxis_transform(), gid="diverged")
    if not line.lost:
        axes.annotate(
            line.diverged_said.removesuffix(" seeds"), (x, y), xytext=(5, 0), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", va="center", fontsize=7, color=colour,
        )  # fmt: skip


def _beside(sweep: Sweep, at: float, aside: float) -> float:
    first, last = sweep.positions[0], sweep.positions[-1]
    if sweep.kind == "log":
        return float(at * (last / first) ** (0.03 * aside))
    return float(at + aside * (0.5 if sweep.kind == "names" else 0.03 * (last - first)))


def _legend(picture: Any, drawn: Sequence[Line], found: Sequence[Sweep]) -> None:
    """Methods by colour and, where dashes speak, the other settings of each panel in grey."""
    from matplotlib.lines import Line2D

    titles = {line.method: line.experiment.title for line in drawn}
    looks = method_styles(titles)
    plain = any(sweep.others for sweep in found)
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            marker=look.marker,
            markersize=4.5,
            linestyle="-" if plain else look.linestyle,
            label=titles[method],
        )
        for method, look in looks.items()
    ]
    for said, look in {said: look for sweep in found for said, look in sweep.others.items()}.items():
        handles.append(Line2D([], [], color=look.colour, linestyle=look.linestyle, label=said))
    if any(line.diverged for line in drawn):
        handles.append(Line2D([], [], color="#444444", marker="x", linestyle="none", label="diverged"))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = min(len(handles), 4 if longest < 30 else 2 if longest < 60 else 1)
    picture.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
