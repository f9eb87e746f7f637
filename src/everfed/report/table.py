"""The summary of a sweep as a table in the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from everfed.methods import METHODS


def table(summary: dict[str, dict[str, Any]], titles: dict[str, str], unit: str = "units") -> Table:
    """One row a label; `titles` has the labels' methods by name, `unit` what energy is counted in."""
    counts = sorted({len(row["seeds"]) for row in summary.values()})
    over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}-{counts[-1]}" if counts else "no"
    out = Table(title=f"mean ± sd over {over} seed{'s' * (over != '1')}", title_justify="left")
    out.add_column("method", no_wrap=True)
    for column in ("accuracy %", "worst group %", "participations", "harvested", "spent", "wasted"):
        out.add_column(column, justify="right", no_wrap=True)
    for label, row in summary.items():
        energy = row["energy"]
        out.add_row(
            titles[label] if label in METHODS else label,
            _percent(row["accuracy"]),
            _percent(row["worst_group_accuracy"]),
            f"{row['participations']:,.0f}",
            *(f"{energy[key]:,.0f}" for key in ("harvested", "spent", "wasted")),
            style="bold" if label == "algorithm1" else None,
        )
    out.caption = "energy in units of one training round" if unit == "units" else f"energy in {unit}"
    if any(row["energy"]["violations"] for row in summary.values()):
        out.caption += "; FedAvg and Bernoulli spend energy that was never harvested"
    out.caption_justify = "left"
    return out


def _percent(spread: dict[str, float]) -> str:
    return f"{100 * spread['mean']:.1f} ± {100 * spread['sd']:.1f}"
