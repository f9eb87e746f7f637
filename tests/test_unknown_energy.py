"""Energy that is foreseen, misjudged, unknown or changing: what holds exactly, and the study of it in small."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from everfed import Fleet, Greedy, InputError, UniformWindow, audit, plan
from everfed.energy.arrivals import Lump
from everfed.energy.battery import Storage
from everfed.energy.changing import Changing
from everfed.energy.profile import Profile
from everfed.energy.random_arrivals import BernoulliArrivals, Markov
from everfed.run import config
from everfed.run.fleets import CycleFleet
from everfed.scheduling.foresight import KnownArrivals, Outlook
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, View
from everfed.scheduling.uncertain import SelfWeighted
from everfed.server.experience import FedAU

ROOT = Path(__file__).parents[1]
UNEVEN = (0, 1, 4, 11, 13, 20)  # rounds in which a unit comes, over and over in 24
ONE = np.zeros(1, np.int64)


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(ROOT / "experiments"))
    import unknown_energy

    yield unknown_energy
    sys.path.remove(str(ROOT / "experiments"))
    del sys.modules["unknown_energy"], sys.modules["study_runs"]


def supplied(table, capacity=1.0, storage=None):
    """A fleet of one that harvests what the table says, again and again."""
    process = Profile(np.asarray(table, np.float64)[None], ONE, np.ones(1), ONE)
    return Fleet(process, np.array([capacity]), **({} if storage is None else {"storage": storage}))


def timetable():
    table = np.zeros(24)
    table[list(UNEVEN)] = 1.0
    return supplied(table)


def lived(fleet, policy, rounds, seeds=1):
    """(who joins, with which scale), [rounds, seeds, N] each."""
    schedule = Schedule(fleet, policy, np.arange(seeds, dtype=np.uint64)[:, None])
    steps = [schedule.step(r) for r in range(rounds)]
    join = np.array([step[0] for step in steps])
    return join, np.array([np.broadcast_to(step[1], join.shape[1:]) for step in steps])


def scales_of(fleet, policy, rounds):
    """{round: scale} of a fleet of one, where it takes part."""
    return {step.round: float(step.scales[0]) for step in plan(fleet, policy, rounds) if len(step.clients)}


class TestKnownArrivals:
    def test_takes_part_once_in_every_gap_scaled_by_its_length(self):
        join, scale = lived(timetable(), KnownArrivals(), 48, seeds=40)
        opens = [*UNEVEN, *(24 + r for r in UNEVEN), 48]
        for first, last in itertools.pairwise(opens):
            assert np.all(join[first:last].sum(axis=0) == 1)
            assert np.all(scale[first:last] == last - first)

    def test_every_round_counts_once_on_average(self):
        join, scale = lived(timetable(), KnownArrivals(), 24, seeds=4000)
        error = np.abs((join * scale).mean(axis=(1, 2)) - 1.0)
        assert np.all(error <= 4.5 * np.sqrt((scale[:, 0, 0] - 1.0) / 4000))

    def test_with_units_that_come_by_chance_it_is_unbiased_from_the_first_one_on(self):
        """In round r a client has had a unit with chance 1 - (1 - q)^(r + 1), and counts so much on average."""
        fleet = Fleet.from_cycles([4] * 10, arrivals="bernoulli")
        join, scale = lived(fleet, KnownArrivals(), 20, seeds=3000)
        expected = 1.0 - 0.75 ** np.arange(1, 21)
        # The scale is at most some 50, and 7 in the mean: the deviation of 30,000 draws is below 0.02.
        np.testing.assert_allclose((join * scale).mean(axis=(1, 2)), expected, atol=0.08)

    def test_chance_arrivals_make_its_weight_vary_twice_as_much_as_that_of_training_at_once(self):
        fleet = Fleet.from_cycles([5] * 40, arrivals="bernoulli")
        foreseen, at_once = (
            (join * scale)[60:].var()
            for join, scale in (lived(fleet, p, 400, seeds=40) for p in (KnownArrivals(), Greedy(scaled=True)))
        )
        # E[G of the gap a round lies in] = 2E - 1, so the variances are 2E - 2 and E - 1.
        assert foreseen == pytest.approx(8.0, rel=0.05)
        assert at_once == pytest.approx(4.0, rel=0.05)

    def test_a_gap_beyond_the_horizon_closes_there(self):
        fleet = Fleet.from_cycles([50])
        for seed in range(20):
            steps = [s for s in plan(fleet, KnownArrivals(horizon=10), 100, seed) if len(s.clients)]
            assert [s.round // 50 for s in steps] == [0, 1]
            assert all(s.round % 50 < 10 and s.scales.tolist() == [10.0] for s in steps)
        # Exactly so: silent for 40 rounds of 50.
        assert audit(fleet, KnownArrivals(horizon=10), 100, 2).exact.mean_weight == pytest.approx([0.2])
        assert audit(fleet, KnownArrivals(horizon=50), 100, 2).exact.mean_weight == pytest.approx([1.0])

    def test_a_trickle_comes_when_it_has_added_up_to_a_unit(self):
        outlook = Outlook(supplied([0.3], capacity=2.0), 0, (1,), 100)
        # 0.3 a round: whole units after 4, 7, 10 and 14 rounds.
        seen = [tuple(int(v[0]) for v in outlook.at(r)) for r in (2, 3, 6, 9, 12)]
        assert seen == [(-1, 0), (3, 6), (6, 9), (9, 13), (9, 13)]

    def test_what_a_battery_keeps_of_the_day_pays_for_the_night(self):
        """Two units an hour by day, none at night, room for thirteen: everybody trains in every round."""
        join, scale = lived(supplied([2.0] * 12 + [0.0] * 12, capacity=13.0), KnownArrivals(), 96)
        assert np.all(join * scale == 1.0)

    def test_losses_are_foreseen(self):
        storage = Storage(charging=0.5, standby=0.25)
        outlook = Outlook(supplied([1.0], capacity=2.0, storage=storage), 0, (1,), 100)
        assert [int(outlook.at(r).closes[0]) for r in (3, 7)] == [7, 11]  # a quarter of a unit is left each round

    @pytest.mark.parametrize("arrivals", ["lump", "bernoulli", "markov", "uniform-in-block"])
    def test_the_outlook_is_what_comes(self, arrivals):
        fleet = Fleet.from_cycles([1, 3, 8, 30] * 3, list(range(12)), arrivals=arrivals)
        seeds = np.arange(3, dtype=np.uint64)[:, None]
        comes = np.array([np.broadcast_to(fleet.arrivals.harvest(r, seeds), (3, 12)) for r in range(300)]) > 0
        outlook = Outlook(fleet, seeds, (3, 12), horizon=60)
        for r in range(0, 240, 3):  # some rounds are left out
            opened, closes = outlook.at(r)
            for row in np.ndindex(3, 12):
                units = np.flatnonzero(comes[(slice(None), *row)])
                past, later = units[units <= r], units[units > r]
                last = past[-1] if len(past) else -1
                assert opened[row] == last
                if len(past):
                    assert closes[row] == min(later[0] if len(later) else math.inf, last + 60)

    def test_goes_on_after_a_stop(self):
        fleet = Fleet.from_cycles([2, 7] * 3, arrivals="markov")
        whole = [(s.clients.tolist(), s.scales.tolist()) for s in plan(fleet, KnownArrivals(), 50, 3)]
        first, second = (Schedule(fleet, KnownArrivals(), 3) for _ in range(2))
        steps = list(first.rounds(0, 20))
        second.load_state_dict(first.state_dict())
        steps += list(second.rounds(20, 50))
        assert [(s.clients.tolist(), s.scales.tolist()) for s in steps] == whole

    def test_without_a_forecast_or_a_future_it_is_refused(self):
        with pytest.raises(InputError, match="horizon is 0"):
            KnownArrivals(horizon=0)
        policy = KnownArrivals()
        state = policy.init(Clients(ONE, ONE + 1, ONE, 0, np.ones(1)))
        with pytest.raises(InputError, match="needs a forecast"):
            policy.step(state, View(0, np.array([True]), np.ones(1)))


CHANGE = 2000  # late enough for the first weight to be forgotten


def swapped(before, after, at=CHANGE):
    """A client with a unit every `before` rounds, and every `after` from the change on."""
    return Fleet(Changing(Lump(ONE + before, ONE), Lump(ONE + after, ONE), at), np.ones(1))


class TestChanging:
    def test_is_one_process_before_and_another_after(self):
        cycles, start = np.array([2, 5, 9]), np.zeros(3, np.int64)
        before, after = BernoulliArrivals(cycles, start), BernoulliArrivals(cycles[::-1].copy(), start)
        changing = Changing(before, after, at=30)
        for r in range(60):
            side = before if r < 30 else after
            np.testing.assert_array_equal(changing.harvest(r, 7), side.harvest(r, 7))
            np.testing.assert_array_equal(changing.chance(r), side.chance(r))
            np.testing.assert_array_equal(changing.part(np.array([2])).harvest(r, 7), side.harvest(r, 7)[[2]])
        assert changing.cycles.tolist() == [2, 5, 9]

    def test_claims_no_formula_where_a_unit_was_begun_under_the_old_one(self):
        arrivals = swapped(2, 3).arrivals
        assert arrivals.chance(0).tolist() == [1.0]
        assert arrivals.chance(CHANGE) is None

    @pytest.mark.parametrize(
        ("clients", "at", "words"),
        [(1, -1, "at is -1; it must be a whole number of at least 0"), (2, 5, "1 clients before the change and of 2")],
    )
    def test_what_cannot_be_is_refused(self, clients, at, words):
        with pytest.raises(InputError, match=words):
            Changing(Lump(ONE + 1, ONE), Lump(np.ones(clients, np.int64), np.zeros(clients, np.int64)), at)


class TestSpell:
    def test_can_be_set_where_arrivals_come_in_spells(self):
        experiment = config.from_dict({"fleet": {"kind": "cycles", "arrivals": "markov", "spell": 8.0}})
        arrivals = experiment.make_fleet().arrivals
        assert isinstance(arrivals, Markov)
        assert arrivals.spell == 8.0
        assert CycleFleet(arrivals="markov").build().arrivals.spell == 4.0

    def test_means_nothing_for_other_arrivals(self):
        with pytest.raises(InputError, match="spell is 8, but arrivals are 'bernoulli'"):
            CycleFleet(arrivals="bernoulli", spell=8.0).build()


class TestMisjudgedRates:
    @pytest.mark.parametrize(("believed", "true", "weight"), [(10, 5, 2.0), (10, 20, 0.5), (10, 10, 1.0)])
    def test_the_weight_is_off_by_the_factor_of_the_belief(self, believed, true, weight):
        """Clients that changed in round 0 and were not told; by formula, and in every round."""
        cycles, start = np.full(4, believed), np.zeros(4, np.int64)
        arrivals = Changing(BernoulliArrivals(cycles, start), BernoulliArrivals(np.full(4, true), start), 0)
        exact = audit(Fleet(arrivals, np.ones(4)), Greedy(scaled=True), rounds=100, seeds=2).exact
        np.testing.assert_allclose(exact.mean_weight, weight, rtol=1e-12)
        assert exact.single_round_bias == pytest.approx(abs(weight - 1.0))

    def test_the_study_s_misjudging_clients_are_these(self, study):
        fleet = study.paper_fleet(8)
        true, twice, rare = (
            np.array(list(study.weights(fleet, study.Method(study.Misjudged(*a), study.Sum(), ""), 60, 5)))
            for a in ((), (2.0,), (2.0, 20))
        )
        np.testing.assert_array_equal(twice, 2.0 * true)
        np.testing.assert_array_equal(rare, true * np.where(fleet.cycles() == 20, 2.0, 1.0))


class TestFedAU:
    def test_its_path_with_the_cutoff_worked_out_by_hand(self):
        """Present in rounds 0, 2, 9, 10, cutoff 3. Records: 1, 2, cut 3 and 3 in absence, then 1."""
        weigher, one = FedAU(cutoff=3).weighting(1), np.array([0])
        factors = [float(weigher.factors(r, one, np.ones(1))[0]) for r in (0, 2, 9, 10)]
        # The means before each: none yet, 1, (1 + 2 + 3 + 3) / 4, (1 + 2 + 3 + 3 + 1) / 5.
        assert factors == pytest.approx([1.0, 1.0, 2.25, 2.0])

    @pytest.mark.parametrize("cutoff", [4, 200])
    def test_client_and_server_learn_the_same_weights(self, study, cutoff):
        fleet = Fleet.from_cycles([1, 3, 12] * 3, arrivals="markov")
        client, server = study.learner(memory=10**6, cutoff=cutoff), study.on_the_server(cutoff)
        both = zip(study.weights(fleet, client, 200, 3), study.weights(fleet, server, 200, 3), strict=True)
        for mine, theirs in both:
            np.testing.assert_allclose(mine, theirs, rtol=1e-9)

    def test_in_windows_it_knows_the_cycle_up_to_the_place_of_the_last_slot(self):
        """After m records the weight is E - (E - 1 - J) / m, J the last slot: exact, and no noise beyond it."""
        fleet, e = Fleet.from_cycles([7]), 7
        slots = [s.round for s in plan(fleet, UniformWindow(scaled=False), 140, seed=5) if len(s.clients)]
        weigher, one = FedAU(cutoff=2 * e - 1).weighting(1), np.array([0])
        factors = [float(weigher.factors(r, one, np.ones(1))[0]) for r in slots]
        expected = [1.0] + [e - (e - 1 - slot % e) / (m + 1) for m, slot in enumerate(slots[:-1])]
        assert factors == pytest.approx(expected)


class TestRecovery:
    def test_a_client_that_gets_more_forgets_its_old_weight_in_rounds(self):
        """From 20 rounds to 1, memory 5: 1 + 19 * 0.8^k, within 10 % after 24 rounds."""
        scales = scales_of(swapped(20, 1), SelfWeighted(memory=5), CHANGE + 100)
        path = [scales[CHANGE + 1 + k] for k in range(60)]
        assert path == pytest.approx([1.0 + 19.0 * 0.8**k for k in range(60)], rel=1e-6)
        assert next(k for k, w in enumerate(path) if abs(w - 1.0) <= 0.1) == 24

    def test_a_client_that_gets_less_takes_intervals_that_are_longer(self):
        """From 1 round to 20, memory 5: 20 - 19 * 0.8^k, within 10 % after 11 intervals of 20 rounds."""
        scales = scales_of(swapped(1, 20), SelfWeighted(memory=5), CHANGE + 600)
        path = [scales[CHANGE + 20 * (k + 1)] for k in range(25)]
        assert path == pytest.approx([20.0 - 19.0 * 0.8**k for k in range(25)], rel=1e-6)
        assert next(k for k, w in enumerate(path) if abs(w - 20.0) <= 2.0) == 11

    def test_a_client_that_keeps_its_old_rate_stays_wrong(self):
        assert set(scales_of(swapped(1, 20), Greedy(scaled=True), CHANGE + 100).values()) == {1.0}

    def test_the_study_counts_rounds_until_weights_are_near_one(self, study):
        fleet = study.changing_fleet(40, 200)
        kept = study.recovery(fleet, study.Method(study.Misjudged(), study.Sum(), ""), 200, 200, seeds=20)
        assert kept["rounds"] == [None] * 4
        assert kept["last_500"] == pytest.approx([0.05, 0.5, 2.0, 20.0], rel=0.1)
        learnt = study.recovery(fleet, study.learner(memory=5), 200, 600, seeds=20)
        assert learnt["rounds"][3] <= 40 < learnt["rounds"][0] <= 400


class TestLearntWeights:
    def test_what_a_client_counts_adds_up_to_the_time_that_passed(self):
        """Memory 1: every interval is the weight of one participation, whatever the supply. Unbiased over time."""
        table = np.zeros(24)
        table[[7, 8, 11, 12, 13, 17]] = 1.0  # a day
        scales = scales_of(supplied(table), SelfWeighted(memory=1), 24 * 30)
        last_but_one = sorted(scales)[-2]
        assert sum(scales.values()) == 1.0 + (last_but_one + 1)

    def test_a_cutoff_below_the_cycle_counts_a_client_too_little(self, study):
        """Records are (1 - (1 - q)^K) / q in the mean: with q = 1/20 and K = 20, 0.64 of what is right."""
        fleet = Fleet.from_cycles([20] * 2000, arrivals="bernoulli")
        found = [w.mean() for w in study.weights(fleet, study.learner(cutoff=20), 800, 1)]
        assert np.mean(found[400:]) == pytest.approx(1.0 - 0.95**20, rel=0.03)


class TestDayAndNight:
    def test_units_come_by_day_and_one_in_every_cycle_on_average(self, study):
        sun = study.Daylight(np.array([5, 20]), np.zeros(2, np.int64))
        chances = np.array([sun.chance(r) for r in range(24)])
        np.testing.assert_allclose(chances.mean(axis=0), [0.2, 0.05])
        assert np.all(chances[6:18] > 0)
        assert np.all(chances <= 1)
        assert not chances[:6].any()
        assert not chances[18:].any()

    def test_who_spends_at_once_is_silent_at_night_and_who_foresees_is_not(self, study):
        size = study.Size(clients=40, audits=40, days=30, settled=10)
        mean, hour, foreseen = (
            study.by_the_hour(5, study.through_the_night()[name], size)
            for name in ("knows its mean rate", "knows the hour's rate", "knows its next arrival")
        )
        assert mean["night"] == hour["night"] == 0.0
        assert mean["mean"] == pytest.approx(1.0, abs=0.02)
        assert mean["worst_light_weight"] == pytest.approx(np.pi, abs=0.15)  # noon
        assert hour["mean"] == pytest.approx(0.5, abs=0.02)
        assert hour["rms_bias_light"] < 0.15
        assert foreseen["night"] == pytest.approx(1.0, abs=0.05)
        assert foreseen["rms_bias_light"] < 0.15


class TestTheScript:
    def test_runs_small_and_fills_its_tables(self, study, tmp_path, capsys):
        small = {"clients": 8, "rounds": 4, "seeds": 1, "audits": 2, "change-at": 20, "after": 40, "days": 2}
        options = [text for name, value in small.items() for text in (f"--{name}", str(value))]
        options += ["--settled", "1", "--runs", str(tmp_path / "runs")]
        study.main(["run", "--out", str(tmp_path / "found.json"), *options])
        found = json.loads((tmp_path / "found.json").read_text())
        assert {len(found[part]) for part in ("misjudged", "half_way", "day_and_night")} == {
            len(study.compared()),
            len(study.followers()),
            2 * len(study.through_the_night()),
        }
        assert study.tables(found)[0] in capsys.readouterr().out
        assert len(list((tmp_path / "runs").iterdir())) == len(study.compared())

    def test_the_page_shows_the_tables_of_the_results(self, study):
        results = ROOT / "docs" / "results"
        page = (results / "unknown_energy.md").read_text(encoding="utf-8")
        for table in study.tables(json.loads((results / "unknown_energy.json").read_text())):
            assert table in page
