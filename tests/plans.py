"""What tests count in plans."""

from __future__ import annotations

import numpy as np


def participations(steps, clients):
    """How often each client takes part in a plan."""
    counts = np.zeros(clients, np.int64)
    for step in steps:
        counts[step.clients] += 1
    return counts
