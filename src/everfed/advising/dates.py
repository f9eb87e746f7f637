"""Rounds as dates: a calendar of 365-day years, as typical years and fleets have it, by the clock of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everfed.arrays import Ints
from everfed.energy.solar import DAYS_BEFORE_MONTH, month_and_day
from everfed.energy.supply import DAY_S

FIRST_YEAR = 2001
YEAR_DAYS = 365
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True)
class Calendar:
    """Round 0 begins at midnight of start_day, "MM-DD"."""

    round_s: float
    start_day: str = "01-01"

    @property
    def _first_day(self) -> int:
        month, day = month_and_day(self.start_day)
        return DAYS_BEFORE_MONTH[month - 1] + day - 1

    def days(self, rounds: int) -> float:
        return rounds * self.round_s / DAY_S

    def date(self, round: float) -> str:
        """When a round begins: 2001-03-12T05:00.

        >>> Calendar(3600.0, "03-01").date(29)
        '2001-03-02T05:00'
        """
        minutes = int(np.floor(round * self.round_s / 60.0 + 1e-6))
        days, minutes = divmod(minutes, 1440)
        year, day = divmod(self._first_day + days, YEAR_DAYS)
        month = int(np.searchsorted(DAYS_BEFORE_MONTH, day, side="right"))
        date = f"{FIRST_YEAR + year}-{month:02d}-{day - DAYS_BEFORE_MONTH[month - 1] + 1:02d}"
        return f"{date}T{minutes // 60:02d}:{minutes % 60:02d}"

    def months(self, rounds: int) -> tuple[list[str], Ints]:
        """The months that rounds begin in, "2001-01", and the number of each round's month in that list."""
        # A round that begins a rounding error before midnight begins at midnight.
        day = self._first_day + np.floor(np.arange(rounds) * self.round_s / DAY_S + 1e-9).astype(np.int64)
        year, day = np.divmod(day, YEAR_DAYS)
        number = year * 12 + np.searchsorted(DAYS_BEFORE_MONTH, day, side="right") - 1
        found, which = np.unique(number, return_inverse=True)
        return [f"{FIRST_YEAR + n // 12}-{n % 12 + 1:02d}" for n in found.tolist()], which.reshape(-1)


def day_and_month(date: str) -> str:
    """A date as people say it.

    >>> day_and_month("2001-03-12T05:00")
    '12 March'
    """
    return f"{int(date[8:10])} {MONTHS[int(date[5:7]) - 1]}"
