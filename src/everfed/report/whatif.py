"""What the sliders of the advice's page simulate: models of the groups, and their supplies in few bytes."""

from __future__ import annotations

import base64
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from everfed.advising.advice import Advice, GroupAdvice, Model
from everfed.advising.world import REPRESENTATIVES
from everfed.energy.supply import DAY_S

# Per group: its listed devices, each with as many seeds as make so many schedules. As in the advice itself, so that
# groups of no more devices have its very numbers.
SCHEDULES = REPRESENTATIVES
MOST_BYTES = 2_000_000
_LEVELS = 65_535  # of 16 bits


def seeds_of(members: int) -> int:
    return -(-SCHEDULES // members)


def packed(advice: Advice, most_bytes: int = MOST_BYTES) -> dict[str, Any] | None:
    """Models, the tables that they use, and the month of every round; None if that would make the page too large.

    Supplies are rounded to 1/65535 of their largest value. Where devices of a group have supplies of their own, fewer
    devices are kept until the tables fit.
    """
    each = 4 * -(-2 * advice.horizon.rounds // 3)  # of base64
    models = [g.model for g in advice.groups]
    while (size := each * len({m.table for model in models for m in model.members})) > most_bytes:
        longest = max(len(model.members) for model in models)
        if longest == 1:
            return None
        models = [_fewer(model, longest - 1) for model in models]
    assert size <= most_bytes
    used = sorted({m.table for model in models for m in model.members})
    place = {table: number for number, table in enumerate(used)}
    shown = []
    for model in models:
        members = [{**asdict(m), "table": place[m.table]} for m in model.members]
        shown.append({**asdict(model), "members": members, "seeds": seeds_of(len(members))})
    return {
        "models": shown,
        "tables": [_table(advice.tables[table]) for table in used],
        "month_of": _months(advice.groups[0], advice.horizon.round_s, advice.horizon.rounds),
    }


def _fewer(model: Model, most: int) -> Model:
    n = min(len(model.members), most)
    return replace(model, members=[model.members[i * len(model.members) // n] for i in range(n)])


def _table(joules: list[float]) -> dict[str, Any]:
    values = np.asarray(joules, np.float64)
    scale = float(values.max()) / _LEVELS or 1.0
    levels = np.rint(values / scale).astype("<u2")
    return {"scale": scale, "values": base64.b64encode(levels.tobytes()).decode()}


def _months(group: GroupAdvice, round_s: float, rounds: int) -> list[int]:
    """The number of each round's month, in the order of `months`."""
    lengths = [round(month.days * DAY_S / round_s) for month in group.months]
    found = np.repeat(np.arange(len(lengths)), lengths)[:rounds]
    return [*found.tolist(), *[len(lengths) - 1] * (rounds - len(found))]
