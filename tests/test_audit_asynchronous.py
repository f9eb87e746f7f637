"""The audit of asynchronous methods: the weights of real runs, and exact values against brute force."""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest

import everfed as ef
import report_runs
from everfed import presets
from everfed.auditing import asynchronous
from everfed.auditing.renewals import rates
from everfed.auditing.weighing import at_once, weighed
from everfed.cli import main
from everfed.energy.battery import Storage
from everfed.energy.work import MOMENTS, Pace, Work, pace_of
from everfed.report.data import page_data
from everfed.run import config
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Always, Greedy
from everfed.scheduling.timeline import Timeline
from everfed.server.arrivals import Area, FedAsync, FedBuff, PlainArrivals, Renewal, RenewalDiscounted

RULES = [
    Renewal(), RenewalDiscounted(), RenewalDiscounted(discount="hinge", bound=1.0), Area(), PlainArrivals(),
    FedBuff(size=3, weighted=True), FedBuff(size=1), FedAsync(), FedAsync(discount="none"),
]  # fmt: skip
CYCLES = [1, 2, 3, 5, 8, 1, 3]
SHARES = np.array([0.3, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1])
TIRED = Storage(cost_spread=0.3, browns_out=True, leak=0.02)
WORLDS = [
    ("lump", Work(duration=0.0), ef.Fleet.from_cycles(CYCLES)),
    ("lump", Work(duration=1.0), ef.Fleet.from_cycles(CYCLES, [0, 1, 2, 0, 5, 0, 1])),
    ("bernoulli", Work(duration=0.7, spread=0.3), ef.Fleet.from_cycles(CYCLES, arrivals="bernoulli", capacity=2.5)),
    ("markov", Work(duration=0.5), ef.Fleet.from_cycles(CYCLES, arrivals="markov", capacity=3)),
    ("trickle", Work(duration=1.0, local_steps="affordable"), ef.Fleet.from_cycles(CYCLES, arrivals="trickle")),
    ("tired", Work(duration=0.6, partial="send"), ef.Fleet.from_cycles(CYCLES, arrivals="trickle", storage=TIRED)),
    ("block", Work(duration=0.3, spread=0.2), ef.Fleet.from_cycles(CYCLES, arrivals="uniform-in-block", storage=TIRED)),
]
STEPS = 4


def line(fleet, work, seed, policy=None):
    return Timeline(fleet, policy or Greedy(), seed, pace_of(work, len(fleet), None), work, STEPS)


def run_records(fleet, work, method, seed, rounds, **more):
    """What a run that trains says of its arrivals, and its shares."""
    pairs = [(np.zeros((round(10 * p), 2), np.float32), np.zeros(round(10 * p), np.int64)) for p in SHARES]
    data = ef.from_arrays(pairs, test=pairs[0], classes=2)
    run = ef.start(
        "mlp", data, fleet, method, rounds=rounds, local_steps=STEPS, batch_size=1, client=ef.SGD(lr=0.01), work=work,
        seed=seed, check_trainer=False, eval_every=rounds, **more,
    )  # fmt: skip
    return list(run), data.shares()


class TestAgainstTraining:
    @pytest.mark.parametrize("rule", RULES, ids=repr)
    @pytest.mark.parametrize("world", WORLDS, ids=lambda world: world[0] + f"-{world[1].duration}")
    def test_weights_are_those_of_a_run_to_the_last_digit(self, world, rule):
        """All seeds at once in the audit; one of them in the run."""
        _, work, fleet = world
        rounds, seeds = 12, [3, 4, 9]
        plain = isinstance(rule, PlainArrivals)
        method = Greedy(scaled=True) if plain else ef.Method(Greedy(), rule)
        policy = Greedy(scaled=plain)
        records, shares = run_records(fleet, work, method, 4, rounds, mode="asynchronous" if plain else "auto")
        many = line(fleet, work, np.array(seeds, np.uint64)[:, None], policy)
        n = len(fleet)
        for record, found in zip(records, weighed(many, rule, shares, rounds), strict=True):
            mine = found.clients // n == 1
            who = found.clients[mine] % n
            assert who.tolist() == record.participants.tolist()
            assert (found.coefficients[mine] / shares[who]).tolist() == record.scales.tolist()
            assert found.staleness[mine].tolist() == record.arrived.staleness.tolist()
            assert found.steps[mine].tolist() == record.arrived.steps.tolist()
            assert (found.moments[mine] / MOMENTS).tolist() == record.arrived.times.tolist()
        assert sum(len(record.participants) for record in records) > 10


