"""What an outside tester found in the tasks: each class of defect, not the one case."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from torch import nn

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.folder import Folder
from everfed.data.on_demand_sources import Generated
from everfed.data.owners import Owners
from everfed.report.page import page
from zoo import Branch

FLEET = ef.Fleet.from_cycles([1, 1, 2, 2])
SMALL = {"rounds": 5, "local_steps": 2, "batch_size": 4, "device": "cpu"}


def dealt(x, y, clients=4):
    return [(x[i::clients], y[i::clients]) for i in range(clients)]


def tokens(count=20, vocabulary=12, seed=0):
    x = np.random.default_rng(seed).integers(0, vocabulary, (count, 6))
    return x, (x + 1) % vocabulary


class Aliased(nn.Module):
    """One module under two names, and another layer tied to its weight, as T5 has it."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(12, 8)
        self.encoder = nn.ModuleDict({"embed": self.shared})
        self.mid, self.head = nn.Linear(8, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.shared.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mid(self.encoder["embed"](x))))


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize("trainer", ["auto", "one-by-one"])
def test_weights_that_are_shared_stay_so_in_evaluation_and_in_what_is_kept(trainer, tmp_path):
    data = ef.from_arrays([tokens(seed=i) for i in range(4)], test=tokens(40, seed=9))
    torch.manual_seed(0)
    history = ef.simulate(Aliased(), data, FLEET, trainer=trainer, client=ef.SGD(0.5), out=tmp_path / "run", **SMALL)
    for params in (history.params, ef.open_run(tmp_path / "run").params):
        assert torch.equal(params["head.weight"], params["shared.weight"])
        assert torch.equal(params["encoder.embed.weight"], params["shared.weight"])
        model = Aliased()
        model.load_state_dict(params)
        with torch.no_grad():
            out = model(torch.tensor(data.test_x))
        assert history.final.accuracy == pytest.approx(float((out.argmax(2).numpy() == data.test_y).mean()))


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_auc_is_of_probabilities(load):
    x, y = load(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    classes = int(y.max()) + 1
    history = ef.simulate("logistic", dealt(x, y), FLEET, metrics=("auc", "f1"), **SMALL)
    assert history.final is None  # no test set
    data = ef.from_arrays(dealt(x, y), test=(x, y))
    final = ef.simulate("logistic", data, FLEET, metrics=("auc", "f1"), client=ef.SGD(0.01), **SMALL)
    weight, bias = final.params["1.weight"], final.params["1.bias"]
    out = (torch.tensor(x) @ weight.T + bias).softmax(1).numpy()
    score = out if classes > 2 else out[:, 1]
    assert final.final.own["auc"] == pytest.approx(sk.roc_auc_score(y, score, multi_class="ovr"), abs=1e-6)
    shift = torch.randn(len(x), 1)
    logits = torch.tensor(x) @ weight.T + bias
    assert ef.METRICS["auc"](logits + shift, torch.tensor(y)) == pytest.approx(final.final.own["auc"], abs=1e-4)


def test_several_labels_may_be_one():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 5)).astype(np.float32)
    y = x[:, :1] > 0.4
    data = ef.from_arrays(dealt(x, y), test=(x, y))
    history = ef.simulate(nn.Linear(5, 1), data, FLEET, client=ef.SGD(0.2), **SMALL)
    out = F.linear(torch.tensor(x), history.params["weight"], history.params["bias"]).numpy()
    assert history.final.own["f1"] == pytest.approx(sk.f1_score(y[:, 0], out[:, 0] > 0))
    assert history.final.breakdown["f1"]["class 0"] == history.final.own["f1"]


class Error:
    """As torchmetrics are: equal to everything, and lower is better."""

    higher_is_better = False

    def __eq__(self, other):
        return torch.tensor(True)

    __hash__ = object.__hash__

    def __call__(self, outputs, targets):
        return (outputs - targets).abs().mean()


def spread(outputs, targets):
    return (outputs - targets).abs().mean()


