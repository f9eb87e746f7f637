"""What changes the fingerprint of an object, and what has nothing to do with it: names and modes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.run import config, live
from everfed.run.experiment import Experiment
from everfed.run.fingerprint import fingerprint

SCALE, OFFSET, DEPTH = 2.0, 1.0, 3
KW = {"local_steps": 2, "client": ef.SGD(0.1), "device": "cpu", "check_trainer": False, "progress": False}
FLEET = ef.Fleet.from_cycles([1, 2])


def client(seed):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(12, 5)).astype(np.float32), draw.integers(0, 3, 12)


DATA = ef.from_arrays([client(0), client(1)], test=client(2))


class Net(nn.Module):
    """Its attributes have names that globals may have too."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        def within(h):
            return sum(self.out(part) for part in (h,))

        return within(torch.relu(self.hidden(x)))


def net():
    torch.manual_seed(0)
    return Net()


def in_a_function(x):
    return x * SCALE


def in_a_nested_function(x):
    return (lambda y: [z + OFFSET for z in (y,)])(x)


def in_a_class_body(x):
    class Inner:
        depth = DEPTH

    return x * Inner.depth


class Method:
    def __call__(self, x):
        return x * SCALE


@pytest.mark.parametrize("name", ["out", "hidden", "relu", "shape", "within"])
def test_a_global_with_the_name_of_an_attribute_does_not_matter(name, monkeypatch):
    before = fingerprint(net())
    monkeypatch.setitem(globals(), name, torch.zeros(3))
    assert fingerprint(net()) == before
    monkeypatch.setitem(globals(), name, torch.ones(3))
    assert fingerprint(net()) == before


@pytest.mark.parametrize(
    ("code", "name"),
    [(in_a_function, "SCALE"), (in_a_nested_function, "OFFSET"), (in_a_class_body, "DEPTH"), (Method(), "SCALE")],
)
def test_a_global_that_code_reads_matters_wherever_it_is_read(code, name, monkeypatch):
    before = fingerprint(code)
    monkeypatch.setitem(globals(), name, 7.0)
    assert fingerprint(code) != before


def test_without_such_names_fingerprints_are_what_they_were():
    for value in (in_a_function, in_a_nested_function, in_a_class_body, Net, net(), Method(), DATA):
        assert fingerprint(value) == fingerprint(value, former=True)


def run(model, folder, rounds, **settings):
    return ef.simulate(model, DATA, FLEET, rounds=rounds, out=folder, **KW, **settings)


def test_a_run_goes_on_whatever_the_notebook_has_defined_meanwhile(tmp_path, monkeypatch):
    run(net(), tmp_path, 2)
    monkeypatch.setitem(globals(), "out", net()(torch.zeros(1, 5)))
    assert len(run(net(), tmp_path, 4).rounds) == 4


MODES = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "a part in eval": lambda model: model.out.eval(),
}


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("then", MODES)
def test_the_mode_of_a_model_is_not_part_of_an_experiment(first, then, tmp_path):
    """Training is in train mode and evaluation in eval mode, whichever the module is in."""
    one, two, whole = net(), net(), net()
    MODES[first](one), MODES[then](two)
    run(one, tmp_path / "run", 2)
    resumed = run(two, tmp_path / "run", 4)
    plain = run(whole, tmp_path / "whole", 4)
    assert all(torch.equal(resumed.params[name], plain.params[name]) for name in plain.params)
    assert one.training is (first != "eval")  # the user's module is as it was


def test_the_mode_of_a_factorys_module_is_not_part_of_it_either(tmp_path):
    inner = net()

    def made():
        return copy.deepcopy(inner)

    run(made, tmp_path, 2)
    inner.eval()
    assert len(run(made, tmp_path, 4).rounds) == 4


def test_the_mode_of_a_loss_counts():
    """Nobody changes it, so a loss with dropout inside is another one in eval mode."""
    loss = nn.Sequential(nn.Dropout(0.5))
    assert fingerprint(loss) != fingerprint(loss.eval())
    texts = [
        config.to_dict(Experiment(model=net(), data=DATA, fleet=FLEET, loss=part, **_plain())) for part in _losses()
    ]
    assert texts[0]["loss"] != texts[1]["loss"]
    assert texts[0]["model"] == texts[1]["model"]


class Loss(nn.Module):
    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


def _losses():
    return Loss(), Loss().eval()


def _plain():
    return {key: value for key, value in KW.items() if key != "progress"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("beside", [None, "out"])
def test_folders_of_earlier_versions_go_on_with_the_same_object(mode, beside, tmp_path, monkeypatch):
    """As the earlier version named it: with its mode, and with a global that has an attribute's name."""
    if beside:
        monkeypatch.setitem(globals(), beside, 5)
    model = net()
    MODES[mode](model)
    with monkeypatch.context() as earlier:
        earlier.setattr(live, "fingerprint", lambda value, **_: fingerprint(value, former=True))
        run(model, tmp_path, 2)
    text = (tmp_path / "experiment.toml").read_text()
    assert (fingerprint(model, mode=False) in text) == (mode == "train" and beside is None)
    assert len(run(model, tmp_path, 4).rounds) == 4
    assert fingerprint(model, mode=False) in (tmp_path / "experiment.toml").read_text()
    other = net()
    with torch.no_grad():
        other.out.bias.add_(1.0)
    with pytest.raises(ef.InputError, match="holds a different experiment"):
        run(other, tmp_path, 6)
