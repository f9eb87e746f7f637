"""Years that might have been: days of a supply drawn anew, so that a design is judged by more than one winter.

A year is made of blocks of five days, so that spells of bad weather stay together. Each block is copied from a place in
the supply at most fifteen days earlier or later in the calendar, drawn evenly. All groups at one site get the same
draws.

Of a supply of several years the first drawn years are those years as they were; the others are made of the blocks of
one of them each, in turn. Blocks of different years in one would make all years alike.

A typical year has typical months: what it leaves out, such as a winter darker than all that its makers saw, no drawing
brings back. Years differ less here than in the open.
"""

from __future__ import annotations

import zlib

import numpy as np

from everfed.advising.dates import YEAR_DAYS
from everfed.arrays import Floats, Ints
from everfed.energy.supply import DAY_S
from everfed.random import Purpose, below

BLOCK_DAYS = 5
WINDOW_DAYS = 15


def as_given(row: Floats, repeats: bool, rounds: int, begin: int = 0) -> Floats:
    """Joules of each round; a supply that does not repeat gives nothing after its end, as in `Profile`."""
    at = np.arange(begin, begin + rounds)
    return np.where(repeats | (at < len(row)), row[at % len(row)], 0.0)


def resampled(row: Floats, repeats: bool, rounds: int, round_s: float, site: str, year: int) -> Floats:
    """Joules of each round of one drawn year. year: from 1; 0 is the supply as given."""
    if year == 0:
        return as_given(row, repeats, rounds)
    return row[_places(row, repeats, rounds, round_s, site, year)]


def _places(row: Floats, repeats: bool, rounds: int, round_s: float, site: str, year: int) -> Ints:
    """Which round of the supply each round of the year is copied from."""
    per_day, length = DAY_S / round_s, len(row)
    block_days = max(BLOCK_DAYS, int(np.ceil(round_s / DAY_S)))
    blocks = np.arange(int(np.ceil(rounds / per_day / block_days + 1e-9)))
    stream = zlib.crc32(site.encode())
    days = below(2 * WINDOW_DAYS + 1, year, Purpose.WEATHER, stream, 2 * blocks) - WINDOW_DAYS
    known_years = max(1, int(length / per_day / YEAR_DAYS + 1e-9))
    if known_years > 1 and year <= known_years:
        days = np.zeros_like(days)
    days = days + YEAR_DAYS * ((year - 1) % known_years)
    starts = np.rint(blocks * block_days * per_day).astype(np.int64)
    # The time of day stays, to half a round where rounds do not divide a day.
    moved = np.rint(days * per_day).astype(np.int64)
    at = np.arange(rounds)
    block = np.searchsorted(starts, at, side="right") - 1
    source = at + moved[block]
    if repeats:
        wrapped: Ints = source % length
        return wrapped
    # A supply that is not known before its start or after its end is not left: the whole block moves inside.
    size = np.diff(np.append(starts, rounds))
    first = np.clip(starts + moved, 0, np.maximum(length - size, 0))
    inside: Ints = np.minimum(first[block] + at - starts[block], length - 1)
    return inside


def varies(row: Floats, repeats: bool, rounds: int, round_s: float) -> bool:
    """Whether drawing gives other years at all: a trace of one day says nothing of other days."""
    drawn = resampled(row, repeats, rounds, round_s, "", 1)
    return not np.allclose(drawn, as_given(row, repeats, rounds), rtol=1e-12)
