"""Samples that follow each other in time: the last are held out, and nothing that is held out is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import everfed as ef
from everfed.data.held_out import held_out, held_out_of_clients
from everfed.data.smartwatch import Recordings, Smartwatch, dataset
from everfed.data.text import Writer, characters, next_character
from everfed.data.times import Times, last_held_out
from everfed.errors import InputError


def times_of(sizes, step, span, shuffle=0):
    """Windows of recordings of so many samples, in any order."""
    recording = np.repeat(np.arange(len(sizes)) * 7, sizes)
    begin = np.concatenate([step * np.arange(size) for size in sizes])
    order = np.random.default_rng(shuffle).permutation(len(begin)) if shuffle else np.arange(len(begin))
    return Times(recording[order], begin[order], span)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 12),
    st.floats(0.01, 0.9),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_what_is_held_out_is_later_than_what_is_kept_and_shares_nothing(sizes, step, span, part, seed, shuffle):
    times, count = times_of(sizes, step, span, shuffle), round(part * sum(sizes))
    could = sum(max(0, size - -(-span // step)) for size in sizes)
    if not 0 < count <= could:
        with pytest.raises(InputError, match="leaves no samples on one side"):
            last_held_out(times, part, seed, 0)
        return
    kept, held = last_held_out(times, part, seed, 0)
    assert len(held) == count
    assert not np.intersect1d(kept, held).size
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    for number in np.unique(times.recording):
        mine, theirs = (times.begin[rows[times.recording[rows] == number]] for rows in (kept, held))
        everything = np.sort(times.begin[times.recording == number])
        assert len(mine) >= 1
        if len(theirs):
            assert mine.max() + span <= theirs.min()
            assert (np.sort(theirs) == everything[-len(theirs) :]).all()
            assert len(mine) == (everything + span <= theirs.min()).sum()  # no more is left out than overlaps
        else:
            assert len(mine) == len(everything)


def test_recordings_give_in_proportion():
    times = times_of([10, 20, 100], 1, 1)
    _, held = last_held_out(times, 0.2, seed=0, stream=0)
    assert np.bincount(times.recording[held] // 7).tolist() == [2, 4, 20]


def counting(recordings=12, people=3, samples=600):
    """Signals whose numbers tell recording and moment."""
    signals = tuple(1000.0 * i + np.repeat(np.arange(samples)[:, None], 6, axis=1) for i in range(recordings))
    number = np.arange(recordings)
    return Recordings(signals, number % 4, 1 + number % people, number // people % 2)


def moments(x):
    return set(np.unique(np.asarray(x)[:, 0]).tolist())


@pytest.mark.parametrize("client", ["person", "person-session"])
@pytest.mark.parametrize(("length", "step"), [(20, 10), (20, 5), (20, 20), (20, 30)])
def test_no_moment_is_both_held_out_and_trained_on(client, length, step):
    data = dataset(counting(), Smartwatch(length=length, step=step, client=client))
    clients = len(data.owners)
    fleet = ef.Fleet.from_cycles([1] * clients)
    for how in ("natural", "iid"):
        tuned = data.hold_out(0.1, seed=3)
        assert not moments(tuned.x) & moments(tuned.test_x)
        assert len(tuned.test_x) == round(0.1 * len(data.x))
        whole = data.partition(clients, how, fleet=fleet)
        kept, (x, _) = held_out_of_clients(whole, 0.1, "sample", 3)
        assert not moments(kept.x[kept.order]) & moments(x)
        both = tuned.partition(clients, how, fleet=fleet)
        last, (x, _) = held_out_of_clients(both, 0.1, "sample", 3)
        assert not moments(last.x[last.order]) & (moments(x) | moments(tuned.test_x))
        assert not moments(x) & moments(tuned.test_x)
    for by in ("sample", "client"):
        mine, (x, _) = data.without_part(0.2 if by == "sample" else 0.4, by, seed=3)
        assert not moments(mine.x) & moments(x)
        assert len(mine.times.begin) == len(mine.y)


def test_windows_of_texts_do_not_overlap_and_the_last_are_held_out():
    texts = ["".join(chr(ord("a") + (i + j) % 26) for j in range(size)) for i, size in enumerate((101, 300, 15))]
    writers = [Writer(f"w{i}", text, {}) for i, text in enumerate(texts)]
    data = next_character("letters", writers, length=10, least=1, test_part=0.2)
    for seed in range(5):
        tuned = data.hold_out(0.1, seed)
        assert len(tuned.x) + len(tuned.test_x) == len(data.x)  # nothing overlaps, so nothing is left out
        for i, text in enumerate(texts):
            kept, held = characters(tuned.x[tuned.owners.train == i].ravel()), tuned.test_x[tuned.owners.test == i]
            assert text.startswith(kept + characters(held.ravel()))
            assert kept


def test_every_exercise_and_person_is_held_out():
    data = dataset(counting(), Smartwatch(length=20, step=10))
    tuned = data.hold_out(0.1)
    assert set(tuned.test_y.tolist()) == {0, 1, 2, 3}
    assert set(tuned.owners.test.tolist()) == {0, 1, 2}


def test_samples_without_times_are_held_out_as_before():
    y = np.arange(40) % 4
    for owners in (None, np.arange(40) % 3):
        kept, held = held_out(y, 4, 0.2, 5, owners=owners)
        assert len(kept) + len(held) == 40  # nothing is left out
    data = replace(dataset(counting(), Smartwatch(length=20)), times=None)
    tuned = data.hold_out(0.1)
    assert len(tuned.x) + len(tuned.test_x) == len(data.x)


def test_a_client_that_would_keep_nothing_is_named():
    x, y = np.arange(8.0)[:, None], np.zeros(8, int)
    times = Times(np.zeros(8, int), np.arange(8), 1)
    data = ef.FederatedData(x, y, np.arange(8), np.array([0, 5, 8]), x[:0], y[:0], 2, times=times)
    with pytest.raises(InputError, match="client 1 would keep no samples, since the last in time are held out"):
        held_out_of_clients(data, 0.5, "sample", 0)
    with pytest.raises(InputError, match="7 times were given for 8 training samples"):
        replace(data, times=times.only(np.arange(7)))
