"""The loop: what the server adds is what the methods say, run for run, and nothing else moves the model."""

import copy
import json
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import everfed as ef

CYCLES = [1, 5, 10, 20]


@pytest.fixture(scope="module")
def digits():
    return ef.load("digits").partition(8, "dirichlet", seed=0)


@pytest.fixture(scope="module")
def fleet():
    return ef.Fleet.from_cycles(CYCLES * 2)


def settings(**changes):
    return {
        "rounds": 20,
        "local_steps": 2,
        "batch_size": 8,
        "client": ef.SGD(0.1),
        "device": "cpu",
        **changes,
    }


def plain(history):
    """Everything in the records but the time it took, comparable with ==."""
    return [{k: v for k, v in record.to_dict().items() if k != "seconds"} for record in history.rounds]


def same_params(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one, other):
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in one))


# -- repeatability ---------------------------------------------------------------------------------


IN_ROUNDS = [name for name, method in ef.METHODS.items() if not method.server.asynchronous]
# They divide by the shares, take back what they have added, or correct the local steps: not bit for bit.
ROUNDED = ["greedy-normalized", "fedvarp", "ht-varp", "last-updates", "mifa", "scaffold", "ht-scaffold"]


@pytest.fixture(scope="module", params=["batched", "one-by-one"])
def with_all_cycles_one(request, digits):
    """A method's run by one of the trainers, and FedAvg's."""
    ones = ef.Fleet.from_cycles([1] * 8)
    kwargs = settings(rounds=5, client=ef.Adam(1e-2), trainer=request.param, eval_every=2)
    fedavg = ef.simulate("mlp", digits, ones, "fedavg", **kwargs)
    return lambda method: (ef.simulate("mlp", digits, ones, method, **kwargs), fedavg)


@pytest.mark.parametrize("method", [m for m in IN_ROUNDS if m not in ROUNDED])
def test_with_all_cycles_one_every_method_is_fedavg_bit_for_bit(method, with_all_cycles_one):
    history, fedavg = with_all_cycles_one(method)
    assert same_params(history.params, fedavg.params)
    assert plain(history) == plain(fedavg)


@pytest.mark.parametrize("method", ROUNDED)
def test_with_all_cycles_one_the_others_are_fedavg_but_for_rounding(method, digits):
    ones = ef.Fleet.from_cycles([1] * 8)
    kwargs = settings(rounds=5, local_steps=1)  # SCAFFOLD's corrections cancel in the first local step only
    history, fedavg = (ef.simulate("mlp", digits, ones, m, **kwargs) for m in (method, "fedavg"))
    for name in fedavg.params:
        torch.testing.assert_close(history.params[name], fedavg.params[name], rtol=1e-4, atol=1e-6)
    assert [r.round_weight for r in history.rounds] == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("method", [m for m in ef.METHODS if m != "fedbuff"])  # whose buffer is larger than this fleet
def test_the_same_seed_gives_the_same_run_bit_for_bit_and_another_seed_another(method, digits, fleet):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))
    one, again, other = (ef.simulate(model, digits, fleet, method, seed=s, **settings()) for s in (3, 3, 4))
    assert same_params(one.params, again.params)
    assert plain(one) == plain(again)
    assert distance(one.params, other.params) > 1e-3


@pytest.mark.parametrize("seed", [2**32, 2**64 - 1])
def test_large_seeds_are_seeds_of_their_own(seed, digits, fleet):
    large, small = (ef.simulate("logistic", digits, fleet, seed=s, **settings(rounds=20)) for s in (seed, 0))
    assert distance(large.params, small.params) > 1e-3


def test_a_run_does_not_touch_torchs_generator(digits, fleet):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    ef.simulate("mlp", digits, fleet, **settings())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("budget", [1, 200_000])
def test_a_memory_budget_changes_nothing_but_rounding(budget, digits, fleet):
    free, tight = (ef.simulate("mlp", digits, fleet, memory_budget=b, **settings()) for b in (None, budget))
    for name in free.params:
        torch.testing.assert_close(free.params[name], tight.params[name], rtol=1e-3, atol=1e-5)


# -- where a run starts ----------------------------------------------------------------------------


