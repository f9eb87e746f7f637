"""Recordings of a smartwatch: read without unpickling, cut into windows, with people as natural clients."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile

import numpy as np
import pytest

import everfed as ef
from everfed.data import packages, smartwatch
from everfed.data.packages import Archive
from everfed.data.smartwatch import Recordings, Smartwatch, dataset, recordings, windows
from everfed.errors import InputError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERFED_DATA", str(tmp_path / "cache"))


def some_recordings(count=140, people=10):
    chance = np.random.default_rng(0)
    number = np.arange(count)
    signals = tuple(chance.normal(i % 7, 1 + 3 * (i % people), (300 + i, 6)) for i in range(count))
    return Recordings(signals, number % 7, 1 + number % people, number // people % 2)


def as_written(found, order="F"):
    """The layout of the real file: an .npy of one object, a dict of lists and arrays, by protocol 2."""
    content = {
        "X": [np.array(signal, order=order) for signal in found.signals],
        "y_labels": list(smartwatch.EXERCISES),
        "y": found.exercise.astype("<i8"),
        "subject": found.person.astype("<i8"),
        "side": found.right.astype("<f8"),
        "X_labels": ["ax", "ay", "az", "wx", "wy", "wz"],
    }
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    pickle.dump(np.array(content, object), file, protocol=2)
    return file.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
def test_recordings_are_read_without_following_the_pickle(order, monkeypatch):
    monkeypatch.setattr(pickle, "loads", lambda *a, **k: pytest.fail("it was unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("it was unpickled"))
    real = some_recordings()
    found = recordings(as_written(real, order))
    assert all((a == b).all() for a, b in zip(found.signals, real.signals, strict=True))
    for name in ("exercise", "person", "right"):
        assert (getattr(found, name) == getattr(real, name)).all()
    assert found.summary() == "140 recordings of 10 people with 17 minutes at 50 Hz"


def test_another_file_is_refused():
    with pytest.raises(InputError, match="the file has 10 recordings with nothing known of them"):
        recordings(as_written(some_recordings(10)))


def test_windows_overlap_by_their_step_and_are_whole():
    signal = np.arange(24.0).reshape(12, 2)
    found = windows(signal, length=5, step=3)
    assert [window[0, 0] / 2 for window in found] == [0, 3, 6]
    assert (found[1] == signal[3:8].T).all()
    assert windows(signal, length=13, step=3) == []


@pytest.mark.parametrize("step", [7, 50])
def test_training_and_test_windows_of_a_recording_share_no_sample(step):
    """A signal that counts tells where each window comes from."""
    signal = np.repeat(np.arange(1000.0)[:, None], 6, axis=1)
    found = Recordings((signal, signal), np.array([0, 1]), np.array([1, 2]), np.array([0, 0]))
    data = dataset(found, Smartwatch(length=40, step=step))
    train, test = data.x.max(), data.test_x.min()
    whole = np.sort(np.unique(np.concatenate([data.x, data.test_x])))
    assert train < test  # time goes on, and standardising keeps the order
    assert (whole > train).sum() == len(np.unique(data.test_x))


def test_samples_are_standardised_by_training_and_labelled_with_the_exercise():
    data = dataset(some_recordings(), Smartwatch(length=50, step=25))
    assert data.x.dtype == np.float32
    assert data.x.shape[1:] == data.test_x.shape[1:] == (6, 50)
    np.testing.assert_allclose(data.x.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(data.x.std(axis=(0, 2)), 1, atol=1e-5)
    assert (data.classes, data.task, data.name) == (7, "classification", "smartwatch")
    assert set(data.y.tolist()) == set(range(7))
    means = [data.x[data.y == c].mean() for c in range(7)]
    assert means == sorted(means)  # the signals grow with the exercise


def test_clients_are_people_or_their_arms_and_have_their_motion():
    people = dataset(some_recordings(), Smartwatch(length=50)).owners
    assert people.names == tuple(f"person {i}" for i in range(1, 11))
    assert people.columns["side"] == ("both",) * 10
    motion = people.columns["motion"]
    assert list(motion) == sorted(motion)  # the noise grows with the person
    arms = dataset(some_recordings(), Smartwatch(length=50, client="person-session")).owners
    assert arms.names[:3] == ("person 1 left", "person 1 right", "person 2 left")
    assert arms.columns["person"][:3] == (1.0, 1.0, 2.0)
    assert arms.columns["side"][:2] == ("left", "right")
    assert arms.sizes().sum() == people.sizes().sum()


def test_a_test_part_of_nothing_leaves_no_test_windows():
    data = dataset(some_recordings(), Smartwatch(length=50, test_part=0))
    assert data.test_x.shape == (0, 6, 50)
    assert len(data.owners.test) == 0


def test_options_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="must be 'person' or 'person-session'"):
        Smartwatch(client="arm")
    with pytest.raises(InputError, match="length is 1000; no recording has so many samples"):
        dataset(some_recordings(), Smartwatch(length=1000))


def test_the_file_is_read_from_its_wheel_and_a_changed_wheel_is_not(tmp_path, monkeypatch):
    wheel = tmp_path / "seglearn-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as stored:
        stored.writestr("seglearn/data/watch_dataset.npy", as_written(some_recordings()))
    archive = Archive("pip:seglearn==0", hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.name)
    monkeypatch.setattr(Smartwatch, "archive", archive)
    assert len(Smartwatch(folder=str(tmp_path)).fetch().signals) == 140
    wheel.write_bytes(wheel.read_bytes() + b"more")
    monkeypatch.setattr(packages, "zipfile", None)  # nothing opens it
    with pytest.raises(InputError, match="is not the expected file"):
        Smartwatch(folder=str(tmp_path)).fetch()


@pytest.mark.long
def test_the_real_recordings():
    found = Smartwatch().fetch()
    assert found.summary() == "140 recordings of 10 people with 81 minutes at 50 Hz"
    assert np.bincount(found.exercise).tolist() == [20] * 7
    assert np.unique(found.person, return_counts=True)[1].tolist() == [14] * 10
    gravity = np.concatenate([np.linalg.norm(signal[:, :3], axis=1) for signal in found.signals])
    assert 0.9 < np.median(gravity) < 1.1  # in units of it
    data = ef.load("smartwatch")
    assert (data.x.shape, len(data.test_x)) == ((3693, 6, 100), 770)
    assert data.owners.sizes().min() == 232
