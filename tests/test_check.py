"""A trainer is compared with plain autograd before a run: what is wrong is found, and nothing else changes."""

from __future__ import annotations

import json
import math
import random
import re
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import everfed as ef
from everfed.learning.batched import Batched
from everfed.learning.one_by_one import OneByOne
from everfed.learning.task import Check, DeviceData, PlainTrained
from everfed.ray.parcel import packed
from everfed.ray.trainer import _worst
from everfed.ray.worker import Worker
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import open_run, stored_rounds
from everfed.trainers import choose
from everfed.trainers.compare import TOLERANCES, compare
from kernel_models import CLASSES, DEVICE, MODELS, drawn_models, images, task as task_on_device

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(DEVICE != CPU, reason="on a GPU, test_cuda_layouts.py does this")
SLOW = ["batched", "one-by-one"]
FLEET = ef.Fleet.from_cycles([1, 2, 3])


def made(name):
    build, shape, options = MODELS[name]
    torch.manual_seed(0)
    return build(), images(shape, **options)


def task(model, data, optimizer, **settings):
    return task_on_device(model, data, optimizer, device=CPU, **settings)


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    """What is found and said on a CPU is the same everywhere."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def small(**changes):
    return task(*made("mlp"), changes.pop("optimizer", ef.SGD(0.1)), **changes)


@pytest.fixture(scope="module")
def digits():
    return ef.load("digits").partition(clients=3)


# Nothing is found where nothing is wrong.

OPTIMIZERS = {
    "sgd": ef.SGD(0.1),
    "a tiny rate": ef.SGD(1e-12),
    "a huge rate": ef.SGD(1e6, schedule=ef.Cosine()),
    "momentum and decay": ef.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adam": ef.Adam(),
    "adam and decay": ef.Adam(1e-2, eps=1e-30, weight_decay=0.01),
    "a tiny adam": ef.Adam(1e-15),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainer", SLOW)
def test_no_rate_raises_a_false_alarm(trainer, optimizer):
    found = compare(ef.TRAINERS[trainer], small(optimizer=OPTIMIZERS[optimizer]))
    assert found.failure == ""
    assert found.difference < 1e-5
    assert found.clients == (0, 2)


@pytest.mark.parametrize("trainer", SLOW)
@pytest.mark.parametrize("name", MODELS)
def test_no_model_raises_a_false_alarm(name, trainer):
    found = compare(ef.TRAINERS[trainer], task(*made(name), ef.Adam(1e-3)))
    assert found.difference < 1e-5


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn_models())
def test_no_random_model_raises_a_false_alarm(drawn):
    model, shape, batch = drawn
    found = compare(Batched, task(model, images(shape), ef.Adam(1e-3), batch_size=batch))
    assert found.difference < 1e-4


@interpreted
@pytest.mark.parametrize("name", ["linear", "cropped"])
def test_kernels_pass(name):
    pytest.importorskip("triton", reason="Triton is not installed here")
    found = compare(ef.TRAINERS["kernels"], task(*made(name), ef.Adam(1e-3), batch_size=2))
    assert found.failure == ""
    assert found.difference < 1e-4


class Sign:
    """A rule of the user's own that makes much of rounding noise."""

    lr, schedule = 0.1, ef.Constant()

    def init(self, rows, size, device):
        return {}

    def step(self, params, grads, state, lr):
        params.sub_(lr * grads.sign())

    def as_torch(self, params):
        return torch.optim.Rprop(params)  # not even the same rule


@pytest.mark.parametrize("trainer", SLOW)
def test_rules_of_the_users_own_are_not_judged(trainer):
    assert compare(ef.TRAINERS[trainer], small(optimizer=Sign())).failure == ""


def changed(model, how):
    with torch.no_grad():
        for p in model.parameters():
            how(p)
    return model


