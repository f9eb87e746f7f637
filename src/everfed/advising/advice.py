"""The result of `advise`: plain values with their units, for tables, pages and JSON.

`Advice.to_dict()` is the JSON that `everfed advise --json` prints. Its shape, from the top:

    format      1; a change that would break a reader raises it
    horizon     the rounds looked at, with the dates of the first and the last
    target      the weight wanted, and in how many years of how many
    prices      of a Wp and of a Wh; `measure` says what "cheapest" means
    verdict     sentences, the most important first
    groups      one entry per group, in the order of the file: present state, months, flows, sizes
    changes     what to change, the best first; only groups that are starved
    budget      those that fit into the budget together, in the order in which to make them
    levers      what more or fewer local steps, a smaller model, compression, longer rounds would do
    variance    the least variance of any unbiased schedule, and how far each method is from it
    seen        hours until the model has seen every group so many times
    causes      what each cause of a skipped slot means
    notes       limits and warnings
    expected    only with a pilot: values, intervals and energy after 30, 90 and 365 days (`Outlook.to_dict`)

Dates are ISO 8601 in a calendar of 365-day years that begins in 2001, by the clock of the fleet. Amounts have their
unit in their names: `_j` joules, `_wh` watt-hours, `_h` hours. Shares are from 0 to 1. None stands for what does not
exist or is infinite. Energy of a group is that of all its devices.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from everfed.energy.physical import Encoding

FORMAT = 1

# Why a slot was skipped, in the order in which causes are tried; the first that holds is the slot's.
CAUSES = {
    "air time": "training and traffic do not fit into a round, or into the radio's duty cycle, so no slot can be used",
    "brown-out": "the device began, and the round cost more than its battery held",
    "leak": "it would have been paid without self-discharge",
    "night": "it would have been paid if, besides, each day's energy had come evenly over that day",
    "overflow": "it would have been paid if, besides, the battery held what seven days need more",
    "winter": "it would have been paid if, besides, all energy of the horizon had come evenly",
    "start": "it would have been paid if, besides, the battery had been full at first",
    "standby": "it would have been paid if, besides, the device drew nothing while it waits",
    "supply": "none of these: the panel or the trace gives less than the promised rounds need",
}


@dataclass(frozen=True)
class Horizon:
    """start, end: when the first and the last round begin. partial: whether it is not whole years."""

    rounds: int
    round_s: float
    days: float
    start: str
    end: str
    partial: bool


@dataclass(frozen=True)
class Target:
    """A group has reached it if its weight is at least `weight` in the supply as given and in `needed` of `years`
    resampled years."""

    weight: float
    years: int
    needed: int
    sure: float  # the share of years asked for


@dataclass(frozen=True)
class Prices:
    per_wp: float | None
    per_wh: float | None
    budget: float | None
    measure: str  # what costs are counted in

    @property
    def free(self) -> bool:
        """Whether nothing costs anything, so that prices tell no size from another."""
        return self.per_wp == 0.0 and self.per_wh == 0.0


@dataclass(frozen=True)
class Flows:
    """Energy at the battery, J: initial + harvested = all others, at every moment.

    harvested: what the panel or the trace offers. charging_loss: lost between it and the battery. overflow: arrived at
    a full battery. lost: of rounds that failed. discharging losses are part of what they serve.
    """

    initial: float = 0.0
    harvested: float = 0.0
    charging_loss: float = 0.0
    overflow: float = 0.0
    leak: float = 0.0
    standby: float = 0.0
    training: float = 0.0
    radio: float = 0.0
    lost: float = 0.0
    stored: float = 0.0

    def imbalance(self) -> float:
        gone = self.charging_loss + self.overflow + self.leak + self.standby + self.training + self.radio + self.lost
        return self.initial + self.harvested - gone - self.stored


@dataclass(frozen=True)
class Month:
    """month: "2001-01". days: of it that lie in the horizon. slots: of all devices.

    weight, skipped: means over the devices that have a slot in it, as those of the group."""

    month: str
    days: float
    slots: int
    participations: int
    rounds_per_day: float  # per device
    weight: float | None  # None: no slot in this month
    skipped: dict[str, float]
    flows_j: Flows


@dataclass(frozen=True)
class Week:
    """The seven days with the lowest mean level of the battery, averaged over the devices; one value per round."""

    start: str
    level_wh: list[float]  # usable energy, after the round
    lowest_wh: list[float]  # of the device with the least
    harvest_wh: list[float]  # offered by the panel or the trace
    capacity_wh: float  # usable


@dataclass(frozen=True)
class Years:
    """weights: of the resampled years, as drawn. low: what the asked-for share of the years reaches."""

    weights: list[float | None]  # None: no slot in that year
    reached: int
    low: float | None


@dataclass(frozen=True)
class Size:
    """A design that reaches the target, or nearly: what to write into the file, and what it then does."""

    panel: float  # Wp, or times the recorded trace
    battery_wh: float
    cycle: int
    weight: float
    years_reached: int
    cost: float | None  # of what is added, for all devices of the group, in `Prices.measure`; None: no price


@dataclass(frozen=True)
class Sizes:
    """panel, battery_wh: the smallest with the other one as it is; pair: the cheapest that takes nothing away.

    cycle: the shortest that the present panel and battery keep. None: nothing reaches the target; `why` says what was
    tried.
    """

    panel: Size | None
    battery: Size | None
    pair: Size | None
    cycle: Size | None
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """A device of a group. id: its number in the fleet, by which its slots are drawn. table: its supply in the horizon;
    mean_j: the mean of all of that supply, from which cycles follow.

    gain, battery: of its panel and battery, in parts of what the group says (dirt, shade, age).
    """

    id: int
    table: int
    mean_j: float
    gain: float
    battery: float


@dataclass(frozen=True)
class Model:
    """What determines the group's batteries, for programs that simulate it: of a device that is as its group says.

    Round t offers panel * tables[table][t] joules. The battery then has level * (1 - leak) + charging * offer, at
    most capacity_j_per_wh * battery_wh; standby_j is drawn, then unit_j if it is the device's slot and there is as
    much. unit_j = (step_j * local_steps + up_j + down_j + wake_j) / discharging; what a device draws awake on air and
    while it connects is in up_j, down_j and wake_j.
    """

    table: int
    charging: float
    leak: float
    discharging: float
    capacity_j_per_wh: float
    start: float  # usable part of the capacity held at first
    standby_j: float
    unit_j: float
    step_j: float
    up_j: float
    down_j: float
    wake_j: float
    step_s: float
    air_s: float
    local_steps: int
    up_s: float  # of air_s
    up_mb: float
    set_cycle: int  # by the file, or because a device cannot idle; 0: each device's cycle follows from its mean supply
    cost_spread: float  # relative standard deviation of a round's cost
    members: list[Member]  # some of its devices, evenly spaced from the least supplied to the best


@dataclass(frozen=True)
class GroupAdvice:
    """panel: in `panel_unit`, Wp or "x" (times the trace). cycles: of its devices now, least and largest.

    cycle: the promise that sizes are computed for, one training per so many rounds. weight: the mean over its devices
    of participations over slots, which is that of participations times scale per round; lowest_weight: of its worst
    device. None: no device has a slot in the horizon, so that nobody can say whether the group is starved. skipped:
    shares of a device's slots by cause, means over the devices; they add up to 1 - weight. dead_since: when a device
    that cannot idle on its supply first ran dry. dry_h: hours in which the battery could not even pay for standby, mean
    over the devices.

    charge_days: from the start, until the first device that its mean supply does not keep has used up what it began
    with; None: supplies keep all, or some ran dry within the horizon.
    """

    name: str
    count: int
    simulated: int  # devices that the numbers are of, evenly spaced
    seeds: int  # schedules of each of them
    site: str  # of the sun, or the name of the trace's file
    source: str
    panel: float
    panel_unit: str
    battery_wh: float
    cycles: tuple[int, int]
    cycle: int
    promised_per_day: float
    rounds_per_day: float
    weight: float | None
    lowest_weight: float | None
    starved: bool | None
    years: Years
    slots: int
    participations: int
    skipped: dict[str, float]
    main_cause: str | None
    dead_since: str | None
    dry_h: float
    charge_days: float | None
    flows_j: Flows
    months: list[Month]
    worst_week: Week
    sizes: Sizes
    model: Model


@dataclass(frozen=True)
class Change:
    """One change of one group. helps: how much the mean weight over all devices rises, at most to 1.

    settings: keys for `--set`, and their values. cost: as in Size.
    """

    group: str
    kind: str  # panel, battery, pair or cycle
    text: str
    cost: float | None
    helps: float
    weight_before: float
    weight_after: float
    settings: dict[str, float | int]


@dataclass(frozen=True)
class LeverEffect:
    group: str
    cycle: tuple[int, int]
    rounds_per_day: float
    weight: float | None  # None: no slot in the horizon
    round_j: float  # what a round takes from the battery


@dataclass(frozen=True)
class Lever:
    """One setting changed for the whole fleet, all else as it is; cycles follow. refused: why it is impossible."""

    name: str
    value: str
    effects: list[LeverEffect]
    refused: str | None = None


@dataclass(frozen=True)
class Distance:
    """variance: of a round's update, over the limit: `times` = variance / least."""

    method: str
    variance: float | None
    times: float | None
    unbiased: bool | None
    lowest_weight: float | None  # of a group


