"""What settings of the whole fleet would do: local steps, model size, compression, length of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from everfed.advising.advice import Lever, LeverEffect
from everfed.advising.dates import Calendar
from everfed.advising.design import Design, read
from everfed.advising.world import Query, World
from everfed.energy.physical import DeviceFleet, Encoding, Link
from everfed.errors import InputError
from everfed.learning.compress import Qsgd
from everfed.stats import finite

DEVICES = 64  # of each group that are simulated


def levers(design: Design, rounds: int) -> Iterator[Lever]:
    """Each with the effect on every group, over the same time as `rounds` of the present fleet."""
    yield Lever("as it is", "", _effects(design, rounds))
    for name, value, spec, steps, encoding in _variants(design):
        lasts = max(1, round(rounds * design.spec.round_s / spec.round_s))
        try:
            yield Lever(name, value, _effects(read(spec, steps, encoding), lasts))
        except InputError as error:
            yield Lever(name, value, [], str(error))


def _variants(design: Design) -> Iterator[tuple[str, str, DeviceFleet, int, Encoding | None]]:
    spec, steps, encoding = design.spec, design.local_steps, design.encoding
    for count in (max(1, steps // 2), 2 * steps):
        if count != steps:
            yield "local steps", f"{count}", spec, count, encoding
    if spec.model_mb:
        for size in (spec.model_mb / 2.0, spec.model_mb * 2.0):
            yield "model size", f"{size:g} MB", replace(spec, model_mb=size), steps, encoding
        for bits in (8, 4):
            up = Qsgd(bits=bits)
            yield (
                "compression",
                f"{bits} bits a number",
                spec,
                steps,
                replace(encoding, up=up) if isinstance(encoding, Link) else up,
            )
    promises = [design.promise(number) for number in range(len(spec.groups))]
    for name, factor in (("half as long", 0.5), ("twice as long", 2.0)):
        cycles = [max(1, round(promise * factor)) for promise in promises]
        held = tuple(replace(g, cycle=cycle) for g, cycle in zip(spec.groups, cycles, strict=True))
        yield "cycles", name, replace(spec, groups=held), steps, encoding
    for length in (spec.round_s / 2.0, spec.round_s * 2.0):
        yield "rounds", f"{length / 3600.0:g} h", replace(spec, round_s=length), steps, encoding
    if any(g.computer.sleep_w > 0.0 for g in spec.groups):
        off = tuple(replace(g, switched_off=True) for g in spec.groups)
        yield "standby", "switched off between rounds", replace(spec, groups=off), steps, encoding


def _effects(design: Design, rounds: int) -> list[LeverEffect]:
    world = World(design, rounds, 0, DEVICES)
    fits = [g for g in range(len(design.labels)) if g not in design.unfit]
    queries = [Query(g) for g in fits]
    joins = dict(zip(fits, world.participations(queries), strict=True))
    weights = {q.group: finite(float(world.weighed(q, joins[q.group])[0])) for q in queries}
    days = Calendar(design.spec.round_s).days(rounds)
    found = []
    for g, label in enumerate(design.labels):
        mine = design.members(g)
        cycles = design.fleet.cycles()[mine]
        weight = weights.get(g, 0.0)
        often = float(np.mean(joins[g])) / days if g in joins else 0.0
        round_j = float(design.unit_j[mine].mean()) if g in weights else float("nan")
        found.append(LeverEffect(label, (int(cycles.min()), int(cycles.max())), often, weight, round_j))
    return found
