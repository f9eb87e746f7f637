"""Learning: two trainers that share no arithmetic agree; chance is what it claims; bad models are refused."""

import copy
import itertools
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

import everfed as ef
from everfed.learning.dropout import counted_dropout
from everfed.learning.layout import Layout
from everfed.learning.rows import ClientRows
from everfed.learning.task import DeviceData, Task

CPU = torch.device("cpu")
TRAINERS = ["batched", "one-by-one"]  # the kernels have tests of their own


# -- models of every kind --------------------------------------------------------------------------


class FrozenAndBuffer(nn.Module):
    """A fixed random projection, a constant shift, and a trained last layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.first.weight.requires_grad_(False)
        self.register_buffer("shift", torch.linspace(-1, 1, 64))
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1) + self.shift)))


class Branching(nn.Module):
    """Looks at its data to decide what to do: vmap cannot batch that."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.up(x) if x.sum() > 0 else self.down(x)


def dropout_mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
    )


def dropout2d_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


def group_norm_net():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


FACTORIES = {
    "logistic": lambda: ef.build("logistic", (1, 8, 8), 10),
    "mlp": lambda: ef.build("mlp", (1, 8, 8), 10),
    "small-cnn": lambda: ef.build("small-cnn", (1, 8, 8), 10),
    "dropout mlp": dropout_mlp,
    "dropout2d cnn": dropout2d_cnn,
    "group norm": group_norm_net,
    "frozen and buffer": FrozenAndBuffer,
}

# Adam divides by the root of tiny squares, which blows rounding up; a larger eps keeps the comparison fair.
OPTIMIZERS = {
    "sgd": ef.SGD(0.1),
    "momentum": ef.SGD(0.05, momentum=0.9),
    "momentum and decay": ef.SGD(0.1, momentum=0.5, weight_decay=0.01, schedule=ef.Cosine(final=0.1)),
    "sgd inverse time": ef.SGD(0.1, weight_decay=0.1, schedule=ef.InverseTime(gamma=10.0)),
    "adam": ef.Adam(1e-3, eps=1e-3),
    "adam and decay": ef.Adam(2e-3, eps=1e-3, weight_decay=0.01, schedule=ef.Cosine(final=0.0)),
    "adam constant": ef.Adam(1e-3, beta1=0.5, beta2=0.9, eps=1e-3, schedule=ef.Constant()),
}

# Clients come back after different absences, so that kept state matters.
ROUNDS = [[0, 1, 2, 3, 4], [1, 3], [0, 3, 4], [1, 2, 3]]


def made(name, seed=0):
    torch.manual_seed(seed)
    return FACTORIES[name]()


@pytest.fixture(scope="module")
def digits():
    return ef.load("digits").partition(5, "dirichlet", seed=0)


def task(module, data, optimizer, *, keep=True, rounds=4, steps=3, batch=6, seed=7, budget=None):
    return Task(
        module=module,
        layout=Layout(module),
        data=DeviceData(data, CPU),
        loss=F.cross_entropy if data.classes else F.mse_loss,
        optimizer=optimizer,
        local_steps=steps,
        batch_size=batch,
        keep_state=keep,
        rounds=rounds,
        seed=seed,
        memory_budget=budget,
    )


def train(trainer, params, clients, round):
    """(deltas, losses) of these clients, chunks put together."""
    parts = list(trainer.train(params, np.array(clients), round))
    assert np.concatenate([p.clients for p in parts]).tolist() == list(clients)
    return torch.cat([p.deltas for p in parts]), torch.cat([p.losses for p in parts])


def run(trainer, rounds=ROUNDS, first=0, params=None):
    """Rounds of federated averaging; the deltas and losses of each, and the parameters at the end."""
    params = trainer.task.layout.flatten(trainer.task.module) if params is None else params
    results = []
    for r, clients in enumerate(rounds, start=first):
        deltas, losses = train(trainer, params, clients, r)
        results.append((deltas, losses))
        params = params + deltas.mean(dim=0)
    return results, params