# Clients of many kinds in one fleet: every combination of cycle, battery and length of work.
MANY = [(e, c, d) for e in (2, 3, 5, 10) for c in (1.0, 1.5, 3.0) for d in (0.0, 0.5, 1.0, 2.0)]
MANY_CYCLES, MANY_CAPACITIES, MANY_DURATIONS = map(list, zip(*MANY, strict=True))
MANY_PACE = Pace(0.8 * np.array(MANY_DURATIONS), 0.2 * np.array(MANY_DURATIONS), np.full(len(MANY), 0.25))


def counted(fleet, work, pace, rounds, seeds, first, policy=None):
    """[4, runs, N]: what `rates` says, counted from round `first` on."""
    n, total = len(fleet), np.zeros((4, seeds * len(fleet)))
    many = Timeline(fleet, policy or Greedy(), np.arange(seeds, dtype=np.uint64)[:, None], pace, work, STEPS)
    for number, found in enumerate(weighed(many, Renewal(), np.full(n, 1.0 / n), rounds)):
        part = found.steps / STEPS
        for row, values in enumerate((np.ones(len(part)), part, part**2, found.intervals**2)):
            total[row] += np.bincount(found.clients, values * (number >= first), minlength=n * seeds)
    return total.reshape(4, seeds, n) / (rounds - first)


