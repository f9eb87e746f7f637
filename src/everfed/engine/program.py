"""A lowered model with its buffers: one local step of many clients as a list of kernel launches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from everfed.data.augment import CentreCrop, CropFlip, Plain
from everfed.engine.kernels import inputs, loss, update as updates
from everfed.engine.launch import launch
from everfed.engine.layers import Step, Update
from everfed.engine.lower import Lowered
from everfed.engine.rules import Rules, bytes_per_client as bytes_of_rules
from everfed.learning.optim import SGD, Adam
from everfed.learning.task import Task
from everfed.random import Purpose

# Samples larger than this are augmented by torch: a kernel holds a whole one in registers.
_MOST_ELEMENTS = 1 << 14


class Program:
    """Buffers for up to `room` clients, and the launches of a round's local steps."""

    def __init__(self, task: Task, lowered: Lowered, room: int) -> None:
        self.task, self.lowered, self.room = task, lowered, room
        self.low = torch.bfloat16 if task.precision == "bf16" else torch.float32
        self.size, self.from_kernel = arrange(lowered, task)
        device, batch = task.data.device, task.batch_size
        lowered.input.allocate(room, batch, self.low, device)
        for value in (value for layer in lowered.layers for value in layer.results):
            value.allocate(room, batch, self.low, device)
            if value is lowered.output and self.low != torch.float32:  # logits keep all their digits
                value.data = value.data.float()
        for layer in lowered.layers:
            layer.allocate(room, batch, device)
        zeros: Any = lambda *shape, dtype=torch.float32: torch.zeros(*shape, dtype=dtype, device=device)  # noqa: E731
        self.server = zeros(self.size)
        self.sum = zeros(self.size)
        self.bad = zeros(room, dtype=torch.int32)
        self.rows = zeros(room, self.size)
        # In float32 the masters are the operands.
        mixed = self.low != torch.float32
        self.server_low = zeros(self.size, dtype=self.low) if mixed else self.server
        self.rows_low = zeros(room, self.size, dtype=self.low) if mixed else self.rows
        self.labels = zeros(room, batch, dtype=torch.int64)
        self.losses = zeros(room)
        # What a round is given: set before it starts, so that a recorded graph can be replayed.
        self.params = zeros(task.layout.size)
        self.starts = zeros(room if task.starts else 0, task.layout.size)  # of clients with models of their own
        self.given = zeros((3 + task.local_steps) * room, dtype=torch.int64)
        self.first, self.who, self.state_rows = self.given[: 3 * room].view(3, room)
        # Two floats fill the place of one integer: learning rate and bias correction of a client's step.
        self.rates = self.given[3 * room :].view(torch.float32).view(task.local_steps, room, 2)
        self.rules = Rules(task.gradients, room, self.size, self.from_kernel)
        self.began = zeros(len(self.starts) if task.gradients else 0, self.size)  # the starts, in the kernels' order
        self.state: list[Tensor] = []
        self.kept = True  # the state holds moments of earlier rounds

    def round(self, clients: int) -> None:
        """All local steps of the first `clients` rows, from the server's parameters or from their own."""
        if len(self.starts):
            self.rows[:clients].index_copy_(1, self.from_kernel, self.starts[:clients])  # padding stays zero
            if self.rows_low is not self.rows:
                self.rows_low[:clients].copy_(self.rows[:clients])
            if len(self.began):
                self.began[:clients].copy_(self.rows[:clients])
        else:
            self.server[self.from_kernel] = self.params
            if self.server_low is not self.server:
                self.server_low.copy_(self.server)
        self.losses.zero_()
        self.bad.zero_()
        for number in range(self.task.local_steps):
            self._step(clients, number)

    def begun(self, clients: int, number: int) -> Step:
        """A local step with its minibatches drawn."""
        start = number == 0 and not len(self.starts)
        weights, masters = (self.server_low, self.server) if start else (self.rows_low, self.rows)
        step = Step(
            clients, number, weights.view(-1), masters, 0 if start else self.size,
            self.who, self.first, self.task.seed,
        )  # fmt: skip
        self._inputs(step)
        return step

    def _step(self, clients: int, number: int) -> None:
        step = self.begun(clients, number)
        for layer in self.lowered.layers:
            layer.forward(step)
        self.loss_gradient(clients)
        for layer in reversed(self.lowered.layers):
            layer.backward(step)
        self._update(step)

    def _inputs(self, step: Step) -> None:
        data, value, task = self.task.data, self.lowered.input, self.task
        augment = data.augment
        shape = data.x.shape[1:]
        known = type(augment) in (Plain, CentreCrop, CropFlip) and value.at.image <= _MOST_ELEMENTS
        if not known or len(shape) not in (1, 3):
            self._inputs_by_torch(step)
            return
        channels, height, width = shape if len(shape) == 3 else (shape[0], 1, 1)
        launch(
            inputs.minibatch, (task.batch_size, step.clients),
            data.x, data.y, data.order, data.starts, data.sizes, step.who, step.first, value.data, self.labels,
            step.seed, step.number, task.batch_size, value.at.image, channels * height * width,
            STORED_HEIGHT=height, STORED_WIDTH=width, CHANNELS=channels, HEIGHT=value.height, WIDTH=value.width,
            STRIDE=value.stride, BORDER=value.border, RANDOM=type(augment) is CropFlip,
            STANDARDIZE=type(augment) is not Plain, SCALE=255.0 if data.x.dtype == torch.uint8 else 1.0,
            BATCH_PURPOSE=int(Purpose.BATCH), AUGMENT_PURPOSE=int(Purpose.AUGMENT),
            BLOCK=1 << (value.at.image - 1).bit_length(), num_warps=4,
        )  # fmt: skip

    def _inputs_by_torch(self, step: Step) -> None:
        """Augmentations of the user's own, and large images."""
        task, value = self.task, self.lowered.input
        who, iteration = step.who[: step.clients], step.first[: step.clients] + step.number
        numbers = task.data.draw(who, iteration, 1, task.batch_size, task.seed)[:, 0]
        x, y = task.data.samples(numbers, who, iteration, task.seed)
        view = value.as_torch(value.data, value.at, step.clients)
        view.copy_(x.reshape(view.shape))
        self.labels[: step.clients] = y

    def loss_gradient(self, clients: int) -> None:
        out, batch = self.lowered.output, self.task.batch_size
        columns = 1 << (out.channels - 1).bit_length()
        rows = max(1, min(1 << (batch - 1).bit_length(), 4096 // columns))
        launch(
            loss.cross_entropy, (clients,),
            out.data, self.labels, out.grad, self.losses, batch * out.at.image, batch * out.grad_at.image,
            batch, out.stride, self.task.local_steps,
            CLASSES=out.channels, BR=rows, BN=columns, num_warps=4,
        )  # fmt: skip

    def _update(self, step: Step) -> None:
        rule = self.task.optimizer
        if isinstance(rule, Adam):
            kind, betas = 2, (rule.beta1, rule.beta2, rule.eps)
        else:
            assert isinstance(rule, SGD)
            kind, betas = int(rule.momentum > 0), (rule.momentum, 0.0, 0.0)
        one, two = [*self.state, self.server, self.server][:2]

        def pointers(at: int) -> tuple[Tensor, ...]:
            parts = (step.masters, self.rows, self.rows_low, one, two)
            return *(t.view(-1)[at:] for t in parts), self.state_rows, self.rates[step.number]

        update = Update(
            pointers,
            (step.stride, self.size, rule.weight_decay, *betas),
            {"KIND": kind, "FRESH": not self.kept and step.number == 0, "LOW": self.low != torch.float32},
        )

        def move(at: int, gradient: Tensor, splits: int, size: int) -> None:
            launch(
                updates.optimizer_step, (math.ceil(size / 1024), step.clients),
                *update.pointers(at), *update.scalars, gradient, size, step.clients * size, splits, size,
                **update.meta, BLOCK=1024, num_warps=4,
            )  # fmt: skip

        if self.task.gradients:
            params = self.rows[: step.clients] if step.stride else self.server[None]
            start = self.began[: step.clients] if len(self.began) else self.server[None]
            move(0, self.rules(self.lowered.layers, step.clients, params, start), 1, self.size)
            return
        for layer in self.lowered.layers:
            if layer.size and not layer.step_with(step, update):
                move(layer.offset, layer.gradient, layer.splits, layer.size)

    def weighted_sum(self, clients: int, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of coefficient * update in torch's order, which rows are finite)."""
        launch(
            updates.weighed_sum, (math.ceil(self.size / 1024),),
            self.rows, self.server, coefficients, self.losses, self.sum, self.bad, clients, self.size,
            BLOCK=1024, num_warps=4,
        )  # fmt: skip
        return self.sum[self.from_kernel], self.bad[:clients] == 0


def arrange(lowered: Lowered, task: Task) -> tuple[int, Tensor]:
    """Give each layer its place in a client's row: (the row's length, where each of torch's parameters lies)."""
    where: dict[str, Tensor] = {}
    start = 0
    for layer in lowered.layers:
        layer.offset = start
        for name, positions in layer.parameters().items():
            where[name] = positions.reshape(-1) + start
        start += 16 * math.ceil(layer.size / 16)
    index = torch.cat([where[name] for name in task.layout.names])
    return start, index.to(task.data.device)


def bytes_per_client(lowered: Lowered, task: Task) -> int:
    """Device memory of one client's round."""
    width = 2 if task.precision == "bf16" else 4
    size, _ = arrange(lowered, task)
    values = [lowered.input, *(value for layer in lowered.layers for value in layer.results)]
    held = sum(v.bytes(task.batch_size, width) for v in values)
    held += sum(layer.bytes(task.batch_size) for layer in lowered.layers)
    moments = sum(t.numel() for t in task.optimizer.init(1, size, torch.device("cpu")).values())
    held += bytes_of_rules(task.gradients, size, bool(task.starts))
    return held + size * (4 + width + (4 if task.starts else 0)) + 4 * moments + 8 * task.batch_size
