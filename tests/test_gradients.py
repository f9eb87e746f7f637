"""Changes to the clients' gradients: the same in every trainer, and what their formulas say."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.learning.gradients import adjusted
from everfed.learning.task import CannotTrainError
from everfed.trainers import choose

RULES = {name: row() for name, row in ef.GRADIENT_RULES.items()}
X = torch.tensor([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5]])
Y = torch.tensor([1.0, -1.0, 2.0])
RATE, STEPS = 0.1, 4
SUM = ef.Sum()


def data():
    # Copies of one sample a client: every minibatch is that sample.
    return ef.from_arrays([(x.repeat(2, 1), y.repeat(2, 1)) for x, y in zip(X, Y, strict=True)])


def simulation(gradients, rule=SUM, **changes):
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -2.0]]))
    how = {"rounds": 3, "local_steps": STEPS, "batch_size": 1, "client": ef.SGD(RATE), "device": "cpu"}
    method = ef.Method(ef.Always(), rule, "mine")
    return ef.start(model, data(), ef.Fleet.from_cycles([1, 1, 1]), method, gradients=gradients, **{**how, **changes})


def weights(run):
    return [run.params["weight"][0] for _ in run]


def pull(g, w, start):
    return g + 0.7 * (w - start)


def shorten(g, w, start):
    held = torch.nn.Parameter(w.clone())
    held.grad = g.clone()
    torch.nn.utils.clip_grad_norm_([held], 0.5)
    return held.grad


def by_hand(*changes):
    """FedAvg over the three clients with these changes to every gradient."""
    start, path = torch.tensor([3.0, -2.0]), []
    for _ in range(3):
        ends = []
        for x, y in zip(X, Y, strict=True):
            w = start.clone()
            for _ in range(STEPS):
                g = 2 * (x @ w - y) * x
                for change in changes:
                    g = change(g, w, start)
                w = w - RATE * g
            ends.append(w)
        start = torch.stack(ends).mean(dim=0)
        path.append(start)
    return path


CASES = {
    "proximal": ((ef.Proximal(0.7),), (pull,)),
    "clip": ((ef.Clip(0.5),), (shorten,)),
    "clip, then pull": ((ef.Clip(0.5), ef.Proximal(0.7)), (shorten, pull)),
    "pull, then clip": ((ef.Proximal(0.7), ef.Clip(0.5)), (pull, shorten)),
}


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize(("rules", "changes"), CASES.values(), ids=CASES.keys())
def test_training_is_as_worked_out_by_hand(rules, changes, trainer):
    run = weights(simulation(rules, trainer=trainer))
    torch.testing.assert_close(run, by_hand(*changes), rtol=1e-4, atol=1e-5)
    assert (run[-1] - by_hand()[-1]).norm() > 0.01  # and not as without them


def test_the_order_of_the_rules_matters():
    one, other = (weights(simulation(CASES[name][0])) for name in ("clip, then pull", "pull, then clip"))
    assert (one[-1] - other[-1]).norm() > 0.01


@pytest.mark.parametrize("optimizer", [ef.SGD(0.1, momentum=0.9), ef.Adam(1e-2)], ids=repr)
@pytest.mark.parametrize("rules", [case[0] for case in CASES.values()], ids=CASES.keys())
def test_trainers_agree_on_a_model_of_several_layers(rules, optimizer):
    digits = ef.load("digits").partition(4, "dirichlet", seed=0)
    fleet = ef.Fleet.from_cycles([1, 2, 2, 4])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 10))
    model[1].bias.requires_grad_(requires_grad=False)  # a frozen part has no gradient to change
    how = {"rounds": 4, "local_steps": 2, "batch_size": 4, "client": optimizer, "device": "cpu"}
    one, other = (
        ef.simulate(model, digits, fleet, gradients=rules, trainer=trainer, **how).params
        for trainer in ("batched", "one-by-one")
    )
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
class TestEveryRule:
    def test_is_a_value(self, rule):
        assert rule == type(rule)()
        assert hash(rule) == hash(type(rule)())

    def test_a_clients_gradient_does_not_depend_on_the_company(self, rule):
        rng = np.random.default_rng(0)
        grads, params, start = (
            torch.as_tensor(rng.normal(size=s), dtype=torch.float32) for s in ((5, 7), (5, 7), (7,))
        )
        together = rule.adjust(grads.clone(), params, start, np.arange(5))
        for i in range(5):
            alone = rule.adjust(grads[i : i + 1].clone(), params[i : i + 1], start, np.array([i]))
            torch.testing.assert_close(alone[0], together[i], rtol=1e-6, atol=1e-7)

    def test_a_gradient_that_is_not_finite_stays_so(self, rule):
        for wrong in (math.inf, -math.inf, math.nan):
            grads = torch.tensor([[1.0, wrong], [3.0, 4.0]])
            out = rule.adjust(grads, torch.zeros(2, 2), torch.zeros(2), np.arange(2))
            assert out[0].isfinite().all().item() is False
            assert out[1].isfinite().all().item() is True


class Odd:
    """It does not promise to treat all elements alike."""

    def adjust(self, grads, params, start, clients):
        return grads.flip(1)


def test_the_kernels_give_way_to_other_rules_with_a_reason():
    with pytest.raises(CannotTrainError, match="do not support Odd"):
        choose._fast(simulation((ef.Clip(), Odd())).source.trainer.task)


def test_no_rules_change_nothing():
    grads = torch.ones(2, 3)
    assert adjusted((), grads, grads, grads[0], np.arange(2)) is grads
    torch.testing.assert_close(weights(simulation(())), by_hand(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("grads", "norm", "expected"),
    [([3.0, 4.0], 1.0, [0.6, 0.8]), ([0.3, 0.4], 1.0, [0.3, 0.4]), ([0.0, 0.0], 1.0, [0.0, 0.0])],
)
def test_clip_in_numbers(grads, norm, expected):
    out = ef.Clip(norm).adjust(torch.tensor([grads]), torch.zeros(1, 2), torch.zeros(2), np.array([0]))
    assert out[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ef.Proximal(-0.1), "mu is -0.1; it must be zero or a positive number"),
        (lambda: ef.Proximal(math.nan), "mu is nan"),
        (lambda: ef.Clip(0.0), "norm is 0.0; it must be a positive number"),
        (lambda: ef.Clip(math.inf), "norm is inf"),
    ],
)
def test_bad_rules_are_refused(make, message):
    with pytest.raises(ef.InputError, match=re.escape(message)):
        make()
