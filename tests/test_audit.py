"""The audit: measured and exact figures agree, and the verdict says in words what they mean."""

from __future__ import annotations

import functools
import importlib
import json
import re
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from everfed import (
    METHODS,
    POLICIES,
    Always,
    Audit,
    Bernoulli,
    Echo,
    EverfedWarning,
    Fleet,
    Greedy,
    InputError,
    Lattice,
    Truncated,
    UniformWindow,
    Varp,
    WaitForAll,
    audit,
    plan,
)
from everfed.auditing.tally import Figures
from everfed.energy.arrivals import Trickle
from everfed.energy.battery import Storage
from everfed.energy.changing import Changing
from everfed.energy.random_arrivals import BernoulliArrivals, Markov
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.laws import Law, is_deterministic, law_of
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Energy
from plans import participations

# By import_module: in the package's namespace, the function of the same name hides the module.
audit_module = importlib.import_module("everfed.auditing.audit")

PAPER = Fleet.from_cycles([1, 5, 10, 20] * 10)
EVERY = list(dict.fromkeys([row() for row in POLICIES.values()] + [method.policy for method in METHODS.values()]))
WITH_LAW = [policy for policy in EVERY if law_of(PAPER, policy, 20) or is_deterministic(PAPER, policy)]
PER_CLIENT = ["participation_rate", "mean_weight", "gap_mean", "gap_variance"]
OVERALL = ["round_weight_mean", "round_weight_variance", "update_variance"]
ROUNDS, SEEDS = 1000, 60


def over(policies):
    return pytest.mark.parametrize("policy", policies, ids=repr)


@functools.cache
def paper_audit(policy) -> Audit:
    return audit(PAPER, policy, ROUNDS, SEEDS)


def figures_of(report):
    """All numbers of a report, flat."""
    values = [getattr(report, f.name) for f in fields(Figures)] + [report.gap_min, report.gap_max]
    return np.concatenate([np.ravel(np.nan if value is None else value) for value in values])


@over(EVERY)
class TestEveryPolicy:
    def test_reports_one_figure_a_client_or_one_for_all(self, policy):
        report = paper_audit(policy)
        for name in PER_CLIENT:
            assert getattr(report, name).shape == (40,)
        for name in [*OVERALL, "violations"]:
            assert isinstance(getattr(report, name), float)
        assert (report.rounds, report.seeds) == (ROUNDS, SEEDS)
        assert 1 <= report.gap_min <= report.gap_max
        assert report.verdict.endswith(".")

    def test_exact_figures_are_all_there_or_none(self, policy):
        exact = paper_audit(policy).exact
        known = [getattr(exact, name) is not None for name in [*PER_CLIENT, *OVERALL, "single_round_bias"]]
        assert all(known) if policy in WITH_LAW else not any(known)

    def test_single_round_bias_is_never_measured(self, policy):
        assert paper_audit(policy).single_round_bias is None

    def test_obedient_policies_are_known_to_overdraw_nothing(self, policy):
        report = paper_audit(policy)
        if policy.energy is Energy.OBEYED:
            assert (report.exact.violations, report.violations) == (0.0, 0.0)
        else:
            assert report.exact.violations in (None, report.violations)
            assert report.violations > 0.0

    def test_becomes_plain_json(self, policy):
        report = paper_audit(policy)
        read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        assert set(read) == {f.name for f in fields(Audit)} - {"groups", "by_round"} | {"fairness"}
        assert set(read["exact"]) == {f.name for f in fields(Figures)} | {"fairness"}
        assert read["mean_weight"] == report.mean_weight.tolist()
        assert read["verdict"] == report.verdict

    def test_of_one_seed_is_the_plan_of_that_seed(self, policy):
        report = audit(PAPER, policy, rounds=40, seeds=[7])
        steps = list(plan(PAPER, policy, 40, seed=7))
        np.testing.assert_allclose(report.participation_rate, participations(iter(steps), 40) / 40)
        totals = np.array([step.scales.sum() / 40 for step in steps])
        assert report.round_weight_mean == pytest.approx(totals.mean())
        assert report.round_weight_variance == pytest.approx(totals.var(), abs=1e-12)
        assert report.violations == steps[-1].energy.violations


