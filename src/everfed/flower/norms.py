"""The longest update that a server takes, learnt from what its clients send.

Usual is the median over clients of the latest length that each sent, so that fewer than half of them cannot move it. An
update may be some times as long, multiplied by the scale that its client may have: a client that trains rarely and
counts for many rounds is held to its share as the others are to theirs. Honest updates can be somewhat longer than the
bound, at a high learning rate or with unusual data; these are shortened to it. Far longer ones are refused.
"""

from __future__ import annotations

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.flower.wire import RefusedError

_FEW = 3  # clients heard, below which there is no median to trust
_MODELS = 1e6  # until then: times the model's own length, or 1 if that is less
_FLOOR = 0.01  # of the model's length: a shorter update is never too long
_REFUSED = 10.0  # times the bound
_REFUSED_AT_ONCE = 4.0  # the same where nothing is shortened


class NormBound:
    """The lengths of the clients' latest updates, and the bound that follows from them."""

    def __init__(self, fair: Floats, factor: float) -> None:
        """fair: the largest scale of each client. factor: how many times the usual length is taken; 0: any."""
        self.fair, self.factor = fair, factor
        self.latest: Floats = np.full(len(fair), np.nan)

    def check(
        self, clients: Ints, lengths: Floats, scales: Floats, model_length: float, refused: float = _REFUSED
    ) -> list[float | str]:
        """What each of the updates that came together is multiplied by, 1 or less; or why it is refused.

        refused: times the bound.
        """
        if not self.factor:
            return [1.0] * len(clients)
        lengths_known = self.latest
        if np.count_nonzero(self.latest > 0.0) < _FEW:  # else many that come at once cannot vouch for each other
            lengths_known = self.latest.copy()
            lengths_known[clients] = lengths
        known = np.sort(lengths_known[lengths_known > 0.0])  # not NaN; nor who has nothing to learn
        if len(known) >= _FEW:
            usual = float(known[(len(known) - 1) // 2])
            most, why = max(self.factor * usual, _FLOOR * model_length), f"the usual one is {usual:.3g}"
        else:
            most, why = _MODELS * max(model_length, 1.0), f"the model's is {model_length:.3g}"
            refused = 1.0  # there is nothing to compare it with
        found: list[float | str] = []
        for client, length, scale in zip(clients.tolist(), lengths.tolist(), scales.tolist(), strict=True):
            bound = float(most * self.fair[client] / max(scale, 1e-12))
            if length <= bound * refused:
                self.latest[client] = min(length, bound)
                found.append(min(1.0, bound / length) if length else 1.0)
            else:
                at = f" at its scale of {scale:g}" if scale != 1.0 else ""
                above = f"above the bound of {bound * refused:.3g}{at}"
                found.append(f"its update has length {length:.3g}, {above}; {why} (norm_factor)")
        return found

    def check_one(self, client: int, length: float, model_length: float) -> None:
        """The same for one update that counts as it is or not at all."""
        one = np.array([client]), np.array([length]), np.array([1.0])
        found = self.check(*one, model_length, _REFUSED_AT_ONCE)[0]
        if isinstance(found, str):
            raise RefusedError(found)
