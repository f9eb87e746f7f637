"""The audit: measured and exact figures agree, and the verdict says in words what they mean."""

from __future__ import annotations

import functools
import importlib
import json
import re
from dataclasses import dataclass, fields

import numpy as np
import pytest

from everfed import (
    METHODS,
    POLICIES,
    Always,
    Audit,
    Bernoulli,
    Fleet,
    Greedy,
    InputError,
    UniformWindow,
    WaitForAll,
    audit,
    plan,
)
from everfed.scheduling import Schedule, participations

# By import_module: in the package's namespace, the function of the same name hides the module.
audit_module = importlib.import_module("everfed.scheduling.audit")

PAPER = Fleet.from_cycles([1, 5, 10, 20] * 10)
EVERY = list(dict.fromkeys([row() for row in POLICIES.values()] + [method.policy for method in METHODS.values()]))
WITH_LAW = [policy for policy in EVERY if policy.law(PAPER, 0)]
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
    values = [getattr(report, f.name) for f in fields(audit_module.Figures)] + [report.gap_min, report.gap_max]
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
        if policy.obeys_energy:
            assert (report.exact.violations, report.violations) == (0.0, 0.0)
        else:
            assert report.exact.violations is None
            assert report.violations > 0.0

    def test_becomes_plain_json(self, policy):
        report = paper_audit(policy)
        read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        assert set(read) == {f.name for f in fields(Audit)} | {"fairness"}
        assert set(read["exact"]) == {f.name for f in fields(audit_module.Figures)} | {"fairness"}
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
        law = policy.law(PAPER, 1)
        # The widest spread any of the policies has, an independent coin a round.
        deviation = np.sqrt((PAPER.cycles() - 1.0) / (ROUNDS * SEEDS)) / PAPER.cycles()
        assert np.all(np.abs(report.participation_rate - report.exact.participation_rate) <= 4.5 * deviation + 1e-12)
        weight_error = np.abs(report.mean_weight - report.exact.mean_weight)
        assert np.all(weight_error <= 4.5 * deviation * law.scale + 1e-12)

    def test_gaps(self, policy):
        report = paper_audit(policy)
        # A horizon favours short gaps: a long one may not end in time. Hence the allowance.
        np.testing.assert_allclose(report.gap_mean, report.exact.gap_mean, rtol=0.06)
        np.testing.assert_allclose(group_means(report.gap_variance), group_means(report.exact.gap_variance), rtol=0.1)

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
        np.testing.assert_allclose(exact.gap_variance, [0, 20, 90, 380] * 10)

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
        assert "weight shares 50/50 %" in report.verdict

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


@dataclass(frozen=True)
class WithoutFormulas:
    """A policy whose audit must rely on measurement alone."""

    policy: object

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def law(self, fleet, round):
        return None

    def gaps(self, fleet):
        return None


class TestVerdict:
    def test_of_algorithm_1_is_unbiased_without_a_but(self):
        assert paper_audit(UniformWindow()).verdict == "unbiased: every client's update counts by its data, on average."

    @pytest.mark.parametrize("policy", [Greedy(), UniformWindow(scaled=False)], ids=repr)
    def test_of_unscaled_participation_names_whom_it_favours(self, policy):
        verdict = paper_audit(policy).verdict
        assert verdict.startswith("biased towards clients 0, 4, 8, 12, 16 and 5 more")
        assert "74/15/7/4 % by energy group (E=1, E=5, E=10, E=20)" in verdict
        assert re.search(r"33\.[78]% of a full-participation step", verdict)

    def test_of_wait_for_all_is_fair_but_slow(self):
        verdict = paper_audit(WaitForAll()).verdict
        assert verdict.startswith("fair but slow")
        assert "5.0% of a full-participation step" in verdict

    def test_of_greedy_scaled_is_unbiased_over_time_only(self):
        verdict = paper_audit(Greedy(scaled=True)).verdict
        assert verdict.startswith("unbiased")
        assert "over time only; in single rounds some count up to 20 times too much" in verdict

    def test_of_fedavg_counts_the_energy_that_is_not_there(self):
        verdict = paper_audit(Always()).verdict
        assert verdict.startswith("unbiased")
        assert "spends energy that is not there, 26,500 times a run" in verdict

    def test_of_bernoulli_counts_the_energy_that_is_not_there(self):
        verdict = paper_audit(Bernoulli()).verdict
        assert verdict.startswith("unbiased")
        assert "spends energy that is not there" in verdict

    def test_of_skipped_slots_is_biased(self):
        verdict = audit(Fleet.from_cycles([1, 5] * 5, arrivals="trickle", capacity=1), UniformWindow(), 100, 50).verdict
        assert verdict.startswith("biased towards clients 0, 2, 4, 6, 8:")

    def test_of_a_trickle_into_a_large_battery_is_unbiased(self):
        verdict = audit(Fleet.from_cycles([1, 5] * 5, arrivals="trickle"), UniformWindow(), 100, 50).verdict
        assert verdict.startswith("unbiased")

    def test_mentions_rounds_that_leave_out_late_clients(self):
        verdict = audit(Fleet.from_cycles([1, 5, 5], [0, 10, 30]), UniformWindow(), 100, 20).verdict
        assert verdict.startswith("unbiased")
        assert "only from round 30 on" in verdict
        assert "have not started (1, 2)" in verdict

    def test_says_when_nobody_ever_trains(self):
        verdict = audit(Fleet.from_cycles([2, 2], [50, 50]), Greedy(), 10, 2).verdict
        assert verdict.startswith("nobody ever trains")

    @over(EVERY)
    def test_by_measurement_agrees_with_the_one_by_formula(self, policy):
        measured = audit(PAPER, WithoutFormulas(policy), 200, SEEDS)
        assert measured.exact.mean_weight is None
        assert measured.verdict.split()[0] == paper_audit(policy).verdict.split()[0]


def test_fairness_is_jains_index_of_the_participation_rates():
    fleet = Fleet.from_cycles([1, 5, 10, 20])
    rates = np.array([1.0, 0.2, 0.1, 0.05])
    told = audit(fleet, UniformWindow(), rounds=100, seeds=3)
    assert told.exact.fairness == pytest.approx(rates.sum() ** 2 / (4 * (rates**2).sum()))
    assert told.fairness == pytest.approx(told.exact.fairness)
    assert audit(fleet, Always(), rounds=20, seeds=2).fairness == 1.0
    assert told.to_dict()["fairness"] == told.fairness
