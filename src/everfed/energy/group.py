"""Groups of like devices: their computer, radio, battery and supply, and how they differ from one another."""

from __future__ import annotations

import hashlib
import math
import zlib
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import BelowOne, Checked, Count, Fraction, NonNegative
from everfed.energy import devices
from everfed.energy.gaps import DEFAULT_LONGEST_H, Gaps, Longest, Rule
from everfed.energy.own import BUNDLED, Catalogue, Mounting
from everfed.energy.own_site import DEFAULT_LOSSES, DEFAULT_TILT_DEG, Azimuth, Hours, Tilt
from everfed.energy.solar import SITES
from everfed.energy.supply import EXTENDS, Clock, Supply, check_whole_days, filled, length, other_day, recorded, sunlit
from everfed.energy.trace import read_content, read_trace
from everfed.errors import InputError
from everfed.random import Purpose, uniform
from everfed.registry import lookup

DEFAULT_PANEL_WP = 10.0
DEFAULT_SITE = "greensboro"
# Devices of one group with as many orientations, if they differ; others are mounted as one of these.
MOST_ORIENTATIONS = 64
# Of a uniform distribution from end to end, in standard deviations.
_WIDTH = math.sqrt(12.0)
_SUN_ONLY = {
    "site": "", "panel_wp": None, "tilt_deg": DEFAULT_TILT_DEG, "azimuth_deg": 180.0, "losses": DEFAULT_LOSSES,
    "tilt_spread_deg": 0.0, "azimuth_spread_deg": 0.0, "shading": 0.0, "shading_spread": 0.0,
    "panel_loss_per_year": 0.005,
}  # fmt: skip
_TRACE_ONLY = {
    "column": "", "time_column": "", "unit": "", "time_unit": "", "trace_utc_h": None, "trace_scale": 1.0,
    "extend": "repeat", "trace_sha256": "", "gaps": "refuse", "longest_gap_h": DEFAULT_LONGEST_H,
}  # fmt: skip


def _later(default: Any) -> Any:
    """A key that is not written where it has its default, so that older experiments keep their text."""
    return field(default=default, metadata={"left_out": True})