class TestExactRates:
    @pytest.mark.parametrize("steps", ["all", "affordable"])
    @pytest.mark.parametrize("kind", ["lump", "trickle"])
    def test_regular_energy_to_the_last_arrival(self, kind, steps):
        """After the first rounds, everything repeats every 2100 rounds, if not before."""
        offsets = [i % 4 for i in range(len(MANY))]
        fleet = ef.Fleet.from_cycles(MANY_CYCLES, offsets, arrivals=kind, capacity=MANY_CAPACITIES)
        work = Work(local_steps=steps)
        exact = rates(fleet, Greedy(), MANY_PACE, work, STEPS)
        found = counted(fleet, work, MANY_PACE, 60 + 2100, 1, 60)[:, 0]
        np.testing.assert_allclose(found, exact, rtol=1e-6)

    @pytest.mark.parametrize("steps", ["all", "affordable"])
    @pytest.mark.parametrize("kind", ["bernoulli", "markov", "uniform-in-block"])
    def test_random_energy_within_the_spread_of_many_runs(self, kind, steps):
        fleet = ef.Fleet.from_cycles(MANY_CYCLES, arrivals=kind, capacity=MANY_CAPACITIES)
        work, seeds = Work(local_steps=steps), 60
        exact = np.array(rates(fleet, Greedy(), MANY_PACE, work, STEPS))
        found = counted(fleet, work, MANY_PACE, 400, seeds, 100)
        error = found.std(axis=1, ddof=1) / np.sqrt(seeds) + 1e-9 + 1e-3 * exact
        assert np.abs((found.mean(axis=1) - exact) / error).max() < 5.0
        assert (error / exact).max() < 0.2

    @pytest.mark.parametrize("kind", ["lump", "trickle"])
    def test_works_of_random_length(self, kind):
        cycles = [2, 3, 5]
        fleet = ef.Fleet.from_cycles(cycles, arrivals=kind)
        work = Work(duration=1.0, spread=0.25)
        exact = np.array(rates(fleet, Greedy(), pace_of(work, 3, None), work, STEPS))
        np.testing.assert_allclose(exact[0], 1 / np.array(cycles))
        found = counted(fleet, work, pace_of(work, 3, None), 660, 40, 60)
        error = found.std(axis=1, ddof=1) / np.sqrt(40) + 2e-4
        assert np.abs((found.mean(axis=1) - exact) / error).max() < 4.5
        assert np.all(exact[3] > np.array(cycles) * 1.004)

    def test_a_coin_a_round_in_closed_form(self):
        """One unit in the battery, whole rounds of work: a unit may come during the work, or it is waited for."""
        for cycle, rounds in [(2, 1), (5, 1), (5, 3), (10, 7), (20, 4)]:
            q = 1.0 / cycle
            work = Work(duration=float(rounds))
            fleet = ef.Fleet.from_cycles([cycle], arrivals="bernoulli")
            found = rates(fleet, Greedy(), pace_of(work, 1, None), work, STEPS)
            assert found.arrivals[0] == pytest.approx(1.0 / (rounds + (1 - q) ** rounds / q), rel=1e-12)
            if rounds == 1:  # geometric intervals
                assert found.squared_intervals[0] == pytest.approx((2 - q) / q, rel=1e-12)

    def test_squares_in_closed_form(self):
        e = np.array([1, 2, 7])
        for kind, wanted in [("lump", e), ("uniform-in-block", e + (e**2 - 1) / (6 * e)), ("bernoulli", 2.0 * e - 1)]:
            work = Work(duration=0.0)
            fleet = ef.Fleet.from_cycles(e, arrivals=kind)
            found = rates(fleet, Greedy(), pace_of(work, 3, None), work, STEPS)
            np.testing.assert_allclose(found.squared_intervals, wanted, rtol=1e-12)

    @pytest.mark.parametrize("duration", [0.25, 1.0, 2.5])
    def test_unlimited_energy_is_work_without_pause(self, duration):
        fleet, work = ef.Fleet.from_cycles([3, 5]), Work(duration=duration)
        found = rates(fleet, Always(), pace_of(work, 2, None), work, STEPS)
        np.testing.assert_allclose(found.arrivals, 1.0 / duration)
        np.testing.assert_allclose(found.squared_intervals, duration)

    def test_where_there_is_no_finite_chain_there_is_no_value(self):
        work = Work(duration=0.5)
        coins = ef.Fleet.from_cycles([3, 5], arrivals="bernoulli")
        for fleet, chosen in [
            (replace(coins, storage=Storage(leak=0.1)), work), (coins, Work(duration=0.5, spread=0.1)),
            (ef.Fleet.from_cycles([2]), Work(duration=1.9, spread=0.2)), (ef.Fleet.from_cycles([5000]), work),
        ]:  # fmt: skip
            assert rates(fleet, Greedy(), pace_of(chosen, len(fleet), None), chosen, STEPS) is None


def audited(world, rule, rounds=60, seeds=6, **more):
    _, work, fleet = world
    return ef.audit(fleet, Greedy(), rounds, seeds, server=rule, work=work, local_steps=STEPS, shares=SHARES, **more)


