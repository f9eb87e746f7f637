"""What the runs of experiments/cifar10.py say: their JSON, tables and pictures, and the pages these stand in.

Nothing here trains: the runs in short are all that is needed, as in the folder with the JSON files made of them.
± is half the width of a 95 % interval (Student's t) over seeds; differences are between runs of the same seed, their
p values corrected (Holm) for the other tests of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import intervals
from cifar10 import AUGMENTS, LADDERS, Case, best
from non_iid_tables import COMPARED
from study_runs import Record, fill_page, markdown, read_json, write_json

from everfed import stats

TITLES = {"algorithm1": "Algorithm 1", "greedy": "greedy", "wait-for-all": "wait for all", "fedavg": "FedAvg"}
PAPER = {"algorithm1": 77, "greedy": 60, "wait-for-all": 62, "fedavg": 77}
FIGURE = Case("iid", "adam")
BATCHES = (10, 50, 250)
SKEWED = ("by-energy 0.25", "by-energy 0.5", "by-energy 0.75", "by-energy 1", "dirichlet 0.3")
CONTROL_TITLES = {
    "fedavg": "FedAvg",
    "greedy": "greedy",
    "best-powered-only": "A: only the best-powered group ever trains",
    "fedavg-small-steps": "B: FedAvg with server learning rate 0.3375, greedy's mean step",
    "greedy-normalized": "C: greedy, averaged over the participants",
    "algorithm1-unscaled": "D: Algorithm 1 without its scale",
    "fedavg-quarter": "E: FedAvg on 12,500 images of 10 clients",
}

# ---- the runs in short ----

# Tables of stages that may not have been run: a page without a place for them goes without.
OPTIONAL = ("controls", "more methods", "adam")


def load(folder: Path) -> list[Record]:
    """The runs in short, from the folder with the JSON of the study."""
    return [run for name in ("cifar10.json", "non_iid.json") for run in read_json(folder / name)]


def write(runs: Iterable[Record], settings: Record, out: Path) -> None:
    """The runs as JSON: evenly dealt data in cifar10.json, classes that follow the energy in non_iid.json."""
    runs = sorted(runs, key=lambda r: (r["part"], r["split"], r["client"], r["batch"], r["method"]))
    write_json(out / "cifar10.json", settings, [run for run in runs if run["split"] == "iid"])
    write_json(out / "non_iid.json", settings, [run for run in runs if run["split"] != "iid"])


def select(runs: Iterable[Record], case: Case, **wanted: Any) -> list[Record]:
    wanted |= vars(case)
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def by_seed(found: Iterable[Record], key: str) -> dict[int, float]:
    """A figure of each seed; runs that diverged, and losses that nobody reported, are left out."""
    return {run["seed"]: run[key] for run in found if run.get(key) is not None}


def finals(runs: Sequence[Record], case: Case, method: str) -> list[Record]:
    """The runs at the chosen rate."""
    return select(runs, case, method=method, part="final")


# ---- pieces of tables ----


def cell(found: Sequence[Record], key: str) -> str:
    values = list(by_seed(found, key).values())
    lost = sum("diverged" in run for run in found)
    note = f" ({lost} diverged)" if lost else ""
    if not values:
        return "–" + note
    one = stats.summarize(values)
    return (f"{one.mean:.2f}" if key == "train_loss" else intervals.text(one)) + note


def rate_of(found: Sequence[Record]) -> str:
    return ", ".join(sorted({f"{run['rate']:g}" for run in found})) or "–"


def seeds_of(found: Sequence[Record]) -> int:
    return len({run["seed"] for run in found})


def present(runs: Sequence[Record], cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if any(finals(runs, case, method) for method in COMPARED)]


def against(runs: Sequence[Record], cases: Sequence[Case], key: str) -> dict[tuple[Case, str], tuple[Any, float]]:
    """Algorithm 1 minus each other method, and the p value corrected for all of these tests together."""
    found = {}
    for case in cases:
        first = by_seed(finals(runs, case, COMPARED[0]), key)
        for method in COMPARED[1:]:
            difference = intervals.paired(first, by_seed(finals(runs, case, method), key))
            if difference:
                found[case, method] = difference
    ps = stats.holm([difference.p for difference in found.values()])
    return {place: (found[place], p) for place, p in zip(found, ps, strict=True)}


def differences(runs: Sequence[Record], cases: Sequence[Case], labels: Sequence[str], key: str, head: str) -> str:
    """One row a case: Algorithm 1 minus the others, in points."""
    known = against(runs, cases, key)
    rows = []
    for case, label in zip(cases, labels, strict=True):
        cells = []
        for method in COMPARED[1:]:
            cells.append(intervals.gain(*known.get((case, method), (None,))))
        rows.append([label, *cells])
    return markdown([head, *[f"− {TITLES[method]}" for method in COMPARED[1:]]], rows)


def rates_table(runs: Sequence[Record], cases: Sequence[Case], labels: Sequence[str], head: str) -> str:
    """Validation accuracy at each rate, the chosen one's bold; † where the search ended at the edge of its ladder."""
    tuning = {case: select(runs, case, part="tune") for case in cases}
    rates = sorted({run["rate"] for found in tuning.values() for run in found})
    rows = []
    for case, label in zip(cases, labels, strict=True):
        for method in COMPARED:
            known = {run["rate"]: run for run in tuning[case] if run["method"] == method}
            if not known:
                continue
            top, ladder = best(known.values()), LADDERS[case.client]
            cells = []
            for rate in rates:
                run = known.get(rate)
                text = "" if run is None else "diverged" if run.get("diverged") else f"{100 * run['last5']:.1f}"
                edge = " †" if rate == top and top in (ladder[0], ladder[-1]) else ""
                cells.append(f"**{text}**{edge}" if rate == top else text)
            rows.append([f"{label}, {TITLES[method]}", *cells])
    return markdown([head, *[f"{rate:g}" for rate in rates]], rows)


