"""Checks of numbers: what each interval takes, and what a refusal says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from everfed import InputError
from everfed.checks import check_count, check_shares, check_within


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "words"),
    [
        ("(0, inf)", [1e-9, 7, np.float32(2)], [0, -1.0, math.inf], "a positive number"),
        ("[0, inf)", [0, 3.5], [-1e-9, math.inf], "zero or a positive number"),
        ("[1, inf)", [1, 2.0], [0.5, math.inf], "at least 1"),
        ("[0, 1]", [0.0, 1], [-0.1, 1.1], "from 0 to 1"),
        ("[0, 1)", [0.0, 0.9], [1.0], "from 0 to below 1"),
        ("(0, 1]", [0.1, 1.0], [0.0, 2], "above 0 and at most 1"),
        ("(0, 1)", [0.5], [0, 1], "above 0 and below 1"),
        ("[-14, 14]", [-14, 14.0], [-14.5], "from -14 to 14"),
    ],
)
def test_an_interval_takes_what_lies_in_it(interval, inside, outside, words):
    check_within(interval, **{f"number{i}": value for i, value in enumerate(inside)})
    for value in (*outside, math.nan, True, "1", None):
        with pytest.raises(InputError) as error:
            check_within(interval, good=inside[0], bad=value)
        assert str(error.value) == f"bad is {value!r}; it must be {words}."


@pytest.mark.parametrize("value", [0, 1.0, "2", True, None])
def test_a_count_is_a_whole_number(value):
    assert check_count("rounds", np.int64(3)) == 3
    with pytest.raises(InputError, match=r"rounds is .*; it must be a whole number of at least 1\."):
        check_count("rounds", value)


@pytest.mark.parametrize(
    ("shares", "words"), [([0.5], "1 shares were given for 2"), ([0.5, 0.4], "sum to 0.9"), ("ab", "must be numbers")]
)
def test_shares_are_one_a_client_and_sum_to_one(shares, words):
    assert check_shares([0.25, 0.75], 2).tolist() == [0.25, 0.75]
    with pytest.raises(InputError, match=words):
        check_shares(shares, 2)
