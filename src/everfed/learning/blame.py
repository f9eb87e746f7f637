"""Whose samples a model fails on, where data are read on demand and could not all be tried before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from everfed.arrays import Inputs, each, parts
from everfed.errors import InputError, first_line
from everfed.learning.calling import outputs_of
from everfed.learning.generators import undisturbed


@contextmanager
def blamed(module: nn.Module, x: Inputs, clients: Sequence[int]) -> Iterator[None]:
    """Name the client whose whole numbers lie outside of the model's tables. On a GPU, torch ends the process instead.

    x: each client's samples, [clients, batch, ...].
    """
    try:
        yield
    except IndexError as error:
        numbers = {name: part for name, part in parts(x).items() if part.dtype == torch.int64}
        if not numbers:
            raise
        place = 0 if len(clients) == 1 else _first_that_fails(module, x, len(clients))
        said = " and ".join(_range(name, part[place]) for name, part in numbers.items())
        raise InputError(
            f"the model fails on samples of client {clients[place]} ({first_line(error)}), which hold {said}; each "
            "must be below the number of rows of the model's table, and not negative."
        ) from error


def _first_that_fails(module: nn.Module, x: Inputs, clients: int) -> int:
    device = next(iter(parts(x).values())).device
    with undisturbed(device), torch.no_grad():
        for place in range(clients):
            try:
                outputs_of(module, each(lambda part, place=place: part[place], x))  # type: ignore[misc]
            except IndexError:
                return place
    return 0  # it fails only together


def _range(name: str, part: Tensor) -> str:
    of = f" of '{name}'" if name else ""
    return f"whole numbers{of} from {int(part.min())} to {int(part.max())}"
