"""What a reader of averages must know: runs left out, runs that hardly belong together, clients that never trained."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from everfed.energy.fleet import Fleet
from everfed.errors import counted, some
from everfed.report.distinct import COUNTED_ONCE, Distinct, exactly
from everfed.report.lines import FleetKey, Line, differing_keys, fleet_key, own_settings, show
from everfed.run.experiment import kind_of
from everfed.run.live import Live
from everfed.scheduling.silent import never_trained
from everfed.store.reading import StoredRun

_MOST_LABELS = 4  # of which one sentence is said
_MOST_COPIES = 3  # that are named one by one


def notes(known: Distinct, drawn: Sequence[Line]) -> list[str]:
    """Sentences about these lines, which were made of these runs."""
    silent = silences((line.label, line.runs) for line in drawn)
    mixed = [*_mixed(drawn), *_objects(drawn)]
    return [*_few(known.notes), *_empty(known.runs), *_lost(drawn), *mixed, *attacks(drawn), *silent]


def _few(said: Sequence[str]) -> list[str]:
    """Notes about copies, which may be as many as there are runs: the first, and how many are like it."""
    copies = [note for note in said if note.endswith(COUNTED_ONCE)]
    if len(copies) <= _MOST_COPIES:
        return list(said)
    more = f"{copies[0]} {len(copies) - 1} more folders hold runs that are counted already."
    return [more, *(note for note in said if note not in copies)]


def attacks(drawn: Sequence[Line]) -> list[str]:
    """One sentence for each line whose runs have simulated attackers."""
    found = [(line.label, line.experiment) for line in drawn if getattr(line.experiment.attack, "clients", ())]
    return [
        f"{label}: the run has attackers, client {some(e.attack.clients)} ({kind_of(e.attack)}); the server's defence: "
        f"{kind_of(e.robust)}."
        for label, e in found
    ]


def _empty(runs: Sequence[StoredRun]) -> list[str]:
    """Runs that have not come to a number yet, and that nothing on the page shows."""
    keys = differing_keys(runs)

    def said(run: StoredRun) -> str:
        settings = (f"{key}={show(value)}" for key, value in own_settings(run.experiment, keys).items())
        return f"{' · '.join((run.experiment.title, *settings))}, seed {run.experiment.seed} ({run.state})"

    out = [said(run) for run in runs if not run.rounds and run.state != "diverged"]
    return [f"Omitted, since they have not finished a round: {some(out)}."] if out else []


def _lost(drawn: Sequence[Line]) -> list[str]:
    """Lines without a number, since no seed got through its first round."""
    return [
        f"{line.label}: no result, since {line.diverged_said} diverged in the first round."
        for line in drawn
        if line.lost and not line.runs[0].rounds
    ]


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


def _objects(drawn: Sequence[Line]) -> list[str]:
    """Seeds that stay apart, since each was given a module of its own that had its random weights already."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in drawn:
        model = line.experiment.model
        if isinstance(model, Live) and "model" in line.settings:
            found.setdefault((line.experiment.title, model.name), []).append(line)
    said = []
    for (title, name), several in found.items():
        rest = {exactly({k: v for k, v in line.settings.items() if k != "model"}) for line in several}
        seeds = [{run.experiment.seed for run in line.runs} for line in several]
        if len(several) > 1 and len(rest) == 1 and all(not a & b for a, b in itertools.combinations(seeds, 2)):
            said.append(
                f"{title}: {len(several)} models '{name}' with other weights, so their seeds are not "
                "averaged. Give the class or a function that makes the model, which is called under each seed."
            )
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
        return f"{count} of {len(fleet)} clients never train in {counted(len(run.rounds), 'round')}." if count else ""
    e = run.experiment
    return never_trained(fleet, e.policy, silent, len(run.rounds), e.seeds.schedule, e.asynchronous)


def silences(labelled: Iterable[tuple[str, Sequence[StoredRun]]]) -> list[str]:
    """Of each label with such clients the sentence of its first such run, and how many there are; once for all labels
    of which the same is to be said."""
    fleets: dict[FleetKey, Fleet] = {}
    alike: dict[tuple[str, int, int], list[str]] = {}
    for label, runs in labelled:
        said: list[str] = []
        for run in runs:
            key = fleet_key(run.experiment)
            if key not in fleets:
                fleets[key] = run.experiment.make_fleet()
            said += [f"seed {run.experiment.seed}: {text}" for text in [silence(run, fleets[key])] if text]
        if said:
            alike.setdefault((said[0], len(said), len(runs)), []).append(label)
    out = []
    for (first, count, among), labels in alike.items():
        each = " of each" if len(labels) > 1 else ""
        more = f" ({count} of {counted(among, 'run')}{each} are like that.)" if among > 1 else ""
        names = "; ".join(labels[:_MOST_LABELS]) + (
            f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
        )
        out.append(f"{names}, {first}{more}")
    return out
