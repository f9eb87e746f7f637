"""Server optimisers. Each composes with any server rule.

A server rule computes the update u, which FedAvg would add to the parameters. An optimiser treats it as a (negative)
gradient: `step` returns the step that is added instead. One that is linear in u (SGD, momentum) keeps a rule's
unbiasedness. The adaptive ones do not: they divide by the size of past updates, which noise makes larger, so that
coordinates which only rare clients move get smaller steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from everfed import registry
from everfed.checks import BelowOne, Checked, Positive

State = dict[str, Tensor]


class ServerOptimizer(Protocol):
    """The protocol of the server optimisers in `SERVER_OPTIMIZERS`."""

    linear: ClassVar[bool]  # whether it keeps an unbiased update unbiased

    def init(self, size: int, device: torch.device) -> State: ...

    def step(self, update: Tensor, state: State) -> Tensor:
        """The step that is added to the parameters; changes the state in place, and may change the update."""
        ...


@dataclass(frozen=True)
class ServerSGD(Checked):
    """w + lr * u. lr = 1 is Algorithm 1 as published; a smaller lr is the simplest way to reduce noise.

    lr: what the sum of updates is multiplied by.

    >>> import everfed as ef
    >>> ef.Experiment(server_optimizer=ef.ServerSGD(lr=0.5)).server_optimizer.lr
    0.5
    """

    linear: ClassVar[bool] = True
    lr: Positive = 1.0

    def init(self, size: int, device: torch.device) -> State:
        return {}

    def step(self, update: Tensor, state: State) -> Tensor:
        return update if self.lr == 1.0 else update.mul_(self.lr)


@dataclass(frozen=True)
class ServerMomentum(Checked):
    """FedAvgM (Hsu et al., 2019): m <- beta m + u, w + lr * m.

    In the long run it moves by lr / (1 - beta) times the updates, so lr = 1 - beta keeps the step size of plain
    averaging. It averages the noise of participation over 1 / (1 - beta) rounds; for the full benefit, this should be
    at least the longest cycle.

    lr: what the velocity is multiplied by.
    beta: how much of the velocity stays from round to round.

    >>> import everfed as ef
    >>> ef.Experiment(server_optimizer=ef.ServerMomentum(lr=0.05, beta=0.95)).server_optimizer.beta
    0.95
    """

    linear: ClassVar[bool] = True
    lr: Positive = 0.1
    beta: BelowOne = 0.9

    def init(self, size: int, device: torch.device) -> State:
        return {"momentum": torch.zeros(size, device=device)}

    def step(self, update: Tensor, state: State) -> Tensor:
        return state["momentum"].mul_(self.beta).add_(update) * self.lr


@dataclass(frozen=True)
class _Adaptive(Checked, ABC):
    """m <- beta1 m + (1 - beta1) u; v by the rule's own law; w + lr * m / (sqrt(v) + tau).

    Reddi et al., ICLR 2021. v starts at tau^2; tau bounds how much small updates are amplified.
    """

    linear: ClassVar[bool] = False
    lr: Positive = 0.1  # the length of a step, per coordinate
    beta1: BelowOne = 0.9  # how much of the mean stays from round to round
    tau: Positive = 1e-3  # bounds how much small updates are amplified

    def init(self, size: int, device: torch.device) -> State:
        start = torch.full((size,), self.tau**2, device=device)
        return {"mean": torch.zeros(size, device=device), "square": start}

    def step(self, update: Tensor, state: State) -> Tensor:
        mean, square = state["mean"].lerp_(update, 1.0 - self.beta1), state["square"]
        self._track(square, update * update)
        return self.lr * mean / (square.sqrt() + self.tau)

    @abstractmethod
    def _track(self, square: Tensor, now: Tensor) -> None:
        """Update v with the squares of this round's update."""


@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) u^2, w + lr * m / (sqrt(v) + tau) (Reddi et al., ICLR 2021).

    Not for fleets whose rare clients hold distinct data: their coordinates are noisy, so Adam takes smaller steps
    there, which undoes part of the scale that makes Algorithm 1 unbiased.

    beta2: how much of the squares stays from round to round.

    >>> import everfed as ef
    >>> ef.Experiment(server_optimizer=ef.ServerAdam(lr=0.03)).server_optimizer.lr
    0.03
    """

    beta2: BelowOne = 0.99

    def _track(self, square: Tensor, now: Tensor) -> None:
        square.lerp_(now, 1.0 - self.beta2)


@dataclass(frozen=True)
class ServerYogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) u^2 sign(v - u^2), else as FedAdam: v grows fast and shrinks slowly.

    Not for fleets whose rare clients hold distinct data; see `ServerAdam`.

    beta2: how much of the squares stays from round to round.

    >>> import everfed as ef
    >>> ef.Experiment(server_optimizer=ef.ServerYogi(lr=0.03)).server_optimizer.lr
    0.03
    """

    beta2: BelowOne = 0.99

    def _track(self, square: Tensor, now: Tensor) -> None:
        square.sub_((1.0 - self.beta2) * now * torch.sign(square - now))


@dataclass(frozen=True)
class ServerAdaGrad(_Adaptive):
    """FedAdagrad: v <- v + u^2, w + lr * m / (sqrt(v) + tau): steps only ever shrink.

    Not for long runs, nor for fleets whose rare clients hold distinct data.

    beta1: how much of the mean stays from round to round.

    >>> import everfed as ef
    >>> ef.Experiment(server_optimizer=ef.ServerAdaGrad(lr=0.03)).server_optimizer.lr
    0.03
    """

    beta1: BelowOne = 0.0

    def _track(self, square: Tensor, now: Tensor) -> None:
        square.add_(now)


SERVER_OPTIMIZERS: dict[str, type[Any]] = {
    "sgd": ServerSGD,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
    "yogi": ServerYogi,
    "adagrad": ServerAdaGrad,
}
registry.table("server_optimizer", SERVER_OPTIMIZERS, ServerOptimizer)