def test_a_module_is_the_start_and_is_left_unchanged(digits, fleet):
    module = ef.build("mlp", (1, 8, 8), 10).eval()
    before = copy.deepcopy(module.state_dict())
    run = ef.start(module, digits, fleet, **settings())
    assert same_params(run.params, before)
    list(run)
    assert not same_params(run.params, before)
    assert same_params(module.state_dict(), before)
    assert all(p.grad is None for p in module.parameters())
    assert not any(layer.training for layer in module.modules())


def test_a_module_keeps_its_weights_whatever_the_seed(digits, fleet):
    module = ef.build("mlp", (1, 8, 8), 10)
    runs = [ef.start(module, digits, fleet, seed=s, **settings()) for s in (0, 1)]
    assert same_params(runs[0].params, runs[1].params)


@pytest.mark.parametrize("model", ["mlp", lambda: ef.build("mlp", (1, 8, 8), 10)], ids=["name", "factory"])
def test_a_name_and_a_factory_start_from_the_same_weights_for_every_method(model, digits, fleet):
    reference = ef.start("mlp", digits, fleet, "fedavg", seed=5, **settings()).params
    torch.manual_seed(123)  # the global generator must not matter
    for method in IN_ROUNDS:
        assert same_params(ef.start(model, digits, fleet, method, seed=5, **settings()).params, reference)
    assert not same_params(ef.start(model, digits, fleet, seed=6, **settings()).params, reference)


def test_final_params_load_into_a_new_model_and_give_the_last_metrics(digits, fleet):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))
    history = ef.simulate(model, digits, fleet, **settings())
    model.load_state_dict(history.params)
    logits = model.eval()(torch.as_tensor(digits.test_x))
    right = (logits.argmax(dim=1).numpy() == digits.test_y).mean()
    assert history.final.accuracy == pytest.approx(right)
    assert history.final.loss == pytest.approx(F.cross_entropy(logits, torch.as_tensor(digits.test_y)).item(), rel=1e-5)


# -- aggregation, by hand --------------------------------------------------------------------------

# Each client holds copies of one sample, so every minibatch is that sample and the local steps can be done by hand.
HAND_CYCLES = np.array([1, 2, 3, 6])
HAND_SIZES = np.array([1, 2, 3, 4])
HAND_SHARES = HAND_SIZES / 10
HAND_X = torch.tensor([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5], [0.0, -2.0]])
HAND_Y = torch.tensor([1.0, -1.0, 2.0, 0.5])
LR, STEPS = 0.1, 3


def hand_data():
    pairs = zip(HAND_X, HAND_Y, HAND_SIZES.tolist(), strict=True)
    return ef.from_arrays([(x.repeat(n, 1), y.repeat(n, 1)) for x, y, n in pairs])


def local_steps(weight, client, correction=0.0):
    """(delta, mean loss) after STEPS of gradient descent on (x.w - y)^2, each gradient corrected."""
    x, y, w, losses = HAND_X[client], HAND_Y[client], weight.clone(), []
    for _ in range(STEPS):
        error = x @ w - y
        losses.append(error**2)
        w = w - LR * (2 * error * x + correction)
    return w - weight, torch.stack(losses).mean()


def scaled(shares, cycles):
    return shares * cycles


def unscaled(shares, cycles):
    return shares


def normalized(shares, cycles):
    return shares / shares.sum()


# What the server multiplies each participant's delta by, from the participants' shares and cycles.
WEIGHTS = {
    "algorithm1": scaled,
    "greedy": unscaled,
    "wait-for-all": unscaled,
    "fedavg": unscaled,
    "greedy-normalized": normalized,
    "greedy-scaled": scaled,
    "algorithm1-unscaled": unscaled,
    "bernoulli": scaled,
    "known-arrivals": scaled,
    "lattice": scaled,
    "fixed-phase": scaled,
    "scaffold": normalized,
    "ht-scaffold": scaled,
    "truncated": scaled,  # no cycle is longer than the limit
}
# Who trains in round r, where chance has no say.
WHO = {
    "greedy": lambda r: [i for i, e in enumerate(HAND_CYCLES) if r % e == 0],
    "greedy-normalized": lambda r: [i for i, e in enumerate(HAND_CYCLES) if r % e == 0],
    "greedy-scaled": lambda r: [i for i, e in enumerate(HAND_CYCLES) if r % e == 0],
    "self-weighted": lambda r: [i for i, e in enumerate(HAND_CYCLES) if r % e == 0],
    "wait-for-all": lambda r: [0, 1, 2, 3] if r % 6 == 0 else [],
    "fedavg": lambda r: [0, 1, 2, 3],
}


