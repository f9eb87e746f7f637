"""The summary of a sweep as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from everfed.errors import counted
from everfed.methods import METHODS
from everfed.report.lines import evaluated_on
from everfed.report.measures import Unit, accounts
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import ACCURACY, LOSS, Yardstick, yardstick

_MOST_P = 0.0001  # smaller ones are told as such


def table(
    summary: dict[str, dict[str, Any]],
    titles: dict[str, str],
    runs: Sequence[StoredRun],
    differences: Mapping[str, dict[str, Any]] | None = None,
    reference: str | None = None,
) -> Group:
    """What was learnt, how it differs from the reference, and where the energy went: one row per label in each.

    summary: with measures. titles: the labels' methods by name. runs: all of them, which decide the
    unit of energy and the columns. differences: from `comparison.differences`.
    """
    names = {label: titles[label] if label in METHODS else label for label in summary}
    unit, judged = Unit.of(runs), yardstick(runs)
    parts = [_learnt(summary, names, unit, evaluated_on(runs), judged)]
    if any("metrics" in row for row in summary.values()):
        parts.append(_further(summary, names, evaluated_on(runs)))
    if differences and reference in names:
        parts.append(_differences(differences, names, names[reference], judged))
    return Group(*parts, _energy(summary, names, runs, unit))


def _learnt(
    summary: dict[str, dict[str, Any]], names: dict[str, str], unit: Unit, data: str, judged: Yardstick
) -> Table:
    counts = sorted({len(row["seeds"]) for row in summary.values()})
    over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}-{counts[-1]}" if counts else "no"
    target = next((row["to_target"][judged.name] for row in summary.values()), None) or 0.0
    varies = any(row["late_variation"] for row in summary.values())
    late = ["late variation %" if judged.percent else "late\nvariation"] if varies else []
    worst = judged.worst_label.replace("group loss", "group\nloss")
    columns = [judged.label, worst, *late, "participations", "fairness"]
    title = "1 seed" if over == "1" else f"mean ± half the 95 % interval of the mean (Student's t), {over} seeds"
    out = _table(
        f"{data} set, {title}", [*columns, f"{unit.name} spent\nto {judged.text(target)}{' %' * judged.percent}"]
    )
    for label, row in summary.items():
        out.add_row(
            names[label],
            spread_text(row[judged.name], judged),
            spread_text(row[f"worst_group_{judged.name}"], judged),
            *([spread_text(row["late_variation"], judged, 2)] if varies else []),
            f"{row['participations']:,.0f}",
            f"{row['fairness']['mean']:.3f}",
            _reach(row["to_target"], unit, len(row["seeds"])),
            style=_style(label),
        )
    varied = f"late variation: sd of the {judged.name} over the run's last evaluations\n" if varies else ""
    out.caption = f"{varied}fairness: Jain's index of how often clients train; 1 if all equal"
    return out


def _further(summary: dict[str, dict[str, Any]], names: dict[str, str], data: str) -> Table:
    metrics = list(dict.fromkeys(name for row in summary.values() for name in row.get("metrics", ())))
    out = _table(f"further metrics, {data} set, as above", metrics)
    for label, row in summary.items():
        cells = (spread_text(row.get("metrics", {}).get(name), LOSS) for name in metrics)
        out.add_row(names[label], *cells, style=_style(label))
    return out


def _differences(
    rows: Mapping[str, dict[str, Any]], names: Mapping[str, str], reference: str, judged: Yardstick
) -> Table:
    both = (judged.name, f"worst_group_{judged.name}")
    pairs = sorted({row[name]["pairs"] for row in rows.values() for name in both if name in row})
    varies = len(pairs) > 1
    over = "-".join(map(str, dict.fromkeys([*pairs[:1], *pairs[-1:]])))
    what = "in percentage points" if judged.percent else f"in {judged.name}"
    title = f"difference from {reference} {what}, mean [95 % interval], {over} paired seed"
    out = _table(
        title + "s" * (over != "1"),
        [*(["pairs"] if varies else []), judged.name, "p", "p exact", "worst group", "p", "p exact"],
    )
    for label, row in rows.items():
        cells = [pairs_text(row[name] for name in both if name in row)] if varies else []
        for name in both:
            found = row.get(name)
            cells += [
                difference_text(found, judged),
                p_text(found and found["p_holm"]),
                p_text(found and found["p_flip"]),
            ]
        out.add_row(names.get(label, label), *cells)
    tests = max(sum(row[name]["pairs"] > 1 for row in rows.values() if name in row) for name in both)
    corrected = f"Holm-corrected for {counted(tests, 'comparison')}"
    out.caption = f"p: paired t test, {corrected}; p exact: over all sign flips, uncorrected"
    if not tests:
        out.caption = "one pair of seeds cannot be tested"
    return out


def _energy(summary: dict[str, dict[str, Any]], names: dict[str, str], runs: Sequence[StoredRun], unit: Unit) -> Table:
    shown = [a for a in accounts(runs) if a.key != "initial"]  # the page has room for it
    fails = any(row["energy"]["brownouts"] for row in summary.values())
    out = _table(
        f"energy in {unit.words}, mean over seeds",
        [*(a.name.replace(" ", "\n") for a in shown), "wasted\n%", *(["brown-\nouts"] if fails else [])],
    )
    for label, row in summary.items():
        energy = row["energy"]
        out.add_row(
            names[label],
            *(_amount(energy[a.key] * unit.factor) for a in shown),
            ACCURACY.text(row["wasted_part"] and row["wasted_part"]["mean"]),
            *([f"{energy['brownouts']:,.0f}"] if fails else []),
            style=_style(label),
        )
    imagined = [names[label] for label, row in summary.items() if row["energy"]["violations"]]
    if imagined:
        out.caption = f"spent without being harvested: by {', '.join(imagined)}"
    return out


def _table(title: str, columns: Sequence[str]) -> Table:
    """Numbers stay whole; where the window is narrow, the methods' names wrap."""
    out = Table(title=title, title_justify="left", caption_justify="left")
    out.add_column("method", overflow="fold")
    for column in columns:
        out.add_column(column, justify="right", vertical="bottom", no_wrap=True)
    return out


