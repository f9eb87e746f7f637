"""Clients that never train are told of: before the run, in its result, in words about groups and reasons."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import everfed as ef
import report_runs
from everfed.cli import main
from everfed.energy.battery import Storage
from everfed.energy.fleet import Fleet
from everfed.errors import EverfedWarning, counted
from everfed.report.data import page_data
from everfed.report.notes import silence, silences
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.scheduling import silent
from everfed.scheduling.plan import Schedule
from everfed.scheduling.table import POLICIES
from plans import participations

THIRSTY = Storage(standby=0.2)


@dataclass(frozen=True)
class Little:
    """1/E a round from the start, and nothing where E is 0."""

    cycles: np.ndarray

    @property
    def offsets(self):
        return np.zeros(len(self.cycles), np.int64)

    def harvest(self, round, seed):
        return np.where(self.cycles > 0, 1.0 / np.maximum(self.cycles, 1), 0.0)

    def part(self, clients):
        return Little(self.cycles[clients])


def said(fleet, policy, rounds, seed=0):
    """What a plan warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ef.plan(fleet, policy, rounds, seed)
    texts = [str(w.message) for w in caught if issubclass(w.category, EverfedWarning)]
    return [text for text in texts if "train" in text]


@pytest.mark.parametrize(
    ("fleet", "policy", "rounds", "expected"),
    [
        # Algorithm 1 with a client whose standby eats what comes.
        (
            ef.Fleet.from_cycles([2, 4, 5], capacity=3, storage=THIRSTY), ef.UniformWindow(), 200,
            "1 of 3 clients never train in 200 rounds: the only client of E=5 (standby draws what they harvest). "
            "So the model learns nothing from their data.",
        ),
        (
            ef.Fleet.from_cycles([6, 6, 8], capacity=3, storage=THIRSTY), ef.Greedy(), 200,
            "nobody trains in 200 rounds: all 2 of E=6 (standby draws what they harvest); "
            "the only client of E=8 (standby draws what they harvest). So the model does not change.",
        ),
        (
            ef.Fleet.from_cycles([1, 2, 2], [0, 10, 3]), ef.Greedy(), 10,
            "1 of 3 clients never train in 10 rounds: 1 of the 2 of E=2, client 1 "
            "(their first energy arrives after the run). So the model learns nothing from their data.",
        ),
        (
            ef.Fleet.from_cycles([4, 4], storage=Storage(charging=0.5, leak=0.5)), ef.Greedy(), 40,
            "nobody trains in 40 rounds: all 2 of E=4 (charging losses and leakage take what they harvest).",
        ),
        (
            Fleet(Little(np.array([1, 9])), np.array([2.0, 2.0])), ef.Greedy(), 8,
            "1 of 2 clients never train in 8 rounds: the only client of E=9 (they harvest less than one round costs).",
        ),
        (
            Fleet(Little(np.array([1, 0])), np.array([2.0, 2.0])), ef.Greedy(), 8,
            "1 of 2 clients never train in 8 rounds: the only client of E=0 (they harvest nothing).",
        ),
        (
            Fleet(Little(np.array([1, 2])), np.array([2.0, 0.9])), ef.Greedy(), 8,
            "1 of 2 clients never train in 8 rounds: the only client of E=2 (their battery holds less than one round",
        ),
    ],
)  # fmt: skip
def test_it_says_who_and_why(fleet, policy, rounds, expected):
    (text,) = said(fleet, policy, rounds)
    assert text.startswith(expected)


def test_reasons_that_lie_with_the_policy():
    (text,) = said(ef.Fleet.from_cycles([1, 1, 3], [0, 0, 30]), ef.WaitForAll(), 20)
    assert "all 2 of E=1 (the policy waits for a round in which every client has energy, and there is none)" in text
    assert "the only client of E=3 (their first energy arrives after the run)" in text
    seed = next(s for s in range(99) if said(ef.Fleet.from_cycles([50]), ef.UniformWindow(), 5, s))
    (text,) = said(ef.Fleet.from_cycles([50]), ef.UniformWindow(), 5, seed)
    assert "they had the energy for a round, but the policy scheduled none in time" in text
    seed = next(s for s in range(99) if said(ef.Fleet.from_cycles([50]), ef.Bernoulli(), 5, s))
    assert "no round was drawn for them" in said(ef.Fleet.from_cycles([50]), ef.Bernoulli(), 5, seed)[0]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    cycles=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    late=st.integers(0, 12),
    policy=st.sampled_from(sorted(POLICIES)),
    arrivals=st.sampled_from(["lump", "trickle", "markov"]),
    storage=st.sampled_from([Storage(), THIRSTY, Storage(charging=0.6, leak=0.1), Storage(0.9, cost_spread=0.3)]),
    rounds=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_it_warns_of_those_who_do_not_train_and_of_nobody_else(cycles, late, policy, arrivals, storage, rounds, seed):
    offsets = [0] * (len(cycles) - 1) + [late]
    fleet = ef.Fleet.from_cycles(cycles, offsets, arrivals=arrivals, capacity=3, storage=storage)
    rule = POLICIES[policy]()
    counts = participations(Schedule(fleet, rule, seed).rounds(0, rounds), len(fleet))
    texts = said(fleet, rule, rounds, seed)
    absent = int((counts == 0).sum())
    if absent == 0:
        assert texts == []
    else:
        start = "nobody trains" if absent == len(fleet) else f"{absent} of {len(fleet)} clients never train"
        assert texts[0].startswith(f"{start} in {counted(rounds, 'round')}: ")
        assert len(texts) == 1