@over(WITH_LAW)
class TestMeasuredAgainstExact:
    def test_participation_and_weight(self, policy):
        report = paper_audit(policy)
        # The widest spread any of the policies has, an independent coin a round.
        deviation = np.sqrt((PAPER.cycles() - 1.0) / (ROUNDS * SEEDS)) / PAPER.cycles()
        assert np.all(np.abs(report.participation_rate - report.exact.participation_rate) <= 4.5 * deviation + 1e-12)
        weight_error = np.abs(report.mean_weight - report.exact.mean_weight)
        scale = report.exact.mean_weight / report.exact.participation_rate
        assert np.all(weight_error <= 4.5 * deviation * scale + 1e-12)

    def test_gaps(self, policy):
        report = paper_audit(policy)
        if report.exact.gap_mean is None:  # not known
            return
        np.testing.assert_allclose(report.gap_mean, report.exact.gap_mean, rtol=0.06)
        np.testing.assert_allclose(
            group_means(report.gap_variance), group_means(report.exact.gap_variance), rtol=0.1, atol=1e-9
        )

    def test_round_weight_and_update(self, policy):
        report = paper_audit(policy)
        assert report.round_weight_mean == pytest.approx(report.exact.round_weight_mean, rel=0.01)
        assert report.round_weight_variance == pytest.approx(report.exact.round_weight_variance, rel=0.03, abs=1e-12)
        assert report.update_variance == pytest.approx(report.exact.update_variance, rel=0.03, abs=1e-12)


def group_means(per_client):
    return per_client.reshape(10, 4).mean(axis=0)


class TestExactFigures:
    def test_of_algorithm_1_are_the_paper_s(self):
        exact = paper_audit(UniformWindow()).exact
        np.testing.assert_allclose(exact.participation_rate, [1.0, 0.2, 0.1, 0.05] * 10)
        np.testing.assert_allclose(exact.mean_weight, 1.0)
        np.testing.assert_allclose(exact.gap_mean, [1, 5, 10, 20] * 10)
        np.testing.assert_allclose(exact.gap_variance, [0, 4, 16.5, 66.5] * 10)
        assert exact.round_weight_mean == pytest.approx(1.0)
        assert exact.round_weight_variance == pytest.approx(0.2)
        assert exact.update_variance == pytest.approx(0.2)
        assert exact.single_round_bias == pytest.approx(0.0, abs=1e-12)

    def test_of_bernoulli_differ_in_the_gaps_only(self):
        exact = paper_audit(Bernoulli()).exact
        assert exact.update_variance == pytest.approx(0.2)
        # Gaps that end within the run are shorter than those of coins without end, whose variances are E (E - 1).
        np.testing.assert_allclose(exact.gap_variance, [0, 20, 90, 380] * 10, rtol=0.15)
        assert np.all(exact.gap_variance[1:4] < [20, 90, 380])

    def test_of_greedy_vary_over_time_but_not_by_chance(self):
        exact = paper_audit(Greedy()).exact
        assert exact.round_weight_mean == pytest.approx(0.3375)
        assert exact.round_weight_variance == pytest.approx(np.var([1, 0.75, 0.5, 0.5] + [0.25] * 16))
        assert (exact.update_variance, exact.single_round_bias) == (0.0, 1.0)

    def test_of_greedy_scaled_swing_widely(self):
        exact = paper_audit(Greedy(scaled=True)).exact
        assert exact.round_weight_variance == pytest.approx(np.var([9, 4, 1.5, 1.5] + [0.25] * 16))
        assert exact.single_round_bias == 19.0

    def test_of_fedavg_leave_nothing_to_chance(self):
        exact = paper_audit(Always()).exact
        assert exact.round_weight_mean == pytest.approx(1.0)
        assert (exact.round_weight_variance, exact.update_variance) == (0.0, 0.0)

    def test_are_unknown_where_slots_are_skipped(self):
        report = audit(Fleet.from_cycles([1, 5], arrivals="trickle", capacity=1), UniformWindow(), 100, 50)
        for name in [*PER_CLIENT, *OVERALL, "single_round_bias"]:
            assert getattr(report.exact, name) is None
            assert report.to_dict()["exact"][name] is None
        assert report.exact.violations == 0.0
        assert report.mean_weight[1] == pytest.approx(1 - 0.8**5, abs=0.03)

    def test_count_rounds_from_each_client_s_start(self):
        report = audit(Fleet.from_cycles([2, 4], [0, 20]), UniformWindow(), 40, 100)
        np.testing.assert_allclose(report.exact.mean_weight, 1.0)
        np.testing.assert_allclose(report.mean_weight, 1.0)
        assert report.exact.round_weight_mean == pytest.approx(0.75)
        assert report.round_weight_mean == pytest.approx(0.75)