class TestWeights:
    @pytest.mark.parametrize("world", WORLDS, ids=lambda world: world[0] + f"-{world[1].duration}")
    def test_renewal_telescopes_whatever_the_energy_does(self, world):
        """Brown-outs, leaks, some of the steps: all weights add up to the time of the last arrival."""
        report = audited(world, Renewal())
        np.testing.assert_allclose(report.weight_per_round, report.covered, rtol=1e-12)
        heard = ~np.isnan(report.first_arrival)
        assert heard.all()
        assert np.all(report.covered > 0.2)
        if np.all(report.mean_weight > 0.999):
            np.testing.assert_allclose(report.mean_weight, 1.0, rtol=1e-12)
            assert report.over_the_run.unbiased
            assert report.over_the_run.exact

    @pytest.mark.parametrize("rule", [FedBuff(size=1, discount="none"), FedAsync(discount="none")], ids=repr)
    @pytest.mark.parametrize("kind", ["lump", "bernoulli", "uniform-in-block"])
    def test_unweighted_rules_follow_the_rates(self, rule, kind):
        """A client of every round against one of every twentieth: 20 to 1."""
        fleet = ef.Fleet.from_cycles([1, 20], arrivals=kind)
        report = ef.audit(fleet, Greedy(), 1000, 20, server=rule)
        np.testing.assert_allclose(report.exact.mean_weight, [40 / 21, 2 / 21], rtol=1e-9)
        np.testing.assert_allclose(report.mean_weight, report.exact.mean_weight, rtol=0.12)
        assert report.over_the_run.unbiased is False
        assert report.over_the_run.exact
        assert "95/5 %" in report.verdict
        assert "relative to their mean" in report.verdict

    def test_relative_weights_know_the_shares(self):
        fleet = ef.Fleet.from_cycles([1, 20])
        shares = [20 / 21, 1 / 21]
        plain, weighted = (
            ef.audit(fleet, Greedy(), 400, 6, server=FedBuff(size=2, discount="none", weighted=w), shares=shares)
            for w in (False, True)
        )
        np.testing.assert_allclose(plain.exact.mean_weight, 1.0)  # by luck: data as the energy has it
        assert plain.over_the_run.unbiased
        np.testing.assert_allclose(weighted.exact.mean_weight, np.array([20, 1]) / (20 * 20 / 21 + 1 / 21))

    def test_a_discount_leans_further_towards_the_well_powered(self):
        fleet = ef.Fleet.from_cycles([1, 1, 1, 20, 20], arrivals="bernoulli")
        pace = Pace(np.array([0.2, 0.2, 0.2, 4.0, 4.0]), np.zeros(5), np.zeros(5))
        found = [
            ef.audit(fleet, Greedy(), 500, 20, server=FedBuff(size=1, discount=d), pace=pace)
            for d in ("none", "polynomial")
        ]
        assert found[1].mean_weight[3:].max() < 0.8 * found[0].mean_weight[3:].min()
        assert found[1].exact.mean_weight is None
        assert found[1].exact.arrival_rate is not None
        assert found[1].over_the_run.unbiased is False
        assert not found[1].over_the_run.exact

    def test_discounted_renewal_counts_everybody(self):
        fleet = ef.Fleet.from_cycles([1, 2, 5, 5] * 3, arrivals="bernoulli")
        report = ef.audit(fleet, "renewal-discounted", 600, 20, work=Work(duration=0.6, spread=0.2))
        np.testing.assert_allclose(report.mean_weight, 1.0, atol=0.02)
        assert report.over_the_run.unbiased
        assert not report.over_the_run.exact

    @pytest.mark.parametrize(("method", "words"), [
        ("greedy", "biased over"), ("greedy-scaled", "unbiased over"), ("fedavg", "fair but too fast")
    ])  # fmt: skip
    def test_methods_of_rounds_without_them(self, method, words):
        fleet = ef.Fleet.from_cycles([1, 5, 10] * 2)
        report = ef.audit(fleet, method, 1000, 6, mode="asynchronous", work=Work(duration=0.5))
        assert report.verdict.startswith(words)
        wanted = {"greedy": 1 / fleet.cycles(), "greedy-scaled": np.ones(6), "fedavg": np.full(6, 2.0)}[method]
        np.testing.assert_allclose(report.exact.mean_weight, wanted)
        np.testing.assert_allclose(report.mean_weight, wanted, rtol=0.01)

    def test_area_counts_all_by_the_invariant(self):
        fleet = ef.Fleet.from_cycles([1, 5, 10] * 2)
        report = ef.audit(fleet, "area", 100, 6)
        assert report.mean_weight is None
        assert report.noise is None
        assert report.exact.mean_weight.tolist() == [1.0] * 6
        assert report.over_the_run.unbiased
        assert report.verdict.startswith("unbiased: the model is the mean")
        late = ef.audit(ef.Fleet.from_cycles([1, 5], [0, 200]), "area", 100, 6)
        assert late.over_the_run.unbiased is None
        assert late.exact.mean_weight is None
        assert "never trained (E=5)" in late.verdict
        assert not late.verdict.startswith("unbiased")


