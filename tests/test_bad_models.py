"""Users' own models, losses and metrics: what writes into its inputs harms nothing, what cannot work is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn

import everfed as ef
from everfed.errors import EverfedWarning

TRAINERS = ["batched", "one-by-one"]


def data(classes: int = 3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = rng.integers(3, size=60) if classes else rng.normal(size=(60, 3)).astype(np.float32)
    clients = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    return ef.from_arrays(clients, test=(x[40:], y[40:]))


def run(model, classes: int = 3, **settings):
    fleet = ef.Fleet.from_cycles([1, 1, 2, 2])
    given = {"rounds": 4, "eval_every": 1, "local_steps": 2, "batch_size": 4, "device": "cpu", **settings}
    return ef.simulate(model, data(classes), fleet, **given)


class Own(nn.Module):
    """One linear layer and a forward of the test's own."""

    def __init__(self, forward):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.l = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(5))
        self.own = forward

    def forward(self, x):
        return self.own(self, x)


def linear() -> nn.Module:
    return Own(lambda self, x: self.l(x))


def doubled_in_place(self, x):
    x *= 2
    return self.l(x)


def same(one, other):
    assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    assert [r.metrics for r in one.rounds] == [r.metrics for r in other.rounds]


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("classes", [3, 0])
def test_a_model_that_changes_its_inputs_does_not_change_the_data(trainer, classes):
    plain = run(Own(lambda self, x: self.l(x * 2)), classes, trainer=trainer)
    same(run(Own(doubled_in_place), classes, trainer=trainer), plain)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("classes", [3, 0])
def test_a_loss_that_changes_its_targets_does_not_change_the_data(trainer, classes):
    known = F.cross_entropy if classes else F.mse_loss

    def plain(outputs, targets):
        return known(outputs, targets * 1)

    def writing(outputs, targets):
        found = known(outputs, targets * 1)
        targets.zero_()
        return found

    same(run(linear(), classes, loss=writing, trainer=trainer), run(linear(), classes, loss=plain, trainer=trainer))


@pytest.mark.parametrize("classes", [3, 0])
def test_a_metric_that_writes_changes_no_other_metric(classes):
    def writing(outputs, targets):
        found = outputs.sum() + targets.sum()
        outputs.zero_()
        targets.zero_()
        return found

    def reading(outputs, targets):
        return outputs.sum() + targets.sum()

    plain = run(linear(), classes, metrics=[reading])
    both = run(linear(), classes, metrics=[writing, reading])
    for one, other in zip(plain.rounds, both.rounds, strict=True):
        values = one.metrics.to_dict(), other.metrics.to_dict()
        assert values[1].pop("own") == {"writing": one.metrics.own["reading"], **values[0].pop("own")}
        assert values[0] == values[1]


def counting(self, x):
    self.seen += 1
    return self.l(x)


def averaging(self, x):
    if self.training:
        self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return self.l(x - self.seen)


def clipping(self, x):
    self.l.weight.data.clamp_(-0.01, 0.01)
    return self.l(x)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (counting, "changes 'seen'"),
        (averaging, "changes 'seen'"),
        (clipping, "changes 'l.weight'"),
        (lambda self, x: self.l(F.dropout(x, 0.5)), "other outputs for the same samples"),
        (lambda self, x: (self.l(x), x), "returns a tuple"),
        (lambda self, x: {"scores": self.l(x)}, "returns a dict"),
        (lambda self, x: None, "returns a NoneType"),
        (lambda self, x: self.l(x).detach(), "no gradient"),
        (lambda self, x: self.missing(x), "has no attribute 'missing'"),
        (lambda self, x: self.l(x[:1]), r"outputs of shape \(1, 3\) for 2 samples"),
    ],
)
def test_models_that_cannot_be_trained_or_evaluated_are_refused(forward, said):
    with pytest.raises(ef.InputError, match=said):
        run(Own(forward))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.LSTM(5, 3), "LSTM returns a tuple"),
        (lambda: torch.jit.script(nn.Linear(5, 3)), "give the plain module"),
        (lambda: nn.Sequential(torch.jit.trace(nn.Linear(5, 3), torch.zeros(1, 5))), "layer '0' .* the plain module"),
        (lambda: nn.DataParallel(nn.Linear(5, 3)), "DataParallel.* the plain module"),
        (lambda: nn.Linear(5, 3, device="meta"), "device 'meta'"),
    ],
)
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_modules_of_unfit_kinds_are_refused(model, said, made):
    with pytest.raises(ef.InputError, match=said):
        run(model if made else model())


