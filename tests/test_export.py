"""Trained models for other programs: as modules, and as files that compute the same."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import everfed as ef
from everfed.cli.app import app
from everfed.errors import InputError, MissingExtraError
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import StoreError, export as exporting, open_run, stored_rounds
from zoo import Branch

SMALL = Experiment(
    fleet=CycleFleet(4, (1, 2)), rounds=3, batch_size=4, eval_every=3, device="cpu", check_trainer=False
)  # fmt: skip
FORMATS = [
    "safetensors",
    "pt2",
    pytest.param(
        "onnx",
        marks=pytest.mark.skipif(
            not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))), reason="needs the extra onnx"
        ),
    ),
]


def stored(experiment: Experiment, folder: Path) -> ef.StoredRun:
    for _ in stored_rounds(experiment, folder):
        pass
    return open_run(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> ef.StoredRun:
    return stored(SMALL, tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def digits():
    data = SMALL.data.load()
    return torch.from_numpy(data.test_x).float() / (255.0 if data.test_x.dtype == np.uint8 else 1.0), data.test_y


def test_the_model_of_a_run_scores_what_the_run_did(run, digits):
    x, y = digits
    before = torch.random.get_rng_state()
    model = run.model()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert (model(x).argmax(1).numpy() == y).mean() == pytest.approx(run.final.accuracy)
    with pytest.raises(InputError, match="it must be auto, cpu or cuda"):
        run.model(device="tpu")


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_computes_what_the_model_does(run, digits, tmp_path, suffix):
    path = tmp_path / "new" / f"model.{suffix}"
    shown = CliRunner().invoke(app, ["export", str(run.path), "-o", str(path)], catch_exceptions=False)
    assert "the model after round 3" in shown.stdout
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    x, expected = digits[0][:5], run.model()(digits[0][:5])
    if suffix == "safetensors":
        assert {n: v.tolist() for n, v in load_file(path).items()} == {n: v.tolist() for n, v in run.params.items()}
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
    elif suffix == "pt2":
        extra = {"everfed.json": ""}
        found = torch.export.load(path, extra_files=extra).module()
        assert torch.equal(found(x), expected)
        about = json.loads(extra["everfed.json"])
    else:
        onnx = importlib.import_module("onnx")
        about = {prop.key: prop.value for prop in onnx.load(str(path)).metadata_props}
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(path))
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert np.allclose(found, expected.numpy(), atol=1e-5)
    assert (about["run"], about["rounds"], about["classes"]) == ("run", "3", "10")
    assert json.loads(about["input_shape"]) == list(x.shape[1:])
    assert about["inputs"] == f"float32 [{', '.join(map(str, x.shape[1:]))}]"


class Odd(nn.Module):
    """A frozen part, a buffer and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 0.5), requires_grad=False)
        self.register_buffer("shift", torch.ones(1))
        self.body = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x * self.scale + self.shift)


def test_a_model_that_was_an_object_is_asked_for(tmp_path, digits):
    found = stored(replace(SMALL, model=Odd()), tmp_path / "run")
    with pytest.raises(InputError, match=r"pass a module like it: open_run\(folder\)\.model\(module\)"):
        found.model()
    with pytest.raises(InputError, match="not like the one that was trained"):
        found.model(nn.Linear(64, 10))
    given = Odd()
    before = given.body[2].weight.clone()
    model = found.model(given)
    assert torch.equal(given.body[2].weight, before)  # a copy was loaded
    assert torch.equal(model(digits[0][:4]), model(digits[0][:4]))  # without dropout
    path = ef.export_model(found, tmp_path / "model.pt2", Odd())
    assert torch.allclose(torch.export.load(path).module()(digits[0][:3]), model(digits[0][:3]))
    weights = ef.export_model(found, tmp_path / "model.safetensors")  # which needs no module
    assert load_file(weights).keys() == Odd().state_dict().keys()


def test_data_that_were_objects_are_made_up(tmp_path):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2) for _ in range(4)]
    found = stored(replace(SMALL, data=pairs, model="mlp"), tmp_path / "run")
    path = ef.export_model(found, tmp_path / "model.pt2")
    assert torch.export.load(path).module()(torch.zeros(2, 3)).shape == (2, 2)
    given = ef.export_model(found, tmp_path / "given.pt2", inputs=torch.ones(3, 3))
    assert given.exists()


def test_a_model_of_numbers_comes_back_with_its_shape(tmp_path):
    pairs = [(np.ones((6, 3), np.float32), np.zeros(6, np.float32)) for _ in range(4)]
    found = stored(replace(SMALL, data=pairs, model="mlp"), tmp_path / "run")
    assert found.model()(torch.zeros(5, 3)).shape == (5,)
    path = ef.export_model(found, tmp_path / "model.pt2")
    assert torch.export.load(path).module()(torch.zeros(2, 3)).shape == (2,)


def test_models_of_several_inputs(tmp_path):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.a(x) * mask[:, None]

    inputs = {"x": torch.rand(4, 2), "mask": torch.ones(4, dtype=torch.bool)}
    read_back = exporting._pt2(Sum().eval(), inputs, tmp_path / "m.pt2", {})
    assert read_back(inputs).shape == (4, 2)
    told = {"x": "float32 [2]", "mask": "bool []", "token": "int64 [3]"}
    made = exporting.made_up(told, 5)
    assert {n: (tuple(v.shape), v.dtype) for n, v in made.items()} == {
        "x": ((5, 2), torch.float32), "mask": ((5,), torch.bool), "token": ((5, 3), torch.int64),
    }  # fmt: skip


