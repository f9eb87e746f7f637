"""Exercises recorded by a smartwatch, with the people as natural clients."""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from everfed.arrays import Floats, Ints
from everfed.checks import BelowOne, Checked, Count
from everfed.data.dataset import Dataset
from everfed.data.fetch import Progress, silent
from everfed.data.owners import Owners
from everfed.data.packages import Archive, members
from everfed.data.times import Times
from everfed.errors import InputError

EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
_RECORDINGS, _CHANNELS = 140, 6
_FILE = "seglearn/data/watch_dataset.npy"


@dataclass(frozen=True)
class Recordings:
    """Signals [samples, 6] at 50 Hz (acceleration and rotation along x, y, z), and what is known of each."""

    signals: tuple[Floats, ...]
    exercise: Ints  # [recordings] the place in EXERCISES
    person: Ints
    right: Ints  # 1: the watch was on the right arm

    def summary(self) -> str:
        seconds = sum(map(len, self.signals)) / 50
        people = len(np.unique(self.person))
        return f"{len(self.signals)} recordings of {people} people with {seconds / 60:.0f} minutes at 50 Hz"


@dataclass(frozen=True)
class Smartwatch(Checked):
    """7 exercises of the shoulder by 10 people with a smartwatch: accelerometer and gyroscope at 50 Hz.

    Samples are windows float32 [6, length], standardised by channel with the training windows; labels are the
    exercises. Clients have the columns person, side ("left", "right", or "both" for a person who did both) and motion,
    the standard deviation of the length of the acceleration in its training windows, which tells how much there was to
    harvest.
    folder: where seglearn-1.2.5-py3-none-any.whl of PyPI lies already; otherwise it is fetched once and cached.
    length, step: samples in a window, and from one window to the next. client: a person, or one arm of a person.
    test_part: the last part of each recording, whose windows are the test set and share no sample with
    training. Samples that are held out of training for validation are the last windows of each recording, likewise.
    """

    folder: str = ""
    length: Count = 100
    step: Count = 50
    client: Annotated[str, ("person", "person-session")] = "person"
    test_part: BelowOne = 0.2

    natural: ClassVar[bool] = True  # its samples have owners
    archive: ClassVar[Archive] = Archive(
        "pip:seglearn==1.2.5",
        "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
        "seglearn-1.2.5-py3-none-any.whl",
    )

    def load(self) -> Dataset:
        return dataset(self.fetch(), self)

    def fetch(self, progress: Progress = silent) -> Recordings:
        path = self.archive.find("smartwatch", self.folder, progress)
        return recordings(members(path, lambda name: name == _FILE, 20_000_000)[_FILE])


def recordings(content: bytes) -> Recordings:
    """The arrays in an .npy file of objects, which is a pickle: its instructions are read but not followed.

    Arrays stand in it as texts of their bytes, in the order in which they were written: the signals first, and `y`,
    `subject` and `side` each behind its name.
    """
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    signals: list[Floats] = []
    facts: dict[str, Ints] = {}
    name = ""
    order: Literal["C", "F"] = "C"
    for code, value, _ in islice(pickletools.genops(file.read()), 100_000):
        if code.name in ("NEWTRUE", "NEWFALSE"):  # before the bytes of an array: whether columns lie together in it
            order = "F" if code.name == "NEWTRUE" else "C"
        if not isinstance(value, str):
            continue
        if value in ("X", "y", "subject", "side"):
            name = value
        elif name == "X" and len(value) > 1000 and len(value) % (8 * _CHANNELS) == 0:
            numbers = np.frombuffer(value.encode("latin-1"), "<f8")
            signals.append(numbers.reshape((-1, _CHANNELS), order=order))
        elif name and name != "X" and len(value) == 8 * _RECORDINGS:
            facts[name] = np.frombuffer(value.encode("latin-1"), "<f8" if name == "side" else "<i8").astype(np.int64)
    if len(signals) != _RECORDINGS or facts.keys() != {"y", "subject", "side"}:
        raise InputError(f"the file has {len(signals)} recordings with {', '.join(facts) or 'nothing'} known of them")
    return Recordings(tuple(signals), facts["y"], facts["subject"], facts["side"])


def dataset(found: Recordings, options: Smartwatch) -> Dataset:
    """Windows of all recordings, each recording cut into training and test."""
    parts: dict[str, list[tuple[npt.NDArray[Any], int, int]]] = {"train": [], "test": []}
    for number, signal in enumerate(found.signals):
        cut = round((1 - options.test_part) * len(signal))
        for part, piece in (("train", signal[:cut]), ("test", signal[cut:])):
            cuts = windows(piece, options.length, options.step)
            parts[part] += [(window, int(found.exercise[number]), number) for window in cuts]
    if not parts["train"]:
        raise InputError(f"length is {options.length}; no recording has so many samples for training.")
    x, test_x = (np.array([window for window, _, _ in parts[part]]) for part in parts)
    y, test_y = (np.array([label for _, label, _ in parts[part]], np.int64) for part in parts)
    of = {part: np.array([number for _, _, number in parts[part]], np.int64) for part in parts}
    place = np.arange(len(y)) - np.searchsorted(of["train"], of["train"])  # of a window in its recording
    times = Times(of["train"], place * options.step, options.length)
    owner, names, about = _clients(found, options.client)
    motion = np.linalg.norm(x[:, :3], axis=1)  # [windows, length]
    about["motion"] = tuple(float(motion[owner[of["train"]] == i].std()) for i in range(len(names)))
    mean, scale = x.mean(axis=(0, 2), keepdims=True), x.std(axis=(0, 2), keepdims=True)
    x, test_x = ((values.reshape(-1, *x.shape[1:]) - mean) / scale for values in (x, test_x))
    owners = Owners(owner[of["train"]], owner[of["test"]], names, about)
    return Dataset(
        "smartwatch",
        x.astype(np.float32),
        y,
        test_x.astype(np.float32),
        test_y,
        len(EXERCISES),
        task="classification",
        owners=owners,
        times=times,
    )


def windows(signal: Floats, length: int, step: int) -> list[Floats]:
    """Windows [channels, length] of a signal [samples, channels]; samples at the end that fill none are left out."""
    return [signal[start : start + length].T for start in range(0, len(signal) - length + 1, step)]


def _clients(found: Recordings, client: str) -> tuple[Ints, tuple[str, ...], dict[str, tuple[str | float, ...]]]:
    """[recordings] the client of each, the clients' names, and what is known of them."""
    sides = np.where(found.right == 1, "right", "left")
    keys = [(int(p), str(s) if client == "person-session" else "") for p, s in zip(found.person, sides, strict=True)]
    clients = sorted(set(keys))
    owner = np.array([clients.index(key) for key in keys], np.int64)
    of = [set(sides[owner == i].tolist()) for i in range(len(clients))]
    about: dict[str, tuple[str | float, ...]] = {
        "person": tuple(float(person) for person, _ in clients),
        "side": tuple("both" if len(found) > 1 else str(*found) for found in of),
    }
    return owner, tuple(f"person {person} {side}".strip() for person, side in clients), about
