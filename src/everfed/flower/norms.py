"""The longest update that a server takes, learnt from what its clients send.

Usual is the median over clients of the latest length that each sent. An update may be some times as long, and less if
its client claims a larger scale than is its own; a smaller scale earns nothing, since not all server rules use it.
Honest updates can be somewhat longer than the bound, at a high learning rate or with unusual data, or much longer, of
a client that comes when the others have learnt; these are shortened to it. Far longer ones are refused, unless they are
short beside the model.

Fewer than half of the clients cannot move a median. Of an even number there are two: updates are shortened by the lower
one and refused by the upper one, so that exactly half can neither have longer updates taken, by sending long ones, nor
have those of the others refused, by sending short ones. They can have them shortened, to a hundredth of the model's
length at least. All this is of clients that have been heard: most of the first to come, if they lie together, decide
what is usual until others have come.

Updates of which a device sends a random part have longer tails: the part is multiplied by 1 / keep, so that a number
which carries most of an update makes it up to 1 / sqrt(keep) times as long as usual when it is drawn, and is missing at
other times. So every client has a credit of squared lengths: one update may use up that of 1 / keep updates at once,
and it grows again by that of one with each. In the long run nobody is given more than without compression.
"""

from __future__ import annotations

import numpy as np

from everfed.arrays import Floats, Ints

_FEW = 3  # clients heard, below which those that come at once are compared with each other
# As long as one alone was heard, times the length that the model began with, or 1 if that is less: shortened, and
# refused. Not the length that it has now: who is alone could double it in every round.
_ALONE, _ALONE_REFUSED = 100.0, 1e6
_BESIDE = 10.0  # times the model's length: what is shorter is shortened, however much shorter the others' are
_FLOOR = 0.01  # of the model's length: a shorter update is never too long
_REFUSED = 10.0  # times the bound


class NormBound:
    """The lengths of the clients' latest updates, and the bound that follows from them."""

    def __init__(self, fair: Floats, factor: float, keep: float = 1.0) -> None:
        """fair: the largest scale of each client. factor: how many times the usual length is taken; 0: any.

        keep: the part of its numbers that a device sends of an update, at random.
        """
        self.fair, self.factor, self.most_credit = fair, factor, 1.0 / keep
        self.latest: Floats = np.full(len(fair), np.nan)
        self.credit: Floats = np.full(len(fair), self.most_credit)  # in squares of the longest update
        self.began: float | None = None  # the model's length when the first update came

    def check(self, clients: Ints, lengths: Floats, scales: Floats, model_length: float) -> list[float | str]:
        """What each of the updates that came together is multiplied by, 1 or less; or why it is refused."""
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
            far = max(_REFUSED * above, _BESIDE * model_length)
            why = f"the usual one is {usual:.3g}"
        else:
            most = above = _ALONE * max(self.began, 1.0)
            far = _ALONE_REFUSED * max(self.began, 1.0)
            why = f"the model's was {self.began:.3g} at first"
        far *= self.most_credit**0.5
        found: list[float | str] = []
        for client, length, scale in zip(clients.tolist(), lengths.tolist(), scales.tolist(), strict=True):
            weight = min(1.0, float(self.fair[client]) / max(scale, 1e-12))
            if length <= far * weight:
                self.latest[client] = min(length, above * weight)
                found.append(self._shortened(client, length, most * weight))
            else:
                at = f" at its scale of {scale:g}" if scale != 1.0 else ""
                bound = f"above the bound of {far * weight:.3g}{at}"
                found.append(f"its update has length {length:.3g}, {bound}; {why} (norm_factor)")
        return found

    def _shortened(self, client: int, length: float, most: float) -> float:
        """What an update is multiplied by, and its client's credit after it. most: what one may have on average."""
        credit = float(self.credit[client])
        shortened = min(1.0, credit**0.5 * most / length) if length else 1.0
        used = (shortened * length / most) ** 2
        self.credit[client] = min(self.most_credit, max(credit - used, 0.0) + 1.0)
        return shortened

    def state(self) -> Floats:
        """What is kept through a restart, [3, clients]."""
        began = np.full(len(self.fair), np.nan if self.began is None else self.began)
        return np.stack([self.latest, self.credit, began])

    def restore(self, state: Floats) -> None:
        """What `state` gave, or the latest lengths alone, which is what earlier versions saved."""
        if state.ndim == 1:
            self.latest = state.copy()
            return
        self.latest, self.credit = state[0].copy(), np.clip(state[1], 1.0, self.most_credit)
        self.began = None if np.isnan(state[2, 0]) else float(state[2, 0])
