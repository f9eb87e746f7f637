"""Energy arrives, is stored and is spent, and not a unit of it goes missing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from drawing import drawn
from everfed import ARRIVALS, POLICIES, Always, Books, Fleet, Greedy, InputError, audit, plan
from everfed.energy import devices
from everfed.energy.battery import Battery, Storage
from everfed.energy.fleet import MAX_CYCLE
from everfed.energy.random_arrivals import Markov
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Energy

deterministic = drawn(60)
every_process = pytest.mark.parametrize("process", ARRIVALS.values(), ids=ARRIVALS)

PROFILES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 15)), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**64 - 1)
AMOUNTS = st.floats(0.0, 3.0)


REGULAR = {name: process for name, process in ARRIVALS.items() if process.regular}
RANDOM = {name: process for name, process in ARRIVALS.items() if not process.regular}
regular_process = pytest.mark.parametrize("process", REGULAR.values(), ids=REGULAR)
random_process = pytest.mark.parametrize("process", RANDOM.values(), ids=RANDOM)


def build(process, profile, first_id=0):
    cycles, offsets = (np.array(column, np.int64) for column in zip(*profile, strict=True))
    if process.regular:
        return process(cycles, offsets)
    return process(cycles, offsets, np.arange(first_id, first_id + len(cycles)))


def harvests(arrivals, rounds, seed):
    return np.array([arrivals.harvest(r, seed) for r in rounds])


@every_process
class TestEveryArrivalProcess:
    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_gives_every_client_a_finite_amount_and_never_takes(self, process, profile, seed):
        amounts = harvests(build(process, profile), range(40), seed)
        assert amounts.shape == (40, len(profile))
        assert np.all((amounts >= 0.0) & np.isfinite(amounts))

    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_is_pure(self, process, profile, seed):
        one, other = build(process, profile), build(process, profile)
        forward = harvests(one, range(30), seed)
        np.testing.assert_array_equal(harvests(one, range(30), seed), forward)
        np.testing.assert_array_equal(harvests(other, reversed(range(30)), seed)[::-1], forward)

    @deterministic
    @given(profile=PROFILES, seed=SEEDS, rounds=st.integers(1, 30))
    def test_first_rounds_do_not_change_when_the_horizon_grows(self, process, profile, seed, rounds):
        short = harvests(build(process, profile), range(rounds), seed)
        long = harvests(build(process, profile), range(2 * rounds), seed)
        np.testing.assert_array_equal(long[:rounds], short)

    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_gives_nothing_before_a_client_starts(self, process, profile, seed):
        arrivals = build(process, profile)
        amounts = harvests(arrivals, range(16), seed)
        assert np.all(amounts[np.arange(16)[:, None] < arrivals.offsets] == 0.0)

    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_a_fleet_is_its_clients_one_by_one(self, process, profile, seed):
        together = harvests(build(process, profile), range(40), seed)
        alone = [harvests(build(process, [client], i), range(40), seed)[:, 0] for i, client in enumerate(profile)]
        np.testing.assert_array_equal(together, np.transpose(alone))

    def test_seeds_side_by_side_are_the_seeds_one_by_one(self, process):
        arrivals = build(process, [(1, 0), (3, 2), (5, 0)])
        seeds = np.arange(4, dtype=np.uint64)[:, None]
        for r in range(10):
            together = np.broadcast_to(arrivals.harvest(r, seeds), (4, 3))
            np.testing.assert_array_equal(together, harvests_of_seeds(arrivals, r, range(4)))

    def test_states_a_window_capacity_of_at_least_a_round(self, process):
        capacity = build(process, [(cycle, 0) for cycle in range(1, 13)]).window_capacity
        assert capacity.shape == (12,)
        assert np.all(capacity >= 1.0)


@regular_process
class TestEveryRegularProcess:
    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_gives_a_unit_in_hand_at_the_start(self, process, profile, seed):
        arrivals = build(process, profile)
        at_start = [arrivals.harvest(int(o), seed)[i] for i, o in enumerate(arrivals.offsets)]
        assert at_start == [1.0] * len(profile)

    @deterministic
    @given(profile=PROFILES, seed=SEEDS)
    def test_gives_a_unit_a_cycle_in_the_long_run(self, process, profile, seed):
        arrivals, windows = build(process, profile), 60
        amounts = harvests(arrivals, range(15 + 12 * windows), seed)
        for client, (cycle, offset) in enumerate(profile):
            total = amounts[offset : offset + windows * cycle, client].sum()
            # What a process hands out early, a unit at most, is all that may be too much.
            assert windows - 1e-9 <= total < windows + 1.0


@random_process
class TestEveryRandomProcess:
    CYCLES = (1, 2, 5, 20)

    def amounts(self, process, rounds=2000, copies=50):
        arrivals = build(process, [(cycle, 0) for cycle in self.CYCLES] * copies)
        return harvests(arrivals, range(rounds), seed=3)

    def test_gives_whole_units_at_the_stated_rate(self, process):
        amounts = self.amounts(process)
        assert set(np.unique(amounts)) <= {0.0, 1.0}
        rates = amounts.mean(axis=0).reshape(-1, len(self.CYCLES)).mean(axis=0)
        # 100,000 rounds per cycle; Markov's spells of 4 rounds leave the fewest independent ones.
        np.testing.assert_allclose(rates, 1.0 / np.array(self.CYCLES), rtol=0.06)

    def test_every_round_has_the_stated_chance(self, process):
        """Over clients, not over time: the process is stationary from its first round on."""
        arrivals = build(process, [(5, 2)] * 20000)
        for r in (0, 1, 2, 3, 7, 100):
            assert arrivals.harvest(r, 11).mean() == pytest.approx(arrivals.chance(r)[0], abs=0.012)

    def test_spending_each_unit_as_it_comes_is_unbiased_and_within_energy(self, process):
        fleet = Fleet.from_cycles([1, 2, 5, 20] * 5, arrivals=next(n for n, p in ARRIVALS.items() if p is process))
        result = audit(fleet, Greedy(scaled=True), rounds=100, seeds=200)
        assert result.verdict.startswith("unbiased")
        assert result.violations == 0


class TestMarkov:
    def test_good_spells_last_as_long_as_stated(self):
        arrivals = Markov(np.full(40, 5), np.zeros(40, np.int64), spell=6.0)
        good = harvests(arrivals, range(6000), seed=1) > 0
        stays = (good[1:] & good[:-1]).sum() / good[:-1].sum()
        assert 1.0 / (1.0 - stays) == pytest.approx(6.0, rel=0.05)

    def test_any_round_can_be_asked_for_on_its_own(self):
        cycles, offsets = np.array([2, 5, 50]), np.zeros(3, np.int64)
        stepped = harvests(Markov(cycles, offsets), range(300), seed=9)
        for r in (0, 17, 299):
            np.testing.assert_array_equal(Markov(cycles, offsets).harvest(r, 9), stepped[r])

    @pytest.mark.parametrize(
        ("cycle", "spell", "words"), [(5, 0.5, "spell is 0.5; it must be from 1"), (2, 1.5, "2 rounds at")]
    )
    def test_spells_shorter_than_chance_makes_them_are_refused(self, cycle, spell, words):
        with pytest.raises(InputError, match=words):
            Markov(np.array([cycle]), np.array([0]), spell=spell)


def harvests_of_seeds(arrivals, round_number, seeds):
    return np.array([arrivals.harvest(round_number, seed) for seed in seeds])


class TestLump:
    def test_comes_whole_at_the_start_of_every_window(self):
        amounts = harvests(build(ARRIVALS["lump"], [(1, 0), (4, 0), (3, 2)]), range(9), 0)
        assert amounts[:, 0].tolist() == [1] * 9
        assert amounts[:, 1].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]
        assert amounts[:, 2].tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1]


class TestTrickle:
    def test_comes_in_equal_parts_after_a_first_unit(self):
        amounts = harvests(build(ARRIVALS["trickle"], [(1, 0), (4, 0), (2, 2)]), range(5), 0)
        assert amounts[:, 0].tolist() == [1, 1, 1, 1, 1]
        assert amounts[:, 1].tolist() == [1, 0.25, 0.25, 0.25, 0.25]
        assert amounts[:, 2].tolist() == [0, 0, 1, 0.5, 0.5]


@st.composite
def battery_lives(draw):
    """Capacities [N] and rounds of (arrivals [N], wishes to join [N])."""
    n = draw(st.integers(1, 4))
    capacity = draw(st.lists(st.floats(1.0, 4.0), min_size=n, max_size=n))
    a_round = st.tuples(st.lists(AMOUNTS, min_size=n, max_size=n), st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(capacity), [(np.array(a), np.array(w)) for a, w in draw(st.lists(a_round, max_size=30))]


def within(battery):
    # Taking the overflow out again may round up, by the last bit of a unit.
    return np.all((battery.level >= 0.0) & (battery.level <= battery.capacity * (1.0 + 1e-15)))


class TestBattery:
    @deterministic
    @given(life=battery_lives(), thrifty=st.booleans())
    def test_level_stays_between_empty_and_full(self, life, thrifty):
        capacity, rounds = life
        battery = Battery(capacity)
        for arrived, wish in rounds:
            battery.charge(arrived)
            assert within(battery)
            battery.spend(wish & battery.affords() if thrifty else wish)
            assert within(battery)

    @deterministic
    @given(life=battery_lives(), thrifty=st.booleans())
    def test_books_balance_after_every_move(self, life, thrifty):
        capacity, rounds = life
        battery = Battery(capacity)
        for arrived, wish in rounds:
            battery.charge(arrived)
            assert battery.books().imbalance() == pytest.approx(0.0, abs=1e-9)
            battery.spend(wish & battery.affords() if thrifty else wish)
            assert battery.books().imbalance() == pytest.approx(0.0, abs=1e-9)

    @deterministic
    @given(life=battery_lives())
    def test_books_say_what_happened(self, life):
        capacity, rounds = life
        battery, harvested, spent, wasted, unpaid = Battery(capacity), 0.0, 0, 0.0, 0
        for arrived, wish in rounds:
            before = battery.level.copy()
            battery.charge(arrived)
            harvested += arrived.sum()
            wasted += np.maximum(before + arrived - capacity, 0.0).sum()
            spent += int(wish.sum())
            unpaid += int((wish & ~battery.affords()).sum())
            battery.spend(wish)
        books = battery.books()
        assert (books.spent, books.violations) == (spent, unpaid)
        assert (books.harvested, books.wasted) == (pytest.approx(harvested), pytest.approx(wasted, abs=1e-9))
        assert books.stored == pytest.approx(battery.level.sum())

    @deterministic
    @given(life=battery_lives())
    def test_who_spends_only_what_is_there_violates_nothing(self, life):
        capacity, rounds = life
        battery = Battery(capacity)
        for arrived, wish in rounds:
            battery.charge(arrived)
            battery.spend(wish & battery.affords())
        assert battery.violations == 0
        assert battery.shortfall < 1e-6

    def test_what_does_not_fit_is_wasted(self):
        battery = Battery(np.array([1.5, 3.0]))
        battery.charge(np.array([2.0, 2.0]))
        assert battery.level.tolist() == [1.5, 2.0]
        assert battery.books() == Books(harvested=4.0, wasted=0.5, stored=3.5)

    def test_what_an_empty_battery_cannot_give_is_a_shortfall(self):
        battery = Battery(np.array([2.0, 2.0, 2.0]))
        battery.charge(np.array([0.25, 1.0, 0.0]))
        battery.spend(np.array([True, True, False]))
        assert battery.level.tolist() == [0.0, 0.0, 0.0]
        assert battery.books() == Books(harvested=1.25, spent=2.0, shortfall=0.75, violations=1)

    def test_a_round_may_cost_more_than_a_unit(self):
        battery = Battery(np.array([4.0, 4.0]))
        battery.charge(np.array([2.5, 2.4]))
        assert battery.affords(2.5).tolist() == [True, False]
        battery.spend(np.array([True, False]), cost=2.5)
        assert battery.level.tolist() == [0.0, 2.4]
        assert battery.books().spent == 2.5

    @pytest.mark.parametrize("cycle", [3, 7, 10, 49, 1000, 99_991])
    def test_parts_of_a_unit_add_up_to_one_round(self, cycle):
        battery = Battery(np.array([2.0]))
        for _ in range(cycle - 1):
            battery.charge(np.array([1.0 / cycle]))
        assert not battery.affords()[0]
        battery.charge(np.array([1.0 / cycle]))
        assert battery.affords()[0]
        battery.spend(np.array([True]))
        assert battery.violations == 0

    @deterministic
    @given(life=battery_lives())
    def test_copies_side_by_side_are_separate_batteries(self, life):
        capacity, rounds = life
        together, alone = Battery(capacity, (2,)), [Battery(capacity), Battery(capacity)]
        for arrived, wish in rounds:
            wishes = np.array([wish, ~wish])
            together.charge(arrived)
            together.spend(wishes)
            for battery, own in zip(alone, wishes, strict=True):
                battery.charge(arrived)
                battery.spend(own)
        np.testing.assert_array_equal(together.level, [battery.level for battery in alone])
        for name, total in together.books().to_dict().items():
            assert total == pytest.approx(sum(battery.books().to_dict()[name] for battery in alone), abs=1e-9)

    def test_books_notice_energy_from_nowhere(self):
        assert Books(harvested=3.0, spent=2.0, wasted=0.5, stored=1.5).imbalance() == -1.0


class TestFleetFromCycles:
    def test_keeps_what_it_is_given(self):
        fleet = Fleet.from_cycles([1, 5], [0, 3], capacity=[1.5, 2.0])
        assert len(fleet) == 2
        assert fleet.cycles().tolist() == [1, 5]
        assert fleet.offsets().tolist() == [0, 3]
        assert fleet.capacity.tolist() == [1.5, 2.0]

    def test_starts_everybody_at_round_zero_with_the_paper_s_battery(self):
        fleet = Fleet.from_cycles([1, 5])
        assert fleet.offsets().tolist() == [0, 0]
        assert fleet.capacity.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("name", ARRIVALS)
    def test_takes_every_arrival_process_by_name(self, name):
        fleet = Fleet.from_cycles([1, 5], arrivals=name)
        assert type(fleet.arrivals) is ARRIVALS[name]
        assert np.all(fleet.capacity >= fleet.arrivals.window_capacity)

    def test_trickle_needs_two_units_unless_every_round_is_paid_for(self):
        assert Fleet.from_cycles([1, 2, 20], arrivals="trickle").capacity.tolist() == [1.0, 2.0, 2.0]

    def test_one_capacity_is_for_every_client(self):
        assert Fleet.from_cycles([1, 5, 9], capacity=3).capacity.tolist() == [3.0, 3.0, 3.0]

    @pytest.mark.parametrize("cycles", [np.array([2, 3]), (2, 3), [2.0, 3.0], range(2, 4), np.array([2, 3], np.uint8)])
    def test_takes_whole_numbers_in_any_clothes(self, cycles):
        fleet = Fleet.from_cycles(cycles)
        assert fleet.cycles().dtype == np.int64
        assert fleet.cycles().tolist() == [2, 3]

    def test_takes_the_longest_cycle(self):
        assert Fleet.from_cycles([MAX_CYCLE]).cycles().tolist() == [MAX_CYCLE]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            pytest.param({"cycles": [1, 0]}, ["cycle of client 1 is 0", "from 1"], id="cycle zero"),
            pytest.param({"cycles": [-3]}, ["cycle of client 0 is -3"], id="cycle negative"),
            pytest.param({"cycles": [2, 2, 1.5]}, ["cycle of client 2 is 1.5", "whole"], id="cycle fractional"),
            pytest.param({"cycles": [2, math.nan]}, ["cycle of client 1 is nan"], id="cycle nan"),
            pytest.param({"cycles": [math.inf]}, ["cycle of client 0 is inf"], id="cycle infinite"),
            pytest.param({"cycles": [MAX_CYCLE + 1]}, ["cycle of client 0", str(MAX_CYCLE)], id="cycle too long"),
            pytest.param({"cycles": [0] * 9}, ["client 0, 1, 2, 3, 4 and 4 more"], id="many bad cycles"),
            pytest.param({"cycles": []}, ["at least one client"], id="no clients"),
            pytest.param({"cycles": ["a week"]}, ["cycles", "a week"], id="cycle a word"),
            pytest.param({"cycles": [[1, 2]]}, ["cycles", "2 dimensions"], id="cycles nested"),
            pytest.param({"cycles": 5}, ["cycles", "flat list"], id="cycles no list"),
            pytest.param({"cycles": [1, 2], "offsets": [0]}, ["1 offsets", "2 clients"], id="too few offsets"),
            pytest.param({"cycles": [1], "offsets": [0, 0]}, ["2 offsets", "1 clients"], id="too many offsets"),
            pytest.param({"cycles": [1, 2], "offsets": [0, -1]}, ["offset of client 1 is -1"], id="offset negative"),
            pytest.param({"cycles": [1], "offsets": [0.5]}, ["offset of client 0 is 0.5"], id="offset fractional"),
            pytest.param({"cycles": [1], "offsets": [math.nan]}, ["offset of client 0 is nan"], id="offset nan"),
            pytest.param({"cycles": [1, 1], "capacity": 0.5}, ["capacity", "client 0, 1", "0.5"], id="capacity small"),
            pytest.param({"cycles": [1, 1], "capacity": [1, 0.9]}, ["client 1 has 0.9"], id="one capacity small"),
            pytest.param({"cycles": [1, 1], "capacity": math.nan}, ["capacity", "nan"], id="capacity nan"),
            pytest.param({"cycles": [1, 1], "capacity": [1, math.nan]}, ["client 1 has nan"], id="one capacity nan"),
            pytest.param({"cycles": [1, 1], "capacity": [1]}, ["1 capacities", "2 clients"], id="too few capacities"),
            pytest.param({"cycles": [1], "capacity": [1, 1]}, ["2 capacities", "1 clients"], id="too many capacities"),
            pytest.param({"cycles": [1], "arrivals": "trickel"}, ["'trickel'", "mean 'trickle'"], id="name misspelt"),
            pytest.param({"cycles": [1], "arrivals": "zzz"}, ["'zzz'", *ARRIVALS], id="name unknown"),
        ],
    )
    def test_refuses_bad_input_and_says_which(self, arguments, said):
        with pytest.raises(InputError) as refusal:
            Fleet.from_cycles(**arguments)
        for words in said:
            assert words in str(refusal.value)

    def test_a_bad_name_far_from_any_gets_no_hint(self):
        with pytest.raises(InputError, match="unknown arrival process 'zzz'") as refusal:
            Fleet.from_cycles([1], arrivals="zzz")
        assert "Did you mean" not in str(refusal.value)


class TestGroups:
    def test_are_clients_of_equal_cycle_best_powered_first(self):
        groups = Fleet.from_cycles([20, 1, 5, 1, 20]).groups()
        assert [(g.label, g.clients.tolist(), g.cycles) for g in groups] == [
            ("E=1", [1, 3], (1, 1)),
            ("E=5", [2], (5, 5)),
            ("E=20", [0, 4], (20, 20)),
        ]

    @deterministic
    @given(cycles=st.lists(st.integers(1, 40), min_size=1, max_size=60), at_most=st.integers(1, 12))
    def test_hold_every_client_once_in_the_order_of_cycles(self, cycles, at_most):
        fleet = Fleet.from_cycles(cycles)
        groups = fleet.groups(at_most)
        assert len(groups) <= at_most
        assert sorted(np.concatenate([g.clients for g in groups]).tolist()) == list(range(len(cycles)))
        spans = [g.cycles for g in groups]
        assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(spans))
        for group in groups:
            own = fleet.cycles()[group.clients]
            assert group.cycles == (own.min(), own.max())

    @deterministic
    @given(cycles=st.lists(st.integers(1, 10), min_size=1, max_size=60))
    def test_are_not_merged_while_they_are_few(self, cycles):
        groups = Fleet.from_cycles(cycles).groups(at_most=10)
        assert [g.cycles for g in groups] == [(cycle, cycle) for cycle in sorted(set(cycles))]

    def test_are_merged_into_about_equal_crowds(self):
        groups = Fleet.from_cycles(np.arange(1, 101)).groups(at_most=4)
        assert [g.label for g in groups] == ["E=1-25", "E=26-50", "E=51-75", "E=76-100"]
        assert [len(g.clients) for g in groups] == [25, 25, 25, 25]

    def test_are_merged_by_clients_not_by_cycles(self):
        groups = Fleet.from_cycles([1] * 50 + list(range(2, 52))).groups(at_most=4)
        assert [g.label for g in groups] == ["E=1", "E=2-26", "E=27-51"]


class TestUndivided:
    @pytest.mark.parametrize(
        ("rounds", "cut"), [(12, []), (10, [1, 2]), (9, [0, 2]), (1, [0, 1, 2])], ids=["all fit", "10", "9", "1"]
    )
    def test_names_clients_whose_last_window_is_cut_short(self, rounds, cut):
        assert Fleet.from_cycles([2, 3, 4]).undivided(rounds).tolist() == cut

    def test_counts_from_the_start_of_each_client(self):
        fleet = Fleet.from_cycles([4, 4, 4], [0, 2, 50])
        assert fleet.undivided(12).tolist() == [1]
        assert fleet.undivided(10).tolist() == [0]


STORAGES = st.builds(
    Storage,
    charging=st.floats(0.5, 1.0),
    leak=st.floats(0.0, 0.2),
    standby=st.floats(0.0, 0.3),
    start=st.floats(0.0, 3.0),
    cost_spread=st.sampled_from([0.0, 0.2]),
    browns_out=st.booleans(),
)


class TestRealBatteries:
    @deterministic
    @given(profile=PROFILES, storage=STORAGES, seed=SEEDS, name=st.sampled_from(sorted(ARRIVALS)))
    def test_books_balance_in_every_round_and_levels_stay_within_the_battery(self, profile, storage, seed, name):
        cycles, offsets = zip(*profile, strict=True)
        fleet = Fleet.from_cycles(cycles, offsets, arrivals=name, capacity=2.0, storage=storage)
        for policy in (Greedy(), Always()):
            schedule = Schedule(fleet, policy, seed)
            for step in schedule.rounds(0, 40):
                assert step.energy.imbalance() == pytest.approx(0.0, abs=1e-9)
                assert np.all((schedule.battery.level >= 0.0) & (schedule.battery.level <= 2.0 + 1e-9))
            if storage.browns_out and policy.energy is not Energy.UNLIMITED:
                assert step.energy.violations == 0

    def test_what_each_loss_takes(self):
        storage = Storage(charging=0.8, leak=0.1, standby=0.05, start=1.0)
        battery = Battery(np.array([2.0]), storage=storage)
        battery.charge(np.array([1.0]))
        # 1.0 leaks 0.1, 0.8 of the unit arrives, standby takes 0.05.
        assert battery.level.tolist() == pytest.approx([0.9 + 0.8 - 0.05])
        books = battery.books()
        assert (books.initial, books.harvested, books.leaked, books.standby) == pytest.approx((1.0, 1.0, 0.3, 0.05))

    def test_a_round_that_a_battery_does_not_last_through_is_lost_and_counted(self):
        coins = POLICIES["bernoulli"]()  # joins whatever its battery holds
        kept, real = (Fleet.from_cycles([1, 4, 9] * 5, storage=Storage(browns_out=b)) for b in (False, True))
        free, lossy = (list(plan(fleet, coins, rounds=40, seed=2)) for fleet in (kept, real))
        lost = sum(len(a.clients) - len(b.clients) for a, b in zip(free, lossy, strict=True))
        assert lost == lossy[-1].energy.brownouts == free[-1].energy.violations > 0
        assert lossy[-1].energy.violations == 0

    def test_who_imagines_energy_without_end_does_not_brown_out(self):
        fleet = Fleet.from_cycles([1, 4], storage=Storage(browns_out=True, cost_spread=0.5))
        last = list(plan(fleet, Always(), rounds=8))[-1]
        assert (last.clients.tolist(), last.energy.brownouts, last.energy.violations) == ([0, 1], 0, 6)

    def test_costs_that_vary_lose_some_rounds_at_an_empty_battery(self):
        fleet = Fleet.from_cycles([2] * 400, storage=Storage(cost_spread=0.1))
        last = list(plan(fleet, Greedy(), rounds=2))[-1].energy
        # One unit is there; half of the rounds turn out dearer than that.
        assert last.brownouts == pytest.approx(200, abs=50)
        assert last.spent == pytest.approx(400 - last.brownouts, rel=0.1)

    def test_a_run_in_two_pieces_equals_one(self):
        storage = Storage(charging=0.9, leak=0.01, standby=0.02, cost_spread=0.2, browns_out=True)
        fleet = Fleet.from_cycles([1, 3, 5] * 4, arrivals="markov", capacity=3.0, storage=storage)
        whole = list(plan(fleet, Greedy(), rounds=40, seed=3))
        first, second = Schedule(fleet, Greedy(), 3), Schedule(fleet, Greedy(), 3)
        steps = list(first.rounds(0, 17))
        second.load_state_dict(first.state_dict())
        steps += list(second.rounds(17, 40))
        assert [(s.clients.tolist(), s.energy) for s in steps] == [(s.clients.tolist(), s.energy) for s in whole]

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"charging": 1.2}, "charging .* from 0 to 1"),
            ({"leak": -0.1}, "leak .* from 0 to 1"),
            ({"standby": math.nan}, "standby .* at least 0"),
            ({"cost_spread": 1.0}, "cost_spread .* below 1"),
        ],
    )
    def test_impossible_batteries_are_refused(self, wrong, words):
        with pytest.raises(InputError, match=words):
            Storage(**wrong)


class TestDevices:
    def test_the_cost_of_a_round_is_its_steps_and_its_traffic(self):
        link = devices.Radio(5.0, 2.0, wake_j=0.25, up_bit_s=1e6, down_bit_s=4e6)
        cost = devices.round_cost(devices.Device(3.0, 1.0, 2.0), link, local_steps=4, model_mb=0.5)
        assert cost.joules == pytest.approx(4 * 2.0 * (3.0 - 1.0) + 0.5 * 7.0 + 0.25)
        assert (cost.train_s, cost.up_s, cost.down_s, cost.busy_s) == pytest.approx((8.0, 4.0, 1.0, 13.0))

    def test_who_has_the_model_need_not_fetch_it(self):
        once = {"local_steps": 1, "model_mb": 1.0}
        pi, wifi = devices.device("raspberry-pi-4b"), devices.radio("wifi")
        both, up_only = devices.round_cost(pi, wifi, **once), devices.round_cost(pi, wifi, downloads=False, **once)
        assert both.joules - up_only.joules == pytest.approx(wifi.down_j_per_mb)
        assert up_only.down_s == 0.0

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda: devices.device("raspberry-pi-4"), "Did you mean 'raspberry-pi-4b'"),
            (lambda: devices.Device(-1.0, 0.0), "active_w is -1.0"),
            (lambda: devices.Radio(math.nan, 0.0), "up_j_per_mb is nan"),
            (
                lambda: devices.round_cost(
                    devices.device("esp32"), devices.radio("lora-sf7"), local_steps=5, model_mb=1.0, round_s=60.0
                ),
                "take 100 s, and a round has 60 s",
            ),
        ],
    )
    def test_bad_figures_are_told(self, call, words):
        with pytest.raises(InputError, match=words):
            call()
