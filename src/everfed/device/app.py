"""A ClientApp for a trainer of one's own, in NumPy or in anything else that takes and gives arrays.

def train(parameters, data, work):          # {name: array}, what `data` gave, a Work
    ...
    return parameters, mean_loss

app = device_app(train, data, policy=UniformWindow(), energy=Simulated(fleet), local_steps=10, batch_size=10, lr=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from everfed.arrays import Ints
from everfed.errors import InputError
from everfed.flower.client import EnergyMod
from everfed.flower.device import client_of
from everfed.flower.energy import EnergySource
from everfed.flower.wire import ARRAYS, METRICS, Ask
from everfed.random import Purpose, words
from everfed.scheduling.policies import Policy

Parameters = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Work:
    """A round of training, as a trainer is told of it."""

    client: int
    round: int
    local_steps: int
    batch_size: int
    lr: float
    seed: int

    def minibatches(self, samples: int) -> Ints:
        """[local_steps, batch_size] numbers of samples, drawn with replacement: those that the simulator draws."""
        steps = self.round * self.local_steps + np.arange(self.local_steps)
        blocks = np.arange(-(-self.batch_size // 4))  # each gives four numbers
        drawn = words(self.seed, Purpose.BATCH, self.client, steps[:, None], blocks[None, :])
        of_a_step = np.moveaxis(drawn, 0, -1).reshape(self.local_steps, -1)[:, : self.batch_size]
        return ((of_a_step * np.uint64(samples)) >> np.uint64(32)).astype(np.int64)


# (parameters, data, work) -> (new parameters, mean loss); the parameters are the trainer's to change.
Trainer = Callable[[Parameters, Any, Work], tuple[Mapping[str, npt.ArrayLike], float]]


def device_app(
    train: Trainer,
    data: Callable[[Mapping[str, Any]], Any] | None = None,
    *,
    policy: Policy,
    energy: EnergySource,
    local_steps: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
    name: str = "everfed",
) -> ClientApp:
    """A ClientApp that trains with one's own function, in the rounds that the device's energy allows.

    data: gives the client's data from the node's configuration (`client`, and whatever else is in it), once per
    process. policy, local_steps, batch_size, lr, seed: as in the server's experiment. name: of the run, below the
    node's state-dir.
    """
    app = EnergyMod(policy, energy, name).app()
    loaded: dict[int, Any] = {}  # by client

    @app.train()
    def trained(message: Message, context: Context) -> Message:
        ask, client = Ask.of(message.content), client_of(context.node_config)
        if ask is None:
            raise InputError("the message does not say which round it is of; the server must be everfed's.")
        if client not in loaded:
            loaded[client] = data(context.node_config) if data else None
        sent = _parameters(message)
        shapes = {key: value.shape for key, value in sent.items()}
        made, loss = train(sent, loaded[client], Work(client, ask.round, local_steps, batch_size, lr, seed))
        arrays = ArrayRecord(dict(_checked(made, shapes)))
        if not math.isfinite(loss):
            raise InputError(f"the trainer's loss is {loss}; it must be a finite number.")
        return Message(
            RecordDict({ARRAYS: arrays, METRICS: MetricRecord({"train_loss": float(loss)})}), reply_to=message
        )

    return app


def _parameters(message: Message) -> Parameters:
    arrays = message.content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise InputError("the message holds no model.")
    return {key: np.array(value.numpy(), np.float32) for key, value in arrays.items()}  # copies, to be changed


def _checked(made: Mapping[str, npt.ArrayLike], shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, Array]]:
    """What a trainer returned, as Flower's arrays, in the order of the model's parameters."""
    if set(made) != set(shapes):
        raise InputError(f"the trainer returned the parameters {sorted(made)}; the model has {sorted(shapes)}.")
    out = []
    for key, shape in shapes.items():
        value = np.ascontiguousarray(made[key], np.float32)
        if value.shape != shape:
            raise InputError(f"the trainer returned '{key}' of shape {value.shape}; the model's has shape {shape}.")
        out.append((key, Array(value)))
    return out
