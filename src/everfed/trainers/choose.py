"""Which trainer a task gets, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from everfed import registry
from everfed.errors import InputError, warn
from everfed.learning.batched import Batched
from everfed.learning.calling import outputs_of
from everfed.learning.dropout import counted_dropout
from everfed.learning.hooks import any_hooks, gradient_hooks
from everfed.learning.one_by_one import OneByOne
from everfed.learning.task import CannotTrainError, Check, Task, Trainer, budget
from everfed.registry import lookup
from everfed.trainers.compare import compare, fails

# On a CPU, convolutions with weights of their own for every client run at half the speed of ordinary ones, and so do
# recurrent layers; below this many FLOPs the saved overhead is worth more (docs/benchmarks.md).
_MOST_TOGETHER: list[tuple[tuple[type[nn.Module], ...], str, int]] = [
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), "convolutions", 100_000_000),
    ((nn.RNNBase,), "recurrent layers", 20_000_000),
]


def trainer(name: str, task: Task, check: bool = True) -> Trainer:
    """A trainer by its name in `TRAINERS`, compared with plain autograd on a little of the task's own data.

    One that fails the check is an error if requested by name; `auto` warns and uses the next slower one.
    """
    make = lookup(TRAINERS, name, "trainer")
    if task.memory_budget is None and (check or name == "auto"):  # as if nothing had been tried: that takes memory
        task = replace(task, memory_budget=budget(task))
    if not check:
        return _noted(make(task), None)
    if name == "auto":
        return _first_right(task)
    found = compare(make, task, passed_on=(InputError,))
    if found.failure:
        raise InputError(
            f"trainer='{name}' was requested, but it {found.failure}; use trainer='auto', and please report it. "
            "check_trainer=False uses it anyway."
        )
    return _noted(make(task), found)


def kernels(task: Task) -> Trainer:
    """The fast trainer, or an error that says why it cannot be used."""
    try:
        return _fast(task)
    except CannotTrainError as reason:
        raise InputError(f"trainer='kernels' was requested, but {reason}; use trainer='auto' or 'batched'.") from reason


def compiled(task: Task) -> Trainer:
    """The batched trainer with compiled gradients, or an error that says why the model cannot be compiled."""
    try:
        if where := any_hooks(task.module):
            raise CannotTrainError(f"a compiled program does not call hooks, which {where} has")
        return Batched(task, compiled=True)
    except CannotTrainError as reason:
        raise InputError(
            f"trainer='compiled' was requested, but {reason}; use trainer='auto' or 'batched'."
        ) from reason


def auto(task: Task) -> Trainer:
    """Kernels where they exist for the model; else the faster of the other two that can train it.

    Kernels refuse a model when they are made. Whether one can be batched shows only where it is tried.
    """
    names, reason = _in_turn(task)
    for name in names:
        if name == "batched" and (failure := fails(Batched, task)):
            reason = f"the trainer 'batched' {failure}"
            warn(f"{reason}; taking 'one-by-one' instead.", 3)
            continue
        try:
            return _made(name, task, reason)
        except CannotTrainError as why:
            reason = str(why)
    raise AssertionError("the last trainer accepts every task")


def _first_right(task: Task) -> Trainer:
    """What `auto` takes, unless it turns out to be wrong."""
    names, reason = _in_turn(task)
    rejected: list[str] = []
    for number, name in enumerate(names):

        def make(task: Task, name: str = name, reason: str = reason) -> Trainer:
            return _made(name, task, reason)

        try:
            found = compare(make, task)
            if not found.failure:
                return _noted(make(task), replace(found, rejected=tuple(rejected)))
        except CannotTrainError as why:
            reason = str(why)
            continue
        failure = f"the trainer '{name}' {found.failure}"
        rejected.append(failure)
        reason = failure
        if number + 1 < len(names):
            warn(f"{failure}; taking '{names[number + 1]}' instead.", 3)
    raise InputError(
        f"no trainer agrees with plain autograd: {'; '.join(rejected)}. To train anyway, set check_trainer=False."
    )


def _noted(made: Trainer, found: Check | None) -> Trainer:
    made.check = found
    if found and found.difference is None:
        warn(f"the trainer is {found.said()}.", 3)
    return made


def _in_turn(task: Task) -> tuple[list[str], str]:
    """(what `auto` tries, fastest first; why nothing faster)."""
    if where := gradient_hooks(task.module):
        return ["one-by-one"], f"{where} has hooks on gradients"
    if task.draws:
        return ["one-by-one"], f"its training draws from {' and '.join(task.draws)}"
    if task.data.device.type != "cpu":
        return ["kernels", "batched", "one-by-one"], ""
    # Not even asking for kernels spares importing Triton where it cannot help.
    for kinds, word, most in _MOST_TOGETHER:
        work = _work(task) if any(isinstance(m, kinds) for m in task.module.modules()) else 0
        if work > most and not _spills(task):
            return ["one-by-one"], f"{work / 1e6:.0f} MFLOP of {word} a batch keep a CPU busy with one client"
    return ["batched", "one-by-one"], "kernels need a GPU, but this run trains on the CPU"


def _made(name: str, task: Task, reason: str) -> Trainer:
    if name == "kernels":
        return _fast(task)
    return Batched(task, reason) if name == "batched" else OneByOne(task, reason)


def _work(task: Task) -> int:
    """FLOPs of one minibatch's forward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # here, since it imports Triton where there is one

    nobody = torch.zeros((), dtype=torch.int64, device=task.data.device)
    plain = counted_dropout(task.seed, nobody, 0, under_vmap=True)  # FLOPs of recurrent layers are not counted as such
    with torch.no_grad(), FlopCounterMode(display=False) as counter, plain:
        outputs_of(task.module, task.data.inputs(task.batch_size))
    return int(counter.get_total_flops())


def _spills(task: Task) -> bool:
    return task.keep_state and task.state_place == "disk"


def _fast(task: Task) -> Trainer:
    if not isinstance(task.data.x, Tensor) or task.data.x.dtype not in (torch.uint8, torch.float32):
        raise CannotTrainError("the kernels take one input of bytes or floats")
    if where := any_hooks(task.module):
        raise CannotTrainError(f"the kernels do not call hooks, which {where} has")
    if task.draws:
        raise CannotTrainError(f"the model's training draws from {' and '.join(task.draws)}")
    if not task.data.whole:
        raise CannotTrainError("the kernels need samples on the device, but these are loaded on demand")
    if _spills(task):
        raise CannotTrainError("the kernels keep the clients' optimiser state on the device, but state_place is disk")
    if task.fewer_steps:
        raise CannotTrainError("the kernels do all local steps, but here clients may do fewer")
    try:
        from everfed.engine.lower import CannotLowerError
        from everfed.engine.rules import without_kernels
        from everfed.engine.trainer import Kernels
    except ImportError as error:
        raise CannotTrainError(f"Triton, which comes with torch for CUDA, is missing or too old ({error})") from error
    if unknown := without_kernels(task.gradients):
        raise CannotTrainError(f"the kernels do not support {', '.join(unknown)}")
    try:
        return Kernels(task)
    except CannotLowerError as error:
        raise CannotTrainError(str(error)) from error


TRAINERS: dict[str, Callable[[Task], Trainer]] = {
    "auto": auto,
    "kernels": kernels,
    "compiled": compiled,
    "batched": Batched,
    "one-by-one": OneByOne,
}
registry.table("trainer", TRAINERS, given=("task",))
