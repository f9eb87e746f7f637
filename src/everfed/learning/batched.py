"""The batched trainer: all participants of a round at once, by `torch.func`.

Every client is a row of a matrix [clients, parameters]; one vectorised gradient and one optimiser
step move all rows at once. Participants are trained in chunks that fit a memory budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from everfed.arrays import Inputs, Ints, each
from everfed.errors import InputError, first_line, warn
from everfed.learning import convolutions
from everfed.learning.blame import blamed
from everfed.learning.calling import outputs_of
from everfed.learning.compiled import Compiled, Given, Key, Shared
from everfed.learning.dropout import counted_dropout
from everfed.learning.generators import Drawn
from everfed.learning.gradients import adjusted
from everfed.learning.hooks import gradient_hooks
from everfed.learning.layout import copied
from everfed.learning.objectives import per_client
from everfed.learning.precision import autocast
from everfed.learning.recorded import Gradients, Recorded
from everfed.learning.rows import ClientRows
from everfed.learning.stored import as_rows
from everfed.learning.task import DRAW_BYTES, Check, PlainTrained, Task, Trained, budget

# Matrices of one row per client that live at once besides the optimiser's state: parameters,
# gradients, the parts they are concatenated from, and the optimiser's temporaries.
_WORKING_COPIES = 6
_CACHE = 8 << 20  # bytes


class Batched:
    """Trains participants in chunks of many clients at once."""

    check: Check | None = None

    def __init__(self, task: Task, reason: str = "", compiled: bool = False) -> None:
        """reason: why the task has no faster trainer. compiled: whether the gradients' pass becomes one program."""
        if where := gradient_hooks(task.module):
            raise InputError(f"{where} has hooks on gradients, which vmap would not call; use trainer='one-by-one'.")
        if task.draws:
            raise InputError(
                f"this model cannot be batched over clients, since its training draws from {' and '.join(task.draws)}, "
                "of which all of them would share the numbers; use trainer='one-by-one'."
            )
        self.task, self.reason = task, reason
        self.module = _own(task.module).train()
        for layer in self.module.modules():
            if isinstance(layer, nn.RNNBase):  # on a GPU it would lay out weights that, under vmap, lie nowhere
                layer.flatten_parameters = _nothing  # type: ignore[method-assign]
        device = task.data.device
        empty = task.optimizer.init(0, task.layout.size, device)
        self.states = ClientRows(empty, len(task.data.sizes), device, task.state_place)
        self.replaced = convolutions.FUNCTIONS if compiled else {}
        self.bytes_per_client, self.replaces = _trial(task, self.module, self.replaced)
        self.told = False
        self.chunk = max(1, budget(task) // self.bytes_per_client)
        self.compiled = self._compiled() if compiled else None
        self.gradients: Gradients = self.compiled or self._gradients
        if device.type == "cuda":
            self.gradients = Recorded(self.gradients, self.module, alone=task.devices == 1)

    @property
    def at_once(self) -> int:
        # Memory may have room for more clients than there are.
        return min(self.chunk, len(self.task.data.sizes))

    def explain(self) -> list[str]:
        how = "batched over clients by torch.func" + (" and compiled by inductor" if self.compiled else "")
        said = f"the whole model: {how}" + (f", since {self.reason}" if self.reason else "")
        if isinstance(self.gradients, Recorded):
            why = self.gradients.refused
            said += f"; not recorded as CUDA graphs, since {why}" if why else "; recorded as CUDA graphs"
        return [said]

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        start = 0
        while start < len(clients):
            part = slice(start, start + self.chunk)
            some = clients[part]
            when = round if isinstance(round, int) else round[part]
            drawn = Drawn(params.device)
            try:
                trained = self._train_chunk(params, some, when, None if steps is None else steps[part])
            except torch.cuda.OutOfMemoryError:
                self._halve(len(some))
                continue
            self._tell(drawn.since())
            yield trained
            start += len(some)

    def _tell(self, drawn: tuple[str, ...]) -> None:
        """Say once that chance came in which the trial of the model did not show."""
        if drawn and not self.told:
            self.told = True
            warn(
                f"while clients were trained together, numbers were drawn from {' and '.join(drawn)}, by a model, a "
                "rule or a reader of samples: no seed decides them, and clients may share them. With "
                "trainer='one-by-one', each client has its own from the run's seed."
            )

    def _halve(self, clients: int) -> None:
        """Out of memory costs the chunk, not the run: nothing is kept of a chunk before it is done."""
        if clients == 1:
            raise InputError(
                "one client's round does not fit into the device's memory; use a smaller batch or model."
            ) from None
        self.chunk = clients // 2
        torch.cuda.empty_cache()
        warn(f"out of device memory with {clients} clients at once; continuing with {self.chunk}.")

    def _train_chunk(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None) -> Trained:
        task = self.task
        who = torch.as_tensor(clients, device=params.device)
        slots = round if isinstance(round, int) else torch.as_tensor(round, device=params.device)
        first = slots * task.local_steps
        numbers = task.data.draw(who, first, task.local_steps, task.batch_size, task.seed)
        start = task.start(params, clients)
        rows = self.gradients.rows(start) if isinstance(self.gradients, Recorded) else start.clone()
        if task.keep_state:
            state = self.states.gather(clients)
        else:
            state = task.optimizer.init(len(clients), task.layout.size, params.device)
        total = torch.zeros(len(clients), device=params.device)
        last = task.local_steps if steps is None else int(steps.max(initial=0))
        for step in range(last):
            x, y = task.data.samples(numbers[:, step], who, first + step, task.seed)
            with blamed(self.module, x, clients.tolist()):
                grads, losses = self.gradients(rows, x, y, who, first + step)
            grads = adjusted(task.gradients, grads, rows, start, clients)
            ended = None if steps is None or (steps > step).all() else torch.as_tensor(steps <= step).to(rows.device)
            before = None if ended is None else (rows[ended], {name: kept[ended] for name, kept in state.items()})
            task.optimizer.step(rows, grads, state, self._rates(round, step, rows))
            del grads  # before the next ones are computed: a row per client
            if ended is not None and before is not None:  # those who have done their steps stay where they are
                rows[ended] = before[0]
                for name, kept in state.items():
                    kept[ended] = before[1][name]
                losses = torch.where(ended, 0.0, losses)
            total += losses
        if task.keep_state:
            self.states.scatter(clients, state)
        taken = task.local_steps if steps is None else torch.as_tensor(steps).to(total)
        return PlainTrained(clients, rows.sub_(start), total / taken)

    def _rates(self, round: int | Ints, step: int, rows: Tensor) -> float | Tensor:
        """The learning rate of a step: one number, or [C, 1] where clients began at different times."""
        if isinstance(round, int):
            return self.task.rate(round, step)
        each = [self.task.rate(slot, step) for slot in round.tolist()]
        if len(set(each)) == 1:
            return each[0]
        return torch.tensor(each, dtype=rows.dtype, device=rows.device)[:, None]

    def _compiled(self) -> Compiled:
        task, data = self.task, self.task.data

        def example(clients: int) -> Given:
            numbers = torch.arange(clients, device=data.device)
            x, y = data.inputs(clients * task.batch_size), data.targets(clients * task.batch_size)
            x, y = each(lambda part: part.unflatten(0, (clients, -1)), x), y.unflatten(0, (clients, -1))
            return Given(task.layout.flatten(task.module).repeat(clients, 1), x, y, numbers, 2 * numbers + 1)

        words = (task.seed & 0xFFFFFFFF, task.seed >> 32)
        key = (torch.tensor(words[0], device=data.device), torch.tensor(words[1], device=data.device))
        # On a CPU, what a block of clients needs should stay in its caches.
        together = max(2, _CACHE // self.bytes_per_client) if data.device.type == "cpu" else None
        return Compiled(self._gradients, self.module, example, key, together)

    def _gradients(
        self,
        rows: Tensor,
        x: Inputs,
        y: Tensor,
        who: Tensor,
        iteration: int | Tensor,
        key: Key | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Each client's gradient [C, parameters] and minibatch loss [C].

        key, shared: the seed and what clients have in common, as arguments for a trace.

        Only the forward pass goes through vmap: the rows do not mix, so the gradient of the summed
        losses is every client's own, and plain autograd finds it with half the overhead of
        vmap(grad(...)).
        """
        rows = rows.detach().requires_grad_()
        try:
            with autocast(self.task.precision):
                own = 0 if isinstance(iteration, Tensor) else None
                forward = partial(self._forward, key=key, shared=shared)
                outputs = vmap(forward, in_dims=(0, 0, 0, own), randomness="error")(rows, x, who, iteration)
            losses = per_client(self.task.loss, outputs.float(), y)
            (grads,) = torch.autograd.grad(losses.sum(), rows)
            return grads, losses.detach()
        except RuntimeError as error:
            # The last: what is computed again in the backward pass, where vmap is over.
            if not any(word in str(error) for word in ("vmap", "atching rule", "maybe_level")):
                raise
            raise InputError(
                f"this model cannot be batched over clients ({first_line(error)}); use trainer='one-by-one'."
            ) from error

    def _forward(
        self, row: Tensor, x: Inputs, client: Tensor, iteration: int | Tensor, key: Key | None, shared: Shared | None
    ) -> Tensor:
        """One client's outputs (under vmap)."""
        weights = {**self.task.layout.unflatten(row), **(shared or {})}
        if not self.replaces:
            return outputs_of(self.module, x, weights)
        seed = self.task.seed if key is None else key
        with counted_dropout(seed, client, iteration, under_vmap=True, replaced=self.replaced):
            return outputs_of(self.module, x, weights)

    def state_dict(self) -> dict[str, Tensor]:
        return self.states.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.states.load_state_dict(as_rows(state, self.task))


def _own(module: nn.Module) -> nn.Module:
    """A copy, since vmap leaves tensors of its own in recurrent layers; the module itself if it cannot be copied."""
    try:
        return copied(module)
    except Exception:  # the user's own class, which may raise anything
        return module


def _nothing() -> None:
    """Instead of a preparation for cuDNN, which does not run here."""


def _trial(task: Task, module: nn.Module, replaced: dict[Any, Callable[..., Any]]) -> tuple[int, bool]:
    """(bytes one client's round needs, whether `counted_dropout` replaces anything), from one forward pass.

    Activations are measured, not guessed, by counting what autograd saves, without what all clients share. Catching
    torch's calls slows every operation down a little, so models without dropout or recurrent layers are spared it.
    """
    saved: dict[int, int] = {}
    shared = [*(p for p in module.parameters() if not p.requires_grad), *module.buffers()]

    def count(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # the tensor itself would hold the graph that holds it

    data = task.data
    numbers = torch.zeros(task.batch_size, dtype=torch.int64, device=data.device)
    dropout = counted_dropout(task.seed, numbers[0], 0, under_vmap=True, replaced=replaced)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t), dropout:
        task.loss(outputs_of(module, data.inputs(task.batch_size)), data.targets(task.batch_size))
    for tensor in shared:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    state = task.optimizer.init(1, task.layout.size, data.device)
    state_bytes = sum(t.numel() * t.element_size() for t in state.values())
    # The backward pass holds gradients of activations while the saved ones are still there. A recorded pass has
    # parameters, gradients and activations of its own.
    copies, times = (_WORKING_COPIES + 2, 4) if data.device.type == "cuda" else (_WORKING_COPIES, 2)
    size = 4 * task.layout.size * copies + state_bytes + times * sum(saved.values())
    # Few draws are left out: chunks decide the last bits of sums, and stay what they were for earlier runs.
    draws = DRAW_BYTES * task.local_steps * task.batch_size
    size += draws if draws > 1 << 20 else 0
    return size, dropout.needed
