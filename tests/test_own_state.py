"""A model that keeps a state in plain attributes during training is refused; caches and notes are not a state."""

import random
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef

FLEET = ef.Fleet.from_cycles([1, 1, 2])


def data():
    draw = np.random.default_rng(0)
    each = [(draw.integers(0, 9, (6, 5)), draw.integers(0, 9, (6, 5))) for _ in range(3)]
    return ef.from_arrays(each, test=each[0], classes=9)


DATA = data()


class Net(nn.Module):
    """A model of tokens. first: what it keeps; step: what training does to it."""

    def __init__(self, first=None, step=lambda self, h: h):
        super().__init__()
        self.table, self.out, self.kept, self.step = nn.Embedding(9, 8), nn.Linear(8, 9), first, step

    def forward(self, x):
        h = self.table(x)
        return self.out(self.step(self, h) if self.training else h)


class Carries(nn.Module):
    """Truncated back-propagation: the hidden state goes on from batch to batch."""

    def __init__(self):
        super().__init__()
        self.table, self.core, self.out = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)
        self.kept = None

    def forward(self, x):
        start = self.kept if self.training and self.kept is not None and self.kept.shape[1] == len(x) else None
        found, end = self.core(self.table(x), start)
        if self.training:
            self.kept = end.detach()
        return self.out(found)


def added(self, h):
    self.kept += 1
    return h


def held(name):
    def step(self, h):
        self.kept[name] += 1
        return h

    return step


def appended(self, h):
    self.kept.append(1)
    return h


def counted(self, h):
    self.kept.steps += 1
    return h


def averaged(self, h):
    self.kept = 0.9 * self.kept + 0.1 * h.detach().mean()
    return h


def in_place(self, h):
    self.kept.add_(1.0)
    return h


def renamed(self, h):
    self.kept = self.kept + "x"
    return h


def from_own(self, h):
    return h + float(self.kept.random())


STATES = {
    "a number": lambda: Net(0, added),
    "a word": lambda: Net("", renamed),
    "a list that grows": lambda: Net([], appended),
    "a queue": lambda: Net(deque(maxlen=100), appended),
    "a number in a list": lambda: Net([[0], 0], held(1)),
    "a number in a dictionary": lambda: Net({"steps": 0}, held("steps")),
    "a counter": lambda: Net(Counter(), held("steps")),
    "a number of an object": lambda: Net(SimpleNamespace(steps=0), counted),
    "a tensor that is replaced": lambda: Net(torch.zeros(()), averaged),
    "a tensor that is written into": lambda: Net(torch.zeros(3), in_place),
    "a tensor in a list": lambda: Net([torch.zeros(3)], lambda self, h: h + self.kept[0].add_(1.0).sum()),
    "an array": lambda: Net(np.zeros(3), added),
    "a hidden state": Carries,
    "a generator of its own": lambda: Net(random.Random(0), from_own),
    "a generator of torch": lambda: Net(
        torch.Generator().manual_seed(0), lambda self, h: h + torch.randn(h.shape, generator=self.kept)
    ),
}


def start(model, **settings):
    return ef.start(model, DATA, FLEET, rounds=2, batch_size=4, device="cpu", **settings)


@pytest.mark.parametrize("trainer", ["auto", "one-by-one", "batched"])
@pytest.mark.parametrize("name", STATES)
def test_a_state_in_a_plain_attribute_is_refused(name, trainer):
    with pytest.raises(ef.InputError, match="changes its attribute 'kept' in training, a state of its own") as error:
        start(STATES[name](), trainer=trainer)
    assert str(error.value).count(". ") == 0


def test_the_batch_before_is_a_state_too():
    """Of the same samples again, it stays the same; between, others are given."""

    def step(self, h):
        before, self.kept = self.kept, h.detach()
        return h if before is None or before.shape != h.shape else h + before

    with pytest.raises(ef.InputError, match="gives other outputs for the same samples in training"):
        start(Net(None, step))


def cached(self, h):
    if h.shape[1] not in self.kept:
        self.kept[h.shape[1]] = torch.arange(h.shape[1])
    return h + self.kept[h.shape[1]][:, None] * 0.01


def by_size(self, h):
    """One mask, made anew where the batch has another size."""
    if self.kept is None or len(self.kept) != len(h):
        self.kept = torch.ones(len(h), 1, 1)
    return h * self.kept


def noted(self, h):
    self.kept = h.detach()  # for a look afterwards; nothing reads it in training
    return h


def warned(self, h):
    self.kept = True
    return h


def grown(self, h):
    """A table of positions as long as the longest sequence so far."""
    if self.kept is None or len(self.kept) < h.shape[1]:
        self.kept = torch.polar(torch.ones(h.shape[1]), torch.arange(h.shape[1]) * 0.1)
    return h * self.kept.real[: h.shape[1], None]


ALLOWED = {
    "nothing": lambda: Net(0),
    "a cache by length": lambda: Net({}, cached),
    "a mask by batch": lambda: Net(None, by_size),
    "a note of activations": lambda: Net(None, noted),
    "a word said once": lambda: Net(False, warned),
    "complex positions": lambda: Net(None, grown),
    "itself": lambda: _around(Net()),
    "NaN": lambda: Net([float("nan"), torch.tensor(float("nan")), np.array([np.nan])]),
    "a lambda and a class": lambda: Net([len, Net, lambda: 0]),
}


def _around(model):
    model.kept = SimpleNamespace(of=None)
    model.kept.of = [model.kept, model]
    return model


@pytest.mark.parametrize("name", ALLOWED)
def test_caches_and_notes_are_allowed(name):
    for trainer in ("auto", "one-by-one"):
        for record in start(ALLOWED[name](), trainer=trainer):
            assert np.isfinite(record.train_loss) or record.train_loss is None
