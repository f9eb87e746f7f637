"""What runs in a Ray worker process: a share of each round's participants, trained on its own device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.errors import EverfedWarning
from everfed.learning.task import CPU_CEILING, Check
from everfed.machine import free_memory, total_memory
from everfed.ray.parcel import Parcel
from everfed.ray.state import Kept, merge_clients, split_clients
from everfed.run.experiment import Experiment
from everfed.run.setup import Setup


@dataclass(frozen=True)
class Order:
    """What one worker is to train in a round."""

    round: int
    clients: Ints
    coefficients: Floats | None  # None: send every update, not their weighed sum
    skip: bool
    kept: Kept | None  # the clients' state, where it travels; None: the worker has it


class Reply(NamedTuple):
    result: npt.NDArray[np.float32]  # the weighed sum, or the updates [C, parameters]
    losses: npt.NDArray[np.float32]
    finite: npt.NDArray[np.bool_]
    kept: Kept | None


class About(NamedTuple):
    """A worker's trainer: the most clients at once, how it trains, what its state looks like, how it was checked."""

    at_once: int
    explained: list[str]
    like: dict[str, Tensor]
    check: Check | None


class Worker:
    """A task of its own, made from the experiment: the same data, model and chance as everywhere."""

    def __init__(self, parcel: Parcel, neighbours: int) -> None:
        """parcel: the experiment. neighbours: workers that share this device's memory, this one included."""
        self.parcel, self.neighbours = parcel, neighbours

    def begin(self) -> About:
        """Set the task up, before anything else; returns what the trainer says of itself."""
        warnings.simplefilter("ignore", EverfedWarning)  # the driver has said them
        torch.set_num_threads(1)
        experiment: Experiment = self.parcel.open()
        room = _room(experiment.device, self.neighbours)
        setup = Setup(experiment)
        self.trainer, self.device = setup.trainer(memory_budget=room), setup.device
        self.like = self.trainer.state_dict()
        return About(self.trainer.at_once, self.trainer.explain(), self.like, self.trainer.check)

    def train(self, params: npt.NDArray[np.float32], order: Order) -> Reply:
        if order.kept is not None:
            self.trainer.load_state_dict(merge_clients(order.kept, self.like))
        results: list[Tensor] = []
        losses, finite, done = [], [], 0
        start = torch.tensor(params, device=self.device)
        for trained in self.trainer.train(start, order.clients, order.round):
            if order.coefficients is None:
                results.append(trained.deltas.cpu().clone())
            else:
                here = order.coefficients[done : done + len(trained.clients)]
                part, good = trained.weighted_sum(here, skip=order.skip)
                results = [results[0].add_(part) if results else part.clone()]
                finite.append(good.cpu())
            losses.append(trained.losses.cpu().clone())
            done += len(trained.clients)
        kept = None if order.kept is None else self.state(order.clients)
        whole = torch.cat(results) if order.coefficients is None else results[0]
        good = torch.cat(finite) if finite else torch.ones(0, dtype=torch.bool)
        return Reply(whole.cpu().numpy(), torch.cat(losses).numpy(), good.numpy(), kept)

    def repeat(self, params: npt.NDArray[np.float32], order: Order) -> None:
        """Train for the clients' state alone."""
        self.train(params, order)

    def state(self, clients: Ints) -> Kept:
        return split_clients(self.trainer.state_dict(), clients.tolist())

    def take(self, kept: Kept) -> None:
        """Add clients with what they keep."""
        self.trainer.load_state_dict(merge_clients({**split_clients(self.trainer.state_dict()), **kept}, self.like))


def _room(device: str, neighbours: int) -> int:
    """Bytes for the clients trained at once, from what the machine has: half of it, divided among the workers there.

    Chunks decide the last bits of sums, so what is free at the moment matters only if the budget would not fit.
    """
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        room = total // (2 * neighbours)
    else:
        free, room = free_memory(), min(CPU_CEILING, total_memory() // (2 * neighbours))
    while room > 0.75 * free:
        room //= 2
    return int(room)


def actor(ray: Any, parcel: Parcel, on_gpu: bool, neighbours: int) -> Any:
    """A worker somewhere on the cluster; its process ends with it, and Ray does not start it again by itself."""
    resources = {"num_cpus": 1, "num_gpus": 1 / neighbours} if on_gpu else {"num_cpus": 1}
    kind = ray.remote(**resources, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Worker)
    return kind.remote(parcel, neighbours)
