"""F1 leaves out what is neither there nor predicted: of several labels as of classes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.learning.measures import METRICS

F1 = METRICS["f1"]
FLEET = ef.Fleet.from_cycles([1, 1, 2, 2])
LABELS, ABSENT = 4, 3


def scores(said):
    return torch.tensor(np.where(said, 1.0, -1.0), dtype=torch.float32)


CASES = {  # of one label: (there, predicted) -> its F1
    "neither": ([0, 0, 0], [0, 0, 0], math.nan),
    "predicted": ([0, 0, 0], [0, 1, 0], 0.0),
    "there": ([0, 1, 0], [0, 0, 0], 0.0),
    "both, apart": ([1, 0, 0], [0, 1, 0], 0.0),
    "half": ([1, 1, 0], [1, 0, 1], 0.5),
    "right": ([1, 0, 1], [1, 0, 1], 1.0),
    "all": ([1, 1, 1], [1, 1, 1], 1.0),
}


def test_the_f1_of_a_label_is_its_own_and_their_mean_is_over_those_that_have_one():
    there, said, expected = (np.array(part) for part in zip(*CASES.values(), strict=True))
    outputs, targets = scores(said.T), torch.tensor(there.T, dtype=torch.float32)
    np.testing.assert_array_equal(F1.each(outputs, targets), expected)
    assert F1(outputs, targets) == pytest.approx(np.nanmean(expected))
    assert math.isnan(F1(outputs[:, :1], targets[:, :1]))
    weights = np.array([1.0, 0.0, 0.0])  # only the first sample counts: labels that it lacks are left out
    assert F1.each(outputs, targets, weights).tolist()[4:] == [1.0, 1.0, 1.0]
    assert all(math.isnan(value) for value in F1.each(outputs, targets, weights)[:3])


class Perfect(nn.Module):
    """Repeats its inputs, which are the labels."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (2 * x - 1) * (5 + self.scale)


def samples(draw, count, kind):
    """Of the last label or class there is none."""
    if kind == "multilabel":
        y = draw.random((count, LABELS)) < 0.4
        y[:, ABSENT] = False
        return y.astype(np.float32), y
    y = draw.integers(0, ABSENT, count)
    return np.eye(LABELS, dtype=np.float32)[y], y


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("kind", ["multilabel", "classification"])
def test_a_perfect_model_has_an_f1_of_1_overall_by_group_and_over_clients(kind, owned):
    draw = np.random.default_rng(0)
    each, test = ([samples(draw, count, kind) for _ in range(4)] for count in (8, 3))
    test = test if owned else tuple(map(np.concatenate, zip(*test, strict=True)))
    data = ef.from_arrays(each, test=test, task=kind, classes=LABELS)
    settings = {"rounds": 1, "batch_size": 4, "client": ef.SGD(1e-6), "progress": False, "metrics": ("f1",)}
    final = ef.simulate(Perfect(), data, FLEET, **settings).final
    assert final.own["f1"] == 1.0
    parts = final.breakdown["f1"]
    assert math.isnan(parts.pop(f"class {ABSENT}"))
    assert set(parts.values()) == {1.0}
    assert {"class 0", "class 1", "class 2"} <= set(parts)
    if owned:
        assert {"group E=1", "group E=2", "clients mean", "clients worst tenth"} < set(parts)