def assert_alike(one, other, rtol=1e-3, atol=2e-6):
    """Results of two runs are equal up to rounding."""
    for (deltas, losses), (other_deltas, other_losses) in zip(one[0], other[0], strict=True):
        torch.testing.assert_close(deltas, other_deltas, rtol=rtol, atol=atol)
        torch.testing.assert_close(losses, other_losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one[1], other[1], rtol=rtol, atol=atol)


def both(name, data, optimizer, **settings):
    return [run(ef.TRAINERS[t](task(made(name), data, optimizer, **settings))) for t in TRAINERS]


# -- the two trainers agree ------------------------------------------------------------------------


@pytest.mark.parametrize("model", FACTORIES)
@pytest.mark.parametrize("optimizer", ["momentum and decay", "adam"])
def test_trainers_agree_for_every_model(model, optimizer, digits):
    batched, plain = both(model, digits, OPTIMIZERS[optimizer])
    assert_alike(batched, plain)
    assert all(deltas.norm(dim=1).min() > 1e-3 for deltas, _ in plain[0])  # everybody moved


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "reset"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_trainers_agree_for_every_optimizer(optimizer, keep, digits):
    assert_alike(*both("mlp", digits, OPTIMIZERS[optimizer], keep=keep))


@pytest.mark.parametrize("optimizer", [ef.SGD(0.1, momentum=0.9), ef.Adam(1e-2, eps=1e-3)])
def test_trainers_agree_on_very_unequal_clients(optimizer):
    rng = np.random.default_rng(0)
    sizes = [1, 10_000, 10, 1000, 100]
    clients = [(rng.normal(size=(n, 1, 8, 8)), rng.integers(0, 10, n)) for n in sizes]
    clients[0] = (clients[0][0], [9])
    batched, plain = both("mlp", ef.from_arrays(clients), optimizer, batch=20)
    assert_alike(batched, plain)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("model", ["dropout mlp", "small-cnn"])
