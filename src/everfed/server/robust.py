"""Defences: what the server puts in the place of the weighted sum of updates, so that a few attackers cannot steer it.

Participant i of a round has the coefficient c_i that the server rule gives it (its share times its scale, for a sum),
and W = sum of c_i. A defence that is a centre m replaces sum of c_i delta_i by W m, where m is a weighted median, a
trimmed mean, ... of the delta_i with weights c_i: equal updates give the plain sum. What an attacker needs is therefore
a part of the round's weight W, whatever the number of participants. No defence is unbiased: the expectation of a median
is not the median of expectations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from everfed import registry
from everfed.arrays import Floats, Ints
from everfed.checks import Checked, Count, Positive

# Weights that add up to the same in another order differ in their last bits.
_SAME = 1e-9
# Numbers worked on at once by what goes coordinate by coordinate: temporaries are in float64.
_BLOCK = 1 << 20

Part = Annotated[float, "[0, 0.5)"]


class Guard(Protocol):
    """A defence at work in one run."""

    def combine(self, round: int, updates: Tensor, weights: Floats, plain: Tensor) -> Tensor:
        """The round's update. updates: [k, parameters], k >= 1, all finite; weights: [k], not negative, not all 0.

        plain: sum of weight * update, to return as it is where there is nothing to change.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class Defence(Protocol):
    """The protocol of the defences in `DEFENCES`."""

    def start(self) -> Guard:
        """The state of the defence in one run."""
        ...


@dataclass(frozen=True)
class NoDefence:
    """The plain sum."""

    def start(self) -> Guard:
        raise AssertionError("the server does not ask what is not there")


