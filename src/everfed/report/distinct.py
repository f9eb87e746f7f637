"""Each run once: copies are found by what they hold, wherever they lie, and contradictions are told.

A run is its experiment, seed included, and its records. Two folders with the same experiment, one of which goes on
where the other ends or ends where it does, hold one run, and counting it twice would feign a second seed. Two with the
same experiment and other records contradict each other (another machine, another version, a file that was changed):
neither is averaged with anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everfed.run.config import to_dict
from everfed.run.history import RoundRecord
from everfed.store.reading import StoredRun

# They change how often one looks, at what, and where it runs, not what is run; kinds are told apart by name.
NOT_WHAT_IS_RUN = ("eval_every", "device", "check_trainer", "metrics", "plugins")
COUNTED_ONCE = "and is not counted again."


@dataclass(frozen=True)
class Distinct:
    """Runs without their copies."""

    runs: list[StoredRun]  # in the order given
    copies: list[list[Path]]  # of each of them: where else it lies, whole or in part
    contradicted: list[bool]  # whether another run of the same experiment and seed has other records
    notes: list[str]  # what was left out or contradicts, in sentences


def distinct(runs: Sequence[StoredRun]) -> Distinct:
    """Keep of every run the copy that goes furthest; the first given of equals."""
    alike: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        content = {key: value for key, value in to_dict(run.experiment).items() if key not in NOT_WHAT_IS_RUN}
        alike.setdefault(exactly(content), []).append(i)
    copies: dict[int, list[Path]] = {}
    contradicted: set[int] = set()
    notes: list[str] = []
    for places in alike.values():
        kept: list[int] = []
        for i in sorted(places, key=lambda i: _completeness(runs[i]), reverse=True):  # stable: the first given wins
            twin = next((k for k in kept if _parting(runs[k], runs[i]) is None), None)
            if twin is None:
                kept.append(i)
                copies[i] = []
            else:
                copies[twin].append(runs[i].path)
                notes.append(_copy_said(runs[twin], runs[i]))
        if len(kept) > 1:
            contradicted.update(kept)
            notes.append(_contradiction_said([runs[i] for i in kept]))
    order = sorted(copies)
    return Distinct([runs[i] for i in order], [copies[i] for i in order], [i in contradicted for i in order], notes)


def exactly(value: Any) -> str:
    """A setting in full: equal texts, equal settings."""
    return json.dumps(value, sort_keys=True, default=str)


def _completeness(run: StoredRun) -> tuple[bool, int, int]:
    return run.state == "done", len(run.rounds), sum(record.metrics is not None for record in run.rounds)


def _parting(one: StoredRun, other: StoredRun) -> int | None:
    """The first round in which two runs differ, as far as both go; None if they never do."""
    for a, b in zip(one.rounds, other.rounds, strict=False):
        looked = a.metrics is not None and b.metrics is not None
        if _told(a, looked) != _told(b, looked):
            return a.round
    return None


def _told(record: RoundRecord, metrics: bool) -> str:
    content: dict[str, Any] = record.to_dict()
    left_out = {"seconds"} if metrics else {"seconds", "metrics"}
    if metrics:
        content["metrics"] = {k: v for k, v in content["metrics"].items() if k not in ("own", "breakdown")}
    # As text: what is not a number equals itself there.
    return json.dumps({key: value for key, value in content.items() if key not in left_out})


def _copy_said(kept: StoredRun, copy: StoredRun) -> str:
    if str(copy.path) == str(kept.path):
        return f"'{copy.path}' was given more than once, {COUNTED_ONCE}"
    part = "the same run as" if len(copy.rounds) == len(kept.rounds) else "an earlier state of"
    return f"'{copy.path}' holds {part} '{kept.path}' {COUNTED_ONCE}"


def _contradiction_said(runs: Sequence[StoredRun]) -> str:
    first = runs[0]
    places = ", ".join(f"'{run.path}'" for run in runs)
    since = min(at for run in runs[1:] if (at := _parting(first, run)) is not None)
    what = f"{first.experiment.title}, seed {first.experiment.seed}"
    return (
        f"{places} have the same experiment and seed ({what}), but different records from round {since} on; "
        "they are shown separately and not averaged."
    )