def test_results_do_not_depend_on_the_chunk_size(model, chunk, digits):
    optimizer = ef.SGD(0.1, momentum=0.9)
    whole = ef.TRAINERS["batched"](task(made(model), digits, optimizer))
    budget = chunk * whole.bytes_per_client
    chunked = ef.TRAINERS["batched"](task(made(model), digits, optimizer, budget=budget))
    params = whole.task.layout.flatten(whole.task.module)
    sizes = [len(part.clients) for part in chunked.train(params, np.arange(5), 0)]
    assert sizes == [chunk] * (5 // chunk) + ([5 % chunk] if 5 % chunk else [])
    chunked = ef.TRAINERS["batched"](task(made(model), digits, optimizer, budget=budget))
    assert_alike(run(whole), run(chunked))


def test_a_budget_too_small_for_one_client_still_trains_one_at_a_time(digits):
    trainer = ef.TRAINERS["batched"](task(made("mlp"), digits, ef.SGD(), budget=1))
    assert trainer.chunk == 1


def test_memory_for_a_client_covers_its_parameters_gradients_and_state(digits):
    def size(optimizer, batch=6):
        return ef.TRAINERS["batched"](task(made("mlp"), digits, optimizer, batch=batch)).bytes_per_client

    parameters = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert size(ef.SGD()) > 2 * parameters
    assert size(ef.Adam()) - size(ef.SGD()) == pytest.approx(2 * parameters, rel=0.01)
    assert size(ef.SGD(), batch=1000) > size(ef.SGD()) + 4 * 1000 * 64


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_client_trains_the_same_whoever_else_does(trainer, digits):
    def deltas(clients):
        fresh = ef.TRAINERS[trainer](task(made("dropout mlp"), digits, ef.Adam(1e-2, eps=1e-3)))
        return train(fresh, fresh.task.layout.flatten(fresh.task.module), clients, round=5)[0]

    together = deltas([0, 1, 2, 3, 4])
    for client in range(5):
        alone = deltas([client])
        torch.testing.assert_close(alone[0], together[client], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_training_nobody_yields_nothing(trainer, digits):
    trainer = ef.TRAINERS[trainer](task(made("mlp"), digits, ef.SGD()))
    assert list(trainer.train(torch.zeros(trainer.task.layout.size), np.array([], np.int64), 0)) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_training_leaves_the_given_parameters_alone(trainer, digits):
    trainer = ef.TRAINERS[trainer](task(made("frozen and buffer"), digits, ef.SGD(0.5)))
    before = copy.deepcopy(trainer.task.module.state_dict())
    params = trainer.task.layout.flatten(trainer.task.module)
    start = params.clone()
    train(trainer, params, [0, 1], 0)
    assert torch.equal(params, start)
    after = trainer.task.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_bytes_are_seen_by_the_model_as_floats_from_0_to_1(trainer):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)
    labels = rng.integers(0, 10, 30)

    def trained(x):
        data = ef.from_arrays([(x[:10], labels[:10]), (x[10:], labels[10:])])
        return run(ef.TRAINERS[trainer](task(made("mlp"), data, ef.SGD(0.1))), rounds=[[0, 1], [1]])

    assert_alike(trained(images), trained(images.astype(np.float32) / 255))


def test_losses_are_the_mean_minibatch_loss_of_the_local_steps():
    data = ef.from_arrays([(np.full((3, 1), 2.0), np.full((3, 1), 1.0))])
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    lr, w, losses = 0.01, 1.0, []
    for _ in range(3):
        losses.append((2 * w - 1) ** 2)
        w -= lr * 2 * 2 * (2 * w - 1)
    for trainer in TRAINERS:
        deltas, loss = train(
            ef.TRAINERS[trainer](task(copy.deepcopy(model), data, ef.SGD(lr))), torch.tensor([1.0]), [0], 0
        )
        assert loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
        assert deltas.item() == pytest.approx(w - 1.0, rel=1e-4)


# -- optimisers, step by step against torch.optim --------------------------------------------------

REFERENCES = [
    (ef.SGD(0.1), lambda p: torch.optim.SGD(p, lr=1.0)),
    (ef.SGD(0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1)),
    (ef.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)),
    (
        ef.SGD(0.1, momentum=0.7, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.7, weight_decay=0.2),
    ),
    (ef.Adam(), lambda p: torch.optim.Adam(p, lr=1.0)),
    (ef.Adam(eps=1e-2), lambda p: torch.optim.Adam(p, lr=1.0, eps=1e-2)),
    (
        ef.Adam(beta1=0.5, beta2=0.8, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.5, 0.8), weight_decay=0.1),
    ),
    (ef.Adam(beta1=0.0), lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.0, 0.999))),
]


@pytest.mark.parametrize(("optimizer", "reference"), REFERENCES, ids=lambda v: repr(v) if not callable(v) else "")
def test_every_step_equals_torchs_for_rows_of_different_counts(optimizer, reference):
    generator = torch.Generator().manual_seed(0)
    rows, size = 4, 50
    params = torch.randn(rows, size, generator=generator)
    state = optimizer.init(rows, size, CPU)
    theirs = [nn.Parameter(row.clone()) for row in params]
    references = [reference([row]) for row in theirs]
    for step, who in enumerate([[0, 1, 2, 3], [1], [1, 3], [0, 1, 3], [2, 3], [3], [0, 1, 2, 3]]):
        lr = 0.1 / (1 + step)
        grads = torch.randn(len(who), size, generator=generator)
        part, part_state = params[who], {name: column[who] for name, column in state.items()}
        optimizer.step(part, grads, part_state, lr)
        params[who] = part
        for name in state:
            state[name][who] = part_state[name]
        for row, grad in zip(who, grads, strict=True):
            theirs[row].grad = grad.clone()
            references[row].param_groups[0]["lr"] = lr
            references[row].step()
        torch.testing.assert_close(params, torch.stack(theirs).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [o for o, _ in REFERENCES], ids=repr)
def test_as_torch_is_the_same_rule(optimizer):
    params = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    state = optimizer.init(1, 20, CPU)
    theirs = nn.Parameter(params[0].clone())
    reference = optimizer.as_torch([theirs])
    reference.param_groups[0]["lr"] = 0.05
    for seed in range(1, 5):
        grad = torch.randn(1, 20, generator=torch.Generator().manual_seed(seed))
        theirs.grad = grad[0].clone()
        reference.step()
        optimizer.step(params, grad.clone(), state, 0.05)
    torch.testing.assert_close(params[0], theirs.detach(), rtol=1e-5, atol=1e-6)