class TestMeasuredFigures:
    @pytest.mark.parametrize(
        ("policy", "shortest", "longest"), [(Greedy(), 1, 20), (WaitForAll(), 20, 20), (Always(), 1, 1)], ids=repr
    )
    def test_gaps_span_what_happens(self, policy, shortest, longest):
        report = paper_audit(policy)
        assert (report.gap_min, report.gap_max) == (shortest, longest)

    def test_gaps_of_algorithm_1_span_almost_two_windows(self):
        report = audit(Fleet.from_cycles([5]), UniformWindow(), 100, 50)
        assert (report.gap_min, report.gap_max) == (1, 9)

    def test_gaps_are_unknown_where_there_were_none(self):
        report = audit(Fleet.from_cycles([4, 1]), Greedy(), 4, 3)
        np.testing.assert_array_equal(np.isnan(report.gap_mean), [True, False])
        assert report.to_dict()["gap_mean"] == [None, 1.0]
        assert (report.gap_min, report.gap_max) == (1, 1)

    def test_one_round_has_no_gap(self):
        report = audit(Fleet.from_cycles([1]), Greedy(), 1, 3)
        assert (report.gap_min, report.gap_max) == (0, 0)
        assert report.to_dict()["gap_mean"] == [None]

    def test_wait_for_all_is_measured_exactly(self):
        report = paper_audit(WaitForAll())
        np.testing.assert_allclose(report.mean_weight, 0.05)
        assert report.round_weight_variance == pytest.approx(0.05 * 0.95)
        assert report.update_variance == pytest.approx(0.0, abs=1e-12)

    def test_fedavg_overdraws_whatever_is_not_harvested(self):
        assert paper_audit(Always()).violations == 40_000 - 13_500

    def test_seeds_add_up(self):
        first, second = (audit(PAPER, Bernoulli(), 40, range(s, s + 5)) for s in (0, 5))
        both = audit(PAPER, Bernoulli(), 40, 10)
        np.testing.assert_allclose(both.mean_weight, (first.mean_weight + second.mean_weight) / 2)
        assert both.violations == pytest.approx((first.violations + second.violations) / 2)
        assert first.mean_weight.tolist() != second.mean_weight.tolist()