def learnt(shares, cycles, round):
    """The mean of the intervals so far: 1 (the first unit is there at once), then E, E, ..."""
    past = round // cycles
    return shares * np.where(past == 0, 1.0, (1.0 + (past - 1) * cycles) / np.maximum(past, 1))


class ByHand:
    """The server's steps of one method, with the memory that some keep."""

    def __init__(self, method):
        self.method = method
        self.rounds = {i: [-1] for i in range(4)}  # in which each took part; -1: its start
        self.last = {}  # each client's last update
        self.gradients = torch.zeros(4, 2)  # each client's mean gradient of its last round
        self.models = {}  # the model that each client was sent last
        self.start = None  # and the one before

    def step(self, weight, who, round):
        """(what is added to the weights, the sum of its coefficients, the losses)."""
        correction = torch.zeros(4, 2)
        if self.method in ("scaffold", "ht-scaffold"):
            correction = torch.tensor(HAND_SHARES, dtype=torch.float32) @ self.gradients - self.gradients
        own = self.method == "fedawe"  # each starts from the model it was sent last
        trained = {
            i: local_steps(self.models.get(i, self.first(weight)) if own else weight, i, correction[i])
            for i in who.tolist()
        }
        deltas = {i: delta for i, (delta, _) in trained.items()}
        parts = list(self.parts(who, round, deltas))
        if own and deltas:
            sent = self.fedawe(round, deltas)
            self.models |= dict.fromkeys(deltas, sent)
        for i, delta in deltas.items():
            self.rounds[i].append(round)
            self.last[i] = delta
            self.gradients[i] = -delta / (LR * STEPS) - correction[i]
        added = sum((float(c) * delta for c, delta in parts), torch.zeros(2))
        return added, sum(float(c) for c, _ in parts), [loss.item() for _, loss in trained.values()]

    def first(self, weight):
        self.start = weight if self.start is None else self.start
        return self.start

    def fedawe(self, round, deltas):
        """What the participants are sent: the mean of their models, with every missed round echoed."""
        ends = [
            self.models.get(i, self.start) + float(4 * HAND_SHARES[i] * (round - self.rounds[i][-1])) * delta
            for i, delta in deltas.items()
        ]
        return torch.stack(ends).mean(dim=0)

    def parts(self, who, round, deltas):
        """Coefficients and the updates they multiply."""
        shares, cycles = HAND_SHARES[who], HAND_CYCLES[who]
        if self.method == "mifa":  # at a constant rate; it waits for all
            known = self.last | deltas
            return [(HAND_SHARES[i], y) for i, y in known.items()] if len(known) == 4 else []
        if self.method == "last-updates":
            known = self.last | deltas
            return [(HAND_SHARES[i] / sum(HAND_SHARES[j] for j in known), y) for i, y in known.items()]
        if self.method == "fedvarp":
            old = [(HAND_SHARES[i], y) for i, y in self.last.items()]
            back = [(-HAND_SHARES[i] / shares.sum(), self.last[i]) for i in deltas if i in self.last]
            return [*old, *back, *zip(shares / shares.sum(), deltas.values(), strict=True)]
        if self.method == "ht-varp":
            old = [(0.5 * HAND_SHARES[i], y) for i, y in self.last.items()]
            back = [(-0.5 * HAND_SHARES[i] * HAND_CYCLES[i], self.last[i]) for i in deltas if i in self.last]
            return [*old, *back, *zip(shares * cycles, deltas.values(), strict=True)]
        if self.method == "self-weighted":
            coefficients = learnt(shares, cycles, round)
        elif self.method == "fedau":
            means = [np.mean(np.diff(self.rounds[i])) if len(self.rounds[i]) > 1 else 1.0 for i in deltas]
            coefficients = shares * means
        elif self.method in ("echo", "fedawe"):
            coefficients = shares * [round - self.rounds[i][-1] for i in deltas]
        else:
            coefficients = WEIGHTS[self.method](shares, cycles)
        return zip(coefficients, deltas.values(), strict=True)


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("method", IN_ROUNDS)
def test_the_servers_step_is_the_one_worked_out_by_hand(method, trainer):
    model = nn.Linear(2, 1, bias=False)
    kwargs = settings(rounds=12, local_steps=STEPS, batch_size=1, client=ef.SGD(LR), trainer=trainer)
    run = ef.start(model, hand_data(), ef.Fleet.from_cycles(HAND_CYCLES), method, **kwargs)
    server, seen, weight = ByHand(method), set(), run.params["weight"][0]
    for record in run:
        who = record.participants
        if method in WHO:
            assert who.tolist() == WHO[method](record.round)
        step, coefficients, losses = server.step(weight, who, record.round)
        torch.testing.assert_close(run.params["weight"][0], weight + step, rtol=1e-5, atol=1e-5)
        assert record.update_norm == pytest.approx(step.norm().item(), rel=1e-4, abs=1e-5)
        assert record.round_weight == pytest.approx(coefficients)
        assert record.train_loss == (pytest.approx(np.mean(losses), rel=1e-4, abs=1e-6) if losses else None)
        weight = run.params["weight"][0]
        seen.update(who.tolist())
    assert seen == {0, 1, 2, 3}


