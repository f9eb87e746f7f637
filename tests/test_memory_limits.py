"""Settings that no memory holds are refused in a sentence, before memory is taken; those that fit are not."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import everfed as ef
from everfed import machine
from everfed.cli import main
from everfed.data.on_demand_synthetic import Synthetic
from everfed.energy.fleet import check_clients
from everfed.errors import InputError
from everfed.learning.models import MODELS, Mlp
from everfed.machine import check_memory, free_memory, readable
from everfed.run import memory
from everfed.studies import sweep

resource = pytest.importorskip("resource", reason="it is not on Windows")

SYNTHETIC = ("run", "--data", "synthetic", "--split", "iid")
PROBLEM = ["bound", "--mu=1", "--L=4", "--G=1", "--sigma=1", "--heterogeneity=0.5", "--initial-distance-sq=1"]
REFUSED = [
    (("run", "--clients", "99999999999"), "a fleet of 99,999,999,999 clients is too large"),
    (("run", "--clients", "3000000000"), "a fleet of 3,000,000,000 clients would take about 360 GB"),
    (("plan", "--clients", "3000000000"), "use fewer clients"),
    (("audit", "--clients", "3000000000"), "use fewer clients"),
    ((*PROBLEM, "--clients", "3000000000"), "use fewer clients"),
    (("sweep", "--grid", "fleet.clients=3000000000", "--seeds", "1"), "use fewer clients"),
    (("run", "--set", "model.hidden=1000000000"), "a model of 75,000,000,010 parameters would take about 1.2 TB"),
    (("run", "--set", "model.hidden=1000000000000000000"), "use a smaller model"),
    (("run", "--batch-size", "1000000000"), "use a smaller batch_size"),
    (("run", "--set", "local_steps=1000000000", "--rounds", "1"), "use fewer local_steps"),
    (("compare", "--seeds", "100000000000"), "100,000,000,000 seeds would take about 100 TB"),
    (("compare", "--seeds", "5:100000000000"), "give fewer --seeds"),
    (("audit", "--seeds", "100000000000"), "give fewer --seeds"),
    ((*SYNTHETIC, "--set", "data.side=1000000"), "lower data.side"),
    ((*SYNTHETIC, "--set", "data.samples=1000000000000"), "lower data.samples"),
    ((*SYNTHETIC, "--set", "data.classes=1000000000000"), "lower data.samples or classes"),
    (("audit", "--rounds", "800000000", "--seeds", "1"), "an audit of 800,000,000 rounds would take about"),
    (("plan", "--rounds", "800000000"), "a table of 800,000,000 rounds would take about 2.4 TB"),
]


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Runs the command in this process and returns its refusal, after a look at time and memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * 10**9))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert time.process_time() - began < 10
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes
        return capsys.readouterr().err

    return call


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[" ".join(a[0][-2:]) for a in REFUSED])
def test_a_setting_that_no_memory_holds_is_refused_in_a_sentence(refused, arguments, said):
    text = refused(*arguments)
    assert said in text
    assert "Traceback" not in text


def test_a_grid_of_four_million_runs_is_refused_and_a_long_plan_is_announced(tmp_path, monkeypatch):
    grid = {"client.lr": list(range(1, 2001)), "client.momentum": [i / 2000 for i in range(2000)]}
    with pytest.raises(InputError, match="make 4,000,000 runs; split them"):
        sweep.plan_runs({}, grid, [0], tmp_path)
    monkeypatch.setattr(sweep, "_MANY_RUNS", 2)
    with pytest.warns(ef.EverfedWarning, match="planning 3 runs"):
        sweep.plan_runs({}, {"client.lr": [0.1, 0.2, 0.3]}, [0], tmp_path)


def test_an_audit_of_too_many_seeds_is_refused_in_python_too():
    with pytest.raises(InputError, match="an audit of 100,000,000,000 seeds"):
        ef.audit(ef.Fleet.from_cycles([1, 2]), "greedy", 10, seeds=10**11)


@pytest.mark.parametrize(("name", "kind"), MODELS.items(), ids=MODELS)
def test_a_models_size_is_known_without_building_it(name, kind, monkeypatch):
    """The estimate is that of the parameters that the model has, and drawing weights is not disturbed."""
    seen = []
    monkeypatch.setattr(memory, "check_memory", lambda what, wanted, *more, **options: seen.append(wanted))
    torch.manual_seed(3)
    shape = {"har-cnn": (3, 24), "char-lstm": (24,), "char-gpt": (24,)}.get(name, (3, 24, 24))
    memory.check_model(kind(), shape, 10, torch.device("cpu"))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1)
    assert seen == [16 * sum(p.numel() for p in kind().build(shape, 10).parameters())]


def test_a_model_that_cannot_be_built_without_numbers_is_left_alone():
    class Reads:
        def build(self, shape, classes):
            module = nn.Linear(2, 2)
            assert module.weight.sum().item() != 0
            return module

    memory.check_model(Reads(), (2,), 2, torch.device("cpu"))


def test_a_live_model_counts_with_its_parameters(monkeypatch):
    data = ef.from_arrays([(np.zeros((4, 8)), [0, 1, 0, 1])])
    model = nn.Sequential(nn.Linear(8, 5000), nn.ReLU(), nn.Linear(5000, 2))
    monkeypatch.setenv("EVERFED_MEMORY", "0.0005")
    with pytest.raises(
        InputError, match=r"a model of 55,002 parameters .* EVERFED_MEMORY allows 500 kB; use a smaller"
    ):
        ef.start(model, data, ef.Fleet.from_cycles([1]), device="cpu")


def test_the_largest_layer_counts_with_the_batch(monkeypatch):
    data = ef.from_arrays([(np.zeros((4, 8)), [0, 1, 0, 1])])
    monkeypatch.setenv("EVERFED_MEMORY", "0.1")
    with pytest.raises(InputError, match="batches of 5,000 samples"):
        ef.start(Mlp(hidden=10_000), data, ef.Fleet.from_cycles([1]), device="cpu", batch_size=5000)


def test_samples_that_do_not_fit_twice_are_refused(monkeypatch):
    data = ef.from_arrays([(np.zeros((1000, 1000)), np.zeros(1000, np.int64))])
    monkeypatch.setenv("EVERFED_MEMORY", "0.003")
    with pytest.raises(InputError, match=r"a copy of the 1,000 samples .* about 4.01 MB"):
        ef.start("logistic", data, ef.Fleet.from_cycles([1]), device="cpu")


def test_clients_trained_at_once_leave_room_for_their_draws():
    """Drawn samples of all local steps are held at once, so they count where clients share the memory."""
    data = ef.from_arrays([(np.zeros((4, 2)), [0, 1, 0, 1])] * 50)
    settings = {"device": "cpu", "trainer": "batched", "check_trainer": False, "rounds": 1, "batch_size": 10}
    few, many = (
        ef.start("logistic", data, ef.Fleet.from_cycles([1] * 50), local_steps=steps, **settings).source.trainer
        for steps in (1, 10_000)
    )
    assert few.chunk * few.bytes_per_client <= 2 << 30
    assert many.bytes_per_client - few.bytes_per_client == 24 * 10_000 * 10


@pytest.mark.parametrize("clients", [1, 1_000_000, 10_000_000])
def test_fleets_that_fit_are_not_refused(clients, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 4 << 30)
    check_clients(clients)
    Synthetic().check_room()


def test_a_container_s_limit_is_what_counts(monkeypatch, tmp_path):
    whole = free_memory()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 800000\ninactive_file 50000\n")
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    assert free_memory() == 150_000
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(free_memory() - whole) < whole / 2


def test_the_limit_is_said_and_can_be_raised(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 10 * 10**9)
    check_memory("it", 9e9, "use less")
    with pytest.raises(InputError, match=r"it would take about 11 GB of memory, but 10 GB are free; use less\."):
        check_memory("it", 11e9, "use less")
    with pytest.raises(InputError, match=r"at most 5 GB may be taken, 0\.5 of what is free"):
        check_memory("it", 9e9, "use less", part=0.5)
    with pytest.raises(InputError, match="it would take about nan"):
        check_memory("it", float("nan"), "use less")
    monkeypatch.setenv("EVERFED_MEMORY", "12")
    check_memory("it", 11e9, "use less", part=0.5)
    monkeypatch.setenv("EVERFED_MEMORY", "much")
    with pytest.raises(InputError, match="EVERFED_MEMORY is 'much'; it must be a number of gigabytes"):
        check_memory("it", 1, "use less")


def test_sizes_are_readable():
    assert [readable(n) for n in (12, 1.2e4, 3e9, 2e12, 5e18)] == ["12 B", "12 kB", "3 GB", "2 TB", "5 EB"]