# ---- the paper's figure ----


def figure_table(runs: Sequence[Record]) -> str:
    known = against(runs, [FIGURE], "last")
    rows = []
    for method in ("fedavg", "algorithm1", "greedy", "wait-for-all"):
        found = finals(runs, FIGURE, method)
        if not found:
            continue
        energy = found[0]["energy"]
        books = " / ".join(f"{energy[key]:,.0f}" for key in ("harvested", "spent", "wasted"))
        rows.append(
            [
                TITLES[method], rate_of(found), str(seeds_of(found)), cell(found, "last"), cell(found, "last5"),
                intervals.gain(*known.get((FIGURE, method), (None,))), str(PAPER[method]), books,
            ]
        )  # fmt: skip
    head = ["method", "rate", "seeds", "accuracy %, round 1,000", "mean of the last five", "Algorithm 1 minus it"]
    return markdown([*head, "paper", "energy harvested / spent / wasted"], rows)


def batch_cases(runs: Sequence[Record]) -> tuple[list[Case], list[str]]:
    cases = present(runs, [Case("iid", "adam", batch) for batch in BATCHES])
    return cases, [f"batch {case.batch}" for case in cases]


def batch_table(runs: Sequence[Record]) -> str:
    cases, labels = batch_cases(runs)
    rows = []
    for case, label in zip(cases, labels, strict=True):
        found = [finals(runs, case, method) for method in COMPARED]
        counts = sorted({seeds_of(f) for f in found if f})
        count = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        rows.append([f"{label}, {count} seeds", *[f"{cell(f, 'last')} ({rate_of(f)})" if f else "" for f in found]])
    return markdown(["test accuracy %, at the chosen rate", *map(TITLES.get, COMPARED)], rows)


def controls_table(runs: Sequence[Record]) -> str:
    """At rate 0.001 whatever was chosen, the same seeds in all rows; beside them, the difference to greedy."""
    rows = []
    cases = {augment: Case("iid", "adam", augment=augment) for augment in AUGMENTS}
    seeds = {run["seed"] for run in runs if run["part"] == "fixed" and run["split"] == "iid"}
    for method, title in CONTROL_TITLES.items():
        cells = []
        for case in cases.values():
            found = [run for run in at_rate(runs, case, method) if run["seed"] in seeds]
            base = [run for run in at_rate(runs, case, "greedy") if run["seed"] in seeds]
            gain = intervals.paired(by_seed(found, "last"), by_seed(base, "last"))
            cells.append(cell(found, "last") if found else "")
            cells.append("" if method == "greedy" else intervals.gain(gain))
        rows.append([title, *cells])
    head = ["control"]
    for augment in cases:
        head += [augment, f"{augment}, minus greedy"]
    return markdown(head, rows)


def at_rate(runs: Sequence[Record], case: Case, method: str, rate: float = 1e-3) -> list[Record]:
    """The test runs at this rate, whether it was chosen or fixed."""
    return [run for run in select(runs, case, method=method, rate=rate) if run["part"] != "tune"]


def findings(runs: Sequence[Record], cases: Sequence[Case], labels: Sequence[str], key: str) -> str:
    """Each comparison as a sentence."""
    known, lines = against(runs, cases, key), []
    for case, label in zip(cases, labels, strict=True):
        parts = []
        for method in COMPARED[1:]:
            if (case, method) in known:
                found, p = known[case, method]
                way = "above" if found.mean > 0 else "below"
                size = intervals.text(replace(found, mean=abs(found.mean)))
                parts.append(f"{size} points {way} {TITLES[method]} ({intervals.told(p)})")
        lines.append(f"- **{label}**: Algorithm 1 is " + "; ".join(parts) + ".")
    return "\n".join(lines)


# ---- classes that follow the energy ----


def skewed_cases(runs: Sequence[Record]) -> tuple[list[Case], list[str]]:
    cases = present(runs, [Case(split, "sgd") for split in SKEWED])
    return cases, [case.split for case in cases]