def test_a_file_that_computes_something_else_is_not_left_behind(run, tmp_path, monkeypatch):
    def off_by_one(module, inputs, path, about):
        read_back = exporting._pt2(module, inputs, path, about)
        return lambda given: read_back(given) + 1.0

    monkeypatch.setitem(exporting.FORMATS, ".pt2", off_by_one)
    (tmp_path / "model.pt2").write_text("before")
    with pytest.raises(InputError, match="computes something else than the model, up to 1 off"):
        ef.export_model(run, tmp_path / "model.pt2", force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").read_text() == "before"


def test_bad_input_is_told_in_a_sentence(run, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"unknown suffix '\.onx'\. Did you mean '\.onnx'"):
        ef.export_model(run, tmp_path / "model.onx")
    path = ef.export_model(run, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="exists; choose another name"):
        ef.export_model(run, path)
    assert ef.export_model(run, path, force=True) == path
    with pytest.raises(InputError, match="which is a folder"):
        ef.export_model(run, tmp_path)
    result = CliRunner().invoke(app, ["export", str(tmp_path), "-o", str(tmp_path / "m.pt2")])
    assert "is not a run folder" in str(result.exception)
    for _ in stored_rounds(SMALL, tmp_path / "half", stop=lambda: True):
        pass
    with pytest.raises(InputError, match=r"is not done \(stopped after round 1 of 3\)"):
        ef.export_model(open_run(tmp_path / "half"), tmp_path / "half.safetensors")
    if os.path.isdir("/proc"):
        with pytest.raises(StoreError, match="cannot be written"):
            ef.export_model(run, "/proc/model.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"everfed\[onnx\]"):
        ef.export_model(run, tmp_path / "model.onnx")


def test_a_model_that_cannot_be_traced_says_so(tmp_path):
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return self.a(x) if float(x.sum()) > 0 else self.a(-x)

    found = stored(replace(SMALL, model=Choosy(), trainer="one-by-one"), tmp_path / "run")
    with pytest.raises(InputError, match=r"cannot be traced by torch\.export"):
        ef.export_model(found, tmp_path / "model.pt2", Choosy())
    assert not (tmp_path / "model.pt2").exists()


def sentences(rng, count):
    tokens, seen = rng.integers(1, 30, (count, 8)), np.arange(8) < rng.integers(3, 9, (count, 1))
    inputs = {"input_ids": np.where(seen, tokens, 0), "attention_mask": seen.astype(np.int64)}
    return inputs, np.where(seen, np.roll(tokens, -1, axis=1), -100)


class Answer(nn.Module):
    """One input by place, and an object with logits as output."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return {"logits": self.out(x), "hidden": [x]}


def language_model(adapted):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    if not adapted:
        return model
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


@pytest.mark.parametrize("kind", ["transformers", "peft", "an object with logits"])
@pytest.mark.parametrize("suffix", FORMATS[1:])
def test_modules_whose_outputs_are_more_than_a_tensor(tmp_path, kind, suffix):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    if kind == "an object with logits":
        model, parts = Answer(), [(rng.normal(size=(4, 5)).astype(np.float32), np.arange(4) % 3) for _ in range(2)]
        data = ef.from_arrays(parts, test=parts[0])
    else:
        model = language_model(kind == "peft")
        data = ef.from_arrays([sentences(rng, 4) for _ in range(2)], test=sentences(rng, 6), classes=30)
    fleet = ef.Fleet.from_cycles([1, 1])
    ef.simulate(model, data, fleet, rounds=1, batch_size=2, device="cpu", out=tmp_path / "run", check_trainer=False)
    run = open_run(tmp_path / "run")
    path = ef.export_model(run, tmp_path / f"model.{suffix}", model)
    inputs = data.test_x if isinstance(data.test_x, dict) else {"x": data.test_x}
    given = {name: torch.tensor(part) for name, part in inputs.items()}
    with torch.no_grad():
        found = run.model(model)(**given)
    expected = found["logits"].numpy()
    if suffix == "pt2":
        program = torch.export.load(path).module()
        again = (program(**given) if len(given) > 1 else program(given["x"])).detach().numpy()
    else:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        named = given if len(given) > 1 else {evaluator.input_names[0]: given["x"]}
        (again,) = evaluator.run(None, {name: value.numpy() for name, value in named.items()})
    np.testing.assert_allclose(again, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
def test_what_cannot_be_traced_says_nothing_besides(tmp_path, capfd):
    rows = [(np.ones((4, 3), np.float32), np.arange(4) % 2)] * 2
    ef.simulate(Branch(), rows, ef.Fleet.from_cycles([1, 1]), rounds=1, device="cpu", out=tmp_path / "run")
    capfd.readouterr()
    with pytest.raises(InputError, match=r"cannot be traced by torch\.export.* as \.safetensors"):
        ef.export_model(open_run(tmp_path / "run"), tmp_path / "model.pt2", Branch())
    assert capfd.readouterr() == ("", "")
