"""The fleets behind the runs of a page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everfed.energy.fleet import Fleet
from everfed.errors import warn
from everfed.report.lines import fleet_key
from everfed.report.numbers import short
from everfed.report.raster import MOST_CLIENTS, sample
from everfed.run.experiment import Experiment
from everfed.store.reading import StoredRun

_BATTERIES = 8


class Fleets:
    """Each is built and described once, however many runs have it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.place: dict[Any, int] = {}
        self.built: list[Fleet] = []

    def of(self, run: StoredRun) -> Fleet:
        return self.built[self.add(run.experiment, run)]

    def add(self, experiment: Experiment, run: StoredRun | None = None) -> int:
        spec = fleet_key(experiment)
        if spec not in self.place:
            fleet = experiment.make_fleet()
            if run is not None and fleet.unit_j is not None and run.path.exists() and "fleet" not in run.environment:
                warn(
                    f"the run '{run.name}' is from an older version: cycles and batteries of its devices are "
                    "recomputed with this version's rules and may differ."
                )
            self.place[spec] = len(self.shown)
            self.built.append(fleet)
            self.shown.append(_described(fleet))
        return self.place[spec]


def _described(fleet: Fleet) -> dict[str, Any]:
    clients, groups, cycles = sample(fleet, MOST_CLIENTS), fleet.groups(), fleet.cycles()
    step = max(1, math.ceil(len(groups) / _BATTERIES))
    return {
        "clients": len(fleet),
        "ids": clients.tolist(),
        "cycles": cycles[clients].tolist(),
        "groups": [
            {"label": g.label, "rows": int(np.isin(clients, g.clients).sum()), "clients": len(g.clients)}
            for g in groups
        ],
        "batteries": [
            {
                "client": int(g.clients[0]),
                "group": g.label,
                "cycle": int(cycles[g.clients[0]]),
                "capacity": short(float(fleet.capacity[g.clients[0]])),
            }
            for g in groups[::step]
        ],
    }
