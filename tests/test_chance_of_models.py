"""What a model draws in training from the generators of a process is decided by seed, client and iteration."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.learning.generators import NUMPY, PYTHON, TORCH

CLIENTS = 4
FLEET = ef.Fleet.from_cycles([1, 1, 2, 2])


class Net(nn.Module):
    """Two layers, and between them what a draw makes of the activations in training."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(self.drawn(h) if self.training else h)


class Noise(Net):
    def drawn(self, h):
        return h + 0.5 * torch.randn_like(h)


class DropPath(Net):
    """Whole samples leave out a layer, as in Swin, ConvNeXt or ViT of timm."""

    def drawn(self, h):
        keep = h.new_empty(len(h), 1).bernoulli_(0.5)
        return h * keep / 0.5


class LayerDrop(Net):
    """By Python's generator, as in many models of transformers."""

    def drawn(self, h):
        return h if random.random() > 0.3 else 0.0 * h


class NumpyNoise(Net):
    def drawn(self, h):
        return h + torch.as_tensor(np.random.normal(size=tuple(h.shape)), dtype=h.dtype)  # noqa: NPY002


class Several(Net):
    """Dropout that everfed draws, in between."""

    def drawn(self, h):
        h = torch.nn.functional.dropout(h + torch.rand_like(h), 0.2, training=True)
        return h * random.random() + np.random.rand()  # noqa: NPY002


class Seldom(Net):
    """Draws once its weights have moved, which no trial of the first ones shows."""

    def drawn(self, h):
        return h + 0.5 * torch.randn_like(h) if float(self.b.bias.detach().abs().max()) > 0.5 else h


DRAWING = {Noise: [TORCH], DropPath: [TORCH], LayerDrop: [PYTHON], NumpyNoise: [NUMPY], Several: [TORCH, NUMPY, PYTHON]}


def data():
    draw = np.random.default_rng(0)
    each = [(draw.normal(size=(9, 6)), draw.integers(0, 3, 9)) for _ in range(CLIENTS)]
    return ef.from_arrays(each, test=each[0], classes=3)


DATA = data()


def simulated(kind, rounds=6, lr=0.1, **settings):
    torch.manual_seed(0)
    model = kind()
    for disturbed in (torch.manual_seed, np.random.seed, random.seed):  # which must not matter
        disturbed(random.SystemRandom().randrange(2**32))
    settings = {"client": ef.SGD(lr, momentum=0.5), "batch_size": 4, "local_steps": 3, "progress": False, **settings}
    return ef.simulate(model, DATA, FLEET, rounds=rounds, device="cpu", **settings)


def same(one, other):
    return all(torch.equal(one.params[name], other.params[name]) for name in one.params)


@pytest.mark.parametrize("kind", [*DRAWING, Seldom])
def test_the_seed_decides_what_a_model_draws(kind, tmp_path):
    lr = 1.0 if kind is Seldom else 0.1
    settings = {"lr": lr, "trainer": "one-by-one" if kind is Seldom else "auto"}
    whole = simulated(kind, **settings)
    assert same(whole, simulated(kind, **settings))
    assert same(whole, simulated(kind, check_trainer=False, **settings))
    assert not same(whole, simulated(kind, seed=1, **settings))
    simulated(kind, rounds=3, out=tmp_path / "run", **settings)
    assert same(whole, simulated(kind, out=tmp_path / "run", **settings))


def test_the_late_model_draws_within_the_run():
    torch.manual_seed(0)
    assert float(Seldom().b.bias.detach().abs().max()) < 0.5
    assert float(simulated(Seldom, lr=1.0, trainer="one-by-one").params["b.bias"].abs().max()) > 0.5


@pytest.mark.parametrize("kind", DRAWING)
def test_no_client_meets_the_numbers_of_another(kind):
    torch.manual_seed(0)
    settings = {"client": ef.SGD(0.1), "batch_size": 4, "local_steps": 2, "rounds": 2, "device": "cpu"}
    run = ef.start(kind(), DATA, FLEET, **settings)
    trainer, params = run.source.trainer, run.server.params.clone()

    def updates(order):
        found = list(trainer.train(params, np.array(order), 1))
        return {int(part.clients[0]): part.deltas.clone() for part in found}

    forth, back, alone = updates([0, 1, 2, 3]), updates([3, 1, 0, 2]), updates([2])
    assert all(torch.equal(forth[client], back[client]) for client in range(CLIENTS))
    assert torch.equal(forth[2], alone[2])


@pytest.mark.parametrize("kind", DRAWING)
def test_it_is_trained_one_by_one_and_said_why(kind):
    run = ef.start(kind, DATA, FLEET, rounds=1, device="cpu", batch_size=4)
    assert run.source.trainer.at_once == 1
    said = run.source.trainer.explain()[0]
    assert all(name in said for name in DRAWING[kind])
    assert run.source.trainer.check.difference < 1e-5
    for check in (True, False):
        with pytest.raises(
            ef.InputError, match=r"^this model cannot be batched .* its training draws from .*one-by-one"
        ):
            ef.start(kind, DATA, FLEET, rounds=1, device="cpu", batch_size=4, trainer="batched", check_trainer=check)


@pytest.mark.parametrize("kind", DRAWING)
def test_the_generators_go_on_where_they_were(kind):
    def drawn(rounds):
        torch.manual_seed(0)
        model = kind()
        torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
        ef.simulate(model, DATA, FLEET, rounds=rounds, batch_size=4, progress=False, device="cpu")
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    assert drawn(1) == drawn(3)


def test_a_model_that_draws_nothing_is_not_seeded():
    run = ef.start("mlp", DATA, FLEET, rounds=1, device="cpu", batch_size=4, trainer="one-by-one")
    list(run)
    assert run.setup.draws == ()
    assert not run.source.trainer.draws


class Unseeded(Net):
    def drawn(self, h):
        return h + torch.as_tensor(np.random.default_rng().normal(size=tuple(h.shape)), dtype=h.dtype)


class OwnGenerator(Net):
    def __init__(self):
        super().__init__()
        self.chance = np.random.default_rng(0)

    def drawn(self, h):
        return h + float(self.chance.normal())


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Unseeded, "gives other outputs for the same samples"), (OwnGenerator, "changes its attribute 'chance'")],
)
def test_chance_that_no_seed_reaches_is_refused(kind, said):
    with pytest.raises(ef.InputError, match=said):
        simulated(kind)


def test_a_loss_may_draw_too():
    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)

    found = [simulated(Quiet, loss=loss) for _ in range(2)]
    assert same(*found)


class Quiet(Net):
    def drawn(self, h):
        return h


def test_late_draws_among_clients_trained_together_are_told_once():
    class Late(Quiet):
        def drawn(self, h):
            if torch._C._functorch.is_batchedtensor(h):
                random.random()
            return h

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        simulated(Late, trainer="batched", check_trainer=False)
    assert sum("numbers were drawn from Python's module random" in str(w.message) for w in said) == 1
