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

from everfed.arrays import Inputs, Ints, count, each, joined, parts, taken
from everfed.checks import check_count, checked as checked_value
from everfed.data.augment import Augment, Plain
from everfed.data.holdings import card, held, plot
from everfed.data.plain import Pair, as_pair, check_lengths, labels, samples, whole_numbers
from everfed.data.targets import (
    AUTO,
    NEXT_TOKEN,
    REGRESSION,
    TASKS,
    as_targets,
    check_targets,
    classes_in,
    task_of,
    warn_of_copies,
    warn_of_labels,
)
from everfed.data.times import Times
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, counted, some, warn
from everfed.showing import svg
from everfed.showing.card import Card, Shown


@dataclass(frozen=True, repr=False)
class FederatedData(Shown):
    """Training samples with their owners, and a common test set (which may be empty).

    Accepts arrays of any layout, byte order and number type, and stores plain ones (`data/plain.py`).

    x: [samples, ...] the training inputs: uint8, float32, int64 or bool; or several such arrays by name.
    y: [samples] labels, [samples, length] tokens or [samples, ...] numbers.
    order: sample numbers, client after client.
    starts: [N + 1] where each client begins in `order`.
    test_x: inputs of the test set.
    test_y: targets of the test set.
    classes: of labels; the vocabulary of tokens; 0 for regression.
    name: of the data, in reports.
    augment: what is done to images.
    task: classification, next-token, multilabel or regression; "auto" follows from y.
    test_owner: [test samples] the client that each belongs to, -1 for nobody's; None: not known.
    names: of the clients, if they have any.
    times: when each training sample was, if they follow each other; of those the last are held out for validation.

    >>> import everfed as ef
    >>> data = ef.load("digits").partition(clients=4, how="iid", seed=0)
    >>> len(data), data.sizes().tolist(), data.label_counts().shape
    (4, [360, 359, 359, 359], (4, 10))
    """

    x: Inputs  # [samples, ...]: uint8, float32, int64 or bool; or several such inputs by name
    y: npt.NDArray[Any]  # int64 [samples] labels or [samples, length] tokens, or float32 [samples, ...]
    order: Ints  # sample numbers, client after client
    starts: Ints  # [N + 1]: client i holds order[starts[i]:starts[i + 1]]
    test_x: Inputs
    test_y: npt.NDArray[Any]
    classes: int  # of labels; the vocabulary of tokens; 0 for regression
    name: str = "arrays"
    augment: Augment = Plain()
    task: str = AUTO  # one of TASKS; "auto" follows from the targets
    test_owner: Ints | None = None  # [test samples] the client that each belongs to, -1 for nobody's; None: not known
    names: tuple[str, ...] = ()  # of the clients, if they have any
    times: Times | None = None  # of training samples that follow each other; None: they lie in no order

    def __post_init__(self) -> None:
        y = labels(self.y, "the training set")
        task = task_of(y, self.classes) if self.task == AUTO else self.task
        if task not in TASKS:
            raise InputError(f"the task is {task!r}; it must be {', '.join(TASKS)} or {AUTO}.")
        if self.task == AUTO and task == REGRESSION:
            warn_of_labels(y)
        plain = {
            "x": samples(self.x, "the training set"),
            "y": as_targets(y, task),
            "test_x": samples(self.test_x, "the test set"),
            "test_y": as_targets(labels(self.test_y, "the test set"), task),
            "order": whole_numbers(self.order, "order"),
            "starts": whole_numbers(self.starts, "starts"),
            "task": task,
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        check_lengths(self.x, self.y, "the training set")
        check_lengths(self.test_x, self.test_y, "the test set")
        _check_owners(self.order, self.starts, len(self.y))
        self._check_test_owner()
        if self.times is not None:
            self.times.check_length(len(self.y))
        if isinstance(self.x, dict) and not isinstance(self.augment, Plain):
            raise InputError("samples of several inputs cannot be augmented; augment them before, or use 'plain'.")
        if self.classes:
            check_targets(self.y, self.classes, task, "training")
            check_targets(self.test_y, self.classes, task, "test")

    def _check_test_owner(self) -> None:
        if self.test_owner is None:
            return
        owner = whole_numbers(self.test_owner, "test_owner")
        object.__setattr__(self, "test_owner", owner)
        if len(owner) != len(self.test_y) or (len(owner) and not -1 <= owner.min() <= owner.max() < len(self)):
            raise InputError(
                f"test_owner must have one client from 0 to {len(self) - 1} (or -1) for each of the "
                f"{len(self.test_y)} test samples."
            )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def input_shape(self) -> Any:
        """The shape of a sample as a model sees it; of several inputs, the shape of each by name."""
        return each(lambda part: self.augment.shape(part.shape[1:]), self.x)

    def target_shape(self) -> tuple[int, ...]:
        """The shape of a sample's target: () for one class or number."""
        return self.y.shape[1:]

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
        """[classes] for each group of clients: how many samples of each class it holds (of a classification)."""
        counts = self.label_counts()
        return [counts[clients].sum(axis=0).astype(np.float64) for clients in groups]

    def label_counts(self) -> Ints:
        """[N, classes]: how many samples of each class each client holds."""
        counts = np.zeros((len(self), self.classes), np.int64)
        owner = np.repeat(np.arange(len(self)), self.sizes())
        np.add.at(counts, (owner, self.y[self.order]), 1)
        return counts

    def plot(self, *, fleet: Fleet | None = None, most: int = 100, ax: Any = None) -> Any:
        """Who holds what: samples of each class by client, or without classes by client alone.

        fleet: sorts clients by energy group. most: clients that are drawn; of more, some are taken evenly. Returns
        Matplotlib's axes.
        """
        return plot(self, fleet, most, ax)

    def _card(self) -> Card:
        return card(self, self._picture)

    def _picture(self) -> str:
        clients = np.unique(np.linspace(0, len(self) - 1, 40).round().astype(np.int64))
        counts = held(self, clients)
        if counts is None:
            sizes = np.sort(self.sizes()[clients])[::-1]
            return svg.bars(sizes.tolist(), "samples of a client", "clients")
        said = f"classes 0 to {self.classes - 1} across, {counted(len(clients), 'client')} down"
        return svg.raster(counts / max(counts.max(), 1), "who holds what", said)


def from_arrays(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | list[tuple[Any, Any]] | None = None,
    name: str = "arrays",
    task: str = AUTO,
    classes: int | None = None,
) -> FederatedData:
    """Federated data from one (x, y) pair per client, and an optional test set.

    clients: one (x, y) per client. x is one array of [samples, ...], or several by the names of the model's
        arguments, such as {"tokens": ..., "mask": ...}; y has one target per sample.
    test: one (x, y) pair, or a list with each client's own, by which clients and energy groups are then evaluated.
    task: follows from y. Whole numbers make it classification, several per sample a class per position (next-token,
        -100 is ignored); several truth values per sample make it multilabel; floats, regression.
    classes: how many classes, or the vocabulary of tokens; None: as many as there are in y.
    name: of the data, in reports.

    >>> data = from_arrays([(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [0])])
    >>> data.sizes().tolist(), data.classes, data.task
    ([3, 1], 2, 'classification')
    """
    if len(clients) == 0:
        raise InputError("no clients were given; data needs one (x, y) pair per client.")
    pairs = [as_pair(pair, f"client {i}") for i, pair in enumerate(clients)]
    empty = [i for i, (x, _) in enumerate(pairs) if count(x) == 0]
    if empty:
        raise InputError(f"client {some(empty)} holds no samples; every client needs at least one.")
    tests, owner = _test_pairs(test, len(pairs))
    _check_alike([*pairs, *tests])
    x, y = joined([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
    starts = np.concatenate([[0], np.cumsum([len(y) for _, y in pairs])])
    test_x, test_y = taken(x, slice(0)), y[:0]
    if tests:
        test_x, test_y = joined([x for x, _ in tests]), np.concatenate([y for _, y in tests])
    if classes is None:
        classes = classes_in(y, test_y, task=checked_value("task", task, str))
    check_count("classes", classes, least=0)
    order = np.arange(len(y))
    return checked(FederatedData(x, y, order, starts, test_x, test_y, classes, name, task=task, test_owner=owner))


def _test_pairs(test: Any, clients: int) -> tuple[list[Pair], Ints | None]:
    """(one pair, or each client's, or none; the owner of each sample if they are the clients')."""
    if test is None:
        return [], None
    if not isinstance(test, list):
        return [as_pair(test, "the test set")], None
    if len(test) == 2 and not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in test):
        return [as_pair((test[0], test[1]), "the test set")], None
    if len(test) != clients:
        raise InputError(
            f"{len(test)} test sets were given for {clients} clients; give one (x, y) pair, or one per client."
        )
    pairs = [as_pair(pair, f"the test set of client {i}") for i, pair in enumerate(test)]
    return pairs, np.repeat(np.arange(clients), [len(y) for _, y in pairs])


def _check_alike(pairs: list[Pair]) -> None:
    """Check that all clients and the test set hold the same kind of samples and labels."""
    names = {", ".join(sorted(parts(x))) for x, _ in pairs}
    if len(names) > 1:
        raise InputError(f"clients, or clients and test set, hold different inputs: {some(sorted(names))}.")
    for what, seen in (
        ("samples of different shapes", {_said(x, lambda part: part.shape[1:]) for x, _ in pairs}),
        (
            "samples of different types (bytes are scaled, whole numbers are tokens, floats neither)",
            {_said(x, lambda part: part.dtype) for x, _ in pairs},
        ),
        ("labels of different types (whole numbers are classes, floats are targets)", {str(y.dtype) for _, y in pairs}),
        ("labels of different shapes", {str(y.shape[1:]) for _, y in pairs}),
    ):
        if len(seen) > 1:
            raise InputError(f"clients, or clients and test set, hold {what}: {some(sorted(seen))}.")


def _said(x: Inputs, of: Any) -> str:
    return ", ".join(f"{name} {of(part)}".strip() for name, part in sorted(parts(x).items()))


def checked(data: FederatedData) -> FederatedData:
    """The same data, or an error that says what is wrong and where."""
    for inputs, y, where in ((data.x, data.y, "training"), (data.test_x, data.test_y, "test")):
        for x in parts(inputs).values():
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                bad = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))
                raise InputError(f"{where} sample {some(bad)} contains NaN or infinite values; clean the data first.")
        check_targets(y, data.classes, data.task, where)
    empty = np.flatnonzero(data.sizes() == 0)
    if len(empty):
        raise InputError(f"client {some(empty)} holds no samples; every client needs at least one.")
    if data.task == NEXT_TOKEN:
        warn_of_copies(data.x, data.y)
    _warn_of_masks(data.x)
    return data


def _warn_of_masks(x: Inputs) -> None:
    for name, part in parts(x).items():
        if name and len(parts(x)) > 1 and part.dtype == np.uint8 and part.size and part.max() == 1:
            warn(
                f"the input '{name}' is bytes of 0 and 1 alone, which are scaled as pictures are, to 0 and 1/255; give "
                "a mask as bool.",
                3,
            )


def _check_owners(order: Ints, starts: Ints, count: int) -> None:
    """Check that sample numbers exist: kernels index with them without checks."""
    if len(order) and (order.min() < 0 or order.max() >= count):
        raise InputError(
            f"order contains {order.min()} to {order.max()}; sample numbers must be from 0 to {count - 1}."
        )
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(order) or np.any(np.diff(starts) < 0):
        raise InputError(f"starts must rise from 0 to {len(order)}, the number of samples that have an owner.")
