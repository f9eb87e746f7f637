"""A package of a user's own with one kind of each sort; tests write it into folders, and never import it from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import everfed as ef
from everfed.data.augment import Plain
from everfed.data.dataset import Dataset
from everfed.energy.arrivals import Lump
from everfed.learning.batched import Batched
from everfed.learning.optim import Constant, Schedule
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Clients, Decision, Policy, State, View
from everfed.server.rules import ClientScales, PlainRule, Weighting


@ef.register("policy", "every-other")
@dataclass(frozen=True)
class EveryOther(Policy):
    """Trains in rounds of one parity, if there is energy."""

    parity: int = 0

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"ones": np.ones(clients.shape())}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords & (view.round % 2 == self.parity), state["ones"], state)


@ef.register("arrivals", "late-lump")
@dataclass(frozen=True)
class LateLump(Lump):
    """As lump, and nothing in the very first round."""

    regular: ClassVar[bool] = False

    def harvest(self, round, seed):
        return super().harvest(round, seed) * (round > 0)


@ef.register("server", "halved")
class Halved(PlainRule):  # without options, it need not be a dataclass
    """Half of every update."""

    def weighting(self, clients: int) -> Weighting:
        return HalfScales()


class HalfScales(ClientScales):
    def factors(self, round, clients, scales):
        return 0.5 * scales


@ef.register("server_optimizer", "slow")
@dataclass(frozen=True)
class Slow:
    linear: ClassVar[bool] = True
    lr: float = 0.9

    def init(self, size: int, device: torch.device) -> dict[str, Tensor]:
        return {}

    def step(self, update: Tensor, state: dict[str, Tensor]) -> Tensor:
        return self.lr * update


@ef.register("model", "one-layer")
@dataclass(frozen=True)
class OneLayer:
    bias: bool = True

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes, bias=self.bias))


@ef.register("data", "blobs")
@dataclass(frozen=True)
class Blobs:
    """Three clouds of points."""

    samples: int = 120

    def load(self) -> Dataset:
        chance = np.random.default_rng(0)
        y = np.arange(self.samples) % 3
        x = (chance.normal(size=(self.samples, 4)) + 2.0 * y[:, None]).astype(np.float32)
        return Dataset("blobs", x[30:], y[30:], x[:30], y[:30], classes=3)


@ef.register("split", "in-turn")
@dataclass(frozen=True)
class InTurn:
    def assign(self, labels, clients, seed, fleet):
        return np.arange(len(labels)) % clients


@ef.register("schedule", "halving")
@dataclass(frozen=True)
class Halving:
    def factor(self, iteration: int, total: int) -> float:
        return 0.5 if 2 * iteration > total else 1.0


@ef.register("client", "sign")
@dataclass(frozen=True)
class Sign:
    """Steps of one length in every parameter."""

    lr: float = 0.01
    schedule: Schedule = Constant()

    def init(self, rows: int, size: int, device: torch.device) -> dict[str, Tensor]:
        return {}

    def step(self, params: Tensor, grads: Tensor, state: dict[str, Tensor], lr: float) -> None:
        params.sub_(torch.sign(grads), alpha=lr)

    def as_torch(self, params: Iterable[Tensor]) -> torch.optim.Optimizer:
        return SignDescent(params, {"lr": 1.0})


class SignDescent(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(torch.sign(parameter.grad), alpha=group["lr"])


@ef.register("gradients", "doubled")
@dataclass(frozen=True)
class Doubled:
    def adjust(self, grads, params, start, clients):
        return 2.0 * grads


@ef.register("compression", "coarse")
@dataclass(frozen=True)
class Coarse:
    """Numbers rounded to a grid."""

    grid: float = 0.001

    def choices(self) -> tuple[int, ...]:
        return (16,)

    def size_ratio(self, bits: int) -> float:
        return 0.5

    def noise(self, bits: int) -> float:
        return 0.0

    def compress(self, deltas, bits, clients, round, seed):
        return torch.round(deltas / self.grid) * self.grid


@ef.register("augment", "shifted")
@dataclass(frozen=True)
class Shifted(Plain):
    by: float = 0.1


@ef.register("fleet", "pairs")
@dataclass(frozen=True)
class Pairs(CycleFleet):
    """Clients of cycles 1 and 2."""

    cycles: tuple[int, ...] = (1, 2)
    clients: int = 6


@ef.register("trainer", "my-batched")
class MyBatched(Batched):
    pass


@ef.register("metrics", "top-two")
def top_two(outputs: Tensor, targets: Tensor) -> Tensor:
    """How often the target is among the two largest outputs."""
    return (outputs.topk(2).indices == targets[:, None]).any(1).double().mean()


ef.register("method", "mine")(ef.Method(EveryOther(), Halved(), "every other round, halved"))
