"""What clients keep, read by another trainer than the one that stored it, or refused before anything changes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.run import setup as setups
from everfed.trainers import choose, several
from kernel_models import CLASSES, chain, images, task

CPU = torch.device("cpu")
OPTIMIZERS = {
    "sgd": ef.SGD(0.1),
    "momentum": ef.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adam": ef.Adam(1e-2, eps=1e-3),
    "adam, forgotten": ef.Adam(1e-2, eps=1e-3),
}
TRAINERS = ["batched", "one-by-one", *(["kernels"] if "TRITON_INTERPRET" in os.environ else [])]


@dataclass(frozen=True)
class Remembers:
    """An optimiser of the user's own that keeps the last gradient."""

    lr: float = 0.1
    schedule: Any = ef.Constant()

    def init(self, rows, size, device):
        return {"last": torch.zeros(rows, size, device=device)}

    def step(self, params, grads, state, lr):
        params.sub_(grads + state["last"], alpha=lr)
        state["last"].copy_(grads)

    def as_torch(self, params):
        return torch.optim.SGD(params, lr=1.0, momentum=0.5)


def model():
    torch.manual_seed(0)
    return chain(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, CLASSES))


def trained(trainer, clients, round):
    params = trainer.task.layout.flatten(model())
    return torch.cat([part.deltas.clone() for part in trainer.train(params, np.array(clients), round)])


def copied(state):
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("after", TRAINERS)
@pytest.mark.parametrize("before", TRAINERS)
def test_every_trainer_goes_on_from_the_state_of_every_other(before, after, optimizer):
    keep = optimizer != "adam, forgotten"

    def made(name):
        return ef.TRAINERS[name](task(model(), images((6,), clients=5), OPTIMIZERS[optimizer], keep_state=keep))

    first, uncut, other = made(before), made("one-by-one"), made(after)
    for one in (first, uncut):
        trained(one, [0, 3], 0)
        trained(one, [3, 1], 1)
    other.load_state_dict(copied(first.state_dict()))
    for round, clients in ((2, [4, 3, 0]), (3, [1, 4, 2])):
        expected = trained(uncut, clients, round)
        assert (trained(other, clients, round) - expected).norm() < 1e-5 * expected.norm()
    again = made(before)
    again.load_state_dict(copied(other.state_dict()))
    expected = trained(uncut, [2, 3], 4)
    assert (trained(again, [2, 3], 4) - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize(("before", "after"), [("batched", "one-by-one"), ("one-by-one", "batched")])
def test_an_optimiser_of_ones_own_goes_on_with_its_trainer_alone(before, after):
    first, other = (ef.TRAINERS[name](task(model(), images((6,)), Remembers())) for name in (before, after))
    trained(first, [0, 2], 0)
    with pytest.raises(ef.InputError, match=f"by the trainer '{before}', and '{after}' .* trainer = '{before}'"):
        other.load_state_dict(first.state_dict())
    assert trained(other, [0, 2], 0).norm() > 0


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_state_of_other_settings_is_refused_and_changes_nothing(trainer):
    def made(optimizer, clients=3, hidden=None):
        net = hidden or model()
        return ef.TRAINERS[trainer](task(net, images((6,), clients=clients), optimizer))

    adam, momentum = ef.Adam(1e-2), ef.SGD(0.1, momentum=0.5)
    wide = chain(nn.Linear(6, CLASSES))
    for theirs in (made(momentum), made(adam, clients=9), made(adam, hidden=wide)):
        params = theirs.task.layout.flatten(theirs.task.module)
        for part in theirs.train(params, np.array([len(theirs.task.data.sizes) - 1]), 0):
            del part
        mine = made(adam)
        trained(mine, [0, 1], 0)
        before = copied(mine.state_dict())
        for form in (theirs, *([] if trainer == "batched" else [_as_batched(theirs)])):
            if trainer == "one-by-one" and form is theirs:
                continue  # torch's optimisers themselves find out when they are given it
            with pytest.raises(ef.InputError, match="of another optimiser, model or number of clients"):
                mine.load_state_dict(form.state_dict())
            after = mine.state_dict()
            assert all(torch.equal(after[name], value) for name, value in before.items())


def _as_batched(trainer):
    other = ef.TRAINERS["batched"](trainer.task)
    other.load_state_dict(trainer.state_dict())
    return other


@pytest.mark.parametrize("client", [ef.SGD(0.1), ef.Adam(0.01), ef.SGD(0.1, momentum=0.9)])
@pytest.mark.parametrize(("before", "after"), [("batched", "one-by-one"), ("one-by-one", "batched")])
def test_a_stored_run_goes_on_where_auto_takes_another_trainer(before, after, client, monkeypatch, tmp_path):
    data = ef.load("digits").partition(5, "iid")
    fleet = ef.Fleet.from_cycles([1, 1, 2, 1, 4])
    settings = {"rounds": 6, "local_steps": 2, "batch_size": 4, "eval_every": 6, "device": "cpu", "client": client}

    def started(name):
        monkeypatch.setattr(choose, "_in_turn", lambda task: ([name], "a test"))
        return ef.start("mlp", data, fleet, "algorithm1", **settings)

    uncut, first, other = started(before), started(before), started(after)
    for _ in uncut:
        pass
    for record in first:
        if record.round == 2:
            break
    other.load_state_dict(copied(first.state_dict()))
    assert other.done == 3
    for _ in other:
        pass
    torch.testing.assert_close(other.server.params, uncut.server.params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("method", ["algorithm1", "ht-varp", "renewal"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1), (1, 3), (2, 3)])
def test_a_run_that_is_refused_another_number_of_gpus_is_as_it_was(before, after, method, trainer, monkeypatch):
    data = ef.load("digits").partition(5, "iid")

    def started(count):
        monkeypatch.setattr(setups, "training_devices", lambda name, gpus: [CPU] * count)
        settings = {"rounds": 6, "local_steps": 2, "batch_size": 4, "eval_every": 6, "device": "cpu"}
        fleet = ef.Fleet.from_cycles([1, 1, 2, 1, 4])
        return ef.start("mlp", data, fleet, method, client=ef.Adam(0.01), trainer=trainer, **settings)

    first, other = started(before), started(after)
    for run, rounds in ((first, 3), (other, 1)):
        for record in run:
            if record.round + 1 == rounds:
                break
    kept = copied(other.state_dict())
    with pytest.raises(ef.InputError, match=f"go on with as many as the run began with: gpus = {before}"):
        other.load_state_dict(copied(first.state_dict()))
    after_all = other.state_dict()
    assert after_all.keys() == kept.keys()
    assert all(torch.equal(after_all[name], value) for name, value in kept.items())


@pytest.mark.parametrize(("before", "after"), [("batched", "one-by-one"), ("one-by-one", "batched")])
def test_several_devices_go_on_with_another_trainer(before, after, monkeypatch):
    monkeypatch.setattr(several, "ThreadPoolExecutor", lambda count, **rest: ThreadPoolExecutor(1, **rest))
    data = images((6,), clients=7)

    def made(name):
        given = task(model(), data, ef.Adam(1e-2, eps=1e-3), device=CPU)
        return several.several(name, given, False, [CPU] * 2, lambda device: given.data)

    first, uncut, other = made(before), made(before), made(after)
    for one in (first, uncut):
        trained(one, [0, 3, 5, 6], 0)
    other.load_state_dict(copied(first.state_dict()))
    expected = trained(uncut, [0, 1, 5, 6], 1)
    assert (trained(other, [0, 1, 5, 6], 1) - expected).norm() < 1e-5 * expected.norm()