class Silent(nn.Module):
    """Passes no gradient at all."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.inner(x) * 0.0


class Noisy(nn.Module):
    """Draws numbers that nobody controls."""

    def __init__(self, draw):
        super().__init__()
        self.inner, self.draw = nn.Linear(10, CLASSES), draw

    def forward(self, x):
        return self.inner(x * self.draw(x.shape))


EDGES = {
    "no gradient": lambda: Silent(),
    "weights of zero": lambda: changed(made("mlp")[0], lambda p: p.zero_()),
    "saturated": lambda: changed(made("mlp")[0], lambda p: p.mul_(100.0)),
    "vanishing": lambda: changed(made("mlp")[0], lambda p: p.mul_(1e-12)),
    "weights that are NaN": lambda: changed(made("mlp")[0], lambda p: p.fill_(np.nan)),
    "weights that overflow": lambda: changed(made("mlp")[0], lambda p: p.mul_(1e38)),
}


@pytest.mark.parametrize("trainer", SLOW)
@pytest.mark.parametrize("edge", EDGES)
def test_the_edges_of_the_numbers_raise_no_false_alarm(trainer, edge):
    for optimizer in (ef.SGD(0.1, momentum=0.9, weight_decay=0.1), ef.Adam()):
        found = compare(ef.TRAINERS[trainer], task(EDGES[edge](), made("mlp")[1], optimizer))
        assert found.failure == "", found
        assert found.difference is not None


@pytest.mark.parametrize("draw", [torch.rand, np.random.rand], ids=["torch", "numpy"])
def test_a_model_that_cannot_be_repeated_is_not_the_trainers_fault(draw):
    noisy = Noisy(draw if draw is torch.rand else lambda shape: torch.tensor(draw(*shape), dtype=torch.float32))
    found = compare(OneByOne, task(noisy, made("mlp")[1], ef.SGD(0.1)))
    assert found.failure == ""


class SometimesDeeper(nn.Module):
    """Leaves a layer out at random, in training alone."""

    def __init__(self, draw):
        super().__init__()
        self.a, self.b, self.out, self.draw = nn.Linear(10, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES), draw

    def forward(self, x):
        x = torch.relu(self.a(x))
        if not self.training or self.draw() < 0.9:  # nearly always, so that a comparison may well not meet the other
            x = x + self.b(x)
        return self.out(x)


DRAWS = {
    "Python's module random": random.random,
    "NumPy's generator": lambda: np.random.random(),  # noqa: NPY002
    "torch's generator": lambda: torch.rand(()).item(),
}


@interpreted
@pytest.mark.parametrize("trainer", ["batched", "kernels"])
@pytest.mark.parametrize("whose", DRAWS)
def test_a_model_that_draws_in_its_forward_pass_is_not_trained_together_even_if_this_time_it_drew_the_same(
    trainer, whose
):
    for seed in range(4):  # the check seeds all generators itself, but tracing a model draws before that
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)  # noqa: NPY002
        found = compare(ef.TRAINERS[trainer], task(SometimesDeeper(DRAWS[whose]), made("mlp")[1], ef.SGD(0.1)))
        assert re.search(f"training draws from {whose}|vmap|not at all", found.failure), found
    found = compare(OneByOne, task(SometimesDeeper(DRAWS[whose]), made("mlp")[1], ef.SGD(0.1)))
    assert found.difference == 0.0
    assert found.tolerance == TOLERANCES["float32"]


def test_auto_leaves_kernels_without_room_for_what_is_slower(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed here")
    monkeypatch.setattr(choose, "_in_turn", lambda task: (["kernels", "batched", "one-by-one"], ""))
    for check in (True, False):
        found = choose.trainer("auto", small(memory_budget=1000), check)
        assert type(found) is Batched
        assert "does not fit into the device's memory, or into memory_budget" in found.explain()[0]


@pytest.mark.parametrize(
    "changes", [{"batch_size": 50}, {"local_steps": 1}, {"local_steps": 40}, {"keep_state": False}]
)
def test_sizes_of_every_kind_pass(changes):
    for trainer in SLOW:
        assert compare(ef.TRAINERS[trainer], small(optimizer=ef.Adam(), **changes)).difference < 1e-5


def test_one_client_is_enough_and_none_is_said():
    data = DeviceData(images((10,), clients=1), CPU)
    assert compare(Batched, replace(small(), data=data)).clients == (0,)
    data.sizes = torch.zeros_like(data.sizes)
    assert "no client has samples" in compare(Batched, replace(small(), data=data)).said()


def test_clients_without_samples_are_passed_over():
    data = images((10,), clients=4)
    starts = np.array([0, 0, 9, len(data.order), len(data.order)])
    found = compare(Batched, task(made("mlp")[0], replace(data, starts=starts), ef.SGD(0.1)))
    assert found.clients == (1, 2)
    assert found.difference < 1e-5


def deep(seed):
    """A model that rounding moves by percents: many layers with ReLU6, and groups of few numbers to normalise."""
    torch.manual_seed(seed)
    model = ef.MODELS["mobilenet-gn"](width=0.5, groups=4).build((3, 16, 16), CLASSES)
    return task(model, images((3, 16, 16), as_bytes=True), ef.SGD(0.1), batch_size=3, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_jumps_by_itself_raises_no_false_alarm(seed):
    found = compare(Batched, deep(seed))
    assert found.failure == ""
    assert found.tolerance < 0.5


# What is wrong is found.


class Wrong(Batched):
    """Goes wrong in one way; `trouble` says in which."""

    trouble = ""

    def _gradients(self, rows, x, y, who, iteration):
        if self.trouble == "raises":
            raise ValueError("the third stone is loose")
        if self.trouble == "scrambled samples":
            x = x.flatten(2).flip(-1).view_as(x)
        if self.trouble == "labels of somebody else":
            y = y.roll(1, dims=0)
        grads, losses = super()._gradients(rows, x, y, who, iteration)
        if self.trouble == "the second step" and iteration % 2:
            grads = grads * 1.01
        if self.trouble == "the last client":
            grads[-1] *= 1.01
        if self.trouble == "one bias":
            grads[:, -1] = 0.0
        if self.trouble == "not finite":
            grads[0, 0] = torch.nan
        return grads, losses * (1.01 if self.trouble == "the loss" else 1.0)

    def _train_chunk(self, params, clients, *which):
        trained = super()._train_chunk(params, clients, *which)
        if self.trouble == "the sum":
            trained.weighted_sum = lambda c, skip=False: PlainTrained.weighted_sum(trained, c[::-1], skip)
        return trained


TROUBLES = [
    "scrambled samples", "labels of somebody else", "the second step", "the last client", "one bias", "not finite",
    "the loss", "the sum", "raises",
]  # fmt: skip


@pytest.fixture
def wrong(monkeypatch):
    """A batched trainer with a trouble, wherever one would be made."""
    monkeypatch.setattr(choose, "Batched", Wrong)
    monkeypatch.setitem(choose.TRAINERS, "batched", Wrong)
    return lambda trouble: monkeypatch.setattr(Wrong, "trouble", trouble)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trainer_that_is_wrong_gives_its_place_to_the_next(trouble, wrong):
    wrong(trouble)
    with pytest.warns(ef.EverfedWarning, match="the trainer 'batched' .* taking 'one-by-one' instead") as said:
        found = choose.trainer("auto", small())
    assert type(found) is OneByOne
    assert len(found.check.rejected) == len(said) == 1
    assert found.check.difference < 1e-5
    if trouble == "raises":
        assert "(the third stone is loose)" in str(said[0].message)
    assert "batched" in found.explain()[0]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trainer_that_is_wrong_and_was_asked_for_stops_the_run(trouble, wrong, digits):
    wrong(trouble)
    with pytest.raises(ef.InputError, match=r"trainer='batched' was requested, but it .*check_trainer=False"):
        ef.start("mlp", digits, FLEET, trainer="batched", client=ef.Adam(1e-3), rounds=2)
    run = ef.start("mlp", digits, FLEET, trainer="batched", client=ef.Adam(1e-3), rounds=2, check_trainer=False)
    assert type(run.source.trainer) is Wrong
    assert run.source.trainer.check is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trouble", ["scrambled samples", "labels of somebody else", "not finite", "the sum"])
def test_what_is_wrong_is_found_in_a_model_that_jumps_by_itself_too(trouble, seed, wrong):
    wrong(trouble)
    assert "different updates" in compare(Wrong, deep(seed)).failure


def test_how_far_it_is_off_is_told(wrong):
    wrong("scrambled samples")
    with pytest.raises(ef.InputError) as error:
        choose.trainer("batched", small())
    words = r"the(?: update of client [02]|ir weighed sum) \(most in '[02]\.(?:weight|bias)'\) is (\S+) % off"
    assert float(re.search(words, str(error.value))[1]) > 50.0


def test_no_trainer_left_is_an_error(wrong):
    wrong("scrambled samples")
    with (
        pytest.raises(ef.InputError, match=r"no trainer agrees with plain autograd: .*'batched'.*'one-by-one'"),
        pytest.warns(ef.EverfedWarning),
    ):
        choose.trainer("auto", small(optimizer=ef.Adam(), state_place="disk"))


@interpreted
def test_kernels_that_read_another_layout_are_found_out(monkeypatch):
    """The error that this is all about: values in one order, memory in another."""
    pytest.importorskip("triton", reason="Triton is not installed here")
    from everfed.engine import launch, program

    scrambled = task(*made("cropped"), ef.SGD(0.1), batch_size=2)
    scrambled.data.x = scrambled.data.x.movedim(1, 3).contiguous().movedim(3, 1)
    with pytest.raises(ef.InputError, match=r"fails on this run's data \(argument 0 of the kernel minibatch"):
        choose.trainer("kernels", scrambled)

    def careless(kernel, grid, *args, **meta):
        if launch._here.listed is None:
            kernel[grid](*args, **meta)

    monkeypatch.setattr(program, "launch", careless)
    found = compare(choose.TRAINERS["kernels"], scrambled)
    assert found.difference > 0.5
    assert "computes different updates" in found.failure


def test_what_the_plain_way_cannot_do_is_said_and_not_judged(digits):
    class Single(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is only one of me")

    with pytest.warns(ef.EverfedWarning, match="not compared with plain autograd: it failed .there is only one of me"):
        run = ef.start(
            lambda: nn.Sequential(nn.Flatten(), Single(64, 10)), digits, FLEET, client=ef.Adam(1e-3), rounds=1
        )
    assert run.source.trainer.check.difference is None
    assert len(list(run)) == 1


# Nothing of it stays.

SETTINGS = {
    "adam": {"client": ef.Adam(1e-2)},
    "momentum, one by one": {"client": ef.SGD(0.1, momentum=0.9), "trainer": "one-by-one"},
    "state on disk": {"client": ef.Adam(1e-2), "state_place": "disk"},
    "scaffold": {"method": "scaffold", "client": ef.SGD(0.1)},
    "scaffold on disk": {
        "method": ef.Method(ef.UniformWindow(), ef.Scaffold(place="disk"), "SCAFFOLD"), "client": ef.SGD(0.1),
    },
    "rules": {"gradients": (ef.Proximal(0.1), ef.Clip(0.5)), "client": ef.SGD(0.1)},
    "state thrown away": {"client": ef.Adam(1e-2), "keep_state": False},
}  # fmt: skip


def dropping():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 10))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_run_is_the_same_with_and_without_it(settings, digits):
    common = {"rounds": 4, "local_steps": 3, "batch_size": 4, **settings}
    runs = [ef.start(dropping, digits, FLEET, check_trainer=check, **common) for check in (True, False)]
    for one, other in ((run.state_dict() for run in runs), (list(run) and run.state_dict() for run in runs)):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), name
    assert runs[0].source.trainer.check.difference < 1e-5
    assert runs[0].source.trainer.at_once == runs[1].source.trainer.at_once


def test_data_on_demand_are_compared_and_read_no_more_afterwards(digits):
    from everfed.data.on_demand_sources import Arrays

    data = ef.OnDemand(Arrays.of(digits), classes=10)
    runs = [
        ef.start("mlp", data, FLEET, check_trainer=check, client=ef.Adam(1e-3), rounds=3) for check in (True, False)
    ]
    assert runs[0].source.trainer.check.difference < 1e-5
    assert torch.equal(runs[0].source.trainer.task.data.x, runs[1].source.trainer.task.data.x)
    for one, other in zip(*runs, strict=True):
        assert one.train_loss == other.train_loss


class Branching(nn.Module):
    """Looks at its own values, which vmap does not allow."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        out = self.inner(x)
        return out if bool((out.sum() > 0).item()) else 2 * out


