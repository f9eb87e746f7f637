"""How much memory a round's training may take."""

from __future__ import annotations

import torch

from everfed.learning.task import Task
from everfed.machine import free_memory

# Without a budget from the user: this part of the memory that is free, and on a CPU no more than
# CPU_CEILING, since larger chunks gain nothing there.
_PART_OF_FREE = 0.5
CPU_CEILING = 2 << 30


def budget(task: Task) -> int:
    """Bytes for the participants that are trained at once."""
    if task.memory_budget is not None:
        return task.memory_budget
    if task.data.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(task.data.device)
        return int(free * _PART_OF_FREE)
    return min(int(free_memory() * _PART_OF_FREE), CPU_CEILING)
