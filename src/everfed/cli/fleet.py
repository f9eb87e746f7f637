"""`everfed plan` and `everfed audit`: schedules and their bias, before any training."""

from __future__ import annotations

import csv
import json as json_module
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from everfed.arrays import Floats, Ints
from everfed.auditing.asynchronous import AsynchronousAudit
from everfed.auditing.audit import Audit, audit as run_audit
from everfed.cli import options as o
from everfed.cli.arrivals import tell_arrivals
from everfed.cli.screen import Screen, table
from everfed.energy.calendar import by_month, covered, date_of, part_of_year
from everfed.energy.fleet import Fleet
from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError, some
from everfed.learning.compress import AdaptiveQsgd
from everfed.machine import check_memory
from everfed.methods import Method, plan as make_plan
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.mode import for_audit
from everfed.run.setup import resolve_device
from everfed.scheduling.plan import PlanStep
from everfed.server.rules import Sum
from everfed.units import duration, energy, of_books

_MANY_ROUNDS, _MANY_STEPS = 2000, 100_000_000  # announced: nothing is printed for more than some seconds


@o.takes_experiment("digits-quick", o.FLEET_ONLY)
def plan(
    raw: dict[str, Any],
    seed: o.Seed = None,
    strict_horizon: Annotated[
        bool, typer.Option("--strict-horizon", help="Reject a number of rounds that some cycle does not divide.")
    ] = False,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Print one line per participation: round,client,scale.", rich_help_panel="Output"),
    ] = False,
    *,
    screen: Screen,
) -> None:
    """Which clients train in which round, and with which scale.

    A plan depends only on energy and random draws, so you can inspect, check and share it before any training. Rounds
    are computed one by one, so --csv can stream a million clients.

    Example: everfed plan --clients 8 --rounds 20, or: everfed plan --clients 1000 --rounds 100 --csv > plan.csv
    """
    if as_csv and screen.as_json:
        raise InputError("--csv and --json are both given; choose one.")
    experiment = _experiment(raw)
    fleet = experiment.make_fleet()
    seed = experiment.seeds.schedule if seed is None else seed
    method = Method(experiment.policy, experiment.server, experiment.title)
    steps = make_plan(fleet, method, experiment.rounds, seed, strict_horizon=strict_horizon)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["round", "client", "scale"])
        for step in steps:
            writer.writerows(
                [step.round, client, f"{scale:g}"]
                for client, scale in zip(step.clients.tolist(), step.scales.tolist(), strict=True)
            )
    elif screen.as_json:
        _stream_json(steps)
    else:
        check_memory(f"a table of {experiment.rounds:,} rounds", 3000 * experiment.rounds, "print it with --csv")
        if experiment.rounds > _MANY_ROUNDS:
            screen.note(f"the table appears when all {experiment.rounds:,} rounds are planned; --csv prints at once.")
        _tell_assumptions(screen, experiment)
        screen.out.print(_plan_table(steps, fleet, experiment, seed))


def _tell_assumptions(screen: Screen, experiment: Experiment) -> None:
    """How cycles are derived from physical values, for fleets of devices."""
    spec = experiment.fleet
    if not isinstance(spec, DeviceFleet):
        return
    rows = spec.assumptions(experiment.local_steps, experiment.encoding)
    quantised = isinstance(experiment.compression, AdaptiveQsgd)
    columns = ["devices", "count", "a round", "supply", "asleep", "battery holds", "busy", "on air"]
    caption = f"per round of {duration(spec.round_s)}, at the battery, on average over the year or the trace"
    out = table("from physics to cycles", [*columns, "cycle E", *["bits"] * quantised], caption=caption)
    for a in rows:
        joules = [energy(amount) for amount in (a.cost_j, a.supply_j, a.standby_j)]
        seconds = [duration(length) for length in (a.busy_s, a.air_s)]
        bits = [_span(a.bits)] if quantised and a.bits else []
        out.add_row(a.label, str(a.count), *joules, f"{a.battery_rounds:.4g} rounds", *seconds, _span(a.cycles), *bits)
    screen.out.print(out)
    screen.out.print(
        f"Round 0 begins at midnight of {spec.start_day}, UTC{f'{spec.utc_h:+g} h' if spec.utc_h else ''}; "
        f"{experiment.rounds:,} rounds are {duration(experiment.rounds * spec.round_s)}, "
        f"{covered(spec, experiment.rounds)}."
    )
    if said := part_of_year(spec, experiment.rounds):
        screen.note(said)
    # Each source once, even if several groups share it.
    for source in dict.fromkeys(a.source for a in rows):
        screen.out.print(f"{'; '.join(a.label for a in rows if a.source == source)}: {source}.")
    guesses = dict.fromkeys(guess for a in rows for guess in a.guesses)
    if guesses:
        screen.out.print(f"Guesses (replace them with your own values): {', '.join(guesses)}.")


