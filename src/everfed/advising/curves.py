"""Learning curves: a family of shapes, fitted to a few noisy evaluations, that says how little it knows.

Every shape is y = a + b f(x) with a fixed f that falls from 1 at x = 0, so a fit is two numbers and has a closed form:

    power        f = (1 + x/c)^-d
    exponential  f = exp(-x/c)
    complete     the power, with a fixed at the best value there can be
    flat         f = 0

for c and d on a grid. What a pilot cannot tell apart is kept: each shape counts by how well it fits, and a and b vary
as their covariance says. Residuals that follow one another count as fewer. Draws are a lattice and not random, so a
pilot always gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from everfed.arrays import Floats, Ints

DRAWS = 2000
_POWERS = (0.25, 0.5, 1.0, 2.0)
_SLOW = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0)
_SCALES = np.geomspace(0.01, 4.0, 30)  # of c, in lengths of the pilot
_MOST_CORRELATED = 0.9
# None of the shapes is the true one, so a better fit counts for less than if one were. Chosen, like the weights of
# kinds and of points, on stored runs: docs/results/expected.md.
_TRUST = 0.3
_WEIGHTS = {"power": 1.0, "exponential": 1.0, "complete": 3.0, "flat": 0.1}


@dataclass(frozen=True)
class Shape:
    """f, as a function of x in lengths of the pilot."""

    kind: str
    scale: float = 1.0
    power: float = 1.0

    def __call__(self, x: Floats) -> Floats:
        if self.kind in ("power", "complete"):
            return np.asarray((1.0 + x / self.scale) ** -self.power)
        if self.kind == "exponential":
            return np.asarray(np.exp(-x / self.scale))
        return np.zeros_like(x)


def family(best: float) -> Iterator[tuple[Shape, float]]:
    """Every shape and its weight before any point is seen.

    best: the best value there can be; if it is infinite, nothing is ever complete.
    """
    kinds = [
        [Shape("power", scale, power) for scale in _SCALES for power in _POWERS],
        [Shape("exponential", scale) for scale in _SCALES],
        [Shape("complete", scale, power) for scale in _SCALES for power in _SLOW] if np.isfinite(best) else [],
        [Shape("flat")],
    ]
    for kind in kinds:
        yield from ((shape, _WEIGHTS[shape.kind] / len(kind)) for shape in kind)


@dataclass(frozen=True)
class _Fit:
    shape: Shape
    prior: float
    a: float
    b: float
    covariance: Floats  # of (a, b), for residuals of variance 1
    residuals: Floats
    squares: float  # weighted


@dataclass(frozen=True, eq=False)
class Curves:
    """Curves that the points allow, each as likely as the next."""

    length: float  # of the pilot, in the unit of x
    shapes: list[Shape]
    chosen: Ints  # [draws] index of each draw's shape
    a: Floats
    b: Floats
    noise: float  # standard deviation of an evaluation about its curve, at the end of the pilot
    noises: Floats  # [draws] standard normal
    bounds: tuple[float, float]
    fitted: dict[str, float]  # how much each kind of shape counts

    def at(self, x: Floats | Sequence[float] | float, noisy: bool = False) -> Floats:
        """[draws, ...] the curves' values at x. noisy: as one evaluation would find them."""
        places = np.atleast_1d(np.asarray(x, np.float64)) / self.length
        values = np.array([shape(places) for shape in self.shapes])[self.chosen]
        found = self.a[:, None] + self.b[:, None] * values
        if noisy:
            found = found + self.noise * self.noises[:, None]
        return np.asarray(np.clip(found, *self.bounds))

    def each_at(self, x: Floats) -> Floats:
        """[draws] each curve at a place of its own."""
        f = np.empty(len(x))
        for i in np.unique(self.chosen):
            mine = self.chosen == i
            f[mine] = self.shapes[i](x[mine] / self.length)
        return np.asarray(np.clip(self.a + self.b * f, *self.bounds))


