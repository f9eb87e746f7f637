"""Samples that are loaded on demand, so that memory depends on the participants only.

A `ClientSource` returns the number of samples per client, and the samples of requested clients. `OnDemand` turns it
into federated data, usable wherever `FederatedData` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from everfed.arrays import Floats, Ints
from everfed.checks import check_count
from everfed.data.augment import Augment, Plain
from everfed.data.federated import check_labels
from everfed.data.plain import as_pair
from everfed.errors import InputError, some

# Clients of a group that are sampled to estimate its labels.
_LABELS_FROM = 200

Samples = tuple[npt.NDArray[Any], npt.NDArray[Any]]


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


@dataclass(frozen=True, eq=False)
class OnDemand:
    """Federated data that are read client by client, and a common test set in memory.

    classes: how many; 0 for regression. test: (x, y), or None.

    >>> from everfed.data.on_demand_sources import Generated
    >>> source = Generated([2, 2, 2], lambda client: (np.full((2, 1), client), [0, 1]))
    >>> data = OnDemand(source, classes=2)
    >>> len(data), data.read(np.array([0, 2]))[0].ravel().tolist()
    (3, [0.0, 0.0, 2.0, 2.0])
    """

    source: ClientSource
    test: tuple[Any, Any] | None = None
    classes: int = 0
    name: str = "on demand"
    augment: Augment = Plain()

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
        if self.test is None:
            object.__setattr__(self, "test", (x[:0], y[:0]))
        else:
            test = as_pair(self.test, "the test set")
            self._check(test, "the test set")
            object.__setattr__(self, "test", test)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def test_x(self) -> npt.NDArray[Any]:
        assert self.test is not None
        return np.asarray(self.test[0])

    @property
    def test_y(self) -> npt.NDArray[Any]:
        assert self.test is not None
        return np.asarray(self.test[1])

    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample as a model sees it."""
        return self.augment.shape(self._first[0].shape[1:])

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
            return self._first[0][:0], self._first[1][:0]
        outside = clients[(clients < 0) | (clients >= len(self))]
        if len(outside):
            raise InputError(f"there is no client {some(outside)}; the data have clients 0 to {len(self) - 1}.")
        x, y = self._read(clients)
        self._check((x, y), _named(clients))
        return x, y

    def _read(self, clients: Ints) -> Samples:
        x, y = as_pair(self.source.read(clients), _named(clients))
        wanted = int(self._sizes[clients].sum())
        if len(x) != wanted:
            raise InputError(f"the source returned {len(x)} samples of {_named(clients)}; its sizes say {wanted}.")
        return x, y

    def _check(self, samples: Samples, whose: str) -> None:
        """Check that samples have one type and shape and are finite, and that labels are valid."""
        for what, found, first in zip(("samples", "labels"), samples, self._first, strict=True):
            if (found.dtype, found.shape[1:]) != (first.dtype, first.shape[1:]):
                raise InputError(
                    f"{what} of {whose} are {found.dtype} of shape {found.shape[1:]}; "
                    f"those of client 0 are {first.dtype} of shape {first.shape[1:]}."
                )
            if found.dtype.kind == "f" and not np.isfinite(found).all():
                raise InputError(f"{what} of {whose} contain NaN or infinite values; clean the data first.")
        labels = samples[1]
        if self.classes:
            check_labels(labels, self.classes, whose)
        elif labels.dtype.kind != "f":
            raise InputError("the labels are whole numbers, so they are classes; set classes to their number.")

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


def _named(clients: Ints) -> str:
    # Checked at every read, without a list of all clients.
    first = ", ".join(map(str, clients[:3].tolist()))
    return f"client {first}" + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