def _style(label: str) -> str | None:
    return "bold" if label == "algorithm1" else None


def _reach(there: dict[str, Any], unit: Unit, seeds: int) -> str:
    if there["energy"] is None:
        return "never"
    some = f" ({there['reached']} of {seeds} seeds)" if there["reached"] < seeds else ""
    return _amount(there["energy"]["mean"] * unit.factor) + some


def _amount(value: float) -> str:
    """Three digits, and whole numbers from a hundred on."""
    if abs(value) >= 99.95 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def spread_text(found: dict[str, Any] | None, judged: Yardstick, digits: int = 1) -> str:
    """'98.2 ± 0.5': the mean over seeds, and half its 95 % interval."""
    if found is None or found["ci95"] is None:
        return judged.text(found["mean"] if found else None, digits)
    low, high = found["ci95"]
    margin = (high - low) / 2
    return (
        f"{judged.text(found['mean'], digits)} ± {judged.text(margin, digits) if judged.percent else f'{margin:.2g}'}"
    )


def difference_text(found: dict[str, Any] | None, judged: Yardstick) -> str:
    """'-8.7 [-9.5, -8.0]': a difference, and its 95 % interval."""
    if not found:
        return "-"
    mean = judged.text(found["mean"], sign="+")
    return f"{mean} [{', '.join(judged.text(end, sign='+') for end in found['ci95'])}]" if found["ci95"] else mean


def pairs_text(found: Iterable[dict[str, Any]]) -> str:
    """'3', or '3, 2' where one measure has fewer pairs of seeds than the other."""
    return ", ".join(dict.fromkeys(str(one["pairs"]) for one in found)) or "-"


def p_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"< {_MOST_P:g}" if value < _MOST_P else f"{value:.2g}"
