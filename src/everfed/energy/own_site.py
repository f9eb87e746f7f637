"""Places that a fleet describes itself, with their weather: files of one year or of several, or a clear sky."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from everfed.checks import Checked, Fraction
from everfed.energy.gaps import DEFAULT_LONGEST_H, Gaps, Longest, Rule
from everfed.energy.solar import weather_at
from everfed.energy.weather import Place, Weather
from everfed.errors import InputError, some
from everfed.files import read_file

Hours = Annotated[float, "[-14, 14]"]  # that a clock is ahead of UTC
Tilt = Annotated[float, "[0, 90]"]
Azimuth = Annotated[float, "[0, 360]"]
DEFAULT_TILT_DEG, DEFAULT_LOSSES = 30.0, 0.14


@dataclass(frozen=True)
class OwnSite(Checked):
    """A place with its weather, and how panels are mounted there unless a group says otherwise.

    latitude, longitude: degrees north and east; a typical year knows its own. weather: a file, a typical year (TMY3,
    TMY2, EPW, PVGIS) or a CSV table of irradiance (`everfed.energy.weather_table`).
    weather_years: instead of weather, a list of such files, one for each year, in the order in which the years come.
    clear_sky: instead of weather, true for a sky without clouds, which is an upper bound.
    utc_h: hours that the table's clock is ahead of UTC, for times without an offset. gaps, longest_gap_h: what becomes
    of its missing rows, up to so many hours. weather_sha256, weather_years_sha256: their hashes, set when a run is
    stored.
    tilt_deg: 0 is horizontal (30 unless given). azimuth_deg: clockwise from north (unless given, towards the equator:
    180 north of it, 0 south of it). losses: share lost in dirt, wires and the converter.
    """

    latitude: Annotated[float, "[-90, 90]"] | None = None
    longitude: Annotated[float, "[-180, 180]"] | None = None
    weather: str = field(default="", metadata={"file": True})
    clear_sky: bool = False
    utc_h: Hours | None = None
    gaps: Rule = "refuse"
    longest_gap_h: Longest = DEFAULT_LONGEST_H
    weather_sha256: str = ""
    tilt_deg: Tilt = DEFAULT_TILT_DEG
    azimuth_deg: Azimuth | None = None
    losses: Fraction = DEFAULT_LOSSES
    weather_years: tuple[str, ...] = field(default=(), metadata={"file": True, "left_out": True})
    weather_years_sha256: tuple[str, ...] = field(default=(), metadata={"left_out": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weather_years and (self.weather or self.clear_sky):
            other = "weather" if self.weather else "clear_sky"
            raise InputError(f"weather_years and {other} are both given; remove one of them.")
        if len(self.weather_years) == 1:
            raise InputError("weather_years has one file; give at least two, or one as weather.")
        if not self.weather and not self.weather_years and not self.clear_sky:
            raise InputError(
                "it has no weather data; give weather, a file with a typical year (TMY3, TMY2, EPW, PVGIS) or a CSV "
                "table of irradiance, or clear_sky = true for a sky without clouds, an upper bound."
            )
        if self.weather and self.clear_sky:
            raise InputError(f"weather is {Path(self.weather).name} and clear_sky is true; remove one of them.")
        if self.clear_sky and (self.latitude is None or self.longitude is None):
            raise InputError(
                "clear_sky is true, and latitude or longitude is missing; give both, degrees north and east."
            )
        if (self.latitude is None) != (self.longitude is None):
            raise InputError("one of latitude and longitude is missing; give both, degrees north and east.")
        if self.clear_sky and self.utc_h is not None:
            raise InputError(f"utc_h is {self.utc_h:g}, and a clear sky has no clock; it applies to tables. Remove it.")
        if self.weather:
            object.__setattr__(self, "weather", str(Path(self.weather).absolute()))
        years = tuple(str(Path(path).absolute()) for path in self.weather_years)
        object.__setattr__(self, "weather_years", years)

    @property
    def files(self) -> list[tuple[str, str]]:
        """(path, SHA-256 or "") of its weather, year by year."""
        if self.weather:
            return [(self.weather, self.weather_sha256)]
        return list(zip(self.weather_years, self.weather_years_sha256 or [""] * len(self.weather_years), strict=True))

    def skies(self) -> list[Weather]:
        """Its weather, of the content that it was tied to; of several years, one after the other."""
        place = Place(self.latitude, self.longitude, self.utc_h)
        if not self.files:
            return [weather_at(place=place)]
        found = []
        for path, sha256 in self.files:
            if sha256 and sha256 != (now := _sha256(path)):
                raise InputError(
                    f"the weather file {path} has changed: its SHA-256 is {now[:12]}..., and it was {sha256[:12]}... "
                    "when the experiment was described; put the old file back, or begin a new run."
                )
            found.append(weather_at(path=path, place=place, gaps=Gaps(self.gaps, self.longest_gap_h)))
            if found[0].distance(found[-1]) > 1.0:
                first, one = found[0], found[-1]
                raise InputError(
                    f"{path} is the weather at {one.latitude:g}, {one.longitude:g}, and that of the first year at "
                    f"{first.latitude:g}, {first.longitude:g}; give years of one place."
                )
        return found

    def pinned(self) -> OwnSite:
        """The same, tied to the content that its files have now."""
        if self.weather and not self.weather_sha256:
            return replace(self, weather_sha256=_sha256(self.weather))
        if self.weather_years and not self.weather_years_sha256:
            return replace(self, weather_years_sha256=tuple(map(_sha256, self.weather_years)))
        return self

    def with_files(self, place: Callable[[str, str], str]) -> OwnSite:
        """The same with its files elsewhere: place(path, sha256) says where."""
        paths = [place(path, sha256) for path, sha256 in self.files]
        if self.weather:
            return replace(self, weather=paths[0])
        return replace(self, weather_years=tuple(paths)) if paths else self

    @property
    def told(self) -> str:
        names = [Path(path).name for path, _ in self.files]
        years = f"{len(names)} years ({some(names, 3)})"
        return "a clear sky, which is an upper bound" if not names else years if len(names) > 1 else names[0]


def _sha256(path: str) -> str:
    if not Path(path).is_file():
        raise InputError(f"there is no weather file at {path}.")
    return hashlib.sha256(read_file(Path(path))).hexdigest()
