"""What the runs of experiments/non_iid.py say: its tables, its figure, and the figures of every run as JSON.

Nothing here trains: the results file is all that is needed, or for the figure the JSON file made from it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study_runs import Line, markdown, percent, read, write_json

from everfed.data.partition import ByEnergy, Split
from everfed.energy.fleet import Group
from everfed.learning.evaluate import Metrics

COMPARED = ("algorithm1", "greedy", "wait-for-all", "fedavg")  # those of `everfed compare`
LAST, WIGGLE = 5, 10  # evaluations at the end of a run that are averaged, and whose spread is the wiggle

# ---- what the runs say ----


def rare_accuracy(split: Split, metrics: Metrics, counts: Any, groups: Sequence[Group]) -> float:
    """How well the classes of the group with the least energy are known.

    By energy: the mean recall of the classes at home there. Dirichlet, where no class is at home in one group
    alone: the recalls weighted by that group's class mix.
    """
    assert metrics.class_accuracy is not None
    assert metrics.group_accuracy is not None
    if not isinstance(split, ByEnergy):
        return metrics.group_accuracy[groups[-1].label]
    return statistics.fmean(metrics.class_accuracy[c] for c in rare_classes(counts, groups))


def rare_classes(counts: Any, groups: Sequence[Group]) -> list[int]:
    """The classes of which the group with the least energy holds more than any other group."""
    held = np.array([counts[group.clients].sum(axis=0) for group in groups])
    return np.flatnonzero(held.argmax(axis=0) == len(groups) - 1).tolist()


def measures(line: Line) -> dict[str, float] | None:
    """The figures of a run; None if it diverged. Means are over the last five evaluations, since curves wiggle."""
    curve = line["curve"]
    if line["diverged"] or not curve["accuracy"]:
        return None
    losses = [group_mean(row, line["shares"]) for row in curve["train_loss"][-LAST:]]
    heard = [loss for loss in losses if loss is not None]
    return {
        "last": curve["accuracy"][-1],
        "last5": statistics.fmean(curve["accuracy"][-LAST:]),
        "worst": statistics.fmean(curve["worst_group"][-LAST:]),
        "rare": statistics.fmean(curve["rare"][-LAST:]),
        "train_loss": statistics.fmean(heard) if heard else math.nan,
        "wiggle": statistics.pstdev(curve["accuracy"][-WIGGLE:]),
    }


def group_mean(values: Sequence[float | None], shares: Sequence[float]) -> float | None:
    """The mean over the groups that were heard, by their part of the data; None if none was."""
    known = [(v, s) for v, s in zip(values, shares, strict=True) if v is not None]
    return sum(v * s for v, s in known) / sum(s for _, s in known) if known else None


def chosen_rate(lines: Sequence[Line | None]) -> float | None:
    """The rate with the best validation accuracy; a diverged run is worst, the smaller of two equals wins."""
    known = [line for line in lines if line is not None]
    if not known or len(known) < len(lines):
        return None

    def score(line: Line) -> float:
        m = measures(line)
        return m["last5"] if m else -1.0

    return max(sorted(known, key=lambda line: line["rate"]), key=score)["rate"]


def jumps(line: Line) -> tuple[float, float] | None:
    """Over the close-up: how much a round that hears the rarest group adds to the recall of its classes, and of the
    others, on average."""
    rare = set(line["rare_classes"])
    steps = []
    for before, after in zip(line["close_up"], line["close_up"][1:], strict=False):
        if after["heard"][-1]:
            gain = np.subtract(after["class_accuracy"], before["class_accuracy"])
            is_rare = np.array([c in rare for c in range(len(gain))])
            steps.append((gain[is_rare].mean(), gain[~is_rare].mean()))
    return tuple(np.mean(steps, axis=0).tolist()) if steps and rare else None


# ---- tables ----


def select(lines: Mapping[str, Line], **wanted: Any) -> list[Line]:
    return [line for line in lines.values() if all(line[key] == value for key, value in wanted.items())]


def splits(done: Mapping[str, Line]) -> list[str]:
    return sorted({line["split"] for line in done.values()})


def cell(lines: Sequence[Line], key: str) -> str:
    known = [m[key] for m in map(measures, lines) if m]
    lost = f" ({len(lines) - len(known)} diverged)" if len(known) < len(lines) else ""
    if not known:
        return "–" + lost
    return (f"{statistics.fmean(known):.2f}" if key == "train_loss" else percent(known)) + lost


def tuning_table(done: Mapping[str, Line]) -> str:
    """Validation accuracy at each rate; the chosen one's is bold."""
    tuning = select(done, part="tune")
    rates = sorted({line["rate"] for line in tuning})
    rows = []
    for split in splits(done):
        cells = []
        for method in COMPARED:
            lines = [line for line in tuning if (line["split"], line["method"]) == (split, method)]
            known = {line["rate"]: line for line in lines}
            best = chosen_rate([known.get(rate) for rate in rates])
            told = [cell([known[rate]], "last5") if rate in known else "?" for rate in rates]
            cells.append(" ".join(f"**{c}**" if rate == best else c for c, rate in zip(told, rates, strict=True)))
        rows += [[split, *cells]]
    return markdown([f"validation accuracy % at {', '.join(f'{rate:g}' for rate in rates)}", *COMPARED], rows)


