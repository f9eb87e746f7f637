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
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.checks import check_within
from everfed.energy.trace import Series
from everfed.errors import InputError, extra
from everfed.registry import lookup

HOUR_S, DAY_S, HOURS = 3600.0, 86400.0, 8760
TYPICAL_START_S = datetime(2001, 1, 1, tzinfo=UTC).timestamp()  # any year without a 29 February serves
DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)

ALBEDO = 0.25
RACK = "open_rack_glass_polymer"
GAMMA_PER_K = -0.004
# A clear sky comes without weather.
CLEAR_TEMPERATURE_C, CLEAR_WIND_M_S = 20.0, 1.0

# What an hour may hold; files mark missing values by numbers far outside, such as 9999.
PLAUSIBLE = {
    "ghi": (0.0, 1500.0),
    "dni": (0.0, 1500.0),
    "dhi": (0.0, 1500.0),
    "temp_air": (-90.0, 60.0),
    "wind_speed": (0.0, 99.0),
}
TMY2_NAMES = {"GHI": "ghi", "DNI": "dni", "DHI": "dhi", "DryBulb": "temp_air", "Wspd": "wind_speed"}


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


@dataclass(frozen=True, eq=False)
class Weather:
    """A year of hours from 1 January in local standard time, columns named as in PLAUSIBLE.

    utc_h: hours that local time is ahead of UTC. sun_h: the moment of its hour that a row's
    irradiance is for.
    """

    latitude: float
    longitude: float
    utc_h: float
    columns: dict[str, Floats]
    sun_h: float = 0.5


def site_power(
    site: str | None = None,
    *,
    tilt_deg: float = 30.0,
    azimuth_deg: float = 180.0,
    losses: float = 0.14,
    path: str | Path | None = None,
    latitude: float | None = None,
    longitude: float | None = None,
) -> Series:
    """Power of one watt-peak of panel, in W, hour by hour from 1 January, local standard time (utc_h of the series).

    The weather is that of one of SITES, or of a typical year in a file (path: TMY3, TMY2, EPW or
    PVGIS CSV), or a clear sky by latitude and longitude (degrees north and east).

    tilt_deg: 0 is horizontal, 90 vertical. azimuth_deg: orientation, clockwise from north; 180 is
    south, so give 0 south of the equator. losses: share lost in dirt, wires and the converter.
    """
    check_within("[0, 90]", tilt_deg=tilt_deg)
    check_within("[0, 360]", azimuth_deg=azimuth_deg)
    check_within("[0, 1]", losses=losses)
    panel = (float(tilt_deg), float(azimuth_deg), float(losses))
    clear = latitude is not None or longitude is not None
    if (site is not None) + (path is not None) + clear != 1:
        raise InputError("give one of site, path, or latitude with longitude as the source of the weather.")
    if clear:
        check_within("[-90, 90]", latitude=latitude)
        check_within("[-180, 180]", longitude=longitude)
        return _power(_clear_sky(float(latitude), float(longitude)), *panel)  # type: ignore[arg-type]
    if site is not None:
        file = lookup(SITES, site, "site").file
        source = Path(_pvlib().__file__).parent / "data" / file
    else:
        source = Path(str(path)).resolve()
        if not source.is_file():
            raise InputError(f"there is no weather file at {path}.")
        _pvlib()
    return _power(_read_weather(source, hashlib.sha256(source.read_bytes()).hexdigest()), *panel)


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


def _pvlib() -> Any:
    return extra("pvlib", "energy from the sun needs", "solar")


def _hours(utc_h: float, moment_h: float) -> Any:
    """The same moment of every hour of a local year, as UTC times. Any year without a 29 February serves."""
    import pandas

    start = pandas.Timestamp("2001-01-01", tz="UTC") + pandas.Timedelta(hours=moment_h - utc_h)
    return pandas.date_range(start, periods=HOURS, freq="h")


# Weathers are compared as objects: the functions that make them are cached, too.
@lru_cache(maxsize=256)
def _power(weather: Weather, tilt: float, azimuth: float, losses: float) -> Series:
    pvlib = _pvlib()
    place = (weather.latitude, weather.longitude)
    sky = weather.columns
    sun = pvlib.solarposition.get_solarposition(_hours(weather.utc_h, weather.sun_h), *place)
    plane = pvlib.irradiance.get_total_irradiance(
        tilt,
        azimuth,
        sun["apparent_zenith"].to_numpy(),
        sun["azimuth"].to_numpy(),
        sky["dni"],
        sky["ghi"],
        sky["dhi"],
        albedo=ALBEDO,
        model="isotropic",
    )
    light = np.asarray(plane["poa_global"], np.float64)
    rack = pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"][RACK]
    cell = pvlib.temperature.sapm_cell(light, sky["temp_air"], sky["wind_speed"], **rack)
    power: Floats = np.asarray(pvlib.pvsystem.pvwatts_dc(light, cell, 1.0, GAMMA_PER_K)) * (1.0 - losses)
    power = np.where(_up(weather), np.maximum(power, 0.0), 0.0).astype(np.float64)
    seconds = np.arange(HOURS, dtype=np.float64) * HOUR_S
    for array in (power, seconds):
        array.setflags(write=False)  # it is shared by all who ask for it again
    return Series(seconds, power, HOUR_S, TYPICAL_START_S, weather.utc_h)