class TestBatches:
    @staticmethod
    def audit_in_batches(monkeypatch, fleet, policy, rounds, seeds, rows):
        """The report, and how many seeds each batch held."""
        batches = []

        def recorded(fleet, policy, seed):
            batches.append(len(seed))
            return Schedule(fleet, policy, seed)

        with monkeypatch.context() as patch:
            patch.setattr(audit_module, "Schedule", recorded)
            patch.setattr(audit_module, "_ROWS", rows)
            return audit(fleet, policy, rounds, seeds), batches

    @pytest.mark.parametrize(("rows", "batches"), [(40 * 7, [7, 7, 6]), (40 * 10, [10, 10]), (1, [1] * 20)])
    @over(EVERY)
    def test_change_nothing(self, monkeypatch, policy, rows, batches):
        whole, one = self.audit_in_batches(monkeypatch, PAPER, policy, 40, 20, rows=10**6)
        split, many = self.audit_in_batches(monkeypatch, PAPER, policy, 40, 20, rows=rows)
        assert (one, many) == ([20], batches)
        np.testing.assert_allclose(figures_of(split), figures_of(whole), rtol=1e-12, atol=1e-12)
        assert split.verdict == whole.verdict

    def test_bound_the_memory_of_a_large_fleet(self, monkeypatch):
        large = Fleet.from_cycles(np.tile([1, 2, 4, 8], 12_500))
        default, batches = self.audit_in_batches(monkeypatch, large, UniformWindow(), 8, 30, audit_module._ROWS)
        split, smaller = self.audit_in_batches(monkeypatch, large, UniformWindow(), 8, 30, rows=7 * 50_000)
        assert max(batches) * 50_000 <= audit_module._ROWS
        assert (len(batches), len(smaller)) == (2, 5)
        np.testing.assert_allclose(figures_of(split), figures_of(default), rtol=1e-9, atol=1e-12)
        assert split.verdict == default.verdict


class TestShares:
    def test_weigh_rounds_by_data(self):
        shares = np.array([0.1, 0.2, 0.3, 0.4])
        report = audit(Fleet.from_cycles([1, 5, 10, 20]), UniformWindow(), 200, 200, shares=shares)
        variance = shares**2 @ [0, 4, 9, 19]
        assert report.exact.update_variance == pytest.approx(variance)
        assert report.update_variance == pytest.approx(variance, rel=0.05)
        assert report.round_weight_mean == pytest.approx(1.0)

    def test_are_equal_by_default(self):
        equal = audit(PAPER, UniformWindow(), 20, 5, shares=[1 / 40] * 40)
        np.testing.assert_allclose(figures_of(equal), figures_of(audit(PAPER, UniformWindow(), 20, 5)), rtol=1e-12)

    def test_change_whose_weight_the_verdict_reports(self):
        report = audit(Fleet.from_cycles([1, 4]), Greedy(), 40, 2, shares=[0.2, 0.8])
        assert "shares of the weight 50/50 % where those of the data are 20/80 %" in report.verdict

    @pytest.mark.parametrize(
        ("shares", "said"),
        [
            pytest.param([0.5, 0.5], "2 shares were given for 3 clients", id="too few"),
            pytest.param([0.25] * 4, "4 shares were given for 3 clients", id="too many"),
            pytest.param([0.5, 0.5, 0.5], "sum to 1.5", id="sum above 1"),
            pytest.param([0.0, 0.0, 0.0], "sum to 0", id="sum zero"),
            pytest.param([1.5, -0.5, 0.0], "non-negative", id="negative"),
            pytest.param([0.5, 0.5, np.nan], "sum to nan", id="nan"),
        ],
    )
    def test_must_be_a_distribution_over_the_clients(self, shares, said):
        with pytest.raises(InputError, match=said):
            audit(Fleet.from_cycles([1, 2, 3]), UniformWindow(), 6, 2, shares=shares)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"seeds": 0}, "seeds is 0"),
            ({"seeds": -3}, "seeds is -3"),
            ({"seeds": []}, "at least 1"),
            ({"seeds": [3, -1]}, "the seed is -1"),
            ({"seeds": [2**64]}, "the seed is 18446744073709551616"),
            ({"rounds": 0}, "rounds is 0"),
            ({"rounds": 2.5}, "rounds is 2.5"),
        ],
        ids=str,
    )
    def test_say_what_an_audit_needs(self, arguments, said):
        with pytest.raises(InputError, match=said):
            audit(PAPER, UniformWindow(), **{"rounds": 20, "seeds": 2, **arguments})


def without_formulas(policy):
    """A policy whose audit must rely on measurement alone: nobody knows its type."""
    return type("Unknown", (type(policy),), {})(**vars(policy))