def fit(runs: Sequence[tuple[Floats, Floats]], rising: bool, bounds: tuple[float, float], draws: int = DRAWS) -> Curves:
    """The curves that some runs' points allow.

    runs: (x, y) of each. rising: whether y gets larger as it gets better. bounds: of y.
    """
    length = max(float(x[-1]) for x, _ in runs)
    x = np.concatenate([x for x, _ in runs]) / length
    y = np.concatenate([y for _, y in runs])
    # Early points say least of how it goes on.
    weights = np.maximum(x, 1.0 / len(x)) ** 2
    weights *= len(x) / weights.sum()
    limit = bounds[1] if rising else bounds[0]
    fits = [_fitted(shape, prior, limit, x, y, weights) for shape, prior in family(limit)]
    fits = [one for one in fits if _allowed(one, rising, bounds)]
    best = min(fits, key=lambda one: one.squares)
    ends = np.cumsum([len(x) for x, _ in runs])[:-1]
    told = _effective(np.split(best.residuals, ends))
    floor = 1e-12 + (1e-4 * float(np.ptp(y))) ** 2  # of a mean square: a perfect fit is still a guess
    squares = np.array([one.squares / len(x) + floor for one in fits])
    plausible = np.array([one.prior for one in fits]) * (squares / squares.min()) ** (-0.5 * _TRUST * told)
    plausible /= plausible.sum()
    u = _lattice(draws, 4)
    chosen = np.minimum(np.searchsorted(np.cumsum(plausible), u[0]), len(fits) - 1)
    z = ndtri(u[1:])
    # Points that follow one another say less, and two numbers were fitted.
    variances = squares * len(x) / max(told - 2.0, 1.0)
    roots = np.array([_root(one.covariance) for one in fits])
    centres = np.array([(one.a, one.b) for one in fits])
    spread = np.einsum("dij,jd->di", roots[chosen], z[:2]) * np.sqrt(variances[chosen])[:, None]
    a, b = (centres[chosen] + spread).T
    flat = np.array([one.shape.kind == "flat" for one in fits])[chosen]
    b = np.where(flat, 0.0, np.minimum(b, 0.0) if rising else np.maximum(b, 0.0))
    a = np.clip(a, *bounds)
    late = np.concatenate([part[len(part) // 2 :] for part in np.split(best.residuals, ends)])
    kinds: dict[str, float] = {}
    for one, weight in zip(fits, plausible, strict=True):
        kinds[one.shape.kind] = kinds.get(one.shape.kind, 0.0) + float(weight)
    noise = float(np.sqrt(np.mean(late**2)))
    return Curves(length, [one.shape for one in fits], chosen, a, b, noise, z[2], bounds, kinds)


def _fitted(shape: Shape, prior: float, limit: float, x: Floats, y: Floats, weights: Floats) -> _Fit:
    f = shape(x)
    covariance: Floats = np.zeros((2, 2))
    if shape.kind == "flat":
        a, b = float(np.average(y, weights=weights)), 0.0
        covariance[0, 0] = 1.0 / weights.sum()
    elif shape.kind == "complete":
        covariance[1, 1] = 1.0 / float((weights * f**2).sum())
        a, b = limit, covariance[1, 1] * float((weights * f * (y - limit)).sum())
    else:
        columns = np.stack([np.ones_like(x), f], axis=1)
        normal = columns.T @ (weights[:, None] * columns) + 1e-9 * np.eye(2)  # all points may be at one place
        covariance = np.asarray(np.linalg.inv(normal), np.float64)
        a, b = covariance @ columns.T @ (weights * y)
    residuals = y - a - b * f
    return _Fit(shape, prior, float(a), float(b), covariance, residuals, float((weights * residuals**2).sum()))


def _root(covariance: Floats) -> Floats:
    """A lower triangle whose square it is; unlike Cholesky's, also where a variance is 0."""
    first = np.sqrt(covariance[0, 0])
    across = covariance[1, 0] / first if first else 0.0
    return np.array([[first, 0.0], [across, np.sqrt(max(covariance[1, 1] - across**2, 0.0))]])


def _allowed(one: _Fit, rising: bool, bounds: tuple[float, float]) -> bool:
    """Whether a fitted curve gets better, and towards a value that there can be."""
    if one.shape.kind == "flat":
        return True
    better = one.b <= 0.0 if rising else one.b >= 0.0
    return better and bounds[0] <= one.a <= bounds[1]


def _effective(residuals: Sequence[Floats]) -> float:
    """How many independent points the residuals are worth: m (1 - r) / (1 + r) with the correlation r of neighbours."""
    products = sum(float((part[1:] * part[:-1]).sum()) for part in residuals)
    squares = sum(float((part**2).sum()) for part in residuals)
    r = min(max(products / squares, 0.0), _MOST_CORRELATED) if squares else 0.0
    return max(sum(map(len, residuals)) * (1.0 - r) / (1.0 + r), 2.0)


def _lattice(points: int, dimensions: int) -> Floats:
    """[dimensions, points] evenly spread in the unit cube: multiples of powers of the generalised golden ratio."""
    root = 1.5
    for _ in range(50):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1.0)
    return np.asarray((0.5 + np.outer(steps, np.arange(1.0, points + 1.0))) % 1.0).clip(1e-6, 1 - 1e-6)