def test_own_metrics_keep_the_tasks_and_say_which_end_is_worse(tmp_path):
    x, y = load_diabetes(return_X_y=True)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    data = ef.from_arrays(dealt(x, y), test=dealt(x[:90], y[:90]))
    both = ef.simulate(
        nn.Sequential(nn.Linear(10, 1), nn.Flatten(0)), data, FLEET, metrics=(Error(), spread),
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    found = both.final
    assert found.own.keys() == {"mae", "r2", "Error", "spread"}
    assert found.own["Error"] == pytest.approx(found.own["mae"], rel=1e-5)
    assert found.breakdown["Error"]["clients worst tenth"] == pytest.approx(
        found.breakdown["mae"]["clients worst tenth"], rel=1e-5
    )
    assert found.breakdown["spread"]["clients highest tenth"] == found.breakdown["Error"]["clients worst tenth"]
    assert found.breakdown["spread"]["clients lowest tenth"] <= found.breakdown["spread"]["clients mean"]
    assert ef.open_run(tmp_path / "run").final.own == found.own


@pytest.mark.parametrize("loss", [nn.MSELoss(), F.l1_loss, None])
def test_outputs_are_not_compared_each_with_each(loss):
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(ef.InputError, match="compared each with each"):
        ef.simulate(nn.Linear(10, 1), dealt(x, y), FLEET, loss=loss, **SMALL)


def test_a_loss_of_ones_own_may_want_more_outputs_than_targets():
    x, y = load_diabetes(return_X_y=True)

    def quantiles(outputs, targets):
        return (outputs - targets[:, None]).abs().mean()

    data = ef.from_arrays(dealt(x, y), test=(x, y))
    assert math.isfinite(ef.simulate(nn.Linear(10, 3), data, FLEET, loss=quantiles, **SMALL).final.loss)


def test_files_that_changed_are_not_mixed_into_a_run(tmp_path, monkeypatch):
    place = tmp_path / "data"
    place.mkdir()
    draw = np.random.default_rng(0)
    np.save(place / "x.npy", draw.normal(size=(40, 3)).astype(np.float32))
    np.save(place / "y.npy", draw.integers(0, 2, 40))
    np.save(place / "client.npy", np.arange(40) % 4)
    monkeypatch.chdir(tmp_path)
    ef.simulate("logistic", Folder("data"), FLEET, out="run", **SMALL)
    stored = ef.open_run("run").experiment.data
    assert stored.path == str(place)
    assert len(stored.sha256) == 64
    np.save(place / "y.npy", draw.integers(0, 2, 40))
    with pytest.raises(ef.InputError):
        ef.simulate("logistic", Folder("data"), FLEET, out="run", **{**SMALL, "rounds": 8})
    with pytest.raises(ef.InputError, match="not those that this run began with"):
        stored.load()


def test_natural_clients_with_few_samples_keep_one_when_some_are_held_out():
    owner = np.repeat(np.arange(6), [1, 1, 2, 3, 20, 30])
    x = np.random.default_rng(0).normal(size=(len(owner), 3))
    names = tuple("abcdef")
    data = Dataset("few", x, owner % 2, x, owner % 2, 2, owners=Owners(owner, owner, names))
    for seed in range(20):
        kept = data.hold_out(0.3, seed)
        assert set(kept.owners.train) == set(range(6))
        assert len(kept.test_y) == round(0.3 * len(owner))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize("model", [Branch, Unused])
@pytest.mark.parametrize("client", [ef.SGD(0.1, momentum=0.9), ef.SGD(0.1, weight_decay=0.1), ef.Adam(0.01)])
def test_what_is_not_used_is_treated_alike_by_all_trainers(model, client):
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(size=(12, 3)), draw.integers(0, 2, 12)) for _ in range(4)]
    torch.manual_seed(0)
    made = model()
    fast, slow = (ef.simulate(made, pairs, FLEET, client=client, trainer=t, **SMALL) for t in ("auto", "one-by-one"))
    for name, value in slow.params.items():
        torch.testing.assert_close(fast.params[name], value, rtol=1e-4, atol=1e-6)


class Columns(nn.Module):
    """Each place of a sample has a table of its own."""

    def __init__(self):
        super().__init__()
        self.small, self.large, self.out = nn.Embedding(5, 4), nn.Embedding(1000, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.cat([self.small(x[:, 0]), self.large(x[:, 1])], dim=1))


@pytest.mark.parametrize("where", ["training", "test"])
def test_a_number_outside_of_its_own_columns_table_is_told(where):
    draw = np.random.default_rng(0)
    x = np.stack([draw.integers(0, 5, 40), draw.integers(0, 1000, 40)], axis=1)
    wrong = x.copy()
    wrong[17, 0] = 7
    data = ef.from_arrays(dealt(wrong if where == "training" else x, x[:, 0] % 2), test=(wrong, x[:, 0] % 2))
    with pytest.raises(ef.InputError, match=f"{where} sample .* at place 0, 7"):
        ef.simulate(Columns(), data, FLEET, **SMALL)


