"""The loop over its parts: rounds may come from anywhere, and nobody reaches into a run to change one of them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import everfed
import everfed as ef
from everfed.learning.task import PlainTrained, Trained
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.loop import Run
from everfed.run.rounds import Rounds, Training
from everfed.run.setup import Setup
from everfed.scheduling.plan import PlanStep

# Energy is rare enough that in some rounds nobody takes part.
SMALL = Experiment(fleet=CycleFleet(6, cycles=(4, 5, 10)), client=ef.Adam(0.01), rounds=20, eval_every=5, device="cpu")
METHODS = ("algorithm1", "ht-varp", "fedau")
OPTIMIZERS = (ef.ServerSGD(), ef.ServerMomentum(lr=0.5, beta=0.9))

Stored = list[tuple[PlanStep, list[PlainTrained]]]


class Recorded:
    """Rounds of another source, of which every result is kept in the parts in which it came."""

    def __init__(self, source: Rounds) -> None:
        self.source = source
        self.kept: Stored = []

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step, results = self.source.next(round, params)
        self.kept.append((step, []))
        return step, self._keep(results)

    def _keep(self, results: Iterable[Trained]) -> Iterator[Trained]:
        for trained in results:
            copy = PlainTrained(trained.clients.copy(), trained.deltas.clone(), trained.losses.clone())
            self.kept[-1][1].append(copy)
            yield trained


class Replayed:
    """Stored rounds once more, without a schedule, a battery or a trainer."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step, results = self.stored[round]
        # Copies: a server may use up what it is given.
        return step, (PlainTrained(t.clients, t.deltas.clone(), t.losses) for t in results)

    def training(self) -> Training:
        return Training("Replayed", 0, ["the whole model: in an earlier run"], None)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """A round's number says all: nothing is carried over."""


def recorded(experiment: Experiment) -> tuple[Run, list[ef.RoundRecord], Stored]:
    begun = ef.start(experiment, memory_budget=1)  # one participant at a time: a round has many parts
    source = Recorded(begun.source)
    run = replace(begun, source=source)
    return run, list(run), source.kept


def replayed(experiment: Experiment, stored: Stored) -> Run:
    setup = Setup(experiment)
    return Run(setup, Replayed(stored), setup.server(), setup.evaluator())


def untimed(records: Iterable[ef.RoundRecord]) -> list[dict]:
    return [replace(record, seconds=0.0).to_dict() for record in records]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("method", METHODS)
def test_stored_results_replayed_are_the_run_bit_for_bit(method, optimizer, monkeypatch):
    experiment = replace(SMALL.with_method(method), server_optimizer=optimizer)
    run, records, stored = recorded(experiment)
    assert any(len(results) > 1 for _, results in stored)
    assert any(len(step.clients) == 0 for step, _ in stored)
    monkeypatch.setattr(Setup, "trainer", lambda *_, **__: pytest.fail("a replay trained"))
    again = replayed(experiment, stored)
    start = again.server.params.clone()
    assert untimed(again) == untimed(records)
    assert torch.equal(again.server.params, run.server.params)
    assert not torch.equal(again.server.params, start)
    assert set(again.server.state_dict()) == set(run.server.state_dict())
    for name, value in run.server.state_dict().items():
        assert torch.equal(again.server.state_dict()[name], value), name


def test_a_replay_goes_on_from_its_state():
    experiment = replace(SMALL.with_method("ht-varp"), server_optimizer=OPTIMIZERS[1])
    run, records, stored = recorded(experiment)
    first, second = replayed(experiment, stored), replayed(experiment, stored)
    for record in first:
        if record.round == 8:
            break
    second.load_state_dict(first.state_dict())
    assert untimed(second) == untimed(records[9:])
    assert torch.equal(second.server.params, run.server.params)


def test_recording_changes_nothing_and_a_result_that_is_changed_is_noticed():
    run, records, stored = recorded(SMALL)
    plain = ef.start(SMALL, memory_budget=1)
    assert untimed(plain) == untimed(records)
    assert torch.equal(plain.server.params, run.server.params)
    results = next(results for _, results in stored if results)
    results[0].deltas[0, 0] += 1.0
    again = replayed(SMALL, stored)
    list(again)
    assert not torch.equal(again.server.params, run.server.params)


def test_another_way_to_get_a_round_is_short():
    assert len(inspect.getsource(Replayed).splitlines()) < 60
    assert len(inspect.getsource(Run.__iter__).splitlines()) < 100


# -- nobody changes the parts of a run from outside ------------------------------------------------

PARTS = {"source", "server", "schedule", "trainer", "evaluate"}  # of a run, and of its source


def assigned_from_outside(code: str) -> list[str]:
    """Assignments to a part of something that is not `self`, or to what such a part holds."""
    found = []
    for node in ast.walk(ast.parse(code)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in [leaf for t in targets if t is not None for leaf in ast.walk(t)]:
            if not isinstance(target, ast.Attribute) or not isinstance(target.ctx, ast.Store):
                continue
            *holders, name = ast.unparse(target).split(".")
            within = holders[1:] if holders[0] == "self" else holders  # self.run.source.x is outside as well
            if (name in PARTS and within) or PARTS.intersection(holders[1:]):
                found.append(f"line {node.lineno}: {ast.unparse(target)}")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "run.trainer = watched",
        "run.schedule: Schedule = other",
        "run.source.trainer = watched",
        "run.server.params += 1",
        "self.run.source = other",
        "a, run.server = 1, other",
        "for run.source in sources: pass",
    ],
)
def test_an_assignment_from_outside_is_found(code):
    assert assigned_from_outside(code)


@pytest.mark.parametrize("code", ["self.schedule, self.trainer = a, b", "trainer = run.source.trainer", "x.params = 1"])
def test_what_a_part_does_to_itself_is_not_one(code):
    assert not assigned_from_outside(code)


def test_no_module_assigns_to_the_parts_of_a_run():
    root = Path(everfed.__file__).parent
    found = {
        str(path.relative_to(root)): lines
        for path in sorted(root.rglob("*.py"))
        if (lines := assigned_from_outside(path.read_text()))
    }
    # A run that is loaded puts its own server's model back, and so does the strategy that Flower runs.
    assert {path: {line.split(": ")[1] for line in lines} for path, lines in found.items()} == {
        "run/loop.py": {"self.server.params"},
        "flower/strategy.py": {"self.server.params"},
    }