def skewed_table(runs: Sequence[Record], head: str, keys: Sequence[str]) -> str:
    cases, labels = skewed_cases(runs)
    rows = []
    for case, label in zip(cases, labels, strict=True):
        found = [finals(runs, case, method) for method in COMPARED]
        rows.append([label, *[" / ".join(cell(f, key) for key in keys) if f else "" for f in found]])
    return markdown([head, *map(TITLES.get, COMPARED)], rows)


def more_methods_table(runs: Sequence[Record]) -> str:
    """Methods besides the four, at their own rates, beside Algorithm 1."""
    rows = []
    for case, label in zip(*skewed_cases(runs), strict=True):
        others = sorted({run["method"] for run in select(runs, case, part="final")} - set(COMPARED))
        for method in others:
            found, base = finals(runs, case, method), finals(runs, case, COMPARED[0])
            gain = intervals.paired(by_seed(found, "last5"), by_seed(base, "last5"))
            keys = ("last5", "rare", "worst", "late_variation")
            rows.append(
                [f"{label}, {method}", rate_of(found), *[cell(found, key) for key in keys], intervals.gain(gain)]
            )
    head = [
        "case, method",
        "rate",
        "accuracy %",
        "rare classes %",
        "worst group %",
        "late variation",
        "minus Algorithm 1",
    ]
    return markdown(head, rows)


def adam_table(runs: Sequence[Record]) -> str:
    """Adam at a fixed rate where classes follow the energy."""
    rows = []
    for split in SKEWED:
        found = [at_rate(runs, Case(split, "adam"), method) for method in COMPARED]
        if any(found):
            count = max(map(seeds_of, found))
            cells = [f"{cell(f, 'last5')} / {cell(f, 'rare')}" if f else "" for f in found]
            rows.append([f"{split}, Adam 0.001, {count} seeds", *cells])
    return markdown(["accuracy % / rare classes %", *map(TITLES.get, COMPARED)], rows)


# ---- all of it ----


def figure_blocks(runs: Sequence[Record]) -> dict[str, str]:
    """The tables of cifar10.md by name, those without runs left out."""
    cases, labels = batch_cases(runs)
    out = {}
    if FIGURE in cases:
        out["figure"] = figure_table(runs)
    if cases:
        out["batch"] = batch_table(runs)
        out["batch differences"] = differences(runs, cases, labels, "last", "Algorithm 1, points")
        out["findings"] = findings(runs, cases, labels, "last")
    tuned = [Case("iid", "adam", batch) for batch in BATCHES]
    if any(select(runs, case, part="tune") for case in tuned):
        names = [f"batch {case.batch}" for case in tuned]
        out["rates"] = rates_table(runs, tuned, names, "validation accuracy % at rate")
    if any(run["part"] == "fixed" and run["split"] == "iid" for run in runs):
        out["controls"] = controls_table(runs)
    return out


def skewed_blocks(runs: Sequence[Record]) -> dict[str, str]:
    """The tables of non_iid.md by name, those without runs left out."""
    cases, labels = skewed_cases(runs)
    out = {}
    if cases:
        out["accuracy"] = skewed_table(runs, "accuracy % / rare classes %", ("last5", "rare"))
        out["differences"] = differences(runs, cases, labels, "last5", "accuracy: Algorithm 1, points")
        out["rare differences"] = differences(runs, cases, labels, "rare", "rare classes: Algorithm 1, points")
        out["findings"] = findings(runs, cases, labels, "last5")
        out["more"] = skewed_table(
            runs, "worst group % / late variation / train loss", ("worst", "late_variation", "train_loss")
        )
        more = more_methods_table(runs)
        if more.count("\n") > 1:
            out["more methods"] = more
    tuned = [Case(split, "sgd") for split in SKEWED]
    if any(select(runs, case, part="tune") for case in tuned):
        out["rates"] = rates_table(runs, tuned, SKEWED, "validation accuracy % at rate")
    if any(run["part"] == "fixed" and run["split"] != "iid" for run in runs):
        out["adam"] = adam_table(runs)
    return out


def tables(runs: Sequence[Record]) -> str:
    """All of it as markdown."""
    blocks = [(f"cifar10.md, {name}", text) for name, text in figure_blocks(runs).items()]
    blocks += [(f"non_iid.md, {name}", text) for name, text in skewed_blocks(runs).items()]
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in blocks) or "no runs yet"


def fill(results: Path, out: Path) -> None:
    """Put the tables into the pages."""
    runs = load(results)
    for page, blocks in (("cifar10.md", figure_blocks(runs)), ("non_iid.md", skewed_blocks(runs))):
        text = (out / page).read_text(encoding="utf-8")
        fill_page(
            out / page,
            {
                name: block
                for name, block in blocks.items()
                if name not in OPTIONAL or f"<!-- table: {name} -->" in text
            },
        )
