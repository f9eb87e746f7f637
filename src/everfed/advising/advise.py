"""`advise`: from a fleet of devices to who is starved, why, and what to change first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from everfed.advising.advice import (
    Advice,
    GroupAdvice,
    Horizon,
    Member,
    Model,
    Prices,
    Seen,
    Sizes,
    Target,
    Years,
)  # fmt: skip
from everfed.advising.charge import charge_rounds
from everfed.advising.choices import changes, within
from everfed.advising.dates import YEAR_DAYS, Calendar
from everfed.advising.design import Design, read
from everfed.advising.distances import distances
from everfed.advising.ledger import Ledger, ledgers
from everfed.advising.levers import levers
from everfed.advising.sizes import Scales, find_sizes
from everfed.advising.sizing import reaches, years_reached
from everfed.advising.words import notes, verdict
from everfed.advising.world import REPRESENTATIVES, Query, World
from everfed.arrays import Floats
from everfed.checks import Count, CountOrZero, NonNegative, Positive, checked
from everfed.energy.physical import DeviceFleet, Encoding, message_sizes
from everfed.energy.supply import DAY_S
from everfed.errors import InputError, unknown
from everfed.machine import check_memory
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.stats import finite

Tell = Callable[[str], None]
MOST_MEMBERS = REPRESENTATIVES  # devices of a group that its model lists
RELATIVE = "enlargement: the sum of what panel and battery grow by, each as a part of its present size"


def advise(
    fleet: DeviceFleet | Experiment | str | Path,
    *,
    local_steps: int | None = None,
    compression: Encoding | None = None,
    rounds: int | None = None,
    cycle: int | None = None,
    rounds_per_day: float | None = None,
    target_weight: float = 0.99,
    years: int = 20,
    sure: float = 0.9,
    price_wp: float | None = None,
    price_wh: float | None = None,
    budget: float | None = None,
    trace_wp: Mapping[str, float] | None = None,
    times: int = 100,
    on_progress: Tell = lambda step: None,
) -> Advice:
    """Who is starved and why, and the sizes of panels and batteries that would change it, under Algorithm 1.

    fleet: a `DeviceFleet`, an experiment with one, or the path of an experiment file.
    local_steps: of a round (default: the experiment's, or 5).
    compression: of updates (default: the experiment's, or none).
    rounds: the horizon (default: a year).
    cycle, rounds_per_day: the promise asked of every group, as a cycle or as rounds of a device per day (default: what
    the file sets, or what the mean supply pays for).
    target_weight: of every group, in the supply as given and in most drawn years.
    years: how many years are drawn from the supply.
    sure: the share of them in which the target shall be reached.
    price_wp, price_wh: of what is added, per watt-peak and per watt-hour. budget: what may be spent in all.
    trace_wp: watts-peak of the panel behind a recorded trace, by group; without it more of that has no price.
    times: how often the model shall have seen every group.
    on_progress: called with what is being computed.

    >>> from everfed.energy.physical import DeviceFleet, DeviceGroup
    >>> lamps = DeviceGroup(name="lamps", count=2, panel_wp=0.2, battery_wh=3.0, step_s=60.0, switched_off=True)
    >>> advise(DeviceFleet((lamps,), round_s=86_400.0), years=0).verdict[0]
    'No group is starved: all have a weight of at least 0.99; the lowest weight is 1.000 (lamps).'
    """
    spec, steps, encoding = _described(fleet, local_steps, compression)
    spec = promised(spec, cycle, rounds_per_day)
    checked("target_weight", target_weight, Annotated[float, "(0, 1]"])
    checked("sure", sure, Annotated[float, "(0, 1]"])
    checked("times", times, Count)
    target = Target(target_weight, checked("years", years, CountOrZero), math.ceil(years * sure - 1e-9), sure)
    prices = _prices(price_wp, price_wh, budget)
    on_progress("the supply of every group")
    design = read(spec, steps, encoding)
    rounds = _horizon(design, rounds)
    _check_size(design, rounds, target.years)
    calendar = Calendar(spec.round_s, spec.start_day)
    world = World(design, rounds, target.years)
    scales = _scales(design, prices, trace_wp or {})
    on_progress("the fleet as it is")
    books = list(ledgers(world, calendar))
    fits = [g for g in range(len(scales)) if g not in design.unfit]
    present = dict(zip(fits, world.weights([Query(g) for g in fits]), strict=True))
    sizes = find_sizes(world, scales, target, prices, on_progress)
    groups = [
        _group(world, g, books[g], present.get(g, np.zeros(target.years + 1)), sizes[g], target, calendar)
        for g in range(len(scales))
    ]
    ranked = changes(groups, prices)
    on_progress("the effect of steps, size and rounds")
    turned = list(levers(design, rounds))
    limit = distances(design, rounds, target_weight, on_progress)
    days = calendar.days(rounds)
    partial = abs(days / YEAR_DAYS - round(days / YEAR_DAYS)) > 1e-3 or days < YEAR_DAYS - 1.0
    horizon = Horizon(rounds, spec.round_s, days, calendar.date(0), calendar.date(rounds - 1), partial)
    chosen = within(budget, ranked) if budget is not None else []
    return Advice(
        horizon,
        target,
        prices,
        verdict(groups, ranked, chosen, target, prices, horizon, [design.unable(g) for g in range(len(groups))]),
        groups,
        ranked,
        chosen,
        turned,
        limit,
        _seen(design, books, times, calendar),
        notes(groups, horizon, target, design, [design.labels[g] for g in sorted(world.still)]),
        [column.tolist() for column in world.table.T[: len(design.profile.table)]],
        encoding=encoding,
    )


def _described(
    fleet: DeviceFleet | Experiment | str | Path, local_steps: int | None, compression: Encoding | None
) -> tuple[DeviceFleet, int, Encoding | None]:
    if isinstance(fleet, str | Path):
        fleet = config.from_dict(config.read(Path(fleet)))
    if isinstance(fleet, Experiment):
        local_steps = fleet.local_steps if local_steps is None else local_steps
        compression = fleet.encoding if compression is None else compression
        spec = fleet.fleet
    else:
        spec = fleet
    if not isinstance(spec, DeviceFleet):
        raise InputError(
            f"advice needs a fleet of devices, with panels and batteries, and this one is a {type(spec).__name__}; "
            'describe it with fleet.kind = "devices".'
        )
    return spec, checked("local_steps", 5 if local_steps is None else local_steps, Count), compression


def promised(spec: DeviceFleet, cycle: int | None, rounds_per_day: float | None) -> DeviceFleet:
    """The fleet with this cycle in all groups."""
    if cycle is None and rounds_per_day is None:
        return spec
    if cycle is not None and rounds_per_day is not None:
        raise InputError(f"cycle is {cycle} and rounds_per_day is {rounds_per_day:g}; give one of them.")
    if rounds_per_day is not None:
        most = DAY_S / spec.round_s
        if checked("rounds_per_day", rounds_per_day, Positive) > most * (1.0 + 1e-9):
            raise InputError(
                f"rounds_per_day is {rounds_per_day:g}, and a day has {most:g} rounds of {spec.round_s:g} s; ask for "
                "fewer, or give shorter rounds."
            )
        cycle = round(most / rounds_per_day)
    cycle = checked("cycle", cycle, Annotated[int, "[1, 2147483647]"])
    return replace(spec, groups=tuple(replace(g, cycle=cycle) for g in spec.groups))


def _prices(per_wp: float | None, per_wh: float | None, budget: float | None) -> Prices:
    if (per_wp is None) != (per_wh is None):
        missing = "price_wh" if per_wh is None else "price_wp"
        raise InputError(f"{missing} is not given; prices are those of a Wp and of a Wh, both or none.")
    if budget is not None and per_wp is None:
        raise InputError(
            f"budget is {budget:g}, and there are no prices to hold it against; give price_wp and price_wh."
        )
    for name, value in (("price_wp", per_wp), ("price_wh", per_wh), ("budget", budget)):
        if value is not None:
            checked(name, value, NonNegative)
    return Prices(per_wp, per_wh, budget, RELATIVE if per_wp is None else "money, for all devices of a group")


def _horizon(design: Design, rounds: int | None) -> int:
    """A year, or what is known of a supply that is not repeated."""
    if rounds is not None:
        return int(checked("rounds", rounds, Count))
    year = max(1, round(YEAR_DAYS * DAY_S / design.spec.round_s))
    known = design.profile.known_rounds
    return year if known is None else min(year, known)


def _check_size(design: Design, rounds: int, years: int) -> None:
    cells = sum(min(g.count, 1000) + 16 * years for g in design.spec.groups)
    check_memory(
        f"advice over {rounds:,} rounds and {years} years", rounds * (3 * cells + 16 * 2000),
        "take fewer rounds or years",
    )  # fmt: skip


def _scales(design: Design, prices: Prices, trace_wp: Mapping[str, float]) -> list[Scales]:
    traced = [label for label, g in zip(design.labels, design.spec.groups, strict=True) if g.trace]
    for name, value in trace_wp.items():
        if name in design.labels and name not in traced:
            raise InputError(
                f"trace_wp is given for '{name}', whose panel has a size of its own (panel_wp); it is for groups "
                "with a trace. Leave it out."
            )
        if not traced:
            raise InputError(f"trace_wp is given for '{name}', and no group of this fleet has a trace; leave it out.")
        if name not in traced:
            raise InputError(unknown("group with a trace", name, traced))
        checked(f"trace_wp of {name}", value, Positive)
    found = []
    for label, g in zip(design.labels, design.spec.groups, strict=True):
        # trace_wp is of the trace as it was recorded.
        wp = trace_wp.get(label) if g.trace else 1.0
        found.append(Scales(g.gain, g.battery_wh, g.count, wp if prices.per_wp is not None else None))
    return found


def _group(
    world: World, number: int, book: Ledger, weights: Floats, sizes: Sizes, target: Target, calendar: Calendar
) -> GroupAdvice:
    design = world.design
    g, crowd = design.spec.groups[number], world.crowds[number]
    cycles = design.fleet.cycles()[design.members(number)]
    drawn = np.sort(np.nan_to_num(weights[1:], nan=1.0))
    judged = book.weight is not None
    low = float(drawn[target.years - target.needed]) if target.years and judged else None
    reached = years_reached(weights, target.weight) if judged else 0
    per_day = DAY_S / calendar.round_s
    causes = [name for name, share in book.skipped.items() if share > 0.0]
    dead = design.dead(number)
    starved = not reaches(weights, target.weight, target.needed) if judged else None
    charge_days = None
    if starved is False and not (dead and book.first_dry is not None):
        until = charge_rounds(world, number, book, target.weight)
        charge_days = None if until is None else until * calendar.days(1)
    return GroupAdvice(
        name=design.labels[number],
        count=g.count,
        simulated=crowd.simulated,
        seeds=crowd.copies,
        site=world.site(number),
        source=design.supplies[number].told,
        panel=g.gain,
        panel_unit="x" if g.trace else "Wp",
        battery_wh=g.battery_wh,
        cycles=(int(cycles.min()), int(cycles.max())),
        cycle=design.promise(number),
        promised_per_day=float(np.mean(per_day / cycles)),
        rounds_per_day=book.participations / crowd.simulated / crowd.copies / calendar.days(world.rounds),
        weight=book.weight,
        lowest_weight=book.lowest_weight,
        starved=starved,
        years=Years([finite(w) for w in weights[1:].tolist()], reached, low),
        slots=book.slots,
        participations=book.participations,
        skipped=book.skipped,
        main_cause=max(causes, key=lambda name: book.skipped[name]) if causes else None,
        dead_since=book.first_dry if dead else None,
        dry_h=book.dry_h,
        charge_days=charge_days,
        flows_j=book.flows,
        months=book.months,
        worst_week=book.week,
        sizes=sizes,
        model=_model(design, number),
    )


def _model(design: Design, number: int) -> Model:
    g, spec = design.spec.groups[number], design.spec
    computer, link = g.computer, g.link
    first = design.members(number)[0]
    bits = 0 if design.fleet.message_bits is None else int(design.fleet.message_bits[first])
    sent, received = message_sizes(design.encoding, bits)
    up_mb, down_mb = spec.model_mb * sent, spec.model_mb * received if spec.downloads else 0.0
    up_s, down_s = link.air_s(up_mb, down_mb)
    step_j = computer.step_s * max(computer.active_w - computer.sleep_w, 0.0)
    up_j = up_mb * link.up_j_per_mb + up_s * computer.extra_idle_w
    down_j = down_mb * link.down_j_per_mb + down_s * computer.extra_idle_w
    wake_j = (link.wake_j if spec.model_mb else 0.0) + computer.awake_s * computer.extra_idle_w
    return Model(
        table=int(design.profile.site[first]),
        charging=g.charging,
        leak=float(design.of_storage("leak")[first]),
        discharging=g.discharging,
        capacity_j_per_wh=3600.0 * (1.0 - g.cutoff),
        start=max(g.start - g.cutoff, 0.0) / (1.0 - g.cutoff) if g.cutoff < 1.0 else 0.0,
        standby_j=computer.sleep_w * spec.round_s / g.discharging,
        unit_j=(design.local_steps * step_j + up_j + down_j + wake_j) / g.discharging,
        step_j=step_j,
        up_j=up_j,
        down_j=down_j,
        wake_j=wake_j,
        step_s=computer.step_s,
        air_s=up_s + down_s,
        local_steps=design.local_steps,
        up_s=up_s,
        up_mb=up_mb,
        set_cycle=design.built.groups[number].cycle,  # one round a day, if some of its devices cannot idle
        cost_spread=spec.cost_spread,
        members=_members(design, number),
    )


def _members(design: Design, number: int) -> list[Member]:
    """At most MOST_MEMBERS of a group's devices, evenly spaced from the least supplied to the best."""
    g, everyone = design.spec.groups[number], design.members(number)
    ranked, n = everyone[np.argsort(design.profile.mean[everyone], kind="stable")], min(MOST_MEMBERS, len(everyone))
    some = ranked[((np.arange(n) + 0.5) * len(ranked) / n).astype(np.int64)]
    usable_j = g.battery_wh * 3600.0 * (1.0 - g.cutoff)
    return [
        Member(
            device,
            int(design.profile.site[device]),
            float(design.profile.site_means[design.profile.site[device]]),
            float(design.profile.gain[device] * design.unit_j[device] / g.gain),
            float(design.capacity[device] * design.unit_j[device] / usable_j) if usable_j else 1.0,
        )
        for device in some.tolist()
    ]


def _seen(design: Design, books: list[Ledger], times: int, calendar: Calendar) -> Seen:
    """By the first seed: one schedule of the whole fleet."""
    groups: dict[str, float | None] = {}
    devices: dict[str, float | None] = {}
    for label, book in zip(design.labels, books, strict=True):
        paid = book.paid[:, book.seeds == 0]
        so_far = np.cumsum(paid.any(axis=1))
        each = paid.sum(axis=0).min()
        groups[label] = _hours(np.searchsorted(so_far, times), calendar, len(paid))
        last = len(paid)
        if each >= times:
            last = max(int(np.flatnonzero(paid[:, n])[times - 1]) for n in range(paid.shape[1]))
        devices[label] = _hours(last, calendar, len(paid))
    hours = [h for h in groups.values() if h is not None]
    return Seen(times, max(hours) if len(hours) == len(groups) else None, groups, devices)


def _hours(round: int | np.integer, calendar: Calendar, rounds: int) -> float | None:
    """Until the end of a round; None: it is after the horizon."""
    return None if round >= rounds else (int(round) + 1) * calendar.round_s / 3600.0
