"""Common parts of all trainers: the task, the minibatches, the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from everfed.arrays import Floats, Inputs, Ints, each
from everfed.data.federated import FederatedData
from everfed.data.plain import solid
from everfed.learning.gradients import GradientRule
from everfed.learning.layout import Layout
from everfed.learning.objectives import Loss as Loss
from everfed.learning.optim import Optimizer, rate
from everfed.machine import free_memory
from everfed.random import Purpose, philox


class CannotTrainError(Exception):
    """The trainer does not support the task; the message gives the reason."""


@dataclass(frozen=True)
class Check:
    """The result of comparing a trainer with plain autograd."""

    clients: tuple[int, ...] = ()  # who was trained
    difference: float | None = None  # the largest of their updates and their sum, relative; None: not compared
    tolerance: float | None = None
    failure: str = ""  # what is wrong, as the rest of a sentence about the trainer; empty if nothing is
    note: str = ""  # what was left out, and why
    rejected: tuple[str, ...] = ()  # faster trainers that failed, and how

    def to_dict(self) -> dict[str, Any]:
        """For a run's records: JSON has no infinity."""
        return {name: _plain(value) for name, value in asdict(self).items() if name != "failure"}

    def said(self) -> str:
        """For people."""
        if self.difference is None:
            return f"not compared with plain autograd: {self.note}"
        who = " and ".join(map(str, self.clients))
        more = f"; {self.note}" if self.note else ""
        off, most = in_words(self.difference), in_words(self.tolerance)
        return f"{off} off plain autograd for client {who} (at most {most}){more}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return "infinite" if isinstance(value, float) and not math.isfinite(value) else value


def in_words(part: float | None) -> str:
    """As a percentage with two digits."""
    return "infinitely far" if part is None or math.isinf(part) else f"{100.0 * part:.2g} %"


# Without a budget from the user: this fraction of the free memory on a GPU. On a CPU a fixed amount, since larger
# chunks gain nothing there and chunks decide the last bits of sums; if that is not free, a half of it, a quarter, ...
_PART_OF_FREE = 0.5
CPU_CEILING = 2 << 30
_LEAST = 64 << 20
# For the drawing of one sample: random words, twice, and its number.
DRAW_BYTES = 24


def budget(task: Task) -> int:
    """Bytes for the participants that are trained at once."""
    return free_budget(task.data.device) if task.memory_budget is None else task.memory_budget


def free_budget(device: torch.device) -> int:
    """The budget without a word from the user."""
    if device.type == "cuda":
        return int(free_on(device) * _PART_OF_FREE)
    room = CPU_CEILING
    while room > max(free_memory() * _PART_OF_FREE, _LEAST):
        room //= 2
    return room


def free_on(device: torch.device) -> int:
    """Bytes of memory that are free on a device."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()


Starts = Callable[[Ints], Tensor]  # [C, parameters]: where these clients' training starts


@dataclass(frozen=True)
class Task:
    """Everything about local training that does not change from round to round."""

    module: nn.Module
    layout: Layout
    data: DeviceData
    loss: Loss
    optimizer: Optimizer
    local_steps: int
    batch_size: int
    keep_state: bool  # each client's optimiser state survives from one of its rounds to its next
    rounds: int  # for schedules that need the horizon
    seed: int
    memory_budget: int | None = None  # bytes for the clients trained at once; None: from what is free
    precision: str = "float32"  # of the forward and backward pass; parameters and updates stay float32
    gradients: tuple[GradientRule, ...] = ()  # what happens to gradients before the optimiser's step
    state_place: str = "device"  # or "disk": where the clients' optimiser state is kept
    most_at_once: int | None = None  # clients that buffers are made for at most; None: as memory allows
    starts: Starts | None = None  # None: all participants start from the server's parameters
    slots: int = 1  # how often a client may begin within a round; its works are then numbered through
    fewer_steps: bool = False  # whether clients may do fewer than all local steps
    devices: int = 1  # how many train at the same time, each in a thread with a task of its own
    draws: tuple[str, ...] = ()  # which of the generators that a process shares training was seen to draw from

    @property
    def iterations(self) -> int:
        return self.rounds * self.local_steps

    def rate(self, slot: int, step: int) -> float:
        """The learning rate of a local step."""
        round = slot // self.slots
        if self.slots > 1:  # works beyond what was expected in the last round have numbers of later ones
            round = min(round, self.rounds - 1)
        return rate(self.optimizer, round * self.local_steps + step, self.iterations)

    def start(self, params: Tensor, clients: Ints) -> Tensor:
        """Where these clients start, [C, parameters]; params: the server's."""
        return params.expand(len(clients), -1) if self.starts is None else self.starts(clients)


class Trained(Protocol):
    """Some participants' results. Chunks arrive in the order the participants were given.

    A chunk is valid until the next one is requested, since buffers are reused.
    """

    clients: Ints  # [C]
    losses: Tensor  # [C]: mean minibatch loss over the local steps

    @property
    def deltas(self) -> Tensor:
        """[C, parameters]: local parameters minus those that the client started from."""
        ...

    def weighted_sum(self, coefficients: Floats, skip: bool = False) -> tuple[Tensor, Tensor]:
        """(sum of coefficient * delta, [C] which participants' results are finite).

        skip: results that are not finite add nothing; otherwise the sum is not finite either.
        """
        ...


