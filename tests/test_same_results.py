"""Results are what they were: every run of the table against recorded_results.json (see recorded_runs.py)."""

from __future__ import annotations

import json

import pytest

from recorded_runs import CASES, RESULTS, TOLERANCE, entry, every_kind, machine, missing

RECORDED = json.loads(RESULTS.read_text())
SAME_MACHINE = RECORDED["machine"] == machine()
# Part of every test's name, so that nobody takes the weaker comparison for the stronger.
COMPARED = "to the last bit" if SAME_MACHINE else f"another machine, within {TOLERANCE:g}"


HERE = [name for name, case in CASES.items() if case.how != "ray"]


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}: {COMPARED}") for name in HERE])
def test_a_run_gives_what_it_gave(name):
    compare(name)


@pytest.mark.long
@pytest.mark.parametrize("names", [pytest.param(list(CASES.keys() - HERE), id=COMPARED)])
def test_runs_on_ray_give_what_they_gave(names):
    """In one test, which starts one Ray: several at once, on as many processes of pytest, would take minutes."""
    for name in names:
        compare(name)


def compare(name):
    case = CASES[name]
    if reason := missing(case):
        pytest.skip(reason)
    was, now = RECORDED["runs"][name], entry(case)
    assert now["schedule"] == was["schedule"], f"{name}: other clients take part, or with other scales or energy"
    assert now["sketch"] == pytest.approx(was["sketch"], rel=TOLERANCE), f"{name}: norm of the parameters, losses"
    if SAME_MACHINE:
        assert now["params"] == was["params"], f"{name}: other parameters: {now['sketch']} was {was['sketch']}"
        assert now["records"] == was["records"], f"{name}: the same parameters, other records"


def test_what_must_be_equal_was_recorded_as_equal():
    runs = RECORDED["runs"]
    assert runs.keys() == CASES.keys()
    for case in CASES.values():
        if case.same_as:
            one, other = ({**runs[name], "why": ""} for name in (case.name, case.same_as))
            assert one == other, f"{case.name} is not as {case.same_as}"


def test_every_kind_is_recorded():
    said = {}
    for case in CASES.values():
        for key, value in case.words.items():
            for part in value if isinstance(value, list) else [value]:
                said.setdefault(key, set()).add(
                    part["kind"] if isinstance(part, dict) and "kind" in part else str(part)
                )
    said["client"].add("sgd")  # of the base
    for key in ("trainer", "policy", "server"):  # auto is what is not said; methods bring policies and rules
        said.setdefault(key, set()).update({"auto"} if key == "trainer" else said["method"])
    for key, names in every_kind().items():
        left = (
            set(names) - said[key] - {"sum", "normalized", "compiled"}
        )  # the last has the bits of a machine's compiler
        assert not left, f"no recorded run has {key} = {', '.join(sorted(left))}"
