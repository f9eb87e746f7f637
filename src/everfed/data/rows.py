"""A data set from rows that name their client: the last step of the sources `folder` and `huggingface`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Bools, Inputs, Ints, parts, taken
from everfed.data.dataset import Dataset
from everfed.data.owners import Owners
from everfed.data.plain import labels, samples
from everfed.data.targets import AUTO, CLASSIFICATION, NEXT_TOKEN, classes_in, task_of
from everfed.errors import InputError, shown
from everfed.random import Purpose, permutation

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Samples with their targets and the names of their clients, row by row."""

    x: Inputs
    y: Array
    client: Array
    about: Mapping[str, Array] = field(default_factory=dict)  # columns that say something of the client

    def check(self, what: str) -> Rows:
        """Itself, if all columns have the same length."""
        lengths = {"client": len(self.client), "y": len(self.y), **{k: len(v) for k, v in self.about.items()}}
        lengths |= {f"x_{name}".rstrip("_"): len(part) for name, part in parts(self.x).items()}
        for name, length in lengths.items():
            if length != len(self.client):
                raise InputError(
                    f"{what} has {length:,} rows in {name} and {len(self.client):,} in client; all must have the same."
                )
        return self

    def some(self, rows: Ints | Bools) -> Rows:
        return Rows(taken(self.x, rows), self.y[rows], self.client[rows], {k: v[rows] for k, v in self.about.items()})


def dataset(name: str, train: Rows, test: Rows | None, test_part: float, classes: int = 0, task: str = AUTO) -> Dataset:
    """The data set of these rows, its clients in the sorted order of their names.

    test: rows of a test set, also of clients without training rows, whose rows are nobody's. None: a fixed random part
    of each client's rows, of which at least one stays for training. classes: those that have names; 0 if it follows
    from the targets (and from the tokens, if that is what the input is).
    """
    train.check("the training set")
    if not len(train.client):
        raise InputError(f"{name} has no training rows.")
    owner, names = named(train.client, "the column of clients")
    columns = {key: of_clients(key, values, owner, names) for key, values in train.about.items()}
    if test is None:
        held = _held_out(owner, test_part)
        train, test, test_owner, owner = train.some(~held), train.some(held), owner[held], owner[~held]
    else:
        numbers, known = named(test.check("the test set").client, "the column of clients of the test set")
        places = {known_name: i for i, known_name in enumerate(names)}
        test_owner = np.array([places.get(one, -1) for one in known], np.int64)[numbers]
        _check_alike(train.x, test.x)
    y, test_y = labels(train.y, "the training set"), labels(test.y, "the test set")
    if task == AUTO:
        task = task_of(y, int(y.dtype.kind != "f"))
    if not classes or task not in (CLASSIFICATION, NEXT_TOKEN):
        tokens = [*_tokens(train.x), *_tokens(test.x)] if task == NEXT_TOKEN else []
        classes = classes_in(y, test_y, *tokens, task=task)
    owners = Owners(owner, test_owner, names, columns)
    return Dataset(name, train.x, y, test.x, test_y, classes, task=task, owners=owners)


def _check_alike(train: Inputs, test: Inputs) -> None:
    """The samples of a test set that was given are of the same kind."""
    mine, other = parts(train), parts(test)
    if mine.keys() != other.keys():
        raise InputError(
            f"the training set has the inputs {', '.join(mine) or 'x'} and the test set {', '.join(other) or 'x'}; "
            "they must be the same."
        )
    for name, part in mine.items():
        found = [(samples(a[:0], "a set").dtype, a.shape[1:]) for a in (part, other[name])]
        if len(part) and len(other[name]) and found[0] != found[1]:
            said = " and ".join(f"{dtype} of shape {shape}" for dtype, shape in found)
            raise InputError(
                f"samples{f' of {name}' if name else ''} of the training and the test set are {said}; they must agree."
            )


def _tokens(x: Inputs) -> list[Array]:
    """Inputs that surely are of the vocabulary: bytes are pixels, and of several inputs one may number positions."""
    return [part for part in parts(x).values() if len(parts(x)) == 1 and part.dtype.kind in "iu" and part.dtype != "u1"]


def named(values: Any, what: str) -> tuple[Ints, tuple[str, ...]]:
    """Clients from a column that names them (numbers or texts): each row's client, and the names in sorted order."""
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind in "iu":
        numbers, rows = np.unique(array, return_inverse=True)
        return rows.reshape(-1).astype(np.int64), tuple(map(str, numbers.tolist()))
    texts = array.tolist() if array.ndim == 1 and array.dtype.kind in "UO" else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{what} must name a client in each row, by a text or a whole number; got {shown(values)}.")
    # Not by np.unique, which makes all texts as long as the longest.
    names = sorted(set(texts))
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[text] for text in texts], np.int64), tuple(names)


def _held_out(owner: Ints, part: float) -> Bools:
    """[rows] True for the part of each client's rows that is the test set: at random, but always the same."""
    shuffled = permutation(len(owner), seed=0, purpose=Purpose.PARTITION)
    held = np.zeros(len(owner), np.bool_)
    by_client = shuffled[np.argsort(owner[shuffled], kind="stable")]
    for rows in np.split(by_client, np.cumsum(np.bincount(owner))[:-1]):
        held[rows[: min(len(rows) - 1, round(part * len(rows)))]] = True
    return held


def of_clients(key: str, values: Array, owner: Ints, names: tuple[str, ...]) -> tuple[str | float, ...]:
    """One value per client of a column in which all rows of a client say the same."""
    first = np.full(len(names), -1, np.int64)
    first[owner[::-1]] = np.arange(len(owner))[::-1]
    differ = np.flatnonzero(values != values[first][owner])
    if len(differ):
        raise InputError(
            f"the column '{key}' differs within the client '{names[owner[differ[0]]]}'; only what is the same in all "
            "rows of a client can be said of it."
        )
    return tuple(str(value) if isinstance(value, str) else float(value) for value in values[first].tolist())
