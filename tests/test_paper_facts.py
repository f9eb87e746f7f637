"""Exact facts about Güler & Yener's scheme and its benchmarks, checked on the product's own plans.

Where a fact is about probabilities, the random draw is replaced by a digit of the row's number, so
that the rows of one schedule hold every outcome once, and means over rows are exact.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from scipy.stats import chisquare

from everfed import (
    Always,
    Bernoulli,
    EverfedWarning,
    Fleet,
    Greedy,
    InputError,
    UniformWindow,
    WaitForAll,
    plan,
    random,
)
from everfed.scheduling.laws import law_of
from everfed.scheduling.plan import Schedule
from everfed.testbed.steady import window_bias, window_mse, window_variance
from plans import participations

PAPER = Fleet.from_cycles([1, 5, 10, 20] * 10)
SHARE = 1 / 40
ROUNDS = 1000
some_cycles = pytest.mark.parametrize("cycle", [2, 3, 5, 7])


@pytest.fixture
def every_outcome(monkeypatch):
    """Put every outcome of so many draws per client in place of chance; gives the seeds [S, 1] that number them."""

    def enumerate_outcomes(cycles, draws):
        choices = [range(cycle) for cycle in cycles for _ in range(draws)]
        outcomes = np.array(list(itertools.product(*choices))).reshape(-1, len(cycles), draws)
        monkeypatch.setattr(
            random, "below", lambda bound, seed, purpose, client, index: outcomes[seed.astype(int), client, index]
        )
        return seeds_side_by_side(len(outcomes))

    return enumerate_outcomes


@pytest.fixture
def two_windows(every_outcome):
    """Algorithm 1's two first windows of a client of this cycle, in every outcome: [2 * cycle, S]."""

    def enumerate_lives(cycle):
        seeds = every_outcome([cycle], draws=2)
        return joins(Fleet.from_cycles([cycle]), UniformWindow(), 2 * cycle, seeds)[:, :, 0]

    return enumerate_lives


def seeds_side_by_side(count):
    return np.arange(count, dtype=np.uint64)[:, None]


def joins(fleet, policy, rounds, seed):
    """Who trains, [rounds, N], or [rounds, S, N] for seeds side by side."""
    schedule = Schedule(fleet, policy, seed)
    return np.array([schedule.step(r)[0] for r in range(rounds)])


def weights(fleet, policy, rounds, seed):
    """join * scale, in the shapes of `joins`."""
    schedule = Schedule(fleet, policy, seed)
    return np.array([join * scale for join, scale in (schedule.step(r) for r in range(rounds))])


def round_weights(policy, rounds=ROUNDS):
    """W_r of a plan for the paper's profile."""
    return np.array([SHARE * step.scales.sum() for step in plan(PAPER, policy, rounds)])


