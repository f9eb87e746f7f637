"""The fast trainer: a round as one list of kernels over all participants, recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.engine.launch import INTERPRETED, MisreadError, compiled_together
from everfed.engine.lower import CannotLowerError, lower
from everfed.engine.program import Program, bytes_per_client
from everfed.errors import InputError, first_line, warn
from everfed.learning.graphs import Graphs
from everfed.learning.optim import SGD, Adam, State
from everfed.learning.stored import as_rows
from everfed.learning.task import Check, PlainTrained, Task, Trained, as_weights, budget

# More clients at once gain nothing on any GPU of today, and cost memory.
_MOST_AT_ONCE = 128

# Recorded graphs kept at once; the oldest makes room.
_MOST_GRAPHS = 64

_NO_ROOM = "one client's round does not fit into the device's memory, or into memory_budget"


class Kernels:
    """Trains participants with Triton kernels. Raises CannotLowerError for tasks it has none for."""

    check: Check | None = None

    def __init__(self, task: Task) -> None:
        _check(task)
        self.task = task
        task.module.train()
        self.lowered = lower(task, exact=INTERPRETED)
        clients = len(task.data.sizes)
        self.program = self._allocated(clients)
        try:
            self.moments = MomentTable(task, self.program, clients)
        except InputError as error:  # out of memory, while there is another way
            raise CannotLowerError(str(error).rstrip(".")) from error
        self._forget_graphs()
        # What a round is given, as bytes in one piece: one transfer instead of four.
        self.given = np.zeros(len(self.program.given), np.int64)
        self.recording = task.data.device.type == "cuda"  # off once a graph cannot be recorded
        self._compile()

    def _allocated(self, clients: int) -> Program:
        """Buffers for as many clients as the budget allows, or fewer if the device has less after all."""
        fits = budget(self.task) // bytes_per_client(self.lowered, self.task)
        room = int(min(fits, clients, self.task.most_at_once or _MOST_AT_ONCE))
        while room:
            try:
                return Program(self.task, self.lowered, room)
            except torch.cuda.OutOfMemoryError:
                room //= 2
                torch.cuda.empty_cache()
        raise CannotLowerError(_NO_ROOM)

    def _compile(self) -> None:
        """All kernels, before the first round: a GPU they do not fit is noticed while there is another way."""
        try:
            with compiled_together(self.task.data.device):
                self.program.round(self.program.room)
                self.program.weighted_sum(self.program.room, self.program.losses)
        except (CannotLowerError, MisreadError):
            raise
        except torch.cuda.OutOfMemoryError as error:  # of torch's operations between the kernels
            raise CannotLowerError(_NO_ROOM) from error
        except Exception as error:  # Triton's compiler raises all kinds of errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotLowerError(f"the kernels cannot be compiled for this GPU ({reason})") from error

    @property
    def at_once(self) -> int:
        return self.program.room

    def explain(self) -> list[str]:
        return self.lowered.notes

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        assert steps is None or (steps == self.task.local_steps).all(), "clients do all steps here"
        chunks = -(-len(clients) // self.program.room)
        for part in range(chunks):  # as even as possible
            some = slice(part * len(clients) // chunks, (part + 1) * len(clients) // chunks)
            yield self._train_chunk(params, clients[some], round if isinstance(round, int) else round[some])

    def _train_chunk(self, params: Tensor, clients: Ints, round: int | Ints) -> Trained:
        program, task = self.program, self.task
        count = bucket(len(clients), program.room)
        rows, moved = self.moments.rows(clients, count)
        if moved:  # the table grew: recorded graphs point at the old one
            self._forget_graphs()
        first, who, state_rows = self.given[: 3 * program.room].reshape(3, program.room)
        # Rows beyond the participants repeat the first one and are not read.
        who[:count] = clients[0]
        who[: len(clients)] = clients
        first[: len(clients)] = np.multiply(round, task.local_steps)
        state_rows[:count] = rows
        rates = self.given[3 * program.room :].view(np.float32).reshape(task.local_steps, program.room, 2)
        self.moments.fill_rates(rates[:, : len(clients)], clients, round)
        program.given.copy_(torch.from_numpy(self.given))
        start = task.start(params, clients) if task.starts else None
        if start is None:
            program.params.copy_(params)
        else:
            program.starts[: len(clients)] = start
        program.rules.begin(clients)
        try:
            self._run(count)
        except torch.cuda.OutOfMemoryError as error:
            # Moments may have moved already, so the chunk cannot simply be tried again with fewer clients.
            raise InputError(
                f"out of device memory with {count} clients at once; give a smaller memory_budget than "
                f"{budget(task) / 2**30:.1f} GiB, or use trainer='batched'."
            ) from error
        self.moments.count(clients)
        if start is None:
            return KernelTrained(clients, program)
        deltas = program.rows[: len(clients), program.from_kernel] - start
        return PlainTrained(clients, deltas, program.losses[: len(clients)].clone())

    def _run(self, count: int) -> None:
        """The first round of a size runs as it is; the second is recorded, and from then on replayed."""
        graph = self.graphs.get(count)
        if graph is not None:
            graph()
            return
        if not self.recording or count not in self.graphs:
            self.program.round(count)
            self.graphs[count] = None
            return
        try:
            graph = self.record(lambda: self.program.round(count))
        except RuntimeError as error:
            self.recording = False
            reason = first_line(error)
            warn(f"the round cannot be recorded as a CUDA graph ({reason}); continuing without it.")
            self.program.round(count)
            return
        graph()
        recorded = [size for size, kept in self.graphs.items() if kept is not None]
        if len(recorded) >= _MOST_GRAPHS:
            self.graphs[recorded[0]] = None
        self.graphs[count] = graph

    def state_dict(self) -> dict[str, Tensor]:
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.moments.load_state_dict(as_rows(state, self.task))
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self.graphs: dict[int, Callable[[], None] | None] = {}
        self.record = Graphs(self.task.data.device)  # new with them, since their memory ends with the last one


class KernelTrained(Trained):
    """Results as they lie in the program's buffers: good until the next chunk is trained."""

    def __init__(self, clients: Ints, program: Program) -> None:
        self.clients, self.program = clients, program
        self.losses = program.losses[: len(clients)].clone()

    @property
    def deltas(self) -> Tensor:
        program = self.program
        rows: Tensor = program.rows[: len(self.clients)] - program.server
        return rows[:, program.from_kernel]

    def weighted_sum(self, coefficients: Floats, skip: bool = False) -> tuple[Tensor, Tensor]:
        program = self.program
        given = as_weights(coefficients, program.server.device)
        update, finite = program.weighted_sum(len(self.clients), given)
        if skip and not bool(finite.all()):
            update, _ = program.weighted_sum(len(self.clients), given * finite)
        return update, finite


