"""Participants divided among several devices: the same run as on one, up to rounding. Here every device is the CPU."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.on_demand_sources import Generated
from everfed.errors import InputError
from everfed.learning.attacks import SignFlip
from everfed.learning.compress import Qsgd
from everfed.learning.task import PlainTrained
from everfed.run import setup as setups
from everfed.server.robust import CoordinateMedian
from everfed.trainers import several
from everfed.trainers.several import Several

CPU = torch.device("cpu")
SMALL = {"rounds": 8, "local_steps": 2, "batch_size": 4, "eval_every": 4, "device": "cpu"}
CYCLES = [1, 2, 1, 4, 1, 2, 1, 4, 1, 1, 2]
# What optimisers and server rules bring along: state of clients, rules for gradients, own starts, no rounds.
CASES = {
    "no state": {},
    "adam": {"client": ef.Adam(0.01)},
    "adam, forgotten": {"client": ef.Adam(0.01), "keep_state": False},
    "momentum": {"client": ef.SGD(0.05, momentum=0.9)},
    "state on disk": {"client": ef.Adam(0.01), "state_place": "disk"},
    "rules": {"gradients": (ef.Clip(1.0), ef.Proximal(0.1))},
    "scaffold": {"method": "ht-scaffold", "client": ef.SGD(0.1)},
    "own starts": {"method": "fedawe"},
    "stored updates": {"method": "ht-varp"},
    "compressed": {"compression": Qsgd(4)},
    "attacked": {"attack": SignFlip(clients=(1, 5)), "robust": CoordinateMedian()},
    "one by one": {"trainer": "one-by-one", "client": ef.Adam(0.01)},
    "asynchronous": {"method": "renewal", "client": ef.Adam(0.01), "work": ef.Work(duration=0.7, spread=0.5)},
    "affordable steps": {"method": "renewal", "work": ef.Work(duration=0.7, local_steps="affordable")},
}


@pytest.fixture
def devices(monkeypatch):
    """Sets how many devices there are."""

    def set_count(count):
        monkeypatch.setattr(setups, "training_devices", lambda name, gpus: [CPU] * count)

    return set_count


@pytest.fixture(scope="module")
def digits():
    return ef.load("digits").partition(len(CYCLES), "dirichlet", seed=0)


def started(data, **settings):
    given = {**SMALL, **settings}
    model = given.pop("model", "mlp")
    return ef.start(model, data, ef.Fleet.from_cycles(CYCLES), given.pop("method", "algorithm1"), **given)


def finished(run):
    records = list(run)
    return (
        run.server.params.clone(),
        [record.train_loss for record in records],
        [record.participants.tolist() for record in records],
    )


@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("case", CASES)
def test_divided_among_devices_a_run_is_the_same(case, count, digits, devices):
    expected, losses, who = finished(started(digits, **CASES[case]))
    devices(count)
    run = started(digits, **CASES[case])
    params, divided_losses, divided_who = finished(run)
    assert type(_trainer(run)) is Several
    torch.testing.assert_close(params, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(divided_losses, float), np.array(losses, float), rtol=1e-4)
    assert divided_who == who


@pytest.mark.parametrize("case", ["adam", "scaffold", "asynchronous"])
def test_the_same_run_twice_has_the_same_bits(case, digits, devices):
    devices(3)
    one, other = (finished(started(digits, **CASES[case])) for _ in range(2))
    assert torch.equal(one[0], other[0])
    assert one[1:] == other[1:]


@pytest.mark.parametrize("case", ["no state", "adam", "one by one", "scaffold", "asynchronous"])
def test_a_run_goes_on_from_its_state_bit_for_bit(case, digits, devices):
    devices(3)
    whole = started(digits, **CASES[case])
    rounds = iter(whole)
    for _ in range(3):
        next(rounds)
    state = {name: value.clone() for name, value in whole.state_dict().items()}
    for _ in rounds:
        pass
    resumed = started(digits, **CASES[case])
    resumed.load_state_dict(state)
    for _ in resumed:
        pass
    assert torch.equal(resumed.server.params, whole.server.params)


def test_a_client_stays_where_its_state_is_and_new_ones_go_where_there_is_least_to_do(digits, devices):
    devices(3)
    trainer = _trainer(started(digits, client=ef.Adam(0.01)))
    params = torch.zeros(trainer.task.layout.size)
    _train(trainer, params, [0, 1, 2, 3])
    assert trainer.home[:4].tolist() == [0, 1, 2, 0]
    _train(trainer, params, [0, 3, 4, 5, 6])
    assert trainer.home[:7].tolist() == [0, 1, 2, 0, 1, 2, 1]
    _train(trainer, params, [6, 5, 4, 3, 2, 1, 0])
    assert trainer.home[:7].tolist() == [0, 1, 2, 0, 1, 2, 1]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("at_once", [(1, 1, 1), (2, 1, 3), (4, 4, 4), (100, 1, 1)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 11])
def test_results_come_in_order_and_no_device_gets_more_than_it_has_room_for(keep, at_once, count, digits, devices):
    devices(3)
    run = started(digits, client=ef.Adam(0.01), keep_state=keep)
    divided = _trainer(run)
    for trainer, room in zip(divided.trainers, at_once, strict=True):
        trainer.chunk = room  # type: ignore[attr-defined]
    clients = np.random.default_rng(count).permutation(11)[:count]
    params = run.server.params
    chunks = []
    for chunk in divided.train(params, clients, 0):
        assert all(len(part.places) <= max(at_once) for part in chunk.parts)
        assert len(chunk.clients) == sum(len(part.trained.clients) for part in chunk.parts)
        weights = np.arange(1.0, len(chunk.clients) + 1)
        total, finite = chunk.weighted_sum(weights)
        torch.testing.assert_close(total, torch.as_tensor(weights, dtype=torch.float32) @ chunk.deltas)
        assert finite.all()
        chunks.append((chunk.clients, chunk.deltas.clone(), chunk.losses.clone()))
    assert [client for chunk in chunks for client in chunk[0].tolist()] == clients.tolist()
    if count:
        alone = _trainer_of_one(digits, keep)
        expected = torch.cat([chunk.deltas for chunk in alone.train(params, clients, 0)])
        torch.testing.assert_close(torch.cat([chunk[1] for chunk in chunks]), expected, rtol=1e-4, atol=1e-6)


def test_devices_train_at_the_same_time(digits, devices):
    """Each waits in its own training until the other has begun; one after the other, they would wait in vain."""
    devices(2)
    divided = _trainer(started(digits))
    meeting = threading.Barrier(2, timeout=20)
    for trainer in divided.trainers:
        trainer.train = _met(trainer.train, meeting)
    assert len(_train(divided, divided.task.layout.flatten(divided.task.module), [0, 1, 2, 3])) == 4


def test_memory_that_runs_short_on_one_device_costs_nothing(digits, devices):
    """A device that must do its part in pieces gives them as one."""
    devices(2)
    run = started(digits)
    divided, params = _trainer(run), run.server.params
    expected = _train(divided, params, list(range(8)))
    first = divided.trainers[0]
    first.train = _in_pieces(first.train)
    torch.testing.assert_close(_train(divided, params, list(range(8))), expected, rtol=1e-5, atol=1e-7)


def test_an_update_that_is_not_finite_is_told_by_its_client(digits, devices):
    devices(3)
    run = started(digits)
    divided = _trainer(run)
    divided.trainers[1].train = _spoilt(divided.trainers[1].train)
    (chunk,) = divided.train(run.server.params, np.arange(6), 0)
    total, finite = chunk.weighted_sum(np.ones(6), skip=True)
    assert finite.tolist() == [True, True, False, True, True, True]
    assert torch.isfinite(total).all()


def test_an_error_on_one_device_is_the_error_of_the_run(digits, devices):
    devices(2)
    run = started(digits)
    _trainer(run).trainers[1].train = _raising(RuntimeError)
    with pytest.raises(RuntimeError, match="the second device is on fire"):
        list(run)


def test_a_rule_of_ones_own_is_asked_by_one_thread_at_a_time(digits, devices):
    devices(4)
    rule = Counting()
    params, *_ = finished(started(digits, gradients=(rule,)))
    assert rule.calls > 0
    assert not rule.crossed
    devices(1)
    torch.testing.assert_close(params, finished(started(digits, gradients=(Counting(),)))[0], rtol=1e-4, atol=1e-5)


def test_tokens_with_dropout_and_frozen_parts(devices):
    rng = np.random.default_rng(0)
    tokens = [(rng.integers(0, 9, (12, 6)), rng.integers(0, 9, (12, 6))) for _ in CYCLES]
    data = ef.from_arrays(tokens, test=tokens[0], task="next-token")
    torch.manual_seed(0)
    model = Tagger()
    expected = finished(started(data, model=model, client=ef.Adam(0.01)))
    devices(3)
    divided = finished(started(data, model=model, client=ef.Adam(0.01)))
    torch.testing.assert_close(divided[0], expected[0], rtol=1e-4, atol=1e-5)


def test_samples_on_demand_are_read_by_one_thread_at_a_time(devices):
    fleet = ef.Fleet.from_cycles(CYCLES)
    rng = np.random.default_rng(1)
    held = [(rng.normal(size=(9, 5)).astype(np.float32), rng.integers(0, 3, 9)) for _ in CYCLES]
    reading = threading.Lock()

    def read(client):
        assert reading.acquire(blocking=False), "two threads read at once"
        try:
            return held[client]
        finally:
            reading.release()

    data = ef.OnDemand(Generated([9] * len(CYCLES), read), classes=3, test=held[0])
    expected = ef.simulate("mlp", data, fleet, **SMALL)
    devices(3)
    divided = ef.simulate("mlp", data, fleet, **SMALL)
    torch.testing.assert_close(divided.params, expected.params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["no state", "adam", "scaffold", "rules", "own starts"])
def test_kernels_on_several_devices(case, digits, devices, monkeypatch):
    """In Triton's interpreter, which allows one thread at a time."""
    monkeypatch.setattr(several, "ThreadPoolExecutor", lambda count, **rest: ThreadPoolExecutor(1, **rest))
    small = {**CASES[case], "rounds": 3, "eval_every": 3}
    expected = finished(started(digits, **small))
    devices(2)
    run = started(digits, trainer="kernels", **small)
    assert [type(trainer).__name__ for trainer in _trainer(run).trainers] == ["Kernels", "Kernels"]
    torch.testing.assert_close(finished(run)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_explain_names_the_devices(digits, devices):
    devices(3)
    said = started(digits).source.training()
    assert said.trainer == "Several"
    assert said.parts[0] == "participants: divided among 3 devices (cpu, cpu, cpu)"
    assert "batched over clients" in said.parts[1]


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 2), (1, 16)])
def test_state_of_another_number_of_devices_is_refused(before, after, trainer, digits, devices):
    devices(before)
    run = started(digits, client=ef.Adam(0.01), trainer=trainer)
    next(iter(run))
    state = _trainer(run).state_dict()
    devices(after)
    other = _trainer(started(digits, client=ef.Adam(0.01), trainer=trainer))
    with pytest.raises(InputError, match=f"not of {after} GPUs; go on with as many as the run began with"):
        other.load_state_dict(state)
    assert (other.home == -1).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_when_a_round_is_left_nobody_is_training_any_more(error, digits, devices):
    devices(2)
    divided = _trainer(started(digits))
    divided.trainers[0].train, done = _slow(divided.trainers[0].train), divided.trainers[0]
    divided.trainers[1].train = _raising(error)
    with pytest.raises(error):
        list(divided.train(divided.task.layout.flatten(divided.task.module), np.arange(6), 0))
    assert done.train.ended
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("everfed-gpu")]


