"""Clients that never train, by group, with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.energy.battery import TOLERANCE, Battery, Storage
from everfed.energy.fleet import Fleet
from everfed.errors import counted, some, warn
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Energy, Policy
from everfed.scheduling.timeline import Timeline

# Clients times rounds up to which a run is checked ahead; larger ones are checked after the run.
_MOST_STEPS = 2_000_000

_LATE = "their first energy arrives after the run"
_NOTHING = "they harvest nothing"
_LITTLE = "they harvest less than one round costs"
_STANDBY = "standby draws what they harvest"
_LOSSES = "charging losses and leakage take what they harvest"
_SMALL = "their battery holds less than one round costs"
_TOGETHER = "the policy waits for a round in which every client has energy, and there is none"
_UNLUCKY = "they had the energy for a round, but the policy scheduled none in time"
_LOST = "they had the energy for a round, but the policy scheduled none in time or the battery ran out"
_CHANCE = "no round was drawn for them"


def warn_of_silent(schedule: Schedule | Timeline, rounds: int, seed: int, consequence: str = "") -> bool:
    """Warn about clients that never train; False: the run is too large to look ahead. consequence: added to the text.

    The schedule (of asynchronous clients, the timeline) does not depend on training, so it is stepped from its start
    until every client has trained once.
    """
    silent = np.ones(len(schedule.fleet), np.bool_)
    seen_ahead = min(schedule.policy.foresight, int(schedule.fleet.cycles().max()))  # by the policy itself
    for r in range(rounds):
        if (r + seen_ahead) * len(silent) > _MOST_STEPS:
            return False
        if isinstance(schedule, Timeline):
            arrived = schedule.round(r).arrived
            silent[arrived.clients[~arrived.fails]] = False
        else:
            silent &= ~schedule.step(r)[0]
        if not silent.any():
            return True
    said = never_trained(schedule.fleet, schedule.policy, silent, rounds, seed, isinstance(schedule, Timeline))
    warn(f"{said} {consequence}".strip(), 3)
    return True


def never_trained(
    fleet: Fleet, policy: Policy, silent: Bools, rounds: int, seed: int, asynchronous: bool = False
) -> str:
    """One sentence about the clients that never take part in these rounds; empty if there are none."""
    who = np.flatnonzero(silent)
    if len(who) == 0:
        return ""
    if asynchronous:  # a unit of energy is no condition for fewer steps, and work that has begun may end too late
        reasons = [_LATE if late else "" for late in fleet.offsets()[who] >= rounds]
    else:
        reasons = _reasons(fleet, policy, who, rounds, seed)
    parts = []
    for group in fleet.groups():
        inside = np.isin(who, group.clients)
        members = who[inside]
        if len(members) == 0:
            continue
        whole, count = len(group.clients), len(members)
        which = f"{count} of the {whole} of {group.label}, client {some(members, 3)}"
        if count == whole:
            which = f"all {count} of {group.label}" if count > 1 else f"the only client of {group.label}"
        (reason, _), *others = Counter(reasons[i] for i in np.flatnonzero(inside)).most_common()
        why = f" ({'mostly: ' if others else ''}{reason})" if reason else ""
        parts.append(which + why)
    effect = "the model does not change" if len(who) == len(fleet) else "the model learns nothing from their data"
    if asynchronous:
        subject = f"no update of {'any client' if len(who) == len(fleet) else f'{len(who)} of {len(fleet)} clients'}"
        return f"{subject} arrives in {counted(rounds, 'round')} of time: {'; '.join(parts)}. So {effect}."
    subject = "nobody trains" if len(who) == len(fleet) else f"{len(who)} of {len(fleet)} clients never train"
    return f"{subject} in {counted(rounds, 'round')}: {'; '.join(parts)}. So {effect}."


def _reasons(fleet: Fleet, policy: Policy, who: Ints, rounds: int, seed: int) -> list[str]:
    """Why each of these clients never trains; empty texts where finding out would take too long."""
    if policy.energy is not Energy.OBEYED:
        return [_CHANCE] * len(who)
    if len(who) * rounds > _MOST_STEPS:
        return [""] * len(who)
    part = fleet.part(who)
    lossless = Storage(start=part.storage.start)
    awake = replace(part.storage, standby=0.0)
    levels = [Battery(part.capacity, (), storage) for storage in (part.storage, awake, lossless)]
    peaks: list[Floats] = [battery.level.copy() for battery in levels]
    total = np.zeros(len(who)) + levels[0].level
    for r in range(rounds):
        arrived = part.harvest(r, seed)
        total += arrived
        for battery, peak in zip(levels, peaks, strict=True):
            battery.charge(arrived.copy())
            np.maximum(peak, battery.level, out=peak)
    chosen = _LOST if part.storage.browns_out or part.storage.cost_spread else _UNLUCKY
    enough = [peak >= 1.0 - TOLERANCE for peak in peaks]
    rules: list[tuple[Bools, str]] = [
        (part.offsets() >= rounds, _LATE),
        (total == 0.0, _NOTHING),
        (total < 1.0 - TOLERANCE, _LITTLE),
        (enough[0], _TOGETHER if policy.coordinated else chosen),
        (enough[1], _STANDBY),
        (enough[2], _LOSSES),
    ]
    return [next((reason for holds, reason in rules if holds[i]), _SMALL) for i in range(len(who))]
