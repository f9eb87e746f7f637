"""From physics to the paper: panels, batteries and devices in SI units, as a fleet that policies understand.

A unit of a client is what one round of training takes out of its battery. Everything the policies
see is in units; `Fleet.unit_j` says how many joules a client's unit is, and books are in joules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy import devices
from everfed.energy.battery import Storage
from everfed.energy.fleet import MAX_CYCLE, Fleet
from everfed.energy.profile import Profile
from everfed.energy.solar import from_day, site_power
from everfed.energy.trace import per_round, read_trace
from everfed.errors import InputError
from everfed.random import Purpose, uniform

_DAY_S = 86_400.0


@dataclass(frozen=True)
class DeviceGroup:
    """Devices alike: a computer, a radio, a battery, and a panel at a site or a recorded trace.

    count: how many. name: how tables call them (default: the device and its site).
    site: a typical year that pvlib knows, panel_wp: size of the panel, Wp; or trace: a file of power
    or energy, scaled by panel_wp (1 for a trace of the device's own supply).
    battery_wh: capacity, Wh, of which the part `cutoff` cannot be used. start: how full it is at first.
    charging, discharging: efficiencies. leak_per_day: the part of its charge lost in a day.
    spread: relative standard deviation of the supply from device to device (dirt, shade, age).
    step_s: seconds of one local step of your model (0: the preset's guess).
    switched_off: a timer cuts the device's power between its rounds, so that it draws nothing then.
    """

    count: int = 10
    name: str = ""
    device: str = "raspberry-pi-zero-2w"
    radio: str = "wifi"
    site: str = "greensboro"
    trace: str = ""
    panel_wp: float = 10.0
    tilt_deg: float = 30.0
    azimuth_deg: float = 180.0
    losses: float = 0.14
    battery_wh: float = 20.0
    charging: float = 0.9
    discharging: float = 0.95
    cutoff: float = 0.1
    start: float = 0.5
    leak_per_day: float = 0.001
    spread: float = 0.0
    step_s: float = 0.0
    switched_off: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"count is {self.count}; a group has at least one device.")
        for name, low, high in (
            ("panel_wp", 0.0, math.inf), ("battery_wh", 0.0, math.inf), ("charging", 0.0, 1.0),
            ("discharging", 0.0, 1.0), ("cutoff", 0.0, 1.0), ("start", 0.0, 1.0), ("leak_per_day", 0.0, 1.0),
            ("spread", 0.0, 0.5), ("step_s", 0.0, math.inf),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                most = f"from {low:g} to {high:g}" if math.isfinite(high) else "a positive number"
                raise InputError(f"{name} is {value}; it must be {most}.")
        if self.panel_wp == 0.0:
            raise InputError("panel_wp is 0.0; a device without a panel could never train.")
        devices.device(self.device)
        devices.radio(self.radio)

    @property
    def label(self) -> str:
        return self.name or f"{self.device} @ {self.trace or self.site}"

    @property
    def computer(self) -> devices.Device:
        preset = devices.device(self.device)
        return devices.Device(
            preset.active_w, 0.0 if self.switched_off else preset.sleep_w, self.step_s or preset.step_s
        )

    def supply_j(self, round_s: float, start_day: str) -> Floats:
        """Joules that one watt-peak (or the trace as it is) gives in each round of a year (or of the trace)."""
        if self.trace:
            return per_round(read_trace(self.trace), round_s)
        year = site_power(self.site, tilt_deg=self.tilt_deg, azimuth_deg=self.azimuth_deg, losses=self.losses)
        return per_round(from_day(year, start_day), round_s)


class Encoding(Protocol):
    """How devices write their updates: what energy needs to know of it."""

    def choices(self) -> tuple[int, ...]:
        """Bits a number among which a device may choose."""
        ...

    def sent(self, bits: int) -> float:
        """The size of a message, as a part of the model's."""
        ...

    def noise(self, bits: int) -> float:
        """Its variance over the squared length of the update, at most."""
        ...


@dataclass(frozen=True)
class Assumptions:
    """What a group's cycles follow from, per round and at the battery's terminals, J."""

    label: str
    count: int
    cost_j: float
    supply_j: float  # what arrives in the battery, on average
    standby_j: float
    battery_rounds: float  # rounds of training that a full battery holds
    cycles: tuple[int, int]
    bits: tuple[int, int] | None  # a number of what they send, where they chose


@dataclass(frozen=True)
class DeviceFleet:
    """Groups of real devices. A round lasts round_s seconds; the first one begins at midnight of start_day.

    model_mb: what is sent and fetched, 10^6 bytes: 4 for every million parameters in float32.
    downloads: whether who takes part must fetch the model first.
    cost_spread: relative standard deviation of what a round costs; rounds too dear are lost.
    """

    energy_unit: ClassVar[str] = "J"
    groups: tuple[DeviceGroup, ...] = (DeviceGroup(),)
    round_s: float = 3600.0
    start_day: str = "01-01"
    model_mb: float = 0.02
    downloads: bool = True
    cost_spread: float = 0.0

    def __post_init__(self) -> None:
        if not (self.round_s > 0.0 and math.isfinite(self.round_s)):
            raise InputError(f"round_s is {self.round_s}; a round lasts a positive number of seconds.")
        if not self.groups:
            raise InputError("groups is empty; a fleet needs at least one group of devices.")

    def build(self, local_steps: int = 5, encoding: Encoding | None = None) -> Fleet:
        """The fleet, or an error that names the device whose energy cannot do.

        encoding: how updates are sent (default: as they are). Where it leaves devices a choice, each
        takes the bits with the least cycle * (1 + noise), and among equals the most.
        """
        supplies = [g.supply_j(self.round_s, self.start_day) for g in self.groups]
        rounds = min(len(s) for s in supplies)
        table = np.stack([s[:rounds] for s in supplies])
        which = np.repeat(np.arange(len(self.groups)), [g.count for g in self.groups])
        panel = np.array([g.panel_wp for g in self.groups])[which] * self._spread(which)
        charging = np.array([g.charging for g in self.groups])[which]
        leak = np.array([1.0 - (1.0 - g.leak_per_day) ** (self.round_s / _DAY_S) for g in self.groups])[which]
        offered = sorted(encoding.choices(), reverse=True) if encoding else [0]
        options = []
        for bits in offered:
            part = encoding.sent(bits) if encoding else 1.0
            sized = [self._group(g, local_steps, part) for g in self.groups]
            unit_j, capacity, standby, start = (np.array([s[i] for s in sized])[which] for i in range(4))
            net = table.mean(axis=1)[which] * panel / unit_j * charging - standby
            self._check_net(net, which, panel, table)
            cycles = np.clip(np.ceil((1.0 - 1e-12) / net), 1, MAX_CYCLE)
            options.append((unit_j, capacity, standby, start, cycles))
        worth = np.array([1.0 + encoding.noise(b) for b in offered]) if encoding else np.ones(1)
        taken = np.argmin(worth[:, None] * np.stack([o[4] for o in options]), axis=0)
        unit_j, capacity, standby, start, cycles = (
            np.stack([o[i] for o in options])[taken, np.arange(len(which))] for i in range(5)
        )
        profile = Profile(table, which, panel / unit_j, np.zeros(len(which), np.int64))
        storage = Storage(charging, leak, standby, start, self.cost_spread, browns_out=True)
        labels = tuple(g.label for g in self.groups)
        bits_of = np.array(offered)[taken] if encoding else None
        return Fleet(profile.with_cycles(cycles.astype(np.int64)), capacity, storage, unit_j, labels, which, bits_of)

    def assumptions(self, local_steps: int = 5, encoding: Encoding | None = None) -> list[Assumptions]:
        """One row a group, in the order given."""
        fleet, found = self.build(local_steps, encoding), []
        assert fleet.unit_j is not None
        profile, storage = fleet.arrivals, fleet.storage
        assert isinstance(profile, Profile)
        means = profile.table.mean(axis=1)[profile.site] * profile.gain * storage.charging * fleet.unit_j
        for number, g in enumerate(self.groups):
            mine = np.flatnonzero(fleet.group_of == number)
            cycles, first = fleet.cycles()[mine], mine[0]
            chosen = None if fleet.message_bits is None else fleet.message_bits[mine]
            bits = None if chosen is None else (int(chosen.min()), int(chosen.max()))
            standby_j = float(np.broadcast_to(storage.standby, len(fleet))[first] * fleet.unit_j[first])
            found.append(
                Assumptions(
                    g.label, g.count, float(fleet.unit_j[first]), float(means[mine].mean()), standby_j,
                    float(fleet.capacity[first]), (int(cycles.min()), int(cycles.max())), bits,
                )
            )  # fmt: skip
        return found

    def _group(self, g: DeviceGroup, local_steps: int, sent: float) -> tuple[float, float, float, float]:
        """(joules of a unit in the battery, units it holds, units drawn asleep a round, units at first).

        sent: size of an update on its way up, as a part of the model's.
        """
        computer = g.computer
        cost_j = devices.round_cost_j(
            computer, devices.radio(g.radio), local_steps=local_steps, model_mb=self.model_mb,
            downloads=self.downloads, round_s=self.round_s, sent=sent,
        )  # fmt: skip
        if cost_j == 0.0 or g.discharging == 0.0:
            raise InputError(f"{g.label}: a round costs nothing, or the battery gives nothing; check its figures.")
        unit_j = cost_j / g.discharging
        usable_j = g.battery_wh * 3600.0 * (1.0 - g.cutoff)
        if usable_j < unit_j:
            raise InputError(
                f"{g.label}: a round costs {unit_j:.3g} J and the battery can give {usable_j:.3g} J "
                f"({g.battery_wh:g} Wh above a cut-off of {g.cutoff:.0%}); give a larger battery or cheaper rounds."
            )
        standby_j = computer.sleep_w * self.round_s / g.discharging
        held_j = max(g.start - g.cutoff, 0.0) * g.battery_wh * 3600.0
        return unit_j, usable_j / unit_j, standby_j / unit_j, held_j / unit_j

    def _spread(self, which: Ints) -> Floats:
        """Each device's own factor, the same in every run: which of them is shaded is no chance of a seed."""
        spread = np.array([g.spread for g in self.groups])[which]
        factor: Floats = 1.0 + spread * math.sqrt(12.0) * (uniform(0, Purpose.SUPPLY, np.arange(len(which)), 0) - 0.5)
        return factor

    def _check_net(self, net: Floats, which: Ints, panel: Floats, table: Floats) -> None:
        bad = np.flatnonzero(net <= 0.0)
        if len(bad) == 0:
            return
        g = self.groups[which[bad[0]]]
        given_w = table[which[bad[0]]].mean() * panel[bad[0]] * g.charging * g.discharging / self.round_s
        drawn_w = g.computer.sleep_w
        raise InputError(
            f"{g.label}: device {bad[0]} is given {given_w:.3g} W on average and draws {drawn_w:.3g} W asleep, so that "
            "it could never train; give it a larger panel or a device that sleeps deeper."
        )
