"""The years in which a design is tried, and the weight that every group has in each of them.

Year 0 is the supply as given, with every device (of large groups MOST_DEVICES, evenly spaced); the others are drawn
(`weather`), with REPRESENTATIVES devices of each group. Groups of fewer devices are run with several seeds, so that a
weight is the mean of at least that many schedules. Year y has the seeds y * copies ... (y + 1) * copies - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everfed.advising.batteries import TOGETHER, Cells, Costs, costs, once, participations, shares, slots
from everfed.advising.design import Design
from everfed.advising.weather import resampled, varies
from everfed.arrays import Bools, Floats, Ints

MOST_DEVICES = 1000
REPRESENTATIVES = 16
LATER_YEARS = 9  # after the first: ten years are longer than most batteries live
SETTLED = 1e-3  # of the capacity: batteries that lose less in a year have found their level


class Query(NamedTuple):
    """A group with so many times its panel and its battery. cycle: of all its devices; 0: as they are today."""

    group: int
    panel: float = 1.0
    battery: float = 1.0
    cycle: int = 0


@dataclass(frozen=True)
class Crowd:
    """The cells of one group. device: [n] numbers in the fleet; year: [n]."""

    cells: Cells
    device: Ints
    year: Ints
    copies: int
    simulated: int


class World:
    def __init__(self, design: Design, rounds: int, years: int, most: int = MOST_DEVICES) -> None:
        """most: devices of a group in the supply as given."""
        self.design, self.rounds, self.years, self.most = design, rounds, years, most
        design.fleet.check_rounds(rounds)
        profile, round_s = design.profile, design.spec.round_s
        repeats = np.broadcast_to(np.asarray(profile.repeats, bool), len(profile.table))
        # Devices of a group that look another way have rows of their own, under the same weather.
        first = [int(np.argmax(profile.site == row)) for row in range(len(profile.table))]
        owner = [int(design.group[device]) for device in first]
        sites = [self.site(number) for number in owner]
        columns = [
            resampled(row, bool(again), rounds, round_s, site, year)
            for year in range(years + 1)
            for row, again, site in zip(profile.table, repeats, sites, strict=True)
        ]
        self.table: Floats = np.ascontiguousarray(np.stack(columns, axis=1))
        self.still = {  # groups of which no other years can be drawn
            number
            for number, row, again in zip(owner, profile.table, repeats, strict=True)
            if years and not varies(row, bool(again), rounds, round_s)
        }
        self.crowds = [self._crowd(number) for number in range(len(design.labels))]
        self._due: dict[tuple[int, int], Bools] = {}
        self._shares: dict[tuple[int, int], Floats] = {}

    def site(self, group: int) -> str:
        """What groups under the same weather have in common."""
        g = self.design.spec.groups[group]
        return Path(g.trace).name if g.trace else g.site

    def _crowd(self, group: int) -> Crowd:
        members = self.design.members(group)
        everyone = _spaced(members, self.most)
        some = _spaced(members, REPRESENTATIVES)
        copies = -(-REPRESENTATIVES // len(members))
        parts = [(0, everyone), *((year, some) for year in range(1, self.years + 1))]
        device = np.concatenate([np.tile(who, copies) for _, who in parts])
        year = np.concatenate([np.full(copies * len(who), y) for y, who in parts])
        seeds = np.concatenate([y * copies + np.repeat(np.arange(copies), len(who)) for y, who in parts])
        return Crowd(self.cells_of(device, year, seeds), device, year, copies, len(everyone))

    def cells_of(self, device: Ints, year: Ints, seeds: Ints) -> Cells:
        design, profile = self.design, self.design.profile
        return Cells(
            column=year * len(profile.table) + profile.site[device],
            gain=(profile.gain * design.of_storage("charging"))[device],
            keep=1.0 - design.of_storage("leak")[device],
            capacity=design.capacity[device],
            standby=design.of_storage("standby")[device].copy(),
            start=design.start[device],
            ids=device,
            seeds=seeds,
        )

    def due(self, group: int, cycle: int) -> Bools:
        """[rounds, n] the slots of a group's cells."""
        crowd = self.crowds[group]
        own = self.design.fleet.cycles()[crowd.device]
        key = (group, 0 if np.all(own == cycle) else cycle)
        found = self._due.get(key)
        if found is None:
            cycles = np.full(len(own), cycle) if cycle else own
            found = slots(cycles, crowd.cells.ids, crowd.cells.seeds, self.rounds)
            if cycle in (0, self.design.promise(group)):  # they are large, and others are asked for once
                self._due[key] = found
        if (group, cycle) not in self._shares:
            self._shares[group, cycle] = shares(found.sum(axis=0), crowd.device, crowd.year)
        return found

    def costs(self, due: Bools, cells: Cells) -> Costs | None:
        spread = self.design.fleet.storage.cost_spread
        return costs(due, cells.ids, cells.seeds, spread) if spread else None

    def room(self, groups: Sequence[int]) -> int:
        """How many queries of each of these groups fill a step."""
        size = sum(len(self.crowds[group].cells) for group in groups)
        return max(1, TOGETHER // max(size, 1))

    def has_slots(self, group: int, cycle: int = 0) -> bool:
        """In the supply as given: a cycle that is longer than the horizon may have none."""
        self.due(group, cycle)
        return bool(np.any(self._shares[group, cycle][self.crowds[group].year == 0]))

    def weights(self, queries: Sequence[Query]) -> list[Floats]:
        """[years + 1] of each query."""
        return [self.weighed(q, joins) for q, joins in zip(queries, self.participations(queries), strict=True)]

    def again(self, queries: Sequence[Query]) -> list[float]:
        """The lowest weight of each query in the LATER_YEARS that follow, if the supply as given comes again and again.

        Of REPRESENTATIVES devices of a group, with the slots of the first time; batteries that have settled stay so.
        """
        if not queries:
            return []
        parts, blocks, devices = [], [], []
        for q in queries:
            crowd, due = self.crowds[q.group], self.due(q.group, q.cycle)
            now = np.flatnonzero(crowd.year == 0)
            some = now[np.isin(crowd.device[now], _spaced(self.design.members(q.group), REPRESENTATIVES))]
            parts.append(crowd.cells.sized(q.panel, q.battery).part(some))
            blocks.append(due[:, some])
            devices.append(crowd.device[some])
        cells, due = Cells.joined(parts), np.concatenate(blocks, axis=1)
        sizes = [len(part) for part in parts]
        which = np.repeat(np.arange(len(queries)), sizes)
        share = shares(due.sum(axis=0), np.concatenate(devices), which)
        price, lowest = self.costs(due, cells), np.ones(len(queries))
        level = once(cells, self.table, due, price)[1]
        capacity = np.bincount(which, cells.capacity)
        for _ in range(LATER_YEARS):
            joins, after = once(replace(cells, start=level), self.table, due, price)
            lowest = np.minimum(lowest, np.bincount(which, joins * share, len(queries)))
            fell, level = np.bincount(which, level - after), after
            if np.all(fell <= SETTLED * capacity):
                break
        return [float(weight) for weight in lowest]

    def weighed(self, query: Query, joins: Ints) -> Floats:
        """[years + 1] the mean over the devices of slots that were paid, over slots; nan where none has a slot."""
        year, share = self.crowds[query.group].year, self._shares[query.group, query.cycle]
        offered = np.bincount(year, share, self.years + 1) > 0.0
        return np.where(offered, np.bincount(year, joins * share, self.years + 1), np.nan)

    def participations(self, queries: Sequence[Query]) -> list[Ints]:
        """[n] slots that were paid, of each cell of each query's group."""
        if not queries:
            return []
        crowds = [self.crowds[q.group] for q in queries]
        cells = Cells.joined([c.cells.sized(q.panel, q.battery) for c, q in zip(crowds, queries, strict=True)])
        blocks = [self.due(q.group, q.cycle) for q in queries]
        due = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
        joins = participations(cells, self.table, due, self.costs(due, cells))
        ends = np.cumsum([len(c.cells) for c in crowds])
        return np.split(joins, ends[:-1])


def _spaced(members: Ints, most: int) -> Ints:
    """At most so many of them, evenly spaced."""
    if len(members) <= most:
        return members
    return members[(np.arange(most) * len(members)) // most]
