"""Chance is a pure function of its coordinates, the same on NumPy, torch and plain integers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare

from everfed import random
from everfed.random import Purpose, below, derive, permutation, philox, uniform, words

deterministic = settings(derandomize=True, deadline=None, max_examples=100)

# Test vectors published with Random123 (kat_vectors, philox4x32 with 10 rounds).
KNOWN_ANSWERS = [
    pytest.param((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="zeros"),
    pytest.param((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD), id="all-ones"),
    pytest.param(
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        id="digits-of-pi",
    ),
]
BACKENDS = {
    "numpy": lambda values: np.asarray(values, np.uint64),
    "torch": lambda values: torch.tensor(values, dtype=torch.int64),
}
WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(0, 2**64 - 1)


def looks_uniform(counts: np.ndarray) -> bool:
    return bool(chisquare(counts).pvalue > 1e-3)


class TestPhilox:
    @pytest.mark.parametrize("array", BACKENDS.values(), ids=BACKENDS)
    @pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
    def test_gives_the_known_answers_on_arrays(self, array, counter, key, answer):
        result = philox(tuple(array([c]) for c in counter), tuple(array([k]) for k in key))
        assert tuple(int(word[0]) for word in result) == answer

    @pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
    def test_gives_the_known_answers_on_plain_integers(self, counter, key, answer):
        assert philox(counter, key) == answer

    @pytest.mark.parametrize("array", BACKENDS.values(), ids=BACKENDS)
    @pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
    def test_mixes_arrays_with_plain_integers(self, array, counter, key, answer):
        result = philox((array([counter[0]]), *counter[1:]), key)
        assert tuple(int(word[0]) for word in result) == answer

    @deterministic
    @given(rows=st.lists(st.tuples(*[WORD] * 6), min_size=1, max_size=50))
    def test_is_the_same_on_numpy_and_torch(self, rows):
        columns = [list(column) for column in zip(*rows, strict=True)]
        results = []
        for array in BACKENDS.values():
            c0, c1, c2, c3, k0, k1 = (array(column) for column in columns)
            results.append([word.tolist() for word in philox((c0, c1, c2, c3), (k0, k1))])
        assert results[0] == results[1]

    def test_is_the_same_on_numpy_and_torch_for_many_counters(self):
        columns = np.random.default_rng(1).integers(0, 2**32, (6, 100_000), dtype=np.uint64)
        expected = philox(tuple(columns[:4]), tuple(columns[4:]))
        tensors = torch.from_numpy(columns.astype(np.int64))
        result = philox(tuple(tensors[:4]), tuple(tensors[4:]))
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.astype(np.int64))


class TestWords:
    @deterministic
    @given(seed=SEED, purpose=st.sampled_from(Purpose), client=WORD, index=WORD, block=WORD)
    def test_layout_is_index_block_client_purpose_keyed_by_the_seed(self, seed, purpose, client, index, block):
        expected = philox((index, block, client, int(purpose)), (seed & 0xFFFFFFFF, seed >> 32))
        assert tuple(words(seed, purpose, client, index, block).tolist()) == expected

    def test_purposes_keep_their_numbers(self):
        names = ["SLOT", "COIN", "BATCH", "DROPOUT", "INIT", "PARTITION", "ARRIVAL", "AUGMENT"]
        assert {name: int(Purpose[name]) for name in names} == {name: n for n, name in enumerate(names, start=1)}

    @pytest.mark.parametrize("lanes", [1, 2, 3, 4])
    def test_lanes_are_the_first_words(self, lanes):
        whole = words(3, Purpose.BATCH, np.arange(9), 5)
        np.testing.assert_array_equal(words(3, Purpose.BATCH, np.arange(9), 5, lanes=lanes), whole[:lanes])

    @deterministic
    @given(seed=SEED, ids=st.permutations(range(30)), index=st.integers(0, 10**6))
    def test_do_not_depend_on_the_order_of_clients(self, seed, ids, index):
        in_order = words(seed, Purpose.SLOT, np.arange(30), index)
        np.testing.assert_array_equal(words(seed, Purpose.SLOT, np.array(ids), index), in_order[:, ids])

    @deterministic
    @given(seed=SEED, cuts=st.sets(st.integers(1, 29), max_size=5))
    def test_do_not_depend_on_the_grouping_of_clients(self, seed, cuts):
        groups = np.split(np.arange(30), sorted(cuts))
        apart = np.concatenate([words(seed, Purpose.SLOT, group, 4) for group in groups], axis=1)
        np.testing.assert_array_equal(apart, words(seed, Purpose.SLOT, np.arange(30), 4))

    def test_do_not_depend_on_the_chunks_hashed_at_once(self):
        n = 2 * random._CHUNK + 17
        ids, indices = np.arange(n), np.arange(n)[::-1]
        whole = words(9, Purpose.SLOT, ids, indices, block=ids % 3)
        for start in (0, random._CHUNK - 5, random._CHUNK, 2 * random._CHUNK - 1, n - 10):
            part = slice(start, start + 10)
            np.testing.assert_array_equal(
                words(9, Purpose.SLOT, ids[part], indices[part], block=ids[part] % 3), whole[:, part]
            )

    @pytest.mark.parametrize("chunk", [1, 7, 64])
    def test_do_not_depend_on_the_chunk_size(self, monkeypatch, chunk):
        arguments = (np.arange(5, dtype=np.uint64)[:, None], Purpose.COIN, np.arange(40), 3)
        expected = words(*arguments)
        monkeypatch.setattr(random, "_CHUNK", chunk)
        np.testing.assert_array_equal(words(*arguments), expected)

    def test_seeds_side_by_side_are_the_seeds_one_by_one(self):
        seeds = np.array([0, 1, 2**32, 2**63, 2**64 - 1], np.uint64)
        together = words(seeds[:, None], Purpose.SLOT, np.arange(7), 3)
        assert together.shape == (4, 5, 7)
        for row, seed in enumerate(seeds.tolist()):
            np.testing.assert_array_equal(together[:, row], words(seed, Purpose.SLOT, np.arange(7), 3))

    def test_scalars_give_one_word_a_lane(self):
        assert words(0, Purpose.SLOT, 0, 0).shape == (4,)

    def test_no_two_coordinates_share_a_draw(self):
        # Philox permutes its counters, so under one key this holds surely, not just probably.
        grid = np.ix_(np.arange(6), np.arange(6), np.arange(3))
        draws = np.concatenate([words(11, purpose, *grid).reshape(4, -1) for purpose in Purpose], axis=1)
        assert np.unique(draws, axis=1).shape[1] == len(Purpose) * 6 * 6 * 3

    @pytest.mark.parametrize("other", [1, 2**32, 2**63])
    def test_every_part_of_the_seed_counts(self, other):
        ids = np.arange(100)
        same = words(0, Purpose.SLOT, ids, 0) == words(other, Purpose.SLOT, ids, 0)
        assert same.sum() == 0


class TestBelow:
    @deterministic
    @given(seed=SEED, bounds=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20), index=WORD)
    def test_stays_in_range(self, seed, bounds, index):
        bound = np.array(bounds)
        draw = below(bound, seed, Purpose.SLOT, np.arange(len(bounds)), index)
        assert draw.dtype == np.int64
        assert np.all((draw >= 0) & (draw < bound))

    def test_reaches_both_ends(self):
        draw = below(5, 0, Purpose.SLOT, np.arange(200), 0)
        assert (draw.min(), draw.max()) == (0, 4)

    @pytest.mark.parametrize("bound", [2, 3, 5, 7, 10, 20])
    @pytest.mark.parametrize("along", ["client", "index", "seed"])
    def test_is_uniform_along_every_coordinate(self, bound, along):
        run = np.arange(20_000, dtype=np.uint64)
        coordinates = {"seed": 5, "client": 5, "index": 5, along: run}
        draw = below(bound, coordinates["seed"], Purpose.SLOT, coordinates["client"], coordinates["index"])
        assert looks_uniform(np.bincount(draw, minlength=bound))

    @pytest.mark.parametrize("along", ["client", "index", "seed"])
    def test_neighbours_are_independent(self, along):
        run = np.arange(30_001, dtype=np.uint64)
        coordinates = {"seed": 5, "client": 5, "index": 5, along: run}
        draw = below(5, coordinates["seed"], Purpose.SLOT, coordinates["client"], coordinates["index"])
        assert looks_uniform(np.bincount(5 * draw[:-1] + draw[1:], minlength=25))

    def test_purposes_are_independent(self):
        ids = np.arange(30_000)
        slot, coin = (below(5, 0, purpose, ids, 0) for purpose in (Purpose.SLOT, Purpose.COIN))
        assert looks_uniform(np.bincount(5 * slot + coin, minlength=25))


class TestUniform:
    def test_is_the_word_as_a_fraction(self):
        ids = np.arange(1000)
        draw = uniform(3, Purpose.COIN, ids, 2)
        np.testing.assert_array_equal(draw * 2.0**32, words(3, Purpose.COIN, ids, 2)[0])
        assert np.all((draw >= 0.0) & (draw < 1.0))

    def test_fills_the_interval_evenly(self):
        draw = uniform(3, Purpose.COIN, np.arange(20_000), 2)
        assert looks_uniform(np.histogram(draw, bins=20, range=(0.0, 1.0))[0])


class TestPermutation:
    @deterministic
    @given(n=st.integers(0, 300), seed=SEED, stream=WORD)
    def test_holds_every_number_once(self, n, seed, stream):
        assert sorted(permutation(n, seed, Purpose.PARTITION, stream).tolist()) == list(range(n))

    def test_is_the_same_each_time(self):
        np.testing.assert_array_equal(permutation(100, 4, Purpose.BATCH), permutation(100, 4, Purpose.BATCH))

    @pytest.mark.parametrize("other", [(5, Purpose.BATCH, 0), (4, Purpose.PARTITION, 0), (4, Purpose.BATCH, 1)])
    def test_changes_with_seed_purpose_and_stream(self, other):
        assert permutation(100, *other).tolist() != permutation(100, 4, Purpose.BATCH, 0).tolist()

    def test_every_order_is_equally_likely(self):
        orders = Counter(tuple(permutation(4, 0, Purpose.PARTITION, stream).tolist()) for stream in range(4800))
        assert len(orders) == 24
        assert looks_uniform(np.array(list(orders.values())))


class TestDerive:
    @deterministic
    @given(seed=SEED, purpose=st.sampled_from(Purpose), stream=WORD)
    def test_fits_a_signed_64_bit_seed(self, seed, purpose, stream):
        assert 0 <= derive(seed, purpose, stream) < 2**63

    def test_differs_by_seed_purpose_and_stream(self):
        derived = {derive(s, p, stream) for s in range(10) for p in Purpose for stream in range(10)}
        assert len(derived) == 10 * len(Purpose) * 10
