"""What arrives in asynchronous runs: how often, with what weight, and how stale, by energy group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.report.numbers import moments
from everfed.store.reading import StoredRun


class Arrivals(NamedTuple):
    """All arrivals of one run, in order."""

    clients: Ints
    scales: Floats
    staleness: Ints
    steps: Ints
    versions: int

    @classmethod
    def of(cls, run: StoredRun) -> Arrivals:
        records = [(record, record.arrived) for record in run.rounds if record.arrived]
        told = ((r.participants, r.scales, arrived.staleness, arrived.steps) for r, arrived in records)
        clients, scales, stale, steps = map(np.concatenate, zip(*told, strict=True))
        return cls(clients, scales, stale, steps, records[-1][1].version)


def arrivals(runs: Sequence[StoredRun], fleet: Fleet) -> dict[str, Any] | None:
    """Means over the seeds of one line; None if its clients meet in rounds.

    groups: rate, updates of a client per round of time; weight, what multiplies them in a round of time, relative to
    the client's share of the data, or None where weights do not tell how much a client counts; staleness, versions of
    the model made between download and arrival.
    """
    if not runs[0].experiment.asynchronous:
        return None
    found, n = [Arrivals.of(run) for run in runs], len(fleet)
    lengths = [len(run.rounds) for run in runs]
    pairs = list(zip(found, lengths, strict=True))
    rates = [np.bincount(one.clients, minlength=n) / rounds for one, rounds in pairs]
    weights = [np.bincount(one.clients, one.scales, minlength=n) / rounds for one, rounds in pairs]
    counts = not runs[0].experiment.server.remembers
    groups = {}
    for group in fleet.groups():
        inside = [np.isin(one.clients, group.clients) for one in found]
        groups[group.label] = {
            "rate": moments([rate[group.clients].mean() for rate in rates]),
            "weight": moments([weight[group.clients].mean() for weight in weights]) if counts else None,
            "staleness": moments([one.staleness[i].mean() for one, i in zip(found, inside, strict=True) if i.any()]),
        }
    return {
        "groups": groups,
        "updates": moments([len(one.clients) for one in found]),
        "versions": moments([one.versions for one in found]),
        "staleness": moments([one.staleness.mean() for one in found if len(one.clients)]),
        "stalest": moments([one.staleness.max() for one in found if len(one.clients)]),
        "steps": moments([one.steps.mean() for one in found if len(one.clients)]),
    }
