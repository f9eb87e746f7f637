"""The model of a run as a module again, from what its folder says of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everfed.arrays import Inputs, each
from everfed.errors import InputError, first_line
from everfed.learning.generators import borrowed
from everfed.run.experiment import Experiment
from everfed.run.live import Live
from everfed.run.setup import Setup, built


def anatomy(setup: Setup) -> dict[str, Any]:
    """What a model is built from, and what it is called with: for the folder of a run."""

    def described(value: Tensor) -> str:
        return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(map(str, value.shape[1:]))}]"

    data = setup.data
    built_for = {"shape": data.input_shape(), "classes": data.classes, "task": data.task, "target": data.target_shape()}
    return {"built_for": built_for, "inputs": each(described, setup.samples.inputs(1))}


def made_up(described: Any, count: int) -> Inputs:
    """Inputs of the shapes and types that `anatomy` told: random floats, and zeros, which are a token everywhere.

    Of whole numbers that are called a mask, ones: everything is seen.
    """

    def made(text: str, name: str = "") -> Tensor:
        kind, _, shape = text.rstrip("]").partition(" [")
        dtype: torch.dtype = getattr(torch, kind)
        size = (count, *(int(n) for n in shape.split(", ") if n))
        if dtype.is_floating_point:
            return torch.rand(size, generator=torch.Generator().manual_seed(0)).to(dtype)
        if dtype == torch.bool:  # some of both: a mask that hides everything, either way round, fits no model
            return (torch.arange(math.prod(size)) % 2 == 0).reshape(size)
        return torch.full(size, int("mask" in name), dtype=dtype)

    if isinstance(described, str):
        return made(described)
    return {name: made(text, name) for name, text in described.items()}


def rebuilt(
    experiment: Experiment, environment: Mapping[str, Any], params: dict[str, Tensor], module: nn.Module | None = None
) -> nn.Module:
    """A module with these weights, on the CPU, ready for inference. module: one like the trained one; it is copied."""
    made = _built(experiment, environment) if module is None else copy.deepcopy(module)
    try:
        made.load_state_dict(params)
    except RuntimeError as error:
        said = " ".join(str(error).split()[:40])
        raise InputError(f"the module is not like the one that was trained: {said}.") from error
    return made.cpu().eval().requires_grad_(False)


def _built(experiment: Experiment, environment: Mapping[str, Any]) -> nn.Module:
    model: Any = experiment.model
    if isinstance(model, Live):
        raise InputError(
            f"the model '{model.name}' was an object in the process that ran this experiment, and its folder holds "
            "only its weights; pass a module like it: open_run(folder).model(module)."
        )
    if "model" in environment:
        about = environment["model"]["built_for"]
        shapes = tuple(about["shape"]), tuple(about["target"])
    elif isinstance(experiment.data, Live):
        raise InputError(
            "the folder is of an older version, which did not note the shape of the samples, and the data were objects "
            "of another process; pass a module like the trained one: open_run(folder).model(module)."
        )
    else:
        try:
            data = experiment.make_data(experiment.make_fleet())
        except OSError as error:
            raise InputError(f"the data that the model was built for cannot be loaded: {first_line(error)}.") from error
        about = {"classes": data.classes, "task": data.task}
        shapes = data.input_shape(), data.target_shape()
    with borrowed():  # its first weights are drawn, and not used
        return built(model, shapes[0], about["classes"], about["task"], shapes[1])
