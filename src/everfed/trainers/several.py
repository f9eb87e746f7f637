"""Several GPUs of one machine: each trains a part of the participants, in a thread of its own.

Every GPU has the samples, the model and a trainer like the first one's; results are brought together on the first GPU.
Clients whose optimiser keeps state stay with the GPU that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.errors import InputError
from everfed.learning.gradients import AddedRule, GradientRule
from everfed.learning.graphs import current
from everfed.learning.layout import copied
from everfed.learning.stored import as_rows, by_client
from everfed.learning.task import Check, DeviceData, PlainTrained, Starts, Task, Trained, Trainer
from everfed.trainers import choose

# What `auto` has taken, by name, so that the other GPUs take the same.
_NAMES = {"Kernels": "kernels", "Batched": "batched", "OneByOne": "one-by-one"}


def several(
    name: str, task: Task, check: bool, devices: Sequence[torch.device], samples: Callable[[torch.device], DeviceData]
) -> Trainer:
    """A trainer by its name on each of these devices; on one alone, the trainer itself.

    task: for the first device, on which the results are wanted. samples: the data on another one.
    """
    if len(devices) == 1:
        return choose.trainer(name, task, check)
    task = replace(task, devices=len(devices))
    lock = threading.Lock()

    def rules(device: torch.device) -> tuple[GradientRule, ...]:
        return tuple(_brought_rule(rule, devices[0], device, lock) for rule in task.gradients)

    with current(devices[0]):
        first = choose.trainer(name, replace(task, gradients=rules(devices[0])), check)
    same = _NAMES[type(first).__name__] if name == "auto" else name
    trainers = [first]
    for device in devices[1:]:
        there = replace(
            task,
            module=copied(task.module, device).to(device),
            data=samples(device),
            gradients=rules(device),
            starts=_brought_starts(task.starts, device),
        )
        try:
            with current(device):
                trainers.append(choose.trainer(same, there, check))
        except InputError as error:
            raise InputError(f"the device {device} cannot train like {devices[0]}; use gpus = 1. {error}") from error
    return Several(task, trainers, devices)


class Several:
    """Divides participants among trainers on devices of their own."""

    def __init__(self, task: Task, trainers: Sequence[Trainer], devices: Sequence[torch.device]) -> None:
        """task: the first trainer's, before it was divided."""
        self.task, self.trainers, self.devices = task, list(trainers), list(devices)
        self.check: Check | None = trainers[0].check
        self.keeps = task.keep_state and bool(task.optimizer.init(0, 0, task.data.device))
        # Which trainer has a client's state; -1: none yet. Saved, since it decides who is trained together.
        self.home = np.full(len(task.data.sizes), -1, np.int64)

    @property
    def at_once(self) -> int:
        return sum(trainer.at_once for trainer in self.trainers)

    def explain(self) -> list[str]:
        names = ", ".join(map(str, self.devices))
        return [f"participants: divided among {len(self.devices)} devices ({names})", *self.trainers[0].explain()]

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        where, begin = self._divided(clients), 0
        given = [params if place == 0 else params.to(device) for place, device in enumerate(self.devices)]
        while begin < len(clients):
            some = slice(begin, begin + self._together(where[begin:]))
            when = round if isinstance(round, int) else round[some]
            yield self._train_some(given, clients[some], where[some], when, None if steps is None else steps[some])
            begin = some.stop

    def _divided(self, clients: Ints) -> Ints:
        """Which trainer gets each participant: evenly in the order given, or where a client's state is.

        New clients go where there is least to do.
        """
        count = len(self.trainers)
        if not self.keeps:
            return self._in_turn(len(clients))
        where: Ints = self.home[clients].copy()
        busy = np.bincount(where[where >= 0], minlength=count)
        for place in np.flatnonzero(where < 0).tolist():
            where[place] = int(busy.argmin())
            busy[where[place]] += 1
        self.home[clients] = where
        return where

    def _in_turn(self, participants: int) -> Ints:
        """Neighbours to the same trainer, in as few blocks as there is room for, all of nearly the same size."""
        blocks = max(1, -(-participants // self.at_once))
        edges = [part * participants // blocks for part in range(blocks + 1)]
        sizes = [end - begin for begin, end in pairwise(edges)]
        return np.concatenate([np.arange(size) * len(self.trainers) // max(1, size) for size in sizes])

    def _together(self, where: Ints) -> int:
        """How many participants, from the first on, can be trained with one chunk on each device."""
        fits = len(where)
        for place, trainer in enumerate(self.trainers):
            there = np.flatnonzero(where == place)
            if len(there) > trainer.at_once:
                fits = min(fits, int(there[trainer.at_once]))
        return fits

    def _train_some(
        self, params: list[Tensor], clients: Ints, where: Ints, round: int | Ints, steps: Ints | None
    ) -> Trained:
        def work(place: int, here: Ints) -> Trained:
            when = round if isinstance(round, int) else round[here]
            few = None if steps is None else steps[here]
            with current(self.devices[place]):
                return _whole(self.trainers[place].train(params[place], clients[here], when, few), clients[here])

        places = [(place, np.flatnonzero(where == place)) for place in range(len(self.trainers))]
        # Threads for these participants alone: when an error or Ctrl-C leaves the block, it waits until nobody is
        # training, so that what clients keep does not change any more.
        with ThreadPoolExecutor(len(self.trainers), thread_name_prefix="everfed-gpu") as pool:
            begun = [(here, pool.submit(work, place, here)) for place, here in places if len(here)]
        return _Gathered(clients, [_Part(here, future.result()) for here, future in begun], params[0].device)

    def state_dict(self) -> dict[str, Tensor]:
        kept = {
            f"{place}.{name}": value
            for place, trainer in enumerate(self.trainers)
            for name, value in trainer.state_dict().items()
        }
        about = {"devices": torch.tensor(len(self.trainers)), "home": torch.from_numpy(self.home.copy())}
        return {**about, **kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        count = int(state.get("devices", torch.ones(())))
        if count != len(self.trainers):
            raise InputError(
                f"the stored state is not of {len(self.trainers)} GPUs; go on with as many as the run began with: "
                f"gpus = {count}."
            )
        parts = [part_of(state, f"{place}.") for place in range(count)]
        if type(self.trainers[0]).__name__ in _NAMES:  # all are read before the first one takes anything
            read = as_rows if "row_of" in self.trainers[0].state_dict() else by_client
            parts = [read(part, self.task) for part in parts]
        for device, trainer, part in zip(self.devices, self.trainers, parts, strict=True):
            with current(device):
                trainer.load_state_dict(part)
        self.home = state["home"].cpu().numpy().copy()


@dataclass(frozen=True)
class _Part:
    """One device's results. places: of its clients among the participants."""

    places: Ints
    trained: Trained


class _Gathered:
    """Results that lie on several devices, as if on the first one. Sums are made where the updates are."""

    def __init__(self, clients: Ints, parts: list[_Part], device: torch.device) -> None:
        self.clients, self.parts, self.device = clients, parts, device
        self.losses = self._in_order([part.trained.losses for part in parts])

    @cached_property
    def deltas(self) -> Tensor:
        return self._in_order([part.trained.deltas for part in self.parts])

    def weighted_sum(self, coefficients: Floats, skip: bool = False) -> tuple[Tensor, Tensor]:
        found = [part.trained.weighted_sum(coefficients[part.places], skip) for part in self.parts]
        total = sum((update.to(self.device) for update, _ in found[1:]), found[0][0].to(self.device))
        return total, self._in_order([finite for _, finite in found])

    def _in_order(self, pieces: list[Tensor]) -> Tensor:
        """One row per participant, on the first device."""
        gathered = pieces[0].new_empty(len(self.clients), *pieces[0].shape[1:], device=self.device)
        for part, piece in zip(self.parts, pieces, strict=True):
            gathered[torch.from_numpy(part.places).to(self.device)] = piece.to(self.device)
        return gathered


def _whole(chunks: Iterator[Trained], clients: Ints) -> Trained:
    """All results of one device: mostly one chunk, but more where memory was short, which are then copied."""
    first = next(chunks)
    if len(first.clients) == len(clients):
        return first
    deltas, losses = [first.deltas.clone()], [first.losses.clone()]
    for chunk in chunks:
        deltas.append(chunk.deltas.clone())
        losses.append(chunk.losses.clone())
    return PlainTrained(clients, torch.cat(deltas), torch.cat(losses))


def _brought_starts(starts: Starts | None, device: torch.device) -> Starts | None:
    return None if starts is None else lambda clients: starts(clients).to(device)


def _brought_rule(rule: GradientRule, home: torch.device, device: torch.device, lock: threading.Lock) -> GradientRule:
    """A rule for clients on a device. One that treats everybody alike keeps nothing, so it has no home."""
    if vars(type(rule)).get("any_order", False):
        return rule
    return (_AddedAtHome if isinstance(rule, AddedRule) else _AtHome)(rule, home, device, lock)


class _AtHome:
    """A rule that may keep tensors on the first device, and is asked there, by one thread at a time."""

    def __init__(self, rule: GradientRule, home: torch.device, device: torch.device, lock: threading.Lock) -> None:
        self.rule, self.home, self.device, self.lock = rule, home, device, lock

    def adjust(self, grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
        with self.lock:
            given = [tensor.to(self.home) for tensor in (grads, params, start)]
            return self.rule.adjust(given[0], given[1], given[2], clients).to(self.device)


class _AddedAtHome(_AtHome):
    """The same, of a rule that adds what the kernels fetch once a round."""

    def added(self, clients: Ints) -> Tensor:
        assert isinstance(self.rule, AddedRule)
        with self.lock:
            return self.rule.added(clients).to(self.device)
