"""Data: every sample has one owner, splits are what they say, and bad data are refused by name."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.federated import FederatedData, checked

PAPER_CYCLES = [1, 5, 10, 20]


def paper_fleet(clients=40):
    return ef.Fleet.from_cycles((PAPER_CYCLES * clients)[:clients])


def dataset(labels, classes=None):
    labels = np.asarray(labels, np.int64)
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset("made-up", x, labels, x[:0], labels[:0], int(labels.max()) + 1 if classes is None else classes)


@pytest.fixture(scope="module")
def digits():
    return ef.load("digits")


# -- every split -----------------------------------------------------------------------------------

OPTIONS = {
    "iid": st.just({}),
    "dirichlet": st.fixed_dictionaries(
        {"alpha": st.floats(1e-3, 1e3), "per": st.sampled_from(["client", "energy-group"])}
    ),
    "by-energy": st.fixed_dictionaries({"strength": st.floats(0.0, 1.0)}),
}
OTHER_OPTIONS = {"dirichlet": [{"per": "energy-group"}, {"alpha": 0.05}], "by-energy": [{"strength": 0.5}]}
MADE = [how for how in ef.SPLITS if how != "natural"]  # of data without clients of their own
VARIANTS = [(how, options) for how in MADE for options in [{}, *OTHER_OPTIONS.get(how, [])]]


@st.composite
def partitions(draw, how):
    clients = draw(st.integers(1, 30))
    cycles = draw(st.lists(st.integers(1, 25), min_size=clients, max_size=clients))
    labels = draw(st.lists(st.integers(0, 11), min_size=clients, max_size=clients + 150))
    seed = draw(st.integers(0, 2**64 - 1))
    options = draw(OPTIONS.get(how, st.just({})))
    data = dataset(labels).partition(clients, how, fleet=ef.Fleet.from_cycles(cycles), seed=seed, **options)
    return clients, len(labels), data


@pytest.mark.parametrize("how", MADE)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rand=st.data())
def test_every_sample_has_exactly_one_owner_and_no_client_is_empty(how, rand):
    clients, samples, data = rand.draw(partitions(how))
    assert len(data) == clients
    assert np.array_equal(np.sort(data.order), np.arange(samples))
    assert np.array_equal(np.concatenate([data.samples_of(i) for i in range(clients)]), data.order)
    assert data.sizes().min() >= 1
    assert data.sizes().sum() == samples


@pytest.mark.parametrize(("how", "options"), VARIANTS)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(digits, how, options):
    def order(seed):
        return digits.partition(40, how, fleet=paper_fleet(), seed=seed, **options).order

    assert np.array_equal(order(3), order(3))
    assert not np.array_equal(order(3), order(4))


@pytest.mark.parametrize("how", MADE)
def test_as_many_clients_as_samples_hold_one_each(how):
    data = dataset([0, 1, 2, 0, 1, 2]).partition(6, how, fleet=ef.Fleet.from_cycles([1, 2, 3] * 2))
    assert data.sizes().tolist() == [1] * 6


def test_an_iid_split_is_even_to_one_sample(digits):
    sizes = digits.partition(40, seed=1).sizes()
    assert sizes.max() - sizes.min() <= 1


# -- labels that follow energy ---------------------------------------------------------------------


def group_counts(data, fleet):
    """[groups, classes]: samples of each class in each energy group."""
    counts = data.label_counts()
    return np.stack([counts[g.clients].sum(axis=0) for g in fleet.groups()])


def skew(counts):
    """How far the rows' label mixes lie from the overall mix: mean total variation."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    overall = counts.sum(axis=0) / counts.sum()
    return float(np.abs(mixes - overall).sum(axis=1).mean() / 2)


def by_energy(digits, strength, seed=0):
    return digits.partition(40, "by-energy", fleet=paper_fleet(), seed=seed, strength=strength)


def test_by_energy_at_full_strength_gives_each_group_its_own_classes(digits):
    counts = group_counts(by_energy(digits, 1.0), paper_fleet())
    held = [np.flatnonzero(row).tolist() for row in counts]
    assert held == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert np.array_equal(counts.sum(axis=0), np.bincount(digits.y))


def test_by_energy_at_full_strength_deals_evenly_inside_a_group(digits):
    sizes = by_energy(digits, 1.0).sizes()
    for group in paper_fleet().groups():
        assert np.ptp(sizes[group.clients]) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_by_energy_at_strength_zero_is_like_iid(digits, seed):
    data = by_energy(digits, 0.0, seed)
    iid = digits.partition(40, seed=seed)
    assert np.ptp(data.sizes()) <= 1
    # 360 samples per group and 10 classes: chance alone gives a total variation of about 0.05.
    assert skew(group_counts(data, paper_fleet())) < 0.09
    assert skew(group_counts(iid, paper_fleet())) < 0.09