@dataclass(frozen=True)
class DeviceGroup(Checked):
    """Like devices: a computer, a radio, a battery, and a panel at a site or a recorded trace.

    count: how many devices.
    name: of the group in tables (default: the device and its site).
    device: a preset of a computer, with its power and its seconds per step, or one of the fleet's own.
    radio: a preset of a radio, with its energy per megabyte, or one of the fleet's own.

    From the sun, through pvlib:

    site: a typical year that pvlib knows (greensboro unless given), or one of the fleet's own sites.
    panel_wp: the size of the panel, Wp (10 unless given).
    tilt_deg: of the panel, degrees from the horizontal (30 unless given; at an own site as it says).
    azimuth_deg: of the panel, degrees from north; 180, the default, is south.
    losses: the fraction lost to dirt, cables and conversion (0.14 unless given).

    From a file:

    trace: its path.
    trace_scale: what its values are multiplied by.
    column, time_column, unit, time_unit: as in read_trace, if the file's headers are not enough.
    trace_utc_h: hours that its clock is ahead of UTC, for dates without an offset.
    extend: how it continues after its end.
    gaps: what becomes of missing rows.
    longest_gap_h: the longest gap that is filled, hours.
    trace_sha256: its hash, set when a run is stored.

    The device itself:

    battery_wh: its capacity, Wh.
    cutoff: the fraction of it that cannot be used.
    start: the initial charge, as a fraction.
    charging: the efficiency of charging.
    discharging: the efficiency of discharging.
    leak_per_day: the fraction of its charge lost per day.
    spread: relative standard deviation of the supply from device to device (dirt, shade, age).
    tilt_spread_deg: standard deviation of the tilt from device to device, degrees.
    azimuth_spread_deg: the same of the azimuth, degrees.
    shading: the share of the light that is blocked all year.
    shading_spread: its standard deviation from device to device.
    age_years: of panels and batteries.
    age_spread_years: its standard deviation from device to device.
    panel_loss_per_year: the fraction of its power that a panel loses per year.
    battery_loss_per_year: the fraction of its capacity that a battery loses per year.
    step_s: seconds of one local step of your model (0: the preset's guess).
    switched_off: whether a timer turns the device off between its rounds, so that it draws no power.
    cycle: rounds of a window, in each of which a device trains once (0: as many as the mean supply needs for one
    round's energy). Set, it is kept whatever the supply: devices with too little energy skip rounds.
    """

    count: Count = 10
    name: str = ""
    device: str = "raspberry-pi-zero-2w"
    radio: str = "wifi"
    site: str = ""
    panel_wp: NonNegative | None = None
    tilt_deg: Tilt | None = None
    azimuth_deg: Azimuth | None = None
    losses: Fraction | None = None
    trace: str = field(default="", metadata={"file": True})
    trace_scale: NonNegative = 1.0
    column: str = ""
    time_column: str = ""
    unit: str = ""
    time_unit: str = ""
    trace_utc_h: Hours | None = None
    extend: Annotated[str, EXTENDS] = "repeat"
    trace_sha256: str = ""
    battery_wh: NonNegative = 20.0
    charging: Fraction = 0.9
    discharging: Fraction = 0.95
    cutoff: Fraction = 0.1
    start: Fraction = 0.5
    leak_per_day: Fraction = 0.001
    spread: Annotated[float, "[0, 0.5]"] = 0.0
    step_s: NonNegative = 0.0
    switched_off: bool = False
    cycle: Annotated[int, "[0, 2147483647]"] = _later(0)
    tilt_spread_deg: Annotated[float, "[0, 30]"] = _later(0.0)
    azimuth_spread_deg: Annotated[float, "[0, 100]"] = _later(0.0)
    shading: BelowOne = _later(0.0)
    shading_spread: Annotated[float, "[0, 0.5]"] = _later(0.0)
    age_years: Annotated[float, "[0, 100]"] = _later(0.0)
    age_spread_years: Annotated[float, "[0, 50]"] = _later(0.0)
    panel_loss_per_year: BelowOne = _later(0.005)
    battery_loss_per_year: BelowOne = _later(0.03)
    gaps: Rule = _later("refuse")
    longest_gap_h: Longest = _later(DEFAULT_LONGEST_H)
    # What its fleet describes itself; a fleet sets it.
    own: Catalogue = field(default=BUNDLED, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_supply()
        if self.shading + self.shading_spread * _WIDTH / 2.0 >= 1.0:
            raise InputError(
                f"shading is {self.shading:g} with a spread of {self.shading_spread:g}; the most shaded devices would "
                "get no light at all. Give less of one of them."
            )

    def _check_supply(self) -> None:
        for name, default in (_SUN_ONLY if self.trace else _TRACE_ONLY).items():
            value: Any = getattr(self, name)
            if value is not None and value != default and self.trace:
                hint = " To scale the trace, set trace_scale." if name == "panel_wp" else ""
                raise InputError(
                    f"{name} is {value}, and the supply is the trace {Path(self.trace).name}; {name} applies to solar "
                    f"panels.{hint} Remove one of them."
                )
            if value != default and not self.trace:
                raise InputError(f"{name} is {value!r}, and there is no trace; {name} applies to traces. Remove it.")
        if self.trace:
            if self.trace_scale == 0.0:
                raise InputError("trace_scale is 0.0; a device without energy could never train.")
            object.__setattr__(self, "trace", str(Path(self.trace).absolute()))
        else:
            object.__setattr__(self, "site", self.site or DEFAULT_SITE)
            if self.panel_wp is None:
                object.__setattr__(self, "panel_wp", DEFAULT_PANEL_WP)
            if self.panel_wp == 0.0:
                raise InputError("panel_wp is 0.0; a device without a panel could never train.")
        if self.trace or self.site in SITES:  # an own site says how panels are mounted there
            for name in ("tilt_deg", "azimuth_deg", "losses"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, _SUN_ONLY[name])

    def of(self, own: Catalogue) -> DeviceGroup:
        """The same group of a fleet that describes these devices, radios and sites; an error for a name not in them."""
        mine = copy(self)
        object.__setattr__(mine, "own", own)
        own.device(self.device)
        own.radio(self.radio)
        if not self.trace and self.site not in own.sites:
            lookup({**SITES, **dict.fromkeys(own.sites)}, self.site, "site")
        return mine

    @property
    def label(self) -> str:
        return self.name or f"{self.device} @ {Path(self.trace).name if self.trace else self.site}"

    @property
    def gain(self) -> float:
        """What the supply of one watt-peak, or of the trace, is multiplied by."""
        return self.trace_scale if self.trace else self.panel_wp or DEFAULT_PANEL_WP

    @property
    def computer(self) -> devices.Device:
        found = self.own.device(self.device)
        mine = {name for name, given in (("sleep_w", self.switched_off), ("step_s", self.step_s)) if given}
        return replace(
            found,
            sleep_w=0.0 if self.switched_off else found.sleep_w,
            step_s=self.step_s or found.step_s,
            guessed=tuple(name for name in found.guessed if name not in mine),
        )

    @property
    def link(self) -> devices.Radio:
        return self.own.radio(self.radio)

    @property
    def guesses(self) -> tuple[str, ...]:
        """Values without a published source that the user did not set."""
        found = [f"{self.device} {name}" for name in self.computer.guessed]
        return (*found, *(f"{self.radio} {name}" for name in self.link.guessed))

    def pinned(self) -> DeviceGroup:
        """The same, tied to the content that its trace has now; a trace tied before is left as it is."""
        if not self.trace or self.trace_sha256:
            return self
        return replace(self, trace_sha256=hashlib.sha256(read_content(Path(self.trace))).hexdigest())

    def supply(self, clock: Clock) -> Supply:
        """What one watt-peak (or the trace as it is) gives round by round, mounted as the group says."""
        if self.trace:
            series = read_trace(
                self.trace, self.column or None, time_column=self.time_column or None, unit=self.unit or None,
                time_unit=self.time_unit or None, utc_h=self.trace_utc_h, sha256=self.trace_sha256 or None,
                gaps=Gaps(self.gaps, self.longest_gap_h),
            )  # fmt: skip
            return recorded(series, self.extend, clock, self.label, Path(self.trace).name)
        weather, mounting = self.own.weather(self.site)[0], self._mounting()
        mounting.check(weather.latitude, self.label)
        series = self.own.power(self.site, *mounting)
        check_whole_days(series, f"{self.label}: the table of irradiance")
        if self.site in SITES:
            told = f"a typical year at {self.site} (UTC{series.utc_h:+g} h), repeated every 365 days"
        else:
            told = (
                f"the sun at {self.site} ({weather.latitude:.4g}, {weather.longitude:.4g}) by "
                f"{self.own.sites[self.site].told}, {length(series.duration_s)}{filled(series)}, repeated"
            )
        joules, day = sunlit(series, clock, self.label), other_day(series, clock, self.label)
        return Supply(joules, True, told, series.duration_s, series.filled, day)

    def orientations(self, clock: Clock, label: str) -> list[Floats]:
        """The same joules for each of the orientations that the group's devices have; device i has the one of number
        i modulo how many there are. label: the group's name in its fleet."""
        if not (self.tilt_spread_deg or self.azimuth_spread_deg):
            return [self.supply(clock).joules]
        mounting = self._mounting()
        which = np.arange(min(self.count, MOST_ORIENTATIONS))
        tilts = mounting.tilt_deg + self.tilt_spread_deg * _WIDTH * self._drawn(label, "tilt", which)
        azimuths = mounting.azimuth_deg + self.azimuth_spread_deg * _WIDTH * self._drawn(label, "azimuth", which)
        return [
            sunlit(self.own.power(self.site, tilt, azimuth, mounting.losses), clock, self.label)
            for tilt, azimuth in zip(np.clip(tilts, 0.0, 90.0).tolist(), (azimuths % 360.0).tolist(), strict=True)
        ]

    def factors(self, label: str) -> tuple[Floats, Floats]:
        """What each device's supply and its battery are multiplied by: it is better or worse off than its group.

        The same in every run: which of them is shaded is no chance of a seed. It follows from the group's name and
        the device's place in the group, whatever other groups there are.
        """
        which = np.arange(self.count)
        supply = 1.0 + self.spread * _WIDTH * self._drawn(label, "", which)
        battery = np.ones(self.count)
        if self.shading or self.shading_spread:
            blocked = self.shading + self.shading_spread * _WIDTH * self._drawn(label, "shading", which)
            supply = supply * (1.0 - np.maximum(blocked, 0.0))
        if self.age_years or self.age_spread_years:
            years = np.maximum(self.age_years + self.age_spread_years * _WIDTH * self._drawn(label, "age", which), 0.0)
            battery = (1.0 - self.battery_loss_per_year) ** years
            if not self.trace:  # a recorded panel was as old as it was
                supply = supply * (1.0 - self.panel_loss_per_year) ** years
        return supply, battery

    def _drawn(self, label: str, what: str, which: Ints) -> Floats:
        """A number of each device from -1/2 to 1/2, uniform."""
        name = f"{label}\0{what}" if what else label
        drawn: Floats = uniform(0, Purpose.SUPPLY, which, zlib.crc32(name.encode()))
        return drawn - 0.5

    def _mounting(self) -> Mounting:
        return self.own.mounting(self.site, self.tilt_deg, self.azimuth_deg, self.losses)