def clients_table(done: Mapping[str, Line]) -> str:
    """Accuracy and rare classes of the first seed, by the clients' optimiser; SGD at its chosen rate beside Adam."""
    seed = min(line["seed"] for line in done.values())
    rows = []
    for split in splits(done):
        others = select(done, part="adam", split=split) + select(done, part="control", split=split)
        if not others:
            continue
        kinds = list(dict.fromkeys((line["client"], line["rate"]) for line in others))
        for kind, rate in [("sgd", None), *kinds]:
            cells = []
            for method in COMPARED:
                wanted = {"split": split, "client": kind, "method": method, "seed": seed}
                found = select(done, part="final", **wanted)
                if rate is not None:
                    found = [line for line in select(done, rate=rate, **wanted) if line in others]
                cells.append(f"{cell(found, 'last5')} / {cell(found, 'rare')}" if found else "")
            rows.append([f"{split}, {kind} {'tuned' if rate is None else format(rate, 'g')}", *cells])
    return markdown(["accuracy % / rare classes %", *COMPARED], rows)


def pushes(line: Line) -> tuple[float, float, float] | None:
    """How output biases are pushed at the end of a run, each group by its part of the data (its mean weight in a round
    of an unbiased method): those of the rare classes by the group they are at home in, and by all others together;
    and, as a yardstick, all other classes' by everybody. What all biases have in common changes no prediction."""
    own, others, rest = [], [], []
    rare = line["rare_classes"]
    for row in line["curve"]["push"]:
        if None not in row:
            weighted = np.array(line["shares"])[:, None] * np.array(row)
            own.append(weighted[-1, rare].mean())
            others.append(weighted[:-1, rare].sum(axis=0).mean())
            rest.append(np.delete(weighted, rare, axis=1).sum(axis=0).mean())
    return (statistics.fmean(own), statistics.fmean(others), statistics.fmean(rest)) if own and rare else None


