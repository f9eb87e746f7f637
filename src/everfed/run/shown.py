"""An experiment's parts in one line each, and its schedule at a glance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from everfed.energy.physical import DeviceFleet
from everfed.run.fleets import CycleFleet
from everfed.run.live import Live
from everfed.scheduling.planned import Plan
from everfed.scheduling.policies import Policy
from everfed.showing.card import Shown, brief, numeral

_MOST_CLIENTS = 2000  # of fleets that are planned for a card
_LONGEST = 200  # characters of one setting


def abridged(value: Any, kind_of: Callable[[Any], str]) -> str:
    """A part as people write it: its kind and those of its options that are not the defaults, long ones cut short."""
    if isinstance(value, Shown):  # a fleet, data
        return value._card().title
    if isinstance(value, Live):
        return value.label
    if isinstance(value, CycleFleet):  # the defaults are said too: they matter most
        value, said = replace(value, clients=CycleFleet.clients, cycles=CycleFleet.cycles), value
        more = _options(value, kind_of)
        return f"{said.clients:,} clients, cycles {brief(said.cycles)}{', ' * bool(more)}{more}"
    if isinstance(value, DeviceFleet):
        names = [group.name or group.device for group in value.groups]
        return f"{sum(group.count for group in value.groups):,} devices in {len(names)} groups: {brief(names, 3, '; ')}"
    if isinstance(value, float):
        return numeral(value)
    if isinstance(value, str | int) or value is None:
        return str(value)
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}, shape {value.shape}"
    if isinstance(value, list | tuple):
        return brief([abridged(part, kind_of) for part in value])
    if not is_dataclass(value) or isinstance(value, type):
        return getattr(value, "__qualname__", None) or type(value).__name__
    options = _options(value, kind_of)
    said = f"{kind_of(value)}({options})" if options else kind_of(value)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 3]}..."


def _options(value: Any, kind_of: Callable[[Any], str]) -> str:
    """'lr=0.1, momentum=0.9': those that are not the defaults."""
    options = []
    for field in fields(value):
        mine = getattr(value, field.name)
        plain = mine is field.default or (type(mine) is type(field.default) and bool(np.all(mine == field.default)))
        if field.init and not plain:
            said = abridged(mine, kind_of)
            options.append(f"{field.name}=[{said}]" if isinstance(mine, list | tuple) else f"{field.name}={said}")
    return ", ".join(options)


def schedule_picture(experiment: Any) -> str:
    """Who would train when, of fleets whose plan takes no time to make; '' of others."""
    fleet = experiment.fleet
    small = isinstance(fleet, CycleFleet) and fleet.clients <= _MOST_CLIENTS
    if not small or experiment.asynchronous or not isinstance(experiment.policy, Policy):
        return ""
    plan = Plan(experiment.make_fleet(), experiment.policy, experiment.rounds, experiment.seeds.schedule)
    return plan._picture()
