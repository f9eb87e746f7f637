"""How long each layer of a lowered model takes, launched one at a time instead of as a recorded round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from everfed.engine.trainer import Kernels


def layer_times(trainer: Kernels, clients: int, repeats: int = 3) -> list[tuple[str, float, float]]:
    """(what it is, milliseconds forward, backward) of each layer, for one local step of the first rows.

    The least of the repeats; a first pass, which compiles, does not count. The optimiser's step is not in it.
    """
    program, layers, device = trainer.program, trainer.lowered.layers, trainer.task.data.device
    forward, backward = ([float("inf")] * len(layers) for _ in range(2))
    for repeat in range(repeats + 1):
        step = program.begun(clients, 0)
        for number, layer in enumerate(layers):
            took = _milliseconds(device, layer.forward, step)
            forward[number] = min(forward[number], took) if repeat else float("inf")
        program.loss_gradient(clients)
        for number, layer in reversed(list(enumerate(layers))):
            took = _milliseconds(device, layer.backward, step)
            backward[number] = min(backward[number], took) if repeat else float("inf")
    return [(layer.title, forward[n], backward[n]) for n, layer in enumerate(layers)]


def _milliseconds(device: torch.device, run: Callable[..., Any], *given: Any) -> float:
    began = time.perf_counter()
    run(*given)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - began)
