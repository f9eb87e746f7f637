"""Stored runs for the tests of reports: short real ones, and long ones without any training."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from everfed.auditing.weighing import weighed
from everfed.energy.battery import Books
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.work import MOMENTS
from everfed.errors import EverfedWarning
from everfed.learning.metrics import Metrics
from everfed.methods import plan
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.history import Arrived, RoundRecord
from everfed.run.start import start
from everfed.scheduling.plan import PlanStep
from everfed.scheduling.timeline import Timeline
from everfed.server.mode import arrival_rule
from everfed.store.reading import StoredRun

METHODS = ("algorithm1", "greedy", "fedavg")


@functools.cache
def trained() -> tuple[StoredRun, ...]:
    """Three methods and two seeds, really trained."""
    base = Experiment(fleet=CycleFleet(8, (1, 2, 4)), rounds=40, local_steps=2, eval_every=5, device="cpu")
    return tuple(_train(replace(base, seed=seed).with_method(m)) for m in METHODS for seed in (0, 1))


def _train(experiment: Experiment) -> StoredRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EverfedWarning)
        records = list(start(experiment))
    where = Path(f"{experiment.method}-{experiment.seed}")
    return StoredRun(records, {}, where, experiment, "done", {"python": "3.11", "packages": {"torch": "2.5"}})


def untrained(experiment: Experiment, name: str = "synthetic", state: str = "done") -> StoredRun:
    """A run with its true schedule, and an accuracy that grows from 0.1 to 0.9."""
    fleet, records = experiment.make_fleet(), []
    labels = [g.label for g in fleet.groups()]
    every = experiment.eval_every or max(1, experiment.rounds // 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EverfedWarning)
        for step, arrived in _steps(experiment, fleet):
            done = step.round + 1
            accuracy = 0.1 + 0.8 * done / experiment.rounds
            metrics = Metrics(
                2.5 - 2 * accuracy, accuracy, (accuracy,) * 10, (1.0,) * 10,
                dict.fromkeys(labels, accuracy), dict.fromkeys(labels, 1.0),
            )  # fmt: skip
            weight = float(np.sum(step.scales)) / len(fleet)
            record = RoundRecord(
                step.round, step.clients, step.scales, weight, step.energy, update_norm=0.1, train_loss=1.0,
                metrics=metrics if done % every == 0 or done == experiment.rounds else None, seconds=0.01,
                arrived=arrived,
            )  # fmt: skip
            records.append(record)
    return StoredRun(records, {}, Path(name), experiment, state)


def _steps(experiment, fleet):
    """Who takes part in each round, or arrives in it."""
    rule = arrival_rule(experiment.policy, experiment.server, experiment.mode, experiment.work)
    if rule is None:
        yield from ((step, None) for step in plan(fleet, experiment.policy, experiment.rounds, experiment.seed))
        return
    shares, steps = np.full(len(fleet), 1.0 / len(fleet)), experiment.local_steps
    line = Timeline(fleet, experiment.policy, experiment.seed, experiment.make_pace(fleet), experiment.work, steps)
    for number, found in enumerate(weighed(line, rule, shares, experiment.rounds)):
        arrived = Arrived(found.moments / MOMENTS, found.staleness, found.steps, number)
        yield PlanStep(number, found.clients, found.coefficients * len(fleet), found.energy), arrived


def scripted(participants: Sequence[Sequence[int]], accuracy: Sequence[float | None], clients: int = 4) -> StoredRun:
    """A run written by hand: who trains in each round, each for one unit, and the accuracy where there is one."""
    records, spent = [], 0.0
    for r, (who, value) in enumerate(zip(participants, accuracy, strict=True)):
        spent += len(who)
        metrics = (
            None if value is None else Metrics(1.0, value, (value,) * 10, (1.0,) * 10, {"E=1": value}, {"E=1": 1.0})
        )
        books = Books(harvested=2.0 * spent, spent=spent, wasted=0.5 * spent, stored=0.5 * spent)
        joined = np.array(who, np.int64)
        records.append(RoundRecord(r, joined, np.ones(len(who)), 1.0, books, 0.1, 1.0, metrics, 0.01))
    experiment = Experiment(fleet=CycleFleet(clients, (1,)), rounds=len(records), device="cpu")
    return StoredRun(records, {}, Path("scripted"), experiment)


@functools.cache
def devices() -> tuple[StoredRun, ...]:
    """Two groups of solar devices with batteries that leak, draw standby and brown out; a schedule, no training."""
    groups = tuple(
        DeviceGroup(name=site, count=3, site=site, device="esp32", radio="lora-sf7", panel_wp=0.01, battery_wh=0.5)
        for site in ("miami", "sand-point")
    )
    fleet = DeviceFleet(groups, round_s=43200.0, cost_spread=0.3)
    base = Experiment(fleet=fleet, rounds=120, device="cpu")
    return tuple(
        untrained(replace(base, seed=seed).with_method(m)) for m in ("algorithm1", "greedy") for seed in (0, 1)
    )
