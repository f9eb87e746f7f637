"""Samples that are loaded on demand, so that memory depends on the participants only.

A `ClientSource` returns the number of samples per client, and the samples of requested clients. `OnDemand` turns it
into federated data, usable wherever `FederatedData` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from everfed.arrays import Floats, Inputs, Ints, each, parts, taken
from everfed.checks import check_count
from everfed.data.augment import Augment, Plain
from everfed.data.holdings import card
from everfed.data.plain import as_pair
from everfed.data.targets import AUTO, REGRESSION, TASKS, as_targets, check_targets, task_of, warn_of_labels
from everfed.errors import InputError, some
from everfed.showing.card import Card, Shown

# Clients of a group that are sampled to estimate its labels.
_LABELS_FROM = 200

Samples = tuple[Inputs, npt.NDArray[Any]]


class ClientSource(Protocol):
    """The protocol of a source of samples."""

    def __len__(self) -> int:
        """How many clients there are."""
        ...

    def sizes(self) -> Ints:
        """[N] how many samples each client has."""
        ...

    def read(self, clients: Ints) -> Samples:
        """(x, y) of these clients, concatenated in the order given.

        The same call must return the same samples every time: minibatches are drawn by index.
        """
        ...


@dataclass(frozen=True, eq=False, repr=False)
class OnDemand(Shown):
    """Federated data that are read client by client, and a common test set in memory.

    source: gives the samples of any clients (`Generated`, files, or your own with `sizes` and `read`).
    test: (x, y) of the test set, or None.
    classes: how many, or the vocabulary of tokens; 0 for regression.
    name: of the data, in reports.
    augment: what is done to images.
    task: classification, next-token, multilabel or regression; "auto" follows from y.

    >>> from everfed.data.on_demand_sources import Generated
    >>> source = Generated([2, 2, 2], lambda client: (np.full((2, 1), client), [0, 1]))
    >>> data = OnDemand(source, classes=2)
    >>> len(data), data.read(np.array([0, 2]))[0].ravel().tolist()
    (3, [0, 0, 2, 2])
    """

    source: ClientSource
    test: tuple[Any, Any] | None = None
    classes: int = 0
    name: str = "on demand"
    augment: Augment = Plain()
    task: str = AUTO

    def __post_init__(self) -> None:
        if len(self.source) == 0:
            raise InputError("the source has no clients; it needs at least one.")
        check_count("classes", self.classes, least=0)  # 0 for regression
        sizes = self.sizes()
        if sizes.shape != (len(self),):
            raise InputError(
                f"the source returns {sizes.size} sizes for {len(self)} clients; it must return one per client."
            )
        empty = np.flatnonzero(sizes < 1)
        if len(empty):
            raise InputError(f"client {some(empty)} holds no samples; every client needs at least one.")
        x, y = self._first
        if self.task == AUTO:
            object.__setattr__(self, "task", task_of(y, self.classes or int(y.dtype.kind == "i")))
            if self.task == REGRESSION:
                warn_of_labels(y)
        if self.task not in TASKS:
            raise InputError(f"the task is {self.task!r}; it must be {', '.join(TASKS)} or {AUTO}.")
        if self.test is None:
            object.__setattr__(self, "test", (taken(x, slice(0)), as_targets(y[:0], self.task)))
        else:
            test = as_pair(self.test, "the test set")
            self._check(test, "the test set")
            object.__setattr__(self, "test", (test[0], as_targets(test[1], self.task)))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def test_x(self) -> Inputs:
        assert self.test is not None
        return self.test[0]

    @property
    def test_y(self) -> npt.NDArray[Any]:
        assert self.test is not None
        return np.asarray(self.test[1])

    test_owner: ClassVar[None] = None  # the test set is common to all

    def input_shape(self) -> Any:
        """The shape of a sample as a model sees it; of several inputs, the shape of each by name."""
        return each(lambda part: self.augment.shape(part.shape[1:]), self._first[0])

    def target_shape(self) -> tuple[int, ...]:
        """The shape of a sample's target: () for one class or number."""
        return self._first[1].shape[1:]

    @cached_property
    def _sizes(self) -> Ints:
        return np.array(self.source.sizes(), np.int64)  # a copy: the source may change its own

    @cached_property
    def _first(self) -> Samples:
        """Client 0's samples; all others must have the same type and shape."""
        return self._read(np.array([0]))

    def sizes(self) -> Ints:
        """D_i: how many samples each client holds."""
        return self._sizes

    def shares(self) -> Floats:
        """p_i = D_i / D."""
        shares: Floats = self._sizes / int(self._sizes.sum())
        return shares

    def read(self, clients: Ints) -> Samples:
        """(x, y) of these clients, concatenated and checked like data in memory."""
        if len(clients) == 0:
            return taken(self._first[0], slice(0)), as_targets(self._first[1][:0], self.task)
        outside = clients[(clients < 0) | (clients >= len(self))]
        if len(outside):
            raise InputError(f"there is no client {some(outside)}; the data have clients 0 to {len(self) - 1}.")
        x, y = self._read(clients)
        self._check((x, y), _named(clients))
        return x, as_targets(y, self.task)

    def _read(self, clients: Ints) -> Samples:
        x, y = as_pair(self.source.read(clients), _named(clients))
        wanted = int(self._sizes[clients].sum())
        if len(y) != wanted:
            raise InputError(f"the source returned {len(y)} samples of {_named(clients)}; its sizes say {wanted}.")
        return x, y

    def _check(self, samples: Samples, whose: str) -> None:
        """Check that samples have one type and shape and are finite, and that labels are valid."""
        if parts(samples[0]).keys() != parts(self._first[0]).keys():
            raise InputError(f"the inputs of {whose} have other names than those of client 0.")
        pairs = [("samples", part, parts(self._first[0])[name]) for name, part in parts(samples[0]).items()]
        targets = as_targets(samples[1], self.task)
        for what, found, first in (*pairs, ("labels", targets, as_targets(self._first[1], self.task))):
            if (found.dtype, found.shape[1:]) != (first.dtype, first.shape[1:]):
                raise InputError(
                    f"{what} of {whose} are {found.dtype} of shape {found.shape[1:]}; "
                    f"those of client 0 are {first.dtype} of shape {first.shape[1:]}."
                )
            if found.dtype.kind == "f" and not np.isfinite(found).all():
                raise InputError(f"{what} of {whose} contain NaN or infinite values; clean the data first.")
        if self.task != REGRESSION and not self.classes:
            raise InputError("the labels are whole numbers, so they are classes; set classes to their number.")
        check_targets(targets, self.classes, self.task, whose)

    def label_mixes(self, groups: Sequence[Ints]) -> list[Floats]:
        """[classes] for each group of clients: how often it holds each class.

        For a large group, an estimate from clients spread evenly over it.
        """
        mixes = []
        for clients in groups:
            if len(clients) > _LABELS_FROM:
                clients = clients[np.linspace(0, len(clients) - 1, _LABELS_FROM).round().astype(np.int64)]
            mixes.append(np.bincount(self.read(clients)[1], minlength=self.classes).astype(np.float64))
        return mixes

    def alone(self, client: int) -> Samples:
        """One client's own samples."""
        return self.read(np.array([client]))

    def _card(self) -> Card:
        return card(self)


def _named(clients: Ints) -> str:
    # Checked at every read, without a list of all clients.
    first = ", ".join(map(str, clients[:3].tolist()))
    return f"client {first}" + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
