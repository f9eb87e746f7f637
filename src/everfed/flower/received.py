"""Clients' results from the network, in the place of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from everfed.arrays import Ints
from everfed.learning.compress import Compressed
from everfed.learning.task import Check, Trained


class Received:
    """What takes a trainer's place: results that clients have sent."""

    at_once = 1
    check: Check | None = None

    def __init__(self) -> None:
        self.results: dict[int, tuple[Tensor, Tensor]] = {}  # by client: its update and its loss

    def explain(self) -> list[str]:
        return ["by the clients, over the network"]

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        for client in clients.tolist():
            delta, loss = self.results.pop(client)
            yield Compressed(np.array([client]), delta[None], loss[None])

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...
