"""What happens to the groups as they are: energy by month, why slots are skipped, the worst week."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.advising.advice import CAUSES, Flows, Month, Week
from everfed.advising.batteries import BROWN_OUT, PAID, SKIPPED, Cells, Costs, Trail, costs, trail
from everfed.advising.dates import Calendar
from everfed.advising.world import World
from everfed.arrays import Bools, Floats, Ints
from everfed.energy.supply import DAY_S

WEEK_DAYS = 7.0
_NUMBER = {name: number for number, name in enumerate(CAUSES)}
_TOGETHER = 2000  # cells whose levels of all rounds are held at once

Outcomes = npt.NDArray[Any]  # [rounds, n] small whole numbers


@dataclass(frozen=True)
class Ledger:
    """A group in the supply as given, in year 0."""

    months: list[Month]
    flows: Flows
    slots: int
    participations: int
    weight: float | None  # None: no slot in the horizon
    skipped: dict[str, float]
    lowest_weight: float | None  # of a device
    week: Week
    dry_h: float  # mean over the devices
    first_dry: str | None
    charge: Floats  # [n] levels at the end, in units
    paid: Bools  # [rounds, n]
    device: Ints  # [n]
    seeds: Ints  # [n]


@dataclass(frozen=True)
class _Path:
    """The cells of one group in year 0, and what became of them."""

    group: int
    cells: Cells
    device: Ints
    due: Bools
    levels: Floats
    outcome: Outcomes
    cause: Outcomes  # the number of a skipped slot's cause; -1: not skipped
    price: Floats | None  # [rounds, n] what a participation cost, in units; None: 1


def ledgers(world: World, calendar: Calendar) -> Iterator[Ledger]:
    """Of every group, in order."""
    design = world.design
    radio = design.built.pace(design.local_steps, design.encoding, design.fleet).radio
    batch: list[int] = []
    for group in range(len(design.labels)):
        batch.append(group)
        size = sum(np.count_nonzero(world.crowds[g].year == 0) for g in batch)
        if size >= _TOGETHER or group == len(design.labels) - 1:
            for path in _paths(world, batch):
                yield _accounts(world, path, calendar, radio[path.device])
            batch = []


def _paths(world: World, groups: Sequence[int]) -> Iterator[_Path]:
    spread = world.design.fleet.storage.cost_spread
    now = [world.crowds[g].year == 0 for g in groups]
    each = [world.crowds[g].cells.part(which) for g, which in zip(groups, now, strict=True)]
    due = np.concatenate([world.due(g, 0)[:, which] for g, which in zip(groups, now, strict=True)], axis=1)
    cells = Cells.joined(each)
    unfit = np.repeat([g in world.design.unfit for g in groups], [len(c) for c in each])
    usable = due & ~unfit
    price = costs(usable, cells.ids, cells.seeds, spread) if spread else None
    path = trail(cells, world.table, usable, price)
    cause = _causes(world, cells, usable, price, path)
    cause[due & unfit] = _NUMBER["air time"]
    outcome = np.where(due & unfit, np.uint8(SKIPPED), path.outcome)
    paid_price = None
    if price is not None:
        paid_price = np.zeros(due.shape)
        paid_price[usable] = price.value
        paid_price *= outcome == PAID
    ends = np.cumsum([len(c) for c in each])
    for g, which, mine, end in zip(groups, now, each, ends.tolist(), strict=True):
        part = slice(end - len(mine), end)
        yield _Path(
            g, mine, world.crowds[g].device[which], due[:, part], path.levels[:, part], outcome[:, part],
            cause[:, part], None if paid_price is None else paid_price[:, part],
        )  # fmt: skip


def _causes(world: World, cells: Cells, due: Bools, price: Costs | None, path: Trail) -> Outcomes:
    cause = np.full(due.shape, -1, np.int8)
    cause[path.outcome == BROWN_OUT] = _NUMBER["brown-out"]
    left = path.outcome == SKIPPED
    for name, changed, table in _without(world, cells):
        paid = trail(changed, table, due, price, levels=False).outcome == PAID
        cause[left & paid] = _NUMBER[name]
        left &= ~paid
    cause[left] = _NUMBER["supply"]
    return cause


def _without(world: World, cells: Cells) -> list[tuple[str, Cells, Floats]]:
    """The worlds in which causes are tried, one after the other; each keeps what the ones before changed."""
    round_s = world.design.spec.round_s
    given = world.table[:, : int(cells.column.max()) + 1]  # cells of year 0 use the first columns
    mean = given.mean(axis=0)
    even, daily = np.broadcast_to(mean, given.shape), _daily(given, round_s)
    no_leak = replace(cells, keep=np.ones(len(cells)))
    needed = 1.0 / world.design.fleet.cycles()[cells.ids] + cells.standby
    week = needed * WEEK_DAYS * DAY_S / round_s
    larger = replace(no_leak, capacity=cells.capacity + week)
    full = replace(larger, start=larger.capacity)
    asleep = replace(full, standby=np.zeros(len(cells)))
    return [
        ("leak", no_leak, given),
        ("night", no_leak, daily),
        ("overflow", larger, daily),
        ("winter", larger, even),
        ("start", full, even),
        ("standby", asleep, even),
    ]


def _daily(table: Floats, round_s: float) -> Floats:
    """Each day's energy evenly over its rounds; a round belongs to the day in which it begins."""
    day = np.floor(np.arange(len(table)) * round_s / DAY_S + 1e-9).astype(np.int64)
    starts = np.flatnonzero(np.diff(day, prepend=-1))
    size = np.diff(np.append(starts, len(table)))
    return np.repeat(np.add.reduceat(table, starts, axis=0) / size[:, None], size, axis=0)