def test_other_bad_input_is_told():
    x, y = tokens()
    sparse = nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 12))
    with pytest.raises(ef.InputError, match="sparse gradients"):
        ef.simulate(sparse, [(x, y)] * 4, FLEET, **SMALL)
    for classes in ("two", -3, 2.5):
        with pytest.raises(ef.InputError, match="classes"):
            ef.from_arrays([(x, y)], classes=classes)
    with pytest.raises(ef.InputError, match="target at each position"):
        ef.simulate("char-lstm", [(x, y[:, 0])] * 4, FLEET, **SMALL)
    with pytest.raises(ef.InputError, match="Give tokens as whole numbers"):
        ef.simulate(nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 12)), [(x * 1.0, y)] * 4, FLEET, **SMALL)
    with pytest.raises(ef.InputError, match="add it to the run's metrics"):
        ef.simulate("char-lstm", [(x, y)] * 4, FLEET, early_stopping=ef.EarlyStopping(0.2, metric="top-3"), **SMALL)


def test_inputs_by_name_may_come_in_any_order():
    x, y = tokens()
    mask = np.ones_like(x, dtype=bool)
    data = ef.from_arrays([({"x": x, "mask": mask}, y), ({"mask": mask, "x": x}, y)])
    assert data.x["x"].shape == data.x["mask"].shape == (40, 6)


def test_a_named_task_keeps_the_vocabulary_that_was_declared():
    x, y = tokens()
    data = ef.from_arrays([(x, y)] * 4, classes=50)
    experiment = ef.Experiment(data=data, fleet=FLEET, task="next-token")
    assert experiment.make_data(FLEET).classes == 50
    declared = Dataset("d", x, y, x, y, 50)
    assert (
        ef.Experiment(data=declared, fleet=FLEET, task="next-token", split=ef.SPLITS["iid"]()).make_data(FLEET).classes
        == 50
    )


def test_a_vocabulary_whose_scores_do_not_fit_is_refused_before_memory_is_taken():
    x, y = tokens()
    y[0, 0] = 10**8
    with pytest.raises(ef.InputError, match="scores of 100,000,001 classes"):
        ef.simulate("char-gpt", [(x, y)] * 4, FLEET, **{**SMALL, "batch_size": 64})


# -- the second round --------------------------------------------------------------------------------


def some_data(task, rng, count=12):
    x = rng.normal(size=(count, 5)).astype(np.float32)
    if task == "next-token":
        return tokens(count, seed=int(rng.integers(1000)))
    return x, {
        "classification": rng.integers(0, 3, count),
        "multilabel": x[:, :3] > 0.1,
        "regression": x[:, :3] * 2,
    }[task]


def some_model(task):
    return nn.Embedding(12, 12) if task == "next-token" else nn.Linear(5, 3)


ALL = ["classification", "next-token", "multilabel", "regression"]


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("task", ALL)
def test_every_metric_of_early_stopping_works_or_is_refused_with_those_that_do(task, owned):
    rng = np.random.default_rng(0)
    parts = [some_data(task, rng) for _ in range(4)]
    data = ef.from_arrays(parts, test=parts if owned else parts[0])
    working = set()
    for metric in ("loss", "accuracy", "worst_group_accuracy", "perplexity", "f1", "auc", "mae", "r2"):
        stopping = ef.EarlyStopping(0.25, metric=metric)
        try:
            ef.simulate(some_model(task), data, FLEET, early_stopping=stopping, **SMALL | {"rounds": 1})
            working.add(metric)
        except ef.InputError as error:
            told = str(error)
            assert f"early_stopping.metric is '{metric}', which the validation set of this run does not have" in told
            named = told.split("it has ")[1].split(", and what")[0].split(", ")
            assert ("classes of the samples" in told) == (metric == "worst_group_accuracy")
    assert working == set(named)


@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("test_kind", [None, bool, np.int64, np.float32])
def test_labels_on_demand_may_be_of_any_type(kind, test_kind):
    rng = np.random.default_rng(0)
    parts = [some_data("multilabel", rng) for _ in range(4)]
    test = None if test_kind is None else (parts[0][0], parts[0][1].astype(test_kind))
    lazy = ef.OnDemand(
        Generated([12] * 4, lambda i: (parts[i][0], parts[i][1].astype(kind))), test, classes=3, task="multilabel"
    )
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    found = ef.simulate(model, lazy, FLEET, **SMALL)
    expected = ef.simulate(model, ef.from_arrays(parts, test=test and parts[0]), FLEET, **SMALL)
    for name, value in expected.params.items():
        torch.testing.assert_close(found.params[name], value, rtol=1e-5, atol=1e-7)
    assert (found.final and found.final.loss) == (expected.final and pytest.approx(expected.final.loss, rel=1e-5))


def test_a_model_that_cannot_evaluate_one_sample_is_refused_in_a_sentence():
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))
    parts = [some_data("classification", rng) for _ in range(4)]
    with pytest.raises(ef.InputError, match=r"fails on a test sample alone .*nn\.GroupNorm for nn\.BatchNorm"):
        ef.simulate(model, ef.from_arrays(parts, test=parts[0]), FLEET, **SMALL)
    ef.simulate(model, ef.from_arrays(parts), FLEET, **SMALL)  # it can be trained


