"""One description of a run: everything `everfed run` and `everfed compare` need, and nothing else."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from everfed.data import load
from everfed.data.federated import FederatedData
from everfed.data.partition import SPLITS
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, lookup
from everfed.learning.optim import OPTIMIZERS, SCHEDULES, Optimizer
from everfed.simulate import Simulation


@dataclass(frozen=True)
class Experiment:
    """The defaults are the comparison of `make compare`: digits, 40 clients, the paper's energy."""

    data: str = "digits"
    split: str = "by-energy"
    alpha: float = 0.3  # of the dirichlet split
    per: str = "client"  # of the dirichlet split
    strength: float = 1.0  # of the by-energy split
    clients: int = 40
    cycles: tuple[int, ...] = (1, 5, 10, 20)  # dealt round the clients: client i has cycle i mod 4
    offsets: tuple[int, ...] | None = None
    arrivals: str = "lump"
    capacity: float | None = None
    method: str = "algorithm1"
    model: str = "mlp"
    optimizer: str = "sgd"
    lr: float = 0.2
    schedule: str = "cosine"  # a decaying rate: the noise of unequal participation fades with it
    final_lr: float = 0.1  # of the cosine schedule, as a part of lr
    momentum: float = 0.0
    weight_decay: float = 0.0
    keep_state: bool = True
    rounds: int = 400
    local_steps: int = 5
    batch_size: int = 10
    eval_every: int | None = None
    seed: int = 0
    device: str = "auto"
    trainer: str = "batched"

    def fleet(self) -> Fleet:
        return build_fleet(self.clients, self.cycles, self.offsets, self.arrivals, self.capacity)

    def federated(self, fleet: Fleet) -> FederatedData:
        split = lookup(SPLITS, self.split, "split")
        accepted = inspect.signature(split).parameters
        options = {name: getattr(self, name) for name in ("alpha", "per", "strength") if name in accepted}
        return load(self.data).partition(self.clients, self.split, fleet=fleet, seed=self.seed, **options)

    def client_optimizer(self) -> Optimizer:
        kind = lookup(OPTIMIZERS, self.optimizer, "optimizer")
        options: dict[str, Any] = {"weight_decay": self.weight_decay}
        if self.momentum:
            if "momentum" not in inspect.signature(kind).parameters:
                raise InputError(f"momentum belongs to sgd; the optimizer is '{self.optimizer}'.")
            options["momentum"] = self.momentum
        optimizer: Optimizer = kind(lr=self._learning_rate(), **options)
        return optimizer

    def _learning_rate(self) -> Any:
        if self.schedule == "inverse-time":
            raise InputError("the inverse-time schedule takes mu and gamma; use it from Python.")
        kind = lookup(SCHEDULES, self.schedule, "schedule")
        return kind(self.lr, self.final_lr) if self.schedule == "cosine" else kind(self.lr)

    def simulation(self) -> Simulation:
        """The run, set up and ready to iterate over."""
        fleet = self.fleet()
        return Simulation(
            self.model,
            self.federated(fleet),
            fleet,
            self.method,
            rounds=self.rounds,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            client_optimizer=self.client_optimizer(),
            keep_optimizer_state=self.keep_state,
            eval_every=self.eval_every,
            seed=self.seed,
            device=self.device,
            trainer=self.trainer,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def build_fleet(
    clients: int,
    cycles: tuple[int, ...],
    offsets: tuple[int, ...] | None,
    arrivals: str,
    capacity: float | None,
) -> Fleet:
    """A fleet of `clients`, cycles dealt round them: client i has cycles[i mod len(cycles)]."""
    if clients < 1:
        raise InputError(f"clients is {clients}; a fleet needs at least 1.")
    if len(cycles) == 0:
        raise InputError("cycles is empty; give at least one, such as 1,5,10,20.")
    if len(cycles) > clients:
        raise InputError(f"{len(cycles)} cycles were given for {clients} clients; give at most one a client.")
    if offsets is not None and len(offsets) != len(cycles) and len(offsets) != clients:
        raise InputError(
            f"{len(offsets)} offsets were given for {len(cycles)} cycles and {clients} clients; "
            "give one a cycle, or one a client."
        )
    dealt = np.resize(np.asarray(cycles, np.float64), clients)
    starts = None if offsets is None else np.resize(np.asarray(offsets, np.float64), clients)
    return Fleet.from_cycles(dealt, starts, arrivals=arrivals, capacity=capacity)  # type: ignore[arg-type]