class PlainTrained:
    """Results as a matrix of updates, one row per participant."""

    def __init__(self, clients: Ints, deltas: Tensor, losses: Tensor) -> None:
        self.clients, self.deltas, self.losses = clients, deltas, losses

    def weighted_sum(self, coefficients: Floats, skip: bool = False) -> tuple[Tensor, Tensor]:
        finite = torch.isfinite(self.deltas.abs().amax(dim=1)) & torch.isfinite(self.losses)
        if skip:
            self.deltas[~finite] = 0.0
        return as_weights(coefficients, self.deltas.device) @ self.deltas, finite


class Trainer(Protocol):
    """Train participants from `task.start`, mostly the server's parameters; `TRAINERS` lists the ways to do it.

    Results do not depend on how participants are chunked, but for floating-point rounding.
    """

    check: Check | None  # how it compared with plain autograd; None if not compared

    @property
    def at_once(self) -> int:
        """The largest number of clients trained together."""
        ...

    def explain(self) -> list[str]:
        """How the model is trained and why so, one line per part."""
        ...

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        """round: one number, or one of each client that works in a time of its own. steps: of each (default: all)."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What clients keep from round to round, as tensors by name."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


def own_tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A contiguous copy on the device: kernels may read it from front to back, and the array may change afterwards."""
    return torch.tensor(solid(array), device=device)


def as_weights(coefficients: Floats, device: torch.device) -> Tensor:
    """The server's coefficients as a contiguous float32 tensor."""
    return own_tensor(np.asarray(coefficients, np.float32), device)


class DeviceData:
    """Federated data as tensors on the device that trains, all of them. `held.StreamedSamples` loads on demand."""

    whole: ClassVar[bool] = True  # whether every client's samples are there

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        self.device = device
        self.x = each(lambda part: own_tensor(part, device), data.x)
        self.y = own_tensor(data.y, device)
        self.order, self.starts = own_tensor(data.order, device), own_tensor(data.starts[:-1], device)
        self.augment = data.augment
        self.sizes = own_tensor(data.sizes(), device)

    def draw(self, clients: Tensor, first: int | Tensor, steps: int, batch: int, seed: int) -> Tensor:
        """Sample numbers [clients, steps, batch], drawn uniformly with replacement; good until the next draw.

        first: the local iteration of the first step, one for all or one of each client.

        A draw depends only on the seed, the client and the local iteration, so all methods with the same seed use the
        same minibatches, on any device.
        """
        return self._numbers(clients, self._within(clients, first, steps, batch, seed))

    def _within(self, clients: Tensor, first: int | Tensor, steps: int, batch: int, seed: int) -> Tensor:
        """Which of the client's own samples, from 0 on."""
        start = first[:, None, None] if isinstance(first, Tensor) and first.ndim else first
        iteration = start + torch.arange(steps, device=self.device)[None, :, None]
        block = torch.arange((batch + 3) // 4, device=self.device)
        counter = torch.broadcast_tensors(iteration, block, clients[:, None, None])
        words = philox((*counter, int(Purpose.BATCH)), (seed & 0xFFFFFFFF, seed >> 32))
        word = torch.stack(words, dim=-1).flatten(2)[:, :, :batch]
        within: Tensor = (word * self.sizes[clients][:, None, None]) >> 32
        return within

    def _numbers(self, clients: Tensor, within: Tensor) -> Tensor:
        """Where these samples lie in `x` and `y`."""
        return self.order[self.starts[clients][:, None, None] + within]

    def samples(self, numbers: Tensor, clients: Tensor, iteration: int | Tensor, seed: int) -> tuple[Inputs, Tensor]:
        """Inputs and labels of these samples [clients, batch], augmented on the device.

        As with the draws, an image's crop depends on the seed, the client, the iteration and its
        place in the batch alone.
        """
        labels = self.y[numbers]
        if not self.augment.random:
            return self._evaluated(numbers), labels
        images = self.x[numbers]  # of one input alone: several are not augmented
        place = torch.arange(numbers.shape[-1], device=self.device)
        when = iteration[:, None] if isinstance(iteration, Tensor) and iteration.ndim else iteration
        counter = torch.broadcast_tensors(torch.zeros_like(place) + when, place, clients[:, None])
        words = philox((*counter, int(Purpose.AUGMENT)), (seed & 0xFFFFFFFF, seed >> 32))
        # A user's augmentation may return a view; torch.func cannot batch every layout.
        return self.augment.train(images, torch.stack(words, dim=-1)).contiguous(), labels

    def _evaluated(self, numbers: Tensor) -> Inputs:
        return each(lambda part: self.augment.evaluate(part[numbers]).contiguous(), self.x)

    def inputs(self, count: int) -> Inputs:
        """A few samples as a model sees them, to try it on."""
        return self._evaluated(torch.arange(count, device=self.device) % len(self.y))

    def targets(self, count: int) -> Tensor:
        """The targets of the same samples."""
        return self.y[torch.arange(count, device=self.device) % len(self.y)]
