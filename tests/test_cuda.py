"""On a GPU: the same participants, minibatches, crops and masks as on the CPU, and float32 results to tolerance.

Skipped where there is no GPU; docs/results/cifar10.md says when they last ran on one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.augment import CropFlip
from everfed.learning.batched import Batched
from everfed.learning.compress import Qsgd
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import open_run, stored_rounds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

FLEET = ef.Fleet.from_cycles([1, 2, 4, 8])
SETTINGS = {"rounds": 4, "local_steps": 3, "batch_size": 8, "client": ef.Adam(1e-3, eps=1e-3)}


def dropout_cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.3), nn.Flatten()]
    return nn.Sequential(*layers, nn.LazyLinear(16), nn.Dropout(0.2), nn.GroupNorm(4, 16), nn.Linear(16, 10))


def made() -> nn.Module:
    model = dropout_cnn()
    model(torch.zeros(2, 1, 6, 6))  # gives the lazy layer its size
    return model


def cropped_digits():
    """Digits as bytes, with random crops of 6x6: augmentation without a download."""
    digits = ef.load("digits")
    as_bytes = [(255 * x).astype("uint8") for x in (digits.x, digits.test_x)]
    return replace(digits, x=as_bytes[0], test_x=as_bytes[1], augment=CropFlip(6)).partition(4)


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("method", ["algorithm1", "fedavg"])
def test_float32_on_the_gpu_equals_the_cpu(trainer, method):
    data = cropped_digits()
    cpu, gpu = (
        ef.simulate(made, data, FLEET, method, trainer=trainer, device=device, **SETTINGS) for device in ("cpu", "cuda")
    )
    for a, b in zip(cpu.rounds, gpu.rounds, strict=True):
        assert a.participants.tolist() == b.participants.tolist()
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)
    for name, value in cpu.params.items():
        torch.testing.assert_close(value, gpu.params[name], rtol=1e-4, atol=1e-5)
    assert cpu.final.accuracy == pytest.approx(gpu.final.accuracy, abs=0.01)


SERVERS = {
    **{
        name: {"method": name} for name in ("lattice", "ht-varp", "last-updates", "mifa", "fedawe", "fedau", "scaffold")
    },
    "mifa on disk": {"method": ef.Method(ef.UniformWindow(scaled=False), ef.Mifa(place="disk"), "MIFA")},
    "momentum": {"server_optimizer": ef.ServerMomentum()},
    "adam": {"server_optimizer": ef.ServerAdam()},
    "proximal and clip": {"gradients": (ef.Proximal(0.1), ef.Clip(0.5))},
    "quantised": {"compression": Qsgd(bits=8)},
}


@pytest.mark.parametrize("trainer", ["auto", "batched"])
@pytest.mark.parametrize("settings", SERVERS.values(), ids=list(SERVERS))
def test_every_server_and_client_rule_gives_on_the_gpu_what_it_gives_on_the_cpu(settings, trainer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    data = ef.load("digits").partition(4)
    common = {"rounds": 8, "client": ef.SGD(0.1), "eval_every": 8, **settings}
    cpu, gpu = (
        ef.simulate(model, data, FLEET, device=device, trainer=how, **common)
        for device, how in (("cpu", "batched"), ("cuda", trainer))
    )
    for name, value in cpu.params.items():
        torch.testing.assert_close(value, gpu.params[name], rtol=1e-3, atol=1e-4)
    for a, b in zip(cpu.rounds, gpu.rounds, strict=True):
        assert a.round_weight == pytest.approx(b.round_weight)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_stays_close_with_float32_masters(precision):
    data = cropped_digits()
    exact, rough = (
        ef.simulate(made, data, FLEET, "fedavg", device="cuda", precision=p, **SETTINGS) for p in ("float32", precision)
    )
    for name, value in rough.params.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact.params[name], rtol=0.1, atol=5e-3)


def test_out_of_memory_halves_the_chunk_and_loses_nothing(monkeypatch):
    data = cropped_digits()
    whole = ef.simulate(made, data, FLEET, "fedavg", device="cuda", trainer="batched", **SETTINGS)
    train_chunk = Batched._train_chunk

    def tight(self, params, clients, *which):
        if len(clients) > 1:  # ask the real allocator for more than there is
            torch.empty(10**15, device="cuda", dtype=torch.uint8)
        return train_chunk(self, params, clients, *which)

    monkeypatch.setattr(Batched, "_train_chunk", tight)
    with pytest.warns(ef.EverfedWarning, match="out of device memory with 4 clients at once; continuing with 2"):
        halved = ef.simulate(made, data, FLEET, "fedavg", device="cuda", trainer="batched", **SETTINGS)
    for name, value in whole.params.items():
        torch.testing.assert_close(value, halved.params[name], rtol=1e-4, atol=1e-5)


def test_a_stored_run_names_device_and_precision_and_resumes(tmp_path):
    experiment = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=8, eval_every=4, device="cuda", precision="tf32")
    whole = list(stored_rounds(experiment, tmp_path / "whole"))
    asked = iter(range(100))
    list(stored_rounds(experiment, tmp_path / "cut", stop=lambda: next(asked) >= 2))
    list(stored_rounds(experiment, tmp_path / "cut"))
    cut = open_run(tmp_path / "cut")
    assert cut.environment["precision"] == "tf32"
    assert cut.environment["gpu"]
    assert len(cut.rounds) == len(whole)
    for name, value in open_run(tmp_path / "whole").params.items():
        torch.testing.assert_close(value, cut.params[name], rtol=1e-3, atol=1e-4)
