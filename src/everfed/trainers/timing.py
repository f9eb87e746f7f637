"""How long a local step takes on this machine, and which part of the model takes it: for `--explain`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everfed.learning.calling import outputs_of
from everfed.learning.dropout import counted_dropout
from everfed.learning.generators import undisturbed
from everfed.learning.layout import copied
from everfed.learning.precision import autocast
from everfed.learning.task import Task, Trainer
from everfed.units import duration

_REPEATS, _MOST_REPEATS, _LONG_MS = 3, 30, 100.0  # more often what takes less than this in all
_MOST_ON_CPU = 8  # clients that are tried together there, where each takes its time


@dataclass(frozen=True)
class PartTime:
    """One layer's milliseconds."""

    name: str
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True)
class StepTime:
    """A local step of `clients` clients together, and its parts.

    parts_of: whose parts they are: of the trainer's own step, or of one client's step in plain torch.
    """

    clients: int
    step_ms: float
    parts_of: str
    parts: list[PartTime]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def said(self) -> list[str]:
        """For people, in the order of the model."""
        whole = sum(part.forward_ms + part.backward_ms for part in self.parts) or 1.0
        each = [
            f"{part.name}: {duration(part.forward_ms / 1000)} forward, {duration(part.backward_ms / 1000)} backward, "
            f"{100 * (part.forward_ms + part.backward_ms) / whole:.0f} %"
            for part in self.parts
        ]
        who = "one client" if self.clients == 1 else f"{self.clients} clients together"
        return [f"{duration(self.step_ms / 1000)} for {who}; {self.parts_of}:", *(f"  {line}" for line in each)]


def step_time(trainer: Trainer, task: Task) -> StepTime | None:
    """Of a trainer that is not needed afterwards: what clients keep between rounds changes. None without samples."""
    holders = torch.nonzero(task.data.sizes).reshape(-1).cpu().numpy()
    most = _MOST_ON_CPU if task.data.device.type == "cpu" else len(holders)
    clients = holders[: min(trainer.at_once, most)]
    if len(clients) == 0:
        return None
    params = task.layout.flatten(task.module)

    def round() -> None:
        for part in trainer.train(params, clients, 0):
            del part

    with undisturbed(task.data.device):
        times = [_milliseconds(task, round) for _ in range(1 + _REPEATS)][1:]  # the first sets things up
        own = _own_parts(trainer, len(clients))
        parts = plain_parts(task) if own is None else own
    whose = "the parts of one client's step in plain torch" if own is None else "its layers, launched one by one"
    return StepTime(len(clients), min(times) / task.local_steps, whose, parts)


def _own_parts(trainer: Trainer, clients: int) -> list[PartTime] | None:
    """Of the kernels' layers; None for other trainers."""
    if type(trainer).__name__ != "Kernels":  # not to import Triton where it cannot help
        return None
    from everfed.engine.timing import layer_times

    return [PartTime(*times) for times in layer_times(trainer, clients)]  # type: ignore[arg-type]


def plain_parts(task: Task) -> list[PartTime]:
    """Each innermost module of the model, called again with what it got in a forward pass, and its gradient."""
    module = copied(task.module).train()
    calls: list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    leaves = [(name, m) for name, m in module.named_modules() if name and not list(m.children())]

    def noting(name: str) -> Callable[..., None]:
        return lambda m, args, kwargs: calls.append((name, m, args, kwargs))

    hooks = [leaf.register_forward_pre_hook(noting(name), with_kwargs=True) for name, leaf in leaves]
    nobody = torch.zeros((), dtype=torch.int64, device=task.data.device)
    with autocast(task.precision), counted_dropout(task.seed, nobody, 0):
        outputs_of(module, task.data.inputs(task.batch_size))
        for hook in hooks:
            hook.remove()
        found: dict[str, PartTime] = {}
        for name, leaf, args, kwargs in calls:
            forward, backward = _alone(task, leaf, args, kwargs)
            before = found.get(name, PartTime("", 0.0, 0.0))
            title = f"{name} {type(leaf).__name__}"
            found[name] = PartTime(title, before.forward_ms + forward, before.backward_ms + backward)
    return list(found.values())


def _alone(task: Task, leaf: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds of one module, forward and backward: the least of some repeats."""
    found = [_once(task, leaf, args, kwargs) for _ in range(_REPEATS)]
    while len(found) < _MOST_REPEATS and sum(map(sum, found)) < _LONG_MS:
        found.append(_once(task, leaf, args, kwargs))
    return min(forward for forward, _ in found), min(backward for _, backward in found)


def _once(task: Task, leaf: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
    given = [_fresh(value) for value in args]
    named = {name: _fresh(value) for name, value in kwargs.items()}
    # A copy of what the module gets, since it may work in place, which a leaf of autograd does not allow.
    inner = [value.clone() if isinstance(value, Tensor) else value for value in given]
    outputs: list[Any] = []
    forward = _milliseconds(task, lambda: outputs.append(leaf(*inner, **named)))
    tensors = [t for t in _flat(outputs[0]) if t.requires_grad]
    wanted = [t for t in (*given, *leaf.parameters()) if isinstance(t, Tensor) and t.requires_grad]
    if not tensors or not wanted:
        return forward, 0.0
    ones = [torch.ones_like(t) for t in tensors]
    return forward, _milliseconds(task, lambda: torch.autograd.grad(tensors, wanted, ones, allow_unused=True))


def _fresh(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _flat(part)] if isinstance(value, list | tuple) else []


def _milliseconds(task: Task, run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    if task.data.device.type == "cuda":
        torch.cuda.synchronize(task.data.device)
    return 1e3 * (time.perf_counter() - began)
