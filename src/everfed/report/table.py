"""The summary of a sweep as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from everfed.methods import METHODS
from everfed.report.measures import Unit, accounts
from everfed.store.run import StoredRun


def table(summary: dict[str, dict[str, Any]], titles: dict[str, str], runs: Sequence[StoredRun]) -> Group:
    """What was learnt, and where the energy went: one row a label in each.

    summary: with measures. titles: the labels' methods by name. runs: all of them, which decide the
    unit of energy and the columns.
    """
    names = {label: titles[label] if label in METHODS else label for label in summary}
    unit = Unit.of(runs)
    return Group(_learnt(summary, names, unit), _energy(summary, names, runs, unit))


def _learnt(summary: dict[str, dict[str, Any]], names: dict[str, str], unit: Unit) -> Table:
    counts = sorted({len(row["seeds"]) for row in summary.values()})
    over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}-{counts[-1]}" if counts else "no"
    target = next((row["to_target"]["accuracy"] for row in summary.values()), None) or 0.0
    wiggles = any(row["wiggle"] for row in summary.values())
    columns = ["accuracy %", "worst group %", *(["wiggle %"] if wiggles else []), "participations", "fairness"]
    out = _table(
        f"mean ± sd over {over} seed{'s' * (over != '1')}", [*columns, f"{unit.name} spent\nto {100 * target:.1f} %"]
    )
    for label, row in summary.items():
        out.add_row(
            names[label],
            _percent(row["accuracy"]),
            _percent(row["worst_group_accuracy"]),
            *([_percent(row["wiggle"], 2)] if wiggles else []),
            f"{row['participations']:,.0f}",
            f"{row['fairness']['mean']:.3f}",
            _reach(row["to_target"], unit, len(row["seeds"])),
            style=_style(label),
        )
    wiggle = "wiggle: sd of the accuracy over the run's last evaluations\n" if wiggles else ""
    out.caption = f"{wiggle}fairness: Jain's index of how often clients train; 1 if all alike"
    return out


def _energy(summary: dict[str, dict[str, Any]], names: dict[str, str], runs: Sequence[StoredRun], unit: Unit) -> Table:
    shown = [a for a in accounts(runs) if a.key != "initial"]  # the page has room for it
    fails = any(row["energy"]["brownouts"] for row in summary.values())
    out = _table(
        f"energy in {unit.words}",
        [*(a.name.replace(" ", "\n") for a in shown), "wasted\n%", *(["brown-\nouts"] if fails else [])],
    )
    for label, row in summary.items():
        energy = row["energy"]
        out.add_row(
            names[label],
            *(_amount(energy[a.key] * unit.factor) for a in shown),
            _percent(row["wasted_part"], spread_too=False),
            *([f"{energy['brownouts']:,.0f}"] if fails else []),
            style=_style(label),
        )
    if any(row["energy"]["violations"] for row in summary.values()):
        out.caption = "FedAvg and Bernoulli spend energy that was never harvested"
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


def _percent(spread: dict[str, float] | None, digits: int = 1, *, spread_too: bool = True) -> str:
    if spread is None:
        return "-"
    sd = f" ± {100 * spread['sd']:.{digits}f}" if spread_too else ""
    return f"{100 * spread['mean']:.{digits}f}{sd}"
