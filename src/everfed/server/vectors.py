"""One vector per client, kept by the server between rounds, on the training device or on disk.

Only clients that have taken part need memory (`learning/rows.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Bools, Floats, Ints
from everfed.errors import InputError
from everfed.learning.rows import ClientRows
from everfed.learning.task import free_on
from everfed.machine import readable


class Vectors:
    """[clients, size] numbers, zeros for clients not seen yet."""

    def __init__(self, clients: int, size: int, device: torch.device, place: str) -> None:
        self.clients, self.size, self.device, self.place = clients, size, device, place
        self.seen: Bools = np.zeros(clients, np.bool_)  # who has written
        if place == "device":
            _check_room(self.bytes(), device)
        self.rows = ClientRows({"vector": torch.zeros(0, size, device=device)}, clients, device, place)

    def bytes(self) -> int:
        """Bytes needed for the vectors of all clients."""
        return 4 * self.clients * self.size

    def explain(self, what: str) -> str:
        where = f"on {self.device.type}" if self.place == "device" else "on disk"
        return f"{what} of every client that has taken part: up to {readable(self.bytes())} {where}"

    def read(self, clients: Ints) -> Tensor:
        return self.rows.gather(clients)["vector"]

    def write(self, clients: Ints, values: Tensor) -> None:
        self.rows.scatter(clients, {"vector": values})
        self.seen[clients] = True

    def state_dict(self) -> dict[str, Tensor]:
        known = np.flatnonzero(self.seen)
        return {"clients": torch.from_numpy(known), "values": self.read(known).cpu()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        stale = np.flatnonzero(self.seen)
        self.write(stale, torch.zeros(len(stale), self.size, device=self.device))
        self.seen[:] = False
        self.write(state["clients"].cpu().numpy(), state["values"].to(self.device))


def _check_room(wanted: int, device: torch.device) -> None:
    free = free_on(device)
    if wanted > free:
        raise InputError(
            f"the server rule keeps a vector per client, {readable(wanted)} in total, but {readable(free)} are free "
            f"on {device.type}; keep them on disk with place='disk'."
        )


def as_row(values: Floats, like: Tensor) -> Tensor:
    """Numbers as a float32 tensor where `like` is."""
    return torch.as_tensor(values, dtype=torch.float32).to(like.device)