@lru_cache(maxsize=64)
def _up(weather: Weather) -> Bools:
    """[hours] whether the sun's upper rim shows at some moment of the hour: else it is night."""
    up = np.zeros(HOURS, bool)
    for moment in (weather.sun_h - 0.5, weather.sun_h, weather.sun_h + 0.5):
        sun = _pvlib().solarposition.get_solarposition(
            _hours(weather.utc_h, moment), weather.latitude, weather.longitude
        )
        up |= sun["apparent_elevation"].to_numpy() > -0.27  # half the sun's width
    return up


@lru_cache(maxsize=64)
def _clear_sky(latitude: float, longitude: float) -> Weather:
    """Ineichen and Perez' clear sky, with pvlib's maps of height and of haze by month."""
    utc_h = round(longitude / 15.0)
    times = _hours(utc_h, 0.5)
    outside = _pvlib().irradiance.get_extra_radiation(times.day_of_year.to_numpy())
    place = _pvlib().location.Location(latitude, longitude)
    sky = place.get_clearsky(times, dni_extra=outside, interp_turbidity=False)
    columns = {name: np.nan_to_num(sky[name].to_numpy()) for name in ("ghi", "dni", "dhi")}
    columns["temp_air"] = np.full(HOURS, CLEAR_TEMPERATURE_C)
    columns["wind_speed"] = np.full(HOURS, CLEAR_WIND_M_S)
    return Weather(latitude, longitude, utc_h, columns)


@lru_cache(maxsize=64)
def _read_weather(path: Path, sha256: str) -> Weather:
    """The weather in a file, read again if its content has changed."""
    suffix = path.suffix.lower()
    kinds = {".epw": "EPW", ".tm2": "TMY2", ".csv": "TMY3"}
    if suffix not in kinds:
        raise InputError(f"weather is read from .csv (TMY3, PVGIS), .tm2 and .epw files; got {path}.")
    kind = kinds[suffix]
    try:
        with path.open("rb") as file:
            head = [file.readline().decode("latin-1") for _ in range(4)]
        if kind == "TMY3" and head[0].startswith("Latitude (decimal degrees)"):
            kind = "PVGIS"
        weather = _read_pvgis(path, head) if kind == "PVGIS" else _read_hours(path, kind)
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read as a typical year in the {kind} format: {error}.") from error
    for name, (low, high) in PLAUSIBLE.items():
        column = weather.columns[name]
        if len(column) != HOURS:
            raise InputError(f"{path} has {len(column)} hours; a typical year has {HOURS}.")
        bad = np.flatnonzero(~((column >= low) & (column <= high)))
        if len(bad):
            raise InputError(f"{path}: {name} is {column[bad[0]]:g} in hour {bad[0] + 1}, outside {low:g} to {high:g}.")
    return weather


def _read_hours(path: Path, kind: str) -> Weather:
    """Formats whose rows are the hours of local standard time, in order."""
    read = _pvlib().iotools
    if kind == "TMY3":
        data, about = read.read_tmy3(str(path), map_variables=True)
    elif kind == "TMY2":
        data, about = read.read_tmy2(str(path))
        data = data.rename(columns=TMY2_NAMES)
        data[["temp_air", "wind_speed"]] /= 10.0  # the file counts in tenths, and the reader leaves it so
    else:
        data, about = read.read_epw(str(path))
    columns = {name: data[name].to_numpy(np.float64) for name in PLAUSIBLE}
    return Weather(float(about["latitude"]), float(about["longitude"]), float(about["TZ"]), columns)


def _read_pvgis(path: Path, head: list[str]) -> Weather:
    """PVGIS counts hours in UTC, and gives the irradiance of a moment in each: on the hour, or so much after it."""
    about = dict(line.split(":", 1) for line in head if ":" in line)
    latitude, longitude = (float(about[f"{name} (decimal degrees)"]) for name in ("Latitude", "Longitude"))
    data = _pvlib().iotools.read_pvgis_tmy(str(path), map_variables=True)[0]
    utc_h = round(longitude / 15.0)
    columns = {name: np.roll(data[name].to_numpy(np.float64), utc_h) for name in PLAUSIBLE}
    return Weather(latitude, longitude, utc_h, columns, float(about.get("Irradiance Time Offset (h)", 0.0)))
