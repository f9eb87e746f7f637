"""Gradients repeated from recordings: without a GPU, by a recorder that runs the same function on the same memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.learning.recorded import Recorded, rounded

FLEET = ef.Fleet.from_cycles([1, 2, 3, 4] * 5)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(7, 5), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, word, size):
        return self.out(self.drop(torch.cat([self.table(word), size], dim=1)))


def together(x):
    """Whether clients are trained together: a model that counts all its calls is refused before."""
    return torch._C._functorch.is_batchedtensor(x)


class Counts(nn.Linear):
    """Changes with the number of its calls in training."""

    calls = 0

    def forward(self, x):
        self.calls += self.training and together(x)
        return super().forward(x) * (1 + self.calls % 2)


class CountsInAList(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen = {"calls": [0]}

    def forward(self, x):
        self.seen["calls"][0] += self.training and together(x)
        return super().forward(x) * (1 + self.seen["calls"][0] % 2)


@dataclass(frozen=True)
class Remembers:
    """An optimiser of the user's own that keeps the last gradient as it was given."""

    lr: float = 0.1
    schedule: Any = ef.Constant()

    def init(self, rows, size, device):
        return {"last": torch.zeros(rows, size, device=device)}

    def step(self, params, grads, state, lr):
        params.sub_(2.0 * grads - state["last"], alpha=lr)
        state["last"] = grads

    def as_torch(self, params):
        raise NotImplementedError


def again(run):
    """A recorder that keeps what Python did, as a graph keeps what the GPU did."""
    run()
    return run


def pairs(two):
    draw = np.random.default_rng(0)
    x = {"word": draw.integers(0, 7, 12), "size": draw.normal(size=(12, 3)).astype(np.float32)} if two else None
    plain = draw.normal(size=(12, 4)).astype(np.float32)
    return [(x if two else plain, draw.integers(0, 3, 12)) for _ in range(len(FLEET))]


def trained(model, two, record=None, **settings):
    """(the model at the end, the trainer). record: how gradients are recorded; None: not at all."""
    settings = {"rounds": 24, "local_steps": 3, "batch_size": 4, "client": ef.SGD(0.1), "seed": 3} | settings
    data = ef.from_arrays(pairs(two))
    run = ef.start(model, data, FLEET, "algorithm1", trainer="batched", check_trainer=False, device="cpu", **settings)
    trainer = run.source.trainer
    if record:
        trainer.gradients = Recorded(trainer._gradients, trainer.module, lambda device: record)
    for _ in run:
        pass
    return run.server.params, trainer


def test_numbers_of_clients_are_rounded_up_by_an_eighth_at_most():
    assert [rounded(n) for n in (1, 7, 8, 15, 16, 17, 31, 33, 40, 41, 1000)] == [
        1,
        7,
        8,
        15,
        16,
        18,
        32,
        36,
        40,
        44,
        1024,
    ]
    for n in range(1, 3000):
        assert n <= rounded(n) <= n * 1.125
        assert rounded(rounded(n)) == rounded(n)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("client", [ef.SGD(0.1, momentum=0.5), ef.Adam(0.01), Remembers()])
def test_repeated_gradients_are_the_same(two, client):
    """Rounds of different sizes, dropout, kept state, several inputs."""
    torch.manual_seed(0)
    model = TwoInputs() if two else nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 3))
    plain, _ = trained(model, two, client=client)
    repeated, trainer = trained(model, two, again, client=client)
    torch.testing.assert_close(repeated, plain, rtol=1e-5, atol=1e-6)
    assert not trainer.gradients.refused
    assert len(trainer.gradients.graphs) > 1  # of several numbers of clients
    assert trainer.explain()[0].endswith("; recorded as CUDA graphs")


def nothing(run):
    return lambda: None


def fails(run):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("kind", "record", "why"),
    [
        (Counts, again, "its forward pass changes 'calls'"),
        (CountsInAList, again, "its forward pass changes 'seen'"),
        (nn.Linear, nothing, "its recording did not repeat it"),
        (nn.Linear, fails, "not permitted when stream is capturing"),
    ],
)
def test_what_cannot_be_repeated_goes_the_plain_way(kind, record, why):
    torch.manual_seed(0)
    model = kind(4, 3)
    plain, _ = trained(model, False)
    found, trainer = trained(model, False, record)
    assert why in trainer.gradients.refused
    assert why in trainer.explain()[0]
    assert torch.equal(found, plain)