class TestNoise:
    @pytest.mark.parametrize("kind", ["lump", "trickle", "bernoulli", "uniform-in-block", "markov"])
    @pytest.mark.parametrize("rule", [Renewal(), FedBuff(size=1, discount="none"), FedAsync(discount="none")], ids=repr)
    def test_measured_against_exact(self, kind, rule):
        fleet = ef.Fleet.from_cycles([1, 3, 6], arrivals=kind)
        lengths = [1.0, 2.0, 3.0]
        report = ef.audit(
            fleet, Greedy(), 600, 40, server=rule, deltas=lengths, shares=[0.2, 0.5, 0.3], work=Work(duration=1.0)
        )
        np.testing.assert_allclose(report.noise, report.exact.noise, rtol=0.08)
        if rule == Renewal() and kind == "lump":
            np.testing.assert_allclose(
                report.exact.noise, np.array([0.04, 0.75, 0.54]) * lengths ** np.array([2, 2, 2])
            )

    def test_scaled_sums(self):
        fleet = ef.Fleet.from_cycles([1, 3, 6], arrivals="bernoulli")
        report = ef.audit(fleet, "greedy-scaled", 600, 40, mode="asynchronous", work=Work(duration=0.5))
        np.testing.assert_allclose(report.exact.noise, np.array([1, 3, 6]) / 9)
        np.testing.assert_allclose(report.noise, report.exact.noise, rtol=0.05)
        # Renewal pays for not knowing the cycle.
        other = ef.audit(fleet, "renewal", 600, 40, work=Work(duration=0.5))
        np.testing.assert_allclose(other.exact.noise, np.array([1, 5, 11]) / 9)


class TestVerdict:
    def test_few_seeds_decide_nothing_that_is_not_exact(self):
        fleet = ef.Fleet.from_cycles([1, 5], arrivals="bernoulli")
        few = ef.audit(fleet, "renewal-discounted", 200, 4)
        assert few.over_the_run.unbiased is None
        assert "these seeds could not have shown any" in few.verdict
        assert ef.audit(fleet, "renewal", 200, 1).over_the_run.unbiased

    def test_what_is_missing_at_the_ends_is_said(self):
        report = ef.audit(ef.Fleet.from_cycles([1, 20], [0, 7]), "renewal", 100, 2)
        assert report.covered.tolist() == [0.99, 0.88]
        assert report.first_arrival.tolist() == [1.0, 8.0]
        assert "12.0% of the run for E=20 (first heard in round 8)" in report.verdict

    def test_a_short_run_is_not_the_long_run(self):
        report = ef.audit(ef.Fleet.from_cycles([1, 20]), "greedy-scaled", 10, 5, mode="asynchronous")
        assert report.verdict.startswith("unbiased")
        assert "in these 10 rounds E=20 counts 2.00 times" in report.verdict

    def test_work_that_is_lost_is_said(self):
        report = audited(WORLDS[-1], Renewal())
        assert report.lost > 0.05
        assert f"{report.lost:.1%} of the works are lost" in report.verdict

    def test_clients_never_heard(self):
        for method in ("renewal", "renewal-discounted", "fedbuff", "fedasync", "greedy-scaled"):
            rule = {"server": FedBuff(size=2)} if method == "fedbuff" else {}
            chosen = Greedy() if rule else method
            report = ef.audit(ef.Fleet.from_cycles([1, 5], [0, 90]), chosen, 50, 6, mode="asynchronous", **rule)
            assert report.over_the_run.unbiased is not True, method
            assert np.isnan(report.first_arrival[1])
            assert report.weight_per_round[1] == 0.0
            json.dumps(report.to_dict(), allow_nan=False)