class TestVerdict:
    def test_of_algorithm_1_is_unbiased_without_a_but(self):
        expected = "unbiased over the run: every client counts by its data, and in every round."
        assert paper_audit(UniformWindow()).verdict == expected

    @pytest.mark.parametrize("policy", [Greedy(), UniformWindow(scaled=False)], ids=repr)
    def test_of_unscaled_participation_says_how_much_each_group_counts(self, policy):
        verdict = paper_audit(policy).verdict
        counts = "E=1 clients count 1.00 times, E=5 clients 0.20, E=10 clients 0.10, E=20 clients 0.05"
        assert verdict.startswith(f"biased over the run: {counts}")
        assert "74/15/7/4 % where those of the data are 25/25/25/25 %" in verdict
        assert re.search(r"33\.[78]% of a full-participation step", verdict)

    def test_of_wait_for_all_is_fair_but_slow(self):
        verdict = paper_audit(WaitForAll()).verdict
        assert verdict == "fair but slow: all clients count alike, 0.05 times instead of once."

    def test_of_greedy_scaled_is_unbiased_over_time_only(self):
        verdict = paper_audit(Greedy(scaled=True)).verdict
        assert verdict.startswith("unbiased over the run")
        assert "but not in every round: in round 0 E=20 clients count 20 times" in verdict

    @pytest.mark.parametrize("policy", [Greedy(scaled=True), UniformWindow(), Bernoulli()], ids=repr)
    def test_without_a_formula_says_as_much_about_single_rounds(self, policy):
        """With seeds enough, measurement and formula answer both questions alike, or measurement leaves one open."""
        known, found = paper_audit(policy), audit(PAPER, without_formulas(policy), 200, 200)
        assert found.exact.mean_weight is None
        assert found.over_the_run.unbiased is known.over_the_run.unbiased is True
        assert found.in_every_round.unbiased in (known.in_every_round.unbiased, None)
        if not known.in_every_round.unbiased:
            assert found.in_every_round.unbiased is False
            assert "not in every round" in found.verdict

    @pytest.mark.parametrize("policy", [Always(), Bernoulli()], ids=repr)
    def test_of_who_ignores_energy_counts_what_is_not_there(self, policy):
        verdict = paper_audit(policy).verdict
        assert verdict.startswith("unbiased")
        assert "spends energy that is not there" in verdict
        assert type(policy) is Bernoulli or "26,500 times per run" in verdict

    def test_of_skipped_slots_is_biased(self):
        verdict = audit(Fleet.from_cycles([1, 5] * 5, arrivals="trickle", capacity=1), UniformWindow(), 100, 50).verdict
        assert verdict.startswith("biased over the run: E=1 clients count 1.00 times, E=5 clients 0.6")
        assert "(error rate 1%)" in verdict

    def test_of_a_trickle_into_a_large_battery_is_unbiased(self):
        verdict = audit(Fleet.from_cycles([1, 5] * 5, arrivals="trickle"), UniformWindow(), 100, 50).verdict
        assert verdict.startswith("unbiased")

    def test_mentions_rounds_that_leave_out_late_clients(self):
        verdict = audit(Fleet.from_cycles([1, 5, 5], [0, 10, 30]), UniformWindow(), 100, 20).verdict
        assert verdict.startswith("unbiased")
        assert "only from round 30 on" in verdict
        assert "have not started (2 of 3, in E=5)" in verdict

    def test_says_when_nobody_ever_trains(self):
        verdict = audit(Fleet.from_cycles([2, 2], [50, 50]), Greedy(), 10, 2).verdict
        assert verdict.startswith("nobody ever trains in 10 rounds")

    def test_names_groups_as_their_owner_does(self):
        fleet = replace(PAPER, labels=("roof", "yard"), group_of=np.repeat([0, 1], [10, 30]))
        verdict = audit(fleet, Greedy(), 100, 2).verdict
        assert "roof count 0.39 times (0.05 to 1.00 by client)" in verdict

    def test_of_one_seed_without_a_formula_is_open(self):
        found = audit(PAPER, without_formulas(UniformWindow()), 200, 1)
        assert found.over_the_run.unbiased is None
        assert found.verdict.startswith("not decided")

    def test_of_an_unbiased_rule_without_a_formula_does_not_flip_with_the_horizon(self):
        """Windows of two cycles, as a user may write them: whatever part of the last one is seen."""
        for rounds in range(81, 121, 3):
            found = audit(Fleet.from_cycles([20] * 4), EverySecondWindow(), rounds, 60)
            assert found.exact.mean_weight is None
            assert found.over_the_run.unbiased is not False, rounds

    def test_a_weight_that_is_off_is_called_so_however_the_horizon_cuts_windows(self):
        found = audit(Fleet.from_cycles([20]), UniformWindow(), 205, 5, server=Truncated(18.2))
        assert found.exact.mean_weight == pytest.approx([0.91])
        assert found.verdict.startswith("fair but slow: all clients count alike, 0.91 times")
        several = audit(Fleet.from_cycles([1, 20]), UniformWindow(), 205, 5, server=Truncated(18.2))
        assert several.verdict.startswith("biased over the run: E=1 clients count 1.00 times, E=20 clients 0.91")


