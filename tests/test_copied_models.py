"""Modules are copied to be trained: with weights that are computed from others, or refused in a sentence."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef

FLEET = ef.Fleet.from_cycles([1, 1, 2])


def data():
    draw = np.random.default_rng(0)
    each = [(draw.normal(size=(6, 1, 5)).astype(np.float32), draw.integers(0, 3, 6)) for _ in range(3)]
    return ef.from_arrays(each, test=each[0], classes=3)


DATA = data()


def old_norm(layer, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's word on the new function
        return torch.nn.utils.weight_norm(layer, **options)


def new_norm(layer, dim=0):
    return torch.nn.utils.parametrizations.weight_norm(layer, dim=dim)


def flat(norm):
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(5, 4)), nn.Tanh(), norm(nn.Linear(4, 3), dim=1))


def convolved(norm):
    return nn.Sequential(norm(nn.Conv1d(1, 4, 3, padding=1)), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3))


def simulated(make, norm, trainer):
    torch.manual_seed(0)
    model = make(norm)
    model(torch.zeros(2, 1, 5))  # which leaves a computed weight in the module
    settings = {"rounds": 4, "batch_size": 4, "local_steps": 2, "client": ef.SGD(0.1), "progress": False}
    return ef.simulate(model, DATA, FLEET, trainer=trainer, device="cpu", **settings)


@pytest.mark.parametrize("trainer", ["auto", "batched", "one-by-one"])
@pytest.mark.parametrize("make", [flat, convolved])
def test_weight_norm_of_the_old_style_trains_as_that_of_the_new(make, trainer):
    old, new = simulated(make, old_norm, trainer), simulated(make, new_norm, trainer)
    assert old.final.loss == pytest.approx(new.final.loss, rel=1e-5)
    assert "weight_g" in " ".join(old.params)


def test_weight_norm_of_the_old_style_resumes(tmp_path):
    torch.manual_seed(0)
    model = flat(old_norm)
    settings = {"batch_size": 4, "client": ef.SGD(0.1), "progress": False, "device": "cpu"}
    whole = ef.simulate(model, DATA, FLEET, rounds=4, **settings)
    ef.simulate(model, DATA, FLEET, rounds=2, out=tmp_path, **settings)
    resumed = ef.simulate(model, DATA, FLEET, rounds=4, out=tmp_path, **settings)
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)


class Remembers(nn.Module):
    """Keeps its last activations, with their graph."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(5, 3), None

    def forward(self, x):
        self.seen = self.layer(x.flatten(1))
        return self.seen


def test_activations_that_a_module_has_kept_do_not_hinder_a_copy():
    model = Remembers()
    model(torch.zeros(2, 1, 5))
    for trainer in ("auto", "one-by-one"):
        history = ef.simulate(model, DATA, FLEET, rounds=2, batch_size=4, trainer=trainer, progress=False)
        assert np.isfinite(history.final.loss)


@pytest.mark.parametrize("trainer", ["auto", "batched", "one-by-one"])
def test_what_cannot_be_copied_is_refused_in_a_sentence(trainer, tmp_path):
    file = (tmp_path / "log").open("w")
    for held in (np, file):
        model = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
        model.held = held
        with pytest.raises(
            ef.InputError, match=r"the model Sequential cannot be copied, as training needs it \(.*pickle"
        ):
            ef.simulate(model, DATA, FLEET, rounds=1, trainer=trainer, progress=False)
    file.close()