def test_schedules_follow_their_formulas():
    assert [ef.Constant().factor(t, 100) for t in (0, 50, 99)] == [1.0] * 3
    assert ef.InverseTime(gamma=8.0).factor(12, 100) == pytest.approx(8 / 20)
    cosine = ef.Cosine(final=0.25)
    assert [cosine.factor(t, 100) for t in (0, 50, 100)] == pytest.approx([1.0, 0.625, 0.25])
    assert cosine.factor(25, 100) == pytest.approx(0.25 + 0.75 * (1 + math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_schedule_runs_over_local_iterations_of_the_whole_run(trainer):
    data = ef.from_arrays([(np.ones((1, 1)), np.full((1, 1), 5.0))])
    model = nn.Linear(1, 1, bias=False)
    optimizer = ef.SGD(2 / (4 * 10), schedule=ef.InverseTime(gamma=10.0))
    deltas, _ = train(ef.TRAINERS[trainer](task(model, data, optimizer, steps=3)), torch.tensor([0.0]), [0], round=6)
    w = 0.0
    for t in (18, 19, 20):
        w -= 2 / (4 * (10 + t)) * 2 * (w - 5)
    assert deltas.item() == pytest.approx(w, rel=1e-5)


# -- kept and reset state --------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("optimizer", [ef.SGD(0.05, momentum=0.9), ef.Adam(1e-3)])
def test_kept_state_differs_from_reset_state_from_the_second_round_on(trainer, optimizer, digits):
    kept, reset = (
        run(ef.TRAINERS[trainer](task(made("mlp"), digits, optimizer, keep=keep)), [[0, 1], [1, 2]])[0]
        for keep in (True, False)
    )
    assert torch.equal(kept[0][0], reset[0][0])
    assert (kept[1][0][0] - reset[1][0][0]).norm() > 0.05 * reset[1][0][0].norm()  # client 1 comes back
    torch.testing.assert_close(kept[1][0][1], reset[1][0][1])  # client 2 is new


@pytest.mark.parametrize("trainer", TRAINERS)
def test_plain_sgd_has_no_state_to_keep(trainer, digits):
    kept, reset = (
        run(ef.TRAINERS[trainer](task(made("mlp"), digits, ef.SGD(), keep=keep)))[1] for keep in (True, False)
    )
    assert torch.equal(kept, reset)


def test_optimizer_state_exists_only_for_clients_that_trained():
    fleet_size = 1000
    data = ef.from_arrays([(np.ones((1, 2)), [i % 2]) for i in range(fleet_size)])
    module = nn.Linear(2, 2)
    batched, plain = (ef.TRAINERS[t](task(module, data, ef.Adam())) for t in TRAINERS)
    seen = set()
    for r, clients in enumerate([[3, 500], [500, 999], [3]]):
        params = torch.zeros(batched.task.layout.size)
        train(batched, params, clients, r)
        train(plain, params, clients, r)
        seen.update(clients)
        assert set(np.flatnonzero(batched.states.row_of >= 0)) == seen
        assert batched.states.used == len(seen)
        assert all(len(column) <= 2 * len(seen) for column in batched.states.table.values())
        assert set(plain.states) == seen


@pytest.mark.parametrize("trainer", TRAINERS)
def test_reset_state_is_not_stored(trainer, digits):
    trainer = ef.TRAINERS[trainer](task(made("mlp"), digits, ef.Adam(), keep=False))
    run(trainer)
    stored = trainer.states if isinstance(trainer.states, dict) else trainer.states.table["count"]
    assert len(stored) == 0


def test_client_states_come_back_as_they_were_put_and_start_at_zero():
    states = ClientRows(ef.SGD(momentum=0.9).init(0, 3, CPU), clients=100, device=CPU)
    stored = {}
    rng = np.random.default_rng(0)
    for _ in range(50):
        clients = rng.choice(100, size=7, replace=False)
        rows = states.gather(clients)["velocity"]
        expected = torch.stack([stored.get(int(c), torch.zeros(3)) for c in clients])
        assert torch.equal(rows, expected)
        new = torch.as_tensor(rng.normal(size=(7, 3)), dtype=torch.float32)
        states.scatter(clients, {"velocity": new})
        stored.update(zip(clients.tolist(), new, strict=True))


def test_saved_client_states_do_not_change_afterwards():
    states = ClientRows(ef.SGD(momentum=0.9).init(0, 2, CPU), clients=5, device=CPU)
    states.scatter(np.array([3]), {"velocity": torch.ones(1, 2)})
    saved = states.state_dict()
    states.scatter(np.array([3, 0]), {"velocity": torch.zeros(2, 2)})
    assert saved["row_of"].tolist() == [-1, -1, -1, 0, -1]
    assert saved["velocity"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("optimizer", [ef.SGD(0.1), ef.SGD(0.1, momentum=0.9), ef.Adam(1e-2)])
def test_a_trainer_resumes_exactly_from_its_state_dict(trainer, optimizer, digits):
    def new():
        return ef.TRAINERS[trainer](task(made("dropout mlp"), digits, optimizer))

    early, late = [[1, 3], [0, 3]], [[0, 2, 3, 4], [1, 2, 4]]  # some clients train for the first time after the break
    straight, end = run(new(), early + late)
    first_half = new()
    _, params = run(first_half, early)
    saved = first_half.state_dict()
    run(first_half, late, first=2, params=params)  # going on must not reach into what was saved
    for _ in range(2):
        resumed = new()
        resumed.load_state_dict(saved)
        results, again = run(resumed, late, first=2, params=params)
        assert torch.equal(again, end)
        assert all(torch.equal(a, b) for a, b in zip(results[-1], straight[-1], strict=True))


# -- minibatches -----------------------------------------------------------------------------------


def owned(sizes):
    """Client i holds sizes[i] samples, in shuffled order."""
    total = sum(sizes)
    order = np.random.default_rng(0).permutation(total)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    x, y = np.zeros((total, 1), np.float32), np.zeros(total, np.int64)
    return ef.FederatedData(x, y, order, starts, x[:0], y[:0], classes=1)


def draw(data, clients, first=0, steps=1, batch=10, seed=0):
    return DeviceData(data, CPU).draw(torch.tensor(clients), first, steps, batch, seed).numpy()


def chi_square(values, among):
    counts = np.array([np.count_nonzero(values == v) for v in among])
    expected = values.size / len(among)
    return float(((counts - expected) ** 2 / expected).sum())


# 99.9 % quantiles of chi-square with n - 1 degrees of freedom.
@pytest.mark.parametrize(("size", "limit"), [(2, 10.83), (7, 22.46), (10, 27.88), (20, 43.82)])
def test_minibatches_are_uniform_over_the_clients_own_samples(size, limit):
    data = owned([5, size, 30])
    numbers = draw(data, [1], steps=2000, batch=10)
    assert set(np.unique(numbers)) == set(data.samples_of(1))
    assert chi_square(numbers, data.samples_of(1)) < limit


def test_positions_in_a_batch_are_independent():
    data = owned([4])
    numbers = draw(data, [0], steps=4000, batch=8)[0]
    local = np.argsort(data.samples_of(0))[np.searchsorted(np.sort(data.samples_of(0)), numbers)]
    for i, j in [(0, 1), (3, 4), (0, 7)]:
        assert chi_square(4 * local[:, i] + local[:, j], range(16)) < 37.70  # 99.9 %, 15 degrees of freedom
    assert chi_square(4 * local[:-1, 0] + local[1:, 0], range(16)) < 37.70


def test_minibatches_are_drawn_with_replacement():
    numbers = draw(owned([10]), [0], steps=1000, batch=10)[0]
    distinct = np.mean([len(set(batch)) for batch in numbers])
    assert distinct == pytest.approx(10 * (1 - 0.9**10), abs=0.15)  # without replacement it would be 10


def test_a_client_with_one_sample_always_draws_it():
    data = owned([3, 1, 3])
    assert set(draw(data, [1], steps=5, batch=9).ravel()) == set(data.samples_of(1))


def test_a_draw_depends_only_on_seed_client_and_iteration():
    data = owned([50, 3, 2000, 17])
    alone = draw(data, [2], first=40, steps=1)
    assert np.array_equal(draw(data, [0, 1, 2, 3], first=40)[2], alone[0])
    assert np.array_equal(draw(data, [3, 2], first=40)[1], alone[0])
    assert np.array_equal(draw(data, [2], first=35, steps=10)[0, 5], alone[0, 0])
    assert not np.array_equal(draw(data, [2], first=41), alone)
    assert not np.array_equal(draw(data, [2], first=40, seed=1), alone)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2**32 + 1), (2**64 - 1, 2**63 - 1)])
