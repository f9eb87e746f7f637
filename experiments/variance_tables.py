"""What the runs of experiments/variance.py say: figures of each run, tables of them, and the page they stand in.

Nothing here trains: the runs are all that is needed, or the JSON file made of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from study_runs import Record, markdown, percent, rounded

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


# ---- the figures of a run ----


def measures(run: Record) -> Record | None:
    """The figures of a run by itself; None if it diverged. Means are over five evaluations 20 rounds apart, since
    curves vary."""
    curve = run["curve"]
    if run["diverged"] or not curve["accuracy"]:
        return None
    end = curve["round"][-1]
    apart = [i for i, number in enumerate(curve["round"]) if (end - number) % SPACING == 0][-LAST:]
    return {
        "accuracy": rounded(statistics.fmean(curve["accuracy"][i] for i in apart)),
        "worst": rounded(statistics.fmean(curve["worst_group"][i] for i in apart)),
        "late_variation": run["late_variation"],
        "var_weight": run["var_weight"],
        "mean_weight": run["mean_weight"],
    }


def case_of(run: Record) -> tuple[str, str, str]:
    return run["data"], run["split"], run["client"]


def reached(run: Record, target: float | None) -> dict[str, float | None]:
    """The rounds done and the energy spent at the first evaluation that has the target; None if none has."""
    curve = run["curve"]
    for number, accuracy, spent in zip(curve["round"], curve["accuracy"], curve["spent"], strict=True):
        if target is not None and accuracy >= target:
            return {"rounds": number, "energy": spent}
    return {"rounds": None, "energy": None}


def records(runs: Sequence[Record]) -> list[Record]:
    """The runs in short: what each is, its figures, and what it took to the target of its case."""
    known = [(run, measures(run)) for run in runs]
    goals: dict[tuple[str, str, str], list[float]] = {}
    for run, m in known:
        if run["method"] == REFERENCE and m:
            goals.setdefault(case_of(run), []).append(m["accuracy"])
    out = []
    for run, m in known:
        what = {key: run[key] for key in WHAT}
        if m is None:
            out.append({**what, "diverged": True})
            continue
        reference = goals.get(case_of(run))
        target = round(TARGET * statistics.fmean(reference), 6) if reference else None
        out.append({**what, **m, "target": target, **reached(run, target)})
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
        scale, digits = {"late_variation": (100, "2f"), "var_weight": (1, "3f")}.get(key, (1, "0f"))
        scaled = [scale * value for value in values]
        spread = f" ± {statistics.stdev(scaled):,.{digits}}" if len(scaled) > 1 else ""
        text = f"{statistics.fmean(scaled):,.{digits}}{spread}"
    return text if len(values) == len(found) else f"{text} ({len(values)} of {len(found)})"


def case_table(runs: Sequence[Record], case: tuple[str, str, str]) -> str:
    """All figures of a case, one row a method."""
    keys = ("accuracy", "worst", "late_variation", "var_weight", "rounds", "energy")
    rows = []
    for momentum in (False, True):
        for method in (REFERENCE, *METHODS):
            found = find(runs, case, method, momentum)
            if found:
                rows.append([method + " + momentum" * momentum, *[cell(found, key) for key in keys]])
    targets = {run["target"] for run in runs if case_of(run) == case and run.get("target") is not None}
    goal = f"{100 * targets.pop():.1f} %" if targets else "the target"
    head = [
        "method",
        "accuracy %",
        "worst group %",
        "late variation",
        "var(W)",
        f"rounds to {goal}",
        f"energy to {goal}",
    ]
    return markdown(head, rows)


def change(found: Sequence[Record], base: Sequence[Record]) -> str:
    """Points of accuracy more than the base with the same seed (mean ± sd), and how many times its late variation."""
    before = {run["seed"]: run for run in base if "diverged" not in run}
    pairs = [(run, before[run["seed"]]) for run in found if "diverged" not in run and run["seed"] in before]
    if not pairs:
        return "diverged" if found and base else ""
    gains = [100 * (run["accuracy"] - old["accuracy"]) for run, old in pairs]
    spread = f" ± {statistics.stdev(gains):.1f}" if len(gains) > 1 else ""
    before_it, now = (sum(pair[i]["late_variation"] or 0.0 for pair in pairs) for i in (1, 0))
    ratio = f"×{now / before_it:.2f}" if before_it else "–"
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
    return markdown(["accuracy, late variation against algorithm1", *[title(case[1:]) for case in cases]], rows)


def momentum_table(runs: Sequence[Record], data: str) -> str:
    """Each method with server momentum against itself without; seeds in pairs."""
    cases = [case for case in CASES if case[0] == data]
    rows = [[m, *[change(find(runs, c, m, True), find(runs, c, m, False)) for c in cases]] for m in METHODS]
    return markdown(["accuracy, late variation by momentum", *[title(case[1:]) for case in cases]], rows)


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