def _accounts(world: World, path: _Path, calendar: Calendar, radio: Floats) -> Ledger:
    """radio: [n] the part of a round's energy that goes to the radio."""
    cells, design = path.cells, world.design
    names, month_of = calendar.months(world.rounds)
    devices = len(design.members(path.group))
    joules = design.unit_j[path.device] * devices / len(cells)  # of a unit; the sum is that of the whole group
    gain = design.profile.gain[path.device]
    paid = path.outcome == PAID
    dry, offered_j = np.zeros(path.due.shape, np.bool_), np.zeros(world.rounds)
    months, before = [], np.minimum(cells.start, cells.capacity)
    for number, name in enumerate(names):
        at = np.flatnonzero(month_of == number)
        mine = slice(int(at[0]), int(at[-1]) + 1)
        after = path.levels[mine]
        earlier = np.concatenate([before[None], after[:-1]])
        supply = world.table[mine][:, cells.column]
        offered, kept = supply * gain, supply * cells.gain
        leak = earlier * (1.0 - cells.keep)
        charged = earlier - leak + kept
        overflow = np.maximum(charged - cells.capacity, 0.0)
        drawn = np.minimum(charged - overflow, cells.standby)
        dry[mine] = drawn < cells.standby * (1.0 - 1e-9)
        lost = (charged - overflow - drawn) * (path.outcome[mine] == BROWN_OUT)
        spent = (paid if path.price is None else path.price)[mine].sum(axis=0)
        flows = Flows(
            initial=float(before @ joules),
            harvested=float(offered.sum(axis=0) @ joules),
            charging_loss=float((offered - kept).sum(axis=0) @ joules),
            overflow=float(overflow.sum(axis=0) @ joules),
            leak=float(leak.sum(axis=0) @ joules),
            standby=float(drawn.sum(axis=0) @ joules),
            training=float((spent * (1.0 - radio)) @ joules),
            radio=float((spent * radio) @ joules),
            lost=float(lost.sum(axis=0) @ joules),
            stored=float(after[-1] @ joules),
        )
        offered_j[mine] = offered @ joules
        months.append(_month(name, calendar, mine, path, flows))
        before = after[-1]
    ran_dry = np.flatnonzero(dry.any(axis=1))
    return Ledger(
        months,
        _total([m.flows_j for m in months]),
        int(path.due.sum()),
        int(paid.sum()),
        *_kept(path, slice(None)),
        _week(path, calendar, design.unit_j[path.device], offered_j / devices),
        float(dry.sum(axis=0).mean() * calendar.round_s / 3600.0),
        calendar.date(int(ran_dry[0])) if len(ran_dry) else None,
        path.levels[-1].copy(),
        paid,
        path.device,
        cells.seeds,
    )


def _month(name: str, calendar: Calendar, mine: slice, path: _Path, flows: Flows) -> Month:
    outcome = path.outcome[mine]
    slots, joins = int(np.count_nonzero(outcome)), int((outcome == PAID).sum())
    days = calendar.days(mine.stop - mine.start)
    often = joins / len(path.cells) / days
    weight, skipped, _ = _kept(path, mine)
    return Month(name, days, slots, joins, often, weight, skipped, flows)


def _kept(path: _Path, mine: slice) -> tuple[float | None, dict[str, float], float | None]:
    """In some rounds: the weight, the shares of skipped slots by cause, and the weight of the worst device.

    Weight and shares are means over the devices that have a slot.
    """
    devices, which = np.unique(path.device, return_inverse=True)
    which = which.reshape(-1)
    slots, paid = (np.bincount(which, what[mine].sum(axis=0)) for what in (path.due, path.outcome == PAID))
    at, cell = np.nonzero(path.cause[mine] >= 0)
    number = path.cause[mine][at, cell].astype(np.int64)
    skipped = np.bincount(number * len(devices) + which[cell], minlength=len(_NUMBER) * len(devices))
    some = slots > 0
    if not np.any(some):
        return None, dict.fromkeys(_NUMBER, 0.0), None
    each = paid[some] / slots[some]
    causes = (skipped.reshape(len(_NUMBER), -1)[:, some] / slots[some]).mean(axis=1).tolist()
    return float(each.mean()), dict(zip(_NUMBER, causes, strict=True)), float(each.min())


def _total(parts: list[Flows]) -> Flows:
    """What flowed adds up; what was held is that of the first and of the last."""
    summed = {f.name: float(sum(getattr(p, f.name) for p in parts)) for f in fields(Flows)}
    return Flows(**summed | {"initial": parts[0].initial, "stored": parts[-1].stored})


def _week(path: _Path, calendar: Calendar, unit_j: Floats, offered_j: Floats) -> Week:
    """The seven days from a midnight with the lowest mean level."""
    wh = path.levels * (unit_j / 3600.0)
    level, per_day = wh.mean(axis=1), DAY_S / calendar.round_s
    size = int(min(max(round(WEEK_DAYS * per_day), 1), len(level)))
    last = len(level) - size
    midnights = np.unique(np.minimum(np.rint(np.arange(int(last / per_day) + 1) * per_day).astype(np.int64), last))
    until = np.append(0.0, np.cumsum(level))
    first = int(midnights[np.argmin(until[midnights + size] - until[midnights])])
    mine = slice(first, first + size)
    return Week(
        calendar.date(first),
        level[mine].tolist(),
        wh[mine].min(axis=1).tolist(),
        (offered_j[mine] / 3600.0).tolist(),
        float((path.cells.capacity * unit_j).mean() / 3600.0),
    )