def updates_table(done: Mapping[str, Line]) -> str:
    """What clients send, early and late in the run, and what a round that hears the rarest group does to the model."""
    seed = min(line["seed"] for line in done.values())
    unbiased = [line for line in done.values() if line["method"] in ("algorithm1", "fedavg") and line["seed"] == seed]
    rows = []
    for line in unbiased:
        if line["part"] == "tune" or line["diverged"]:
            continue
        cells = [f"{line['split']}, {line['method']}, {line['client']} {line['rate']:g}"]
        tenth = max(1, len(line["curve"]["round"]) // 10)
        for key, group in (("length", 0), ("length", -1), ("train_loss", 0), ("train_loss", -1)):
            values = [row[group] for row in line["curve"][key]]
            ends = [[v for v in part if v is not None] for part in (values[:tenth], values[-tenth:])]
            cells.append(" → ".join(f"{statistics.fmean(end):.2f}" if end else "–" for end in ends))
        pushed, moved = pushes(line), jumps(line)
        cells.append(" ".join(f"{1000 * push:+.2f}" for push in pushed) if pushed else "–")
        cells.append(f"{100 * moved[0]:+.1f} {100 * moved[1]:+.1f}" if moved else "–")
        rows.append(cells)
    labels = next(iter(done.values()))["groups"]
    ends = [f"{what}, {label}" for what in ("length", "loss") for label in (labels[0], labels[-1])]
    push = "push ×1000, rare classes: own group, other groups; other classes: all"
    return markdown(["run", *ends, push, "jump of recall: rare, others"], rows)


def finals_table(done: Mapping[str, Line], head: str, keys: Sequence[str]) -> str:
    """These figures of the runs at the chosen rates, by split and method; losses are no percentages."""
    rows = []
    for split in splits(done):
        found = [select(done, part="final", split=split, method=method) for method in COMPARED]
        if any(found):
            rows.append([split, *[" / ".join(cell(lines, key) for key in keys) if lines else "" for lines in found]])
    return markdown([head, *COMPARED], rows)


def tables(done: Mapping[str, Line]) -> str:
    """All of it as markdown."""
    if not done:
        return "no runs yet"
    parts = ["## Summary", finals_table(done, "accuracy % / rare classes %", ("last5", "rare"))]
    parts += ["## More", finals_table(done, "worst group % / wiggle / train loss", ("worst", "wiggle", "train_loss"))]
    parts += ["## Tuning", tuning_table(done)]
    if select(done, part="adam") or select(done, part="control"):
        parts += ["## The clients' optimiser", clients_table(done)]
    return "\n\n".join([*parts, "## Updates", updates_table(done)])


# ---- files for the documentation ----


def figures(line: Line) -> dict[str, Any]:
    """The figures of a run as fractions of 1; None for a loss that nobody reported."""
    found = measures(line)
    if found is None:
        return {"diverged": True}
    return {key: None if math.isnan(value) else round(value, 6) for key, value in found.items()}


def record(line: Line) -> dict[str, Any]:
    """A run in short: what it is, and its figures."""
    return {key: line[key] for key in ("part", "split", "method", "client", "rate", "seed")} | figures(line)


def records(results: Path, out: Path) -> None:
    """Write the figures of all runs as JSON, one run a line."""
    done = read(results)
    settings = next(iter(done.values()))["settings"] if done else {}
    write_json(out, settings, map(record, done.values()))


def short_runs(results: Path) -> list[dict[str, Any]]:
    """The runs in short, from a results file or from the JSON made of one."""
    if results.suffix == ".json":
        return json.loads(results.read_text())["runs"]
    return [record(line) for line in read(results).values()]


def draw(results: Path, out: Path) -> None:
    """Accuracy and recall of the rare classes against the strength, one line a method, means and spread of seeds."""
    from matplotlib.figure import Figure  # only here: tables need none of it, nor of the styles

    from everfed.report.style import styles

    runs = [run for run in short_runs(results) if run["part"] == "final" and run["split"].startswith("by-energy")]
    picture = Figure(figsize=(9, 4.5), layout="constrained")
    panels = zip(picture.subplots(1, 2, sharey=True), ("last5", "rare"), strict=True)
    titles = {"last5": "Test accuracy", "rare": "Recall of the rare classes (cycle 20)"}
    for axes, key in panels:
        for method, style in zip(COMPARED, styles(COMPARED), strict=True):
            by_strength: dict[float, list[float]] = {}
            for run in runs:
                if run["method"] == method and key in run:  # a diverged run has no figures
                    by_strength.setdefault(float(run["split"].split()[1]), []).append(100 * run[key])
            strengths = sorted(by_strength)
            axes.errorbar(
                strengths, [statistics.fmean(by_strength[s]) for s in strengths],
                yerr=[statistics.stdev(by_strength[s]) if len(by_strength[s]) > 1 else 0.0 for s in strengths],
                color=style.colour, marker=style.marker, label=method, linewidth=2.2, markersize=7, capsize=3,
                linestyle=(0, [part / 2 for part in style.dash]) if style.dash else "-",
            )  # fmt: skip
        axes.set_title(titles[key], loc="left", fontsize=12)
        axes.set_xlabel("strength of by-energy", fontsize=12)
        axes.set_xticks([0.25, 0.5, 0.75, 1.0])
        axes.set_ylim(-2, 100)
        axes.tick_params(labelsize=12)
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    picture.axes[0].set_ylabel("%", fontsize=12)
    picture.legend(
        *picture.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=12
    )
    picture.savefig(out, dpi=110)
