"""How long a group lives off what its batteries held at first, by simulating on beyond the horizon.

A group may keep its promise in the horizon because its batteries began half full, and starve when that is used up. So
its batteries go on from where the horizon left them, under the same supply, repeated, with the slots that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from everfed.advising.batteries import PAID, Cells, costs, slots, trail
from everfed.advising.ledger import Ledger
from everfed.advising.sizing import must_last
from everfed.advising.weather import as_given
from everfed.advising.world import SETTLED, World
from everfed.arrays import Bools, Floats, Ints

MOST_PERIODS, MOST_ROUNDS = 30, 300_000  # that are simulated after the horizon


@dataclass(frozen=True)
class Period:
    """begin: its first round. missed: [rounds] the share of its slots skipped so far, the mean over the devices.
    dry: [rounds, n] whether standby could not be paid. levels: [n] at its end, in units. settled: whether they hardly
    fell."""

    begin: int
    missed: Floats
    dry: Bools
    levels: Floats
    settled: bool


def later(world: World, cells: Cells, cycles: Ints, levels: Floats) -> Iterator[Period]:
    """What follows on the horizon, in periods that are as long as it or as the supply, whichever is longer.

    cells: in the supply as given. levels: [n] at the end of the horizon.
    """
    profile, spread = world.design.profile, world.design.fleet.storage.cost_spread
    used = np.unique(cells.column)
    repeats = np.broadcast_to(np.asarray(profile.repeats, bool), len(profile.table))
    if not np.all(repeats[used]):
        return  # nobody knows what comes then
    rounds = max(world.rounds, *(len(profile.table[row]) for row in used.tolist()))
    begin, at = world.rounds, np.searchsorted(used, cells.column)
    while begin + rounds <= world.rounds + MOST_ROUNDS and begin < world.rounds + MOST_PERIODS * rounds:
        table = np.stack([as_given(profile.table[row], True, rounds, begin) for row in used.tolist()], axis=1)
        due = slots(cycles, cells.ids, cells.seeds, rounds, begin)
        price = costs(due, cells.ids, cells.seeds, spread, begin) if spread else None
        path = trail(replace(cells, column=at, start=levels), table, due, price)
        kept = np.minimum(np.concatenate([levels[None], path.levels[:-1]]) * cells.keep + table[:, at] * cells.gain,
                          cells.capacity)  # fmt: skip
        many = np.maximum(due.sum(axis=0), 1)
        missed = np.cumsum(((due & (path.outcome != PAID)) / many).mean(axis=1))
        before, levels, begin = levels, path.levels[-1], begin + rounds
        settled = float((before - levels).mean()) <= SETTLED * float(cells.capacity.mean())
        yield Period(begin - rounds, missed, kept < cells.standby * (1.0 - 1e-9), levels, settled)


def charge_rounds(world: World, group: int, book: Ledger, target: float) -> float | None:
    """Rounds from the start until a group that is not starved in the horizon has used up what it began with.

    That is when a device that cannot idle on its mean supply first cannot pay for standby, or when more of a period's
    slots have been skipped than the target allows. None: neither happens, or is known to.
    """
    design, crowd = world.design, world.crowds[group]
    net, cycles = design.net[book.device], design.fleet.cycles()[book.device]
    # What mean supplies pay for of the promises, if standby is always paid, and before leakage.
    dead, kept = net <= 0.0, float(np.clip(net * cycles, 0.0, 1.0).mean()) >= target
    cells = crowd.cells.part(np.flatnonzero(crowd.year == 0))
    falls = must_last(world) and float((book.charge - np.minimum(cells.start, cells.capacity)).mean()) < 0.0
    if kept and not np.any(dead) and not falls:
        return None
    levels, end = book.charge, world.rounds
    for period in later(world, cells, cycles, levels):
        dry = np.flatnonzero(period.dry[:, dead].any(axis=1))
        over = np.flatnonzero(period.missed > 1.0 - target + 1e-12)
        found = [int(rounds[0]) for rounds in (dry, over) if len(rounds)]
        if found:
            return float(period.begin + min(found))
        if period.settled and not np.any(dead):
            return None
        levels, end = period.levels, period.begin + len(period.missed)
    # It lasts longer than was simulated: the rest at the mean supply, before leakage.
    drawn = 1.0 / cycles - net
    short = dead if kept else drawn > 0.0
    return end + float((levels[short] / drawn[short]).min()) if np.any(short) else None
