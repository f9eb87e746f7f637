"""Client optimisers and learning-rate schedules, as plain values.

An optimiser updates a matrix [clients, parameters] in place, one row per client. Its state is a
dict of tensors whose first axis is the clients, so that it can be gathered and scattered by row.
`as_torch` gives the same rule for one client from torch.optim: the reference trainer uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from everfed import registry
from everfed.checks import BelowOne, Checked, Fraction, NonNegative, Positive

State = dict[str, Tensor]


class Schedule(Protocol):
    """A factor of the learning rate at local iteration t = round * local_steps + step."""

    def factor(self, iteration: int, total: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate for the whole run.

    >>> Constant().factor(3, 10)
    1.0
    """

    def factor(self, iteration: int, total: int) -> float:
        return 1.0


@dataclass(frozen=True)
class InverseTime(Checked):
    """gamma / (gamma + t). With lr = 2 / (mu * gamma), the step size 2 / (mu (gamma + t)) of the theorem.

    gamma: steps after which the rate has halved.

    >>> InverseTime(gamma=10.0).factor(10, 1000)
    0.5
    """

    gamma: Positive = 100.0

    def factor(self, iteration: int, total: int) -> float:
        return self.gamma / (self.gamma + iteration)


@dataclass(frozen=True)
class Cosine(Checked):
    """From 1 down to `final` along half a cosine over the whole run.

    final: the fraction of the rate that is left at the end.

    >>> Cosine(final=0.0).factor(5, 10)
    0.5
    """

    final: Fraction = 0.1

    def factor(self, iteration: int, total: int) -> float:
        progress = iteration / max(total, 1)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, type[Any]] = {"constant": Constant, "inverse-time": InverseTime, "cosine": Cosine}
registry.table("schedule", SCHEDULES, Schedule)


class Optimizer(Protocol):
    """The protocol of the client optimisers in `OPTIMIZERS`."""

    @property
    def lr(self) -> float: ...

    @property
    def schedule(self) -> Schedule: ...

    def init(self, rows: int, size: int, device: torch.device) -> State: ...

    def step(self, params: Tensor, grads: Tensor, state: State, lr: float | Tensor) -> None:
        """lr: one number, or [C, 1] where clients began at different times."""
        ...

    def as_torch(self, params: Iterable[Tensor]) -> torch.optim.Optimizer: ...


def rate(optimizer: Optimizer, iteration: int, total: int) -> float:
    """The learning rate at a local iteration of a run of `total` iterations."""
    return optimizer.lr * optimizer.schedule.factor(iteration, total)


@dataclass(frozen=True)
class SGD(Checked):
    """Gradient descent, optionally with momentum (velocity = momentum * velocity + gradient).

    lr: the learning rate, before the schedule.
    momentum: how much of the velocity stays from step to step; 0: none.
    weight_decay: adds weight_decay * w to the gradient.
    schedule: what the rate is multiplied by in the course of the run.

    >>> import everfed as ef
    >>> ef.SGD(0.2, schedule=ef.Cosine(final=0.1))
    SGD(lr=0.2, momentum=0.0, weight_decay=0.0, schedule=Cosine(final=0.1))
    """

    lr: Positive = 0.1
    momentum: BelowOne = 0.0
    weight_decay: NonNegative = 0.0
    schedule: Schedule = Constant()

    def init(self, rows: int, size: int, device: torch.device) -> State:
        return {"velocity": torch.zeros(rows, size, device=device)} if self.momentum else {}

    def step(self, params: Tensor, grads: Tensor, state: State, lr: float | Tensor) -> None:
        if self.weight_decay:
            grads = grads.add(params, alpha=self.weight_decay)
        if self.momentum:
            grads = state["velocity"].mul_(self.momentum).add_(grads)
        if isinstance(lr, Tensor):
            params.sub_(grads * lr)
        else:
            params.sub_(grads, alpha=lr)

    def as_torch(self, params: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Adam(Checked):
    """Adam (Kingma & Ba, 2015), with torch's bias correction and coupled weight decay.

    With kept state every client has its own moments and step count.

    lr: the learning rate, before the schedule.
    beta1: how much of the mean gradient stays from step to step.
    beta2: how much of the mean square stays.
    eps: added to the root of the mean square.
    weight_decay: adds weight_decay * w to the gradient.
    schedule: what the rate is multiplied by in the course of the run.

    >>> import everfed as ef
    >>> ef.Adam(1e-3).beta1
    0.9
    """

    lr: Positive = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    schedule: Schedule = Constant()

    def init(self, rows: int, size: int, device: torch.device) -> State:
        return {
            "mean": torch.zeros(rows, size, device=device),
            "square": torch.zeros(rows, size, device=device),
            "count": torch.zeros(rows, device=device),
        }

    def step(self, params: Tensor, grads: Tensor, state: State, lr: float | Tensor) -> None:
        if self.weight_decay:
            grads = grads.add(params, alpha=self.weight_decay)
        count = state["count"].add_(1.0)
        mean = state["mean"].lerp_(grads, 1.0 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(grads, grads, value=1.0 - self.beta2)
        # float64 for the powers: 1 - beta2**1 loses half its digits in float32.
        double = count.to(torch.float64)
        correction1 = (1.0 - self.beta1**double).to(torch.float32)[:, None]
        correction2 = (1.0 - self.beta2**double).sqrt().to(torch.float32)[:, None]
        denominator = square.sqrt().div_(correction2).add_(self.eps)
        params.addcdiv_(mean * (-lr / correction1), denominator)

    def as_torch(self, params: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            params, lr=1.0, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )


OPTIMIZERS: dict[str, type[Any]] = {"sgd": SGD, "adam": Adam}
registry.table("client", OPTIMIZERS, Optimizer)
