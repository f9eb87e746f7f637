"""Clients that join while a run goes on: who has never been heard has no share yet.

A fleet may have places for devices that come later. Their shares would be missing from every sum until then. So the
shares of those who have come are divided by their sum: of two clients with half of the data each, the first one alone
counts fully until the second is first heard. Whoever has come keeps its share, also while it is away.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from everfed.arrays import Bools, Floats
from everfed.errors import InputError
from everfed.server.rules import Normalized, ServerRule, Sum


class Joining:
    """Who has come so far."""

    def __init__(self, shares: Floats, late: bool = False) -> None:
        """late: whether clients may come later; False: all have their shares from the start."""
        self.shares, self.come = shares, np.full(len(shares), not late)

    def hear(self, clients: Iterable[int]) -> list[int]:
        """Those of these clients that have been heard for the first time."""
        new = sorted(client for client in clients if not self.come[client])
        self.come[new] = True
        return new

    @property
    def factor(self) -> float:
        """What a share, and with it a scale, is multiplied by."""
        return 1.0 if self.come.all() else float(1.0 / max(self.shares[self.come].sum(), np.finfo(np.float64).tiny))

    def load(self, come: Bools) -> None:
        self.come = come.copy()


def check_rule(rule: ServerRule) -> None:
    """Shares of those who have come need a rule that only sums."""
    if not isinstance(rule, Sum | Normalized):
        raise InputError(
            f"late-joiners is true, but the rule {type(rule).__name__} works with the shares of the whole fleet; "
            "use sum or normalized."
        )
