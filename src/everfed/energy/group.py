"""Groups of identical devices and their supply: the sun at a site, or a recorded trace."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from everfed.arrays import Floats
from everfed.checks import Checked, Count, Fraction, NonNegative
from everfed.energy import devices
from everfed.energy.solar import SITES, month_and_day, site_power
from everfed.energy.trace import Series, per_round_repeated, read_content, read_trace
from everfed.errors import InputError, warn
from everfed.registry import lookup

Hours = Annotated[float, "[-14, 14]"]  # that a clock is ahead of UTC
DAY_S = 86_400.0
DEFAULT_PANEL_WP = 10.0
DEFAULT_SITE = "greensboro"
# How a trace continues after its end; see docs/energy.md.
EXTENDS = ("repeat", "whole-days", "wrap", "refuse")
_SUN_ONLY = {"site": "", "panel_wp": None, "tilt_deg": 30.0, "azimuth_deg": 180.0, "losses": 0.14}
_TRACE_ONLY = {
    "column": "", "time_column": "", "unit": "", "time_unit": "", "trace_utc_h": None, "trace_scale": 1.0,
    "extend": "repeat", "trace_sha256": "",
}  # fmt: skip


class Clock(NamedTuple):
    """The start of round 0: midnight of a day, on a clock utc_h hours ahead of UTC."""

    round_s: float
    start_day: str = "01-01"
    utc_h: float = 0.0


class Supply(NamedTuple):
    """joules: of one watt-peak, or of the trace as it is, in each round. repeats: without end, or not known after.
    told: where they come from, in words."""

    joules: Floats
    repeats: bool
    told: str


@dataclass(frozen=True)
class DeviceGroup(Checked):
    """Identical devices: a computer, a radio, a battery, and a panel at a site or a recorded trace.

    count: their number. name: their name in tables (default: the device and its site).

    From the sun: site, a typical year that pvlib knows (greensboro unless given); panel_wp, the size of
    the panel, Wp (10 unless given); tilt_deg, azimuth_deg and losses of the panel.
    From a file: trace, its path; trace_scale multiplies its values.
    column, time_column, unit, time_unit: as in read_trace, if the file's headers are not enough.
    trace_utc_h: hours that its clock is ahead of UTC, for dates without an offset. extend: how it continues after its
    end. trace_sha256: its hash, set when a run is stored.

    battery_wh: capacity, Wh, of which the fraction `cutoff` cannot be used. start: initial charge, as a fraction.
    charging, discharging: efficiencies. leak_per_day: the fraction of its charge lost per day.
    spread: relative standard deviation of the supply from device to device (dirt, shade, age).
    step_s: seconds of one local step of your model (0: the preset's guess).
    switched_off: whether a timer turns the device off between its rounds, so that it draws no power.
    """

    count: Count = 10
    name: str = ""
    device: str = "raspberry-pi-zero-2w"
    radio: str = "wifi"
    site: str = ""
    panel_wp: NonNegative | None = None
    tilt_deg: Annotated[float, "[0, 90]"] = 30.0
    azimuth_deg: Annotated[float, "[0, 360]"] = 180.0
    losses: Fraction = 0.14
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_supply()
        devices.device(self.device)
        devices.radio(self.radio)

    def _check_supply(self) -> None:
        for name, default in (_SUN_ONLY if self.trace else _TRACE_ONLY).items():
            value: Any = getattr(self, name)
            if value != default and self.trace:
                hint = " To scale the trace, set trace_scale." if name == "panel_wp" else ""
                raise InputError(
                    f"{name} is {value}, and the supply is the trace {Path(self.trace).name}; {name} applies to solar "
                    f"panels.{hint} Remove one of them."
                )
            if value != default:
                raise InputError(f"{name} is {value!r}, and there is no trace; {name} applies to traces. Remove it.")
        if self.trace:
            if self.trace_scale == 0.0:
                raise InputError("trace_scale is 0.0; a device without energy could never train.")
            object.__setattr__(self, "trace", str(Path(self.trace).absolute()))
            return
        object.__setattr__(self, "site", self.site or DEFAULT_SITE)
        lookup(SITES, self.site, "site")
        if self.panel_wp is None:
            object.__setattr__(self, "panel_wp", DEFAULT_PANEL_WP)
        if self.panel_wp == 0.0:
            raise InputError("panel_wp is 0.0; a device without a panel could never train.")

    @property
    def label(self) -> str:
        return self.name or f"{self.device} @ {Path(self.trace).name if self.trace else self.site}"

    @property
    def gain(self) -> float:
        """What the supply of one watt-peak, or of the trace, is multiplied by."""
        return self.trace_scale if self.trace else self.panel_wp or DEFAULT_PANEL_WP

    @property
    def computer(self) -> devices.Device:
        preset = devices.device(self.device)
        mine = {name for name, given in (("sleep_w", self.switched_off), ("step_s", self.step_s)) if given}
        return replace(
            preset,
            sleep_w=0.0 if self.switched_off else preset.sleep_w,
            step_s=self.step_s or preset.step_s,
            guessed=tuple(name for name in preset.guessed if name not in mine),
        )

    @property
    def guesses(self) -> tuple[str, ...]:
        """Values without a published source that the user did not set."""
        found = [f"{self.device} {name}" for name in self.computer.guessed]
        return (*found, *(f"{self.radio} {name}" for name in devices.radio(self.radio).guessed))

    def pinned(self) -> DeviceGroup:
        """The same, tied to the content that its trace has now; a trace tied before is left as it is."""
        if not self.trace or self.trace_sha256:
            return self
        return replace(self, trace_sha256=hashlib.sha256(read_content(Path(self.trace))).hexdigest())

    def supply(self, clock: Clock) -> Supply:
        """What one watt-peak (or the trace as it is) gives round by round."""
        if self.trace:
            return self._recorded(clock)
        year = site_power(self.site, tilt_deg=self.tilt_deg, azimuth_deg=self.azimuth_deg, losses=self.losses)
        joules = per_round_repeated(year, clock.round_s, _begins_s(year, clock, self.label))
        return Supply(joules, True, f"a typical year at {self.site} (UTC{year.utc_h:+g} h), repeated every 365 days")

    def _recorded(self, clock: Clock) -> Supply:
        series = read_trace(
            self.trace, self.column or None, time_column=self.time_column or None, unit=self.unit or None,
            time_unit=self.time_unit or None, utc_h=self.trace_utc_h, sha256=self.trace_sha256 or None,
        )  # fmt: skip
        if self.extend == "whole-days":
            series = _whole_days(series, self.label)
        elif self.extend == "repeat":
            _check_days(series, self.label)
        begins_s = _begins_s(series, clock, self.label)
        told = f"{Path(self.trace).name}, {_length(series.duration_s)}{_dated(series)}"
        if begins_s:
            told += f", entered {_length(begins_s)} after its start"
        joules = per_round_repeated(series, clock.round_s, begins_s)
        if self.extend != "refuse":
            return Supply(joules, True, f"{told}, repeated from its start")
        whole = int((series.duration_s - begins_s) / clock.round_s * (1.0 + 1e-12))
        if whole == 0:
            raise InputError(
                f"{self.label}: a round of {clock.round_s:g} s is longer than the part of the trace within the run, "
                f"{_length(series.duration_s - begins_s)}; give a longer trace, or an extend other than refuse."
            )
        return Supply(joules[:whole], False, f"{told}, unknown after its end")


def _begins_s(series: Series, clock: Clock, label: str) -> float:
    """Seconds into the series at which round 0 begins.

    A series that is dated and covers the first day begins there; any other dated one, at its first
    midnight; one without a date or a zone, at its start.
    """
    month, day = month_and_day(clock.start_day)
    if series.start_s is None or series.utc_h is None:
        return 0.0
    # By the clock of the fleet.
    start = series.start_s + (clock.utc_h - series.utc_h) * 3600.0
    first_year, last_year = (datetime.fromtimestamp(t, UTC).year for t in (start, start + series.duration_s))
    for year in range(first_year, last_year + 1):
        after = datetime(year, month, day, tzinfo=UTC).timestamp() - start
        if 0.0 <= after < series.duration_s:
            return after
    after = math.ceil(start / DAY_S) * DAY_S - start
    if after >= series.duration_s:
        raise InputError(
            f"{label}: the trace of {_length(series.duration_s)} contains no midnight, at which round 0 begins; give "
            "one "
            "of whole days, or seconds from 0 in place of dates, which begin with round 0."
        )
    return after


def _check_days(series: Series, label: str) -> None:
    """What is repeated must bring noon to noon, where it says when noon is."""
    days = series.duration_s / DAY_S
    if days > 0.5 and math.isclose(days, round(days), rel_tol=1e-9):
        return
    said = f"{label}: the trace lasts {_length(series.duration_s)}; repeated as it is, noon would drift through the day"
    if series.start_s is not None:
        raise InputError(
            f'{said}. Say extend = "whole-days" to leave the rest of a day out, "wrap" if there is no daily rhythm in '
            'it, or "refuse" if it is as long as the run.'
        )
    if series.duration_s > DAY_S:
        warn(f"{said}, if it has one.")


def _whole_days(series: Series, label: str) -> Series:
    """As many whole days from its start as its steps can fill."""
    for days in range(int(series.duration_s / DAY_S * (1.0 + 1e-9)), 0, -1):
        steps = days * DAY_S / series.step_s
        if math.isclose(steps, round(steps), rel_tol=1e-9):
            kept = round(steps)
            return replace(series, seconds=series.seconds[:kept], power_w=series.power_w[:kept])
    raise InputError(
        f"{label}: the trace lasts {_length(series.duration_s)} in steps of {series.step_s:g} s, which fill no whole "
        'number of days; give a longer one, or say extend = "wrap" if there is no daily rhythm in it.'
    )


def _length(seconds: float) -> str:
    for unit, length in (("days", DAY_S), ("h", 3600.0)):
        if seconds >= length:
            return f"{seconds / length:.6g} {unit}"
    return f"{seconds:.6g} s"


def _dated(series: Series) -> str:
    if series.start_s is None:
        return ", without dates: it starts with round 0"
    when = datetime.fromtimestamp(series.start_s, UTC).strftime("%Y-%m-%d %H:%M")
    if series.utc_h is None:
        return f" from {when} of an unknown time zone: it starts with round 0"
    return f" from {when} UTC" + (f"{series.utc_h:+g} h" if series.utc_h else "")
