"""All metrics of torchmetrics for classes, against the same metrics called by hand."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import everfed as ef

tm = pytest.importorskip("torchmetrics")

FLEET = ef.Fleet.from_cycles([1, 2])
SMALL = {"rounds": 1, "local_steps": 1, "batch_size": 4, "device": "cpu", "client": ef.SGD(1e-30)}
CLASSES = 5  # as many as positions, so that axes that are mixed up show as numbers and not as an error
LENGTH = 5
SEVERAL = re.compile("Curve|(?<!AU)ROC|StatScores|Matrix|Fixed|AtS|MultilabelEER")  # that give more than one number


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, CLASSES)

    def forward(self, x):
        return self.embedding(x)


def next_token(rng, count):
    x = rng.integers(0, CLASSES, (count, LENGTH))
    y = (x + rng.integers(0, 2, x.shape)) % CLASSES
    return x, np.where(rng.random(x.shape) < 0.8, y, np.where(np.arange(LENGTH) == 0, y, -100))


def multilabel(rng, count):
    x = rng.normal(size=(count, 6)).astype(np.float32)
    return x, x[:, :CLASSES] + rng.normal(size=(count, CLASSES)) > 0.3


def classification(rng, count):
    return rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, CLASSES, count)


TASKS = {
    "next-token": (next_token, Tokens, "Multiclass"),
    "classification": (classification, lambda: nn.Linear(6, CLASSES), "Multiclass"),
    "multilabel": (multilabel, lambda: nn.Linear(6, CLASSES), "Multilabel"),
}


def metrics(prefix, task):
    """Those that give a number, by name."""
    for name in tm.classification.__all__:
        if not name.startswith(prefix) or SEVERAL.search(name) or (task == "classification" and "ExactMatch" in name):
            continue
        options = {"num_classes" if prefix == "Multiclass" else "num_labels": CLASSES}
        options |= {"beta": 0.3} if name.endswith("FBetaScore") else {}
        options |= {"average": "macro"} if name.endswith(("EER", "LogAUC")) else {}
        if "ExactMatch" in name and task == "next-token":
            options["ignore_index"] = -100
        yield name, getattr(tm.classification, name)(**options)


def by_hand(metric, task, out, y):
    if task == "next-token" and "ExactMatch" in type(metric).__name__:
        return float(metric(out.movedim(2, 1), y))
    if task == "next-token":
        out, y = out[y != -100], y[y != -100]
    return float(metric(out.sigmoid() if task == "multilabel" else out.softmax(1), y.long()))


@pytest.fixture
def federation():
    def make(task, small=False):
        draw, make_model, _ = TASKS[task]
        rng = np.random.default_rng(1)
        tests = [draw(rng, 30), draw(rng, 40)]
        data = ef.from_arrays([draw(rng, 8), draw(rng, 8)], test=tests, classes=CLASSES)
        torch.manual_seed(0)
        model = make_model()
        if small:  # all outputs from 0 to 1, which torchmetrics takes for probabilities
            for parameter in model.parameters():
                parameter.data = parameter.data.clamp(-0.02, 0.02) + 0.5 * (parameter.shape != (CLASSES, 6))
        with torch.no_grad():
            pairs = [(model(torch.tensor(x)), torch.tensor(y)) for x, y in tests]
        assert small == all(0 <= out.min() <= out.max() <= 1 for out, _ in pairs)
        pairs.append(tuple(torch.cat(parts) for parts in zip(*pairs, strict=True)))
        return model, data, pairs

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_every_metric_of_classes_is_what_it_is_by_hand(task, small, federation):
    model, data, pairs = federation(task, small)
    found = dict(metrics(TASKS[task][2], task))
    expected = {name: [by_hand(metric, task, *pair) for pair in pairs] for name, metric in found.items()}
    found = {name: metric for name, metric in found.items() if not math.isnan(expected[name][-1])}
    final = ef.simulate(model, data, FLEET, metrics=tuple(found.values()), **SMALL).final
    for name in found:
        *groups, overall = expected[name]
        assert final.own[name] == pytest.approx(overall, rel=1e-5, abs=1e-6), name
        mine = [final.breakdown[name][f"group E={cycle}"] for cycle in (1, 2)]
        assert mine == pytest.approx(groups, rel=1e-5, abs=1e-6, nan_ok=True), name
    assert len(found) >= 15


def test_metrics_of_text_functions_and_sums_of_metrics(federation):
    model, data, pairs = federation("next-token")
    out, y = pairs[-1]
    kind = tm.classification.MulticlassF1Score(CLASSES)
    tried = (
        tm.text.Perplexity(ignore_index=-100),
        kind + 1.0,
        partial(tm.functional.f1_score, task="multiclass", num_classes=CLASSES),
    )
    final = ef.simulate(model, data, FLEET, metrics=tried, **SMALL).final
    assert final.own["Perplexity"] == pytest.approx(final.own["perplexity"], rel=1e-5)
    assert final.own["CompositionalMetric"] == pytest.approx(1.0 + by_hand(kind, "next-token", out, y), rel=1e-5)
    micro = (out.argmax(2) == y)[y != -100].float().mean()
    assert final.own["partial"] == pytest.approx(float(micro), rel=1e-5)
    assert final.accuracy == pytest.approx(float(micro), rel=1e-5)


def test_probabilities_of_a_model_with_its_own_loss_are_left_alone(federation):
    _, data, _ = federation("multilabel")
    model = nn.Sequential(nn.Linear(6, CLASSES), nn.Sigmoid())
    metric = tm.classification.MultilabelF1Score(CLASSES)
    final = ef.simulate(model, data, FLEET, metrics=(metric,), loss=F.binary_cross_entropy, **SMALL).final
    with torch.no_grad():
        expected = metric(model(torch.tensor(data.test_x)), torch.tensor(data.test_y).long())
    assert final.own["MultilabelF1Score"] == pytest.approx(float(expected), rel=1e-5)
