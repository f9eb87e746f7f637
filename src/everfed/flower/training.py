"""What a client does in a round: the simulator's local training, on its own data alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from everfed.arrays import taken
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.errors import EverfedWarning, InputError
from everfed.flower.codec import Codec
from everfed.flower.node_state import Memory
from everfed.flower.own_data import Told, data_of_client
from everfed.flower.payload import read
from everfed.flower.thinning import RECORD as UPDATE
from everfed.flower.wire import ARRAYS, METRICS, Ask, Vector, as_record
from everfed.run.experiment import Experiment
from everfed.run.setup import Setup

Samples = Callable[[int], tuple[Any, Any]]
_KEPT = "trainer"
_CHECKED = "checked"


class LocalTraining:
    """One client's trainer: the same minibatches, steps and optimiser state as in a simulation."""

    def __init__(
        self,
        experiment: Experiment,
        client: int,
        samples: Samples | None = None,
        memory: Memory | None = None,
        told: Told | None = None,
    ) -> None:
        """samples: gives a client's own (x, y); None: its part of the experiment's data set.

        told: the task and its number of classes, for own samples; what it lacks is the experiment's.
        memory: remembers that the trainer was compared with plain autograd, so that a device pays for it once.
        """
        fleet = experiment.make_fleet()
        held = {"validation": experiment.validation, "early_stopping.part": experiment.early_stopping.part}
        for key, part in held.items():
            if samples is not None and part:
                raise InputError(
                    f"{key} holds samples out of the experiment's own data set, and this client brings its own; "
                    f"leave {key} at 0, and give the server a validation set in the test set's place."
                )
        if samples is None:
            data = alone(experiment.make_data(fleet), client)
        else:
            data = _placed(data_of_client(samples(client), experiment, told or {}), client, len(fleet))
        self.client, self.keeps = client, experiment.keep_state
        if memory is not None and memory.load(_CHECKED) is not None:
            experiment = replace(experiment, check_trainer=False)
        with warnings.catch_warnings():  # what there is to say of the whole fleet, the server has said
            warnings.simplefilter("ignore", EverfedWarning)
            self.setup = Setup(experiment, data)
            slots = self.setup.timeline().slots if experiment.asynchronous else 1
            self.trainer = self.setup.trainer(slots=slots)
        self._note_check(memory)
        self.shapes = self.setup.layout.shapes_by_name()

    def _note_check(self, memory: Memory | None) -> None:
        """What was found when the trainer was made; a slower one than `auto` wanted has to be looked for every time."""
        check = self.trainer.check
        if check is None:
            return
        for failure in check.rejected:
            warnings.warn(f"on this device, {failure}.", EverfedWarning, stacklevel=3)
        if memory is not None and not check.rejected and check.difference is not None:
            memory.save(_CHECKED, {"difference": np.array(check.difference), "tolerance": np.array(check.tolerance)})

    def train(self, sent: Vector, ask: Ask, memory: Memory, steps: int | None = None) -> tuple[Tensor, Tensor, float]:
        """(the parameters after the round, the update, the mean loss of its steps). steps: None takes all."""
        if self.keeps:
            self._recall(ask.round, memory)
        params = torch.from_numpy(sent).to(self.setup.device)
        # Given by client, as where each works in a time of its own, numbers round as they do there.
        work = (ask.round,) if steps is None else (np.array([ask.round]), np.array([steps]))
        for trained in self.trainer.train(params, np.array([self.client]), *work):
            loss = float(trained.losses[0])
            delta = trained.deltas[0].clone()
        if self.keeps:
            self._keep(ask, memory)
        return params + delta, delta, loss

    def _recall(self, round: int, memory: Memory) -> None:
        """Go on from the optimiser's state before this round, even if the round was trained once already."""
        earlier = [name for name in memory.names(_KEPT) if _round_of(name) < round]
        kept = memory.load(earlier[-1]) if earlier else None
        if kept is not None:
            self.trainer.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()})

    def _keep(self, ask: Ask, memory: Memory) -> None:
        """Keep the state after this round, and of older ones what a restarted server may come back to."""
        state = {name: value.cpu().numpy() for name, value in self.trainer.state_dict().items()}
        if sum(value.size for name, value in state.items() if name != "row_of") == 0:
            return  # an optimiser without state
        memory.save(f"{_KEPT}-{ask.round:010d}", state)
        settled = [name for name in memory.names(_KEPT) if _round_of(name) < ask.back_to]
        for name in settled[:-1]:
            memory.drop(name)

    def reply(self, message: Message, ask: Ask, memory: Memory, steps: int | None = None) -> Message:
        """Train as a message asks, and answer as Flower's apps do. ask.round: a slot, where there are no rounds."""
        arrays = message.content.get(ARRAYS)
        values = {name: read(value) for name, value in arrays.items()} if isinstance(arrays, ArrayRecord) else {}
        if {name: value.shape for name, value in values.items()} != self.shapes:
            raise InputError("the server sent another model than this client trains; give both the same experiment.")
        sent = np.concatenate([values[name].reshape(-1) for name in self.shapes]).astype(np.float32)
        after, delta, loss = self.train(sent, ask, memory, steps)
        metrics = MetricRecord({"train_loss": loss, "num-examples": int(self.setup.data.sizes()[self.client])})
        sizes = self.setup.fleet.message_bits
        codec = Codec(self.setup.experiment.compression, sizes, self.setup.experiment.seeds.batch)
        small = codec.encode(delta, self.client, ask.round)
        content = {ARRAYS: as_record(after.cpu().numpy(), self.shapes)} if small is None else {UPDATE: small}
        return Message(RecordDict({**content, METRICS: metrics}), reply_to=message)


def alone(data: FederatedData | OnDemand, client: int) -> FederatedData:
    """The same federation as one client sees it: its own samples, and nobody else's."""
    if not 0 <= client < len(data):
        raise InputError(f"this node is client {client}, but the data have clients 0 to {len(data) - 1}.")
    if isinstance(data, OnDemand):
        x, y = data.alone(client)
    else:
        own = data.samples_of(client)
        x, y = taken(data.x, own), data.y[own]
    everybody = np.array([0, len(y)])  # starts, which are set below
    none = taken(x, slice(0))
    mine = FederatedData(
        x, y, np.arange(len(y)), everybody, none, y[:0], data.classes, data.name, data.augment, data.task
    )
    return _placed(mine, client, len(data))


def _placed(mine: FederatedData, client: int, clients: int) -> FederatedData:
    """The samples of one client under its own number, since its minibatches depend on that."""
    starts = np.where(np.arange(clients + 1) <= client, 0, len(mine.order))
    return replace(mine, starts=starts)


def _round_of(name: str) -> int:
    return int(name.removeprefix(f"{_KEPT}-"))