@pytest.mark.parametrize(
    ("name", "gpus", "there", "words"),
    [
        ("cpu", 2, 0, "gpus is 2, but this run trains on the CPU"),
        ("auto", 2, 0, "gpus is 2, but this run trains on the CPU"),
        ("cuda", 3, 2, "gpus is 3 from device 'cuda' on, but torch finds 2; give at most 2"),
        ("cuda:1", 2, 2, "gpus is 2 from device 'cuda:1' on, but torch finds 2; give at most 1"),
    ],
)
def test_more_gpus_than_there_are(name, gpus, there, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(InputError, match=words):
        setups.training_devices(name, gpus)


def test_gpus_are_counted_from_the_device_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert setups.training_devices("auto", 2) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert setups.training_devices("cuda:2", 2) == [torch.device("cuda", 2), torch.device("cuda", 3)]
    assert setups.training_devices("cuda:3", 1) == [torch.device("cuda:3")]


@dataclass
class Counting:
    """A rule that notices when two threads are inside."""

    calls: int = 0
    inside: int = 0
    crossed: bool = False

    def adjust(self, grads, params, start, clients):
        self.inside += 1
        self.crossed |= self.inside > 1
        self.calls += 1
        threading.Event().wait(0.001)
        self.inside -= 1
        return grads * (1.0 + torch.from_numpy(clients)[:, None])


class Tagger(nn.Module):
    """Frozen, recurrent and with dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6).requires_grad_(False)
        self.gru = nn.GRU(6, 8, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, 9)

    def forward(self, tokens):
        return self.out(self.drop(self.gru(self.embedding(tokens))[0]))


def _trainer(run):
    source = run.source
    return source.trainer if hasattr(source, "trainer") else source.flight.trainer


def _trainer_of_one(data, keep):
    run = started(data, client=ef.Adam(0.01), keep_state=keep)
    return _trainer(run).trainers[0]


def _train(trainer, params, clients):
    return torch.cat([chunk.deltas for chunk in trainer.train(params, np.array(clients), 0)])


def _met(train, meeting):
    def train_together(*given):
        meeting.wait()
        yield from train(*given)

    return train_together


def _in_pieces(train):
    def train_each(params, clients, round, steps):
        for client in clients:
            yield from train(params, np.array([client]), round, steps)

    return train_each


def _spoilt(train):
    def train_badly(*given):
        for chunk in train(*given):
            deltas = chunk.deltas.clone()
            deltas[0, 3] = float("nan")
            yield PlainTrained(chunk.clients, deltas, chunk.losses)

    return train_badly


def _raising(error):
    def train(*given):
        raise error("the second device is on fire")
        yield

    return train


def _slow(train):
    def train_slowly(*given):
        threading.Event().wait(0.3)
        chunks = list(train(*given))
        train_slowly.ended = True
        yield from chunks

    train_slowly.ended = False
    return train_slowly
