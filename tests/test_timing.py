"""What `--explain` says of the time that parts of a model take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.learning.objectives import LOSSES
from everfed.trainers.timing import PartTime, StepTime, plain_parts, step_time
from kernel_models import CLASSES, chain, images, task


class Recurrent(nn.Module):
    """A tuple as output, a module that is called twice, and one by a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 8, batch_first=True)
        self.bend, self.out = nn.ReLU(inplace=True), nn.Linear(8, 9)

    def forward(self, x):
        hidden, _ = self.lstm(self.embedding(x))
        return self.out(input=self.bend(self.bend(hidden)))


def made(model, data, trainer="batched", **more):
    given = task(model, data, ef.Adam(), **more)
    return ef.TRAINERS[trainer](given), given


def tokens():
    draw = np.random.default_rng(0)
    return ef.from_arrays([(draw.integers(0, 9, (6, 5)), draw.integers(0, 9, (6, 5))) for _ in range(3)])


def test_every_innermost_module_is_a_part_in_the_order_of_calls():
    _, given = made(Recurrent(), tokens(), loss=LOSSES["next-token"])
    parts = plain_parts(given)
    assert [part.name for part in parts] == ["embedding Embedding", "lstm LSTM", "bend ReLU", "out Linear"]
    assert all(part.forward_ms > 0 for part in parts)
    assert all(part.backward_ms > 0 for part in parts)


pytest.importorskip("triton", reason="Triton is not installed here")


@pytest.mark.parametrize("trainer", ["batched", "one-by-one", "kernels"])
def test_a_step_is_timed_and_nothing_is_left_behind(trainer):
    model = chain(nn.Linear(10, 20), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(20, CLASSES))
    trained, given = made(model, images((10,)), trainer)
    before, generator = given.layout.flatten(model).clone(), torch.get_rng_state()
    found = step_time(trained, given)
    assert torch.equal(before, given.layout.flatten(model))
    assert torch.equal(generator, torch.get_rng_state())
    assert found.clients == (1 if trainer == "one-by-one" else 3)
    assert found.step_ms > 0
    names = [part.name for part in found.parts]
    layers = ["0 Linear", "2 Dropout", "3 Linear"]  # the ReLU is fused
    assert names == (layers if trainer == "kernels" else ["0 Linear", "1 ReLU", "2 Dropout", "3 Linear"])
    assert len(found.said()) == 1 + len(names)


def test_parts_that_torch_computes_between_kernels_have_a_name():
    model = chain(nn.Linear(10, 20), nn.Softplus(), nn.ELU(), nn.Linear(20, CLASSES))
    trained, given = made(model, images((10,)), "kernels")
    assert [part.name for part in step_time(trained, given).parts] == [
        "0 Linear",
        "1 Softplus to 2 ELU in torch",
        "3 Linear",
    ]


def test_percentages_are_of_all_parts():
    said = StepTime(2, 2500.0, "parts", [PartTime("a", 1.0, 2.0), PartTime("b", 0.5, 0.5)]).said()
    assert said == [
        "2.5 s for 2 clients together; parts:",
        "  a: 1 ms forward, 2 ms backward, 75 %",
        "  b: 500 µs forward, 500 µs backward, 25 %",
    ]


def test_one_client_is_not_together():
    assert StepTime(1, 3.0, "parts", []).said() == ["3 ms for one client; parts:"]


def test_without_samples_there_is_nothing_to_time():
    data = images((10,))
    trained, given = made(chain(nn.Linear(10, CLASSES)), data)
    given.data.sizes.zero_()
    assert step_time(trained, given) is None


@pytest.mark.long
def test_the_benchmark_of_models_runs_without_a_gpu():
    script = Path(__file__).parents[1] / "benchmarks/models.py"
    options = ["--small", "--device", "cpu", "--models", "gn-cnn", "--rules", "plain", "clip"]
    told = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr[-2000:]
    rows = [line.split(" | ") for line in told.stdout.splitlines()[2:]]
    asked = [("auto", "Batched", "plain"), ("auto", "Batched", "clip"), ("batched", "Batched", "plain")]
    assert [tuple(row[2:5]) for row in rows] == asked
    assert all(row[-1] == "equal |" for row in rows)
    assert float(rows[0][7]) < 1e-4