def _span(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"{low}" if low == high else f"{low}-{high}"


def _stream_json(steps: Iterable[PlanStep]) -> None:
    """A JSON list, written round by round."""
    separator = "[\n"
    for step in steps:
        value = {"round": step.round, "clients": step.clients.tolist(), "scales": step.scales.tolist()}
        print(separator + json_module.dumps({**value, "energy": step.energy.to_dict()}), end="")
        separator = ",\n"
    print("\n]")


def _plan_table(steps: Iterable[PlanStep], fleet: Fleet, experiment: Experiment, seed: int) -> Table:
    spec = experiment.fleet if isinstance(experiment.fleet, DeviceFleet) else None
    dated = ["begins"] if spec else []
    columns = ("round", *dated, "trains", "client×scale", "round weight", "harvested", "spent", "wasted")
    out = table(f"{experiment.title}, seed {seed}", columns, left=["client×scale"])
    harvested = 0.0
    for step in steps:
        pairs = [f"{c}×{s:g}" for c, s in zip(step.clients.tolist(), step.scales.tolist(), strict=True)]
        books = step.energy
        dark = " night" if books.harvested == harvested else ""
        harvested = books.harvested
        out.add_row(
            str(step.round),
            *([date_of(spec.clock, step.round) + dark] if spec else []),
            str(len(pairs)),
            some(pairs, 10 if spec is None else 5) or "-",
            f"{step.scales.sum() / len(fleet):.2f}",
            *(of_books(amount, fleet.energy_unit) for amount in (books.harvested, books.spent, books.wasted)),
        )
    summed = experiment.server == Sum()
    means = "1 on average if unbiased" if summed else "before the server's rule, which everfed audit includes"
    out.caption = f"round weight: participants' scales times equal data shares, {means}; energy so far"
    if spec:
        out.caption += "; night: no device harvests"
    return out


@o.takes_experiment("digits", o.FLEET_ONLY)
def audit(
    raw: dict[str, Any],
    seeds: o.Seeds = "200",
    deltas: Annotated[
        str | None,
        typer.Option(help="Lengths of the clients' updates for the variance, assigned in turn, such as 1,1,1,3."),
    ] = None,
    shares: Annotated[
        str,
        ("equal", "data"),
        typer.Option(help="Each client's share of the data: equal, or data (as in the experiment)."),
    ] = "equal",
    *,
    screen: Screen,
) -> None:
    """Measure a method's bias, its variance, and whether it overspends energy.

    Measured over many seeds, next to the exact value if it is known for this fleet. With a mean weight of 1 a client
    counts in proportion to its data, as if it took part in every round. For asynchronous methods, also when clients
    arrive, how stale, and how much work is lost.

    Example: everfed audit --method greedy --cycles 1,5,10,20 --rounds 1000, or: everfed audit --method renewal
    --set work.duration=0.5
    """
    experiment = _experiment(raw)
    fleet, seed_numbers = experiment.make_fleet(), o.seed_list(seeds)
    parts = experiment.make_data(fleet).shares() if shares == "data" else None
    lengths = np.resize(o.number_list(deltas, "--deltas"), len(fleet)) if deltas else None
    if experiment.rounds * len(seed_numbers) * len(fleet) > _MANY_STEPS:
        screen.note("this audit takes a while; fewer --seeds or --rounds make it shorter.")
    result = run_audit(
        fleet,
        experiment.policy,
        experiment.rounds,
        seed_numbers,
        shares=parts,
        server=experiment.server,
        deltas=lengths,
        progress=screen.live,
        **for_audit(experiment, fleet),
    )
    if screen.as_json:
        screen.json({**result.to_dict(), "shares": shares})
        return
    _tell_assumptions(screen, experiment)
    if isinstance(result, AsynchronousAudit):
        tell_arrivals(screen, fleet, result, experiment.title)
    else:
        screen.out.print(_client_table(fleet, result, experiment.title))
        spec = experiment.fleet
        if isinstance(spec, DeviceFleet) and result.by_round is not None:
            months = by_month(spec.clock, experiment.rounds)
            if len(months) > 1:
                screen.out.print(_month_table(fleet, result.by_round, months))
        screen.out.print(_fleet_table(result))
        if result.variance:
            screen.out.print(_variance_table(fleet, result))
    held = (
        "equal shares of the data (--shares data: as in the experiment)" if parts is None else "the experiment's data"
    )
    screen.out.print(f"Clients hold {held}.")
    screen.say(experiment.title, result.verdict)
    if isinstance(result, Audit) and result.variance:
        if distance := result.distance():
            screen.say("The limit", distance)
        screen.say("Which device to upgrade first", result.variance.advice())


def _client_table(fleet: Fleet, result: Audit, title: str) -> Table:
    columns = ("energy group", "clients", "participation rate", "mean weight", "gap mean", "gap variance")
    out = table(f"{title}: clients, measured (exact)", columns, caption="gaps in rounds")
    for group in fleet.groups():
        cells = []
        for name in ("participation_rate", "mean_weight", "gap_mean", "gap_variance"):
            measured, exact = getattr(result, name), getattr(result.exact, name)
            if measured is None:
                cells.append("-")
                continue
            # A client that trained fewer than two times has no gap.
            known = measured[group.clients][~np.isnan(measured[group.clients])]
            text = f"{known.mean():.4g}" if len(known) else "-"
            cells.append(text if exact is None else f"{text} ({exact[group.clients].mean():.4g})")
        out.add_row(group.label, str(len(group.clients)), *cells)
    return out


def _month_table(fleet: Fleet, weights: Floats, months: list[tuple[str, Ints]]) -> Table:
    """The mean weight of each group by the month, measured."""
    out = table("mean weight by month", ("energy group", *(name for name, _ in months)))
    out.caption = "measured; 1: counts by its data"
    for number, group in enumerate(fleet.groups()):
        out.add_row(group.label, *(f"{weights[which, number].mean():.2f}" for _, which in months))
    return out


def _fleet_table(result: Audit) -> Table:
    out = table("fleet", ("", "measured", "exact"))
    rows = {
        "round weight, mean": "round_weight_mean",
        "round weight, variance": "round_weight_variance",
        "update variance (equal unit deltas)": "update_variance",
        "participations without energy, per run": "violations",
        "fairness of participation (Jain; 1: all equal)": "fairness",
    }
    for text, name in rows.items():
        out.add_row(text, _number(getattr(result, name)), _number(getattr(result.exact, name)))
    return out


def _variance_table(fleet: Fleet, result: Audit) -> Table:
    out = Table(title="variance of a round's update, for these updates", title_justify="left", show_header=False)
    out.add_column()
    out.add_column(justify="right")
    found, least = result.variance, result.limit
    assert found is not None
    out.add_row("measured", _number(found.measured))
    out.add_row("exact", _number(found.exact))
    if least:
        out.add_row("least of any unbiased schedule, independent clients", _number(least.independent))
        out.add_row("the lattice's, with shared draws", _number(least.lattice))
    out.add_row("the paper's Lemma 2, for Algorithm 1", _number(found.lemma2))
    if found.noisiest is not None and found.by_client is not None:
        cycle, part = fleet.cycles()[found.noisiest], found.by_client[found.noisiest]
        out.add_row("noisiest client, its part", f"{fleet.name_of(found.noisiest)} (cycle {cycle}), {part:.3g}")
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _experiment(raw: dict[str, Any]) -> Experiment:
    experiment = config.from_dict(raw)
    resolve_device(experiment.device)
    return experiment