def test_a_perplexity_beyond_floats_is_infinite_and_stays_so(tmp_path):
    x, y = tokens(8)
    model = nn.Embedding(12, 12)
    with torch.no_grad():
        model.weight.copy_(2000.0 * torch.eye(12))
    data = ef.from_arrays([(x, y)] * 4, test=[(x, y)] * 4)
    history = ef.simulate(model, data, FLEET, client=ef.SGD(1e-9), out=tmp_path / "run", **SMALL)
    assert history.final.loss == pytest.approx(2000.0)
    assert history.final.own["perplexity"] == math.inf
    assert history.final.breakdown["perplexity"]["clients mean"] == math.inf
    again = ef.open_run(tmp_path / "run")
    assert again.final.own == history.final.own
    assert again.final.breakdown["perplexity"] == history.final.breakdown["perplexity"]
    page([again], tmp_path / "report.html")
    with torch.no_grad():
        model.weight.copy_(705.0 * torch.eye(12))
    final = ef.simulate(model, data, FLEET, client=ef.SGD(1e-9), **SMALL).final
    assert final.own["perplexity"] == pytest.approx(math.exp(final.loss))


@pytest.mark.parametrize("k", [3, 5])
def test_the_class_that_accuracy_takes_of_equals_is_the_first_of_the_top(k):
    rng = np.random.default_rng(0)
    for _ in range(50):
        outputs = torch.tensor(rng.integers(0, 3, (40, 8)).astype(np.float32))
        y = torch.tensor(rng.integers(0, 8, 40))
        hits = float((outputs.argmax(1) == y).double().mean())
        assert ef.METRICS[f"top-{k}"](outputs, y) >= hits
        only = outputs.argmax(1)
        assert ef.METRICS[f"top-{k}"](outputs, only) == 1.0


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (("10", "7", "9", "-3"), (3, 1, 2, 0)),
        (("1e3", "2.5", "10", "9"), (1, 3, 2, 0)),
        (("10", "7", "nine", "1"), (3, 0, 1, 2)),
        (("b", "a", "d", "c"), (1, 0, 3, 2)),
        ((10.0, 7.0, 9.0, -3.0), (3, 1, 2, 0)),
        (("inf", "7", "9", "10"), (3, 1, 2, 0)),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_clients_meet_energy_in_the_order_of_numbers_if_a_column_has_numbers(values, order, reverse):
    owner = np.repeat(np.arange(4), 5)
    x = np.zeros((20, 2), np.float32)
    data = Dataset("d", x, owner % 2, x, owner % 2, 2, owners=Owners(owner, owner, tuple("abcd"), {"w": values}))
    fleet = ef.Fleet.from_cycles([1, 2, 5, 10])
    dealt_to = data.partition(4, "natural", fleet=fleet, match="column", column="w", reverse=reverse)
    assert dealt_to.names == tuple("abcd"[i] for i in (order[::-1] if reverse else order))


class Positions(nn.Module):
    def __init__(self, longest):
        super().__init__()
        self.token, self.place, self.out = nn.Embedding(12, 4), nn.Embedding(longest, 4), nn.Linear(4, 12)

    def forward(self, x):
        return self.out(self.token(x) + self.place(torch.arange(x.shape[1])))


def test_a_sequence_that_is_too_long_is_not_called_a_number_too_high():
    x, y = tokens()
    with pytest.raises(ef.InputError, match=r"whole numbers of shape \(6,\), whatever the numbers.*table of positions"):
        ef.simulate(Positions(5), [(x, y)] * 4, FLEET, **SMALL)
    with pytest.raises(ef.InputError, match="which holds the highest number, 20"):
        ef.simulate(Positions(6), [(np.where(x == x[3, 3], 20, x), y)] * 4, FLEET, **SMALL)
    ef.simulate(Positions(6), [(x, y)] * 4, FLEET, **SMALL)


def test_a_name_that_everfed_computes_anyway_is_told_so():
    def loss(outputs, targets):
        return 0.0

    x, y = load_wine(return_X_y=True)
    data = ef.from_arrays(dealt(x, y), test=(x, y))
    for name in ("accuracy", "loss", "worst_group_accuracy"):
        with pytest.raises(ef.InputError, match=f"'{name}' is part of every evaluation"):
            ef.simulate("logistic", data, FLEET, metrics=(name,), **SMALL)
    with pytest.raises(ef.InputError, match="a metric is called 'loss', as one of everfed's own"):
        ef.simulate("logistic", data, FLEET, metrics=(loss,), **SMALL)
    with pytest.raises(ef.InputError, match="two metrics are called 'f1'"):
        ef.simulate("logistic", data, FLEET, metrics=("f1", "f1"), **SMALL)
