"""The longest update that a server takes, learnt from what its clients send.

Typical is the median over clients of the latest length that each sent, so that fewer than half of them cannot move it.
An update may be some times as long, multiplied by the scale that its client may have: a client that trains rarely and
counts for many rounds is held to its share as the others are to theirs.
"""

from __future__ import annotations

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.flower.wire import RefusedError

_FEW = 3  # clients heard, below which there is no median to trust
_MODELS = 10.0  # until then: times the model's own length, or 1 if that is less
_FLOOR = 0.01  # of the model's length: a shorter update is never too long


class NormBound:
    """The lengths of the clients' latest updates, and the bound that follows from them."""

    def __init__(self, fair: Floats, factor: float) -> None:
        """fair: the largest scale of each client. factor: how many times the typical length is taken; 0: any."""
        self.fair, self.factor = fair, factor
        self.latest: Floats = np.full(len(fair), np.nan)

    def check(self, clients: Ints, lengths: Floats, scales: Floats, model_length: float) -> list[str | None]:
        """Why each of the updates that came together is too long, or None; those that are not are remembered."""
        if not self.factor:
            return [None] * len(clients)
        together = self.latest.copy()
        together[clients] = lengths
        known = np.sort(together[np.isfinite(together)])
        if len(known) >= _FEW:
            typical = float(known[(len(known) - 1) // 2])
            most, why = max(self.factor * typical, _FLOOR * model_length), f"{self.factor:g} times the usual"
        else:
            most, why = _MODELS * max(model_length, 1.0), "with so few updates to compare it with"
        found: list[str | None] = []
        for client, length, scale in zip(clients.tolist(), lengths.tolist(), scales.tolist(), strict=True):
            bound = most * self.fair[client] / max(scale, 1e-12)
            if length <= bound:
                self.latest[client] = length
                found.append(None)
            else:
                found.append(
                    f"its update has length {length:.3g} and scale {scale:g}, above the bound of {bound:.3g} on the "
                    f"length at this scale ({why}; norm_factor)"
                )
        return found

    def check_one(self, client: int, length: float, scale: float, model_length: float) -> None:
        why = self.check(np.array([client]), np.array([length]), np.array([scale]), model_length)[0]
        if why:
            raise RefusedError(why)
