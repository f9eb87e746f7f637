"""Which trainer a task gets, and why."""

from __future__ import annotations

from everfed.errors import InputError
from everfed.learning.batched import Batched
from everfed.learning.local import Task, Trainer


def kernels(task: Task) -> Trainer:
    """The fast trainer, or an error that says why it cannot be had."""
    trainer, reason = _fast(task)
    if trainer is None:
        raise InputError(f"trainer='kernels' was asked for, but {reason}; use trainer='auto' or 'batched'.")
    return trainer


def auto(task: Task) -> Trainer:
    """Kernels where they exist for the model, the general batched trainer otherwise."""
    if task.data.device.type == "cpu":  # spares importing Triton where it cannot help
        return Batched(task, "kernels need a GPU, and this run trains on the CPU")
    trainer, reason = _fast(task)
    return trainer or Batched(task, reason)


def _fast(task: Task) -> tuple[Trainer | None, str]:
    try:
        from everfed.learning.fast.lower import CannotLowerError
        from everfed.learning.fast.trainer import Kernels
    except ImportError as error:
        return None, f"Triton, which comes with torch for CUDA, is missing here ({error})"
    try:
        return Kernels(task), ""
    except CannotLowerError as error:
        return None, str(error)
