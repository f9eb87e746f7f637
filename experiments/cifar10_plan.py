"""About how long the runs of experiments/cifar10.py take on a GPU."""

from __future__ import annotations

from dataclasses import replace

from cifar10 import CONTROLS, Run, Study
from study_runs import Done, markdown

# Milliseconds of a round on an H200 in bf16, by batch: with all 40 clients, and with 13.5 on average. Measured for 50
# (docs/benchmarks.md), reckoned from it for the others: images cost in proportion, Adam's state and launches do not.
ROUND_MS = {10: (3.2, 2.0), 50: (7.3, 3.4), 250: (28.0, 11.0)}
RUN_S, SHARING = 1.1, 1.28  # a run's start and evaluations, and what several processes gain


def seconds(run: Run, rounds: int = 1000) -> float:
    """About how long a run takes alone on an H200."""
    every, some = ROUND_MS.get(run.case.batch, ROUND_MS[50])
    kind = CONTROLS.get(run.method, (run.method,))[0]
    if run.method in ("best-powered-only", "fedavg-quarter"):
        return RUN_S + 0.0025 * rounds
    return RUN_S + {"fedavg": every, "wait-for-all": every / 20}.get(kind, some) * rounds / 1000


def plan(study: Study, done: Done) -> str:
    """What is still to do by stage; rates that are not chosen yet are taken to be the middle of the grid."""
    rows, total, listed = [], 0.0, set[Run]()
    for stage in study.stages:
        one = replace(study, stages=(stage,))
        todo = [run for run in one.runs(done) if run.name not in done]
        for method in stage.methods:
            if stage.rates and one.tuning(stage, method, done)[1] is None:
                middle = stage.rates[len(stage.rates) // 2]
                todo += [Run("final", stage.case, method, middle, seed) for seed in stage.seeds]
        todo = [run for run in todo if run not in listed]
        listed |= set(todo)
        took = sum(seconds(run, study.base.rounds) for run in todo) / SHARING
        total += took
        parts = ", ".join(
            f"{sum(run.part == part for run in todo)} {part}"
            for part in ("tune", "final", "fixed")
            if any(run.part == part for run in todo)
        )
        rows.append([stage.case.name, ", ".join(stage.methods), parts or "done", f"{took:.0f}", f"{total:.0f}"])
    note = "Seconds for one H200, without the grids' extensions; a fixed rate that is a chosen one is not run again."
    return markdown(["case", "methods", "runs", "seconds", "in sum"], rows) + "\n\n" + note