class TestTheExperiment:
    @pytest.mark.parametrize(
        ("policy", "total"),
        [(UniformWindow(), 13_500), (Greedy(), 13_500), (WaitForAll(), 2_000), (Always(), 40_000)],
        ids=repr,
    )
    def test_participations_in_1000_rounds(self, policy, total):
        assert sum(len(step.clients) for step in plan(PAPER, policy, ROUNDS)) == total

    @pytest.mark.parametrize("policy", [UniformWindow(), Greedy()], ids=repr)
    def test_every_client_takes_part_once_a_cycle_exactly(self, policy):
        counts = participations(plan(PAPER, policy, ROUNDS, strict_horizon=True), 40)
        assert counts.tolist() == [1000, 200, 100, 50] * 10

    def test_wait_for_all_moves_the_model_every_twentieth_round(self):
        steps = [step for step in plan(PAPER, WaitForAll(), ROUNDS) if len(step.clients)]
        assert [step.round for step in steps] == list(range(0, ROUNDS, 20))
        assert steps[-1].energy.spent / 13_500 == pytest.approx(0.148, abs=5e-4)

    def test_algorithm_1_by_formula_has_the_paper_s_moments(self):
        law = next(law_of(PAPER, UniformWindow(), 20).rounds())
        spread = law.probability * (1.0 - law.probability)
        assert law.probability.sum() == pytest.approx(13.5)
        assert spread.sum() == pytest.approx(2.975)
        assert SHARE * (law.probability @ law.scale) == pytest.approx(1.0)
        assert SHARE**2 * (spread @ law.scale**2) == pytest.approx(0.2)

    def test_algorithm_1_as_drawn_has_the_paper_s_moments(self):
        weight = weights(PAPER, UniformWindow(), 40, seeds_side_by_side(500))
        crowd, total = (weight > 0).sum(axis=-1), SHARE * weight.sum(axis=-1)
        assert crowd.mean() == pytest.approx(13.5, abs=0.06)
        assert crowd.var() == pytest.approx(2.975, rel=0.05)
        assert total.mean() == pytest.approx(1.0, abs=0.015)
        assert total.var() == pytest.approx(0.2, rel=0.05)
        assert total.min() == pytest.approx(0.25)
        assert (total > 2.0).mean() == pytest.approx(0.021, abs=0.005)

    def test_greedy_weighs_rounds_by_who_is_due(self):
        total = round_weights(Greedy())
        assert total[:20] == pytest.approx([{0: 1.0, 10: 0.75, 5: 0.5, 15: 0.5}.get(r, 0.25) for r in range(20)])
        assert total == pytest.approx(np.tile(total[:20], 50))
        assert total.mean() == pytest.approx(0.3375)

    def test_greedy_shares_the_weight_by_energy(self):
        counts = participations(plan(PAPER, Greedy(), ROUNDS), 40)
        shares = [counts[k::4].sum() / counts.sum() for k in range(4)]
        assert shares == pytest.approx([0.741, 0.148, 0.074, 0.037], abs=5e-4)

    def test_greedy_scaled_explodes_every_twentieth_round(self):
        total = round_weights(Greedy(scaled=True))
        assert total[[0, 10, 5, 15, 1, 19]] == pytest.approx([9.0, 4.0, 1.5, 1.5, 0.25, 0.25])
        assert total.mean() == pytest.approx(1.0)

    def test_wait_for_all_uses_storage_not_the_common_multiple(self):
        steps = plan(Fleet.from_cycles([4, 6]), WaitForAll(), 24)
        assert [step.round for step in steps if len(step.clients)] == [0, 6, 12, 18]

    def test_without_limits_algorithm_1_is_fedavg(self):
        fleet = Fleet.from_cycles([1] * 7)
        for ours, fedavg in zip(plan(fleet, UniformWindow(), 50, 3), plan(fleet, Always(), 50, 3), strict=True):
            np.testing.assert_array_equal(ours.clients, fedavg.clients)
            np.testing.assert_array_equal(ours.scales, fedavg.scales)
            assert ours.energy == fedavg.energy


class TestParticipation:
    @some_cycles
    def test_chance_is_one_in_a_cycle_in_every_round(self, two_windows, cycle):
        np.testing.assert_allclose(two_windows(cycle).mean(axis=1), 1 / cycle)

    @some_cycles
    def test_every_window_holds_exactly_one(self, two_windows, cycle):
        assert np.all(two_windows(cycle).reshape(2, cycle, -1).sum(axis=1) == 1)

    @some_cycles
    def test_covariance_is_negative_within_a_window_and_zero_across(self, two_windows, cycle):
        covariance = np.cov(two_windows(cycle), bias=True)
        np.testing.assert_allclose(covariance, windows_covariance(cycle, windows=2), atol=1e-12)

    def test_clients_are_uncorrelated(self, every_outcome):
        seeds = every_outcome([2, 3, 3], draws=1)
        join = joins(Fleet.from_cycles([2, 3, 3]), UniformWindow(), 2, seeds)
        for r, s in itertools.product(range(2), repeat=2):
            covariance = np.cov(join[r].T, join[s].T, bias=True)[:3, 3:]
            np.testing.assert_allclose(covariance[~np.eye(3, dtype=bool)], 0.0, atol=1e-12)

    def test_covariance_is_the_same_with_drawn_slots(self):
        join = joins(Fleet.from_cycles([4, 4]), UniformWindow(), 8, seeds_side_by_side(20_000))
        measured = np.cov(np.concatenate([join[:, :, 0], join[:, :, 1]]))
        np.testing.assert_allclose(measured, np.kron(np.eye(2), windows_covariance(4, windows=2)), atol=0.007)

    @some_cycles
    def test_hazard_grows_to_certainty_within_every_window(self, two_windows, cycle):
        join = two_windows(cycle)
        for opens, k in itertools.product((0, cycle), range(cycle)):
            used = join[opens : opens + k].any(axis=0)
            assert join[opens + k, ~used].mean() == pytest.approx(1 / (cycle - k))
            assert not join[opens + k, used].any()


