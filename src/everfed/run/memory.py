"""The memory that a run needs, estimated before it is taken.

Every estimate is a lower bound, so that nothing is refused that would fit. What does not fit is refused in seconds, in
a sentence that names the setting, and not by a traceback or by the system.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from everfed.arrays import parts
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.data.targets import NEXT_TOKEN
from everfed.learning.generators import borrowed
from everfed.learning.models import Model
from everfed.learning.task import DRAW_BYTES, free_on
from everfed.machine import check_memory
from everfed.run.experiment import Experiment

_NUMBER = 4  # bytes of a parameter, an input or an activation
# The module, the server's parameters, one client's, and their gradient.
_COPIES = 4


def check_model(model: Model, shape: tuple[int, ...], classes: int, device: torch.device) -> None:
    """Refuse a model that would not fit, without building it."""
    try:
        with borrowed(), torch.device("meta"):
            size = sum(p.numel() for p in model.build(shape, classes).parameters())
    except (RuntimeError, NotImplementedError, TypeError, OverflowError) as error:
        if "overflow" not in str(error).lower():  # a plugin's model that cannot be built without numbers
            return
        size = 2**62  # torch counts no further
    what = f"training a model of {size:,} parameters"
    check_memory(what, _COPIES * _NUMBER * size, "use a smaller model", free=free_on(device))


def check_samples(data: FederatedData | OnDemand, device: torch.device) -> None:
    """Refuse samples of which a second copy, on the device, would not fit."""
    if isinstance(data, FederatedData):
        what = f"a copy of the {len(data.y):,} samples on the device"
        size = data.y.nbytes + sum(part.nbytes for part in parts(data.x).values())
        check_memory(what, size, "use fewer, or load them on demand", free=free_on(device))


def check_scores(data: FederatedData | OnDemand, batch_size: int, device: torch.device) -> None:
    """Refuse so many classes that a batch's scores and their gradient would not fit."""
    scores = data.classes * math.prod(data.target_shape()) if data.task == NEXT_TOKEN else data.classes
    what = f"the scores of {data.classes:,} classes for batches of {batch_size:,}"
    check_memory(
        what, 2 * _NUMBER * batch_size * scores, "use a smaller batch_size, or fewer classes", free=free_on(device)
    )


@contextmanager
def largest_output(module: nn.Module) -> Iterator[list[int]]:
    """Fills a list with one number: how many numbers the largest output of a layer has, in what is run inside."""
    found = [0]

    def look(layer: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            found[0] = max(found[0], output.numel())

    hooks = [layer.register_forward_hook(look) for layer in module.modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def check_training(e: Experiment, parameters: int, inputs: int, widest: int, device: torch.device) -> None:
    """Refuse local training that would not fit even for one client at a time.

    parameters: of the model. inputs: numbers in a sample. widest: numbers in the largest output for one sample.
    """
    needs = {
        ("model", f"a model of {parameters:,} parameters"): _COPIES * _NUMBER * parameters,
        ("batch_size", f"batches of {e.batch_size:,} samples"): e.batch_size * _NUMBER * (inputs + widest),
    }
    if device.type == "cpu":  # kernels on a GPU draw step by step
        drawn = e.local_steps * e.batch_size
        key = "local_steps" if e.local_steps > e.batch_size else "batch_size"
        needs[key, f"{e.local_steps:,} local steps of {e.batch_size:,} samples"] = DRAW_BYTES * drawn
    (key, what), _ = max(needs.items(), key=lambda item: item[1])
    instead = f"use a smaller {key}" if key != "local_steps" else "use fewer local_steps"
    check_memory(f"training with {what}", sum(needs.values()), instead, free=free_on(device))