def test_a_method_of_ones_own_is_a_policy_and_a_server_rule(digits, fleet):
    own = ef.Method(ef.Greedy(), ef.Normalized(), "mine")
    mine, builtin = (ef.simulate("logistic", digits, fleet, m, **settings()) for m in (own, "greedy-normalized"))
    assert same_params(mine.params, builtin.params)


# -- empty rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cycles", "offsets", "method", "trains_in"),
    [
        ([5, 5], [2, 2], "greedy", [2, 7]),
        ([5, 5], [1, 4], "greedy-normalized", [1, 4, 6, 9]),
        ([2, 5], [0, 0], "wait-for-all", [0, 5]),
    ],
)
def test_a_round_without_participants_leaves_the_model_as_it_is(cycles, offsets, method, trains_in):
    rng = np.random.default_rng(0)
    data = ef.from_arrays([(rng.normal(size=(9, 3)), rng.integers(0, 2, 9)) for _ in range(2)])
    fleet = ef.Fleet.from_cycles(cycles, offsets)
    run = ef.start("logistic", data, fleet, method, **settings(rounds=10))
    before = run.params
    moved = []
    for record in run:
        if same_params(run.params, before):
            assert len(record.participants) == 0
            assert (record.update_norm, record.round_weight, record.train_loss) == (0.0, 0.0, None)
        else:
            moved.append(record.round)
        before = run.params
    assert moved == trains_in


def test_a_run_in_which_nobody_ever_trains_ends_where_it_began():
    data = ef.from_arrays([(np.ones((2, 1)), [0, 1])], test=(np.ones((2, 1)), [0, 1]))
    run = ef.start("logistic", data, ef.Fleet.from_cycles([5], [50]), **settings(rounds=5, batch_size=2))
    start = run.params
    records = list(run)
    assert same_params(run.params, start)
    assert records[-1].metrics.accuracy == 0.5


# -- bookkeeping -----------------------------------------------------------------------------------

# 20 rounds of ten clients of each cycle: a participant each time a window of E rounds has passed.
PARTICIPATIONS = {
    "algorithm1": 270, "algorithm1-unscaled": 270, "greedy": 270, "greedy-normalized": 270, "greedy-scaled": 270,
    "lattice": 270, "fixed-phase": 270, "mifa": 270, "fedawe": 270, "wait-for-all": 40, "fedavg": 800,
}  # fmt: skip


@pytest.fixture(scope="module")
def paper_runs():
    fleet = ef.Fleet.from_cycles(CYCLES * 10)
    data = ef.load("digits").partition(40)
    kwargs = settings(local_steps=1, batch_size=2, eval_every=20)
    return {m: ef.simulate("logistic", data, fleet, m, **kwargs) for m in PARTICIPATIONS}