def test_all_64_bits_of_the_seed_count(one, other):
    data = owned([1000])
    assert not np.array_equal(draw(data, [0], seed=one), draw(data, [0], seed=other))


def test_clients_of_equal_size_draw_differently():
    data = owned([1000, 1000])
    numbers = draw(data, [0, 1], batch=20)
    positions = [[list(data.samples_of(c)).index(n) for n in numbers[c, 0]] for c in (0, 1)]
    assert positions[0] != positions[1]


# -- dropout ---------------------------------------------------------------------------------------


def masks(client, step, shape=(1000,), seed=0, p=0.5, layers=2, drop=F.dropout):
    """What each of the layers' dropout makes of ones."""
    with counted_dropout(seed, torch.tensor(client), step):
        return [drop(torch.ones(shape), p) for _ in range(layers)]


def test_dropout_masks_differ_by_layer_client_step_and_seed():
    drawn = [masks(0, 0)[0], masks(0, 0)[1], masks(1, 0)[0], masks(0, 1)[0], masks(0, 0, seed=1)[0]]
    drawn.append(masks(0, 0, seed=2**32)[0])
    for one, other in itertools.combinations(drawn, 2):
        assert ((one > 0) == (other > 0)).float().mean() == pytest.approx(0.5, abs=0.08)  # as strangers agree


