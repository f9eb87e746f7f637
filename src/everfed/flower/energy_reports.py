"""What clients say of their energy, as the server keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.energy.battery import Books
from everfed.flower.wire import BOOKS


def total_books(reports: Mapping[int, Books]) -> Books:
    """The fleet's energy: the sum of what each client last said of its own."""
    total: dict[str, Any] = {}
    for client in sorted(reports):
        for name, value in reports[client].to_dict().items():
            total[name] = total.get(name, 0) + value
    return Books(**total)


def books_table(reports: Mapping[int, Books], clients: int) -> Floats:
    """What each client last said of its energy, [N, 1 + accounts]; the first column says whether it has."""
    table = np.zeros((clients, 1 + len(BOOKS)))
    for client, books in reports.items():
        kept = books.to_dict()
        table[client] = [1.0, *(kept[name] for name in BOOKS)]
    return table


def books_of_table(table: Floats) -> dict[int, Books]:
    found = {}
    for client in np.flatnonzero(table[:, 0]).tolist():
        numbers = zip(BOOKS.items(), table[client, 1:].tolist(), strict=True)
        found[client] = Books(**{name: kind(value) for (name, kind), value in numbers})
    return found
