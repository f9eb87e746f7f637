"""The reference trainer: one client at a time, with torch's own autograd and optimisers.

Slow and plain on purpose: it shares no arithmetic with the batched trainer, so that each checks
the other. It also serves models that `torch.func` cannot batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Ints, taken
from everfed.errors import InputError
from everfed.learning.blame import blamed
from everfed.learning.calling import outputs_of
from everfed.learning.dropout import backward, counted_dropout
from everfed.learning.generators import Drawn, seeded
from everfed.learning.gradients import adjusted
from everfed.learning.layout import own_copy
from everfed.learning.precision import autocast
from everfed.learning.stored import by_client
from everfed.learning.task import Check, PlainTrained, Task, Trained


class OneByOne:
    """Trains participants in a plain loop over clients and local steps."""

    at_once = 1
    check: Check | None = None

    def __init__(self, task: Task, reason: str = "it was requested") -> None:
        """reason: why the clients are not trained together."""
        if task.state_place == "disk" and task.keep_state:
            raise InputError("trainer 'one-by-one' keeps the clients' state in memory; for 'disk' use 'batched'.")
        self.task, self.reason = task, reason
        self.module = own_copy(task.module).train()
        self.states: dict[int, dict[str, Any]] = {}
        self.draws = bool(task.draws)  # from generators that are not everfed's own

    def explain(self) -> list[str]:
        return [f"the whole model: one client at a time by torch, since {self.reason}"]

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        rounds = np.broadcast_to(round, len(clients)).tolist()
        counts = np.broadcast_to(self.task.local_steps if steps is None else steps, len(clients)).tolist()
        for i, client in enumerate(clients.tolist()):
            delta, loss = self._repeatably(params, client, rounds[i], counts[i])
            yield PlainTrained(clients[i : i + 1], delta[None], loss[None])

    def _repeatably(self, params: Tensor, client: int, round: int, steps: int) -> tuple[Tensor, Tensor]:
        """A client's work. If something in it draws from a generator that the process shares, it starts from a number
        of this work's own; where that was not known before, the work is done once more."""
        if not self.draws:
            drawn = Drawn(params.device)
            delta, loss, state = self._train_one(params, client, round, steps)
            self.draws = bool(drawn.since())
        if self.draws:
            with seeded(self.task.seed, client, round * self.task.local_steps, params.device):
                delta, loss, state = self._train_one(params, client, round, steps)
        if self.task.keep_state:
            self.states[client] = state
        return delta, loss

    def _train_one(self, params: Tensor, client: int, round: int, steps: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """(the update, the mean loss, the optimiser's state)."""
        task, module = self.task, self.module
        start = task.start(params, np.array([client]))[0]
        task.layout.load(start, module)
        optimizer = task.optimizer.as_torch(p for p in module.parameters() if p.requires_grad)
        if client in self.states:
            optimizer.load_state_dict(copy.deepcopy(self.states[client]))  # it writes into what it is given
        who = torch.tensor([client], device=params.device)
        first = round * task.local_steps
        numbers = task.data.draw(who, first, task.local_steps, task.batch_size, task.seed)[0]
        losses = []
        for step in range(steps):
            some, labels = task.data.samples(numbers[None, step], who, first + step, task.seed)
            x, y = taken(some, 0), labels[0]
            for group in optimizer.param_groups:
                group["lr"] = task.rate(round, step)
            optimizer.zero_grad()
            dropout = counted_dropout(task.seed, who[0], first + step)
            with blamed(module, some, [client]), dropout, autocast(task.precision):
                outputs = outputs_of(module, x)
            loss = task.loss(outputs.float(), y)
            backward(loss)
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter.grad is None:  # unused this time; torch would spare it decay and momentum
                    parameter.grad = torch.zeros_like(parameter)
            self._adjust(start, client)
            optimizer.step()
            losses.append(loss.detach())
        return task.layout.flatten(module) - start, torch.stack(losses).mean(), optimizer.state_dict()

    def _adjust(self, start: Tensor, client: int) -> None:
        """Let the task's rules change the gradients."""
        if not self.task.gradients:
            return
        trained = [p for p in self.module.parameters() if p.requires_grad]
        slopes = [p.grad for p in trained if p.grad is not None]
        rows = [torch.cat([t.reshape(-1) for t in ts])[None] for ts in (slopes, trained)]
        grads, values = (row.detach() for row in rows)
        changed = adjusted(self.task.gradients, grads, values, start, np.array([client]))[0]
        for parameter, part in zip(trained, changed.split([p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{client}.{parameter}.{name}": value.clone()
            for client, kept in self.states.items()
            for parameter, values in kept["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        # torch's optimisers want their own frame around the tensors; a fresh one gives it.
        frame = self.task.optimizer.as_torch(p for p in self.module.parameters() if p.requires_grad).state_dict()
        found, self.states = by_client(state, self.task), {}
        for key, value in found.items():
            client, parameter, name = key.split(".")
            kept = self.states.setdefault(int(client), {**frame, "state": {}})
            kept["state"].setdefault(int(parameter), {})[name] = value.clone()
