"""Who trained when, and what was in the batteries: the schedule of one run, small enough for a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.energy.sampled import sample as sample
from everfed.run.history import RoundRecord
from everfed.run.live import Live
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Decision, Policy, State, View
from everfed.scheduling.timeline import Timeline
from everfed.store.reading import StoredRun

MOST_CLIENTS = 400  # rows of pixels that a screen can show
MOST_ROUNDS = 2000  # columns; a schedule repeats, so its beginning tells
_MOST_SCALES = 255  # a pixel is a byte, and 0 is "did not train"


def raster(run: StoredRun, clients: Ints) -> dict[str, Any]:
    """Participation of these clients: `bits` where every client has one scale, else `codes`.

    scales: the run's distinct scales. `bits` holds one bit a client and round, rounds one after
    the other, padded to whole bytes; `row_scales` then has each row's scale. `codes` holds one
    byte: 0 did not train, k trained with scales[k - 1]. Of an asynchronous client's updates that arrive in one round of
    time, the sum of their scales counts; `arrivals` then has each row's number of them.
    """
    row = np.full(int(clients.max()) + 1, -1)
    row[clients] = np.arange(len(clients))
    shown = run.rounds[:MOST_ROUNDS]
    scale, times = np.zeros((len(shown), len(clients))), np.zeros(len(clients), np.int64)
    for r, record in enumerate(shown):
        inside = record.participants < len(row)
        rows = row[record.participants[inside]]
        np.add.at(scale[r], rows[rows >= 0], record.scales[inside][rows >= 0])
        np.add.at(times, rows[rows >= 0], 1)
    joined = scale > 0
    scales = _few(np.unique(scale[joined]))
    out: dict[str, Any] = {"rounds": len(shown), "scales": [round(float(s), 4) for s in scales]}
    if run.experiment.asynchronous:
        out["arrivals"] = times.tolist()
    highest = scale.max(axis=0, initial=0.0)
    if np.all((scale == highest) | ~joined):
        out["bits"] = _base64(np.packbits(joined, axis=1, bitorder="little"))
        out["row_scales"] = _codes(highest, scales).tolist()
    else:
        out["codes"] = _base64(_codes(scale, scales))
    return out


def _few(scales: Floats) -> Floats:
    if len(scales) <= _MOST_SCALES:
        return scales
    return np.unique(np.quantile(scales, np.linspace(0, 1, _MOST_SCALES), method="nearest"))


def _codes(scale: Floats, scales: Floats) -> npt.NDArray[np.uint8]:
    """1 + the place of each scale (of the nearest one below, where they were thinned out); 0 for none."""
    place = np.maximum(np.searchsorted(scales, scale, side="right"), 1)
    return np.where(scale > 0, place, 0).astype(np.uint8)


def _base64(array: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


@dataclass(frozen=True)
class _AsRecorded(Policy):
    """In the place of a policy that only the run's own process had: who took part is in the records."""

    rounds: tuple[RoundRecord, ...]

    def step(self, state: State, view: View) -> Decision:
        join = np.zeros(view.affords.shape, np.bool_)
        join[self.rounds[view.round].participants] = True
        return Decision(join, np.ones(len(join)), state)


def batteries(run: StoredRun, fleet: Fleet, clients: Sequence[int]) -> dict[str, Any]:
    """Levels of these clients, recomputed: after the round's harvest, and after its decision (of asynchronous clients,
    at its end)."""
    which = np.asarray(clients)
    longest = int(fleet.cycles()[which].max())
    rounds = min(len(run.rounds), max(120, 6 * longest), MOST_ROUNDS)
    e = run.experiment
    stepped: Schedule | Timeline
    if e.asynchronous:
        stepped = Timeline(fleet, e.policy, e.seeds.schedule, e.make_pace(fleet), e.work, e.local_steps)
    else:
        policy = _AsRecorded(tuple(run.rounds)) if isinstance(e.policy, Live) else e.policy
        stepped = Schedule(fleet, policy, e.seeds.schedule)
    harvested, left = [], []
    for r in range(rounds):
        stepped.arrive(r)
        harvested.append(stepped.battery.level[which])
        stepped.decide(r)
        left.append(stepped.battery.level[which])
    return {
        "rounds": rounds,
        "clients": which.tolist(),
        "harvested": _columns(harvested),
        "left": _columns(left),
    }


def _columns(rows: Sequence[Floats]) -> list[list[float]]:
    return [[round(v, 3) for v in column] for column in np.array(rows).T.tolist()]
