"""An optimiser of the same kind whose steps can be compared: neither lost in rounding nor far away."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from everfed.learning.optim import SGD, Adam, Constant, Optimizer

# How far a step moves the weights, relative to their length. A step of 1e-9 would drown in the rounding of
# the weights, and after one of 100 the second gradient has nothing to do with the first.
_MOVE = 0.01

# Adam divides by |g|, and so makes full steps of gradients that are rounding noise; not below this part of
# the largest one.
_ADAM_FLOOR = 0.1


def conditioned(optimizer: Optimizer, gradient: Tensor, weights: Tensor) -> Optimizer:
    """The run's rule with a rate, and Adam's eps, that suit this gradient. Rules that are not ours become SGD:
    it is gradients that are compared, and of the rule's own sensitivity nothing is known."""
    if not isinstance(optimizer, SGD | Adam):
        optimizer = SGD()
    gradient = gradient + optimizer.weight_decay * weights
    far = _MOVE * (float(weights.norm()) or 1.0)
    if not isinstance(optimizer, Adam):
        return replace(optimizer, lr=_rate(far, gradient), schedule=Constant())
    eps = _bounded(_ADAM_FLOOR * float(gradient.abs().max()))
    return replace(optimizer, eps=eps, lr=_rate(far, gradient / (gradient.abs() + eps)), schedule=Constant())


def _rate(far: float, direction: Tensor) -> float:
    length = float(torch.linalg.vector_norm(direction, dtype=torch.float64))
    return _bounded(far / length) if length else 1.0


def _bounded(value: float) -> float:
    """A positive number, whatever the gradient was: even if it is not finite, the comparison goes on."""
    return min(max(value, 1e-30), 1e30) if value == value else 1.0
