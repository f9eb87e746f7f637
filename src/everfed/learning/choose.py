"""Which trainer a task gets, and why."""

from __future__ import annotations

import torch
from torch import nn

from everfed.errors import InputError
from everfed.learning.batched import Batched
from everfed.learning.dropout import counted_dropout
from everfed.learning.local import Task, Trainer
from everfed.learning.one_by_one import OneByOne

# On a CPU, convolutions with weights of their own for every client run at half the speed of
# ordinary ones; below this many FLOPs the saved overhead is worth more (docs/benchmarks.md).
_MOST_TOGETHER = 100_000_000


def kernels(task: Task) -> Trainer:
    """The fast trainer, or an error that says why it cannot be had."""
    trainer, reason = _fast(task)
    if trainer is None:
        raise InputError(f"trainer='kernels' was asked for, but {reason}; use trainer='auto' or 'batched'.")
    return trainer


def auto(task: Task) -> Trainer:
    """Kernels where they exist for the model; else the faster of the other two."""
    if task.data.device.type == "cpu":  # spares importing Triton where it cannot help
        work = _convolutions(task)
        if work > _MOST_TOGETHER and not _spills(task):
            return OneByOne(task, f"{work / 1e6:.0f} MFLOP of convolutions a batch keep a CPU busy with one client")
        return Batched(task, "kernels need a GPU, and this run trains on the CPU")
    trainer, reason = _fast(task)
    return trainer or Batched(task, reason)


def _convolutions(task: Task) -> int:
    """FLOPs of one minibatch's forward pass, if the model has convolutions; else 0."""
    if not any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in task.module.modules()):
        return 0
    from torch.utils.flop_counter import FlopCounterMode  # here, since it imports Triton where there is one

    nobody = torch.zeros((), dtype=torch.int64, device=task.data.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter, counted_dropout(task.seed, nobody, 0):
        task.module(task.data.inputs(task.batch_size))
    return int(counter.get_total_flops())


def _spills(task: Task) -> bool:
    return task.keep_state and task.state_place == "disk"


def _fast(task: Task) -> tuple[Trainer | None, str]:
    if not task.data.whole:
        return None, "the kernels read samples that lie on the device, and these are loaded on demand"
    if _spills(task):
        return None, "the kernels keep the clients' optimiser state on the device, and it is to be kept on disk"
    if task.starts is not None:
        return None, "the kernels start all clients from one model, and this server rule starts each from its own"
    if task.gradients:
        names = ", ".join(type(rule).__name__.strip("_") for rule in task.gradients)
        return None, f"the kernels step right after the backward pass and leave no room for {names}"
    try:
        from everfed.learning.fast.lower import CannotLowerError
        from everfed.learning.fast.trainer import Kernels
    except ImportError as error:
        return None, f"Triton, which comes with torch for CUDA, is missing here or too old ({error})"
    try:
        return Kernels(task), ""
    except CannotLowerError as error:
        return None, str(error)
