"""Random fleets of devices on recorded power, for tests of advice; and the project's own simulator as their judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from everfed import UniformWindow
from everfed.advising.weather import resampled
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.scheduling.plan import Schedule


def write_power(path, rng, days, watts):
    """Days and nights in steps of three hours, with spells of bad weather and a season."""
    hours = np.arange(8 * days) * 3.0
    sun = np.maximum(np.sin((hours % 24.0 - 6.0) / 12.0 * np.pi), 0.0)
    spell = np.repeat(rng.uniform(0.1, 1.0, -(-days // 4)), 4)[:days] * rng.uniform(0.7, 1.0, days)
    season = 1.0 + 0.6 * np.cos(np.arange(days) / days * 2.0 * np.pi)
    power = watts * sun * np.repeat(spell * season, 8)
    rows = [f"{3600.0 * hour:g},{value:.6f}" for hour, value in zip(hours, power, strict=True)]
    path.write_text("\n".join(["seconds,power_w", *rows]) + "\n")
    return str(path)


def random_fleet(folder, seed, groups=3, days=40, **changes):
    """Groups that differ in all that matters; some have enough, some are starved."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(groups):
        trace = write_power(folder / f"power-{seed}-{number}.csv", rng, days, 0.02)
        made.append(
            DeviceGroup(
                name=f"g{number}",
                count=int(rng.integers(1, 6)),
                device="esp32",
                radio=str(rng.choice(["none", "wifi", "lte"])),
                trace=trace,
                trace_scale=float(rng.uniform(0.4, 2.0)),
                battery_wh=float(np.exp(rng.uniform(np.log(0.02), np.log(0.4)))),
                step_s=float(rng.uniform(5.0, 60.0)),
                charging=float(rng.uniform(0.7, 1.0)),
                discharging=float(rng.uniform(0.8, 1.0)),
                cutoff=float(rng.choice([0.0, 0.1])),
                start=float(rng.uniform(0.1, 1.0)),
                leak_per_day=float(rng.choice([0.0, 0.01, 0.1])),
                spread=float(rng.choice([0.0, 0.1, 0.2])),
                cycle=int(rng.choice([0, 0, 3, 7])),
            )
        )
    return DeviceFleet(tuple(made), round_s=float(rng.choice([10_800.0, 21_600.0])), **changes)


def in_year(fleet, spec, year, rounds):
    """The same fleet under the weather of a drawn year."""
    profile = fleet.arrivals
    table = [
        resampled(row, True, rounds, spec.round_s, spec.groups[number].trace.rpartition("/")[2], year)
        for number, row in enumerate(profile.table)
    ]
    return replace(fleet, arrivals=replace(profile, table=table, known_cycles=fleet.cycles()))


def simulated_weights(spec, group, years, rounds):
    """[years + 1] of a group, by the project's own schedule, round by round: slots that were paid over slots, the mean
    over its devices."""
    fleet, found = spec.build(), []
    members = np.flatnonzero(fleet.group_of == group)
    copies = -(-16 // len(members))
    for year in range(years + 1):
        there = fleet if year == 0 else in_year(fleet, spec, year, rounds)
        seeds = np.arange(year * copies, (year + 1) * copies, dtype=np.uint64)[:, None]
        schedule, paid, offered = Schedule(there, UniformWindow(), seeds), 0, 0
        for r in range(rounds):
            join, _ = schedule.step(r)
            paid += np.count_nonzero(join[:, members], axis=0)
            offered += np.count_nonzero(schedule.state["slot"][:, members] == r, axis=0)
        found.append(np.mean(paid[offered > 0] / offered[offered > 0]))
    return np.array(found)
