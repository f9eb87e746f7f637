"""The audit against brute force on random cases: experiments/audit_oracle.py in small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from everfed import Fleet, Greedy, UniformWindow
from everfed.energy.battery import Storage
from everfed.scheduling.policies import Energy

SCRIPTS = Path(__file__).parents[1] / "experiments"


@pytest.fixture(scope="module")
def oracle():
    sys.path.insert(0, str(SCRIPTS))
    import audit_oracle

    yield audit_oracle
    sys.path.remove(str(SCRIPTS))
    del sys.modules["audit_oracle"]


@pytest.mark.parametrize("block", range(4))
def test_every_exact_number_is_what_happens(oracle, block):
    """Over every arrival process, storage, capacity, offset, policy and server rule."""
    rng = np.random.default_rng(1000 + block)
    found, exact = [], 0
    for _ in range(20):
        wrong, known = oracle.disagreements(oracle.random_case(rng), seeds=400)
        found, exact = found + wrong, exact + known
    assert found == []
    assert exact >= 3  # of the 20, some have exact values


def test_the_oracle_notices_a_law_that_ignores_storage(oracle, monkeypatch):
    """The defect that the oracle was written for: the law of batteries that lose nothing, for one that does."""
    fleet = Fleet.from_cycles([2, 4, 5], capacity=3, storage=Storage(standby=0.2))
    case = oracle.Case(fleet, UniformWindow(), None, np.full(3, 1 / 3), 40, np.ones((3, 1)))
    assert oracle.disagreements(case, seeds=200) == ([], False)
    monkeypatch.setattr("everfed.scheduling.laws._slots_paid_for", lambda fleet, windows: True)
    wrong, known = oracle.disagreements(case, seeds=200)
    assert known
    assert any(line.startswith("mean_weight") for line in wrong)


@pytest.mark.parametrize("seeds", [5, 20])
def test_unbiased_schedules_are_hardly_ever_called_biased(oracle, seeds):
    rates = oracle.error_rates(150, seeds, np.random.default_rng(seeds))
    assert rates["unbiased"] >= 15
    # At most 1 in 100 is stated: more than 3 of some 30 would have a chance below 1 in 1,000.
    assert rates["false alarms"] <= 3
    assert rates["false alarms in rounds"] <= 3
    large = rates["missed by size of the bias"]["1-"]
    assert large["missed"] <= 0.2 * large["biased"] + 1


def test_the_limit_is_greedy_s_rate_and_no_schedule_joins_more_often(oracle):
    """Early spending leaves the most: over random storages nobody takes part more often than greedy."""
    rng, tried = np.random.default_rng(5), 0
    while tried < 40:
        case = oracle.random_case(rng)
        if case.policy.energy is not Energy.OBEYED or case.fleet.storage.cost_spread > 0.0:
            continue
        tried += 1
        joins, _, _ = oracle.weights_by_brute_force(case, 20)
        most, _, _ = oracle.weights_by_brute_force(
            oracle.Case(case.fleet, Greedy(), None, case.shares, case.rounds, case.vectors), 20
        )
        assert np.all(joins.cumsum(axis=1) <= most.cumsum(axis=1)), case.words()


def test_the_page_says_what_the_json_says():
    docs = SCRIPTS.parent / "docs" / "results"
    found, page = json.loads((docs / "audit.json").read_text()), (docs / "audit.md").read_text(encoding="utf-8")
    assert f"{found['cases']:,} random cases" in page
    assert f"{found['with exact weights']} of the cases have exact weights" in page
    assert f"**Disagreements: {len(found['disagreements'])}.**" in page
    for seeds, rates in found["rates"].items():
        missed = [f"{v['missed']} of {v['biased']}" for v in rates["missed by size of the bias"].values()]
        kinds = (("false alarms", "unbiased"), ("false alarms in rounds", "unbiased rounds"))
        alarms = [f"{rates[alarms]} of {rates[tried]}" for alarms, tried in kinds]
        assert f"| {' | '.join([seeds, *alarms, *missed])} |" in page
