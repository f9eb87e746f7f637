"""Means over seeds with 95 % intervals, and differences between methods that met the same seeds, as texts of tables."""

from __future__ import annotations

from collections.abc import Mapping

from everfed import stats


def text(found: stats.Summary | stats.PairedDifference, sign: str = "") -> str:
    """In per cent, with half the width of the interval; one seed has none."""
    spread = "" if found.margin is None else f" ± {100 * found.margin:.1f}"
    return f"{100 * found.mean:{sign}.1f}{spread}"


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> stats.PairedDifference | None:
    """How much more one has than the other over the seeds that both have; None if there are none."""
    seeds = sorted(one.keys() & other.keys())
    return stats.paired([one[s] for s in seeds], [other[s] for s in seeds]) if seeds else None


def told(p: float | None) -> str:
    if p is None:
        return "no test"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def gain(found: stats.PairedDifference | None, p: float | None = None) -> str:
    """A difference in points and its p: that of the pair, unless it is corrected for others."""
    return "" if found is None else f"{text(found, sign='+')} ({told(found.p if p is None else p)})"
