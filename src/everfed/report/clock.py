"""Time on the axes: rounds, or hours and days where all fleets have rounds of one length, and nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.energy.calendar import ticks
from everfed.energy.fleet import Fleet
from everfed.energy.physical import DeviceFleet
from everfed.energy.profile import Profile
from everfed.report.lines import fleet_key
from everfed.run.experiment import Experiment
from everfed.run.live import Live
from everfed.store.reading import StoredRun

_HOUR, _DAY = 3600.0, 86400.0
_HOURS_UP_TO = 4 * _DAY  # longer runs are told in days


@dataclass(frozen=True)
class Clock:
    """How time is told. A round is one step of the energy process, whether clients meet in rounds or not."""

    unit: str = "rounds"
    per_round: float = 1.0  # of the unit
    asynchronous: bool = False  # whether some runs have no rounds, so that "rounds" alone would mislead
    dark: tuple[tuple[int, int], ...] = ()  # first rounds, and rounds after the last, in which no device harvests
    dates: tuple[tuple[float, str], ...] = ()  # rounds with their dates, where all fleets share a calendar

    @property
    def title(self) -> str:
        """Of an axis."""
        return self.unit if self.unit == "rounds" and not self.asynchronous else f"time, {self.unit}"

    def to_dict(self) -> dict[str, Any]:
        plain = {"unit": self.unit, "per_round": self.per_round, "asynchronous": self.asynchronous}
        dark, dates = [list(one) for one in self.dark], [list(one) for one in self.dates]
        return {**plain, "title": self.title, "dark": dark, "dates": dates}


def clock(runs: Sequence[StoredRun]) -> Clock:
    """One for all runs of a page or figure."""
    experiments = [run.experiment for run in runs]
    asynchronous = any(e.asynchronous for e in experiments)
    lengths = {None if isinstance(e.fleet, Live) else getattr(e.fleet, "round_s", None) for e in experiments}
    (seconds, *others) = lengths
    if others or seconds is None:
        return Clock(asynchronous=asynchronous)
    rounds = max(len(run.rounds) for run in runs)
    unit, length = ("hours", _HOUR) if rounds * seconds <= _HOURS_UP_TO else ("days", _DAY)
    same = len({fleet_key(e) for e in experiments}) == 1
    dark = _dark(experiments[0].make_fleet(), rounds) if same else ()
    return Clock(unit, seconds / length, asynchronous, dark, _dates(experiments, rounds))


def _dates(experiments: Sequence[Experiment], rounds: int) -> tuple[tuple[float, str], ...]:
    """Where the rounds of all fleets begin at one moment of the year."""
    clocks = {e.fleet.clock if isinstance(e.fleet, DeviceFleet) else None for e in experiments}
    (found, *others) = clocks
    return () if others or found is None else tuple(ticks(found, rounds))


def _dark(fleet: Fleet, rounds: int) -> tuple[tuple[int, int], ...]:
    """Rounds in which nobody harvests, which are the nights of a fleet of panels."""
    profile = fleet.arrivals
    if not isinstance(profile, Profile):
        return ()
    repeats = np.broadcast_to(profile.repeats, len(profile.table))
    dark = np.ones(rounds, np.bool_)
    for row, again in zip(profile.table, repeats, strict=True):
        dark &= (np.resize(row, rounds) if again else np.pad(row, (0, max(0, rounds - len(row))))[:rounds]) == 0.0
    edges = np.flatnonzero(np.diff(np.pad(dark.astype(np.int8), 1)))
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))
