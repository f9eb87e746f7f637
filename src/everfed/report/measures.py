"""Numbers beside the accuracy or loss: where the energy went, who took part, and how steady the model ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.report.lines import FleetKey, evaluations, fleet_key
from everfed.run.history import RoundRecord
from everfed.stats import jain, summarize
from everfed.store.reading import StoredRun
from everfed.studies.yardstick import ACCURACY, Yardstick, yardstick

LATE_ROUNDS = 200  # the end of a run; its last quarter if that is shorter
_PREFIXES = ((1e10, 1e-9, "GJ"), (1e7, 1e-6, "MJ"), (1e4, 1e-3, "kJ"))
_NOTHING = 1e-6  # of the largest amount: what sums leave over


@dataclass(frozen=True)
class Account:
    """One column of the energy accounts."""

    key: str  # of Books
    name: str
    hint: str
    comes_in: bool = False
    always: bool = False  # shown though it is zero everywhere


# Those that come in, then those that go out: both sides have the same sum.
ACCOUNTS = (
    Account("initial", "held at start", "in the batteries before the first round", comes_in=True),
    Account("harvested", "harvested", "harvested from the environment", comes_in=True, always=True),
    Account("shortfall", "never harvested", "spent beyond what was available", comes_in=True),
    Account("spent", "spent", "on training that was finished", always=True),
    Account("standby", "standby", "drawn asleep or idle"),
    Account("leaked", "leaked", "self-discharge of the batteries, and what charging loses"),
    Account("lost", "lost", "spent on training that failed because the battery ran out"),
    Account("wasted", "wasted", "arrived when the battery was full", always=True),
    Account("stored", "stored", "in the batteries after the last round"),
)


@dataclass(frozen=True)
class Unit:
    """The unit of energy; `factor` converts the accounts' amounts to it."""

    name: str
    words: str
    factor: float = 1.0
    mixed: bool = False  # units of a round in some runs, J in others

    @classmethod
    def of(cls, runs: Sequence[StoredRun]) -> Unit:
        """One unit for all runs, so large that the largest amount has few digits."""
        units = {run.experiment.fleet.energy_unit for run in runs}
        if units == {"J"}:
            highest = max(max(run.energy.harvested, run.energy.spent) for run in runs)
            for least, factor, name in _PREFIXES:
                if highest >= least:
                    return cls(name, name, factor)
            return cls("J", "J")
        if len(units) > 1:
            words = "units of one training round (fleets of cycles) or J (fleets of devices)"
            return cls("units or J", words, mixed=True)
        return cls("units", "units of one training round")


def amount(run: StoredRun, key: str, unit: Unit) -> float:
    """One account of a run. To six places and ten digits: sums leave a few ulps where there is nothing."""
    return float(f"{round(getattr(run.energy, key), 6):.10g}") * unit.factor


def accounts(runs: Sequence[StoredRun]) -> list[Account]:
    """The accounts to show: columns that are zero everywhere are left out."""
    highest = max((getattr(run.energy, a.key) for a in ACCOUNTS for run in runs), default=0.0)
    return [
        a for a in ACCOUNTS if a.always or any(getattr(run.energy, a.key) > _NOTHING * highest for run in runs)
    ]  # fmt: skip


def wasted_part(run: StoredRun) -> float | None:
    """The part of the harvest that found the battery full."""
    return run.energy.wasted / run.energy.harvested if run.energy.harvested > 0 else None


def fairness(run: StoredRun, clients: int) -> float:
    """Jain's index of how often each client took part: 1 if all are equal, 1/N if only one did, and 1 if none did."""
    joined = np.concatenate([record.participants for record in run.rounds])
    return jain(np.bincount(joined, minlength=clients))


def late_variation(run: StoredRun, rounds: int | None = None, judged: Yardstick = ACCURACY) -> float | None:
    """Sd of the test accuracy or loss over the evaluations at the run's end; None where there are fewer than two.

    The end is the last so many rounds: LATE_ROUNDS unless given, or the last quarter of a run where that is shorter.
    """
    done = len(run.rounds)
    since = done - (min(LATE_ROUNDS, done // 4) if rounds is None else rounds)
    values = [v for r, m in evaluations(run) if r.round >= since and (v := judged.of(m)) is not None]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def reached(run: StoredRun, target: float, judged: Yardstick = ACCURACY) -> RoundRecord | None:
    """The first evaluated round that is as accurate as this, or as low in loss."""
    return next((r for r, m in evaluations(run) if judged.reaches(judged.of(m), target)), None)


def with_measures(
    summary: Mapping[str, dict[str, Any]], labelled: Sequence[tuple[str, StoredRun]]
) -> dict[str, dict[str, Any]]:
    """A sweep's summary with these numbers in it, label by label.

    `to_target` tells what it takes to reach the target the first time: energy and rounds over the
    seeds that got there (None if none did), and how many did.
    """
    judged = yardstick(run for _, run in labelled)
    target = judged.goal(row[judged.name]["mean"] for row in summary.values())
    sizes: dict[FleetKey, int] = {}
    out = {}
    for label, row in summary.items():
        runs = [run for name, run in labelled if name == label and run.state == "done"]
        for run in runs:
            key = fleet_key(run.experiment)
            sizes[key] = sizes.get(key) or len(run.experiment.make_fleet())
        first = [r for run in runs if target is not None and (r := reached(run, target, judged))]
        ended = [v for run in runs if (v := late_variation(run, judged=judged)) is not None]
        parts = [p for run in runs if (p := wasted_part(run)) is not None]
        out[label] = {
            **row,
            "fairness": _spread([fairness(run, sizes[fleet_key(run.experiment)]) for run in runs]),
            "late_variation": _spread(ended),
            "wasted_part": _spread(parts),
            "to_target": {
                judged.name: target,
                "energy": _spread([record.energy.spent for record in first]),
                "rounds": _spread([record.round + 1 for record in first]),
                "reached": len(first),
            },
        }
    return out


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    return summarize(values).to_dict() if values else None
