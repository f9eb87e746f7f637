"""How sure is expected accuracy? Runs are extrapolated from their first part and compared with their end.

    python experiments/expected.py           # makes the runs (half an hour on one core), writes expected.json and .md
    python experiments/expected.py --read    # from the runs that there are

Pilots are the first third, sixth and twelfth of runs of 480 rounds. Half of the cases (every other one of each kind)
say by how much intervals are widened; the other half tests them. Runs land in everfed-out/expected and are resumed or
skipped when started again. The smartwatch's data are downloaded (everfed data get smartwatch).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from expected_cases import EVAL_EVERY, ROUNDS, SEEDS, Case, cases, planned
from expected_page import page

from everfed.advising.expected import FLOOR, LEVEL, Expected, extrapolated
from everfed.advising.pilot import Pilot, read_pilot
from everfed.errors import InputError
from everfed.store import StoredRun
from everfed.studies.sweep import run_all

ROOT = Path(__file__).parents[1]
OUT, RESULTS = Path("everfed-out/expected"), ROOT / "docs/results"
AHEAD = (3, 6, 12)
METRICS = ("accuracy", "loss", "worst_group_accuracy")
# The worst group's accuracy stays where it is until that group is learnt, which no curve knows: it is told apart.
LEARNT_FROM = ("accuracy", "loss")
# Told apart from the rest: no curve can know of them, and the notes of the result say so where they can.
SURPRISES = ("rate that falls to the end", "rate too high", "group that appears late")


@dataclass(frozen=True)
class Trial:
    """One run, extrapolated once."""

    kind: str
    name: str
    half: str  # learn or test
    seeds: str
    metric: str
    ahead: int
    pilot_end: float  # the last value that was known
    value: float
    low: float  # before widening, as high is
    high: float
    floor: float
    end: float  # what it became
    highest: float  # of all values there can be

    @property
    def needed(self) -> float:
        """The factor by which the interval would just contain the end."""
        side = self.high - self.value if self.end > self.value else self.value - self.low
        return abs(self.end - self.value) / (max(side, 0.0) + self.floor) if self.floor else math.inf

    def width(self, factor: float) -> float:
        low = self.value - factor * (self.value - self.low + self.floor)
        high = self.value + factor * (self.high - self.value + self.floor)
        return min(high, self.highest) - max(low, 0.0)


def trials(case: Case, half: str, runs: Sequence[StoredRun]) -> list[Trial]:
    """Every run of a case from its own first part, and all of them together."""
    found = []
    for metric in METRICS:
        for ahead in AHEAD:
            for some in ([run] for run in runs):
                found += _tried(case, half, metric, ahead, some)
            if len(runs) > 1:
                found += _tried(case, half, metric, ahead, list(runs))
    return found


def _tried(case: Case, half: str, metric: str, ahead: int, runs: Sequence[StoredRun]) -> list[Trial]:
    try:
        whole = read_pilot(runs, metric)
        expected = extrapolated(Pilot(metric, whole.lower, whole.bounds, [run.first(1 / ahead) for run in whole.runs]))
    except (InputError, ValueError, IndexError):
        return []  # no evaluation after an update that early
    out = []
    for run, first in zip(whole.runs, expected.pilot.runs, strict=True):
        bare = _bare(expected, float(run.weight[-1]))
        out.append(
            Trial(
                case.kind, case.name, half, "all seeds" if len(runs) > 1 else "one seed", metric, ahead,
                float(first.values[-1]), *bare, FLOOR * expected.left, float(run.values[-1]),
                whole.bounds[1],
            )
        )  # fmt: skip
    return out


def _bare(expected: Expected, weight: float) -> tuple[float, float, float]:
    found = expected.at(weight, widened=False)
    return found.value, found.low, found.high


def learnt(some: Sequence[Trial]) -> float:
    """The conformal factor: the ceil((n + 1) level)-th smallest of those needed."""
    needed = sorted(trial.needed for trial in some)
    return needed[min(math.ceil((len(needed) + 1) * LEVEL), len(needed)) - 1]


def told(some: Sequence[Trial], factor: float) -> dict[str, Any]:
    """How often the end is inside, how wide intervals are, and the error beside that of the last known value."""
    if not some:
        return {}
    widths = [trial.width(factor) for trial in some]
    return {
        "trials": len(some),
        "coverage_bare": statistics.fmean(trial.low <= trial.end <= trial.high for trial in some),
        "coverage": statistics.fmean(trial.needed <= factor for trial in some),
        "width": statistics.median(widths),
        "error": statistics.fmean(abs(trial.end - trial.value) for trial in some),
        "error_median": statistics.median(abs(trial.end - trial.value) for trial in some),
        "error_of_last": statistics.fmean(abs(trial.end - trial.pilot_end) for trial in some),
    }


def judged(found: Sequence[Trial]) -> dict[str, Any]:
    """Factors from one half, coverage on the other, by metric, kind and case."""
    plain = [trial for trial in found if trial.kind not in SURPRISES and trial.metric in LEARNT_FROM]
    factors = {
        ahead: round(learnt([t for t in plain if t.half == "learn" and t.ahead == ahead and t.seeds == "one seed"]), 2)
        for ahead in AHEAD
    }
    tested = [trial for trial in plain if trial.half == "test"]
    kinds = list(dict.fromkeys(trial.kind for trial in found))

    def of(some: Sequence[Trial], **wanted: Any) -> list[Trial]:
        return [t for t in some if all(getattr(t, key) == value for key, value in wanted.items())]

    def by_ahead(some: Sequence[Trial]) -> dict[str, Any]:
        return {str(ahead): told(of(some, ahead=ahead), factors[ahead]) for ahead in AHEAD}

    one = of(tested, seeds="one seed")
    others = [t for t in found if t.kind not in SURPRISES and t.half == "test" and t.seeds == "one seed"]
    return {
        "level": LEVEL,
        "floor": FLOOR,
        "widening": {str(ahead): factor for ahead, factor in factors.items()},
        "tested": by_ahead(one),
        "learnt_on": by_ahead(of(plain, half="learn", seeds="one seed")),
        "both_seeds": by_ahead(of(tested, seeds="all seeds")),
        "metrics": {metric: by_ahead(of(others, metric=metric)) for metric in METRICS},
        "kinds": {k: by_ahead(of(found, kind=k, metric="accuracy", seeds="one seed")) for k in kinds},
        "cases": [_short(t) for t in of(found, metric="accuracy", seeds="one seed")],
    }


def _short(trial: Trial) -> dict[str, Any]:
    left_out = ("metric", "seeds", "highest")
    told_of = {key: value for key, value in asdict(trial).items() if key not in left_out} | {"needed": trial.needed}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in told_of.items()}


def _written(result: dict[str, Any]) -> str:
    """One line per case, all else indented."""
    lines = ",\n  ".join(json.dumps(case) for case in result["cases"])
    return json.dumps({**result, "cases": "CASES"}, indent=1).replace('"CASES"', f"[\n  {lines}\n ]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", action="store_true", help="make no runs")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    found: list[Trial] = []
    states: dict[str, int] = {}
    seen: dict[str, int] = {}
    for case in cases():
        place = seen[case.kind] = seen.get(case.kind, -1) + 1
        plans = planned(case, OUT)
        if given.read:
            plans = [plan for plan in plans if (plan.folder / "result.json").exists()]
        runs = run_all(plans, jobs=given.jobs) if plans else []
        for run in runs:
            states[run.state] = states.get(run.state, 0) + 1
        found += trials(case, "test" if place % 2 else "learn", [run for run in runs if run.state == "done"])
        print(f"{case.kind}: {case.name}", flush=True)
    about = {"runs": states, "cases_run": sum(seen.values()) + len(seen), "rounds": ROUNDS, "eval_every": EVAL_EVERY}
    result = {**about, "seeds": list(SEEDS), **judged(found)}
    (RESULTS / "expected.json").write_text(_written(result) + "\n", encoding="utf-8")
    (RESULTS / "expected.md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
