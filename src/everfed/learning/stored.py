"""What clients keep between rounds, as trainers store it: in rows, or by the names that torch's optimisers use.

A run that goes on may train in another way than it began, for it was moved to another machine, say. Each trainer reads
the other's form, and changes nothing if it cannot.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everfed.errors import InputError
from everfed.learning.optim import SGD, Adam
from everfed.learning.task import Task

Stored = dict[str, Tensor]

# Each column of rows, and torch's name for it; `count` is one number per client and not per parameter.
_TORCH: dict[type, dict[str, str]] = {
    SGD: {"velocity": "momentum_buffer"},
    Adam: {"mean": "exp_avg", "square": "exp_avg_sq", "count": "step"},
}


def as_rows(state: Stored, task: Task) -> Stored:
    """One row per client that has trained: what 'batched' and 'kernels' store. A new dictionary, or an InputError."""
    of_one_device(state)
    columns = task.optimizer.init(0, task.layout.size, torch.device("cpu"))
    clients = len(task.data.sizes)
    if "row_of" in state:
        used = int(state["row_of"].max().item()) + 1 if len(state["row_of"]) else 0
        shapes = {name: (used, *column.shape[1:]) for name, column in columns.items()}
        if len(state["row_of"]) != clients or any(n not in state or state[n].shape != s for n, s in shapes.items()):
            raise _of_others()
        return dict(state)
    row_of = np.full(clients, -1, np.int64)
    if not state:
        return {"row_of": torch.from_numpy(row_of), **columns}
    known = _known(task, columns, "one-by-one", "batched")
    seen = sorted({int(key.split(".")[0]) for key in state})
    if seen[-1] >= clients:
        raise _of_others()
    row_of[seen] = np.arange(len(seen))
    parameters = range(len(task.layout.sizes))
    try:
        rows = {
            name: torch.stack([state[f"{client}.0.step"].float().reshape(()) for client in seen])
            if name == "count"
            else torch.stack(
                [torch.cat([state[f"{c}.{p}.{known[name]}"].reshape(-1) for p in parameters]) for c in seen]
            )
            for name in columns
        }
    except KeyError:
        raise _of_others() from None
    if any(rows[name].shape[1:] != column.shape[1:] for name, column in columns.items()):
        raise _of_others()
    return {"row_of": torch.from_numpy(row_of), **rows}


def by_client(state: Stored, task: Task) -> Stored:
    """By client, number of the parameter and torch's name: what 'one-by-one' stores. A new dictionary, or an error."""
    of_one_device(state)
    if "row_of" not in state:
        return dict(state)
    rows = as_rows(state, task)
    columns = task.optimizer.init(0, task.layout.size, torch.device("cpu"))
    row_of = rows["row_of"].cpu().numpy()
    seen = np.flatnonzero(row_of >= 0).tolist()
    if not seen or not columns:
        return {}
    known = _known(task, columns, "batched", "one-by-one")
    made: Stored = {}
    for client in seen:
        for name in columns:
            row = rows[name][int(row_of[client])]
            parts = [row] * len(task.layout.sizes) if name == "count" else list(task.layout.unflatten(row).values())
            made |= {f"{client}.{p}.{known[name]}": part.clone() for p, part in enumerate(parts)}
    return made


def of_one_device(state: Stored) -> None:
    if "devices" in state:
        count = int(state["devices"])
        raise InputError(
            f"the stored state is of {count} GPUs; go on with as many as the run began with: gpus = {count}."
        )


def _known(task: Task, columns: Stored, theirs: str, mine: str) -> dict[str, str]:
    known = _TORCH.get(type(task.optimizer), {})
    if any(name not in known for name in columns):
        raise InputError(
            f"what clients keep was stored by the trainer '{theirs}', and '{mine}' cannot read it for the optimiser "
            f"{type(task.optimizer).__name__}; go on with trainer = '{theirs}'."
        )
    return known


def _of_others() -> InputError:
    return InputError(
        "the stored state is of another optimiser, model or number of clients; go on with the settings that the run "
        "began with."
    )