@pytest.mark.parametrize("method", PARTICIPATIONS)
def test_participations_are_those_that_energy_allows(method, paper_runs):
    assert paper_runs[method].participations == PARTICIPATIONS[method]


@pytest.mark.parametrize("method", ["algorithm1", "greedy", "lattice", "fixed-phase"])
def test_each_client_takes_part_once_a_window(method, paper_runs):
    counts = np.zeros(40, np.int64)
    for record in paper_runs[method].rounds:
        counts[record.participants] += 1
    assert counts.tolist() == [20, 4, 2, 1] * 10


@pytest.mark.parametrize("method", PARTICIPATIONS)
def test_the_energy_books_of_every_round_balance_and_count_participants(method, paper_runs):
    history = paper_runs[method]
    spent = np.cumsum([len(r.participants) for r in history.rounds])
    assert [r.energy.spent for r in history.rounds] == spent.tolist()
    assert all(abs(r.energy.imbalance()) < 1e-9 for r in history.rounds)
    assert history.energy == history.rounds[-1].energy
    assert history.energy.harvested == 270
    assert history.energy.violations == (530 if method == "fedavg" else 0)
    assert history.energy.shortfall == history.energy.violations


def test_wait_for_all_wastes_what_does_not_fit_the_batteries(paper_runs):
    books = paper_runs["wait-for-all"].energy
    assert (books.spent, books.stored, books.wasted) == (40, 30, 200)


def test_round_weights_of_greedy_follow_who_is_due(paper_runs):
    weights = [r.round_weight for r in paper_runs["greedy"].rounds]
    shares = ef.load("digits").partition(40).shares()
    expected = [sum(shares[i] for i in range(40) if r % CYCLES[i % 4] == 0) for r in range(20)]
    assert weights == pytest.approx(expected)
    assert np.mean(weights) == pytest.approx(0.3375, abs=0.002)


def test_records_are_numbered_timed_and_serialisable(paper_runs):
    rounds = paper_runs["algorithm1"].rounds
    assert [r.round for r in rounds] == list(range(20))
    assert all(r.seconds > 0 for r in rounds)
    record = json.loads(json.dumps(rounds[-1].to_dict(), allow_nan=False))
    assert record["participants"] == rounds[-1].participants.tolist()
    assert record["metrics"]["accuracy"] == rounds[-1].metrics.accuracy


# -- evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "eval_every", "where"),
    [(7, 3, [2, 5, 6]), (6, 3, [2, 5]), (5, 100, [4]), (3, 1, [0, 1, 2]), (40, 0, list(range(1, 40, 2)))],
)
def test_metrics_are_there_where_asked_for_and_in_the_last_round(rounds, eval_every, where, digits, fleet):
    kwargs = settings(rounds=rounds, eval_every=eval_every, local_steps=1, batch_size=1)
    history = ef.simulate("logistic", digits, fleet, **kwargs)
    assert [r.round for r in history.rounds if r.metrics] == where
    assert history.curve()[0] == [r + 1 for r in where]
    assert history.curve("loss")[1] == [history.rounds[r].metrics.loss for r in where]
    assert history.final == history.rounds[-1].metrics


def test_evaluating_more_often_does_not_change_the_run(digits, fleet):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    often, once = (ef.simulate(model, digits, fleet, eval_every=e, **settings()) for e in (1, 20))
    assert same_params(often.params, once.params)


def test_without_a_test_set_there_are_no_metrics(fleet):
    data = ef.from_arrays([(np.ones((2, 1)), [0, 1])] * 8)
    history = ef.simulate("logistic", data, fleet, eval_every=1, **settings())
    assert history.final is None
    assert all(r.metrics is None for r in history.rounds)
    assert history.curve() == ([], [])
    assert history.rounds[0].to_dict()["metrics"] is None


@pytest.fixture(scope="module")
def skewed():
    """A run on labels that follow energy, its data and its fleet."""
    fleet = ef.Fleet.from_cycles(CYCLES * 3)
    data = ef.load("digits").partition(12, "by-energy", fleet=fleet, strength=0.8)
    return ef.simulate("logistic", data, fleet, "greedy", **settings(rounds=40)).final, data, fleet


