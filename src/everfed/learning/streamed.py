"""Samples on the device, only those that the clients being trained have drawn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Ints, each, joined, parts, taken
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.learning.task import DeviceData, own_tensor

# Bytes of samples read at once; the drawn ones stay, the others go before the next are read.
_BLOCK = 64 << 20

# Several GPUs read the same files in threads of their own; readers of files need not allow that.
_READING = threading.Lock()


def on_device(data: FederatedData | OnDemand, device: torch.device) -> DeviceData:
    """The data as a trainer reads them."""
    return StreamedSamples(data, device) if isinstance(data, OnDemand) else DeviceData(data, device)


class StreamedSamples(DeviceData):
    """On-demand data: `draw` reads the clients it is asked for, and holds what was drawn until the next draw.

    The draws are those of `DeviceData`: they depend on the client's number and size, not on where its
    samples lie. So a run is the same, bit for bit, wherever its samples come from.
    """

    whole: ClassVar[bool] = False

    def __init__(self, data: OnDemand, device: torch.device) -> None:
        self.data, self.device, self.augment = data, device, data.augment
        self.sizes = own_tensor(data.sizes(), device)
        x, y = data.alone(0)  # to try the model on
        self.x, self.y = each(lambda part: own_tensor(part, device), x), own_tensor(y, device)
        self.sample_bytes = max(1, sum(part.nbytes for part in parts(x).values()) // len(y))

    def _numbers(self, clients: Tensor, within: Tensor) -> Tensor:
        who, drawn = clients.cpu().numpy(), within.cpu().numpy()
        numbers, xs, ys, held = np.empty_like(drawn), [], [], 0
        for part in self._blocks(who):
            with _READING:
                x, y = self.data.read(who[part])
            ends = np.cumsum(self.data.sizes()[who[part]])
            place = drawn[part] + (ends - self.data.sizes()[who[part]])[:, None, None]
            used, where = np.unique(place, return_inverse=True)
            numbers[part] = where.reshape(place.shape) + held
            held += len(used)
            xs.append(taken(x, used))
            ys.append(y[used])
        # What `read` gives is plain, and indexing and joining keep it so: fresh arrays in C order.
        self.x = each(lambda part: torch.as_tensor(part, device=self.device), joined(xs))
        self.y = torch.as_tensor(np.concatenate(ys), device=self.device)
        return torch.as_tensor(numbers, device=self.device)

    def _blocks(self, clients: Ints) -> Iterator[slice]:
        """Clients one after the other, as many at once as a block has room for, and at least one."""
        filled = np.cumsum(self.data.sizes()[clients]) * self.sample_bytes // _BLOCK
        bounds = [0, *(np.flatnonzero(np.diff(filled)) + 1).tolist(), len(clients)]
        for start, end in pairwise(bounds):
            yield slice(start, end)