class TestMeasuring:
    @pytest.mark.parametrize("world", [WORLDS[3], WORLDS[5]], ids=["markov", "tired"])
    def test_figures_are_those_of_the_runs_one_by_one(self, world):
        _, work, fleet = world
        report = audited(world, FedBuff(size=3), 40, [2, 5, 11])
        stale, steps, begun, lost, spent, brown = [], [], 0, 0, 0.0, 0
        for seed in (2, 5, 11):
            for found in weighed(line(fleet, work, seed), FedBuff(size=3), SHARES, 40):
                stale += found.staleness.tolist()
                steps += found.steps.tolist()
                begun, lost = begun + found.begun, lost + found.lost
            spent, brown = spent + found.energy.spent, brown + found.energy.brownouts
        whole = report.staleness["all"]
        assert whole.mean == pytest.approx(np.mean(stale))
        assert whole.largest == max(stale)
        assert whole.most == np.percentile(stale, 95, method="inverted_cdf")
        assert report.mean_steps == pytest.approx(np.mean(steps))
        assert (report.works_per_round, report.lost) == pytest.approx((begun / 120, lost / begun))
        assert (report.energy.spent, report.energy.brownouts) == pytest.approx((spent / 3, brown / 3))
        assert report.energy.imbalance() == pytest.approx(0.0, abs=1e-9)
        assert set(report.staleness) == {g.label for g in fleet.groups()} | {"all"}

    @pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, PlainArrivals)], ids=repr)
    def test_it_does_not_matter_how_seeds_are_cut(self, rule, monkeypatch):
        whole = audited(WORLDS[2], rule, 30, 7)
        monkeypatch.setattr(asynchronous, "_ROWS", 2 * len(CYCLES))
        cut = audited(WORLDS[2], rule, 30, 7)
        assert cut.staleness == whole.staleness
        assert cut.verdict == whole.verdict
        for name in ("arrival_rate", "mean_weight", "noise", "weight_per_round", "covered", "mean_staleness"):
            if getattr(whole, name) is not None:
                np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-12)

    def test_a_rule_of_one_s_own_is_weighed_run_by_run(self):
        @dataclass(frozen=True)
        class Halved(Renewal):
            def coefficients(self, weigher, arrivals, stale):
                assert len(weigher.shares) == len(CYCLES)
                return super().coefficients(weigher, arrivals, stale) / 2

        assert at_once(Halved(), 100) == 1
        assert at_once(Renewal(), 100) == 100
        report = audited(WORLDS[1], Halved())
        np.testing.assert_allclose(report.weight_per_round, report.covered / 2)
        assert report.exact.mean_weight is None


class TestRefusals:
    @pytest.mark.parametrize(("settings", "words"), [
        ({"method": "algorithm1", "work": Work(duration=0.5)}, "meet in rounds"),
        ({"method": "algorithm1", "mode": "asynchronous"}, "chooses rounds"),
        ({"method": "greedy-normalized", "mode": "asynchronous"}, "needs rounds"),
        ({"method": "renewal", "mode": "synchronous"}, "as they arrive"),
        ({"method": "renewal", "mode": "sometimes"}, "mode"),
        ({"method": "renewal", "work": 0.5}, "work"),
        ({"method": "renewal", "local_steps": 0}, "local_steps"),
        ({"method": "renewal", "work": Work(duration=3.0)}, "faster than it can work"),
        ({"method": "renewal", "pace": Pace(*[np.ones(3)] * 3)}, "pace is of 3 clients"),
        ({"method": "renewal", "pace": Pace(*[np.ones(4)] * 3), "work": Work(duration=1.0)}, "work.duration"),
        ({"method": "greedy", "pace": Pace(*[np.ones(4)] * 3)}, "pace is given"),
        ({"method": "fedbuff"}, "a buffer larger than the fleet"),
        ({"method": "fedavg", "mode": "asynchronous", "work": Work(duration=0.0)}, "without end"),
    ])  # fmt: skip
    def test_what_makes_no_sense(self, settings, words):
        fleet = ef.Fleet.from_cycles([1, 2, 5, 5])
        with pytest.raises(ef.InputError, match=words):
            ef.audit(fleet, settings.pop("method"), 20, 5, **settings)