def test_class_accuracies_average_to_the_accuracy(skewed):
    metrics, data, _ = skewed
    mix = np.bincount(data.test_y) / len(data.test_y)
    assert mix @ np.array(metrics.class_accuracy) == pytest.approx(metrics.accuracy)
    assert mix @ np.array(metrics.class_loss) == pytest.approx(metrics.loss, rel=1e-5)
    assert len(set(metrics.class_accuracy)) > 1


def test_group_accuracies_are_class_accuracies_in_the_groups_own_mix(skewed):
    metrics, data, fleet = skewed
    for group in fleet.groups():
        labels = np.concatenate([data.y[data.samples_of(i)] for i in group.clients])
        mix = np.bincount(labels, minlength=10) / len(labels)
        assert metrics.group_accuracy[group.label] == pytest.approx(mix @ np.array(metrics.class_accuracy))
        assert metrics.group_loss[group.label] == pytest.approx(mix @ np.array(metrics.class_loss))


def test_the_worst_group_is_the_least_accurate(skewed):
    metrics, _, _ = skewed
    assert list(metrics.group_accuracy) == ["E=1", "E=5", "E=10", "E=20"]
    assert metrics.worst_group_accuracy == min(metrics.group_accuracy.values()) < metrics.accuracy
    assert metrics.to_dict()["worst_group_accuracy"] == metrics.worst_group_accuracy


def test_groups_that_hold_the_test_sets_own_mix_see_the_overall_accuracy(fleet):
    raw = ef.load("digits")
    data = ef.from_arrays([(raw.test_x, raw.test_y)] * 8, test=(raw.test_x, raw.test_y))
    metrics = ef.simulate("logistic", data, fleet, **settings()).final
    assert 0.2 < metrics.accuracy < 1.0
    assert list(metrics.group_accuracy.values()) == pytest.approx([metrics.accuracy] * 4)


def test_a_class_that_the_test_set_lacks_is_left_out(fleet):
    x = np.eye(3)
    data = ef.from_arrays([(x, [0, 1, 2])] * 8, test=(x[:2], [0, 1]))
    metrics = ef.simulate("logistic", data, fleet, **settings(rounds=40, client=ef.SGD(1.0))).final
    assert metrics.accuracy == 1.0
    assert [math.isnan(a) for a in metrics.class_accuracy] == [False, False, True]
    assert metrics.to_dict()["class_accuracy"] == [1.0, 1.0, None]
    assert set(metrics.group_accuracy.values()) == {1.0}


# -- other kinds of data and models ----------------------------------------------------------------


def regression(clients=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients + 1, 20, 2))
    y = x @ np.array([[2.0], [-1.0]]) + 0.5
    return ef.from_arrays(list(zip(x[:-1], y[:-1], strict=True)), test=(x[-1], y[-1]))


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("loss", [None, F.l1_loss, F.smooth_l1_loss], ids=["squared", "absolute", "huber"])
def test_float_targets_are_regressed_with_the_loss_asked_for(loss, trainer, fleet):
    data = regression()
    kwargs = settings(rounds=60, local_steps=3, client=ef.SGD(0.05), trainer=trainer)
    history = ef.simulate(lambda: nn.Linear(2, 1), data, fleet, loss=loss, **kwargs)
    metrics = history.final
    assert metrics.accuracy is metrics.class_accuracy is metrics.group_accuracy is metrics.worst_group_accuracy is None
    predicted = torch.as_tensor(data.test_x) @ history.params["weight"].T + history.params["bias"]
    expected = (loss or F.mse_loss)(predicted, torch.as_tensor(data.test_y)).item()
    assert metrics.loss == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert metrics.loss < 0.1
    json.dumps(metrics.to_dict(), allow_nan=False)


def test_a_custom_loss_trains_classifiers_too(digits, fleet):
    def smoothed(logits, labels):
        return F.cross_entropy(logits, labels, label_smoothing=0.3)

    smooth, sharp = (ef.simulate("logistic", digits, fleet, loss=f, **settings()) for f in (smoothed, None))
    plainly = ef.simulate("logistic", digits, fleet, loss=smoothed, trainer="one-by-one", **settings())
    assert distance(smooth.params, plainly.params) < 1e-4 < 0.01 < distance(smooth.params, sharp.params)


