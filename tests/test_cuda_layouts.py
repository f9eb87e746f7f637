"""On a GPU: images in any layout train the same model with kernels as with torch, and trainers are compared first.

Skipped where there is no GPU. `tests/test_layouts.py` also runs on one, with every trainer and layout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.augment import CropFlip
from everfed.trainers import choose
from everfed.trainers.compare import TOLERANCES, compare
from kernel_models import MODELS, images, task
from layouts import WAYS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
pytest.importorskip("triton", reason="Triton is not installed here")

PRECISIONS = ["float32", "tf32", "bf16"]


def made(name):
    build, shape, options = MODELS[name]
    torch.manual_seed(0)
    return build(), images(shape, **options)


def colours(count, seed):
    """Images [count, 3, 12, 12] whose class is where, and in which colour, a square is."""
    chance = np.random.default_rng(seed)
    y = chance.integers(0, 6, count)
    x = chance.normal(0, 0.7, (count, 3, 12, 12)).astype(np.float32)
    for i, label in enumerate(y):
        top = 1 if label % 2 else 6
        x[i, label // 2, top : top + 5, 2:9] += 1.0
    return x, y


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 6),
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_network_learns_images_in_every_layout_with_kernels_as_with_torch(way):
    parts = [colours(120, seed) for seed in range(4)]
    data = ef.from_arrays([(WAYS[way](x), y) for x, y in parts], (WAYS[way](colours(600, 9)[0]), colours(600, 9)[1]))
    fleet = ef.Fleet.from_cycles([1, 1, 2, 4])
    common = {"rounds": 60, "client": ef.SGD(0.05), "device": "cuda", "eval_every": 60}
    runs = {}
    for trainer in ("kernels", "batched"):
        torch.manual_seed(0)
        runs[trainer] = ef.simulate(cnn(), data, fleet, trainer=trainer, **common).final
    assert runs["batched"].accuracy > 0.9
    assert runs["kernels"].accuracy == pytest.approx(runs["batched"].accuracy, abs=0.02)
    assert runs["kernels"].loss == pytest.approx(runs["batched"].loss, rel=0.05, abs=0.01)


def test_transposed_bytes_with_random_crops_too():
    x, y = colours(200, 0)
    pixels = np.clip(80 + 40 * x, 0, 255).astype(np.uint8)
    turned = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert not turned.flags.c_contiguous
    params = []
    for images_, trainer in ((pixels, "batched"), (turned, "kernels")):
        data = replace(ef.from_arrays([(images_, y), (images_[:50], y[:50])]), augment=CropFlip(10))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 6))
        fleet = ef.Fleet.from_cycles([1, 1])
        history = ef.simulate(model, data, fleet, rounds=5, trainer=trainer, client=ef.SGD(0.05), device="cuda")
        params.append(torch.cat([p.reshape(-1) for p in history.params.values()]))
    torch.testing.assert_close(*params, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trainer", ["kernels", "batched", "one-by-one"])
def test_no_model_raises_a_false_alarm_in_any_precision(name, trainer, precision):
    for optimizer in (ef.SGD(0.1, momentum=0.9), ef.Adam(1e-3)):
        found = compare(ef.TRAINERS[trainer], task(*made(name), optimizer, precision=precision, batch_size=16))
        assert found.failure == "", found
        assert found.tolerance == TOLERANCES[precision], found  # without having to ask how much rounding there is
    assert torch.backends.cuda.matmul.allow_tf32 == (precision != "float32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scrambled_images_are_found_in_every_precision(precision, monkeypatch):
    from everfed.engine import launch, program

    scrambled = task(*made("cnn"), ef.SGD(0.1), precision=precision)
    scrambled.data.x = scrambled.data.x.movedim(1, 3).contiguous().movedim(3, 1)
    with pytest.warns(ef.EverfedWarning, match="argument 0 of the kernel minibatch .* taking 'batched' instead"):
        found = choose.trainer("auto", scrambled)
    assert type(found).__name__ == "Batched"

    def careless(kernel, grid, *args, **meta):
        if launch._here.listed is not None:
            launch._here.listed.append((kernel, grid, args, meta))
        else:
            kernel[grid](*args, **meta)

    monkeypatch.setattr(program, "launch", careless)
    with pytest.raises(ef.InputError, match="computes different updates than plain autograd"):
        choose.trainer("kernels", scrambled)


@pytest.mark.parametrize("trainer", ["kernels", "batched"])
def test_a_run_is_the_same_with_and_without_the_comparison(trainer):
    data = ef.from_arrays([colours(60, seed) for seed in range(3)])
    fleet = ef.Fleet.from_cycles([1, 2, 2])
    common = {"rounds": 6, "client": ef.Adam(1e-3, eps=1e-3), "trainer": trainer, "device": "cuda"}
    runs = []
    for check in (True, False):
        torch.manual_seed(0)
        run = ef.start(cnn(), data, fleet, check_trainer=check, memory_budget=1 << 30, **common)
        assert (run.source.trainer.check is not None) == check
        list(run)
        runs.append(run.state_dict())
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-4, atol=1e-6)


def test_random_numbers_on_the_gpu_go_on_where_they_were():
    data = ef.from_arrays([colours(60, seed) for seed in range(3)])

    def drawn(check):
        torch.cuda.manual_seed(3)
        ef.start(
            cnn(),
            data,
            ef.Fleet.from_cycles([1, 2, 2]),
            client=ef.Adam(1e-3),
            rounds=1,
            device="cuda",
            check_trainer=check,
        )
        return torch.rand(4, device="cuda").tolist()

    assert drawn(True) == drawn(False)
