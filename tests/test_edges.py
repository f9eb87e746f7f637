"""Corners where a wrong result would be silent, and mistakes that should be told early."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.errors import InputError

FLEET = ef.Fleet.from_cycles([1, 1])
SETTINGS = {"rounds": 2, "local_steps": 2, "batch_size": 4, "device": "cpu", "client": ef.SGD(0.1)}


def points(n: int = 12):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(int)


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
def test_tied_weights_are_trained_and_stay_tied(trainer):
    torch.manual_seed(0)
    model = Tied()
    history = ef.simulate(model, [points()] * 2, FLEET, "fedavg", trainer=trainer, **SETTINGS)
    assert torch.equal(history.params["a.weight"], history.params["b.weight"])
    assert not torch.equal(history.params["a.weight"], model.a.weight)


def test_a_layer_without_a_batching_rule_is_trained_one_by_one():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, slope):
            return 2 * slope

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, x):
            return self.out(Twice.apply(x))

    with pytest.raises(InputError, match="vmap"):
        ef.simulate(Own, [points()] * 2, FLEET, trainer="batched", **SETTINGS)
    with pytest.warns(ef.EverfedWarning, match="taking 'one-by-one' instead"):
        found = ef.simulate(Own, [points()] * 2, FLEET, **SETTINGS)
    expected = ef.simulate(Own, [points()] * 2, FLEET, trainer="one-by-one", **SETTINGS)
    for name, value in expected.params.items():
        assert torch.equal(found.params[name], value)


def test_the_plain_function_torch_dropout_is_repeatable_too():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, x):
            return self.out(torch.dropout(x, 0.5, self.training))

    one, two, batched = (
        ef.simulate(Plain, [points()] * 2, FLEET, trainer=t, **SETTINGS)
        for t in ("one-by-one", "one-by-one", "batched")
    )
    assert torch.equal(one.params["out.weight"], two.params["out.weight"])
    torch.testing.assert_close(one.params["out.weight"], batched.params["out.weight"])


def classified(labels):
    x = np.zeros((len(labels), 2), np.float32)
    return Dataset("mine", x, np.asarray(labels), x, np.zeros(len(labels), np.int64), 2)


x, y = points()
WRONG = {
    "a squared error that would broadcast": (
        lambda: ef.simulate(nn.Linear(3, 1), [(x, y.astype(float))] * 2, FLEET, **SETTINGS), "both must be the same"),
    "negative labels in a data set": (
        lambda: classified([0, -1, 1, 0]).partition(2, "dirichlet"), "run from 0 to 1"),
    "an endless alpha": (lambda: ef.load("digits").partition(2, "dirichlet", alpha=np.inf), "above 0 and at most"),
    "bytes here and floats there": (
        lambda: ef.from_arrays([(np.zeros((2, 3), np.uint8), [0, 1]), (np.zeros((2, 3)), [0, 1])]), "different types"),
    "a test set of other samples": (
        lambda: ef.from_arrays([(x, y)], test=(x[:, :2], y)), "different shapes"),
    "class numbers and float test labels": (
        lambda: ef.from_arrays([(x, y)], test=(x, y.astype(float))), "labels of different types"),
    "one-hot labels": (lambda: ef.from_arrays([(x, np.eye(2, dtype=int)[y])]), "not one-hot rows"),
    "a list as a fleet": (lambda: ef.simulate("mlp", [(x, y)] * 2, [1, 1], **SETTINGS), "Or give a Fleet"),
    "an optimiser by a wrong name": (
        lambda: ef.simulate("mlp", [(x, y)] * 2, FLEET, rounds=1, client="sdg"), "Did you mean 'sgd'"),
    "a rate as an optimiser": (
        lambda: ef.simulate("mlp", [(x, y)] * 2, FLEET, rounds=1, client=0.1), "such as SGD"),
    "no model": (lambda: ef.simulate(None, [(x, y)] * 2, FLEET, **SETTINGS), "Or give a Module"),
    "half an evaluation": (lambda: ef.simulate("mlp", [(x, y)] * 2, FLEET, eval_every=2.5, **SETTINGS), "eval_every"),
    "a fraction of a byte": (
        lambda: ef.simulate("mlp", [(x, y)] * 2, FLEET, memory_budget=1e9, **SETTINGS), "memory_budget"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_told_before_any_training(mistake):
    make, told = WRONG[mistake]
    with pytest.raises(InputError, match=told):
        make()


def test_a_part_by_name_is_the_value_with_its_defaults():
    named = ef.Experiment(client="adam", server_optimizer="momentum", model="logistic", policy="greedy")
    assert named.client == ef.OPTIMIZERS["adam"]()
    assert named.server_optimizer == ef.ServerMomentum()
    assert named.model == ef.MODELS["logistic"]()
    assert named.policy == ef.Greedy()


def test_a_torch_device_is_as_good_as_its_name():
    settings = {**SETTINGS, "device": torch.device("cpu")}
    assert ef.simulate("mlp", [points()] * 2, FLEET, **settings).participations == 4


def test_lazy_layers_start_from_the_seed_too():
    def lazy() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))

    torch.manual_seed(1)
    one = ef.start(lazy, [points()] * 2, FLEET, **SETTINGS).params
    torch.manual_seed(2)
    two = ef.start(lazy, [points()] * 2, FLEET, **SETTINGS).params
    assert torch.equal(one["1.weight"], two["1.weight"])
