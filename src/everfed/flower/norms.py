"""The longest update that a server takes, learnt from what its clients send.

Usual is the median over clients of the latest length that each sent. An update may be some times as long, and less if
its client claims a larger scale than is its own; a smaller scale earns nothing, since not all server rules use it.
Honest updates can be somewhat longer than the bound, at a high learning rate or with unusual data, or much longer, of
a client that comes when the others have learnt; these are shortened to it. Far longer ones are refused, unless they are
short beside the model.

Fewer than half of the clients cannot move a median. Of an even number there are two: updates are shortened by the lower
one and refused by the upper one, so that exactly half can neither have longer updates taken, by sending long ones, nor
have those of the others refused, by sending short ones. They can have them shortened, to a hundredth of the model's
length at least.
"""

from __future__ import annotations

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.flower.wire import RefusedError

_FEW = 3  # clients heard, below which those that come at once are compared with each other
# As long as one alone was heard, times the length that the model began with, or 1 if that is less: shortened, and
# refused. Not the length that it has now: who is alone could double it in every round.
_ALONE, _ALONE_REFUSED = 100.0, 1e6
_BESIDE = 10.0  # times the model's length: what is shorter is shortened, however much shorter the others' are
_FLOOR = 0.01  # of the model's length: a shorter update is never too long
_REFUSED = 10.0  # times the bound
_REFUSED_AT_ONCE = 4.0  # the same where nothing is shortened


class NormBound:
    """The lengths of the clients' latest updates, and the bound that follows from them."""

    def __init__(self, fair: Floats, factor: float) -> None:
        """fair: the largest scale of each client. factor: how many times the usual length is taken; 0: any."""
        self.fair, self.factor = fair, factor
        self.latest: Floats = np.full(len(fair), np.nan)
        self.began: float | None = None  # the model's length when the first update came

    def check(
        self, clients: Ints, lengths: Floats, scales: Floats, model_length: float, shortens: bool = True
    ) -> list[float | str]:
        """What each of the updates that came together is multiplied by, 1 or less; or why it is refused.

        shortens: False where an update counts as it is or not at all: then the lower median alone decides.
        """
        if not self.factor:
            return [1.0] * len(clients)
        self.began = model_length if self.began is None else self.began
        lengths_known = self.latest
        few = np.count_nonzero(self.latest > 0.0) < _FEW
        if few:  # else many that come at once cannot vouch for each other
            lengths_known = self.latest.copy()
            lengths_known[clients] = lengths
        known = np.sort(lengths_known[lengths_known > 0.0])  # not NaN; nor who has nothing to learn
        if len(known) > 1:
            usual = float(known[(len(known) - 1) // 2])
            upper = usual if few else float(known[len(known) // 2])  # of two, the longer one may be the liar's
            most, above = (max(self.factor * length, _FLOOR * model_length) for length in (usual, upper))
            far = max(_REFUSED * above, _BESIDE * model_length) if shortens else _REFUSED_AT_ONCE * most
            why = f"the usual one is {usual:.3g}"
        else:
            most = above = _ALONE * max(self.began, 1.0)
            far = _ALONE_REFUSED * max(self.began, 1.0) if shortens else most
            why = f"the model's was {self.began:.3g} at first"
        found: list[float | str] = []
        for client, length, scale in zip(clients.tolist(), lengths.tolist(), scales.tolist(), strict=True):
            weight = min(1.0, float(self.fair[client]) / max(scale, 1e-12))
            if length <= far * weight:
                self.latest[client] = min(length, above * weight)
                found.append(min(1.0, most * weight / length) if length else 1.0)
            else:
                at = f" at its scale of {scale:g}" if scale != 1.0 else ""
                bound = f"above the bound of {far * weight:.3g}{at}"
                found.append(f"its update has length {length:.3g}, {bound}; {why} (norm_factor)")
        return found

    def check_one(self, client: int, length: float, model_length: float) -> None:
        """The same for one update that counts as it is or not at all."""
        one = np.array([client]), np.array([length]), np.array([1.0])
        found = self.check(*one, model_length, shortens=False)[0]
        if isinstance(found, str):
            raise RefusedError(found)
