"""What a reader of averages must know: runs left out, runs that hardly belong together, clients that never trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from everfed.energy.fleet import Fleet
from everfed.errors import some
from everfed.report.distinct import Distinct
from everfed.report.lines import FleetKey, Line, fleet_key
from everfed.run.experiment import kind_of
from everfed.run.live import Live
from everfed.scheduling.silent import never_trained
from everfed.store.reading import StoredRun


def notes(known: Distinct, drawn: Sequence[Line]) -> list[str]:
    """Sentences about these lines, which were made of these runs."""
    silent = silences((line.label, line.runs) for line in drawn)
    return [*known.notes, *_empty(known.runs), *_mixed(drawn), *attacks(drawn), *silent]


def attacks(drawn: Sequence[Line]) -> list[str]:
    """One sentence for each line whose runs have simulated attackers."""
    found = [(line.label, line.experiment) for line in drawn if getattr(line.experiment.attack, "clients", ())]
    return [
        f"{label}: the run has attackers, client {some(e.attack.clients)} ({kind_of(e.attack)}); the server's defence: "
        f"{kind_of(e.robust)}."
        for label, e in found
    ]


def _empty(runs: Sequence[StoredRun]) -> list[str]:
    """Runs that nothing on the page shows."""
    out = [f"{r.experiment.title}, seed {r.experiment.seed} ({r.state})" for r in runs if not r.rounds]
    return [f"Omitted, since they have not finished a round: {some(out)}."] if out else []


def _mixed(drawn: Sequence[Line]) -> list[str]:
    """What was not averaged with the rest of its line, and what was although it may differ."""
    said = []
    for line in drawn:
        if line.unfinished:
            seeds = ", ".join(f"seed {run.experiment.seed} ({run.state})" for run in line.unfinished)
            said.append(f"{line.label}: not done, and omitted from its averages: {seeds}.")
        versions = {run.environment.get("packages", {}).get("everfed") for run in line.runs} - {None}
        if len(versions) > 1:
            made_by = ", ".join(sorted(versions))
            said.append(f"{line.label}: its runs were made by different versions of everfed: {made_by}.")
    return said


def silence(run: StoredRun, fleet: Fleet | None = None) -> str:
    """One sentence about the clients that never trained in a run, and why; empty if all did.

    Nothing is said of a run that diverged, or has no round yet: it ended before their turn came.
    """
    if not run.rounds or run.state == "diverged":
        return ""
    fleet = fleet or run.experiment.make_fleet()
    silent = np.ones(len(fleet), np.bool_)
    for record in run.rounds:
        silent[record.participants] = False
    if isinstance(run.experiment.policy, Live):  # who was silent is known, but not why
        count = int(silent.sum())
        return f"{count} of {len(fleet)} clients never train in {len(run.rounds)} rounds." if count else ""
    e = run.experiment
    return never_trained(fleet, e.policy, silent, len(run.rounds), e.seeds.schedule, e.asynchronous)


def silences(labelled: Iterable[tuple[str, Sequence[StoredRun]]]) -> list[str]:
    """One sentence for each label with such clients: that of its first such run, and how many there are."""
    fleets: dict[FleetKey, Fleet] = {}
    out = []
    for label, runs in labelled:
        said: list[str] = []
        for run in runs:
            key = fleet_key(run.experiment)
            if key not in fleets:
                fleets[key] = run.experiment.make_fleet()
            said += [f"seed {run.experiment.seed}: {text}" for text in [silence(run, fleets[key])] if text]
        if said:
            more = f" ({len(said)} of {len(runs)} runs are like that.)" if len(runs) > 1 else ""
            out.append(f"{label}, {said[0]}{more}")
    return out
