"""Statistics over seeds: against SciPy, against brute force, and by simulation of what they promise."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats as reference

from everfed import stats
from everfed.errors import InputError

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 6))
SAMPLES = st.lists(NUMBERS, min_size=2, max_size=12)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8)


@given(SAMPLES)
def test_mean_sd_and_interval_are_those_of_scipy(values):
    found = stats.summarize(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-6, abs=1e-6)
    if found.sd > 1e-6:
        low, high = reference.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=reference.sem(values))
        assert found.interval == pytest.approx((low, high), rel=1e-6, abs=1e-6)


def test_one_value_has_no_spread_and_none_is_an_error():
    one = stats.summarize([0.5])
    assert (one.sd, one.margin, one.interval) == (None, None, None)
    assert one.to_dict() == {"mean": 0.5, "sd": None, "ci95": None, "runs": 1}
    with pytest.raises(InputError, match="at least one value"):
        stats.summarize([])


def test_equal_values_have_a_spread_of_exactly_nothing():
    assert stats.summarize([0.1] * 7).sd == 0.0
    assert stats.summarize([0.1] * 7).margin == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null_and_valid_json(bad):
    text = json.dumps(stats.summarize([1.0, bad, 2.0]).to_dict(), allow_nan=False)
    assert json.loads(text) == {"mean": None, "sd": None, "ci95": None, "runs": 3}


@given(PAIRS)
def test_the_paired_test_is_that_of_scipy(pairs):
    a, b = map(list, zip(*pairs, strict=True))
    found = stats.paired(a, b)
    differences = np.subtract(a, b)
    assert found.mean == pytest.approx(differences.mean(), rel=1e-9, abs=1e-9)
    if np.std(differences) > 1e-6 * max(1.0, np.abs(pairs).max()):
        expected = reference.ttest_rel(a, b)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-9)
        low, high = expected.confidence_interval(0.95)
        assert found.mean - found.margin == pytest.approx(low, rel=1e-6, abs=1e-6)
        assert found.mean + found.margin == pytest.approx(high, rel=1e-6, abs=1e-6)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8))
def test_the_exact_test_counts_all_sign_patterns(differences):
    found = stats.paired(differences, [0] * len(differences)).p_flip
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(one, differences, strict=True))) for one in signs]
    assert found == sum(total >= abs(sum(differences)) for total in sums) / len(sums)
    assert found >= min(1.0, 2 / 2 ** len(differences))


def test_differences_without_spread_have_no_t_test():
    same = stats.paired([0.3, 0.3, 0.1], [0.3, 0.3, 0.1])
    assert (same.mean, same.p, same.p_flip) == (0.0, 1.0, 1.0)
    shifted = stats.paired([0.3, 0.4, 0.2], [0.2, 0.3, 0.1])
    assert (shifted.p, shifted.p_flip) == (None, 0.25)
    alone = stats.paired([0.3], [0.1])
    assert (alone.margin, alone.p, alone.p_flip, alone.count) == (None, None, None, 1)
    assert stats.paired(range(40), [0] * 40).p_flip is None  # too many signs to try


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(InputError, match="3 and 2 values"):
        stats.paired([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="not finite"):
        stats.paired([1.0, math.nan], [1.0, 2.0])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=6))
def test_holm_is_the_step_down_rule_by_brute_force(ps):
    """A corrected value is the smallest level at which the step-down rule rejects that hypothesis; all tests count."""
    corrected = stats.holm(ps)
    known = [p for p in ps if p is not None]
    for p, q in zip(ps, corrected, strict=True):
        assert (p is None) == (q is None)
        if p is None:
            continue
        below = sorted(known)
        steps = [(len(ps) - k) * below[k] for k in range(len(known)) if below[k] <= p]
        assert q == pytest.approx(min(1.0, max(steps)))


def test_a_constant_difference_counts_among_the_tests_that_were_made():
    reference = np.array([0.5, 0.6, 0.55, 0.7])
    constant, varying = stats.paired(reference + 0.1, reference), stats.paired([0.6, 0.65, 0.7, 0.72], reference)
    assert constant.p is None
    for others in range(4):
        corrected = stats.holm([varying.p, *[constant.p] * others])
        assert corrected[0] == pytest.approx(min(1.0, (1 + others) * varying.p))
        assert corrected[1:] == [None] * others


def test_the_interval_covers_the_mean_and_the_test_errs_as_often_as_they_say():
    """5 % of 20,000 samples: the rate found has a standard error of 0.15 points; four of them are allowed."""
    chance = np.random.default_rng(0)
    times, allowed = 20_000, 4 * math.sqrt(0.05 * 0.95 / 20_000)
    for n in (2, 3, 10):
        samples = chance.normal(1.0, 3.0, (n, times))
        missed = np.abs(samples.mean(axis=0) - 1.0) > stats.margins(samples)
        assert missed.mean() == pytest.approx(0.05, abs=allowed)
    found = [stats.paired(a, b) for a, b in chance.normal(size=(2000, 2, 6))]
    assert np.mean([f.p < 0.05 for f in found]) == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 2000))
    # With six pairs the exact test has steps of 1/32, and its largest level below 5 % is 1/32.
    assert np.mean([f.p_flip < 0.05 for f in found]) == pytest.approx(1 / 32, abs=4 * math.sqrt(0.03 / 2000))


def test_three_comparisons_together_err_in_at_most_one_family_of_twenty():
    chance = np.random.default_rng(1)
    wrong = 0
    for one in chance.normal(size=(1500, 4, 6)):
        wrong += min(stats.holm([stats.paired(row, one[0]).p for row in one[1:]])) < 0.05
    assert wrong / 1500 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


def test_margins_are_the_summaries_column_by_column():
    values = np.random.default_rng(2).normal(size=(5, 3))
    assert stats.margins(values) == pytest.approx([stats.summarize(column).margin for column in values.T])
    assert np.isnan(stats.margins(values[:1])).all()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_jains_index_lies_between_one_alone_and_all_alike(counts):
    index = stats.jain(counts)
    assert 1 / len(counts) - 1e-12 <= index <= 1 + 1e-12
    assert stats.jain([3 * c for c in counts]) == pytest.approx(index)
    assert stats.jain([7] * len(counts)) == pytest.approx(1.0)
