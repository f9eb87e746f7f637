"""Gradients of a round's participants as recorded CUDA graphs: one launch, where a model of many small operations
would need thousands.

A graph repeats what was done on the same memory, so inputs are copied to where they lay, and a number of clients
is rounded up to one that was recorded. Models that a graph cannot repeat, since they look at results or change
themselves, are not recorded; and each recording is compared with what it recorded.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from everfed.arrays import Inputs, each, parts
from everfed.errors import first_line
from everfed.learning.graphs import Graphs, Record

# Each client's gradient [C, parameters] and loss [C], from rows, inputs, targets, clients and iterations.
Gradients = Callable[[Tensor, Inputs, Tensor, Tensor, int | Tensor], tuple[Tensor, Tensor]]

_PASSES_BEFORE = 2  # a number of clients is recorded when it comes for the third time: most of the set-up is then done
# How far a repeated pass may be from the plain one, relative to its length: sums may be added in another order.
_APART = 0.05


def rounded(clients: int) -> int:
    """The next number of which there are eight between a power of two and the next: at most an eighth is wasted."""
    step = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // step) * step


class Recorded:
    """The same gradients, mostly from recordings."""

    def __init__(
        self,
        plain: Gradients,
        module: nn.Module,
        recorder: Callable[[torch.device], Record] = Graphs,
        alone: bool = True,
    ) -> None:
        """recorder: another one, for tests without a GPU. alone: whether no other thread uses a GPU meanwhile."""
        self.plain, self.module, self.recorder, self.alone = plain, module, recorder, alone
        self.refused = ""  # why nothing is recorded
        self.seen: Counter[int] = Counter()
        self._forget()

    def _forget(self) -> None:
        self.graphs: dict[int, Callable[[], None]] = {}
        self.record: Record | None = None  # new for new memory: without graphs, the old one's is gone
        self.given: tuple[Tensor, Inputs, Tensor, Tensor, Tensor] | None = None
        self.found: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, rows: Tensor, x: Inputs, y: Tensor, who: Tensor, iteration: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        count, room = len(rows), rounded(len(rows))
        if not self.refused and self.seen[room] < _PASSES_BEFORE:
            self.seen[room] += 1
            return self._watched(self.seen[room], rows, x, y, who, iteration)
        if not self.refused and room not in self.graphs:
            return self._compared(room, rows, x, y, who, iteration)
        if self.refused:
            return self.plain(rows, x, y, who, iteration)
        self._give(rows, x, y, who, iteration)
        self.graphs[room]()
        assert self.found is not None
        # Copies: a user's optimiser or rule may keep what it is given, and the next pass writes over these.
        grads, losses = (part[:count].clone() for part in self.found)
        return grads, losses

    def rows(self, start: Tensor) -> Tensor:
        """A copy of these rows to train, where the recordings read them, if there are any for so many."""
        if self.given is None or rounded(len(start)) not in self.graphs:
            return start.clone()
        return self.given[0][: len(start)].copy_(start)

    def _watched(self, number: int, *given: Any) -> tuple[Tensor, Tensor]:
        """A plain pass that shows whether the model can be recorded."""
        before = own_numbers(self.module)
        # Not in the first pass, in which libraries set themselves up. Nor beside other threads, which may well wait: to
        # forbid it holds for all of them. A model that waits then fails to be recorded, which is noticed as well.
        strict = number > 1 and self.recorder is Graphs and self.alone
        allowed = torch.cuda.get_sync_debug_mode() if strict else 0
        try:
            if strict:
                _forbid_waiting("error")
            found = self.plain(*given)
        except RuntimeError as error:
            if not strict or "synchronizing" not in str(error):
                raise
            self.refused = "its forward pass looks at results on the way"
            _forbid_waiting(allowed)
            return self.plain(*given)
        finally:
            if strict:
                _forbid_waiting(allowed)
        changed = [name for name, value in own_numbers(self.module).items() if before.get(name) != value]
        if changed:
            self.refused = f"its forward pass changes '{changed[0]}'"
        return found

    def _give(self, rows: Tensor, x: Inputs, y: Tensor, who: Tensor, iteration: int | Tensor) -> None:
        assert self.given is not None
        count = len(rows)
        for place, values in zip(self.given[:4], (rows, x, y, who), strict=True):
            for name, part in parts(values).items():
                if parts(place)[name].data_ptr() != part.data_ptr():
                    parts(place)[name][:count].copy_(part)
        self.given[4][:count] = iteration

    def _compared(self, room: int, *given: Any) -> tuple[Tensor, Tensor]:
        """Record it for so many clients; the gradients are those of the plain pass that it is compared with."""
        try:
            self._record(room, *given)
            self._give(*given)
            self.graphs[room]()
        except torch.cuda.OutOfMemoryError:
            self.refused = "no memory is left for it"
        except RuntimeError as error:
            self.refused = f"it failed to be ({first_line(error)})"
        found, expected = self.found, self.plain(*given)
        for one, other in zip(found or (), expected, strict=False):
            if not self.refused and not near(one[: len(other)], other):
                self.refused = "its recording did not repeat it"
        if self.refused:
            self._forget()
        return expected

    def _record(self, room: int, rows: Tensor, x: Inputs, y: Tensor, who: Tensor, iteration: int | Tensor) -> None:
        if self.given is None or len(self.given[3]) < room:
            self._forget()  # graphs of the old places

            def zeros(part: Tensor) -> Tensor:
                return part.new_zeros(room, *part.shape[1:])

            self.given = (zeros(rows), each(zeros, x), zeros(y), zeros(who), zeros(who))
            self.found = (zeros(rows), rows.new_zeros(room))
        if self.record is None:
            self.record = self.recorder(rows.device)
        assert self.found is not None
        given, found = self.given, self.found

        def run() -> None:
            mine: list[Any] = [each(lambda part: part[:room], place) for place in given]
            for place, values in zip(found, self.plain(*mine), strict=True):
                place[:room].copy_(values)

        self.graphs[room] = self.record(run)


def _forbid_waiting(mode: str | int) -> None:
    """Whether the CPU may wait for the GPU's results; torch warns that it may not notice everything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


def near(one: Tensor, other: Tensor) -> bool:
    """Whether both are the same but for rounding; NaN and infinity at the same places."""
    finite = torch.isfinite(other)
    if not torch.equal(torch.isfinite(one), finite):
        return False
    apart = torch.linalg.vector_norm(torch.where(finite, one - other, 0.0))
    return bool(apart <= _APART * torch.linalg.vector_norm(torch.where(finite, other, 0.0)))


def own_numbers(module: nn.Module) -> dict[str, Any]:
    """What the module's parts hold besides tensors: numbers and words by name, in lists and dictionaries too."""
    return {
        f"{name}.{key}".lstrip("."): _plain(value)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
    }


def _plain(value: Any) -> Any:
    """Something that can be compared: numbers and words as they are, nothing of tensors and other objects."""
    if isinstance(value, dict):
        return [(_plain(key), _plain(held)) for key, held in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return value if isinstance(value, bool | int | float | str) else None
