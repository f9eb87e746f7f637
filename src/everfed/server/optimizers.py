"""Server optimisers: what the server does with a round's update. Each composes with any rule.

The update u, made by a server rule, is what FedAvg would add to the parameters. An optimiser treats
it as a (negative) gradient: `step` returns what is added instead. One that is linear in u (SGD,
momentum) keeps a rule's unbiasedness. The adaptive ones do not: they divide by the size of past
updates, which noise makes larger, so that coordinates which only rare clients move get smaller steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from everfed import registry
from everfed.checks import check_within

State = dict[str, Tensor]


class ServerOptimizer(Protocol):
    """The shape of every server optimiser; `SERVER_OPTIMIZERS` lists them."""

    linear: ClassVar[bool]  # whether it keeps an unbiased update unbiased

    def init(self, size: int, device: torch.device) -> State: ...

    def step(self, update: Tensor, state: State) -> Tensor:
        """What is added to the parameters; changes the state in place, and may change the update."""
        ...


@dataclass(frozen=True)
class ServerSGD:
    """w + lr * u. lr = 1 is Algorithm 1 as the paper has it; less is the simplest way to less noise."""

    linear: ClassVar[bool] = True
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_within("(0, inf)", lr=self.lr)

    def init(self, size: int, device: torch.device) -> State:
        return {}

    def step(self, update: Tensor, state: State) -> Tensor:
        return update if self.lr == 1.0 else update.mul_(self.lr)


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM (Hsu et al., 2019): m <- beta m + u, w + lr * m.

    In the long run it moves by lr / (1 - beta) times the updates, so lr = 1 - beta keeps the pace of
    plain averaging and only smooths it. It averages the noise of who takes part over 1 / (1 - beta) rounds;
    choose that at least as large as the longest cycle for the full benefit.
    """

    linear: ClassVar[bool] = True
    lr: float = 0.1
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_within("(0, inf)", lr=self.lr)
        check_within("[0, 1)", beta=self.beta)

    def init(self, size: int, device: torch.device) -> State:
        return {"momentum": torch.zeros(size, device=device)}

    def step(self, update: Tensor, state: State) -> Tensor:
        return state["momentum"].mul_(self.beta).add_(update) * self.lr


@dataclass(frozen=True)
class _Adaptive(ABC):
    """m <- beta1 m + (1 - beta1) u; v by the rule's own law; w + lr * m / (sqrt(v) + tau).

    Reddi et al., ICLR 2021. v starts at tau^2; tau bounds how far small updates are blown up.
    """

    linear: ClassVar[bool] = False
    lr: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_within("(0, inf)", lr=self.lr, tau=self.tau)
        check_within("[0, 1)", beta1=self.beta1)

    def init(self, size: int, device: torch.device) -> State:
        start = torch.full((size,), self.tau**2, device=device)
        return {"mean": torch.zeros(size, device=device), "square": start}

    def step(self, update: Tensor, state: State) -> Tensor:
        mean, square = state["mean"].lerp_(update, 1.0 - self.beta1), state["square"]
        self._track(square, update * update)
        return self.lr * mean / (square.sqrt() + self.tau)

    @abstractmethod
    def _track(self, square: Tensor, now: Tensor) -> None:
        """Bring v up to date with the squares of this round's update."""


@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) u^2, w + lr * m / (sqrt(v) + tau) (Reddi et al., ICLR 2021).

    Not where rare clients hold data of their own: their coordinates are noisy, so Adam slows them down
    and undoes part of the scale that makes Algorithm 1 unbiased.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("[0, 1)", beta2=self.beta2)

    def _track(self, square: Tensor, now: Tensor) -> None:
        square.lerp_(now, 1.0 - self.beta2)


@dataclass(frozen=True)
class ServerYogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) u^2 sign(v - u^2), else as FedAdam: v grows fast and shrinks slowly.

    Not where rare clients hold data of their own, for the reason given at `ServerAdam`.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("[0, 1)", beta2=self.beta2)

    def _track(self, square: Tensor, now: Tensor) -> None:
        square.sub_((1.0 - self.beta2) * now * torch.sign(square - now))


@dataclass(frozen=True)
class ServerAdaGrad(_Adaptive):
    """FedAdagrad: v <- v + u^2, w + lr * m / (sqrt(v) + tau): steps only ever shrink.

    Not for long runs, nor where rare clients hold data of their own.
    """

    beta1: float = 0.0

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
