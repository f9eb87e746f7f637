"""Naming a method: by its name, as a Method, or by a policy alone, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import everfed as ef
from everfed.methods import as_method
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Decision, Energy

FLEET = ef.Fleet.from_cycles([1, 2, 4, 4])


@dataclass(frozen=True)
class RoundRobin(ef.Policy):
    """A policy in a few lines: `step` alone."""

    def step(self, state, view):
        mine = state["clients"]
        turn = (view.round - mine.offsets) % mine.cycles == mine.ids % mine.cycles
        return Decision(turn & (view.round >= mine.offsets) & view.affords, mine.cycles.astype(float), state)


class Bare:
    """All three members, but not derived from the base."""

    def __repr__(self):  # the same in every worker that collects these tests
        return "Bare()"

    def init(self, clients, round=0):
        return {}

    def step(self, state, view):
        return Decision(view.affords, np.ones(view.affords.shape), state)

    def grant(self, wishes):
        return wishes


class TestAsMethod:
    def test_a_policy_alone_is_summed(self):
        assert as_method(ef.Greedy()) == ef.Method(ef.Greedy(), ef.Sum())

    def test_a_policy_goes_with_the_rule_it_is_given(self):
        assert as_method(ef.Greedy(), ef.FedAU()).server == ef.FedAU()

    @pytest.mark.parametrize("name", ef.METHODS)
    def test_names_and_methods_are_taken_as_they_are(self, name):
        assert as_method(name) is as_method(ef.METHODS[name]) is ef.METHODS[name]
        assert as_method(name, ef.METHODS[name].server) is ef.METHODS[name]

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            ("algoritm1", "unknown method 'algoritm1'. Did you mean 'algorithm1'?"),
            (3, "the method is 3; it must be a name such as 'algorithm1', a Method or a policy such as Greedy()."),
            (ef.Greedy, "that is a class; give an instance, such as Greedy()."),
            (Bare(), "it has a step but is not a policy: derive its class from everfed.Policy."),
            (ef.Sum(), "it must be a name such as 'algorithm1'"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize(
        "ask", [as_method, lambda what: ef.plan(FLEET, what, 4), lambda what: ef.audit(FLEET, what, 4)]
    )
    def test_anything_else_is_refused_with_what_would_be_right(self, what, words, ask):
        with pytest.raises(ef.InputError) as refused:
            ask(what)
        assert words in str(refused.value)

    @pytest.mark.parametrize("what", ["truncated", ef.METHODS["truncated"]], ids=str)
    def test_a_second_rule_is_refused(self, what):
        with pytest.raises(
            ef.InputError, match=r"server rule is Sum\(\), but the method 'Algorithm 1, truncated' has its own"
        ):
            ef.audit(FLEET, what, 4, 2, server=ef.Sum())

    @pytest.mark.parametrize(
        ("policy", "words"),
        [
            (Bare(), "derive its class from everfed.Policy"),
            (ef.Greedy, "give an instance, such as Greedy()"),
            ("greedy", "the policy is 'greedy'; it must be a policy such as Greedy()."),
        ],
        ids=str,
    )
    def test_a_method_without_a_policy_is_refused(self, policy, words):
        with pytest.raises(ef.InputError) as refused:
            ef.Method(policy, ef.Sum())
        assert words in str(refused.value)

    def test_a_title_says_what_it_is_made_of(self):
        assert ef.Method(RoundRobin()).title == "RoundRobin"
        assert ef.Method(ef.Greedy(), ef.FedAU(cutoff=9)).title == "Greedy(scaled=False) + FedAU(cutoff=9)"
        assert ef.Method(ef.Greedy(), ef.Sum(), "mine").title == "mine"


class TestOneName:
    """The same method, however it is named."""

    def test_in_a_plan(self):
        steps = [
            [s.clients.tolist() for s in ef.plan(FLEET, what, 12)]
            for what in ("greedy", ef.METHODS["greedy"], ef.Greedy())
        ]
        assert steps[0] == steps[1] == steps[2]

    def test_in_an_audit(self):
        named = ef.audit(FLEET, "truncated", 40, 5)
        assert named.to_dict() == ef.audit(FLEET, ef.UniformWindow(), 40, 5, server=ef.Truncated()).to_dict()
        cut = ef.Method(ef.UniformWindow(), ef.Truncated(2.0))
        assert ef.audit(FLEET, cut, 40, 5).exact.mean_weight.tolist() == [1.0, 1.0, 0.5, 0.5]

    def test_in_a_simulation(self):
        data = ef.load("digits").partition(clients=4, how="iid", seed=0)
        runs = [
            ef.simulate("mlp", data, FLEET, what, rounds=4, local_steps=1, device="cpu").params
            for what in ("greedy", ef.Method(ef.Greedy()), ef.Greedy())
        ]
        for name, value in runs[0].items():
            assert value.equal(runs[1][name])
            assert value.equal(runs[2][name])


class TestAPolicyOfOnesOwn:
    def test_is_planned_audited_and_trained(self):
        steps = [step.clients.tolist() for step in ef.plan(FLEET, RoundRobin(), 4)]
        assert steps == [[0], [0, 1], [0, 2], [0, 1, 3]]
        found = ef.audit(FLEET, RoundRobin(), 40, 20)
        assert found.over_the_run.unbiased
        assert found.in_every_round.unbiased is False

    def test_has_defaults_for_all_but_its_step(self):
        mine = RoundRobin()
        assert (mine.energy, mine.learns, mine.foresight, mine.coordinated) == (Energy.OBEYED, False, 0, False)

    def test_without_a_step_is_none(self):
        with pytest.raises(TypeError, match="step"):
            type("Idle", (ef.Policy,), {})()

    def test_with_its_own_grant_needs_leave_and_gets_what_is_granted(self):
        class Alone(ef.Greedy):
            """The server lets one client train: the first that wishes to."""

            def grant(self, wishes):
                return wishes & (np.cumsum(wishes, axis=-1) == 1)

        assert Alone().coordinated
        joined = [Schedule(FLEET, Alone(), np.arange(2)[:, None]).step(0)[0].tolist()]
        assert joined == [[[True, False, False, False]] * 2]
