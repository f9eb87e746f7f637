"""Several years of weather at one site, one after the other, as one supply of years of 365 days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from everfed.arrays import Floats
from everfed.energy.solar import DAY_S
from everfed.energy.trace import Series
from everfed.energy.weather import TYPICAL_START_S
from everfed.errors import InputError


def joined(years: Sequence[Series], names: Sequence[str]) -> Series:
    """Years one after the other, in the order given; a 29 February is left out. names: of their files, for errors."""
    if len(years) == 1:
        return years[0]
    whole = [_year(series, name) for series, name in zip(years, names, strict=True)]
    first = whole[0]
    for series, name in zip(whole[1:], names[1:], strict=True):
        for what, mine, other in (
            ("steps of", f"{first.step_s:g} s", f"{series.step_s:g} s"),
            ("a clock that is ahead of UTC by", f"{first.utc_h:g} h", f"{series.utc_h:g} h"),
            ("a year that begins on", _begins(first), _begins(series)),
        ):
            if mine != other:
                raise InputError(
                    f"{name} has {what} {other}, and {names[0]} {mine}; years that follow one another must agree."
                )
    power = np.concatenate([series.power_w for series in whole])
    seconds: Floats = np.arange(len(power), dtype=np.float64) * first.step_s
    filled = float(np.mean([series.filled for series in whole]))
    for array in (power, seconds):
        array.setflags(write=False)
    return replace(first, seconds=seconds, power_w=power, filled=filled)


def _year(series: Series, name: str) -> Series:
    """Without 29 February, and dated in a year that has none."""
    start = TYPICAL_START_S if series.start_s is None else series.start_s
    days = (start + series.seconds).astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    leap = (months.astype(np.int64) % 12 == 1) & ((days - months.astype("datetime64[D]")).astype(np.int64) == 28)
    kept = series.power_w[~leap]
    lasts = len(kept) * series.step_s / DAY_S
    if abs(lasts - 365.0) > 1e-6:
        raise InputError(
            f"{name} has {lasts:.6g} days without 29 February; each of several files of weather is one year, of 365."
        )
    begins = datetime.fromtimestamp(start, UTC).replace(year=datetime.fromtimestamp(TYPICAL_START_S, UTC).year)
    return replace(series, seconds=series.seconds[: len(kept)], power_w=kept, start_s=begins.timestamp())


def _begins(series: Series) -> str:
    assert series.start_s is not None
    return f"{datetime.fromtimestamp(series.start_s, UTC):%m-%d %H:%M}"
