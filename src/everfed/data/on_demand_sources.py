"""Clients' samples from arrays in memory, from arrays mapped from disk, or from a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Ints
from everfed.data.federated import FederatedData
from everfed.data.on_demand import ClientSource, Samples
from everfed.data.plain import as_pair, whole_numbers
from everfed.errors import InputError, first_line

_FILES = ("x.npy", "y.npy", "starts.npy")

# Samples copied at once when a source is written to disk, in clients.
_CLIENTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples in two arrays, sorted by client, in memory or mapped from disk by `open`.

    starts: [N + 1], client i has x[starts[i]:starts[i + 1]].
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    starts: Ints

    def __post_init__(self) -> None:
        starts = np.asarray(self.starts)
        if starts.ndim != 1 or len(starts) < 2 or starts.dtype.kind not in "iu":
            raise InputError(
                "starts must be a list of whole numbers: the first sample of each client, and the end of the last."
            )
        if len(self.x) != len(self.y) or starts[0] != 0 or starts[-1] != len(self.x) or np.any(np.diff(starts) < 0):
            raise InputError(
                f"starts must rise from 0 to the number of samples; they go from {starts[0]} to {starts[-1]} "
                f"for {len(self.x)} samples and {len(self.y)} labels."
            )
        object.__setattr__(self, "starts", whole_numbers(starts, "starts"))

    @classmethod
    def of(cls, data: FederatedData) -> Arrays:
        """The samples of federated data in memory, in the order of their owners."""
        return cls(data.x[data.order], data.y[data.order], data.starts)

    @classmethod
    def open(cls, folder: str | Path) -> Arrays:
        """Map x.npy, y.npy and starts.npy of a folder; the system loads pages when they are used."""
        found = [Path(folder) / name for name in _FILES]
        missing = [path.name for path in found if not path.is_file()]
        if missing:
            raise InputError(f"'{folder}' has no {', '.join(missing)}; clients' arrays are {', '.join(_FILES)}.")
        return cls(*map(_mapped, found))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def read(self, clients: Ints) -> Samples:
        rows = ranges(self.starts[clients], self.starts[clients + 1])
        return self.x[rows], self.y[rows]


@dataclass(frozen=True, eq=False)
class Generated:
    """Samples computed by a function of the client's number whenever they are needed.

    make(client) -> (x, y) must return the same samples every time: seed its generator with the number.
    """

    samples: Sequence[int] | Ints  # of each client
    make: Callable[[int], tuple[Any, Any]]

    def __len__(self) -> int:
        return len(self.samples)

    def sizes(self) -> Ints:
        return np.asarray(self.samples, np.int64)

    def read(self, clients: Ints) -> Samples:
        pairs = [as_pair(self.make(client), f"client {client}") for client in clients.tolist()]
        for client, (x, _) in zip(clients.tolist(), pairs, strict=True):
            if len(x) != self.samples[client]:
                raise InputError(
                    f"the function returned {len(x)} samples for client {client}; samples says {self.samples[client]}."
                )
        return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def _mapped(path: Path) -> npt.NDArray[Any]:
    """An array of numbers on disk; one that claims more than its file holds is refused before memory is taken."""
    try:
        with open(path, "rb") as file:
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, kind = header[np.lib.format.read_magic(file)](file)
        if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize > path.stat().st_size:
            raise ValueError(
                f"its header claims {kind} of shape {shape}, but the file has {path.stat().st_size:,} bytes"
            )
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, TypeError, LookupError, SyntaxError) as error:
        raise InputError(f"{path} cannot be read as an array of numbers: {first_line(error)}.") from error


def save_arrays(source: ClientSource, folder: str | Path) -> Arrays:
    """Write a source as arrays that `Arrays.open` maps, a few clients at a time, and open them."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    starts = np.concatenate([[0], np.cumsum(source.sizes())])
    files: list[npt.NDArray[Any]] = []
    for clients in batches(len(source)):
        parts = as_pair(source.read(clients), f"clients {clients[0]} to {clients[-1]}")
        if not files:
            files = [
                np.lib.format.open_memmap(target / name, "w+", part.dtype, (int(starts[-1]), *part.shape[1:]))
                for name, part in zip(_FILES, parts, strict=False)
            ]
        for file, part in zip(files, parts, strict=True):
            if (file.dtype, file.shape[1:]) != (part.dtype, part.shape[1:]):  # NumPy would cast it silently
                raise InputError(
                    f"clients {clients[0]} to {clients[-1]} hold {part.dtype} of shape {part.shape[1:]}, the clients "
                    f"before {file.dtype} of shape {file.shape[1:]}; all must be alike."
                )
            file[starts[clients[0]] : starts[clients[-1] + 1]] = part
    for file in files:
        file.flush()  # type: ignore[attr-defined]
    np.save(target / _FILES[2], starts)
    return Arrays.open(target)


def batches(clients: int, at_once: int = _CLIENTS_AT_ONCE) -> Iterator[Ints]:
    """All client numbers, some at a time."""
    for start in range(0, clients, at_once):
        yield np.arange(start, min(start + at_once, clients))


def ranges(starts: Ints, ends: Ints) -> Ints:
    """starts[0], starts[0] + 1, ..., ends[0] - 1, starts[1], ...: many ranges in one array.

    >>> ranges(np.array([5, 0]), np.array([7, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    sizes = ends - starts
    shift = starts - (np.cumsum(sizes) - sizes)
    positions: Ints = np.arange(int(sizes.sum())) + np.repeat(shift, sizes)
    return positions
