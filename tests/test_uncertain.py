"""Policies for energy that nobody can foresee."""

from __future__ import annotations

import numpy as np
import pytest

from everfed import Fleet, InputError, audit, plan
from everfed.energy.profile import Profile
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, View
from everfed.scheduling.uncertain import SelfWeighted, Thrifty, participation_chance

RATES = (0.05, 0.2, 0.5, 0.9)
CHANCES = (0.1, 0.5, 1.0)


class TestParticipationChance:
    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("chance", CHANCES)
    def test_a_battery_of_one_unit_has_the_closed_form(self, rate, chance):
        closed = chance * rate / (chance + rate - chance * rate)
        assert participation_chance(rate, 1, 1, chance) == pytest.approx(closed, rel=1e-12)

    @pytest.mark.parametrize("rate", RATES)
    def test_spending_at_once_wastes_nothing(self, rate):
        for capacity in (1, 2, 5):
            assert participation_chance(rate, capacity, 1, 1.0) == pytest.approx(rate, rel=1e-12)

    @pytest.mark.parametrize(("capacity", "min_units", "chance"), [(1, 1, 0.3), (3, 1, 0.3), (3, 3, 1.0), (5, 2, 0.4)])
    def test_energy_balances_in_the_long_run(self, capacity, min_units, chance):
        """What is spent is what comes less what overflows, measured on a fleet against the solved chain."""
        fleet = Fleet.from_cycles([4] * 4000, arrivals="bernoulli", capacity=float(capacity))
        policy = Thrifty(min_units=min_units, chance=chance)
        schedule = Schedule(fleet, policy, seed=1)
        before = list(schedule.rounds(0, 200))[-1].energy
        after = list(schedule.rounds(200, 600))[-1].energy
        devices_rounds = 4000 * 400
        spent, overflow = ((getattr(after, k) - getattr(before, k)) / devices_rounds for k in ("spent", "wasted"))
        solved = participation_chance(0.25, capacity, min_units, chance)
        assert spent == pytest.approx(solved, rel=0.01)
        assert spent == pytest.approx(0.25 - overflow, abs=0.002)


class TestThrifty:
    def test_is_unbiased_once_batteries_have_settled(self):
        fleet = Fleet.from_cycles([2, 5, 20] * 300, arrivals="bernoulli", capacity=3.0)
        policy = Thrifty(min_units=2, chance=0.5)
        weight = np.zeros(len(fleet))
        for step in plan(fleet, policy, rounds=1200, seed=4):
            if step.round >= 200:
                weight[step.clients] += step.scales / 1000
        by_cycle = weight.reshape(-1, 3).mean(axis=0)
        np.testing.assert_allclose(by_cycle, 1.0, atol=0.02)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Thrifty(min_units=0), "min_units is 0"),
            (lambda: Thrifty(chance=0.0), "chance is 0.0"),
            (
                lambda: list(plan(Fleet.from_cycles([2]), Thrifty(min_units=2), 3)),
                "battery of 1 units, below min_units = 2",
            ),
        ],
    )
    def test_what_cannot_work_is_refused(self, make, words):
        with pytest.raises(InputError, match=words):
            make()


def weights_along(history, **options):
    """The scales that one client would use in each round, given in which rounds it has energy."""
    policy = SelfWeighted(**options)
    one = np.array([0])
    state = policy.init(Clients(one, np.array([1]), one, 0, np.array([1.0])))
    scales = []
    for r, there in enumerate(history):
        _, scale, state = policy.step(state, View(r, np.array([there]), np.array([float(there)])))
        scales.append(float(scale[0]))
    return scales


class TestSelfWeighted:
    def test_the_path_worked_out_by_hand(self):
        history = [True, False, False, True, False, True]
        # Intervals of 1, 3 and 2 rounds: the weight is 1, then their running means 1, 2 and 2.
        assert weights_along([*history, False]) == pytest.approx([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0])

    def test_a_long_silence_counts_as_an_interval_of_the_cutoff(self):
        assert weights_along([False] * 7, cutoff=3)[3:] == pytest.approx([3.0, 3.0, 3.0, 3.0])

    def test_learns_the_cycle_that_nobody_told(self):
        fleet = Fleet.from_cycles([2, 5, 20] * 100, arrivals="bernoulli")
        weight = np.zeros(len(fleet))
        for step in plan(fleet, SelfWeighted(), rounds=3000, seed=6):
            if step.round >= 1000:
                weight[step.clients] += step.scales / 2000
        np.testing.assert_allclose(weight.reshape(-1, 3).mean(axis=0), 1.0, atol=0.04)

    @pytest.mark.parametrize(("memory", "within"), [(5, 220), (1000, None)])
    def test_a_short_memory_follows_a_supply_that_changes_half_way(self, memory, within):
        """A unit every 5 rounds for 1,000 rounds, then every 20: recovery to 10 % of the new weight.

        With a memory of five the distance of 15 shrinks by a fifth an interval: to 2 in ten of them, 200 rounds.
        """
        often, rarely = np.zeros(1000), np.zeros(1000)
        often[::5], rarely[::20] = 1.0, 1.0
        table = np.concatenate([often, rarely])[None]
        one = np.zeros(1, np.int64)
        fleet = Fleet(Profile(table, one, np.ones(1), one), np.ones(1))
        scales = {
            step.round: step.scales[0] for step in plan(fleet, SelfWeighted(memory=memory), 2000) if len(step.clients)
        }
        assert scales[995] == pytest.approx(5.0, rel=0.01)
        there = [r - 1000 for r, scale in scales.items() if r > 1000 and abs(scale - 20.0) < 2.0]
        assert (min(there) <= within) if within else not there

    def test_an_audit_of_many_seeds_keeps_their_weights_apart(self):
        fleet = Fleet.from_cycles([3] * 4, arrivals="bernoulli")
        together = audit(fleet, SelfWeighted(), rounds=60, seeds=[5, 6])
        alone = [audit(fleet, SelfWeighted(), rounds=60, seeds=[s]) for s in (5, 6)]
        np.testing.assert_allclose(together.mean_weight, np.mean([a.mean_weight for a in alone], axis=0))

    def test_goes_on_after_a_stop(self):
        fleet = Fleet.from_cycles([2, 7] * 3, arrivals="markov")
        whole = [(s.clients.tolist(), s.scales.tolist()) for s in plan(fleet, SelfWeighted(), 50, 3)]
        first, second = (Schedule(fleet, SelfWeighted(), 3) for _ in range(2))
        steps = list(first.rounds(0, 20))
        second.load_state_dict(first.state_dict())
        steps += list(second.rounds(20, 50))
        assert [(s.clients.tolist(), s.scales.tolist()) for s in steps] == whole

    def test_impossible_settings_are_refused(self):
        with pytest.raises(InputError, match="cutoff is 0"):
            SelfWeighted(cutoff=0)
