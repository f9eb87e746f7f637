"""Fleets of devices: panels, batteries and computers in SI units, converted to units and cycles.

A client's unit is the energy that one round of training takes from its battery. Policies see units; `Fleet.unit_j`
converts them to joules, the unit of the energy accounts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import BelowOne, Checked, NonNegative, Positive
from everfed.energy.battery import Storage
from everfed.energy.devices import RoundCost, round_cost
from everfed.energy.fleet import MAX_CYCLE, MOST_HARVESTED, Fleet, check_clients
from everfed.energy.group import DeviceGroup
from everfed.energy.own import Catalogue, OwnDevice, OwnRadio
from everfed.energy.own_site import Hours, OwnSite
from everfed.energy.profile import Profile
from everfed.energy.supply import DAY_S, Clock, Supply
from everfed.energy.work import Pace
from everfed.errors import InputError
from everfed.units import energy, power, watt_hours

__all__ = ["Assumptions", "DeviceFleet", "DeviceGroup", "Encoding", "Link", "OwnDevice", "OwnRadio", "OwnSite"]


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
class Link:
    """An encoding of updates, `up`, beside a model that is smaller on its way down: `received` of its size."""

    up: Encoding
    received: float = 1.0

    def choices(self) -> tuple[int, ...]:
        return self.up.choices()

    def size_ratio(self, bits: int) -> float:
        return self.up.size_ratio(bits)

    def noise(self, bits: int) -> float:
        return self.up.noise(bits)


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
    busy_s: float  # seconds of it that it is awake: both, and awake_s
    source: str  # where the energy comes from, and how it goes on
    guesses: tuple[str, ...]  # values of the presets without a published source

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DeviceFleet(Checked):
    """Groups of devices. All devices have the same rounds.

    groups: a list of groups of identical devices.
    round_s: the length of a round, s.
    start_day: the day, MM-DD, at whose midnight the first round begins.
    utc_h: hours by which that midnight's clock is ahead of UTC.
    model_mb: size of the model in 10^6 bytes: 4 per million parameters in float32.
    downloads: whether participants download the model first.
    cost_spread: relative standard deviation of a round's cost; rounds that cost more than the battery holds are lost.
    devices, radios, sites: your own, by the names that groups call them.
    step_flop: floating-point operations of one local step, for devices with flop_s: about 6 times the parameters of a
    dense model times batch_size.
    """

    energy_unit: ClassVar[str] = "J"
    groups: tuple[DeviceGroup, ...] = (DeviceGroup(),)
    round_s: Positive = 3600.0
    start_day: str = "01-01"
    utc_h: Hours = 0.0
    model_mb: NonNegative = 0.02
    downloads: bool = True
    cost_spread: BelowOne = 0.0
    devices: dict[str, OwnDevice] = field(default_factory=dict, hash=False, metadata={"left_out": True})
    radios: dict[str, OwnRadio] = field(default_factory=dict, hash=False, metadata={"left_out": True})
    sites: dict[str, OwnSite] = field(default_factory=dict, hash=False, metadata={"left_out": True})
    step_flop: NonNegative = field(default=0.0, metadata={"left_out": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups:
            raise InputError("groups is empty; a fleet needs at least one group of devices.")
        own = Catalogue(self.devices, self.radios, self.sites, self.step_flop)
        own.check()
        object.__setattr__(self, "groups", tuple(self._known(number, g, own) for number, g in enumerate(self.groups)))

    def _known(self, number: int, g: DeviceGroup, own: Catalogue) -> DeviceGroup:
        """The group, once everything that it names is known."""
        try:
            return g.of(own)
        except InputError as error:
            raise InputError(f"groups[{number}]{f' ({g.name})' * bool(g.name)}: {error}") from None

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
        """The same, tied to the content that its traces and weather files have now."""
        sites = {name: site.pinned() for name, site in self.sites.items()}
        return replace(self, groups=tuple(g.pinned() for g in self.groups), sites=sites)

    def with_files(self, place: Callable[[str, str], str]) -> DeviceFleet:
        """The same with its traces and weather files elsewhere: place(path, sha256) says where."""
        moved = (replace(g, trace=place(g.trace, g.trace_sha256)) if g.trace else g for g in self.groups)
        sites = {name: site.with_files(place) for name, site in self.sites.items()}
        return replace(self, groups=tuple(moved), sites=sites)

    def build(self, local_steps: int = 5, encoding: Encoding | None = None) -> Fleet:
        """The fleet, or an error that names the device with too little energy.

        encoding: how updates are sent (default: as they are). Where it leaves devices a choice, each
        takes the bits with the least cycle * (1 + noise), and among equals the most.
        """
        check_clients(sum(g.count for g in self.groups))
        supplies = self.supplies()
        which = np.repeat(np.arange(len(self.groups)), [g.count for g in self.groups])
        rows, repeats, row_of = self._rows(supplies)
        means = np.array([row.mean() for row in rows])[row_of]
        supply_factors, battery_factors = self._factors()
        gain = np.array([g.gain for g in self.groups])[which] * supply_factors
        charging = np.array([g.charging for g in self.groups])[which]
        leak = np.array([1.0 - (1.0 - g.leak_per_day) ** (self.round_s / DAY_S) for g in self.groups])[which]
        offered = sorted(encoding.choices(), reverse=True) if encoding else [0]
        options = []
        for bits in offered:
            sized = [self._group(g, local_steps, *message_sizes(encoding, bits)) for g in self.groups]
            # What one group cannot send or pay for in a round is no choice of its; the fewest bits must do.
            if bits == offered[-1]:
                for found in sized:
                    if isinstance(found, InputError):
                        raise found
            numbers = [(math.nan,) * 4 if isinstance(found, InputError) else found for found in sized]
            unit_j, capacity, standby, start = np.array(numbers).T[:, which]
            capacity, start = capacity * battery_factors, start * battery_factors
            if bits == offered[-1]:
                self._check_aged(capacity, which)
            net = means * gain / unit_j * charging - standby
            cycles = self._cycles(net, which, gain, means)
            options.append((unit_j, capacity, standby, start, cycles))
        worth = np.array([1.0 + encoding.noise(b) for b in offered]) if encoding else np.ones(1)
        taken = np.argmin(worth[:, None] * np.stack([o[4] for o in options]), axis=0)
        unit_j, capacity, standby, start, cycles = (
            np.stack([o[i] for o in options])[taken, np.arange(len(which))] for i in range(5)
        )
        most = np.array([row.max() for row in rows])[row_of] * gain / unit_j
        if not np.all(most <= MOST_HARVESTED):
            over = int(np.argmax(~(most <= MOST_HARVESTED)))
            raise InputError(
                f"{self._device(which, over)} gets up to {most[over]:.3g} times the energy of a "
                f"round in one round, and at most {MOST_HARVESTED:g} times can be counted; give it a smaller supply."
            )
        profile = Profile(rows, row_of, gain / unit_j, np.zeros(len(which), np.int64), repeats, cycles.astype(np.int64))
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
            cost = self._cost(g, local_steps, *message_sizes(encoding, chosen))
            computing = cost.train_s * max(g.computer.active_w - g.computer.sleep_w, 0.0)
            air = (cost.air_s + cost.awake_s) / self.round_s
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
        for number, (g, supply) in enumerate(zip(self.groups, self.supplies(), strict=True)):
            mine = np.flatnonzero(fleet.group_of == number)
            cycles, first = fleet.cycles()[mine], mine[0]
            chosen = None if fleet.message_bits is None else fleet.message_bits[mine]
            bits = None if chosen is None else (int(chosen.min()), int(chosen.max()))
            standby_j = float(np.broadcast_to(storage.standby, len(fleet))[first] * fleet.unit_j[first])
            cost = self._cost(g, local_steps, *message_sizes(encoding, 0 if chosen is None else int(chosen[0])))
            found.append(
                Assumptions(
                    self.labels[number], g.count, float(fleet.unit_j[first]), float(means[mine].mean()), standby_j,
                    float(fleet.capacity[first]), (int(cycles.min()), int(cycles.max())), bits,
                    cost.train_s, cost.air_s, cost.busy_s, supply.told, g.guesses,
                )
            )  # fmt: skip
        return found

    @property
    def clock(self) -> Clock:
        return Clock(self.round_s, self.start_day, self.utc_h)

    def supplies(self) -> list[Supply]:
        """What one watt-peak, or the trace, gives each group, round by round."""
        clock = self.clock
        return [g.supply(clock) for g in self.groups]

    def _cost(self, g: DeviceGroup, local_steps: int, sent: float, received: float) -> RoundCost:
        """sent, received: sizes of an update on its way up and of the model on its way down, as parts of it."""
        try:
            return round_cost(
                g.computer, g.link, local_steps=local_steps, model_mb=self.model_mb,
                downloads=self.downloads, round_s=self.round_s, sent=sent, received=received,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{g.label}: {error}") from None

    def _group(
        self, g: DeviceGroup, local_steps: int, sent: float, received: float
    ) -> tuple[float, float, float, float] | InputError:
        """(joules of a unit in the battery, units it holds, units drawn asleep a round, units at first).

        An error, not raised: the round does not fit into its length, or into the battery.
        """
        try:
            cost_j = self._cost(g, local_steps, sent, received).joules
        except InputError as error:
            return error
        if cost_j == 0.0 or g.discharging == 0.0:
            raise InputError(f"{g.label}: the cost of a round or the usable battery is zero; check its values.")
        unit_j = cost_j / g.discharging
        usable_j = g.battery_wh * 3600.0 * (1.0 - g.cutoff)
        if usable_j < unit_j:
            return InputError(
                f"{g.label}: a round costs {energy(unit_j)} and the battery can give {energy(usable_j)} "
                f"({watt_hours(g.battery_wh)} above a cut-off of {g.cutoff:.0%}); give a larger battery or "
                "cheaper rounds."
            )
        standby_j = g.computer.sleep_w * self.round_s / g.discharging
        held_j = max(g.start - g.cutoff, 0.0) * g.battery_wh * 3600.0
        return unit_j, usable_j / unit_j, standby_j / unit_j, held_j / unit_j

    def _rows(self, supplies: list[Supply]) -> tuple[list[Floats], list[bool], Ints]:
        """Joules of one watt-peak or of the trace, by orientation; whether they repeat; each device's row."""
        clock, row_of = self.clock, []
        rows: list[Floats] = []
        repeats: list[bool] = []
        for g, label, supply in zip(self.groups, self.labels, supplies, strict=True):
            turned = g.tilt_spread_deg or g.azimuth_spread_deg
            mine = g.orientations(clock, label) if turned else [supply.joules]
            row_of.append(len(rows) + np.arange(g.count) % len(mine))
            rows += mine
            repeats += [supply.repeats] * len(mine)
        return rows, repeats, np.concatenate(row_of)

    def _factors(self) -> tuple[Floats, Floats]:
        """Each device's own factors of supply and battery."""
        found = [g.factors(label) for g, label in zip(self.groups, self.labels, strict=True)]
        return np.concatenate([supply for supply, _ in found]), np.concatenate([battery for _, battery in found])

    def _check_aged(self, capacity: Floats, which: Ints) -> None:
        """New batteries hold a round; aged ones must, too."""
        short = np.flatnonzero(capacity < 1.0)
        if len(short):
            raise InputError(
                f"{self._device(which, short[0])} has an aged battery that holds {capacity[short[0]]:.3g} of a round's "
                f"energy{_more(len(short))}; give a larger battery, a smaller age_years, or cheaper rounds."
            )

    def _device(self, which: Ints, client: int) -> str:
        """A device in an error, by its group and its number there, from 0. which: every client's group."""
        return f"{self.groups[which[client]].label}: device {client - int(np.argmax(which == which[client]))}"

    def _cycles(self, net: Floats, which: Ints, gain: Floats, means: Floats) -> Floats:
        """Those that are set, else rounds for a unit at the mean; infinite where a round is impossible."""
        given = np.array([g.cycle for g in self.groups], np.float64)[which]
        self._check_net(np.where(given > 0.0, np.inf, net), which, gain, means)
        with np.errstate(divide="ignore"):
            computed = np.clip(np.ceil((1.0 - 1e-12) / net), 1, MAX_CYCLE)
        return np.where(np.isnan(net), np.inf, np.where(given > 0.0, given, computed))

    def _check_net(self, net: Floats, which: Ints, gain: Floats, means: Floats) -> None:
        bad = np.flatnonzero(net <= 0.0)
        if len(bad) == 0:
            return
        g = self.groups[which[bad[0]]]
        given_w = means[bad[0]] * gain[bad[0]] * g.charging * g.discharging / self.round_s
        drawn_w = g.computer.sleep_w
        raise InputError(
            f"{self._device(which, bad[0])} harvests {power(given_w)} on average and draws {power(drawn_w)} asleep, so "
            f"it could never train{_more(len(bad))}; give it a larger supply or a device with less sleep power."
        )


def message_sizes(encoding: Encoding | None, bits: int) -> tuple[float, float]:
    """Of an update on its way up and of the model on its way down, as parts of the model's."""
    if encoding is None:
        return 1.0, 1.0
    return encoding.size_ratio(bits), encoding.received if isinstance(encoding, Link) else 1.0


def _more(devices: int) -> str:
    return f" ({devices} devices)" if devices > 1 else ""
