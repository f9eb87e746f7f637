"""Devices, radios and sites that a fleet describes itself, beside the presets, and how groups find them by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from everfed.checks import Checked, NonNegative, Positive
from everfed.energy.devices import DEVICES, RADIOS, Device, Radio
from everfed.energy.own_site import DEFAULT_LOSSES, DEFAULT_TILT_DEG, OwnSite
from everfed.energy.solar import SITES, power_of, weather_at
from everfed.energy.trace import Series
from everfed.energy.weather import Weather
from everfed.energy.years import joined
from everfed.errors import InputError, warn
from everfed.registry import lookup

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FLOP_HINT = "about 6 times the parameters of a dense model times batch_size"


@dataclass(frozen=True)
class OwnDevice(Checked):
    """A computer on a battery, in watts and seconds as you measured them.

    active_w: power while it trains, W. sleep_w: power while it waits for the next round, W.
    idle_w: power while it is awake without training, W (default: sleep_w): while its radio sends or listens, and while
    it boots and connects.
    awake_s: seconds that it takes to boot and connect, in every round that it takes part in.
    step_s: seconds of one local step of your model.
    flop_s: instead of step_s, floating-point operations a second that it reaches; a step then takes the fleet's
    step_flop divided by it.
    """

    active_w: NonNegative | None = None
    sleep_w: NonNegative | None = None
    idle_w: NonNegative | None = None
    awake_s: NonNegative = 0.0
    step_s: Positive | None = None
    flop_s: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _required(self, active_w="the power while it trains, in W", sleep_w="the power between rounds, in W")
        if (self.step_s is None) == (self.flop_s is None):
            how = "is missing" if self.step_s is None else "and flop_s are both given"
            raise InputError(f"step_s {how}; give the seconds of a local step, or flop_s, its operations a second.")

    def device(self, step_flop: float) -> Device:
        """step_flop: floating-point operations of one local step."""
        if self.flop_s is not None and step_flop == 0.0:
            raise InputError(
                f"it has flop_s, and the fleet's step_flop is 0; give the operations of one local step, {_FLOP_HINT}, "
                "or its step_s."
            )
        seconds = self.step_s if self.flop_s is None else step_flop / self.flop_s
        assert self.active_w is not None
        assert self.sleep_w is not None
        assert seconds is not None
        return Device(self.active_w, self.sleep_w, seconds, "your own", (), self.idle_w, self.awake_s)


@dataclass(frozen=True)
class OwnRadio(Checked):
    """A link to the server, as you measured it: joules and seconds per megabyte (10^6 bytes).

    up_j_per_mb, down_j_per_mb: joules per megabyte. wake_j: joules per connection.
    up_s_per_mb, down_s_per_mb: seconds per megabyte (default: no time).
    up_bit_s, down_bit_s: instead of that, payload bits a second.
    duty_cycle: the largest fraction of a round in which either side may transmit by law.
    """

    up_j_per_mb: NonNegative | None = None
    down_j_per_mb: NonNegative | None = None
    wake_j: NonNegative = 0.0
    up_s_per_mb: Positive | None = None
    down_s_per_mb: Positive | None = None
    up_bit_s: Positive | None = None
    down_bit_s: Positive | None = None
    duty_cycle: Annotated[float, "(0, 1]"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _required(self, up_j_per_mb="joules per megabyte sent", down_j_per_mb="joules per megabyte received")
        for way in ("up", "down"):
            if getattr(self, f"{way}_s_per_mb") is not None and getattr(self, f"{way}_bit_s") is not None:
                raise InputError(f"{way}_s_per_mb and {way}_bit_s are both given; one follows from the other.")

    def radio(self) -> Radio:
        assert self.up_j_per_mb is not None
        assert self.down_j_per_mb is not None
        up, down = (
            8e6 / seconds if seconds is not None else rate if rate is not None else math.inf
            for seconds, rate in ((self.up_s_per_mb, self.up_bit_s), (self.down_s_per_mb, self.down_bit_s))
        )
        return Radio(self.up_j_per_mb, self.down_j_per_mb, self.wake_j, up, down, self.duty_cycle, "your own")


class Catalogue(NamedTuple):
    """What groups may name: the presets, and what their fleet describes itself."""

    devices: Mapping[str, OwnDevice] = {}
    radios: Mapping[str, OwnRadio] = {}
    sites: Mapping[str, OwnSite] = {}
    step_flop: float = 0.0

    def check(self) -> None:
        """Names are keys of TOML, and mean one thing each."""
        for word, mine, presets in (
            ("device", self.devices, DEVICES), ("radio", self.radios, RADIOS), ("site", self.sites, SITES),
        ):  # fmt: skip
            for name in mine:
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    raise InputError(
                        f"the {word} {name!r} has a name of other characters than letters, digits, - and _."
                    )
                if name in presets:
                    raise InputError(f"{word}s.{name} has the name of a preset; choose another, such as my-{name}.")

    def device(self, name: str) -> Device:
        if name not in self.devices:
            return lookup({**DEVICES, **dict.fromkeys(self.devices)}, name, "device")  # type: ignore[return-value]
        try:
            return self.devices[name].device(self.step_flop)
        except InputError as error:
            raise InputError(f"devices.{name}: {error}") from None

    def radio(self, name: str) -> Radio:
        if name in self.radios:
            return self.radios[name].radio()
        return lookup({**RADIOS, **dict.fromkeys(self.radios)}, name, "radio")  # type: ignore[return-value]

    def weather(self, site: str) -> list[Weather]:
        """Of a site, year by year."""
        if site not in self.sites:
            lookup({**SITES, **dict.fromkeys(self.sites)}, site, "site")
            return [weather_at(site)]
        try:
            return self.sites[site].skies()
        except InputError as error:
            raise InputError(f"sites.{site}: {error}") from None

    def power(self, site: str, tilt: float, azimuth: float, losses: float) -> Series:
        """Of one watt-peak that is mounted so, over the years of a site's weather."""
        years = [power_of(weather, tilt, azimuth, losses) for weather in self.weather(site)]
        if len(years) == 1:
            return years[0]
        try:
            return joined(years, self.sites[site].weather_years)
        except InputError as error:
            raise InputError(f"sites.{site}: {error}") from None

    def mounting(self, site: str, tilt: float | None, azimuth: float | None, losses: float | None) -> Mounting:
        """How a group's panels are mounted: as it says, else as its site does."""
        mine, latitude = self.sites.get(site), self.weather(site)[0].latitude
        towards = 180.0 if latitude >= 0.0 else 0.0
        if mine is not None:
            tilt = mine.tilt_deg if tilt is None else tilt
            azimuth = mine.azimuth_deg if azimuth is None else azimuth
            losses = mine.losses if losses is None else losses
        return Mounting(
            DEFAULT_TILT_DEG if tilt is None else tilt, towards if azimuth is None else azimuth,
            DEFAULT_LOSSES if losses is None else losses,
        )  # fmt: skip


class Mounting(NamedTuple):
    """Degrees from the horizontal, degrees clockwise from north, and the share of the power that is lost."""

    tilt_deg: float
    azimuth_deg: float
    losses: float

    def check(self, latitude: float, label: str) -> None:
        """A panel that turns its back to the noon sun is mostly a slip of the hemisphere."""
        towards = 180.0 if latitude >= 0.0 else 0.0
        away = math.cos(math.radians(self.azimuth_deg - towards)) < -0.5
        if away and self.tilt_deg >= 10.0 and abs(latitude) >= 10.0:
            side = "north" if latitude >= 0.0 else "south"
            warn(
                f"{label}: the site lies {side} of the equator, at latitude {latitude:.1f}, and its panels face {side} "
                f"(azimuth_deg = {self.azimuth_deg:g}), away from the sun at noon; azimuth_deg = {towards:g} faces it.",
                4,
            )


BUNDLED = Catalogue()


def _required(part: Any, **meanings: str) -> None:
    for name, meaning in meanings.items():
        if getattr(part, name) is None:
            raise InputError(f"{name} is missing; give {meaning}.")