def windows_covariance(cycle, windows):
    """1/E (1 - 1/E) on the diagonal, -1/E^2 within a window, 0 across."""
    return np.kron(np.eye(windows), np.eye(cycle) / cycle - 1 / cycle**2)


def gap_law(cycle):
    gaps = np.arange(1, 2 * cycle)
    return gaps, (cycle - np.abs(gaps - cycle)) / cycle**2


class TestGaps:
    @some_cycles
    def test_law_is_triangular(self, two_windows, cycle):
        measured = np.array([np.diff(np.flatnonzero(life))[0] for life in two_windows(cycle).T])
        gaps, chance = gap_law(cycle)
        np.testing.assert_allclose([(measured == gap).mean() for gap in gaps], chance)
        assert measured.mean() == pytest.approx(cycle)
        assert measured.var() == pytest.approx((cycle**2 - 1) / 6)

    @pytest.mark.parametrize("cycle", [2, 5, 10, 20])
    def test_law_is_triangular_with_drawn_slots(self, cycle):
        n = 20_000
        join = joins(Fleet.from_cycles([cycle] * n), UniformWindow(), 2 * cycle, 7)
        measured = cycle + join[cycle:].argmax(axis=0) - join[:cycle].argmax(axis=0)
        _, chance = gap_law(cycle)
        assert chisquare(np.bincount(measured, minlength=2 * cycle)[1:], n * chance).pvalue > 1e-3
        assert measured.mean() == pytest.approx(cycle, rel=0.01)
        assert measured.var() == pytest.approx((cycle**2 - 1) / 6, rel=0.05)

    @some_cycles
    def test_first_participation_comes_after_half_a_window(self, two_windows, cycle):
        assert (two_windows(cycle).argmax(axis=0) + 1).mean() == pytest.approx((cycle + 1) / 2)


class TestUpdate:
    @pytest.mark.parametrize("cycles", [(2,), (1, 2, 3), (2, 2, 3, 3), (1, 2, 3, 4)], ids=str)
    def test_mean_and_variance_over_all_slots(self, every_outcome, cycles):
        rng = np.random.default_rng(len(cycles))
        deltas, shares = rng.normal(size=(len(cycles), 5)), rng.dirichlet(np.ones(len(cycles)))
        seeds = every_outcome(cycles, draws=2)
        fedavg = shares @ deltas
        spread = shares**2 * (np.array(cycles) - 1) @ (deltas**2).sum(axis=1)
        # Two windows of the shortest cycle; longer ones are then met in mid-window too.
        rounds = 2 * max(2, min(cycles))
        for weight in weights(Fleet.from_cycles(cycles), UniformWindow(), rounds, seeds):
            update = (weight * shares) @ deltas
            np.testing.assert_allclose(update.mean(axis=0), fedavg, atol=1e-12)
            assert ((update - fedavg) ** 2).sum(axis=1).mean() == pytest.approx(spread, abs=1e-12)


