"""Mistakes that were once a traceback, a hang or an accepted nonsense, in the words that they meet today."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jsonschema
import numpy as np
import pytest

import everfed as ef
from everfed import InputError, presets, registry
from everfed.checks import Checked, Positive, check_fields
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import Markov
from everfed.run import config
from everfed.run.schema import schema
from everfed.store import trackers

FLEET = Fleet.from_cycles([1, 2])
DATA = [(np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))] * 2
TINY = {"rounds": 2, "local_steps": 1, "batch_size": 2}


def simulate(**changes):
    return ef.simulate("logistic", DATA, FLEET, **{**TINY, **changes})


IN_PYTHON = {
    "a number as a text": (lambda: ef.SGD("0.1"), "lr is '0.1'; it must be a positive number."),
    "no number": (lambda: ef.Adam(lr=None), "lr is None; it must be a positive number."),
    "a truth as a number": (lambda: ef.SGD(True), "lr is True; it must be a positive number."),
    "no number at all": (lambda: ef.SGD(float("nan")), "lr is nan; it must be a positive number."),
    "more than float32": (lambda: ef.SGD(1e308), "a positive number of at most 1e+38"),
    "a class": (lambda: simulate(client=ef.SGD), "client is the class SGD; give a value of it, such as SGD()."),
    "an old keyword": (lambda: simulate(client_optimizer=ef.SGD()), "Did you mean 'client'?"),
    "a name for a function": (lambda: simulate(loss="mse"), "loss is 'mse'; it must be a function."),
    "no list": (lambda: simulate(gradients="clip"), "gradients is 'clip'; it must be a list, as in ['clip']."),
    "an unknown rule": (lambda: simulate(gradients=["clop"]), "Did you mean 'clip'?"),
    "an unknown schedule": (lambda: ef.SGD(schedule="cosin"), "Did you mean 'cosine'?"),
    "a number for a schedule": (lambda: ef.SGD(schedule=3), "schedule is 3; it must be a value such as Constant()"),
    "a split of split data": (lambda: simulate(split="iid"), "already split over clients; remove it."),
    "a description for a fleet": (lambda: ef.plan(3, "greedy", 2), "fleet is 3; it must be a Fleet."),
    "a text for a truth": (lambda: ef.plan(FLEET, "greedy", 2, strict_horizon="no"), "true or false"),
    "a text for seeds": (
        lambda: ef.sweep(ef.Experiment(), {}, seeds="ab", out="x"),
        "seeds is 'ab'; it must be a list",
    ),
    "too many seeds": (lambda: ef.audit(FLEET, "greedy", 2, 10**30), "seeds"),
    "negative jobs": (lambda: ef.sweep(ef.Experiment(), {}, out="x", jobs=-2), "jobs is -2"),
    "no path": (lambda: simulate(out=3), "out is 3; it must be a path."),
    "a model that wants arguments": (lambda: ef.simulate(len, DATA, FLEET, **TINY), "without arguments"),
    "a text for a storage": (lambda: Fleet.from_cycles([1], storage="x"), "storage is 'x'; it must be a Storage."),
    "a spell beyond reason": (lambda: Markov(np.array([2]), np.array([0]), spell=1e7), "from 1 to 1e+06"),
}


@pytest.mark.parametrize(("mistake", "words"), IN_PYTHON.values(), ids=IN_PYTHON.keys())
def test_mistakes_in_python_are_told(mistake, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        mistake()
    assert words in str(error.value)
    assert not list(tmp_path.iterdir())


def test_names_numpy_and_lists_are_taken_as_what_they_mean():
    assert ef.SGD(schedule="cosine") == ef.SGD(schedule=ef.Cosine())
    assert ef.Experiment(gradients=["clip"]).gradients == (ef.Clip(),)
    made = ef.Experiment(rounds=np.int64(7), client=ef.SGD(np.float32(0.5)), check_trainer=np.bool_(False))
    assert config.to_toml(made) == config.to_toml(ef.Experiment(rounds=7, client=ef.SGD(0.5), check_trainer=False))
    assert type(made.rounds) is int
    assert type(made.client.lr) is float
    assert type(made.check_trainer) is bool


def test_one_annotation_serves_constructors_files_and_the_schema():
    @dataclass(frozen=True)
    class Soft(Checked):
        norm: Positive = 1.0
        way: Annotated[str, ("up", "down")] = "up"

        def adjust(self, grads, params, start, clients):
            return grads

    registry.register("gradients", "soft")(Soft)
    try:
        with pytest.raises(InputError, match="norm is -1; it must be a positive number"):
            Soft(norm=-1)
        with pytest.raises(InputError, match=r"gradients\[0\]: way is 'left'; it must be 'up' or 'down'"):
            config.from_dict({"gradients": [{"kind": "soft", "way": "left"}]})
        kinds = schema()["properties"]["gradients"]["items"]["anyOf"]
        (mine,) = (kind for kind in kinds if kind.get("properties", {}).get("kind") == {"const": "soft"})
        assert mine["properties"]["norm"] == {"type": "number", "exclusiveMinimum": 0, "default": 1.0}
        assert mine["properties"]["way"] == {"type": "string", "enum": ["up", "down"], "default": "up"}
    finally:
        del registry.kinds("gradients")["soft"]


def test_kinds_that_do_not_check_themselves_are_checked_in_files():
    @dataclass(frozen=True)
    class Bare:
        norm: Positive = 1.0

    with pytest.raises(InputError, match="norm is 0"):
        check_fields(Bare(0))


@pytest.mark.parametrize(
    ("key", "value", "good"),
    [
        ("rounds", 0, 1),
        ("validation", 1.0, 0.5),
        ("seed", -1, 2**64 - 1),
        ("precision", "f8", "tf32"),
        ("eval_every", -1, 0),
    ],
)
def test_the_schema_refuses_what_the_checks_refuse(key, value, good):
    jsonschema.validate({key: good}, schema())
    config.from_dict({key: good})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: value}, schema())
    with pytest.raises(InputError):
        config.from_dict({key: value})


FILES = {
    "empty": ("", "sets no key"),
    "deep": (f"x = {'[' * 5000}{']' * 5000}", "nested too deeply"),
    "dotted": (f"a{'.a' * 500} = 1", "nests tables"),
    "digits": (f"rounds = {'9' * 5000}", "thousands of digits"),
    "live": ('rounds = {kind = "live", name = "x", fingerprint = "y"}', "must be a whole number"),
    "unknown live": ('x = {kind = "live", name = "x", fingerprint = "y"}', "unknown key 'x'"),
    "date": ("rounds = 2020-01-01", "it must be a whole number"),
    "kind": ("client = {kind = [1]}", "client kind"),
}


@pytest.mark.parametrize(("text", "words"), FILES.values(), ids=FILES.keys())
def test_mistakes_in_files_are_told(text, words, tmp_path):
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        config.from_dict(config.read(tmp_path / "e.toml"))


AT_THE_SHELL = {
    "no methods": ("compare --methods =", "give names separated by commas"),
    "a gap in a list": ("plan --cycles 1,,5", "--cycles is '1,,5'"),
    "seconds below zero": ("run --checkpoint-every -3", "--checkpoint-every is -3.0; it must be zero or a positive"),
    "jobs below zero": ("compare --jobs -2", "--jobs is -2; it must be a whole number of at least 0."),
    "lengths below zero": ("audit --deltas -1", "--deltas is -1.0"),
    "two formats": ("plan --csv --json", "--csv and --json are both given"),
    "a file for a folder": ("run --out file", "but 'file' is a file; give a folder"),
    "a fifo for a file": ("plan fifo.toml", "'fifo.toml' is a folder or a device"),
    "a folder for a page": ("report runs -o .", "output is '.', which is a folder"),
    "a root for a page": ("report runs -o /", "output is '/', which is a folder"),
    "an option of another split": ("run --split iid --alpha 1", "the kind 'iid' does not have it, only dirichlet"),
    "an option of another fleet": ("plan --set fleet.kind=devices --set fleet.capacity=2", "only cycles"),
    "an option undone": ("plan --capacity 2 --set fleet.kind=devices", "comes after 'fleet.capacity' and undoes it"),
    "an option of a part": ("sweep --grid clients=2,3", "or 'fleet.clients'?"),
    "too many seeds": ("audit --seeds 99999999999999999999", "seeds"),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs the command as a process of its own, in a folder with a run, a file and a fifo."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "file").touch()
    os.mkfifo(folder / "fifo.toml")
    simulate(out=folder / "runs")

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "everfed", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
        )

    return call


@pytest.mark.parametrize(("line", "words"), AT_THE_SHELL.values(), ids=AT_THE_SHELL.keys())
def test_mistakes_at_the_shell_are_told(line, words, shell):
    result = shell(*(argument.replace("=", "") if argument == "=" else argument for argument in line.split()))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("everfed: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_long_spells_begin_with_the_run_and_keep_their_share():
    fleet = Fleet.from_cycles([4] * 4000, arrivals="markov")
    long = Markov(fleet.cycles(), fleet.offsets(), spell=1e6)
    began = time.perf_counter()
    first = long.harvest(0, 3)
    later = [long.harvest(r, 3) for r in range(1, 50)]
    assert time.perf_counter() - began < 5.0
    assert abs(first.mean() - 0.25) < 0.03
    assert np.mean(later[-1] == first) > 0.99  # hardly a spell ends within fifty rounds
    assert np.array_equal(Markov(fleet.cycles(), fleet.offsets(), spell=1e6).harvest(49, 3), later[-1])


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_that_does_not_answer_is_told_soon(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.perf_counter()
    with pytest.raises(InputError, match=r"MLflow at http://127\.0\.0\.1:9 failed"):
        trackers.MLflow(ef.Experiment(), tmp_path)
    assert time.perf_counter() - began < 60.0  # with its import


@pytest.mark.filterwarnings("ignore")
def test_an_empty_note_of_an_mlflow_run_begins_a_new_one(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow-run").touch()
    with trackers.MLflow(ef.Experiment(), tmp_path) as tracker:
        assert tracker.run_id
    assert (tmp_path / "mlflow-run").read_text() == tracker.run_id


def test_every_preset_keeps_the_schema():
    document = schema()
    assert json.loads(json.dumps(document)) == document
    for name in presets.texts():
        jsonschema.validate(presets.content(name), document)


def test_a_folder_without_permission_is_told(shell, tmp_path):
    place = Path("/proc/everfed")
    result = shell("run", "digits-quick", "--rounds", "2", "--out", str(place))
    assert result.returncode != 0
    assert "Traceback" not in result.stderr


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64])
def test_whole_numbers_of_numpy_are_as_good_as_pythons(kind):
    """Also where the numbers are told: 3 rounds do not contain a whole number of windows of 7."""
    fleet = ef.Fleet.from_cycles([1, 2, 7])
    data = ef.load("digits").partition(3, "iid", seed=kind(0))
    settings = {"rounds": 3, "local_steps": 2, "batch_size": 4, "seed": 7, "eval_every": 3}
    plans, verdicts, finals = [], [], []
    for number in (int, kind):
        for rounds in (1, 3):
            plans.append([step.clients.tolist() for step in ef.plan(fleet, "greedy", number(rounds), seed=number(5))])
        verdicts.append(ef.audit(fleet, "algorithm1", rounds=number(3), seeds=number(4)).verdict)
        given = {name: number(value) for name, value in settings.items()}
        finals.append(ef.simulate("logistic", data, fleet, **given).final)
    assert plans[:2] == plans[2:]
    assert verdicts[0] == verdicts[1]
    assert finals[0] == finals[1]
