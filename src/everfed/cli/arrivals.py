"""The audit of asynchronous methods as tables."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from everfed.arrays import Ints
from everfed.auditing.arrival_tally import Staleness
from everfed.auditing.asynchronous import AsynchronousAudit
from everfed.cli.screen import Screen, table
from everfed.energy.fleet import Fleet, Group
from everfed.units import energy as joules


def tell_arrivals(screen: Screen, fleet: Fleet, result: AsynchronousAudit, title: str) -> None:
    screen.out.print(_weights(fleet, result, title))
    screen.out.print(_times(fleet, result))
    screen.out.print(_works(fleet, result))


def _weights(fleet: Fleet, result: AsynchronousAudit, title: str) -> Table:
    columns = ("energy group", "clients", "arrivals per round", "mean weight", "noise per round")
    out = table(f"{title}: clients, measured (exact)", columns)
    out.caption = "mean weight: 1 counts by its data; noise: squares of what multiplies updates, summed over clients"
    for group in fleet.groups():
        out.add_row(group.label, str(len(group.clients)), *_cells(result, group.clients))
    out.add_row("all", str(len(fleet)), *_cells(result, np.arange(len(fleet))))
    return out


def _cells(result: AsynchronousAudit, clients: Ints) -> list[str]:
    cells = []
    for name, summed in (("arrival_rate", False), ("mean_weight", False), ("noise", True)):
        found, exact = (
            None if values is None else float(values[clients].sum() if summed else values[clients].mean())
            for values in (getattr(result, name), getattr(result.exact, name))
        )
        text = "-" if found is None else f"{found:.4g}"
        cells.append(text if exact is None else f"{text} ({exact:.4g})")
    return cells


def _times(fleet: Fleet, result: AsynchronousAudit) -> Table:
    columns = ("energy group", "first arrival", "last arrival", "staleness, mean", "95 %", "largest")
    out = table("when they arrive, and how stale", columns)
    out.caption = "times in rounds, on average; staleness: versions of the model made during the work"
    assert result.first_arrival is not None
    assert result.covered is not None
    assert result.staleness is not None
    everybody = Group("all", np.arange(len(fleet)), (0, 0))
    for group in [*fleet.groups(), everybody]:
        heard = result.first_arrival[group.clients]
        heard = heard[~np.isnan(heard)]
        first = f"{heard.mean():.4g}" if len(heard) else "-"
        last = f"{result.covered[group.clients].mean() * result.rounds:.4g}" if len(heard) else "-"
        out.add_row(group.label, first, last, *_stale(result.staleness[group.label]))
    return out


def _stale(found: Staleness) -> tuple[str, str, str]:
    if np.isnan(found.mean):
        return "-", "-", "-"
    return f"{found.mean:.4g}", f"{found.most:g}", str(found.largest)


def _works(fleet: Fleet, result: AsynchronousAudit) -> Table:
    out = table("work and energy of a run, on average", ("", "measured"))
    energy = result.energy
    rows = {"works begun per round": result.works_per_round, "part of them lost": result.lost}
    rows |= {"local steps of an arrival": result.mean_steps, "brown-outs": energy.brownouts}
    names = ("initial", "harvested", "spent", "wasted", "lost", "standby", "leaked", "stored", "shortfall")
    for text, value in rows.items():
        out.add_row(text, f"{value:.5g}")
    for name in (name for name in names if getattr(energy, name)):
        value = getattr(energy, name)
        out.add_row(name, joules(value) if fleet.energy_unit == "J" else f"{value:.5g} {fleet.energy_unit}")
    return out
