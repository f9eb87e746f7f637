"""What the runs of experiments/variance.py say: figures of each run, tables of them, and the page they stand in.

Nothing here trains: the results file is all that is needed, or the JSON file made from it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import study_runs
from study_runs import Line, by_name, markdown, percent, read_lines, write_json

METHODS = ("algorithm1", "lattice", "fixed-phase", "ht-varp 0.5", "ht-varp 1", "last-updates", "fedau")
REFERENCE = "fedavg"  # unlimited energy, run without server momentum only
# Data, split, client: the most telling first.
CASES = (
    ("cifar10", "by-energy 0.5", "sgd 0.1"),
    ("cifar10", "iid", "adam 0.001"),
    ("cifar10", "iid", "sgd 0.1"),
    ("digits", "by-energy 0.5", "sgd 0.1"),
    ("digits", "by-energy 0.5", "sgd 0.2, cosine"),
    ("digits", "iid", "sgd 0.1"),
    ("digits", "iid", "sgd 0.2, cosine"),
)
LAST, SPACING = 5, 20  # the evaluations that are averaged at the end, and the rounds between them
TARGET = 0.9  # of FedAvg's accuracy in the same case, the mean of its seeds
WHAT = ("data", "split", "client", "method", "momentum", "seed")
Record = dict[str, Any]


# ---- the figures of a run ----


def measures(line: Line) -> dict[str, float] | None:
    """The figures of a run by itself; None if it diverged.

    Means are over five evaluations 20 rounds apart, since curves wiggle; the wiggle is the standard deviation of all
    evaluations in the closing rounds.
    """
    curve = line["curve"]
    if line["diverged"] or not curve["accuracy"]:
        return None
    end, closing = curve["round"][-1], line["settings"]["closing"]
    apart = [i for i, number in enumerate(curve["round"]) if (end - number) % SPACING == 0][-LAST:]
    late = [a for number, a in zip(curve["round"], curve["accuracy"], strict=True) if number > end - closing]
    return {
        "accuracy": statistics.fmean(curve["accuracy"][i] for i in apart),
        "worst": statistics.fmean(curve["worst_group"][i] for i in apart),
        "wiggle": statistics.pstdev(late),
        "var_weight": line["var_weight"],
        "mean_weight": line["mean_weight"],
    }


def case_of(run: Mapping[str, Any]) -> tuple[str, str, str]:
    return run["data"], run["split"], run["client"]


def reached(line: Line, target: float | None) -> dict[str, float | None]:
    """The rounds done and the energy spent at the first evaluation that has the target; None if none has."""
    curve = line["curve"]
    for number, accuracy, spent in zip(curve["round"], curve["accuracy"], curve["spent"], strict=True):
        if target is not None and accuracy >= target:
            return {"rounds": number, "energy": spent}
    return {"rounds": None, "energy": None}


def records(lines: Iterable[Line]) -> list[Record]:
    """The runs in short: what each is, its figures, and what it took to the target of its case."""
    known = [(line, measures(line)) for line in lines]
    goals: dict[tuple[str, str, str], list[float]] = {}
    for line, m in known:
        if line["method"] == REFERENCE and m:
            goals.setdefault(case_of(line), []).append(m["accuracy"])
    out = []
    for line, m in known:
        what = {key: line[key] for key in WHAT}
        if m is None:
            out.append({**what, "diverged": True})
            continue
        reference = goals.get(case_of(line))
        target = round(TARGET * statistics.fmean(reference), 6) if reference else None
        figures = {key: round(value, 6) for key, value in m.items()}
        out.append({**what, **figures, "target": target, **reached(line, target)})
    return out


# ---- tables ----


def find(runs: Sequence[Record], case: tuple[str, str, str], method: str, momentum: bool) -> list[Record]:
    """The runs of one row, by seed."""
    found = [r for r in runs if (case_of(r), r["method"], r["momentum"]) == (case, method, momentum)]
    return sorted(found, key=lambda run: run["seed"])


def cell(found: Sequence[Record], key: str) -> str:
    """Mean ± standard deviation over the seeds that have the figure, and how many have not."""
    whole = [run for run in found if "diverged" not in run]
    values = [run[key] for run in whole if run[key] is not None]
    if not whole:
        return "diverged"
    if not values:
        return "not reached"
    if key in ("accuracy", "worst"):
        text = percent(values)
    else:
        scale, digits = {"wiggle": (100, "2f"), "var_weight": (1, "3f")}.get(key, (1, "0f"))
        scaled = [scale * value for value in values]
        spread = f" ± {statistics.stdev(scaled):,.{digits}}" if len(scaled) > 1 else ""
        text = f"{statistics.fmean(scaled):,.{digits}}{spread}"
    return text if len(values) == len(found) else f"{text} ({len(values)} of {len(found)})"


def case_table(runs: Sequence[Record], case: tuple[str, str, str]) -> str:
    """All figures of a case, one row a method."""
    keys = ("accuracy", "worst", "wiggle", "var_weight", "rounds", "energy")
    rows = []
    for momentum in (False, True):
        for method in (REFERENCE, *METHODS):
            found = find(runs, case, method, momentum)
            if found:
                rows.append([method + " + momentum" * momentum, *[cell(found, key) for key in keys]])
    targets = {run["target"] for run in runs if case_of(run) == case and run.get("target") is not None}
    goal = f"{100 * targets.pop():.1f} %" if targets else "the target"
    head = ["method", "accuracy %", "worst group %", "wiggle", "var(W)", f"rounds to {goal}", f"energy to {goal}"]
    return markdown(head, rows)


def change(found: Sequence[Record], base: Sequence[Record]) -> str:
    """Points of accuracy more than the base with the same seed (mean ± sd), and how many times its wiggle."""
    before = {run["seed"]: run for run in base if "diverged" not in run}
    pairs = [(run, before[run["seed"]]) for run in found if "diverged" not in run and run["seed"] in before]
    if not pairs:
        return "diverged" if found and base else ""
    gains = [100 * (run["accuracy"] - old["accuracy"]) for run, old in pairs]
    spread = f" ± {statistics.stdev(gains):.1f}" if len(gains) > 1 else ""
    wiggle = sum(old["wiggle"] for _, old in pairs)
    ratio = f"×{sum(run['wiggle'] for run, _ in pairs) / wiggle:.2f}" if wiggle else "–"
    few = f" ({len(pairs)} of {len(found)})" if len(pairs) < len(found) else ""
    return f"{statistics.fmean(gains):+.1f}{spread}, {ratio}{few}"


def title(case: Sequence[str]) -> str:
    return ", ".join(case)


def against_table(runs: Sequence[Record], data: str) -> str:
    """Each method against Algorithm 1, without server momentum; seeds in pairs."""
    cases = [case for case in CASES if case[0] == data]
    rows = []
    for method in (REFERENCE, *METHODS[1:]):
        rows.append([method, *[change(find(runs, c, method, False), find(runs, c, METHODS[0], False)) for c in cases]])
    return markdown(["accuracy, wiggle against algorithm1", *[title(case[1:]) for case in cases]], rows)


def momentum_table(runs: Sequence[Record], data: str) -> str:
    """Each method with server momentum against itself without; seeds in pairs."""
    cases = [case for case in CASES if case[0] == data]
    rows = [[m, *[change(find(runs, c, m, True), find(runs, c, m, False)) for c in cases]] for m in METHODS]
    return markdown(["accuracy, wiggle by momentum", *[title(case[1:]) for case in cases]], rows)


def blocks(runs: Sequence[Record]) -> dict[str, str]:
    """All tables by name, those without runs left out."""
    out = {}
    for data in dict.fromkeys(case[0] for case in CASES):
        if any(run["data"] == data for run in runs):
            out[f"{data}, against algorithm1"] = against_table(runs, data)
            out[f"{data}, by momentum"] = momentum_table(runs, data)
    for case in CASES:
        if any(case_of(run) == case for run in runs):
            out[title(case)] = case_table(runs, case)
    return out


def tables(runs: Sequence[Record]) -> str:
    """All of it as markdown."""
    return "\n\n".join(f"## {name}\n\n{table}" for name, table in blocks(runs).items()) or "no runs yet"


# ---- files for the documentation ----


def latest(results: Path) -> list[Line]:
    """The lines of a results file: of each data set those with the settings of its last line."""
    lines = read_lines(results)
    settings = {line["data"]: line["settings"] for line in lines}
    return list(by_name(line for line in lines if line["settings"] == settings[line["data"]]).values())


def short_runs(results: Path) -> list[Record]:
    """The runs in short, from a results file or from the JSON made of one."""
    if results.suffix == ".json":
        return list(json.loads(results.read_text())["runs"])
    return records(latest(results))


def as_json(results: Path, out: Path) -> None:
    lines = latest(results)
    write_json(out, {line["data"]: line["settings"] for line in lines}, records(lines))


def fill_page(results: Path, out: Path) -> None:
    study_runs.fill_page(out, blocks(short_runs(results)))
