"""What the runs of experiments/non_iid.py say: the figures of each, and tables of them. Nothing here trains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from study_runs import Record, markdown, percent, rounded

from everfed.methods import COMPARED as COMPARED
from everfed.report.measures import late_variation
from everfed.store import StoredRun

LAST = 5  # evaluations at the end of a run that are averaged


def figures(run: StoredRun) -> Record:
    """The figures of a run as fractions of 1. Means are over the last five evaluations, since curves vary."""
    ends = [record.metrics for record in run.rounds if record.metrics][-LAST:]
    if run.state == "diverged" or not ends:
        return {"diverged": True}
    heard = [loss for m in ends if (loss := m.own["train_loss"]) == loss]  # NaN where nobody was heard
    found = {
        "last": ends[-1].accuracy,
        "last5": statistics.fmean(m.accuracy for m in ends),
        "worst": statistics.fmean(m.worst_group_accuracy for m in ends),
        "rare": statistics.fmean(m.own["rare"] for m in ends),
        "train_loss": statistics.fmean(heard) if heard else None,
        "late_variation": late_variation(run),
    }
    return {key: rounded(value) for key, value in found.items()}


def chosen_rate(tuning: Sequence[Record | None]) -> float | None:
    """The rate with the best validation accuracy; a diverged run is worst, the smaller of two equals wins."""
    known = [run for run in tuning if run is not None]
    if not known or len(known) < len(tuning):
        return None
    return max(sorted(known, key=lambda run: run["rate"]), key=lambda run: run.get("last5", -1.0))["rate"]


# ---- tables ----


def select(runs: Sequence[Record], **wanted: Any) -> list[Record]:
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def splits(runs: Sequence[Record]) -> list[str]:
    return sorted({run["split"] for run in runs})


def cell(runs: Sequence[Record], key: str) -> str:
    """Mean and deviation over seeds; losses are no percentages, and runs that diverged are counted apart."""
    known = [run[key] for run in runs if run.get(key) is not None]
    count = sum("diverged" in run for run in runs)
    lost = f" ({count} diverged)" if count else ""
    if not known:
        return "–" + lost
    return (f"{statistics.fmean(known):.2f}" if key == "train_loss" else percent(known)) + lost


def tuning_table(runs: Sequence[Record]) -> str:
    """Validation accuracy at each rate; the chosen one's is bold."""
    tuning = select(runs, part="tune")
    rates = sorted({run["rate"] for run in tuning})
    rows = []
    for split in splits(runs):
        cells = []
        for method in COMPARED:
            known = {run["rate"]: run for run in select(tuning, split=split, method=method)}
            best = chosen_rate([known.get(rate) for rate in rates])
            told = [cell([known[rate]], "last5") if rate in known else "?" for rate in rates]
            cells.append(" ".join(f"**{c}**" if rate == best else c for c, rate in zip(told, rates, strict=True)))
        rows += [[split, *cells]]
    return markdown([f"validation accuracy % at {', '.join(f'{rate:g}' for rate in rates)}", *COMPARED], rows)


def clients_table(runs: Sequence[Record]) -> str:
    """Accuracy and rare classes of the first seed, by the clients' optimiser; SGD at its chosen rate beside Adam."""
    seed = min(run["seed"] for run in runs)
    rows = []
    for split in splits(runs):
        others = select(runs, part="adam", split=split) + select(runs, part="control", split=split)
        if not others:
            continue
        kinds = list(dict.fromkeys((run["client"], run["rate"]) for run in others))
        for kind, rate in [("sgd", None), *kinds]:
            cells = []
            for method in COMPARED:
                wanted = {"split": split, "client": kind, "method": method, "seed": seed}
                found = select(runs, part="final", **wanted) if rate is None else select(others, rate=rate, **wanted)
                cells.append(f"{cell(found, 'last5')} / {cell(found, 'rare')}" if found else "")
            rows.append([f"{split}, {kind} {'tuned' if rate is None else format(rate, 'g')}", *cells])
    return markdown(["accuracy % / rare classes %", *COMPARED], rows)


def updates_table(runs: Sequence[Record]) -> str:
    """What clients send, early and late in the run, and what a round that hears the rarest group does to the model."""
    seed = min(run["seed"] for run in runs)
    shown = [
        run
        for run in runs
        if run["method"] in ("algorithm1", "fedavg")
        and run["seed"] == seed
        and run["part"] != "tune"
        and "close" in run
    ]

    def told(value: float | None, form: str, scale: float = 1.0) -> str:
        return "–" if value is None else format(scale * value, form)

    rows, ends = [], [("length", 0), ("length", 1), ("train_loss", 0), ("train_loss", 1)]
    for run in shown:
        close = run["close"]
        cells = [f"{run['split']}, {run['method']}, {run['client']} {run['rate']:g}"]
        for name, place in ends:
            cells.append(" → ".join(told(value, ".2f") for value in close[f"{name} {close['groups'][place]}"]))
        cells.append(" ".join(told(close[f"push {name}"], "+.2f", 1000) for name in ("own", "others", "rest")))
        cells.append(" ".join(told(close[f"jump {name}"], "+.1f", 100) for name in ("rare", "others")))
        rows.append(cells)
    groups = shown[0]["close"]["groups"] if shown else ["best-powered", "worst-powered"]
    heads = [f"{'loss' if name == 'train_loss' else name}, {groups[place]}" for name, place in ends]
    push = "push ×1000, rare classes: own group, other groups; other classes: all"
    return markdown(["run", *heads, push, "jump of recall: rare, others"], rows)


def finals_table(runs: Sequence[Record], head: str, keys: Sequence[str]) -> str:
    """These figures of the runs at the chosen rates, by split and method."""
    rows = []
    for split in splits(runs):
        found = [select(runs, part="final", split=split, method=method) for method in COMPARED]
        if any(found):
            rows.append([split, *[" / ".join(cell(of, key) for key in keys) if of else "" for of in found]])
    return markdown([head, *COMPARED], rows)


def tables(runs: Sequence[Record]) -> str:
    """All of it as markdown."""
    if not runs:
        return "no runs yet"
    more = ("worst", "late_variation", "train_loss")
    parts = ["## Summary", finals_table(runs, "accuracy % / rare classes %", ("last5", "rare"))]
    parts += ["## More", finals_table(runs, "worst group % / late variation / train loss", more)]
    parts += ["## Tuning", tuning_table(runs)]
    if select(runs, part="adam") or select(runs, part="control"):
        parts += ["## The clients' optimiser", clients_table(runs)]
    return "\n\n".join([*parts, "## Updates", updates_table(runs)])