class EverySecondWindow(UniformWindow):
    """One slot in two cycles, scaled by both: unbiased, and not what UniformWindow's law says."""

    def init(self, clients, round=0):
        return super().init(replace(clients, cycles=2 * clients.cycles), round)


class TestLaws:
    def test_are_not_inherited(self):
        assert law_of(PAPER, UniformWindow(), 40) is not None
        assert law_of(PAPER, EverySecondWindow(), 40) is None
        assert not is_deterministic(PAPER, EverySecondWindow())

    def test_of_a_policy_s_own_are_used_unless_measurement_contradicts_them(self):
        @dataclass(frozen=True)
        class Claims(UniformWindow):
            chance: float = 0.5

            def law(self, fleet, round):
                return Law(np.full(len(fleet), self.chance), fleet.cycles().astype(float))

        fleet = Fleet.from_cycles([2, 2])
        right = audit(fleet, Claims(), 40, 50)
        assert right.exact.mean_weight.tolist() == [1.0, 1.0]
        with pytest.warns(EverfedWarning, match="law of Claims disagrees with the measurements"):
            wrong = audit(fleet, Claims(chance=0.4), 40, 50)
        assert wrong.exact.mean_weight is None
        assert wrong.variance.exact is None
        assert wrong.verdict.startswith("unbiased")


class TestMemory:
    def test_weights_that_say_nothing_are_not_told(self):
        report = audit(PAPER, UniformWindow(scaled=False), 40, 3, server=METHODS["mifa"].server)
        for figures in (report, report.exact):
            assert figures.mean_weight is None
            assert figures.round_weight_variance is None
            assert figures.participation_rate is not None
        assert (report.over_the_run, report.in_every_round, report.variance) == (None, None, None)
        json.dumps(report.to_dict(), allow_nan=False)


class TestLimit:
    """Section by section what no unbiased schedule can beat, and who attains it."""

    def test_is_attained_by_algorithm_1_in_the_papers_fleet(self):
        report = paper_audit(UniformWindow())
        assert (report.limit.independent, report.limit.lattice) == (pytest.approx(0.2), pytest.approx(0.0625))
        assert report.limit.exact
        assert "; this one attains it" in report.distance()

    @pytest.mark.parametrize("policy", [UniformWindow(), Lattice(), Lattice(redraw=False), KnownArrivals()], ids=repr)
    @pytest.mark.parametrize("arrivals", ["lump", "trickle"])
    def test_is_a_limit(self, policy, arrivals):
        fleet = Fleet.from_cycles([1, 3, 3, 3, 7], [0, 0, 0, 0, 5], arrivals=arrivals)
        report = audit(fleet, policy, 43, 100, shares=[0.1, 0.2, 0.2, 0.1, 0.4], deltas=[1.0, 2.0, 1.0, 1.0, 3.0])
        least = report.limit.independent if type(policy) is not Lattice else report.limit.lattice
        assert report.variance.exact >= least * (1.0 - 1e-9)

    def test_follows_what_greedy_can_do_with_this_storage(self):
        fleet = Fleet.from_cycles([2, 4], storage=Storage(charging=0.5), capacity=3)
        report = audit(fleet, Greedy(), 400, 2)
        rates = np.array([0.25, 0.125])
        assert report.limit.independent == pytest.approx(0.25 * (1 / rates - 1).sum(), rel=0.02)

    def test_says_who_can_never_train(self):
        report = audit(Fleet.from_cycles([2, 4, 5], capacity=3, storage=Storage(standby=0.2)), UniformWindow(), 200, 50)
        assert report.limit.independent == np.inf
        assert report.limit.starved == ("E=5",)
        assert report.to_dict()["limit"]["independent"] is None
        assert report.distance().startswith("no schedule can be unbiased: in E=5")
        assert report.verdict.startswith("biased over the run: E=2 clients count 0.6")
        assert "E=5 clients 0.00" in report.verdict

    def test_is_absent_where_energy_is_ignored_or_costs_vary(self):
        assert paper_audit(Always()).limit is None
        fleet = Fleet.from_cycles([2], storage=Storage(cost_spread=0.1), capacity=3)
        assert audit(fleet, Greedy(), 40, 5).limit is None