def test_dropout_masks_are_the_same_when_asked_again():
    assert all(torch.equal(a, b) for a, b in zip(masks(3, 4), masks(3, 4), strict=True))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("drop", [F.dropout, F.dropout2d])
def test_dropout_keeps_the_right_part_and_scales_it_up(p, drop):
    (out,) = masks(5, 6, shape=(200, 100, 1, 1), p=p, layers=1, drop=drop)
    kept = out[out != 0]
    assert len(kept) / out.numel() == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / out.numel()))
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))


@pytest.mark.parametrize(("drop", "spatial"), [(F.dropout1d, 1), (F.dropout2d, 2), (F.dropout3d, 3)])
def test_channelwise_dropout_drops_whole_channels_of_single_samples(drop, spatial):
    (out,) = masks(0, 0, shape=(16, 8, *[3] * spatial), layers=1, drop=drop)
    channels = out.flatten(2)
    assert torch.equal(channels.amin(dim=2), channels.amax(dim=2))
    assert len({tuple(sample) for sample in (channels[:, :, 0] > 0).tolist()}) > 1


def test_samples_of_a_batch_are_dropped_differently():
    (out,) = masks(0, 0, shape=(50, 32), layers=1)
    assert len({tuple(row) for row in (out > 0).tolist()}) == 50


@pytest.mark.parametrize(
    ("p", "training", "expected"), [(0.0, True, 1.0), (0.5, False, 1.0), (1.0, True, 0.0), (1.0, False, 1.0)]
)
def test_dropout_at_its_limits_and_in_evaluation(p, training, expected):
    with counted_dropout(0, torch.tensor(0), 0):
        assert torch.equal(F.dropout(torch.ones(9), p, training), torch.full((9,), expected))


