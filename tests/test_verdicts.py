"""What is said about bias: policy and server rule are judged together, and everybody says what the audit says."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import suppress
from dataclasses import replace

import pytest

import everfed as ef
import report_runs
from everfed.cli.app import main
from everfed.report.data import page_data
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet

BIASED, UNBIASED, OPEN, BY_MEMORY = "biased over", "unbiased over", "not decided", "no judgement by weights"
ALGORITHM_1 = ("algorithm1", "lattice", "fixed-phase", "ht-scaffold")

# Whatever the energy does; of a discounted rule, 200 rounds do not say enough.
ARRIVING = {"renewal": UNBIASED, "renewal-discounted": OPEN, "area": "unbiased:", "fedbuff": BIASED, "fedasync": BIASED}

# With a unit at the start of every window, and with units that come by chance: the same policies and rules differ.
EXPECTED = {
    "lump": {
        **dict.fromkeys([*ALGORITHM_1, "known-arrivals", "ht-varp", "fedavg", "bernoulli", "greedy-scaled"], UNBIASED),
        **dict.fromkeys(["greedy", "algorithm1-unscaled", "greedy-normalized", "truncated"], BIASED),
        **dict.fromkeys(["self-weighted", "fedau"], BIASED),  # while they learn
        **dict.fromkeys(["echo", "fedawe"], OPEN),
        **dict.fromkeys(["mifa", "last-updates", "fedvarp", "scaffold"], BY_MEMORY),
        "wait-for-all": "fair but slow",
        **ARRIVING,
    },
    "bernoulli": {
        **dict.fromkeys(["greedy-scaled", "fedavg", "bernoulli"], UNBIASED),
        **dict.fromkeys([*ALGORITHM_1, "truncated"], BIASED),  # slots are skipped where no unit has come
        **dict.fromkeys(["greedy", "algorithm1-unscaled", "greedy-normalized"], BIASED),
        **dict.fromkeys(["self-weighted", "known-arrivals", "fedau", "echo", "fedawe"], OPEN),
        **dict.fromkeys(["mifa", "last-updates", "fedvarp", "ht-varp", "scaffold"], BY_MEMORY),
        "wait-for-all": "fair but slow",
        **ARRIVING,
    },
}


def experiment(arrivals: str, method: str) -> Experiment:
    fleet = CycleFleet(12, (1, 5, 10, 20), arrivals=arrivals)
    return replace(Experiment(fleet=fleet, rounds=200, device="cpu"), eval_every=200).with_method(method)


@pytest.fixture
def everfed(monkeypatch, capsys):
    def printed(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        with suppress(SystemExit):
            main()
        return capsys.readouterr().out

    return printed


@pytest.fixture(scope="module", params=EXPECTED)
def arrivals(request):
    return request.param


@pytest.fixture(scope="module")
def audits(arrivals):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ef.EverfedWarning)
        return {name: ef.audit(experiment(arrivals, name).make_fleet(), name, 200, 20) for name in ef.METHODS}


@pytest.mark.parametrize("name", ef.METHODS)
def test_the_audit_judges_the_policy_with_its_rule(name, arrivals, audits):
    assert audits[name].verdict.startswith(EXPECTED[arrivals][name])


def test_the_page_says_what_the_audit_says_of_every_method(arrivals, audits):
    page = page_data([report_runs.untrained(experiment(arrivals, name), name) for name in ef.METHODS])
    assert {line["method"]: line["verdict"]["verdict"] for line in page["lines"]} == {
        name: found.verdict for name, found in audits.items()
    }


@pytest.mark.parametrize("name", ["truncated", "mifa", "fedau", "greedy-normalized", "ht-varp", "renewal", "fedbuff"])
def test_the_command_says_what_the_audit_says(name, arrivals, audits, everfed):
    options = ["--cycles", "1,5,10,20", "--clients", "12", "--rounds", "200", "--seeds", "20", "--arrivals", arrivals]
    assert json.loads(everfed("audit", "--method", name, *options, "--json"))["verdict"] == audits[name].verdict


def test_a_plan_s_caption_claims_nothing_for_a_rule_that_weighs_anew(everfed):
    said = {m: " ".join(everfed("plan", "--method", m, "--rounds", "20").split()) for m in ("algorithm1", "truncated")}
    assert "1 on average if unbiased" in said["algorithm1"]
    assert "1 on average" not in said["truncated"]
    assert "before the server's rule" in said["truncated"]


@pytest.mark.parametrize("policy", [ef.UniformWindow(), ef.Greedy(scaled=True)], ids=repr)
def test_what_a_rule_remembers_cancels_only_where_scales_are_right_in_every_round(policy):
    """Algorithm 1's are where energy comes in time, and greedy's where it comes by chance."""
    right = {"lump": ef.UniformWindow(), "bernoulli": ef.Greedy(scaled=True)}
    for kind, good in right.items():
        fleet = ef.Fleet.from_cycles([1, 5, 10] * 10, arrivals=kind)
        verdict = ef.audit(fleet, policy, 200, 20, server=ef.Varp()).verdict
        assert verdict.startswith(UNBIASED if policy == good else BY_MEMORY), (kind, verdict)
