"""Many batteries at once: the recursion of `energy.battery.Battery` under Algorithm 1, for designs side by side.

A cell is one device in one year with one seed and one size of panel and battery. All cells take the same step in the
same round: charge, leak, overflow, standby, and payment if it is the cell's slot. The numbers are those of a
`Schedule` of the project, to the last bits; tests hold the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from everfed import random
from everfed.arrays import Bools, Floats, Ints
from everfed.energy.battery import TOLERANCE

# Cells stepped together: their arrays stay in the second-level cache.
TOGETHER = 8192
SKIPPED, PAID, BROWN_OUT = 1, 2, 3  # what became of a slot; 0: none was due


@dataclass(frozen=True)
class Cells:
    """[n] each. column: of the table of supplies. gain: units that reach the battery per joule of the table."""

    column: Ints
    gain: Floats
    keep: Floats  # part of the level that does not leak in a round
    capacity: Floats
    standby: Floats
    start: Floats
    ids: Ints  # the clients' numbers in the fleet: their slots are drawn with them
    seeds: Ints

    def __len__(self) -> int:
        return len(self.column)

    def sized(self, panel: float, battery: float) -> Cells:
        """The same with so many times the panel and the battery."""
        return replace(self, gain=self.gain * panel, capacity=self.capacity * battery, start=self.start * battery)

    def part(self, which: slice | Ints) -> Cells:
        return Cells(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @staticmethod
    def joined(parts: list[Cells]) -> Cells:
        if len(parts) == 1:
            return parts[0]
        return Cells(*(np.concatenate([getattr(p, name) for p in parts]) for name in Cells.__dataclass_fields__))


def slots(cycles: Ints, ids: Ints, seeds: Ints, rounds: int, begin: int = 0) -> Bools:
    """[rounds, n] whether a round is the one that Algorithm 1 drew in its window, as in `UniformWindow`.

    begin: the first of these rounds.
    """
    due = np.zeros((rounds, len(cycles)), np.bool_)
    passed = begin // cycles
    windows = -(-(begin + rounds) // cycles) - passed
    for first in _batches(windows):
        many = windows[first]
        cell = np.repeat(np.arange(first.start, first.start + len(many)), many)
        window = np.arange(len(cell)) - np.repeat(np.cumsum(many) - many, many) + passed[cell]
        cycle = cycles[cell]
        drawn = random.below(cycle, seeds[cell].astype(np.uint64), random.Purpose.SLOT, ids[cell], window)
        at = window * cycle + drawn - begin
        inside = (at >= 0) & (at < rounds)
        due[at[inside], cell[inside]] = True
    return due


def _batches(windows: Ints, most: int = 1 << 21) -> list[slice]:
    """Neighbouring cells whose windows together are not too many to be drawn at once."""
    part = np.cumsum(windows) // most
    edges = np.flatnonzero(np.diff(part)) + 1
    return [slice(int(a), int(b)) for a, b in zip([0, *edges], [*edges, len(windows)], strict=True)]


def shares(slots: Ints, device: Ints, period: Ints) -> Floats:
    """[n] what one slot of each cell counts in the weight of its period, which is the mean over the devices.

    slots, device, period: [n] of each cell. A device without a slot in a period is no part of that period's mean.
    """
    which, mine = np.unique(np.stack([period, device]), axis=1, return_inverse=True)
    mine = mine.reshape(-1)
    each = np.bincount(mine, slots)
    devices = np.bincount(which[0], each > 0)[which[0]]
    share: Floats = np.divide(1.0, each * devices, out=np.zeros(len(each)), where=each > 0)
    return share[mine]


class Costs(NamedTuple):
    """What each slot costs, in units, where that varies: of the slots of a round, in the order of their cells."""

    value: Floats
    begins: Ints  # [rounds + 1] where each round's slots begin


def costs(due: Bools, ids: Ints, seeds: Ints, spread: float, begin: int = 0) -> Costs:
    """As in `Schedule`: the sum of four uniform numbers, scaled to this deviation. begin: the first of these rounds."""
    round_of, cell = np.nonzero(due)
    words = random.words(seeds[cell].astype(np.uint64), random.Purpose.COST, ids[cell], begin + round_of)
    bell = words.astype(np.float64).sum(axis=0) / 2.0**32 - 2.0
    begins = np.searchsorted(round_of, np.arange(len(due) + 1))
    return Costs(np.maximum(1.0 + spread * np.sqrt(3.0) * bell, 0.0), begins)


class Trail(NamedTuple):
    """levels: [rounds, n] after each round, in units. outcome: [rounds, n] of a slot: SKIPPED, PAID or BROWN_OUT."""

    levels: Floats
    outcome: npt.NDArray[np.uint8]


def participations(cells: Cells, table: Floats, due: Bools, cost: Costs | None = None) -> Ints:
    """[n] slots that were paid. table: [rounds, columns] joules."""
    if cost is not None:
        paid: Ints = (_with_costs(cells, table, due, cost, levels=False).outcome == PAID).sum(axis=0)
        return paid
    return once(cells, table, due)[0]


def once(cells: Cells, table: Floats, due: Bools, cost: Costs | None = None) -> tuple[Ints, Floats]:
    """[n] slots that were paid, and [n] the levels at the end."""
    if cost is not None:
        path = _with_costs(cells, table, due, cost, levels=True)
        return (path.outcome == PAID).sum(axis=0), path.levels[-1]
    found = [_run(cells.part(part), table, due[:, part]) for part in _parts(cells)]
    return np.concatenate([joins for joins, _ in found]).astype(np.int64), np.concatenate([end for _, end in found])


def trail(cells: Cells, table: Floats, due: Bools, cost: Costs | None = None, levels: bool = True) -> Trail:
    """The same in full. levels: whether they are kept."""
    if cost is not None:
        return _with_costs(cells, table, due, cost, levels)
    paid = np.empty(due.shape, np.bool_)
    kept = np.empty((len(due) if levels else 0, len(cells)))
    for part in _parts(cells):
        _run(cells.part(part), table, due[:, part], paid[:, part], kept[:, part] if levels else None)
    return Trail(kept, due.view(np.uint8) * np.uint8(SKIPPED) + paid.view(np.uint8))


def _parts(cells: Cells) -> list[slice]:
    return [slice(first, first + TOGETHER) for first in range(0, len(cells), TOGETHER)]


def _run(
    cells: Cells, table: Floats, due: Bools, paid: Bools | None = None, levels: Floats | None = None
) -> tuple[Floats, Floats]:
    """The inner loop: [n] slots that were paid and levels. Every operation writes into an array that is there already.

    paid, levels: where to write them round by round.
    """
    level = np.minimum(cells.start, cells.capacity)
    arrived, pays, joins = np.empty(len(cells)), np.empty(len(cells), np.bool_), np.zeros(len(cells))
    enough = 1.0 - TOLERANCE
    column, gain, keep, capacity, standby = cells.column, cells.gain, cells.keep, cells.capacity, cells.standby
    for r, (now, mine) in enumerate(zip(table, due, strict=True)):
        np.take(now, column, out=arrived, mode="clip")
        np.multiply(arrived, gain, out=arrived)
        np.multiply(level, keep, out=level)
        np.add(level, arrived, out=level)
        np.minimum(level, capacity, out=level)
        np.subtract(level, standby, out=level)
        np.maximum(level, 0.0, out=level)
        np.greater_equal(level, enough, out=pays)
        np.logical_and(pays, mine, out=pays)
        np.subtract(level, pays, out=level)
        np.maximum(level, 0.0, out=level)
        np.add(joins, pays, out=joins)
        if paid is not None:
            paid[r] = pays
        if levels is not None:
            levels[r] = level
    return joins, level


def _with_costs(cells: Cells, table: Floats, due: Bools, cost: Costs, levels: bool) -> Trail:
    """The same where rounds cost more or less than a unit, and may fail."""
    kept, outcome = np.empty((len(due) if levels else 0, len(cells))), np.zeros(due.shape, np.uint8)
    level = np.minimum(cells.start, cells.capacity)
    for r in range(len(due)):
        level = level * cells.keep + table[r, cells.column] * cells.gain
        level = np.minimum(level, cells.capacity)
        level -= np.minimum(level, cells.standby)
        mine = np.flatnonzero(due[r])
        price, has = cost.value[cost.begins[r] : cost.begins[r + 1]], level[mine]
        tries = has >= 1.0 - TOLERANCE
        short = tries & (price - has > price * TOLERANCE)
        pays = tries & ~short
        level[mine] = np.where(short, 0.0, np.where(pays, np.maximum(has - price, 0.0), has))
        outcome[r, mine] = np.where(pays, PAID, np.where(short, BROWN_OUT, SKIPPED))
        if levels:
            kept[r] = level
    return Trail(kept, outcome)