class Drawing(nn.Module):
    """Draws random numbers of its own in training, which vmap would draw alike for all clients or not at all."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return self.inner(x + torch.rand_like(x) if self.training else x)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("model", [Branching, Drawing])
def test_a_model_that_cannot_be_batched_is_trained_one_by_one(model, check, digits):
    torch.manual_seed(3)
    if model is Branching:  # which shows only where it is tried
        with pytest.warns(ef.EverfedWarning, match="the trainer 'batched' fails .* taking 'one-by-one' instead"):
            run = ef.start(model, digits, FLEET, client=ef.Adam(1e-3), rounds=2, check_trainer=check)
    else:
        run = ef.start(model, digits, FLEET, client=ef.Adam(1e-3), rounds=2, check_trainer=check)
    drawn = torch.rand(1)
    assert type(run.source.trainer) is OneByOne
    why = "this model cannot be batched" if model is Branching else "its training draws from torch's generator"
    assert why in run.source.trainer.explain()[0]
    torch.manual_seed(3)
    asked = ef.start(model, digits, FLEET, client=ef.Adam(1e-3), rounds=2, trainer="one-by-one", check_trainer=False)
    assert torch.equal(drawn, torch.rand(1))  # the trial leaves no trace
    assert [r.train_loss for r in run] == [r.train_loss for r in asked]
    with pytest.raises(ef.InputError, match=r"^this model cannot be batched over clients"):
        list(ef.start(model, digits, FLEET, client=ef.Adam(1e-3), rounds=1, trainer="batched", check_trainer=check))


def test_random_numbers_go_on_where_they_were(digits):
    def drawn(check):
        torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
        ef.start(dropping, digits, FLEET, client=ef.Adam(1e-3), rounds=1, check_trainer=check)
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    assert drawn(True) == drawn(False)


def test_the_module_and_torchs_settings_are_left_alone(digits):
    class Counting(nn.Module):
        """Counts its forward passes in evaluation; in training, or in a buffer, that would be refused."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
            self.seen = 0

        def forward(self, x):
            if not torch._C._functorch.is_batchedtensor(x) and not self.training:
                self.seen += 1
            return self.inner(x)

    seen = [
        ef.start(
            Counting, digits, FLEET, client=ef.Adam(1e-3), rounds=1, trainer="one-by-one", check_trainer=check
        ).setup.module.seen
        for check in (True, False)
    ]
    assert seen[0] == seen[1]