class TestConditionalBias:
    """Lemma 1 of the paper is marginal: two rounds of one window are not independent."""

    curvature, shares, step = np.array([0.5, 1.0, 2.0]), np.array([0.2, 0.3, 0.5]), 0.1

    def two_rounds(self, cycles, policy, seeds):
        """E[M_1 M_0], M_r = 1 - step * sum of join * scale * share * curvature."""
        weight = weights(Fleet.from_cycles(cycles), policy, 2, seeds)
        return np.prod(1.0 - self.step * weight @ (self.shares * self.curvature), axis=0).mean()

    def fedavg(self):
        return (1.0 - self.step * self.shares @ self.curvature) ** 2

    @pytest.mark.parametrize("cycle", [2, 3])
    def test_windows_contract_to_0_7286_whatever_the_cycle(self, every_outcome, cycle):
        result = self.two_rounds([cycle] * 3, UniformWindow(), every_outcome([cycle] * 3, draws=1))
        assert result == pytest.approx(0.7286)

    @pytest.mark.parametrize("cycles", [(2, 3, 5), (1, 2, 3), (4, 1, 1), (1, 1, 1)], ids=str)
    def test_deviation_is_of_second_order_and_of_waiting_clients_only(self, every_outcome, cycles):
        waits = np.array(cycles) > 1
        deviation = -(self.step**2) * ((self.shares * self.curvature) ** 2 @ waits)
        result = self.two_rounds(cycles, UniformWindow(), every_outcome(cycles, draws=2))
        assert result - self.fedavg() == pytest.approx(deviation, abs=1e-12)

    @pytest.mark.parametrize("cycles", [(2, 2, 2), (3, 3, 3), (1, 2, 4)], ids=str)
    def test_bernoulli_does_not_deviate(self, every_outcome, cycles):
        result = self.two_rounds(cycles, Bernoulli(), every_outcome(cycles, draws=2))
        assert result == pytest.approx(self.fedavg(), abs=1e-12)

    @pytest.mark.parametrize(
        ("policy", "contraction"), [(UniformWindow(), 1 - 2 * 0.1), (Always(), (1 - 0.1) ** 2)], ids=repr
    )
    def test_one_client_of_cycle_two_makes_one_double_step(self, every_outcome, policy, contraction):
        seeds = every_outcome([2], draws=1)
        weight = weights(Fleet.from_cycles([2]), policy, 2, seeds)[:, :, 0]
        np.testing.assert_allclose(np.prod(1.0 - 0.1 * weight, axis=0), [contraction] * 2, rtol=1e-14)


