"""Samples and their owners.

All training samples are in one array; a client is a range of positions in `order`. So a round gathers the minibatches
of any set of clients with one indexing operation, and clients may hold very different numbers of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Ints
from everfed.data.augment import Augment, Plain
from everfed.data.plain import as_pair, check_lengths, labels, samples, whole_numbers
from everfed.errors import InputError, some


@dataclass(frozen=True)
class FederatedData:
    """Training samples with their owners, and a common test set (which may be empty).

    Accepts arrays of any layout, byte order and number type, and stores plain ones (`data/plain.py`).
    """

    x: npt.NDArray[Any]  # [samples, ...]: uint8 or float32
    y: npt.NDArray[Any]  # [samples]: int64 labels, or float32 for regression
    order: Ints  # sample numbers, client after client
    starts: Ints  # [N + 1]: client i holds order[starts[i]:starts[i + 1]]
    test_x: npt.NDArray[Any]
    test_y: npt.NDArray[Any]
    classes: int  # 0 for regression
    name: str = "arrays"
    augment: Augment = Plain()

    def __post_init__(self) -> None:
        plain = {
            "x": samples(self.x, "the training set"),
            "y": labels(self.y, "the training set"),
            "test_x": samples(self.test_x, "the test set"),
            "test_y": labels(self.test_y, "the test set"),
            "order": whole_numbers(self.order, "order"),
            "starts": whole_numbers(self.starts, "starts"),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        check_lengths(self.x, self.y, "the training set")
        check_lengths(self.test_x, self.test_y, "the test set")
        _check_owners(self.order, self.starts, len(self.x))
        if self.classes:
            check_labels(self.y, self.classes, "training")
            check_labels(self.test_y, self.classes, "test")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample as a model sees it."""
        return self.augment.shape(self.x.shape[1:])

    def sizes(self) -> Ints:
        """D_i: how many samples each client holds."""
        return np.diff(self.starts)

    def shares(self) -> npt.NDArray[np.float64]:
        """p_i = D_i / D."""
        return self.sizes() / len(self.order)

    def samples_of(self, client: int) -> Ints:
        """The sample numbers of one client."""
        return self.order[self.starts[client] : self.starts[client + 1]]

    def label_mixes(self, groups: Sequence[Ints]) -> list[npt.NDArray[np.float64]]:
        """[classes] for each group of clients: how many samples of each class it holds."""
        counts = self.label_counts()
        return [counts[clients].sum(axis=0).astype(np.float64) for clients in groups]

    def label_counts(self) -> Ints:
        """[N, classes]: how many samples of each class each client holds."""
        counts = np.zeros((len(self), self.classes), np.int64)
        owner = np.repeat(np.arange(len(self)), self.sizes())
        np.add.at(counts, (owner, self.y[self.order]), 1)
        return counts


def from_arrays(
    clients: Sequence[tuple[Any, Any]], test: tuple[Any, Any] | None = None, name: str = "arrays"
) -> FederatedData:
    """Federated data from one (x, y) pair per client, and an optional (x, y) test set.

    Integer labels make it classification; float targets, regression.

    >>> data = from_arrays([(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [0])])
    >>> data.sizes().tolist(), data.classes
    ([3, 1], 2)
    """
    if len(clients) == 0:
        raise InputError("no clients were given; data needs one (x, y) pair per client.")
    pairs = [as_pair(pair, f"client {i}") for i, pair in enumerate(clients)]
    empty = [i for i, (x, _) in enumerate(pairs) if len(x) == 0]
    if empty:
        raise InputError(f"client {some(empty)} holds no samples; every client needs at least one.")
    test_pair = as_pair(test, "the test set") if test is not None else None
    _check_alike(pairs if test_pair is None else [*pairs, test_pair])
    x = np.concatenate([x for x, _ in pairs])
    y = np.concatenate([y for _, y in pairs])
    starts = np.concatenate([[0], np.cumsum([len(x) for x, _ in pairs])])
    test_x, test_y = test_pair or (x[:0], y[:0])
    classes = 0 if y.dtype.kind == "f" else int(max(y.max(), test_y.max(initial=0))) + 1
    return checked(FederatedData(x, y, np.arange(len(x)), starts, test_x, test_y, classes, name))


def _check_alike(pairs: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> None:
    """Check that all clients and the test set hold the same kind of samples and labels."""
    for what, seen in (
        ("samples of different shapes", {str(x.shape[1:]) for x, _ in pairs}),
        ("samples of different types (bytes are scaled, floats are not)", {str(x.dtype) for x, _ in pairs}),
        ("labels of different types (whole numbers are classes, floats are targets)", {str(y.dtype) for _, y in pairs}),
        ("labels of different shapes", {str(y.shape[1:]) for _, y in pairs}),
    ):
        if len(seen) > 1:
            raise InputError(f"clients, or clients and test set, hold {what}: {some(sorted(seen))}.")


def checked(data: FederatedData) -> FederatedData:
    """The same data, or an error that says what is wrong and where."""
    for x, y, where in ((data.x, data.y, "training"), (data.test_x, data.test_y, "test")):
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            bad = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))
            raise InputError(f"{where} sample {some(bad)} contains NaN or infinite values; clean the data first.")
        if not data.classes and not np.isfinite(y).all():
            bad = np.flatnonzero(~np.isfinite(y.reshape(len(y), -1)).all(axis=1))
            raise InputError(f"the target of {where} sample {some(bad)} is NaN or infinite.")
    empty = np.flatnonzero(data.sizes() == 0)
    if len(empty):
        raise InputError(f"client {some(empty)} holds no samples; every client needs at least one.")
    return data


def _check_owners(order: Ints, starts: Ints, count: int) -> None:
    """Check that sample numbers exist: kernels index with them without checks."""
    if len(order) and (order.min() < 0 or order.max() >= count):
        raise InputError(
            f"order contains {order.min()} to {order.max()}; sample numbers must be from 0 to {count - 1}."
        )
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(order) or np.any(np.diff(starts) < 0):
        raise InputError(f"starts must rise from 0 to {len(order)}, the number of samples that have an owner.")


def check_labels(y: npt.NDArray[Any], classes: int, where: str) -> None:
    if y.dtype.kind == "f" and len(y):
        raise InputError(f"the {where} labels are floats; classes are whole numbers, such as y.astype(int).")
    if y.ndim != 1:
        raise InputError(
            f"the {where} labels have shape {y.shape}; give one class number per sample, not one-hot rows."
        )
    bad = np.flatnonzero((y < 0) | (y >= classes))
    if len(bad):
        raise InputError(
            f"the label of {where} sample {some(bad)} is {y[bad[0]]}; "
            f"labels of {classes} classes run from 0 to {classes - 1}."
        )
