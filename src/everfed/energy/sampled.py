"""Some clients of a fleet, in the order in which pictures show them."""

from __future__ import annotations

import numpy as np

from everfed.arrays import Ints
from everfed.energy.fleet import Fleet


def sample(fleet: Fleet, at_most: int) -> Ints:
    """Clients group by group, each by rising cycle; of a larger fleet evenly many from within each energy group."""
    cycles, groups, n = fleet.cycles(), fleet.groups(), len(fleet)
    chosen = np.arange(n)
    if n > at_most:
        sizes = np.array([len(g.clients) for g in groups])
        # In proportion to the groups' sizes, at least one per group.
        counts = np.maximum(1, np.floor(sizes * at_most / n)).astype(np.int64)
        picks = [
            g.clients[np.linspace(0, len(g.clients) - 1, count).round().astype(np.int64)]
            for g, count in zip(groups, counts, strict=True)
        ]
        chosen = np.unique(np.concatenate(picks))
    place = np.zeros(n, np.int64)
    for number, g in enumerate(groups):
        place[g.clients] = number
    return chosen[np.lexsort((cycles[chosen], place[chosen]))]