@pytest.mark.parametrize("drop", [F.dropout, F.dropout2d])
def test_dropout_masks_are_the_same_under_vmap_as_one_by_one(drop):
    def forward(client):
        with counted_dropout(9, client, 11):
            x = torch.ones(4, 6, 3, 3)
            return drop(x, 0.3), drop(x, 0.3)

    clients = torch.tensor([4, 0, 77])
    together = vmap(forward, randomness="error")(clients)
    for i, client in enumerate(clients):
        for layer in range(2):
            assert torch.equal(together[layer][i], forward(client)[layer])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_dropout_acts_in_training_and_leaves_torchs_generator_alone(trainer, digits):
    module = made("dropout mlp")
    silent = copy.deepcopy(module)
    for layer in silent.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    dropped, plain = (run(ef.TRAINERS[trainer](task(m, digits, ef.SGD(0.1))), [[0]])[1] for m in (module, silent))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (dropped - plain).norm() > 0.01


# -- models ----------------------------------------------------------------------------------------


def parameters(name, shape, classes=10):
    return sum(p.numel() for p in ef.build(name, shape, classes).parameters())


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("logistic", (1, 8, 8), 650),
        ("mlp", (1, 8, 8), 4810),
        ("small-cnn", (1, 8, 8), 16 * 9 + 16 + 32 * 16 * 9 + 32 + 128 * 10 + 10),
        ("mcmahan-cnn", (3, 24, 24), 1_068_298),
        ("mcmahan-cnn", (3, 32, 32), 1_756_426),
        ("resnet18-gn", (3, 32, 32), 11_173_962),
        ("mobilenet-gn", (3, 32, 32), 2_236_682),
    ],
)
def test_models_have_the_stated_number_of_parameters(name, shape, count):
    assert parameters(name, shape) == count


@pytest.mark.parametrize("name", ["logistic", "mlp", "small-cnn", "mcmahan-cnn", "ds-cnn"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 9, 13)])
def test_image_models_map_images_to_one_logit_a_class(name, shape):
    assert ef.build(name, shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def refused(*parts):
    """An InputError whose message holds these parts, in this order."""
    return pytest.raises(ef.InputError, match=".*".join(re.escape(p) for p in parts))


def simulate(model, data, **settings):
    settings = {"rounds": 2, "local_steps": 1, "batch_size": 4, "client": ef.SGD(0.1), **settings}
    return ef.simulate(model, data, ef.Fleet.from_cycles([1] * len(data)), **settings)


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


BAD_MODELS = {
    "batch norm": (flat(nn.Linear(64, 10), nn.BatchNorm1d(10)), ("layer '2' (BatchNorm1d)", "nn.GroupNorm")),
    "batch norm inside": (
        nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), nn.Flatten(), nn.Linear(144, 10)),
        ("layer '0.1' (BatchNorm2d)", "nn.GroupNorm"),
    ),
    "max_norm": (
        nn.Sequential(nn.Embedding(4, 8, max_norm=1.0), nn.Flatten(), nn.Linear(64, 10)),
        ("layer '0' (Embedding)", "leave max_norm out"),
    ),
    "wrong input": (flat(nn.Linear(63, 10)), ("samples of shape (1, 8, 8)", "63")),
    "image expected": (nn.Conv1d(4, 4, 3), ("samples of shape (1, 8, 8)",)),
    "too few outputs": (flat(nn.Linear(64, 9)), ("outputs of shape (2, 9)", "10 classes", "(2, 10)")),
    "unflattened": (nn.Conv2d(1, 10, 3), ("outputs of shape (2, 10, 6, 6)", "10 classes")),
    "float64": (flat(nn.Linear(64, 10)).double(), ("torch.float64", "float32", "model.float()")),
    "no parameters": (nn.Flatten(), ("Flatten", "no trainable parameters")),
    "all frozen": (flat(nn.Linear(64, 10)).requires_grad_(False), ("no trainable parameters",)),
    "not a module": (lambda: "mlp", ("factory returned str", "torch.nn.Module")),
}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("name", BAD_MODELS)
def test_models_that_cannot_be_trained_are_refused(name, trainer, digits):
    model, message = BAD_MODELS[name]
    with refused(*message):
        simulate(model, digits, trainer=trainer)


def test_an_unknown_model_is_refused_with_the_nearest_name():
    with refused("unknown model 'small_cnn'", "Did you mean 'small-cnn'?"):
        ef.build("small_cnn", (1, 8, 8), 10)


