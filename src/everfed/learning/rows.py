"""What is kept of the clients seen so far, one row each, on the device that trains or on disk.

Only clients that have been seen take room, so memory follows participants. On disk the rows lie in
temporary files (in TMPDIR) that grow as needed and end with the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from everfed.arrays import Ints
from everfed.errors import InputError
from everfed.learning.optim import State

PLACES = ("device", "disk")


Place = Annotated[str, PLACES]


class ClientRows:
    """Columns of one row per client (optimiser state, say); zeros for clients not seen yet."""

    def __init__(self, empty: State, clients: int, device: torch.device, place: str = "device") -> None:
        """empty: the columns, as tensors without rows."""
        self.device = device
        self.row_of = np.full(clients, -1, np.int64)
        self.used = 0
        self.table: dict[str, _InMemory | _OnDisk] = {
            name: _OnDisk(column) if place == "disk" else _InMemory(column) for name, column in empty.items()
        }

    def gather(self, clients: Ints) -> State:
        """The rows of these clients; zeros for a client that has not trained before."""
        rows = self._rows(clients)
        return {name: column.read(rows).to(self.device) for name, column in self.table.items()}

    def scatter(self, clients: Ints, state: State) -> None:
        rows = self._rows(clients)
        for name, column in self.table.items():
            column.write(rows, state[name])

    def _rows(self, clients: Ints) -> Ints:
        new = clients[self.row_of[clients] < 0]
        self.row_of[new] = np.arange(self.used, self.used + len(new))
        self.used += len(new)
        for column in self.table.values():
            if self.used > len(column):
                column.grow(min(max(self.used, 2 * len(column)), len(self.row_of)))
        rows: Ints = self.row_of[clients]
        return rows

    def state_dict(self) -> dict[str, Tensor]:
        everybody = np.arange(self.used)
        kept = {name: column.read(everybody) for name, column in self.table.items()}
        return {"row_of": torch.from_numpy(self.row_of.copy()), **kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.row_of = state["row_of"].cpu().numpy().copy()
        self.used = int(self.row_of.max(initial=-1)) + 1
        for name, column in self.table.items():
            column.replace(state[name])


class _InMemory:
    """One column as a tensor on the device."""

    def __init__(self, empty: Tensor) -> None:
        self.values = empty

    def __len__(self) -> int:
        return len(self.values)

    def grow(self, rows: int) -> None:
        grown = self.values.new_zeros(rows, *self.values.shape[1:])
        grown[: len(self)] = self.values
        self.values = grown

    def replace(self, values: Tensor) -> None:
        self.values = values.to(self.values, copy=True).contiguous()

    def read(self, rows: Ints) -> Tensor:
        return self.values[torch.as_tensor(rows, device=self.values.device)]

    def write(self, rows: Ints, values: Tensor) -> None:
        self.values[torch.as_tensor(rows, device=self.values.device)] = values


class _OnDisk:
    """One column in a temporary file, mapped into memory: the system keeps in memory what there is room for."""

    def __init__(self, empty: Tensor) -> None:
        self.shape = tuple(empty.shape[1:])
        self.dtype = empty.new_zeros(0, device="cpu").numpy().dtype
        self.file = tempfile.TemporaryFile(prefix="everfed-", suffix=".rows")  # noqa: SIM115 - as long as the column
        weakref.finalize(self, self.file.close)
        self._clear()

    def __len__(self) -> int:
        return len(self.values)

    def _clear(self) -> None:
        self.values: npt.NDArray[Any] = np.zeros((0, *self.shape), self.dtype)
        self.file.truncate(0)

    def grow(self, rows: int) -> None:
        each = self.dtype.itemsize * int(np.prod(self.shape))
        if rows * each == 0:
            return
        self.values = self.values[:0].copy()  # Windows lets no file grow that is mapped
        try:
            self.file.truncate(rows * each)  # what is added reads as zeros
            # Allocated now: writing to a mapping on a full disk would kill the process silently.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.file.fileno(), 0, rows * each)
        except OSError as error:
            raise InputError(
                f"not enough disk space for {rows * each / 1e9:.3g} GB of clients' rows in "
                f"'{tempfile.gettempdir()}' ({error.strerror}); set TMPDIR to a larger disk."
            ) from error
        self.values = np.memmap(self.file, self.dtype, "r+", shape=(rows, *self.shape))

    def replace(self, values: Tensor) -> None:
        self._clear()
        self.grow(len(values))
        self.write(np.arange(len(values)), values)

    def read(self, rows: Ints) -> Tensor:
        return torch.from_numpy(np.asarray(self.values[rows]))

    def write(self, rows: Ints, values: Tensor) -> None:
        self.values[rows] = values.cpu().numpy()
