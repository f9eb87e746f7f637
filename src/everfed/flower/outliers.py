"""Numbers that clients say of themselves and nobody can check: whose is far from the others'?

Far is more than 20 times the median distance from the median, and farther from it than 0 is; of two clients, 20 times
as far as 0. Medians are by weight: clients with less than half of it cannot move them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from everfed.arrays import Floats

_FAR = 20.0
_FEW = 3  # numbers below which a distance between them says little


def far(values: Floats, weights: Floats) -> Iterator[tuple[int, float]]:
    """Which values are far from the others, and the nearest value that is not.

    Those from 0 to 1 are their own nearest if the median is one of them: they may be fractions of something, such as an
    accuracy, and these differ as they like.
    """
    if not len(values):
        return
    middle = _median(values, weights)
    spread = _median(np.abs(values - middle), weights)
    near = max(_FAR * spread, abs(middle) * (_FAR if len(values) < _FEW else 1.0))
    low, high = middle - near, middle + near
    odd = np.flatnonzero((values < low) | (values > high)).tolist()
    if 0.0 <= middle <= 1.0:
        low, high = min(low, 0.0), max(high, 1.0)
    yield from ((i, float(np.clip(values[i], low, high))) for i in odd)


def odd_losses(clients: list[int], losses: list[float]) -> dict[int, str]:
    """Whose training loss is far from the others' of a round, in words."""
    found = far(np.array(losses, np.float64), np.ones(len(losses)))
    return {clients[i]: f"its loss is {losses[i]:g}, far from what the others say" for i, _ in found}


def _median(values: Floats, weights: Floats) -> float:
    """By weight. Of two values in the middle, the one nearer to 0: the other one may be a liar's."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    half, last = sums[-1] / 2.0, len(values) - 1
    lower, upper = (values[order[min(int(np.searchsorted(sums, half * (1.0 + slip))), last)]] for slip in (-1e-9, 1e-9))
    return float(min(lower, upper, key=abs))