def test_a_fleet_in_which_all_train_costs_a_look_at_its_longest_cycle_only(monkeypatch):
    steps = []
    real = Schedule.step
    monkeypatch.setattr(Schedule, "step", lambda self, r: (steps.append(r), real(self, r))[1])
    ef.plan(ef.Fleet.from_cycles([1, 5, 10]), ef.Greedy(), 10_000)
    assert len(steps) == 1  # all hold a unit at the start


def simulated(fleet, method="algorithm1", rounds=10, **changes):
    data = ef.from_arrays([(np.ones((2, 1)), [0, 1]) for _ in range(len(fleet))])
    return ef.simulate("logistic", data, fleet, method, rounds=rounds, batch_size=2, device="cpu", **changes)


def test_a_simulation_warns_before_it_begins_or_else_when_it_has_ended(monkeypatch):
    fleet = ef.Fleet.from_cycles([1, 5], [0, 50])
    with pytest.warns(EverfedWarning, match="1 of 2 clients never train in 10 rounds: the only client of E=5") as early:
        simulated(fleet)
    monkeypatch.setattr(silent, "_MOST_STEPS", 3)  # too much to look ahead
    with pytest.warns(EverfedWarning, match="1 of 2 clients never train in 10 rounds: the only client of E=5") as late:
        simulated(fleet)
    assert [sum("never train" in str(w.message) for w in caught) for caught in (early, late)] == [1, 1]


def test_a_server_that_waits_for_a_silent_client_is_told_of():
    with pytest.warns(EverfedWarning, match="The server waits for them, so the model never moves"):
        history = simulated(ef.Fleet.from_cycles([1, 5], [0, 50]), "mifa", client=ef.SGD(0.1))
    assert all(record.update_norm == 0.0 for record in history.rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulated(ef.Fleet.from_cycles([1, 5]), "mifa", client=ef.SGD(0.1))


@pytest.mark.parametrize(("state", "until"), [("diverged", 0), ("diverged", 2), ("stopped", 0), ("running", 0)])
def test_nothing_is_said_of_a_run_that_ended_before_their_turn_came(state, until):
    made = Experiment(fleet=CycleFleet(4, (1, 20)), rounds=5, device="cpu")
    run = report_runs.untrained(made, "one", state)
    assert "never train" in silence(replace(run, state="done"))
    run = replace(run, rounds=run.rounds[:until])
    assert silence(run) == ""
    assert silences([("one", [run])]) == []


def test_the_page_says_it_of_every_method():
    some = Experiment(fleet=CycleFleet(4, (1, 2), (0, 99)), rounds=8, device="cpu")
    runs = [report_runs.untrained(replace(some, seed=seed), str(seed)) for seed in (0, 1)]
    runs.append(report_runs.untrained(some.with_method("fedavg"), "fedavg"))
    (note,) = page_data(runs)["notes"]
    assert note.startswith("Algorithm 1, seed 0: 2 of 4 clients never train in 8 rounds: all 2 of E=2 (their first")
    assert note.endswith("(2 of 2 runs are like that.)")


@pytest.mark.parametrize("command", ["run", "plan", "compare", "report"])
def test_commands_say_it(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    fleet = ["--clients", "4", "--cycles", "1,2", "--offsets", "0,9", "--rounds", "4", "--device", "cpu"]
    light = ["--local-steps", "1", "--batch-size", "2"]
    given = {
        "run": ["run", "digits", *fleet, *light, "--out", "mine"],
        "plan": ["plan", *fleet],
        "compare": ["compare", *fleet, *light, "--methods", "greedy,wait-for-all", "--seeds", "1", "--jobs", "1"],
        "report": ["report", "mine"],
    }  # fmt: skip

    def everfed(arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return " ".join(capsys.readouterr().err.split())

    if command == "report":
        everfed(given["run"])
    told = everfed(given[command])
    assert "2 of 4 clients never train in 4 rounds: all 2 of E=2 (their first energy" in told
    if command == "compare":
        assert "wait-for-all, seed 0: nobody trains in 4 rounds" in told
        assert any(
            "nobody trains" in note
            for note in json.loads(Path("everfed-out/compare/summary.json").read_text())["notes"]
        )
    if command == "report":
        assert "never train in 4 rounds" in Path("report.html").read_text()
