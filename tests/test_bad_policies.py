"""Policies and arrivals that return what is no decision and no energy: refused by name, never computed with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import everfed as ef
from everfed import InputError
from everfed.energy.arrivals import Lump
from everfed.energy.fleet import Fleet
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.scheduling.policies import Decision, Policy
from everfed.scheduling.silent import never_trained

FLEET = Fleet.from_cycles([1, 2, 1, 2])
DATA = [(np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))] * 4
ONES = np.ones(4)


@dataclass(frozen=True)
class Given(Policy):
    """Returns what it is given, from round 1 on."""

    join: Any = None
    scale: Any = None
    whole: Any = None
    granted: Any = None

    def step(self, state, view):
        if view.round == 0:
            return Decision(view.affords, ONES, state)
        if self.whole is not None:
            return self.whole
        join = view.affords if self.join is None else self.join
        return Decision(join, ONES if self.scale is None else self.scale, state)

    def grant(self, wishes):
        return wishes if self.granted is None else self.granted


def numbers(*values):
    return np.array(values, np.float64)


SCALES = {
    "nan": numbers(np.nan, 1, 1, 1),
    "inf": numbers(1, 1, np.inf, 1),
    "negative": numbers(-1, 1, 1, 1),
    "too few": np.ones(3),
    "too many axes": np.ones((4, 1)),
    "a scalar": 1.0,
    "an array without axes": np.array(1.0),
    "a list": [1.0] * 4,
    "a tensor": torch.ones(4),
    "masked": np.ma.masked_array(np.ones(4), [True, False, False, False]),
    "complex": np.ones(4, np.complex128),
    "texts": np.array(["1"] * 4),
    "objects": np.array([1.0] * 4, object),
    "truths": np.ones(4, np.bool_),
}
JOINS = {
    "whole numbers": np.ones(4, np.int64),
    "floats": np.ones(4),
    "a list": [True] * 4,
    "a scalar": True,
    "a tensor": torch.ones(4, dtype=torch.bool),
    "too few": np.ones(3, np.bool_),
    "masked": np.ma.masked_array(np.ones(4, np.bool_), [True, False, False, False]),
    "complex": np.ones(4, np.complex128),
}
WRONG = (
    {f"scale: {name}": (Given(scale=value), "step returned scale = ") for name, value in SCALES.items()}
    | {f"join: {name}": (Given(join=value), "step returned join = ") for name, value in JOINS.items()}
    | {f"grant: {name}": (Given(granted=value), "grant returned ") for name, value in JOINS.items()}
    | {
        "two values": (Given(whole=(np.ones(4, np.bool_), ONES)), "step returned ("),
        "a number": (Given(whole=3), "step returned 3 "),
        "no state": (Given(whole=(np.ones(4, np.bool_), ONES, None)), "step returned ("),
    }
)


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize(("policy", "words"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize(
    "use",
    [
        lambda policy: list(ef.plan(FLEET, policy, 4)),
        lambda policy: ef.audit(FLEET, policy, 4, 3),
        lambda policy: ef.simulate(
            "logistic", DATA, FLEET, method=ef.Method(policy, ef.Sum()), rounds=4, local_steps=1, batch_size=2
        ),
    ],
    ids=["plan", "audit", "simulate"],
)
def test_what_is_no_decision_is_refused_by_name_and_round(use, policy, words):
    with pytest.raises(InputError) as error:
        use(policy)
    said = str(error.value)
    assert f"the policy Given: its {words}" in said
    assert f" in round {int(policy.granted is None)}; it must be " in said
    assert "\n" not in said


def test_nothing_returned_is_refused():
    class Silent(Policy):
        def step(self, state, view):
            return None

    with pytest.raises(InputError, match="the policy Silent: its step returned None in round 0"):
        list(ef.plan(FLEET, Silent(), 4))


def test_only_the_scales_of_those_who_join_count():
    # A policy may divide by what only participants have.
    policy = Given(scale=numbers(2, np.nan, 3, np.inf))  # clients 1 and 3 have no energy in round 1
    steps = list(ef.plan(FLEET, policy, 2))
    assert steps[1].scales.tolist() == [2.0, 3.0]
    assert ef.audit(FLEET, policy, 2, 3).mean_weight.tolist() == [1.5, 0.5, 2.0, 0.5]


@dataclass(frozen=True)
class Tapped(Lump):
    """Arrivals of one value in round 1."""

    value: Any = None

    def harvest(self, round, seed):
        return super().harvest(round, seed) if round != 1 else self.value


AMOUNTS = {
    "negative": (numbers(1, 1, -1, 1), "is -1 units for client 2; it must be from 0 to 1e+12"),
    "nan": (numbers(np.nan, 1, 1, 1), "is nan units for client 0"),
    "inf": (numbers(1, 1, 1, np.inf), "is inf units for client 3"),
    "more than a battery's level can tell": (numbers(1, 1e18, 1, 1), "is 1e+18 units for client 1"),
    "too few": (np.ones(3), "an array of numbers of shape (4,)"),
    "a scalar": (1.0, "is 1.0; it must be an array of numbers of shape (4,)"),
    "a list": ([1.0] * 4, "an array of numbers"),
    "nothing": (None, "is None; it must be an array of numbers"),
    "masked": (np.ma.masked_array(np.ones(4), [True, False, False, False]), "an array of numbers"),
    "complex": (np.ones(4, np.complex128), "an array of numbers"),
}


@pytest.mark.parametrize(("value", "words"), AMOUNTS.values(), ids=AMOUNTS.keys())
@pytest.mark.parametrize(
    "use",
    [
        lambda fleet: list(ef.plan(fleet, "greedy", 4)),
        lambda fleet: list(ef.plan(fleet, ef.METHODS["known-arrivals"].policy, 4)),
        lambda fleet: ef.audit(fleet, "greedy", 4, 3),
        lambda fleet: never_trained(fleet, ef.Greedy(), np.ones(4, np.bool_), 4, 0),
    ],
    ids=["plan", "forecast", "audit", "silent"],
)
def test_what_is_no_energy_is_refused_by_name_and_round(use, value, words):
    fleet = replace(FLEET, arrivals=Tapped(FLEET.cycles(), FLEET.offsets(), value))
    with pytest.raises(InputError) as error:
        use(fleet)
    assert "Tapped: its harvest of round 1 " in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "values",
    [np.ma.masked_array([1, 2], [True, False]), np.array([1 + 0j, 2]), ["5"], [True], [True, 2], np.array([True]), "1"],
    ids=repr,
)
def test_what_numpy_would_take_for_numbers_is_refused(values):
    for given in ({"cycles": values}, {"cycles": [1, 2], "capacity": values}, {"cycles": [1, 2], "offsets": values}):
        with pytest.raises(InputError, match="must be numbers, one per client"):
            Fleet.from_cycles(**given)


def test_a_supply_beyond_counting_is_refused():
    with pytest.raises(InputError, match=r"gets up to .* times the energy of a round"):
        DeviceFleet(groups=(DeviceGroup(panel_wp=1e25),)).build()
