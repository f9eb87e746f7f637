"""The weather over a site: a typical year from a file, recorded irradiance, or a clear sky anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.energy.gaps import REFUSE, Gaps
from everfed.energy.weather_table import is_table, read_table
from everfed.errors import InputError, extra

HOUR_S, HOURS = 3600.0, 8760
TYPICAL_START_S = datetime(2001, 1, 1, tzinfo=UTC).timestamp()  # any year without a 29 February serves

# A clear sky comes without weather, and so may a table of irradiance.
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


@dataclass(frozen=True, eq=False)
class Weather:
    """Steps of equal length, hours of a typical year from 1 January unless it says otherwise; columns named as in
    PLAUSIBLE.

    utc_h: hours that its clock is ahead of UTC. sun_h: hours from the start of a step to the moment that a row's
    irradiance is for. start_s: when it begins, by its clock, as if that were UTC. filled: the share of rows that were
    missing from its file.
    """

    latitude: float
    longitude: float
    utc_h: float
    columns: dict[str, Floats]
    sun_h: float = 0.5
    start_s: float = TYPICAL_START_S
    step_s: float = HOUR_S
    filled: float = 0.0

    def distance(self, other: Weather) -> float:
        """Degrees of latitude or longitude between two places, whichever is more."""
        return max(abs(self.latitude - other.latitude), abs(self.longitude - other.longitude))

    def moments(self, after_h: float) -> Any:
        """The moment of every step that is so many hours after its start, as UTC times."""
        import pandas

        start = pandas.Timestamp(self.start_s, unit="s", tz="UTC") + pandas.Timedelta(hours=after_h - self.utc_h)
        return pandas.date_range(start, periods=len(self.columns["ghi"]), freq=pandas.Timedelta(seconds=self.step_s))


@dataclass(frozen=True)
class Place:
    """Where a file does not say it: degrees north and east, and hours that its clock is ahead of UTC."""

    latitude: float | None = None
    longitude: float | None = None
    utc_h: float | None = None


ANYWHERE = Place()


def pvlib() -> Any:
    return extra("pvlib", "energy from the sun needs", "solar")


@lru_cache(maxsize=64)
def clear_sky(latitude: float, longitude: float) -> Weather:
    """Ineichen and Perez' clear sky, with pvlib's maps of height and of haze by month."""
    utc_h = round(longitude / 15.0)
    nothing = Weather(latitude, longitude, utc_h, {"ghi": np.zeros(HOURS)})
    times = nothing.moments(0.5)
    outside = pvlib().irradiance.get_extra_radiation(times.day_of_year.to_numpy())
    place = pvlib().location.Location(latitude, longitude)
    sky = place.get_clearsky(times, dni_extra=outside, interp_turbidity=False)
    columns = {name: np.nan_to_num(sky[name].to_numpy()) for name in ("ghi", "dni", "dhi")}
    columns["temp_air"] = np.full(HOURS, CLEAR_TEMPERATURE_C)
    columns["wind_speed"] = np.full(HOURS, CLEAR_WIND_M_S)
    return Weather(latitude, longitude, utc_h, columns)


@lru_cache(maxsize=64)
def read_weather(path: Path, sha256: str, place: Place = ANYWHERE, gaps: Gaps = REFUSE) -> Weather:
    """The weather in a file, read again if its content has changed."""
    suffix = path.suffix.lower()
    kinds = {".epw": "EPW", ".tm2": "TMY2", ".csv": "TMY3"}
    if suffix not in kinds:
        raise InputError(
            f"weather is read from .csv (TMY3, PVGIS), .tm2 and .epw files, or a .csv table of irradiance; got {path}."
        )
    kind = kinds[suffix]
    if kind == "TMY3" and is_table(path):
        weather = _from_table(path, place, gaps)
        _check_plausible(path, weather)
        return weather
    if not gaps.refuses:
        raise InputError(f'{path} is a typical year, which has no gaps; gaps is "{gaps.rule}". Remove it.')
    try:
        with path.open("rb") as file:
            head = [file.readline().decode("latin-1") for _ in range(4)]
        if kind == "TMY3" and head[0].startswith("Latitude (decimal degrees)"):
            kind = "PVGIS"
        weather = _read_pvgis(path, head) if kind == "PVGIS" else _read_hours(path, kind)
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read as a typical year in the {kind} format: {error}.") from error
    for name in PLAUSIBLE:
        if len(weather.columns[name]) != HOURS:
            raise InputError(f"{path} has {len(weather.columns[name])} hours; a typical year has {HOURS}.")
    _check_plausible(path, weather)
    _check_place(path, weather, place)
    return weather


def _check_plausible(path: Path, weather: Weather) -> None:
    for name, (low, high) in PLAUSIBLE.items():
        column = weather.columns[name]
        bad = np.flatnonzero(~((column >= low) & (column <= high)))
        if len(bad):
            when = f"in hour {bad[0] + 1}"
            if weather.start_s != TYPICAL_START_S:  # a table has dates, by which its rows are found
                start = datetime.fromtimestamp(weather.start_s + int(bad[0]) * weather.step_s, UTC)
                when = f"at {start:%Y-%m-%d %H:%M} of its clock{' (UTC)' * (weather.utc_h == 0.0)}"
            raise InputError(f"{path}: {name} is {column[bad[0]]:g} {when}, outside {low:g} to {high:g}.")


def _check_place(path: Path, weather: Weather, place: Place) -> None:
    """A file of another place is a slip; the same town may be told by two stations."""
    for name in ("latitude", "longitude"):
        said, given = getattr(weather, name), getattr(place, name)
        if given is not None and abs(said - given) > 1.0:
            raise InputError(
                f"{path} is the weather at {name} {said:g}, and the site's {name} is {given:g}; remove it to take the "
                "file's, or give the weather of that place."
            )
    if place.utc_h is not None:
        raise InputError(f"{path} states its time zone, and utc_h is {place.utc_h:g}; remove it.")


def _read_hours(path: Path, kind: str) -> Weather:
    """Formats whose rows are the hours of local standard time, in order."""
    read = pvlib().iotools
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
    data = pvlib().iotools.read_pvgis_tmy(str(path), map_variables=True)[0]
    utc_h = round(longitude / 15.0)
    columns = {name: np.roll(data[name].to_numpy(np.float64), utc_h) for name in PLAUSIBLE}
    return Weather(latitude, longitude, utc_h, columns, float(about.get("Irradiance Time Offset (h)", 0.0)))


def _from_table(path: Path, place: Place, gaps: Gaps) -> Weather:
    """A table of irradiance; where it has no direct and diffuse light, Erbs' model parts the global one."""
    if place.latitude is None or place.longitude is None:
        raise InputError(f"{path} is a table of irradiance, which does not say where; give latitude and longitude.")
    table = read_table(path, gaps)
    if table.utc_h is None and place.utc_h is None:
        raise InputError(
            f"{path}: its times have no UTC offset; write them as 2026-06-01T12:00:00+02:00, or give the site's utc_h."
        )
    if table.utc_h is not None and place.utc_h is not None:
        raise InputError(f"{path} states the UTC offset of its times, and utc_h is {place.utc_h:g}; remove it.")
    utc_h = table.utc_h if table.utc_h is not None else float(place.utc_h or 0.0)
    columns, rows = dict(table.columns), len(table.columns["ghi"])
    usual: dict[str, Callable[[], Floats]] = {
        "temp_air": lambda: np.full(rows, CLEAR_TEMPERATURE_C),
        "wind_speed": lambda: np.full(rows, CLEAR_WIND_M_S),
    }
    for name, made in usual.items():
        if name not in columns:
            columns[name] = made()
    sun_h = table.step_s / HOUR_S / 2.0
    weather = Weather(place.latitude, place.longitude, utc_h, columns, sun_h, table.start_s, table.step_s, table.filled)
    if "dni" not in columns:
        times = weather.moments(sun_h)
        sun = pvlib().solarposition.get_solarposition(times, place.latitude, place.longitude)
        columns |= _parted(columns["ghi"], sun["zenith"].to_numpy(), times.day_of_year.to_numpy())
    return weather


def _parted(ghi: Floats, zenith: Floats, day_of_year: Any) -> dict[str, Floats]:
    """Direct and diffuse light, by Erbs' model.

    The model divides by the height of the sun. Near the horizon a clock that is minutes off makes more direct light of
    it than the sun gives; no more than that is taken as direct, and the rest as diffuse, so that none is lost.
    """
    found = pvlib().irradiance.erbs(ghi, zenith, day_of_year)
    most: Floats = np.asarray(pvlib().irradiance.get_extra_radiation(day_of_year), np.float64)
    dni, dhi = (np.nan_to_num(np.asarray(found[name], np.float64)) for name in ("dni", "dhi"))
    over = np.maximum(dni - most, 0.0)
    return {"dni": dni - over, "dhi": dhi + over * np.maximum(np.cos(np.radians(zenith)), 0.0)}