@pytest.fixture
def everfed(monkeypatch, capsys):
    def printed(*arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        with suppress(SystemExit):
            main()
        return capsys.readouterr().out

    return printed


class TestCommand:
    def test_settings_of_work_are_heeded(self, everfed):
        options = ["--rounds", "40", "--seeds", "5", "--cycles", "1,2,4", "--clients", "12"]
        work = ["--set", "work.duration=0.5", "--set", "work.spread=0.2", "--set", "local_steps=3"]
        found = json.loads(everfed("audit", "--method", "fedasync", *options, *work, "--json"))
        fleet = ef.Fleet.from_cycles([1, 2, 4] * 4)
        wanted = ef.audit(fleet, "fedasync", 40, 5, work=Work(duration=0.5, spread=0.2), local_steps=3)
        assert found.pop("shares") == "equal"
        assert found == json.loads(json.dumps(wanted.to_dict()))
        said = everfed("audit", "--method", "fedasync", *options, *work)
        assert "mean weight" in said
        assert "staleness" in said
        assert "works begun per round" in said

    def test_devices_have_their_own_times(self, everfed):
        settings = ["--rounds", "40", "--seeds", "2", "--set", "work.local_steps=affordable"]
        found = json.loads(everfed("audit", "solar-fleet", "--method", "renewal", *settings, "--json"))
        experiment = config.from_dict(presets.content("solar-fleet"))
        fleet, steps = experiment.make_fleet(), experiment.local_steps
        pace = experiment.fleet.pace(steps, experiment.compression, fleet)
        work = Work(local_steps="affordable")
        wanted = ef.audit(fleet, "renewal", 40, 2, work=work, local_steps=steps, pace=pace)
        assert found.pop("shares") == "equal"
        assert found == json.loads(json.dumps(wanted.to_dict()))
        assert wanted.over_the_run.unbiased
        assert wanted.first_arrival.max() < 0.1

    def test_the_page_audits_the_work_of_the_runs(self):
        """Short work makes FedBuff's updates less stale, and its weights others."""
        plain = ef.Experiment(fleet=CycleFleet(12, (1, 5)), rounds=60, device="cpu").with_method("fedbuff")
        works = {"short": Work(duration=0.1, spread=0.3), "long": Work(duration=0.9, spread=0.3)}
        lines = [report_runs.untrained(replace(plain, work=work), name) for name, work in works.items()]
        said = [line["verdict"]["verdict"] for line in page_data(lines)["lines"]]
        assert said[0] != said[1]
        assert all("relative to their mean" in words for words in said)


@pytest.mark.parametrize("rule", [ef.FedBuff(size=1, discount="none"), ef.FedAsync(discount="none")], ids=repr)
@pytest.mark.parametrize("offset", [0, 7, 30, 50])
def test_weights_and_noise_are_of_one_step_whenever_clients_start(rule, offset):
    """Every arrival of either client has the same coefficient; at a mean weight of 1, its square is that of a share."""
    fleet = ef.Fleet.from_cycles([1, 1], [0, offset])
    found = ef.audit(fleet, ef.Method(ef.Greedy(), rule), rounds=60, seeds=5, work=ef.Work(duration=0.5), local_steps=1)
    assert found.mean_weight.tolist() == pytest.approx([1.0, 1.0])
    assert found.noise.tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize("method", ["fedbuff", "renewal"])
def test_the_command_plans_no_method_without_rounds(method, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["everfed", "plan", "--method", method])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "has no rounds to plan" in capsys.readouterr().err