@dataclass(frozen=True)
class RoundRobin(UniformWindow):
    """Client i trains at place i of every window: right over time, and on the mean of a group in every round."""

    def _slot(self, clients, which, window):
        place = clients.ids[which] % clients.cycles[which]
        return np.broadcast_to(place, (*clients.shape()[:-1], len(place))).copy()


class TestWhatMeasurementMayClaim:
    @pytest.mark.parametrize(("cycles", "seeds"), [([2, 2], 200), ([5] * 20, 200)], ids=str)
    def test_clients_that_take_turns_are_off_in_every_round_though_their_group_is_not(self, cycles, seeds):
        found = audit(Fleet.from_cycles(cycles), RoundRobin(), 20, seeds)
        assert found.exact.mean_weight is None
        assert found.over_the_run.unbiased
        assert found.in_every_round.unbiased is False
        assert "this one" not in found.distance()

    @pytest.mark.parametrize(
        ("spell", "rounds", "seeds", "clients"), [(4, 100, 5, 4), (4, 100, 20, 1), (100, 400, 20, 1)]
    )
    def test_spells_are_not_taken_for_bias(self, spell, rounds, seeds, clients):
        """A leak that never matters takes the law away: every unit is spent as it comes, so weights are 1."""
        arrivals = Markov(np.full(clients, 20), np.zeros(clients, np.int64), spell=spell)
        fleet = Fleet(arrivals, np.ones(clients), Storage(leak=0.01))
        verdicts = [
            audit(fleet, Greedy(scaled=True), rounds, range(s, s + seeds)).over_the_run
            for s in range(0, 20 * seeds, seeds)
        ]
        assert all(not v.exact for v in verdicts)
        assert not any(v.unbiased is False for v in verdicts)

    def test_a_law_is_not_thrown_away_for_a_few_spells(self):
        fleet = Fleet(Markov(np.full(4, 20), np.zeros(4, np.int64), spell=100.0), np.ones(4))
        for first in range(0, 50, 5):
            assert audit(fleet, Greedy(scaled=True), 400, range(first, first + 5)).exact.mean_weight is not None

    def test_not_seen_is_not_never(self):
        fleet = Fleet.from_cycles([1, 1000], arrivals="bernoulli", storage=Storage(start=0.1))
        assert audit(fleet, Greedy(scaled=True), 50, 5).limit is None

    def test_bias_that_cancels_within_a_group_is_told_by_client(self):
        found = audit(Fleet.from_cycles([5] * 40), Uneven(), 500, 100)
        assert found.over_the_run.unbiased is False
        assert re.search(r"E=5 clients count 1\.00 times \(0\.6\d to 1\.\d\d by client\)", found.verdict), found.verdict

    def test_who_holds_no_data_may_count_as_it_likes(self):
        fleet = Fleet.from_cycles([1, 1, 4], [0, 0, 99])
        assert audit(fleet, Greedy(), 20, 5, shares=[0.5, 0.5, 0.0]).verdict.startswith("unbiased")

    @pytest.mark.parametrize("server", [None, Echo()], ids=repr)
    def test_whoever_never_starts_counts_0_for_certain(self, server):
        fleet = Fleet.from_cycles([1, 5, 10, 20], [0, 0, 0, 200])
        found = audit(fleet, UniformWindow(scaled=server is None), 100, 20, server=server)
        assert found.over_the_run.unbiased is False
        assert "E=20 clients 0.00" in found.verdict
        assert found.limit.starved == ("E=20",)

    def test_alike_and_too_much_is_not_slow(self):
        fleet = Fleet.from_cycles([3, 3], storage=Storage(start=5.0), capacity=6)
        assert audit(fleet, Greedy(scaled=True), 9, 5).verdict.startswith(
            "fair but too fast: all clients count alike, 2.67"
        )

    def test_memory_promises_no_more_than_it_keeps(self):
        paper = Fleet.from_cycles([1, 5, 10, 20])
        assert "counts by its data" not in audit(paper, Greedy(), 100, 20, server=Varp(memory=0.0)).verdict
        late = audit(
            Fleet.from_cycles([1, 5], [0, 500]), UniformWindow(scaled=False), 100, 5, server=METHODS["mifa"].server
        )
        assert "some clients never trained (E=5)" in late.verdict


