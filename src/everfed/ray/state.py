"""Clients' optimiser state on its way between trainers, taken apart client by client.

Trainers keep it in one of two forms (tables with a row per client, or tensors named after the client);
split_clients, it can be moved, and put together again on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# What each client keeps, by client. Arrays rather than tensors: Ray moves them without a copy.
Kept = dict[int, dict[str, npt.NDArray[Any]]]
_ROWS = "row_of"


def split_clients(state: dict[str, Tensor], clients: Iterable[int] | None = None) -> Kept:
    """A trainer's state, client by client; clients: these alone, as far as they have any."""
    plain = {name: value.detach().cpu().numpy() for name, value in state.items()}
    wanted = None if clients is None else {int(client) for client in clients}
    kept: Kept = {}
    if _ROWS in plain:
        row_of = plain.pop(_ROWS)
        who = np.flatnonzero(row_of >= 0) if wanted is None else np.array(sorted(wanted), np.int64)
        for client in who[row_of[who] >= 0].tolist():
            kept[client] = {name: np.array(column[row_of[client]]) for name, column in plain.items()}
        return kept
    for name, value in plain.items():
        client, _, rest = name.partition(".")
        if wanted is None or int(client) in wanted:
            kept.setdefault(int(client), {})[rest] = value.copy()
    return kept


def merge_clients(kept: Kept, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state that a trainer of the same kind loads; like: the state of any such trainer."""
    if _ROWS not in like:
        return {f"{c}.{name}": torch.tensor(v) for c, values in kept.items() for name, v in values.items()}
    clients = np.array(sorted(kept), np.int64)
    row_of = np.full(len(like[_ROWS]), -1, np.int64)
    row_of[clients] = np.arange(len(clients))
    columns = {
        name: torch.from_numpy(np.stack([kept[c][name] for c in clients.tolist()])) if len(clients) else column[:0]
        for name, column in like.items()
        if name != _ROWS
    }
    return {_ROWS: torch.from_numpy(row_of), **columns}