def vector(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda o, t: None, "returns None"),
        (lambda o, t: 0.5, r"returns 0\.5"),
        (vector, r"the loss vector returns a tensor of shape \(4,\)"),
        (lambda o, t: F.cross_entropy(o, t).detach(), "without a gradient"),
        (lambda o: o.sum(), "takes 1 positional argument"),
        (lambda o, t: 1 / 0, "division by zero"),
        (nn.CrossEntropyLoss, "the class CrossEntropyLoss"),
        (ef.Greedy, "the class Greedy"),
    ],
)
@pytest.mark.parametrize("trainer", [*TRAINERS, "auto"])
def test_losses_that_cannot_be_used_are_refused(loss, said, trainer):
    with pytest.raises(ef.InputError, match=said):
        run(linear(), loss=loss, trainer=trainer)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (lambda o, t: 1 / 0, "fails .division by zero"),
        (lambda o: 1.0, "takes 1 positional argument"),
        (nn.MSELoss, "the class MSELoss"),
        (lambda o, t: "0.5", "is '0.5'; it must be a number"),
        (lambda o, t: 10**400, "must be a number"),
        (lambda o, t: 10**9000, "must be a number"),
        (lambda o, t: None, "is None; it must be a number"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused_before_training(metric, said):
    trained = []

    def loss(outputs, targets):
        trained.append(1)
        return F.cross_entropy(outputs, targets)

    with pytest.raises(ef.InputError, match=said):
        run(linear(), metrics=[metric], loss=loss, rounds=1000, eval_every=1000, check_trainer=False)
    assert len(trained) < 10  # tried, but no thousand rounds


def test_what_is_tried_leaves_no_trace():
    class Drawing(nn.Module):
        """Draws by chance in training, from all generators there are."""

        def __init__(self):
            super().__init__()
            self.l, self.drop = nn.Linear(5, 3), nn.Dropout(0.5)

        def forward(self, x):
            noise = torch.randn(1) + float(np.random.rand()) if self.training else 0.0  # noqa: NPY002
            return self.l(self.drop(x + noise))

    model = Drawing()
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    setup = ef.start(model, data(), ef.Fleet.from_cycles([1, 1, 2, 2]), rounds=1, trainer="one-by-one", device="cpu")
    assert setup is not None
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002


class Mixing(nn.Module):
    """What lies within a batch is mixed: by attention over the wrong axis, by statistics, by a softmax."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.out = kind, nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=kind == "sequences")
        self.norm = nn.BatchNorm2d(1, track_running_stats=False)
        self.groups = nn.GroupNorm(1, 4)

    def forward(self, x):
        x = x[:, :4]
        if self.kind in ("attention", "sequences"):
            parts = x[:, None] if self.kind == "attention" else x[:, None].expand(-1, 2, -1)
            return self.out(self.attention(parts, parts, parts, need_weights=False)[0][:, 0])
        if self.kind == "statistics":
            return self.out(self.norm(x.reshape(-1, 1, 2, 2)).flatten(1))
        if self.kind == "softmax":
            return self.out(x).softmax(0)
        return self.out(self.groups(x))


@pytest.mark.parametrize("kind", ["attention", "statistics", "softmax"])
def test_a_model_that_mixes_the_samples_of_a_batch_is_told(kind):
    with pytest.warns(EverfedWarning, match="depend on the other samples of its batch.*batch_first=True"):
        ef.start(Mixing(kind), _measured(), ef.Fleet.from_cycles([1, 1]), rounds=2)


@pytest.mark.parametrize("kind", ["sequences", "groups"])
def test_a_model_that_keeps_samples_apart_is_not_told_otherwise(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ef.start(Mixing(kind), _measured(), ef.Fleet.from_cycles([1, 1]), rounds=2, batch_size=4)


def _measured():
    """Real measurements, of two clients."""
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    return ef.from_arrays([(x[:60:2], y[:60:2]), (x[60:], y[60:])], test=(x[1:60:2], y[1:60:2]))