class Uneven(UniformWindow):
    """Two clients of a group count too much and too little by as much."""

    def step(self, state, view):
        decision = super().step(state, view)
        scale = decision.scale.copy()
        scale[:2] *= [1.4, 0.6]
        return decision._replace(scale=scale)


def test_a_supply_that_changes_twice_has_no_law_of_its_parts():
    """What is left of a trickle's unit when it begins anew is not in the trickle's own law."""
    one = np.array([7]), np.zeros(1, np.int64)
    arrivals = Changing(BernoulliArrivals(*one), Changing(Trickle(*one), BernoulliArrivals(*one), 90), 20)
    fleet = Fleet(arrivals, np.array([2.0]))
    assert law_of(fleet, Greedy(scaled=True), 91) is None


class TestStorageOnePerClient:
    def test_lists_are_arrays(self):
        fleets = [
            Fleet.from_cycles([2, 4, 5], capacity=3, storage=Storage(standby=s))
            for s in ([0.2, 0.0, 0.6], np.array([0.2, 0.0, 0.6]))
        ]
        assert len({audit(fleet, Greedy(), 20, 2).verdict for fleet in fleets}) == 1
        assert len(list(plan(fleets[0], Greedy(), 20))) == 20

    @pytest.mark.parametrize("standby", [np.array([0.2, 0.0]), [[0.1]], "much"], ids=str)
    def test_others_are_refused(self, standby):
        with pytest.raises(InputError, match="one per client"):
            Fleet.from_cycles([2, 4, 5], capacity=3, storage=Storage(standby=standby))


def test_fairness_is_jains_index_of_the_participation_rates():
    fleet = Fleet.from_cycles([1, 5, 10, 20])
    rates = np.array([1.0, 0.2, 0.1, 0.05])
    told = audit(fleet, UniformWindow(), rounds=100, seeds=3)
    assert told.exact.fairness == pytest.approx(rates.sum() ** 2 / (4 * (rates**2).sum()))
    assert told.fairness == pytest.approx(told.exact.fairness)
    assert audit(fleet, Always(), rounds=20, seeds=2).fairness == 1.0
    assert told.to_dict()["fairness"] == told.fairness


def test_a_verdict_on_many_groups_names_the_one_that_has_too_much():
    # All count too little in so few rounds; those with much energy less so than the others, at whose cost they count.
    fleet = Fleet.from_cycles(np.random.default_rng(0).integers(1, 400, 2_000))
    report = audit(fleet, Greedy(), rounds=5, seeds=5)
    by_group = {group.label: report.mean_weight[group.clients].mean() for group in fleet.groups()}
    assert len(by_group) > 6
    assert max(by_group, key=by_group.get) in report.verdict
