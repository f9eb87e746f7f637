"""Fleets of devices: panels, batteries and computers in SI units, converted to units and cycles.

A client's unit is the energy that one round of training takes from its battery. Policies see units; `Fleet.unit_j`
converts them to joules, the unit of the energy accounts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import BelowOne, Checked, NonNegative, Positive
from everfed.energy import devices
from everfed.energy.battery import Storage
from everfed.energy.fleet import MAX_CYCLE, MOST_HARVESTED, Fleet, check_clients
from everfed.energy.group import DAY_S, Clock, DeviceGroup, Hours, Supply
from everfed.energy.profile import Profile
from everfed.energy.work import Pace
from everfed.errors import InputError
from everfed.random import Purpose, uniform

__all__ = ["Assumptions", "DeviceFleet", "DeviceGroup", "Encoding"]


class Encoding(Protocol):
    """What energy needs to know of how devices write their updates; `learning.compress` says how they do."""

    def choices(self) -> tuple[int, ...]:
        """Bits a number among which each device takes what suits its energy; one: no choice."""
        ...

    def size_ratio(self, bits: int) -> float:
        """The size of a message, as a part of the uncompressed one."""
        ...

    def noise(self, bits: int) -> float:
        """Its variance over the squared length of the update, at most."""
        ...


@dataclass(frozen=True)
class Assumptions:
    """The values that determine a group's cycles, per round and at the battery's terminals, J."""

    label: str
    count: int
    cost_j: float
    supply_j: float  # what arrives in the battery, on average
    standby_j: float
    battery_rounds: float  # rounds of training that a full battery holds
    cycles: tuple[int, int]
    bits: tuple[int, int] | None  # a number of what they send, where they chose
    train_s: float  # seconds of a round that a participant computes
    air_s: float  # seconds of it that its radio sends or listens
    source: str  # where the energy comes from, and how it goes on
    guesses: tuple[str, ...]  # values of the presets without a published source

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DeviceFleet(Checked):
    """Groups of devices. A round lasts round_s seconds; all devices have the same rounds.

    The first round begins at midnight of start_day on a clock utc_h hours ahead of UTC (default 0).
    model_mb: size of the model in 10^6 bytes: 4 per million parameters in float32.
    downloads: whether participants download the model first.
    cost_spread: relative standard deviation of a round's cost; rounds that cost more than the battery holds are lost.
    """

    energy_unit: ClassVar[str] = "J"
    groups: tuple[DeviceGroup, ...] = (DeviceGroup(),)
    round_s: Positive = 3600.0
    start_day: str = "01-01"
    utc_h: Hours = 0.0
    model_mb: NonNegative = 0.02
    downloads: bool = True
    cost_spread: BelowOne = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups:
            raise InputError("groups is empty; a fleet needs at least one group of devices.")

    @property
    def labels(self) -> tuple[str, ...]:
        """The groups' names; where several have one name, the later ones are numbered."""
        taken: list[str] = []
        for g in self.groups:
            label, number = g.label, 2
            while label in taken or (label != g.label and label in (other.label for other in self.groups)):
                label, number = f"{g.label} ({number})", number + 1
            taken.append(label)
        return tuple(taken)

    def pinned(self) -> DeviceFleet:
        """The same, tied to the content that its traces have now."""
        return replace(self, groups=tuple(g.pinned() for g in self.groups))

    def with_files(self, place: Callable[[str, str], str]) -> DeviceFleet:
        """The same with its traces elsewhere: place(path, sha256) says where."""
        moved = (replace(g, trace=place(g.trace, g.trace_sha256)) if g.trace else g for g in self.groups)
        return replace(self, groups=tuple(moved))

    def build(self, local_steps: int = 5, encoding: Encoding | None = None) -> Fleet:
        """The fleet, or an error that names the device with too little energy.

        encoding: how updates are sent (default: as they are). Where it leaves devices a choice, each
        takes the bits with the least cycle * (1 + noise), and among equals the most.
        """
        check_clients(sum(g.count for g in self.groups))
        supplies = self._supplies()
        which = np.repeat(np.arange(len(self.groups)), [g.count for g in self.groups])
        means = np.array([s.joules.mean() for s in supplies])
        gain = np.array([g.gain for g in self.groups])[which] * self._spread()
        charging = np.array([g.charging for g in self.groups])[which]
        leak = np.array([1.0 - (1.0 - g.leak_per_day) ** (self.round_s / DAY_S) for g in self.groups])[which]
        offered = sorted(encoding.choices(), reverse=True) if encoding else [0]
        options = []
        for bits in offered:
            sized = [self._group(g, local_steps, encoding.size_ratio(bits) if encoding else 1.0) for g in self.groups]
            # What one group cannot send or pay for in a round is no choice of its; the fewest bits must do.
            if bits == offered[-1]:
                for found in sized:
                    if isinstance(found, InputError):
                        raise found
            numbers = [(math.nan,) * 4 if isinstance(found, InputError) else found for found in sized]
            unit_j, capacity, standby, start = np.array(numbers).T[:, which]
            net = means[which] * gain / unit_j * charging - standby
            self._check_net(net, which, gain, means)
            cycles = np.where(np.isnan(net), np.inf, np.clip(np.ceil((1.0 - 1e-12) / net), 1, MAX_CYCLE))
            options.append((unit_j, capacity, standby, start, cycles))
        worth = np.array([1.0 + encoding.noise(b) for b in offered]) if encoding else np.ones(1)
        taken = np.argmin(worth[:, None] * np.stack([o[4] for o in options]), axis=0)
        unit_j, capacity, standby, start, cycles = (
            np.stack([o[i] for o in options])[taken, np.arange(len(which))] for i in range(5)
        )
        most = np.array([s.joules.max() for s in supplies])[which] * gain / unit_j
        if not np.all(most <= MOST_HARVESTED):
            over = int(np.argmax(~(most <= MOST_HARVESTED)))
            raise InputError(
                f"{self.groups[which[over]].label}: device {over} gets up to {most[over]:.3g} times the energy of a "
                f"round in one round, and at most {MOST_HARVESTED:g} times can be counted; give it a smaller supply."
            )
        repeats = [s.repeats for s in supplies]
        profile = Profile(
            [s.joules for s in supplies], which, gain / unit_j, np.zeros(len(which), np.int64), repeats,
            cycles.astype(np.int64),
        )  # fmt: skip
        storage = Storage(charging, leak, standby, start, self.cost_spread, browns_out=True)
        bits_of = np.array(offered)[taken] if encoding else None
        return Fleet(profile, capacity, storage, unit_j, self.labels, which, bits_of)

    def pace(self, local_steps: int, encoding: Encoding | None, fleet: Fleet) -> Pace:
        """How long the devices' work takes, and what part of its energy goes to the radio. fleet: as built."""
        assert fleet.group_of is not None
        bits = np.zeros(len(fleet), np.int64) if fleet.message_bits is None else fleet.message_bits
        kinds, which = np.unique(np.stack([fleet.group_of, bits]), axis=1, return_inverse=True)
        found = []
        for number, chosen in kinds.T.tolist():
            g = self.groups[number]
            cost = self._cost(g, local_steps, encoding.size_ratio(chosen) if encoding else 1.0)
            computing = cost.train_s * max(g.computer.active_w - g.computer.sleep_w, 0.0)
            air = (cost.up_s + cost.down_s) / self.round_s
            found.append((cost.train_s / self.round_s, air, 1.0 - computing / cost.joules))
        train, air_part, radio = np.array(found).T[:, which.reshape(-1)]
        return Pace(train, air_part, np.clip(radio, 0.0, 1.0 - 1e-9))

    def assumptions(self, local_steps: int = 5, encoding: Encoding | None = None) -> list[Assumptions]:
        """One row per group, in the order given."""
        fleet, found = self.build(local_steps, encoding), []
        assert fleet.unit_j is not None
        profile, storage = fleet.arrivals, fleet.storage
        assert isinstance(profile, Profile)
        means = profile.site_means[profile.site] * profile.gain * storage.charging * fleet.unit_j
        for number, (g, supply) in enumerate(zip(self.groups, self._supplies(), strict=True)):
            mine = np.flatnonzero(fleet.group_of == number)
            cycles, first = fleet.cycles()[mine], mine[0]
            chosen = None if fleet.message_bits is None else fleet.message_bits[mine]
            bits = None if chosen is None else (int(chosen.min()), int(chosen.max()))
            standby_j = float(np.broadcast_to(storage.standby, len(fleet))[first] * fleet.unit_j[first])
            cost = self._cost(
                g, local_steps, encoding.size_ratio(int(chosen[0])) if encoding and chosen is not None else 1.0
            )
            found.append(
                Assumptions(
                    self.labels[number], g.count, float(fleet.unit_j[first]), float(means[mine].mean()), standby_j,
                    float(fleet.capacity[first]), (int(cycles.min()), int(cycles.max())), bits,
                    cost.train_s, cost.up_s + cost.down_s, supply.told, g.guesses,
                )
            )  # fmt: skip
        return found

    def _supplies(self) -> list[Supply]:
        clock = Clock(self.round_s, self.start_day, self.utc_h)
        return [g.supply(clock) for g in self.groups]

    def _cost(self, g: DeviceGroup, local_steps: int, sent: float) -> devices.RoundCost:
        """sent: size of an update on its way up, as a part of the model's."""
        try:
            return devices.round_cost(
                g.computer, devices.radio(g.radio), local_steps=local_steps, model_mb=self.model_mb,
                downloads=self.downloads, round_s=self.round_s, sent=sent,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{g.label}: {error}") from None

    def _group(self, g: DeviceGroup, local_steps: int, sent: float) -> tuple[float, float, float, float] | InputError:
        """(joules of a unit in the battery, units it holds, units drawn asleep a round, units at first).

        An error, not raised: the round does not fit into its length, or into the battery.
        """
        try:
            cost_j = self._cost(g, local_steps, sent).joules
        except InputError as error:
            return error
        if cost_j == 0.0 or g.discharging == 0.0:
            raise InputError(f"{g.label}: the cost of a round or the usable battery is zero; check its values.")
        unit_j = cost_j / g.discharging
        usable_j = g.battery_wh * 3600.0 * (1.0 - g.cutoff)
        if usable_j < unit_j:
            return InputError(
                f"{g.label}: a round costs {unit_j:.3g} J and the battery can give {usable_j:.3g} J "
                f"({g.battery_wh:g} Wh above a cut-off of {g.cutoff:.0%}); give a larger battery or cheaper rounds."
            )
        standby_j = g.computer.sleep_w * self.round_s / g.discharging
        held_j = max(g.start - g.cutoff, 0.0) * g.battery_wh * 3600.0
        return unit_j, usable_j / unit_j, standby_j / unit_j, held_j / unit_j

    def _spread(self) -> Floats:
        """Each device's own factor, the same in every run: which of them is shaded is no chance of a seed.

        It follows from the group's name and the device's place in the group, whatever other groups there are.
        """
        parts = []
        for g, label in zip(self.groups, self.labels, strict=True):
            drawn = uniform(0, Purpose.SUPPLY, np.arange(g.count), zlib.crc32(label.encode()))
            parts.append(1.0 + g.spread * math.sqrt(12.0) * (drawn - 0.5))
        return np.concatenate(parts)

    def _check_net(self, net: Floats, which: Ints, gain: Floats, means: Floats) -> None:
        bad = np.flatnonzero(net <= 0.0)
        if len(bad) == 0:
            return
        g = self.groups[which[bad[0]]]
        given_w = means[which[bad[0]]] * gain[bad[0]] * g.charging * g.discharging / self.round_s
        drawn_w = g.computer.sleep_w
        raise InputError(
            f"{g.label}: device {bad[0]} harvests {given_w:.3g} W on average and draws {drawn_w:.3g} W asleep, so it "
            "could never train; give it a larger supply or a device with less sleep power."
        )