class Centre(Checked):
    """Base of defences without state: the weighted mean of updates is replaced by another `centre` of them."""

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        """A point among the updates [k, parameters]; weights: [k] in float64, with sum 1."""
        raise NotImplementedError

    def start(self) -> Guard:
        return self

    def combine(self, round: int, updates: Tensor, weights: Floats, plain: Tensor) -> Tensor:
        total = float(weights.sum())
        parts = torch.from_numpy(weights / total).to(updates.device)
        return (self.centre(updates, parts) * total).to(plain.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


@dataclass(frozen=True)
class CoordinateMedian(Centre):
    """The weighted median of every coordinate: half of the weight lies on either side of it.

    Where exactly half does, it is the middle between two values, so that two participants of equal weight give their
    mean; of two unequal ones, the heavier decides. Attackers with less than half of the round's weight stay between the
    honest values of each coordinate.
    """

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        return _by_coordinate(updates, weights, _middle)


@dataclass(frozen=True)
class TrimmedMean(Centre):
    """In every coordinate, the weighted mean of what is left without the lowest and the highest `trim` of the weight.

    An update at the edge counts with the rest of its weight, so that few participants are no special case: one alone is
    returned as it is. Attackers with less than `trim` of the round's weight stay between the honest values.

    trim: the part of the weight that is left out at either end.
    """

    trim: Part = 0.2

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        def left(values: Tensor, weights: Tensor, after: Tensor) -> Tensor:
            kept = after.clamp(max=1.0 - self.trim) - (after - weights).clamp(min=self.trim)
            kept = kept.clamp(min=0.0)
            return (kept * values).sum(0) / kept.sum(0)

        return _by_coordinate(updates, weights, left)


@dataclass(frozen=True)
class GeometricMedian(Centre):
    """The point with the least weighted sum of distances to the updates, by smoothed Weiszfeld steps (Pillutla et al.,
    2022), from the median of the coordinates.

    Attackers with less than half of the round's weight cannot move it far; unlike the median of the coordinates it does
    not depend on the axes. Distances below `smoothing` times the median length of the updates count as that long.

    steps: of the iteration.
    smoothing: the least distance, as a part of the median length.
    """

    steps: Count = 30
    smoothing: Positive = 1e-6

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        lengths = _lengths(updates)
        least = self.smoothing * float(weighted_median(lengths, weights))
        if least == 0.0:
            least = torch.finfo(torch.float32).tiny
        point = CoordinateMedian().centre(updates, weights)
        for _ in range(self.steps):
            pull = weights / _lengths(updates - point).clamp(min=least)
            before, point = point, ((pull / pull.sum()) @ updates.double()).to(updates.dtype)
            if float((point - before).norm()) <= least:
                break
        return point


@dataclass(frozen=True)
class Krum(Centre):
    """Krum (Blanchard et al., NeurIPS 2017), by weight: the one update with the nearest neighbours.

    An update's score is the sum of weight * squared distance to the updates nearest to it, itself included, that
    make up 1 - `attackers` of the round's weight. The least score wins; equal ones, such as two participants of
    equal weight, are averaged. It holds against attackers with less than that part of the weight, if the honest agree.

    attackers: the part of the weight that may be theirs.
    """

    attackers: Part = 0.2

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        return self._mean_of_best(updates, weights, 0.0)

    def _mean_of_best(self, updates: Tensor, weights: Tensor, part: float) -> Tensor:
        """The weighted mean of the updates of least score that make up this part of the weight, at least the best."""
        scores = _scores(updates, weights, 1.0 - self.attackers)
        values, order = scores.sort()
        # Equal scores are one class: it comes in as a whole, or all its members in the same proportion.
        new = torch.ones_like(order, dtype=torch.bool)
        new[1:] = values[1:] > values[:-1] * (1.0 + _SAME)
        classes = torch.cumsum(new, 0) - 1
        heavy = torch.zeros_like(weights).index_add_(0, classes, weights[order])
        before = heavy.cumsum(0) - heavy
        taken = ((part - before) / torch.where(heavy > 0.0, heavy, 1.0)).clamp(0.0, 1.0)
        taken[0] = max(float(taken[0]), _SAME)  # the best, however little is asked for
        kept = torch.zeros_like(weights)
        kept[order] = weights[order] * taken[classes]
        if not float(kept.sum()) > 0.0:  # the best have no weight
            kept = weights
        return ((kept / kept.sum()) @ updates.double()).to(updates.dtype)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Multi-Krum: the weighted mean of the updates of least score (see `Krum`) that make up 1 - `attackers` of the
    round's weight."""

    def centre(self, updates: Tensor, weights: Tensor) -> Tensor:
        return self._mean_of_best(updates, weights, 1.0 - self.attackers)


@dataclass(frozen=True)
class LearntClip(Checked):
    """The plain sum, of updates whose weighted length c_i |delta_i| is cut to `factor` times what is usual.

    Usual is the median of the weighted lengths, before any cut, of the last `window` rounds that had participants; in
    the first round, of that round. Each counts by its weight, so that attackers with less than half of the weight over
    these rounds do not set it, and rare clients, whose lengths are the greatest, are not the exception by definition.

    factor: times the usual length, beyond which an update is cut.
    """

    factor: Positive = 4.0
    window: Count = 40  # rounds; two of the longest cycles see everybody

    def start(self) -> Guard:
        return _Clipping(self.factor, self.window)


class _Clipping:
    def __init__(self, factor: float, window: int) -> None:
        self.factor, self.window = factor, window
        self.rounds: Ints = np.zeros(0, np.int64)  # of each length
        self.lengths, self.weights = np.zeros(0), np.zeros(0)

    def combine(self, round: int, updates: Tensor, weights: Floats, plain: Tensor) -> Tensor:
        lengths = weights * _lengths(updates).cpu().numpy()
        known = (self.lengths, self.weights) if self.weights.sum() > 0.0 else (lengths, weights)
        bound = self.factor * float(weighted_median(*map(torch.from_numpy, known)))
        self._note(round, lengths, weights)
        if not np.any(lengths > bound):
            return plain
        cut = weights * np.minimum(1.0, bound / np.where(lengths > 0.0, lengths, 1.0))
        return (torch.from_numpy(cut).to(updates) @ updates).to(plain.dtype)

    def _note(self, round: int, lengths: Floats, weights: Floats) -> None:
        self.rounds = np.append(self.rounds, np.full(len(lengths), round))
        self.lengths, self.weights = np.append(self.lengths, lengths), np.append(self.weights, weights)
        recent = np.isin(self.rounds, np.unique(self.rounds)[-self.window :])
        self.rounds, self.lengths, self.weights = self.rounds[recent], self.lengths[recent], self.weights[recent]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in ("rounds", "lengths", "weights")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.rounds, self.lengths, self.weights = (
            state[name].cpu().numpy().copy() for name in ("rounds", "lengths", "weights")
        )


DEFENCES: dict[str, type[Any]] = {
    "none": NoDefence,
    "clip": LearntClip,
    "median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
}
registry.table("robust", DEFENCES, Defence)


def _lengths(updates: Tensor) -> Tensor:
    """In float64: the square of a large float32 is no float32."""
    lengths: Tensor = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    return lengths


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Of numbers [k]; weights: [k], not all 0."""
    ordered, order = values.sort()
    sorted_weights = (weights / weights.sum())[order]
    return _middle(ordered[:, None], sorted_weights[:, None], sorted_weights.cumsum(0)[:, None])[0]


def _middle(values: Tensor, weights: Tensor, after: Tensor) -> Tensor:
    """The median of each column of ascending values; after: the weight up to and including each."""
    low = (after < 0.5 - _SAME).sum(0, keepdim=True)
    high = (after <= 0.5 + _SAME).sum(0, keepdim=True).clamp(max=len(values) - 1)
    # Half of each, since the sum of two may be too large for a float32.
    middle: Tensor = (values.gather(0, low) / 2 + values.gather(0, high) / 2)[0]
    return middle


def _by_coordinate(updates: Tensor, weights: Tensor, of_sorted: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """A function of (ascending values, their weights, weights up to and including each), block by block of columns."""
    width = max(1, _BLOCK // len(updates))
    parts = []
    for block in updates.split(width, dim=1):
        values, order = block.double().sort(dim=0)
        sorted_weights = weights[order]
        parts.append(of_sorted(values, sorted_weights, sorted_weights.cumsum(0)).to(updates.dtype))
    return torch.cat(parts)


def _scores(updates: Tensor, weights: Tensor, part: float) -> Tensor:
    """Krum's, [k]: weight times squared distance to the nearest that make up this part of the weight."""
    count = len(updates)
    squares = torch.zeros(count, count, dtype=torch.float64, device=updates.device)
    for block in updates.split(max(1, _BLOCK // count), dim=1):
        exact = block.double()
        lengths = (exact * exact).sum(1)
        squares += lengths[:, None] + lengths[None, :] - 2.0 * (exact @ exact.T)
    squares = squares.clamp(min=0.0).fill_diagonal_(0.0)
    squares = (squares + squares.T) / 2
    near, order = squares.sort(dim=1)
    theirs = weights[order]
    counted = (part - (theirs.cumsum(1) - theirs)).clamp(min=0.0).minimum(theirs)
    scores: Tensor = (counted * near).sum(1)
    return scores
