"""The pictures of docs/results/cifar10.md and non_iid.md, from the runs of experiments/cifar10.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cifar10_tables import FIGURE, TITLES, batch_cases, by_seed, finals, load, seeds_of, skewed_cases
from matplotlib.figure import Figure
from non_iid_tables import COMPARED
from study_runs import Record

from everfed.report.style import styles
from everfed.stats import summarize


def draw(results: Path, out: Path) -> None:
    runs = load(results)
    draw_figure(runs, out / "cifar10.png")
    draw_skewed(runs, out / "non_iid.png")


def panels(width: float, **settings: Any) -> tuple[Any, Any]:
    picture = Figure(figsize=(width, 4.5), layout="constrained")
    axes = picture.subplots(1, 2, sharey=True, **settings)
    for one in axes:
        one.tick_params(labelsize=12)
        one.grid(axis="y", color="#e3e3e3", linewidth=0.8)
        one.spines[["top", "right"]].set_visible(False)
    return picture, axes


def looks() -> dict[str, dict[str, Any]]:
    """How the line of each method is drawn."""
    return {
        method: {
            "color": style.colour,
            "marker": style.marker,
            "label": TITLES[method],
            "linestyle": (0, [part / 2 for part in style.dash]) if style.dash else "-",
        }
        for method, style in zip(COMPARED, styles(COMPARED), strict=True)
    }


def points(axes: Any, places: Sequence[float], found: Sequence[Sequence[Record]], key: str, look: Any) -> None:
    """Means with their intervals."""
    known = [(x, summarize(list(by_seed(f, key).values()))) for x, f in zip(places, found, strict=True) if f]
    axes.errorbar(
        [x for x, _ in known], [100 * e.mean for _, e in known], yerr=[100 * (e.margin or 0.0) for _, e in known],
        linewidth=2.2, markersize=7, capsize=3, **look,
    )  # fmt: skip


def finish(picture: Any, out: Path) -> None:
    handles, labels = picture.axes[1].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=12)
    picture.savefig(out, dpi=130)


def draw_figure(runs: Sequence[Record], out: Path) -> None:
    """The paper's figure, means and intervals over seeds; beside it the ends of the runs by batch size."""
    picture, (left, right) = panels(11, width_ratios=[3, 2])
    cases, _ = batch_cases(runs)
    for method, look in looks().items():
        found = [run for run in finals(runs, FIGURE, method) if "diverged" not in run]
        if found:
            rounds = found[0]["rounds"]
            ends = [summarize([run["accuracy"][i] for run in found]) for i in range(len(rounds))]
            means, halves = [100 * e.mean for e in ends], [100 * (e.margin or 0.0) for e in ends]
            left.plot(rounds, means, linewidth=2.2, markevery=6, markersize=7, **look)
            low, high = ([m + way * h for m, h in zip(means, halves, strict=True)] for way in (-1, 1))
            left.fill_between(rounds, low, high, color=look["color"], alpha=0.15, linewidth=0)
        points(right, range(len(cases)), [finals(runs, case, method) for case in cases], "last", look)
    left.set_title(
        f"Test accuracy, batch 50, {max(seeds_of(finals(runs, FIGURE, m)) for m in COMPARED)} seeds",
        loc="left",
        fontsize=12,
    )
    left.set_xlabel("round", fontsize=12)
    left.set_ylabel("accuracy (%)", fontsize=12)
    left.set_ylim(0, 100)
    right.set_title("At the end, by batch size", loc="left", fontsize=12)
    right.set_xlabel("batch", fontsize=12)
    right.set_xticks(range(len(cases)), [str(case.batch) for case in cases])
    right.set_xlim(-0.3, len(cases) - 0.7)
    finish(picture, out)


def draw_skewed(runs: Sequence[Record], out: Path) -> None:
    """Accuracy and recall of the rare classes against the strength, means and intervals over seeds."""
    picture, axes = panels(9)
    cases = [case for case in skewed_cases(runs)[0] if case.split.startswith("by-energy")]
    strengths = [float(case.split.split()[1]) for case in cases]
    titles = {"last5": "Test accuracy", "rare": "Recall of the rare classes (cycle 20)"}
    for one, (key, title) in zip(axes, titles.items(), strict=True):
        for method, look in looks().items():
            points(one, strengths, [finals(runs, case, method) for case in cases], key, look)
        one.set_title(title, loc="left", fontsize=12)
        one.set_xlabel("strength of by-energy", fontsize=12)
        one.set_xticks(strengths)
        one.set_ylim(-2, 100)
    axes[0].set_ylabel("%", fontsize=12)
    finish(picture, out)