def test_data_may_be_a_plain_list_of_pairs(fleet):
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(5 + i, 3)), rng.integers(0, 3, 5 + i)) for i in range(8)]
    listed, built = (ef.simulate("mlp", d, fleet, **settings()) for d in (pairs, ef.from_arrays(pairs)))
    assert same_params(listed.params, built.params)


def test_a_batch_larger_than_a_clients_data_warns_and_works(fleet):
    data = [(np.ones((n, 2)), [0] * n) for n in (1, 100, 100, 2, 100, 100, 100, 100)]
    with pytest.warns(ef.EverfedWarning, match=r"batch of 50 .*client 0, 3; .*with replacement"):
        history = ef.simulate("logistic", data, fleet, **settings(batch_size=50))
    assert history.rounds[0].update_norm >= 0
    assert history.participations == 54


# -- watching and stopping -------------------------------------------------------------------------


def test_stopping_early_keeps_what_was_learnt_so_far(digits, fleet):
    run = ef.start("mlp", digits, fleet, **settings())
    assert len(run) == 20
    for record in run:
        if record.round == 4:
            break
    short = ef.simulate("mlp", digits, fleet, **settings(rounds=5))
    assert same_params(run.params, short.params)
    assert [r.round for r in run] == list(range(5, 20))  # and it can go on
    assert same_params(run.params, ef.simulate("mlp", digits, fleet, **settings()).params)


def test_params_are_a_copy_on_the_cpu(digits, fleet):
    run = ef.start("logistic", digits, fleet, **settings())
    for value in run.params.values():
        assert value.device.type == "cpu"
        value.zero_()
    assert all(value.abs().sum() > 0 for value in run.params.values())


# -- what it is all for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "where", "tolerance"),
    [
        pytest.param("fedavg", 1.5, 0.001, marks=pytest.mark.long),  # the true optimum: the mean of the targets
        ("algorithm1", 1.5, 0.08),  # the same, up to the bias and the noise of a finite step
        ("greedy", (1 / 5 + 2 / 10 + 3 / 20) / (1 + 1 / 5 + 1 / 10 + 1 / 20), 0.01),  # weighed by 1/E: 0.4074
        ("greedy-normalized", (1.5 + 1.0 + 0.5 + 0.5) / 20, 0.01),  # means over who is there, over 20 rounds
        ("mifa", 1.5, 0.001),  # nothing is left to chance once everybody has been seen
        pytest.param("fedawe", 1.5, 0.08, marks=pytest.mark.long),
        pytest.param("fedau", 1.5, 0.08, marks=pytest.mark.long),
    ],
)
def test_on_quadratics_each_method_converges_to_its_own_point(method, where, tolerance):
    """F_i = (w - c_i)^2 with c = 0, 1, 2, 3 and cycles 1, 5, 10, 20: greedy is pulled to the frequent."""
    data = ef.from_arrays([(np.ones((1, 1)), np.full((1, 1), float(c))) for c in range(4)])
    kwargs = settings(rounds=1000, local_steps=1, batch_size=1, client=ef.SGD(0.01))
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    run = ef.start(model, data, ef.Fleet.from_cycles(CYCLES), method, **kwargs)
    late = [run.params["weight"].item() for record in run if record.round >= 800]
    assert np.mean(late) == pytest.approx(where, abs=tolerance)


def test_algorithm_1_serves_the_worst_group_better_than_greedy():
    fleet = ef.Fleet.from_cycles(CYCLES * 10)
    data = ef.load("digits").partition(40, "by-energy", fleet=fleet, seed=0)
    kwargs = settings(rounds=100, local_steps=5, batch_size=10, client=ef.SGD(0.2))
    ours, greedy = (ef.simulate("mlp", data, fleet, m, **kwargs).final for m in ("algorithm1", "greedy"))
    assert ours.worst_group_accuracy > greedy.worst_group_accuracy + 0.2
    assert ours.accuracy > greedy.accuracy + 0.1


