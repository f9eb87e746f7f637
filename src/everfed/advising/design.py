"""The devices of a fleet as arrays, by the project's own `DeviceFleet.build`; and groups that it refuses.

A build refuses a device that could never train. Advice is for such devices above all, so they are built with what
they lack, and put back: a device that cannot idle with a cycle of one day, a battery that cannot hold a round in the
place of a larger one. A round that does not fit into its length stays out: no energy would help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.energy.group import DeviceGroup
from everfed.energy.physical import DeviceFleet, Encoding
from everfed.energy.profile import Profile
from everfed.energy.supply import DAY_S, Supply
from everfed.errors import InputError

_LARGER = 2.0**40  # a battery that holds any round; a power of two, so that scaling back is exact


@dataclass(frozen=True)
class Design:
    """A fleet with its present panels and batteries. Arrays are per device, in units of its round's energy."""

    spec: DeviceFleet
    built: DeviceFleet  # the same with what it lacks to be built
    fleet: Fleet  # as built; its capacity and start are those of `capacity` and `start` but for refused batteries
    local_steps: int
    encoding: Encoding | None
    capacity: Floats
    start: Floats
    unfit: dict[int, str]  # groups whose round does not fit into its length, and why

    @property
    def labels(self) -> tuple[str, ...]:
        return self.spec.labels

    @cached_property
    def group(self) -> Ints:
        assert self.fleet.group_of is not None
        return self.fleet.group_of

    @property
    def profile(self) -> Profile:
        assert isinstance(self.fleet.arrivals, Profile)
        return self.fleet.arrivals

    @cached_property
    def unit_j(self) -> Floats:
        assert self.fleet.unit_j is not None
        return self.fleet.unit_j

    def members(self, group: int) -> Ints:
        return np.flatnonzero(self.group == group)

    def of_storage(self, name: str) -> Floats:
        """charging, leak or standby, one per device."""
        return np.broadcast_to(np.asarray(getattr(self.fleet.storage, name), np.float64), len(self.fleet))

    @cached_property
    def supplies(self) -> list[Supply]:
        """What one watt-peak, or the trace, gives each group."""
        return self.spec.supplies()

    def unable(self, group: int) -> tuple[int, float]:
        """How many of a group's devices cannot idle on their mean supply; what reaches the least supplied one, W."""
        mine, g = self.members(group), self.spec.groups[group]
        joules = (self.profile.mean * self.of_storage("charging") * self.unit_j)[mine] * g.discharging
        return int(np.count_nonzero(self.net[mine] <= 0.0)), float(joules.min()) / self.spec.round_s

    @cached_property
    def net(self) -> Floats:
        """Units that a device gains per round on average, before leakage; one that gains nothing cannot idle."""
        offered: Floats = self.profile.mean * self.of_storage("charging") - self.of_storage("standby")
        return offered

    def dead(self, group: int) -> bool:
        """Whether it has a device that cannot even idle on its mean supply."""
        return bool(np.any(self.net[self.members(group)] <= 0.0))

    def promise(self, group: int) -> int:
        """The cycle that sizes are computed for: with it for all, the group trains as often as with those of today.

        It is the harmonic mean of its devices' cycles, rounded up.
        """
        cycles = self.fleet.cycles()[self.members(group)]
        return math.ceil(len(cycles) / float((1.0 / cycles).sum()) - 1e-9)


def once_a_day(round_s: float) -> int:
    return max(1, round(DAY_S / round_s))


def read(spec: DeviceFleet, local_steps: int = 5, encoding: Encoding | None = None) -> Design:
    """The design, whatever its devices lack; an error for values that no change of sizes could mend."""
    groups, larger, unfit = [], np.ones(len(spec.groups)), {}
    for number, g in enumerate(spec.groups):
        changed, lacks = _buildable(spec, g, local_steps, encoding)
        groups.append(changed)
        if lacks.get("battery"):
            larger[number] = _LARGER
        if "unfit" in lacks:
            unfit[number] = lacks["unfit"]
    # Names are written out: those of unnamed groups would follow from what was changed.
    named = tuple(replace(g, name=label) for g, label in zip(groups, spec.labels, strict=True))
    built = replace(spec, groups=named)
    fleet = built.build(local_steps, encoding)
    assert fleet.group_of is not None
    by = larger[fleet.group_of]
    start = np.broadcast_to(np.asarray(fleet.storage.start), len(fleet)) / by
    return Design(spec, built, fleet, local_steps, encoding, fleet.capacity / by, start, unfit)


def _buildable(
    spec: DeviceFleet, g: DeviceGroup, local_steps: int, encoding: Encoding | None
) -> tuple[DeviceGroup, dict[str, str]]:
    """The group as it can be built, and what of it was changed."""

    def refusal(changed: DeviceGroup) -> InputError | None:
        try:
            replace(spec, groups=(changed,)).build(local_steps, encoding)
        except InputError as error:
            return error
        return None

    first = refusal(g)
    if first is None:
        return g, {}
    idle = replace(g, cycle=g.cycle or once_a_day(spec.round_s))
    large = replace(g, battery_wh=g.battery_wh * _LARGER)
    both = replace(idle, battery_wh=large.battery_wh)
    for changed, lacks in ((idle, {}), (large, {"battery": "small"}), (both, {"battery": "small"})):
        if refusal(changed) is None:
            return changed, lacks
    silent = replace(both, radio="none", step_s=0.5 * spec.round_s / local_steps)
    if refusal(silent) is None:
        return silent, {"unfit": str(first), "battery": "small"}
    raise first
