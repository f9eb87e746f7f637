"""Numbers that clients say of themselves and nobody can check: whose is far from the others'?

Far is more than 20 times the median distance from the median, and farther from it than 0 is. What is more than 20 times
as far from it as 0 is too far: it counts as the nearest number that is not. Medians are by weight: clients with less
than half of it cannot move them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from everfed.arrays import Floats

_FAR = 20.0
_FEW = 3  # numbers below which a distance between them says little


def far(values: Floats, weights: Floats) -> Iterator[tuple[int, float]]:
    """Which values are far from the others, and what each counts as: itself, unless it is too far.

    From 0 to 1 none is too far if the median is there: they may be fractions of something, such as an accuracy, and
    these differ as they like.
    """
    if not len(values):
        return
    middle = _median(values, weights)
    spread = _FAR * _median(np.abs(values - middle), weights)
    widest = max(spread, _FAR * abs(middle))
    near = max(spread, abs(middle)) if len(values) >= _FEW else widest
    low, high = middle - widest, middle + widest
    if 0.0 <= middle <= 1.0:
        low, high = min(low, 0.0), max(high, 1.0)
    for i in np.flatnonzero(np.abs(values - middle) > near).tolist():
        yield i, float(np.clip(values[i], low, high))


def odd_losses(clients: list[int], losses: list[float]) -> dict[int, str]:
    """Whose training loss is too far from the others' of a round, in words. Those of rare clients are often far."""
    found = far(np.array(losses, np.float64), np.ones(len(losses)))
    said = "far from what the others say"
    return {clients[i]: f"its loss is {losses[i]:g}, {said}" for i, counts_as in found if counts_as != losses[i]}


def odd_asking(joules: Floats) -> dict[int, str]:
    """Which client's claim of what being asked has cost it makes up the fleet's sum, in words."""
    if np.count_nonzero(joules) < _FEW:  # a fleet may have one device that says it
        return {}
    found = np.flatnonzero(joules > _FAR * (joules.sum() - joules)).tolist()
    said = "says that being asked has cost it"
    return {client: f"it {said} {joules[client]:g} J, {_FAR:g} times all others together or more" for client in found}


def _median(values: Floats, weights: Floats) -> float:
    """By weight. Of two values in the middle, the one nearer to 0: the other one may be a liar's."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    half, last = sums[-1] / 2.0, len(values) - 1
    lower, upper = (values[order[min(int(np.searchsorted(sums, half * (1.0 + slip))), last)]] for slip in (-1e-9, 1e-9))
    return float(min(lower, upper, key=abs))