@pytest.mark.parametrize("name", ["small-cnn", "mcmahan-cnn"])
@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 3, 3), (1, 8, 8, 8)])
def test_image_models_refuse_what_is_no_image(name, shape):
    with refused(f"the model '{name}'", "(channels, height, width)", str(shape), "'mlp'"):
        ef.build(name, shape, 10)


def test_batch_norm_without_running_statistics_is_no_problem(digits):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    model.append(nn.Linear(144, 10))
    assert simulate(model, digits).participations == 10


def test_a_model_that_vmap_cannot_batch_is_refused_with_the_way_out(digits):
    with refused("cannot be batched", "trainer='one-by-one'"):
        simulate(Branching, digits, trainer="batched")


def test_a_model_that_vmap_cannot_batch_trains_one_by_one(digits):
    history = simulate(Branching, digits, trainer="one-by-one")
    assert all(r.update_norm > 0 for r in history.rounds)


def test_frozen_parameters_and_buffers_come_through_a_run_unchanged(digits):
    model = made("frozen and buffer")
    start = copy.deepcopy(model.state_dict())
    after = simulate(model, digits).params
    assert after.keys() == start.keys()
    same = {name for name in start if torch.equal(after[name], start[name])}
    assert same == {"first.weight", "shift"}


# -- bad optimisers --------------------------------------------------------------------------------

BAD_NUMBERS = [0.0, -0.1, math.nan, math.inf]


@pytest.mark.parametrize("lr", BAD_NUMBERS)
@pytest.mark.parametrize("make", [ef.SGD, ef.Adam])
def test_a_learning_rate_must_be_a_positive_number(make, lr):
    with refused(f"lr is {lr}", "positive"):
        make(lr)


BAD_OPTIMIZERS = [
    (lambda: ef.SGD(0.1, momentum=1.0), ("momentum is 1.0", "from 0 to below 1")),
    (lambda: ef.SGD(0.1, momentum=-0.1), ("momentum is -0.1",)),
    (lambda: ef.SGD(0.1, momentum=math.nan), ("momentum is nan",)),
    (lambda: ef.SGD(0.1, weight_decay=-1e-4), ("weight_decay is -0.0001", "zero or a positive number")),
    (lambda: ef.Adam(weight_decay=-1.0), ("weight_decay is -1.0",)),
    (lambda: ef.Adam(weight_decay=math.nan), ("weight_decay is nan",)),
    (lambda: ef.SGD(0.1, weight_decay=math.inf), ("weight_decay is inf",)),
    (lambda: ef.Adam(beta1=1.0), ("beta1 is 1.0", "from 0 to below 1")),
    (lambda: ef.Adam(beta2=1.5), ("beta2 is 1.5",)),
    (lambda: ef.Adam(beta1=-0.1), ("beta1 is -0.1",)),
    (lambda: ef.Adam(beta2=math.nan), ("beta2 is nan",)),
    (lambda: ef.Adam(eps=0.0), ("eps is 0.0", "positive")),
    (lambda: ef.InverseTime(gamma=-1.0), ("gamma is -1.0",)),
    (lambda: ef.Cosine(final=1.5), ("final is 1.5", "from 0 to 1")),
]


@pytest.mark.parametrize(("make", "message"), BAD_OPTIMIZERS)
def test_bad_optimizers_are_refused(make, message):
    with refused(*message):
        make()


@pytest.mark.parametrize(
    ("model", "shape", "trainer", "words"),
    [
        ("mlp", (3, 24, 24), "Batched", "this run trains on the CPU"),
        ("small-cnn", (1, 8, 8), "Batched", "this run trains on the CPU"),
        ("mcmahan-cnn", (3, 24, 24), "OneByOne", "MFLOP of convolutions"),
    ],
)
def test_auto_takes_the_trainer_that_is_faster_on_a_cpu(model, shape, trainer, words):
    data = ef.from_arrays([(np.zeros((4, *shape), np.float32), [0, 1, 2, 9])])
    run = ef.start(model, data, ef.Fleet.from_cycles([1]), client=ef.Adam(1e-3), rounds=1, batch_size=10, device="cpu")
    assert type(run.source.trainer).__name__ == trainer
    assert words in run.source.trainer.explain()[0]
