"""What people look at after a comparison: a table in the terminal and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from everfed.methods import METHODS
from everfed.sweep import Outcome

# Okabe and Ito's palette: distinct under the common colour blindnesses, and in grey print.
_COLOURS = {
    "algorithm1": "#0072B2",
    "greedy": "#D55E00",
    "wait-for-all": "#009E73",
    "fedavg": "#444444",
    "greedy-normalized": "#E69F00",
    "greedy-scaled": "#CC79A7",
    "algorithm1-unscaled": "#56B4E9",
    "bernoulli": "#8A6FBF",
}
_MARKERS = dict(zip(_COLOURS, "osD^vP<X", strict=True))


def table(summary: dict[str, dict[str, Any]], seeds: int) -> Table:
    """One row a method, for the terminal."""
    out = Table(title=f"mean ± sd over {seeds} seed{'s' if seeds != 1 else ''}", title_justify="left")
    out.add_column("method", no_wrap=True)
    for column in ("accuracy %", "worst group %", "participations", "harvested", "spent", "wasted"):
        out.add_column(column, justify="right", no_wrap=True)
    for method, row in summary.items():
        energy = row["energy"]
        out.add_row(
            METHODS[method].title,
            _percent(row["accuracy"]),
            _percent(row["worst_group_accuracy"]),
            f"{row['participations']:,.0f}",
            *(f"{energy[key]:,.0f}" for key in ("harvested", "spent", "wasted")),
            style="bold" if method == "algorithm1" else None,
        )
    out.caption = "energy in units of one training round; FedAvg spends energy that was never harvested"
    out.caption_justify = "left"
    return out


def figure(outcomes: Sequence[Outcome], path: Path, title: str) -> Path:
    """Accuracy over the rounds, and what each energy group gets in the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = list(dict.fromkeys(o.experiment.method for o in outcomes))
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        fig, (left, right) = plt.subplots(
            1, 2, figsize=(11, 4.4), width_ratios=(1.45, 1), sharey=True, constrained_layout=True
        )
        for method in methods:
            runs = [o for o in outcomes if o.experiment.method == method]
            _curve(left, method, runs)
            _groups(right, method, runs, methods.index(method), len(methods))
        left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 101), xlim=(0, None))
        labels = list(outcomes[0].metrics[-1].group_accuracy or {})
        right.set_xticks(range(len(labels)), labels)
        right.set(xlabel="accuracy as each energy group sees it, at the end (E = rounds to harvest one round's energy)")
        right.xaxis.label.set(wrap=True)
        for axes in (left, right):
            axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
            axes.set_axisbelow(True)
        fig.suptitle(title, fontsize=11, x=0.01, ha="left")
        fig.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(methods)), frameon=False
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=150)
        plt.close(fig)
    return path


def _curve(axes: Any, method: str, runs: Sequence[Outcome]) -> None:
    values = 100 * np.array([[m.accuracy for m in o.metrics] for o in runs], dtype=float)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else 0.0 * values[0]
    colour = _COLOURS[method]
    style = "--" if method == "fedavg" else "-"
    axes.plot(
        runs[0].rounds, mean, style, color=colour, label=METHODS[method].title,
        linewidth=2.2 if method == "algorithm1" else 1.6, marker=_MARKERS[method], markersize=4,
        markevery=max(1, len(mean) // 8),
    )  # fmt: skip
    axes.fill_between(runs[0].rounds, mean - sd, mean + sd, color=colour, alpha=0.16, linewidth=0)


def _groups(axes: Any, method: str, runs: Sequence[Outcome], place: int, methods: int) -> None:
    finals = [o.metrics[-1].group_accuracy or {} for o in runs]
    values = 100 * np.array([list(f.values()) for f in finals], dtype=float)
    width = 0.8 / methods
    x = np.arange(values.shape[1]) + (place - (methods - 1) / 2) * width
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else None
    axes.bar(x, values.mean(axis=0), width * 0.92, yerr=spread, color=_COLOURS[method],
             error_kw={"linewidth": 1, "ecolor": "#333333"})  # fmt: skip


def _percent(spread: dict[str, float]) -> str:
    return f"{100 * spread['mean']:.1f} ± {100 * spread['sd']:.1f}"