def test_warnings_are_said_once(digits):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ef.start("mlp", digits, FLEET, client=ef.Adam(1e-3), rounds=1, batch_size=2000, eval_every=1)
    assert len({str(w.message) for w in said}) == len(said)


# It is recorded, can be turned off everywhere by the same name, and costs little.

SMALL = Experiment(fleet=CycleFleet(clients=4, cycles=(1, 2)), rounds=2, device="cpu")


def test_it_is_recorded_in_the_run(tmp_path):
    list(stored_rounds(SMALL, tmp_path / "run"))
    kept = open_run(tmp_path / "run").environment["training"]["check"]
    assert kept["clients"] == [0, 3]
    assert 0.0 <= kept["difference"] < 1e-5
    assert kept["tolerance"] == TOLERANCES["float32"]
    assert kept["rejected"] == []
    json.loads((tmp_path / "run" / "environment.json").read_text(), parse_constant=pytest.fail)
    list(stored_rounds(replace(SMALL, check_trainer=False), tmp_path / "other"))
    assert open_run(tmp_path / "other").environment["training"]["check"] is None


def test_a_record_is_json_whatever_was_found():
    check = Check((0, 1), math.inf, math.nan, "", "a note", ("one",))
    assert json.loads(json.dumps(check.to_dict()), parse_constant=pytest.fail)["difference"] == "infinite"