class TestFixedPoints:
    """Quadratics (w - c_i)^2 / 2 with group centres 0, 1, 2, 3; the optimum is 1.5."""

    @staticmethod
    def resting_place(policy, rounds, seeds, step=0.01):
        """Mean of w over the second half of the rounds and over the seeds."""
        schedule = Schedule(PAPER, policy, seeds_side_by_side(seeds))
        centre, w, late = np.tile([0.0, 1.0, 2.0, 3.0], 10), np.full((seeds, 1), 1.5), 0.0
        for r in range(rounds):
            join, scale = schedule.step(r)
            w = w + step * SHARE * (join * scale * (centre - w)).sum(axis=-1, keepdims=True)
            late += w.mean() if r >= rounds // 2 else 0.0
        return late / (rounds - rounds // 2)

    def test_greedy_rests_where_the_frequent_want(self):
        assert self.resting_place(Greedy(), rounds=6000, seeds=1) == pytest.approx(0.4074, abs=2e-3)

    def test_algorithm_1_rests_at_the_optimum_but_for_the_step(self):
        bias = self.resting_place(UniformWindow(), rounds=2000, seeds=100) - 1.5
        assert bias == pytest.approx(0.0969 * 0.01, abs=2e-4)


class TestStationaryError:
    """Quadratics (w - c_i)^2 / 2 at a constant step a: first and second moments solved for, not simulated."""

    @staticmethod
    def moments(weight, shares, centres, step):
        """(mean, mean square) of w - w*, averaged over rounds; weight: [rounds, S, N] over whole windows."""
        off = centres - shares @ centres
        factor, drift = np.ones(weight.shape[1]), np.zeros(weight.shape[1])
        paths = []
        for now in weight:
            paths.append((factor, drift))  # the error at the start of a round is factor * (that of the block) + drift
            pull = 1.0 - step * now @ shares
            factor, drift = pull * factor, pull * drift + step * now @ (shares * off)
        # Stationary: the error at the block's end has the moments it began with.
        mean = drift.mean() / (1.0 - factor.mean())
        square = ((drift**2).mean() + 2.0 * mean * (factor * drift).mean()) / (1.0 - (factor**2).mean())
        means = [f.mean() * mean + d.mean() for f, d in paths]
        squares = [(f**2).mean() * square + 2.0 * mean * (f * d).mean() + (d**2).mean() for f, d in paths]
        return np.mean(means), np.mean(squares)

    def exact(self, every_outcome, cycles, shares, centres, step):
        rounds = int(np.lcm.reduce(cycles))
        seeds = every_outcome(cycles, draws=rounds // min(cycles) if min(cycles) > 1 else 1)
        weight = weights(Fleet.from_cycles(cycles), UniformWindow(), rounds, seeds)
        return self.moments(weight, np.array(shares), np.array(centres), step)

    def test_a_heavy_rare_client_doubles_the_error_by_its_pull(self, every_outcome):
        fleet, shares, centres, a = Fleet.from_cycles([1, 20]), np.array([0.1, 0.9]), np.array([0.0, 1.0]), 0.001
        mean, square = self.exact(every_outcome, [1, 20], shares, centres, a)
        assert square == pytest.approx(1.126e-6, abs=5e-10)
        assert square - mean**2 == pytest.approx(5.37e-7, abs=5e-10)
        assert window_variance(fleet, centres, a, shares) == pytest.approx(5.39e-7, abs=5e-10)
        assert window_mse(fleet, centres, a, shares) == pytest.approx(square, rel=0.006)

    @pytest.mark.parametrize(
        ("cycles", "shares", "centres"),
        [
            ((1, 20), (0.1, 0.9), (0.0, 1.0)),
            ((1, 7), (0.5, 0.5), (3.0, -2.0)),
            ((2, 3), (0.3, 0.7), (0.0, 1.0)),
            ((2, 2, 4), (0.2, 0.3, 0.5), (0.0, 1.0, 5.0)),
            ((1, 3, 3), (0.6, 0.3, 0.1), (0.0, -1.0, 1.0)),
        ],
        ids=str,
    )
    def test_both_formulas_are_right_to_leading_order(self, every_outcome, cycles, shares, centres):
        fleet, p, c = Fleet.from_cycles(cycles), np.array(shares), np.array(centres)
        off = []
        for a in (1e-3, 1e-4):
            mean, square = self.exact(every_outcome, cycles, shares, centres, a)
            off.append([mean / window_bias(fleet, c, a, p) - 1.0, square / window_mse(fleet, c, a, p) - 1.0])
        # What is left out is one order smaller: a tenth of the step leaves a tenth of the relative error.
        assert np.all(np.abs(off[1]) < 2e-3)
        np.testing.assert_allclose(off[1], np.array(off[0]) / 10, rtol=0.1, atol=1e-6)


def last_books(fleet, policy, rounds, seed=0):
    return list(plan(fleet, policy, rounds, seed))[-1].energy


class TestEnergyCausality:
    def test_lumps_need_a_battery_of_one_unit(self):
        schedule = Schedule(PAPER, UniformWindow(), seeds_side_by_side(5))
        for r in range(200):
            schedule.step(r)
            assert set(np.unique(schedule.battery.level)) <= {0.0, 1.0}
        books = schedule.battery.books()
        assert (books.violations, books.wasted, books.shortfall) == (0, 0.0, 0.0)
        assert (books.harvested, books.spent) == (5 * 2700, 5 * 2700)

    def test_a_trickle_needs_almost_two_units(self):
        cycles = np.tile([1, 2, 3, 5, 10, 20], 20)
        fleet = Fleet.from_cycles(cycles, arrivals="trickle", capacity=2 - 1 / cycles)
        assert participations(plan(fleet, UniformWindow(), 600), 120).tolist() == (600 // cycles).tolist()
        assert last_books(fleet, UniformWindow(), 600).wasted == pytest.approx(0.0, abs=1e-9)

    @pytest.mark.parametrize("cycle", [2, 3, 5, 10, 20])
    def test_a_trickle_wastes_with_one_part_less(self, cycle):
        fleet = Fleet.from_cycles([cycle] * 100, arrivals="trickle", capacity=2 - 2 / cycle)
        assert last_books(fleet, UniformWindow(), 40 * cycle).wasted > 0.1

    @some_cycles
    def test_a_trickle_fills_a_battery_to_almost_two_units_at_most(self, every_outcome, cycle):
        fleet = Fleet.from_cycles([cycle], arrivals="trickle")
        schedule = Schedule(fleet, UniformWindow(), every_outcome([cycle], draws=2))
        highest = 0.0
        for r in range(2 * cycle):
            join, _ = schedule.step(r)
            highest = max(highest, (schedule.battery.level + join).max())
        assert highest == pytest.approx(2 - 1 / cycle)

    @some_cycles
    def test_one_unit_is_too_small_for_an_early_second_slot(self, every_outcome, cycle):
        fleet = Fleet.from_cycles([cycle], arrivals="trickle", capacity=1)
        join = joins(fleet, UniformWindow(), 2 * cycle, every_outcome([cycle], draws=2))[:, :, 0]
        skipped = ~join[cycle:].any(axis=0)
        assert skipped.mean() == pytest.approx((cycle - 1) / (2 * cycle))
        first, second = np.divmod(np.arange(cycle * cycle), cycle)
        np.testing.assert_array_equal(skipped, second < first)

    @pytest.mark.parametrize("cycle", [2, 5, 10, 20])
    def test_one_unit_skips_a_third_of_the_windows_in_the_long_run(self, cycle):
        fleet = Fleet.from_cycles([cycle] * 400, arrivals="trickle", capacity=1)
        join = joins(fleet, UniformWindow(), 120 * cycle, 1)[20 * cycle :]
        assert join.reshape(100, cycle, 400).sum(axis=1).max() == 1
        assert 1.0 - join.sum() / (100 * 400) == pytest.approx((1 - 1 / cycle) ** cycle, abs=0.01)

    @pytest.mark.parametrize("arrivals", ["lump", "trickle"])
    def test_no_unit_at_round_zero_is_an_offset_of_one_cycle(self, arrivals):
        fleet = Fleet.from_cycles([5, 20], [5, 20], arrivals=arrivals)
        books = last_books(fleet, UniformWindow(), 100)
        assert (books.spent, books.violations) == (19 + 4, 0)


class TestOffsets:
    cycles, offsets = (1, 2, 3), (2, 5, 4)

    def test_nothing_before_the_start_and_one_in_a_cycle_after(self, every_outcome):
        seeds = every_outcome(self.cycles, draws=2)
        join = joins(Fleet.from_cycles(self.cycles, self.offsets), UniformWindow(), 9, seeds)
        started = np.arange(9)[:, None] >= np.array(self.offsets)
        np.testing.assert_allclose(join.mean(axis=1), np.where(started, 1 / np.array(self.cycles), 0.0))

    def test_rounds_leave_out_who_has_not_started(self, every_outcome):
        seeds = every_outcome(self.cycles, draws=2)
        weight = weights(Fleet.from_cycles(self.cycles, self.offsets), UniformWindow(), 9, seeds)
        total = weight.mean(axis=(1, 2))
        assert total == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 1, 1, 1, 1])


class TestHorizon:
    @pytest.mark.parametrize(
        ("cycles", "offsets", "rounds"), [([4, 6], None, 20), ([4, 5], [0, 1], 20)], ids=["cycle", "offset"]
    )
    def test_a_cut_window_is_a_warning_or_an_error(self, cycles, offsets, rounds):
        fleet = Fleet.from_cycles(cycles, offsets)
        with pytest.warns(EverfedWarning, match=rf"{rounds} rounds .* 1 of 2 clients \(client 1"):
            plan(fleet, UniformWindow(), rounds)
        with pytest.raises(InputError, match=rf"{rounds} rounds .* 1 of 2 clients \(client 1"):
            plan(fleet, UniformWindow(), rounds, strict_horizon=True)

    def test_whole_windows_are_neither(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan(Fleet.from_cycles([4, 5], [0, 10]), UniformWindow(), 20, strict_horizon=True)

    def test_a_cut_window_stays_unbiased(self, every_outcome):
        seeds = every_outcome([5], draws=2)
        join = joins(Fleet.from_cycles([5]), UniformWindow(), 7, seeds)
        np.testing.assert_allclose(join.mean(axis=(1, 2)), 1 / 5)

    @pytest.mark.parametrize("rounds", [0, -5, 2.5, True, "20", None, 2**32], ids=repr)
    def test_a_horizon_is_a_number_of_rounds(self, rounds):
        with pytest.raises(InputError, match="rounds is"):
            plan(PAPER, UniformWindow(), rounds)

    @pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "7", None], ids=repr)
    def test_a_seed_is_a_64_bit_number(self, seed):
        with pytest.raises(InputError, match="the seed is"):
            plan(PAPER, UniformWindow(), 20, seed)