class MomentTable:
    """The optimiser's state of every client that has trained, in the kernels' order; step counts on the host."""

    def __init__(self, task: Task, program: Program, clients: int) -> None:
        self.task, self.program = task, program
        self.names = [name for name in task.optimizer.init(0, 0, task.data.device) if name != "count"]
        program.kept = task.keep_state
        self.row_of = np.full(clients, -1, np.int64)
        self.counts = np.zeros(clients, np.int64)  # local steps done
        self.used = 0
        self.rows_there = 0
        self._grow(min(clients, program.room), filled=0)

    def rows(self, clients: Ints, count: int) -> tuple[Ints, bool]:
        """(the table's row for each of `count` program rows, whether the table had to move)."""
        if not self.task.keep_state or not self.names:
            return np.arange(count), False
        new = clients[self.row_of[clients] < 0]
        filled = self.used
        self.row_of[new] = np.arange(self.used, self.used + len(new))
        self.used += len(new)
        moved = self.used > self.rows_there
        if moved:
            self._grow(min(len(self.row_of), max(self.used, 2 * self.rows_there)), filled)
        spare = np.arange(self.rows_there, self.rows_there + count - len(clients))
        return np.concatenate([self.row_of[clients], spare]), moved

    def _grow(self, rows: int, filled: int) -> None:
        """Room for `rows` clients, and behind them spare rows for a bucket's unused places.

        filled: rows that hold moments; behind them may lie what spare rows were used for.
        """
        size, device = self.program.size, self.task.data.device
        spare = self.program.room // 8 + 1
        try:
            grown = [torch.zeros(rows + spare, size, device=device) for _ in self.names]
        except torch.cuda.OutOfMemoryError as error:
            needed = 4 * rows * size * len(self.names) / 2**30
            raise InputError(
                f"the optimiser state of {rows} clients takes {needed:.0f} GiB, more than the GPU has free; "
                "use keep_state = false, an optimiser without state, or fewer clients."
            ) from error
        for old, new in zip(self.program.state, grown, strict=False):
            new[:filled] = old[:filled]
        self.program.state, self.rows_there = grown, rows

    def fill_rates(self, out: npt.NDArray[np.float32], clients: Ints, round: int | Ints) -> None:
        """[steps, clients, 2]: learning rates, with Adam's bias corrections, in double precision."""
        rule, steps = self.task.optimizer, self.task.local_steps
        rounds = [round] if isinstance(round, int) else round.tolist()
        lr = np.array([[self.task.rate(r, s) for r in rounds] for s in range(steps)])
        if not isinstance(rule, Adam):
            out[:, :, 0] = lr
            return
        done = self.counts[clients] if self.task.keep_state else 0
        number = done + np.arange(1, steps + 1)[:, None]
        out[:, :, 0] = lr / (1.0 - rule.beta1**number)
        out[:, :, 1] = (1.0 - rule.beta2**number) ** -0.5

    def count(self, clients: Ints) -> None:
        self.counts[clients] += self.task.local_steps

    def state_dict(self) -> dict[str, Tensor]:
        """The same names and order of parameters as the batched trainer's."""
        order = self.program.from_kernel
        kept: State = {n: t[: self.used, order] for n, t in zip(self.names, self.program.state, strict=True)}
        state = {"row_of": torch.from_numpy(self.row_of.copy()), **kept}
        if isinstance(self.task.optimizer, Adam):
            known = np.flatnonzero(self.row_of >= 0)
            counts = np.zeros(self.used, np.float32)
            counts[self.row_of[known]] = self.counts[known]
            state["count"] = torch.from_numpy(counts)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.row_of = state["row_of"].cpu().numpy().copy()
        self.used = int(self.row_of.max(initial=-1)) + 1
        self._grow(max(self.rows_there, self.used), filled=0)
        for name, table in zip(self.names, self.program.state, strict=True):
            rows = table.new_zeros(self.used, table.shape[1])
            rows[:, self.program.from_kernel] = state[name].to(table.device)
            table[: self.used] = rows
        self.counts[:] = 0
        if "count" in state:
            known = np.flatnonzero(self.row_of >= 0)
            self.counts[known] = state["count"].cpu().numpy()[self.row_of[known]].astype(np.int64)


def bucket(clients: int, room: int) -> int:
    """How many rows are trained for so many participants: at most an eighth more, so that graphs are few."""
    step = 1 << max(0, (clients - 1).bit_length() - 4)
    return min(room, -(-clients // step) * step)


def _check(task: Task) -> None:
    if task.data.device.type != "cuda" and not INTERPRETED:
        raise CannotLowerError("kernels need a GPU, but this run trains on the CPU")
    if task.loss is not F.cross_entropy:
        raise CannotLowerError("the loss is not cross-entropy")
    if type(task.optimizer) not in (SGD, Adam):
        raise CannotLowerError(f"there is no kernel for the optimiser {type(task.optimizer).__name__}")
    if task.data.y.dtype != torch.int64 or task.data.y.ndim != 1:
        raise CannotLowerError("the targets are not classes")