def test_it_is_turned_off_by_one_name(tmp_path):
    raw = config.to_dict(SMALL)
    assert "check_trainer" not in raw  # files leave it out where it is on, as those of older versions do
    assert config.from_dict(raw).check_trainer is True
    config.change(raw, "check_trainer", False)
    assert ef.start(config.from_dict(raw)).source.trainer.check is None
    assert "check_trainer = false" in config.to_toml(config.from_dict(raw))


def test_explain_tells(capsys, monkeypatch):
    from everfed.cli.app import main

    for flags, words in (
        ([], "off plain autograd for client 0 and 39 (at most 0.1 %)"),
        (["--set", "check_trainer=false"], "no"),
    ):
        monkeypatch.setattr(sys, "argv", ["everfed", "run", "digits", "--device", "cpu", "--explain", *flags])
        with pytest.raises(SystemExit):
            main()
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("checked"))
        assert line.removeprefix("checked").strip().endswith(words)


def test_runs_on_one_machine_share_an_environment_in_the_report(tmp_path):
    from everfed.report.settings import environments

    runs = []
    for seed in (0, 1):
        list(stored_rounds(replace(SMALL, seed=seed), tmp_path / str(seed)))
        runs.append(open_run(tmp_path / str(seed)))
    assert len(environments(runs)) == 1


def test_workers_of_a_cluster_check_their_own_and_the_driver_tells(wrong):
    with warnings.catch_warnings():
        about = Worker(packed(SMALL, ()), 1).begin()
    assert about.check.difference < 1e-5
    assert ef.start(SMALL).source.training().check.difference == about.check.difference
    wrong("scrambled samples")
    with warnings.catch_warnings():
        fallen = Worker(packed(SMALL, ()), 1).begin()
    with pytest.warns(ef.EverfedWarning, match="on a worker, the trainer 'batched' computes different updates"):
        assert _worst([about.check, fallen.check]) in (about.check, fallen.check)
    assert _worst([]) is None


def test_a_device_pays_for_it_once(tmp_path, wrong):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from everfed.flower.node_state import Memory
    from everfed.flower.training import LocalTraining

    memory = Memory(None, tmp_path)
    first, second = (LocalTraining(SMALL, 1, memory=memory).trainer.check for _ in range(2))
    assert first.clients == (1,)
    assert first.difference < 1e-5
    assert second is None
    wrong("scrambled samples")
    for _ in range(2):
        with pytest.warns(ef.EverfedWarning, match="on this device, the trainer 'batched' computes different updates"):
            local = LocalTraining(SMALL, 1, memory=Memory(None, tmp_path / "other"))
        assert type(local.trainer) is OneByOne