def test_by_energy_grows_more_skewed_with_strength(digits):
    skews = [skew(group_counts(by_energy(digits, s), paper_fleet())) for s in np.linspace(0, 1, 6)]
    assert all(np.diff(skews) > 0.03), skews


def test_by_energy_keeps_the_stated_part_of_every_class_in_its_group(digits):
    strength = 0.6
    counts = group_counts(by_energy(digits, strength), paper_fleet())
    home = [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    at_home = counts[home, np.arange(10)] / counts.sum(axis=0)
    # A quarter of the rest is dealt to the home group as to every other.
    assert at_home == pytest.approx(strength + (1 - strength) / 4, abs=0.08)


def test_by_energy_with_more_energy_groups_than_classes_merges_groups():
    fleet = ef.Fleet.from_cycles(range(1, 9))
    data = dataset([0, 1] * 20).partition(8, "by-energy", fleet=fleet)
    held = [set(np.flatnonzero(row)) for row in data.label_counts()]
    assert held == [{0}] * 4 + [{1}] * 4


# -- Dirichlet -------------------------------------------------------------------------------------


def test_dirichlet_is_more_skewed_the_smaller_alpha(digits):
    def mean_skew(alpha):
        splits = [digits.partition(20, "dirichlet", alpha=alpha, seed=s) for s in range(5)]
        return np.mean([skew(data.label_counts()) for data in splits])

    skews = [mean_skew(alpha) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert all(np.diff(skews) < -0.1), skews


@pytest.mark.parametrize("per", ["client", "energy-group"])
def test_dirichlet_draws_other_proportions_with_another_seed(digits, per):
    one, other = (
        digits.partition(8, "dirichlet", per=per, fleet=paper_fleet(8), seed=s).label_counts() for s in (0, 1)
    )
    assert np.abs(one - other).sum() > 0.3 * len(digits.y)


def test_dirichlet_with_a_huge_alpha_is_even(digits):
    counts = digits.partition(10, "dirichlet", alpha=1e6).label_counts()
    assert np.ptp(counts, axis=0).max() <= 2


def spread_inside_groups(data):
    """The largest difference between two clients of one energy group in one class."""
    counts = data.label_counts()
    return max(int(np.ptp(counts[g.clients], axis=0).max()) for g in paper_fleet().groups())


def test_dirichlet_per_energy_group_deals_evenly_inside_a_group(digits):
    data = digits.partition(40, "dirichlet", alpha=0.3, per="energy-group", fleet=paper_fleet())
    assert spread_inside_groups(data) <= 1
    assert skew(group_counts(data, paper_fleet())) > 0.3


def test_dirichlet_gives_clients_of_small_and_large_groups_equally_much(digits):
    fleet = ef.Fleet.from_cycles([1] * 30 + [20] * 6)
    sizes = digits.partition(36, "dirichlet", alpha=1e6, per="energy-group", fleet=fleet).sizes()
    assert sizes == pytest.approx(1437 / 36, abs=3)


def test_dirichlet_per_client_skews_clients_but_hardly_their_energy_groups(digits):
    data = digits.partition(40, "dirichlet", alpha=0.3, per="client", fleet=paper_fleet())
    assert spread_inside_groups(data) > 10
    assert skew(data.label_counts()) > 0.5
    per_group = digits.partition(40, "dirichlet", alpha=0.3, per="energy-group", fleet=paper_fleet())
    assert skew(group_counts(data, paper_fleet())) < 0.6 * skew(group_counts(per_group, paper_fleet()))


def test_dirichlet_per_client_needs_no_fleet(digits):
    with_fleet = digits.partition(40, "dirichlet", fleet=paper_fleet())
    assert np.array_equal(digits.partition(40, "dirichlet").order, with_fleet.order)


# -- the digits, and data from arrays --------------------------------------------------------------


def test_digits_are_small_images_of_ten_classes_with_a_test_set_apart(digits):
    assert (digits.x.shape, digits.test_x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert digits.x.dtype == np.float32
    assert (digits.x.min(), digits.x.max()) == (0.0, 1.0)
    assert set(digits.y) == set(digits.test_y) == set(range(10))
    from sklearn.datasets import load_digits

    everything = np.sort(np.concatenate([digits.x, digits.test_x]).reshape(1797, 64).sum(axis=1))
    raw = np.sort(load_digits().images.reshape(1797, 64).sum(axis=1) / 16)
    assert everything == pytest.approx(raw)


def test_loading_twice_gives_the_same_data(digits):
    again = ef.load("digits")
    assert np.array_equal(again.x, digits.x)
    assert np.array_equal(again.test_y, digits.test_y)


SIZES = [1, 10, 100, 1000, 10_000]


@pytest.fixture(scope="module")
def unequal():
    x = [np.full((n, 3), float(i)) for i, n in enumerate(SIZES)]
    return ef.from_arrays([(x[i], np.arange(n) % 4) for i, n in enumerate(SIZES)])


def test_clients_may_hold_very_different_numbers_of_samples(unequal):
    assert unequal.sizes().tolist() == SIZES
    for i, n in enumerate(SIZES):
        mine = unequal.samples_of(i)
        assert len(mine) == n
        assert np.all(unequal.x[mine] == i)


def test_shares_are_parts_of_the_data_and_sum_to_one(unequal, digits):
    assert unequal.shares() == pytest.approx(np.array(SIZES) / 11_111)
    assert unequal.shares().sum() == pytest.approx(1.0, abs=1e-15)
    assert digits.partition(7).shares().sum() == pytest.approx(1.0, abs=1e-15)


def test_label_counts_count_every_clients_labels(unequal):
    assert unequal.classes == 4
    assert unequal.label_counts().tolist() == [np.bincount(np.arange(n) % 4, minlength=4).tolist() for n in SIZES]


def test_label_counts_agree_with_the_samples_of_a_shuffled_split(digits):
    data = digits.partition(13, "dirichlet", seed=5)
    expected = [np.bincount(data.y[data.samples_of(i)], minlength=10) for i in range(13)]
    assert np.array_equal(data.label_counts(), expected)


def test_float_targets_make_a_regression():
    data = ef.from_arrays([(np.ones((2, 3)), [0.5, -1.5]), (np.ones((1, 3)), [2.0])], test=(np.ones((1, 3)), [0.25]))
    assert data.classes == 0
    assert (data.y.dtype, data.test_y.dtype) == (np.float32, np.float32)
    assert data.y.tolist() == [0.5, -1.5, 2.0]


def test_bytes_whole_numbers_and_truth_values_stay_so_and_other_numbers_become_float32():
    images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    kept = ef.from_arrays([(images, [0, 1])])
    assert kept.x.dtype == np.uint8
    assert np.array_equal(kept.x, images)
    types = {np.float16: np.float32, np.float64: np.float32, np.int16: np.int64, np.uint32: np.int64, bool: bool}
    for number, expected in types.items():
        assert ef.from_arrays([(np.ones((2, 1), number), [0, 1])]).x.dtype == expected
    assert ef.from_arrays([([[1], [2]], [0, 1])]).x.dtype == np.int64


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_lists_arrays_and_tensors_are_all_data(kind):
    data = ef.from_arrays([(kind([[1.0], [2.0]]), kind([1, 0]))])
    assert (data.x.tolist(), data.y.tolist(), data.classes) == ([[1.0], [2.0]], [1, 0], 2)


def test_without_a_test_set_the_test_set_is_empty():
    data = ef.from_arrays([(np.ones((2, 3)), [0, 1])])
    assert (data.test_x.shape, data.test_y.shape) == ((0, 3), (0,))


def test_classes_that_only_the_test_set_has_are_counted():
    data = ef.from_arrays([([[0.0]], [0])], test=([[0.0]], [2]))
    assert data.classes == 3
    assert data.label_counts().tolist() == [[1, 0, 0]]


# -- refusals --------------------------------------------------------------------------------------


def refused(*parts):
    """An InputError whose message holds these parts, in this order."""
    return pytest.raises(ef.InputError, match=".*".join(re.escape(p) for p in parts))


def test_an_unknown_data_set_is_refused_with_the_nearest_name():
    with refused("unknown data set 'digit'", "Did you mean 'digits'?"):
        ef.load("digit")


@pytest.mark.parametrize(("typo", "meant"), [("by_energy", "by-energy"), ("direchlet", "dirichlet"), ("IID", None)])
def test_an_unknown_split_is_refused_with_the_nearest_name(digits, typo, meant):
    hint = [f"Did you mean '{meant}'?"] if meant else []
    with refused(f"unknown split '{typo}'", *hint, "Valid: by-energy, dirichlet, iid"):
        digits.partition(4, typo)


BAD_PARTITIONS = [
    ({"how": "dirichlet", "alhpa": 1.0}, ("option of the 'dirichlet' split 'alhpa'", "'alpha'")),
    ({"how": "iid", "alpha": 1.0}, ("option of the 'iid' split 'alpha'",)),
    ({"clients": 0}, ("clients is 0", "at least 1")),
    ({"clients": -3}, ("clients is -3", "at least 1")),
    ({"clients": 2.5}, ("clients is 2.5", "whole number")),
    ({"clients": "4"}, ("clients is '4'", "whole number")),
    ({"clients": 1438}, ("1437 samples", "1438 clients")),
    ({"seed": -1}, ("seed is -1", "from 0 to 2**64 - 1")),
    ({"seed": 1.5}, ("seed is 1.5", "whole number")),
    ({"fleet": ef.Fleet.from_cycles([1, 2])}, ("fleet has 2 clients", "split 4")),
    ({"how": "by-energy"}, ("energy groups", "fleet=")),
    ({"how": "dirichlet", "per": "energy-group"}, ("energy groups", "fleet=")),
    ({"how": "dirichlet", "per": "group"}, ("per is 'group'", "'client'", "'energy-group'")),
    ({"how": "dirichlet", "alpha": 0.0}, ("alpha is 0.0", "above 0 and at most 1e+06")),
    ({"how": "dirichlet", "alpha": -1.0}, ("alpha is -1.0", "above 0")),
    ({"how": "dirichlet", "alpha": float("nan")}, ("alpha is nan", "above 0")),
    ({"how": "by-energy", "fleet": paper_fleet(4), "strength": 1.01}, ("strength is 1.01", "0", "1")),
    ({"how": "by-energy", "fleet": paper_fleet(4), "strength": -0.1}, ("strength is -0.1", "0", "1")),
    ({"how": "by-energy", "fleet": paper_fleet(4), "strength": float("nan")}, ("strength is nan",)),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_PARTITIONS)
def test_a_bad_partition_is_refused(digits, arguments, message):
    with refused(*message):
        digits.partition(**{"clients": 4, **arguments})


GOOD = (np.ones((2, 1)), [0, 1])
NAN_IN_SAMPLE_2 = (np.array([[1.0], [2.0], [np.nan]]), [0, 1, 0])
BAD_ARRAYS = [
    ([], None, ("no clients",)),
    ([GOOD, (np.ones((0, 1)), [])], None, ("client 1", "no samples")),
    ([GOOD, NAN_IN_SAMPLE_2], None, ("training sample 4", "NaN")),
    ([(np.array([[1.0], [np.inf]]), [0, 1])], None, ("training sample 1", "infinite")),
    ([GOOD], NAN_IN_SAMPLE_2, ("test sample 2", "NaN")),
    ([GOOD, (np.ones((2, 1)), [1, -1])], None, ("label of training sample 3 is -1",)),
    ([GOOD], (np.ones((1, 1)), [-2]), ("label of test sample 0 is -2", "from 0 to 1")),
    ([(np.ones((2, 1)), [0.5, np.nan])], None, ("target of training sample 1", "NaN")),
    ([GOOD, (np.ones((3, 1)), [0, 1])], None, ("client 1 has 3 samples but 2 labels",)),
    ([GOOD], (np.ones((1, 1)), [0, 1]), ("the test set has 1 samples but 2 labels",)),
    ([(1.0, 1)], None, ("client 0 has 0 samples",)),
    ([([["a"], ["b"]], [0, 1])], None, ("samples of client 0", "must be numbers")),
    ([GOOD, (np.ones((2, 1)), ["cat", "dog"])], None, ("labels of client 1", "must be numbers")),
    ([GOOD, (np.ones((2, 3)), [0, 1])], None, ("different shapes", "(1,)", "(3,)")),
    ([GOOD, np.ones((2, 1))], None, ("client 1", "pair (x, y)", "ndarray")),
    ([(*GOOD, GOOD)], None, ("client 0", "pair (x, y)")),
]


@pytest.mark.parametrize(("clients", "test", "message"), BAD_ARRAYS)
def test_bad_arrays_are_refused(clients, test, message):
    with refused(*message):
        ef.from_arrays(clients, test=test)


def test_a_label_out_of_range_is_refused_with_the_range():
    with refused("label of training sample 4 is 7", "3 classes run from 0 to 2"):
        dataset([0, 1, 2, 0, 7], classes=3).partition(2)


def test_many_bad_samples_are_named_in_one_short_sentence():
    x = np.full((20, 1), np.nan)
    with refused("training sample 0, 1, 2, 3, 4 and 15 more"):
        ef.from_arrays([(x, [0] * 20)])


def test_an_empty_client_of_hand_made_data_is_refused():
    x, y, none = np.ones((2, 1)), np.array([0, 1]), np.zeros(0, np.int64)
    data = FederatedData(x, y, np.arange(2), np.array([0, 2, 2]), x[:0], none, classes=2)
    with refused("client 1", "no samples"):
        checked(data)


def test_an_input_error_is_a_value_error():
    with pytest.raises(ValueError, match="no clients"):
        ef.from_arrays([])
