"""What every policy promises, held over the whole table and over random fleets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from drawing import drawn
from everfed import (
    ARRIVALS,
    METHODS,
    POLICIES,
    Always,
    Bernoulli,
    Fleet,
    Greedy,
    Lattice,
    UniformWindow,
    WaitForAll,
    plan,
)
from everfed.auditing.audit import audit
from everfed.energy.battery import Battery
from everfed.scheduling.foresight import KnownArrivals, Outlook
from everfed.scheduling.laws import law_of
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, Energy, View

deterministic = drawn(25)

# Every row of the table, and every variant that a method uses.
EVERY = list(dict.fromkeys([row() for row in POLICIES.values()] + [method.policy for method in METHODS.values()]))
# Those whose mean weight is 1 in every round, where energy comes in time.
UNBIASED = [
    policy
    for policy in EVERY
    if type(policy) in (UniformWindow, Lattice, KnownArrivals, Always, Bernoulli) and getattr(policy, "scaled", True)
]
PAPER = Fleet.from_cycles([1, 5, 10, 20] * 10)
SEEDS = st.integers(0, 2**64 - 1)


def over(policies):
    return pytest.mark.parametrize("policy", policies, ids=repr)


@st.composite
def fleets(draw, ample=False):
    """Small fleets of every kind; ample: with units that come in time and batteries that no waiting overflows."""
    n = draw(st.integers(1, 6))
    cycles = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
    offsets = draw(st.lists(st.integers(0, 15), min_size=n, max_size=n))
    sizes = st.just(1.0) | st.lists(st.floats(1.0, 3.0), min_size=n, max_size=n)
    capacity = draw(st.none() if ample else st.none() | sizes)
    kinds = sorted(name for name, process in ARRIVALS.items() if process.regular or not ample)
    return Fleet.from_cycles(cycles, offsets, arrivals=draw(st.sampled_from(kinds)), capacity=capacity)


class Recorded:
    """A policy that remembers what every client wished, before any server granted it."""

    def __init__(self, policy):
        self.policy, self.wishes = policy, []

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def step(self, state, view):
        decision = self.policy.step(state, view)
        self.wishes.append(decision.join.copy())
        return decision


class Blackout:
    """Arrivals that end for good at one round."""

    def __init__(self, arrivals, at):
        self.arrivals, self.at = arrivals, at

    def __getattr__(self, name):
        return getattr(self.arrivals, name)

    def part(self, clients):
        return Blackout(self.arrivals.part(clients), self.at)

    def harvest(self, round, seed):
        amounts = self.arrivals.harvest(round, seed)
        return amounts if round < self.at else np.zeros_like(amounts)


def run(schedule, rounds):
    """Who joins and with which scale, [rounds, ..., N] each."""
    steps = [schedule.step(r) for r in rounds]
    return np.array([join for join, _ in steps]), np.array([scale for _, scale in steps])


def as_tuples(steps):
    return [(s.round, s.clients.tolist(), s.scales.tolist(), s.energy) for s in steps]


def seeds_side_by_side(count):
    return np.arange(count, dtype=np.uint64)[:, None]


@over([policy for policy in EVERY if policy.energy is Energy.OBEYED])
class TestEnergy:
    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_nobody_joins_without_the_energy(self, policy, fleet, seed):
        last = list(plan(fleet, policy, 60, seed))[-1]
        assert last.energy.violations == 0
        assert last.energy.shortfall < 1e-6

    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_nobody_spends_more_than_it_harvested(self, policy, fleet, seed):
        # Counted from the arrivals themselves, client by client, without the battery.
        join, _ = run(Schedule(fleet, policy, seed), range(60))
        harvested = np.cumsum([fleet.arrivals.harvest(r, seed) for r in range(60)], axis=0)
        assert np.all(np.cumsum(join, axis=0) <= harvested + 1e-6)


@over(EVERY)
class TestEveryPolicy:
    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_books_balance_in_every_round(self, policy, fleet, seed):
        joined = 0
        for step in plan(fleet, policy, 60, seed):
            joined += len(step.clients)
            assert step.energy.imbalance() == pytest.approx(0.0, abs=1e-9)
            assert step.energy.spent == joined

    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_steps_name_clients_once_in_order_with_a_positive_scale_each(self, policy, fleet, seed):
        for r, step in enumerate(plan(fleet, policy, 60, seed)):
            assert step.round == r
            assert np.all(np.diff(step.clients) > 0)
            assert set(step.clients.tolist()) <= set(range(len(fleet)))
            assert step.scales.shape == step.clients.shape
            assert np.all(step.scales > 0.0)

    @deterministic
    @given(fleet=fleets(), seed=SEEDS, rounds=st.integers(1, 40))
    def test_a_short_plan_is_the_beginning_of_a_long_one(self, policy, fleet, seed, rounds):
        short, long = plan(fleet, policy, rounds, seed), plan(fleet, policy, 2 * rounds, seed)
        assert as_tuples(short) == as_tuples(itertools.islice(long, rounds))

    @deterministic
    @given(fleet=fleets(), seed=SEEDS, at=st.integers(0, 40))
    def test_knows_nothing_of_energy_beyond_its_foresight(self, policy, fleet, seed, at):
        policy = replace(policy, horizon=10) if policy.foresight else policy
        dark = Fleet(Blackout(fleet.arrivals, at), fleet.capacity)
        unaware = range(max(at - policy.foresight, 0))
        np.testing.assert_array_equal(
            run(Schedule(dark, policy, seed), unaware), run(Schedule(fleet, policy, seed), unaware)
        )

    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_a_client_on_its_own_device_decides_as_in_the_fleet(self, policy, fleet, seed):
        recorded = Recorded(policy)
        join, scale = run(Schedule(fleet, recorded, seed), range(40))
        everybody = Clients.of(fleet, seed)
        for i in range(len(fleet)):
            me = everybody.part(np.array([i]))
            mine = fleet.part(np.array([i]))
            outlook = Outlook(mine, seed, (1,), policy.foresight) if policy.foresight else None
            battery, state = Battery(fleet.capacity[[i]]), policy.init(me)
            for r in range(40):
                battery.charge(mine.arrivals.harvest(r, seed))
                view = View(r, battery.affords(), battery.level, outlook.at(r) if outlook else None)
                wish, own_scale, state = policy.step(state, view)
                assert wish.tolist() == [recorded.wishes[r][i]]
                assert own_scale.tolist() == [scale[r, i]]
                granted = join[r, [i]]
                assert policy.coordinated or granted.tolist() == wish.tolist()
                battery.spend(granted)

    @deterministic
    @given(fleet=fleets())
    def test_seeds_side_by_side_are_the_seeds_one_by_one(self, policy, fleet):
        join, scale = run(Schedule(fleet, policy, seeds_side_by_side(3)), range(30))
        assert join.shape == (30, 3, len(fleet))
        for seed in range(3):
            alone, own_scale = run(Schedule(fleet, policy, seed), range(30))
            np.testing.assert_array_equal(join[:, seed], alone)
            np.testing.assert_array_equal(scale[:, seed] if scale.ndim == 3 else scale, own_scale)


@over([policy for policy in EVERY if not policy.learns])
class TestReboots:
    @deterministic
    @given(fleet=fleets(), seed=SEEDS, reboots=st.sets(st.integers(0, 49), max_size=4))
    def test_a_reboot_changes_nothing(self, policy, fleet, seed, reboots):
        untroubled = run(Schedule(fleet, policy, seed), range(50))
        np.testing.assert_array_equal(run_with_reboots(fleet, policy, seed, reboots), untroubled)

    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_a_reboot_before_every_round_changes_nothing(self, policy, fleet, seed):
        untroubled = run(Schedule(fleet, policy, seed), range(50))
        np.testing.assert_array_equal(run_with_reboots(fleet, policy, seed, range(50)), untroubled)


def run_with_reboots(fleet, policy, seed, reboots):
    """The device loses its state, but neither its battery nor its identity."""
    schedule = Schedule(fleet, policy, seed)
    steps = []
    for r in range(50):
        if r in reboots:
            schedule.state = policy.init(Clients.of(fleet, seed), round=r)
        join, scale = schedule.step(r)
        steps.append((join, scale))
    return np.array([join for join, _ in steps]), np.array([scale for _, scale in steps])


class TestFormulas:
    @over([policy for policy in EVERY if law_of(PAPER, policy, 20)])
    @deterministic
    @given(fleet=fleets(ample=True))
    def test_the_law_is_what_happens(self, policy, fleet):
        seeds = 400
        join, scale = run(Schedule(fleet, policy, seeds_side_by_side(seeds)), range(30))
        for r, law in enumerate(law_of(fleet, policy, 30).rounds()):
            frequency = join[r].mean(axis=0)
            deviation = np.sqrt(law.probability * (1.0 - law.probability) / seeds)
            # 6 deviations: thousands of comparisons are made. Certain decisions must match exactly.
            assert np.all(np.abs(frequency - law.probability) <= 6.0 * deviation)
            joins, asked = law.probability > 0.0, np.broadcast_to(scale[r], join[r].shape)
            np.testing.assert_array_equal(asked[:, joins], np.broadcast_to(law.scale, join[r].shape)[:, joins])

    @over([policy for policy in EVERY if law_of(PAPER, policy, 20) and not isinstance(policy, Greedy)])
    @pytest.mark.parametrize("rounds", [40, 107, 200])
    def test_the_gaps_are_what_happens(self, policy, rounds):
        """All gaps that end within the run: long ones are too few, and the law knows it."""
        join, _ = run(Schedule(PAPER, policy, seeds_side_by_side(100)), range(rounds))
        means, variances = law_of(PAPER, policy, rounds).gaps().mean_and_variance()
        for k in range(4):
            lives = join[:, :, k::4].reshape(rounds, -1).T
            gaps = np.concatenate([np.diff(np.flatnonzero(life)) for life in lives])
            assert gaps.mean() == pytest.approx(means[k], abs=5.0 * np.sqrt(variances[k] / gaps.size) + 1e-9)
            assert gaps.var() == pytest.approx(variances[k], rel=0.2)

    def test_a_battery_too_small_for_waiting_leaves_no_formula(self):
        small = Fleet.from_cycles([1, 5], arrivals="trickle", capacity=1)
        assert law_of(small, UniformWindow(), 20) is None
        mean = mean_weight_by_round(small, UniformWindow(), 100, 200).mean(axis=0)
        assert mean[0] == 1.0
        assert mean[1] < 0.75


def mean_weight_by_round(fleet, policy, rounds, seeds):
    """The mean over seeds of join * scale, [rounds, N]."""
    join, scale = run(Schedule(fleet, policy, seeds_side_by_side(seeds)), range(rounds))
    return (join * (scale if scale.ndim == 3 else scale[:, None])).mean(axis=1)


class TestBias:
    @over(UNBIASED)
    def test_the_mean_weight_is_one_in_every_round(self, policy):
        fleet, seeds = Fleet.from_cycles([1, 2, 5, 10, 20]), 4000
        deviation = np.sqrt((fleet.cycles() - 1) / seeds)
        error = np.abs(mean_weight_by_round(fleet, policy, 40, seeds) - 1.0)
        assert np.all(error <= 4.5 * deviation)

    @over(UNBIASED)
    @deterministic
    @given(fleet=fleets(ample=True))
    def test_the_law_is_unbiased_from_each_client_s_start(self, policy, fleet):
        for r, law in enumerate(law_of(fleet, policy, 30).rounds()):
            np.testing.assert_allclose((law.probability * law.scale)[fleet.offsets() <= r], 1.0, rtol=1e-12)

    @over(UNBIASED)
    def test_the_audit_finds_no_bias_in_any_round(self, policy):
        report = audit(PAPER, policy, rounds=100, seeds=20)
        assert report.exact.single_round_bias == pytest.approx(0.0, abs=1e-12)
        np.testing.assert_allclose(report.exact.mean_weight, 1.0)

    @over([policy for policy in EVERY if policy not in UNBIASED])
    def test_the_mean_weight_is_not_one_in_some_round_of_the_others(self, policy):
        error = np.abs(mean_weight_by_round(PAPER, policy, 20, 200) - 1.0)
        assert error.max() > 0.5

    @pytest.mark.parametrize(
        ("policy", "by_group"),
        [
            (Greedy(), [1.0, 0.2, 0.1, 0.05]),
            (UniformWindow(scaled=False), [1.0, 0.2, 0.1, 0.05]),
            (WaitForAll(), [0.05] * 4),
            (Greedy(scaled=True), [1.0] * 4),
        ],
        ids=repr,
    )
    def test_over_time_the_mean_weight_is_the_policy_s_own(self, policy, by_group):
        mean = mean_weight_by_round(PAPER, policy, 100, 5).mean(axis=0)
        np.testing.assert_allclose(mean, by_group * 10, rtol=1e-12)

    def test_greedy_scaled_is_fair_over_time_only(self):
        exact = audit(PAPER, Greedy(scaled=True), rounds=100, seeds=2).exact
        np.testing.assert_allclose(exact.mean_weight, 1.0)
        assert exact.single_round_bias == 19.0


class TestTheTable:
    def test_rows_can_be_built_without_arguments_and_compared(self):
        for row in POLICIES.values():
            assert row() == row()

    def test_says_who_minds_energy_and_who_needs_leave(self):
        assert {name for name, row in POLICIES.items() if row.energy is Energy.IGNORED} == {"bernoulli"}
        assert {name for name, row in POLICIES.items() if row.energy is Energy.UNLIMITED} == {"fedavg"}
        assert {name for name, row in POLICIES.items() if row().coordinated} == {"wait-for-all"}

    @over([policy for policy in EVERY if policy.energy is not Energy.OBEYED])
    def test_who_ignores_energy_does_overdraw(self, policy):
        assert list(plan(PAPER, policy, 100))[-1].energy.violations > 0


class TestWaitForAll:
    def test_grants_a_round_only_if_all_wish_it(self):
        wishes = np.array([[True, True], [True, False], [False, False]])
        assert WaitForAll().grant(wishes).tolist() == [[True, True], [False, False], [False, False]]

    @deterministic
    @given(fleet=fleets(), seed=SEEDS)
    def test_all_train_or_nobody(self, fleet, seed):
        assert {len(step.clients) for step in plan(fleet, WaitForAll(), 60, seed)} <= {0, len(fleet)}


class TestChance:
    @pytest.mark.parametrize("policy", [UniformWindow(), Bernoulli()], ids=repr)
    def test_another_seed_is_another_plan(self, policy):
        assert as_tuples(plan(PAPER, policy, 20, 0)) != as_tuples(plan(PAPER, policy, 20, 1))

    @pytest.mark.parametrize("policy", [UniformWindow(), Bernoulli()], ids=repr)
    def test_clients_of_one_cycle_do_not_move_together(self, policy):
        join, _ = run(Schedule(Fleet.from_cycles([10] * 20), policy, 0), range(200))
        assert len({tuple(column) for column in join.T.tolist()}) == 20

    @pytest.mark.parametrize("policy", [Greedy(), WaitForAll(), Always()], ids=repr)
    def test_others_leave_nothing_to_chance(self, policy):
        assert as_tuples(plan(PAPER, policy, 20, 0)) == as_tuples(plan(PAPER, policy, 20, 1))
