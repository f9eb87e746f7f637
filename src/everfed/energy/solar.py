"""Solar power: one watt-peak of panel over a typical year, by pvlib.

The weather is a typical year from a file, or a clear sky anywhere. The model is the usual chain, with choices that need
little information about a small panel:

- the sun's place in the middle of every hour, for the hour's mean irradiance;
- direct, diffuse and global irradiance as the file gives them, an isotropic sky and a ground that
  reflects a quarter; at the bundled sites Hay and Davies' sky gives 1 to 3 % more over the year,
  and up to 9 % more in the worst month;
- the cell temperature of Sandia's model for glass on polymer in an open rack;
- PVWatts' power of a cell, -0.4 % per kelvin above 25 degrees, times (1 - losses).
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.checks import check_within
from everfed.energy.gaps import REFUSE, Gaps
from everfed.energy.trace import Series
from everfed.energy.weather import ANYWHERE, HOUR_S, Place, Weather, clear_sky, pvlib, read_weather
from everfed.errors import InputError
from everfed.registry import lookup

DAY_S = 86400.0
DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)

ALBEDO = 0.25
RACK = "open_rack_glass_polymer"
GAMMA_PER_K = -0.004


@dataclass(frozen=True)
class Site:
    """A place whose typical year is included in pvlib, in this file of its data folder."""

    title: str
    file: str


SITES = {
    "greensboro": Site("Greensboro, North Carolina", "723170TYA.CSV"),
    "miami": Site("Miami, Florida", "12839.tm2"),
    "sand-point": Site("Sand Point, Alaska", "703165TY.csv"),
}


def site_power(
    site: str | None = None,
    *,
    tilt_deg: float = 30.0,
    azimuth_deg: float = 180.0,
    losses: float = 0.14,
    path: str | Path | None = None,
    latitude: float | None = None,
    longitude: float | None = None,
    utc_h: float | None = None,
    gaps: Gaps = REFUSE,
) -> Series:
    """Power of one watt-peak of panel, in W, hour by hour from 1 January, local standard time (utc_h of the series).

    The weather is that of one of SITES, or of a typical year in a file (path: TMY3, TMY2, EPW or PVGIS CSV), or a
    clear sky by latitude and longitude (degrees north and east). Or path is a CSV table of irradiance
    (`weather_table`) measured at latitude and longitude: then the series is as long as the table, in its steps. Its
    utc_h is for times without an offset, and its gaps are filled by a rule.

    tilt_deg: 0 is horizontal, 90 vertical. azimuth_deg: orientation, clockwise from north; 180 is
    south, so give 0 south of the equator. losses: share lost in dirt, wires and the converter.
    """
    check_within("[0, 90]", tilt_deg=tilt_deg)
    check_within("[0, 360]", azimuth_deg=azimuth_deg)
    check_within("[0, 1]", losses=losses)
    weather = weather_at(site, path=path, place=Place(latitude, longitude, utc_h), gaps=gaps)
    return power_of(weather, float(tilt_deg), float(azimuth_deg), float(losses))


def weather_at(
    site: str | None = None, *, path: str | Path | None = None, place: Place = ANYWHERE, gaps: Gaps = REFUSE
) -> Weather:
    """The weather of one of SITES, of a file, or of a clear sky at a place."""
    located = place.latitude is not None or place.longitude is not None
    if (site is not None) + (path is not None or located) != 1:
        raise InputError("give one of site, path, or latitude with longitude as the source of the weather.")
    if located:
        check_within("[-90, 90]", latitude=place.latitude)
        check_within("[-180, 180]", longitude=place.longitude)
    if site is not None:
        file = lookup(SITES, site, "site").file
        source, place = Path(pvlib().__file__).parent / "data" / file, ANYWHERE
    elif path is not None:
        source = Path(path).resolve()
        if not source.is_file():
            raise InputError(f"there is no weather file at {path}.")
        pvlib()
    else:
        return clear_sky(float(place.latitude), float(place.longitude))  # type: ignore[arg-type]
    return read_weather(source, hashlib.sha256(source.read_bytes()).hexdigest(), place, gaps)


def from_day(series: Series, day: str) -> Series:
    """A year that starts on this day, "MM-DD", by its own clock, and ends where it began."""
    if not math.isclose(series.duration_s, 365 * DAY_S, rel_tol=1e-9):
        raise InputError(f"only a year of 365 days can start on another day; this lasts {series.duration_s:g} s.")
    month, date = month_and_day(day)
    steps = (DAYS_BEFORE_MONTH[month - 1] + date - 1) * DAY_S / series.step_s
    if not math.isclose(steps, round(steps), abs_tol=1e-6):
        raise InputError(f"no step of {series.step_s:g} s starts with the day {day}.")
    return Series(series.seconds, np.roll(series.power_w, -round(steps)), series.step_s)


def month_and_day(day: str) -> tuple[int, int]:
    """ "MM-DD" as numbers.

    >>> month_and_day("06-01")
    (6, 1)
    """
    found = re.fullmatch(r"(\d\d)-(\d\d)", day) if isinstance(day, str) else None
    month, date = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= month <= 12 or not 1 <= date <= DAYS_BEFORE_MONTH[month] - DAYS_BEFORE_MONTH[month - 1]:
        raise InputError(f"the day is {day!r}; give it as MM-DD, such as 06-01; a typical year has no 02-29.")
    return month, date


# Weathers are compared as objects: the functions that make them are cached, too.
@lru_cache(maxsize=1024)
def power_of(weather: Weather, tilt: float, azimuth: float, losses: float) -> Series:
    """Power of one watt-peak under this weather."""
    sky, (zenith, direction) = weather.columns, _sun(weather)
    plane = pvlib().irradiance.get_total_irradiance(
        tilt,
        azimuth,
        zenith,
        direction,
        sky["dni"],
        sky["ghi"],
        sky["dhi"],
        albedo=ALBEDO,
        model="isotropic",
    )
    light = np.asarray(plane["poa_global"], np.float64)
    rack = pvlib().temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"][RACK]
    cell = pvlib().temperature.sapm_cell(light, sky["temp_air"], sky["wind_speed"], **rack)
    power: Floats = np.asarray(pvlib().pvsystem.pvwatts_dc(light, cell, 1.0, GAMMA_PER_K)) * (1.0 - losses)
    power = np.where(_up(weather), np.maximum(power, 0.0), 0.0).astype(np.float64)
    seconds = np.arange(len(power), dtype=np.float64) * weather.step_s
    for array in (power, seconds):
        array.setflags(write=False)  # it is shared by all who ask for it again
    return Series(seconds, power, weather.step_s, weather.start_s, weather.utc_h, weather.filled)


@lru_cache(maxsize=64)
def _sun(weather: Weather) -> tuple[Floats, Floats]:
    """[steps] the sun's zenith and its azimuth, at the moment of each step that its irradiance is for."""
    sun = _position(weather, weather.sun_h)
    return sun["apparent_zenith"].to_numpy(), sun["azimuth"].to_numpy()


@lru_cache(maxsize=64)
def _up(weather: Weather) -> Bools:
    """[steps] whether the sun's upper rim shows at some moment of the step: else it is night."""
    up, half_h = np.zeros(len(weather.columns["ghi"]), bool), weather.step_s / HOUR_S / 2.0
    for moment in (weather.sun_h - half_h, weather.sun_h, weather.sun_h + half_h):
        up |= _position(weather, moment)["apparent_elevation"].to_numpy() > -0.27  # half the sun's width
    return up


def _position(weather: Weather, moment_h: float) -> Any:
    times = weather.moments(moment_h)
    return pvlib().solarposition.get_solarposition(times, weather.latitude, weather.longitude)