@dataclass(frozen=True)
class VarianceLimit:
    """least: the least variance of a round's update of any unbiased schedule with independent clients, for equal
    updates of length 1; None: none is unbiased. lattice: with shared draws."""

    least: float | None
    lattice: float | None
    methods: list[Distance]
    words: str


@dataclass(frozen=True)
class Seen:
    """Hours until every group has taken part in `times` rounds; devices_h: until each of its devices trained so
    often. None: not within the horizon."""

    times: int
    hours: float | None
    groups: dict[str, float | None]
    devices_h: dict[str, float | None]


@dataclass(frozen=True)
class Advice:
    """What `everfed.advise` finds: who is starved and why, and what to change.

    >>> import everfed as ef
    >>> from everfed.energy.physical import DeviceFleet, DeviceGroup
    >>> lamps = DeviceGroup(name="lamps", count=2, panel_wp=0.2, battery_wh=3.0, step_s=60.0, switched_off=True)
    >>> found = ef.advise(DeviceFleet((lamps,), round_s=86_400.0), years=0)
    >>> [group.name for group in found.groups], found.to_dict()["format"]
    (['lamps'], 1)
    """

    horizon: Horizon  # the rounds looked at, and their dates
    target: Target  # the weight wanted, and in how many years of how many
    prices: Prices  # of a Wp and of a Wh
    verdict: list[str]  # sentences, the most important first
    groups: list[GroupAdvice]  # present state, months, flows and sizes of each group
    changes: list[Change]  # what to change, the best first
    budget: list[Change]  # the changes that fit into the budget together
    levers: list[Lever]  # what local steps, model size, compression and longer rounds would do
    variance: VarianceLimit | None  # the least of any unbiased schedule, and how far each method is from it
    seen: Seen  # hours until the model has seen every group so many times
    notes: list[str]  # limits and warnings
    tables: list[list[float]] = field(default_factory=list, repr=False)  # [supplies][rounds] J of 1 Wp, or the trace
    causes: dict[str, str] = field(default_factory=lambda: dict(CAUSES))  # what each cause of a skipped slot means
    format: int = FORMAT  # of the JSON; a change that would break a reader raises it
    encoding: Encoding | None = field(default=None, repr=False)  # of messages, by which a round's energy was counted

    def to_dict(self, tables: bool = False) -> dict[str, Any]:
        """Plain lists and numbers. tables: also the supply of every round, which a page needs to simulate."""
        out: dict[str, Any] = {"format": self.format} | asdict(self)
        del out["encoding"]
        if not tables:
            del out["tables"]
        plain: dict[str, Any] = _plain(out)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