# -- refusals --------------------------------------------------------------------------------------


def refused(*parts):
    """An InputError whose message holds these parts, in this order."""
    return pytest.raises(ef.InputError, match=".*".join(re.escape(p) for p in parts))


BAD_SETTINGS = [
    ({"rounds": 0}, ("rounds is 0", "at least 1")),
    ({"rounds": 2.5}, ("rounds is 2.5", "whole number")),
    ({"rounds": True}, ("rounds is True", "whole number")),
    ({"rounds": "10"}, ("rounds is '10'", "whole number")),
    ({"local_steps": 0}, ("local_steps is 0", "at least 1")),
    ({"batch_size": -1}, ("batch_size is -1", "at least 1")),
    ({"rounds": 2**31, "local_steps": 2}, ("rounds x local_steps", "2**32")),
    ({"seed": -1}, ("seed is -1", "from 0 to 2**64 - 1")),
    ({"seed": 2**64}, ("seed is 18446744073709551616",)),
    ({"seed": 0.5}, ("seed is 0.5", "whole number")),
    ({"eval_every": None}, ("eval_every is None", "at least 0")),
    ({"eval_every": -5}, ("eval_every is -5", "at least 0")),
    ({"compression": None}, ("compression is None", "Whole()")),
    ({"client": 0.1}, ("client is 0.1", "SGD()")),
    ({"client_optimizer": ef.SGD(0.1)}, ("unknown setting 'client_optimizer'",)),
    ({"memory_budget": 0}, ("memory_budget is 0", "at least 1")),
    ({"method": "algoritm1"}, ("unknown method 'algoritm1'", "Did you mean 'algorithm1'?")),
    ({"method": "benchmark"}, ("unknown method 'benchmark'", "Valid: algorithm1", "wait-for-all")),
    ({"model": "mpl"}, ("unknown model 'mpl'", "Did you mean 'mlp'?")),
    ({"trainer": "one_by_one"}, ("unknown trainer 'one_by_one'", "Did you mean 'one-by-one'?")),
    ({"device": "gpu"}, ("device is 'gpu'", "'auto', 'cpu' or 'cuda'")),
    ({"rounds": 7, "strict_horizon": True}, ("7 rounds", "cycle of 5", "multiple of every cycle")),
]


@pytest.mark.parametrize(("change", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused(change, message, digits, fleet):
    with refused(*message):  # before anything runs
        ef.start(**{"model": "logistic", "data": digits, "fleet": fleet, **settings(**change)})


@pytest.mark.parametrize("more", [{"method": "greedy"}, {"rounds": 3}, {"fleet": ef.Fleet.from_cycles([1])}], ids=str)
def test_an_experiment_comes_alone(more):
    with refused("an Experiment holds", "with_method"):
        ef.start(ef.Experiment(device="cpu"), **more)


def test_an_experiment_and_its_parts_are_the_same_run(digits, fleet):
    parts = settings(rounds=5)
    history = ef.simulate(ef.Experiment.of("mlp", digits, fleet, "greedy", **parts))
    again = ef.simulate("mlp", digits, fleet, "greedy", **parts)
    assert same_params(history.params, again.params)
    assert plain(history) == plain(again)


def test_data_and_fleet_of_different_sizes_are_refused(digits):
    with refused("data have 8 clients and the fleet 4"):
        ef.simulate("logistic", digits, ef.Fleet.from_cycles(CYCLES), **settings())


def test_bad_pairs_are_refused_when_data_is_a_list(fleet):
    with refused("client 0 has 2 samples but 1 labels"):
        ef.simulate("logistic", [(np.ones((2, 1)), [0])] * 8, fleet, **settings())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_refused(device, digits, fleet):
    with refused(f"'{device}'", "no GPU", "'cpu' or 'auto'"):
        ef.simulate("logistic", digits, fleet, **settings(device=device))


def test_a_horizon_that_cuts_windows_short_warns(digits, fleet):
    with pytest.warns(ef.EverfedWarning, match="7 rounds do not contain a whole number of windows for 6 of 8"):
        ef.simulate("logistic", digits, fleet, **settings(rounds=7))
