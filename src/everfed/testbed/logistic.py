"""L2-regularised multinomial logistic regression: strongly convex, on real data.

    F_i(w) = mean over client i's samples of cross entropy(W x + b, y) + mu |w|^2 / 2

The optimum has no formula, but Newton's method finds it to rounding: the Hessian is at hand.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from everfed.arrays import Floats, Ints
from everfed.data.dataset import Dataset
from everfed.data.datasets import load
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.testbed.problem import Problem

_MOST_STEPS = 100


def logistic(
    fleet: Fleet,
    split: str = "iid",
    *,
    mu: float = 0.1,
    batch_size: int = 10,
    pixels: int = 8,
    data: Dataset | None = None,
    seed: int = 0,
) -> Problem:
    """Logistic regression on the digits, started at 0.

    mu: coefficient of the L2 term, on weights and biases.
    pixels: side of the images; 4 and 2 average neighbouring pixels, which makes small problems.
    data: another data set than the digits.
    """
    if not mu > 0.0:
        raise InputError(f"mu is {mu}; the L2 coefficient must be positive, or the loss is not strongly convex.")
    federated = _shrunk(data or load("digits"), pixels).partition(len(fleet), split, fleet=fleet, seed=seed)
    x = federated.x.reshape(len(federated.x), -1).astype(np.float64)
    x = np.hstack([x, np.ones((len(x), 1))])
    models = [
        _Softmax(x[n], federated.y[n], federated.classes, mu)
        for n in (federated.samples_of(i) for i in range(len(federated)))
    ]
    whole = _Softmax(x, federated.y, federated.classes, mu)
    size = x.shape[1] * federated.classes
    optimum = whole.minimise(np.zeros(size))
    # One minimum a client; a client's own optimum can be far away, so each starts at the common one.
    minima = np.array([model.value(model.minimise(optimum)) for model in models])
    # |gradient of the cross entropy| <= sqrt(2) |x| for every sample, everywhere.
    squares = np.array([2.0 * np.square(model.x).sum(axis=1).mean() for model in models])
    curvature = mu + max(model.curvature() for model in models)
    steepest = max(model.steepest(optimum) for model in models)
    distance = float(np.linalg.norm(optimum))
    # Twice the way from the start, and room for eight first steps of 1 / (4 L) along the steepest sample.
    radius = 2.0 * (distance + steepest / curvature)
    furthest = distance + radius  # from the origin, where the L2 term pulls to
    module = nn.Sequential(nn.Flatten(), nn.Linear(x.shape[1] - 1, federated.classes))
    for parameter in module.parameters():
        nn.init.zeros_(parameter)

    def value(w: Floats) -> float:
        return whole.value(_joined(w, federated.classes))

    return Problem(
        name="logistic",
        data=federated,
        module=module,
        loss=F.cross_entropy,
        weight_decay=mu,
        batch_size=batch_size,
        start=np.zeros(size),
        optimum=_flat(optimum, federated.classes),
        minimum=whole.value(optimum),
        local_minima=minima,
        mu=mu,
        L=curvature,
        sample_smoothness=mu + 0.5 * float(np.square(x).sum(axis=1).max()),  # as `_Softmax.curvature`, of one sample
        G=float(np.max(np.sqrt(squares) + mu * furthest)),
        sigma=np.sqrt(squares / batch_size),
        radius=radius,
        steepest=steepest,
        value=value,
    )


class _Softmax:
    """The loss of some samples, with gradient and Hessian; w is [classes, inputs + 1], flattened."""

    def __init__(self, x: Floats, y: Ints, classes: int, mu: float) -> None:
        self.x, self.y, self.classes, self.mu = x, y, classes, mu

    def _scores(self, w: Floats) -> tuple[Floats, Floats]:
        """(log of the summed exponentials [n], scores [n, classes])."""
        scores = self.x @ w.reshape(self.classes, -1).T
        top = scores.max(axis=1)
        return top + np.log(np.exp(scores - top[:, None]).sum(axis=1)), scores

    def value(self, w: Floats) -> float:
        total, scores = self._scores(w)
        return float((total - scores[np.arange(len(self.y)), self.y]).mean() + 0.5 * self.mu * w @ w)

    def _residuals(self, w: Floats) -> tuple[Floats, Floats]:
        """(chances [n, classes], the same minus 1 at the label)."""
        total, scores = self._scores(w)
        chances = np.exp(scores - total[:, None])
        residuals = chances.copy()
        residuals[np.arange(len(self.y)), self.y] -= 1.0
        return chances, residuals

    def gradient(self, w: Floats) -> Floats:
        _, residuals = self._residuals(w)
        slope: Floats = (residuals.T @ self.x / len(self.x)).reshape(-1) + self.mu * w
        return slope

    def hessian(self, w: Floats) -> Floats:
        chances, _ = self._residuals(w)
        inputs = self.x.shape[1]
        blocks = np.empty((self.classes, inputs, self.classes, inputs))
        for a in range(self.classes):
            for b in range(a, self.classes):
                weight = chances[:, a] * ((a == b) - chances[:, b]) / len(self.x)
                blocks[a, :, b] = blocks[b, :, a] = (self.x * weight[:, None]).T @ self.x
        out = blocks.reshape(self.classes * inputs, -1)
        out[np.diag_indices_from(out)] += self.mu
        return out

    def minimise(self, w: Floats, tolerance: float = 1e-10) -> Floats:
        """Newton's method, halving a step that does not descend; strong convexity makes |gradient| the error."""
        for _ in range(_MOST_STEPS):
            slope = self.gradient(w)
            if np.linalg.norm(slope) <= tolerance * self.mu:
                return w
            step = np.linalg.solve(self.hessian(w), slope)
            length, here = 1.0, self.value(w)
            while self.value(w - length * step) > here - 1e-4 * length * (slope @ step) + 1e-15 and length > 1e-10:
                length /= 2.0
            w = w - length * step
        raise RuntimeError(f"Newton's method did not reach a gradient of {tolerance * self.mu:g}")

    def curvature(self) -> float:
        """The Hessian's largest eigenvalue without the L2 term, at most, wherever w is.

        diag(q) - q q^T has no eigenvalue above 1/2 for chances q (Böhning, 1992).
        """
        return 0.5 * float(np.linalg.eigvalsh(self.x.T @ self.x / len(self.x))[-1])

    def steepest(self, w: Floats) -> float:
        """The longest gradient of any one sample."""
        _, residuals = self._residuals(w)
        pull = self.mu * w.reshape(self.classes, -1)
        slopes = residuals[:, :, None] * self.x[:, None, :] + pull
        return float(np.sqrt(np.square(slopes).sum(axis=(1, 2)).max()))


def _flat(w: Floats, classes: int) -> Floats:
    """From [classes, inputs + 1] to the simulator's order: all weights, then all biases."""
    table = w.reshape(classes, -1)
    return np.concatenate([table[:, :-1].reshape(-1), table[:, -1]])


def _joined(flat: Floats, classes: int) -> Floats:
    """The way back."""
    return np.hstack([flat[:-classes].reshape(classes, -1), flat[-classes:, None]]).reshape(-1)


def _shrunk(data: Dataset, pixels: int) -> Dataset:
    side = data.x.shape[-1]
    if side % pixels:
        raise InputError(f"pixels is {pixels}; images of {side}x{side} shrink to a divisor of {side}.")
    if pixels == side:
        return data

    def mean(x: Floats) -> Floats:
        return F.avg_pool2d(torch.as_tensor(x), side // pixels).numpy()

    return Dataset(data.name, mean(data.x), data.y, mean(data.test_x), data.test_y, data.classes, data.augment)
