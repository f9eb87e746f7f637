"""Settings that would have no effect are told or refused, and what is written is JSON for every program."""

import json
import math
import warnings

import numpy as np
import pytest
from torch import nn

import everfed as ef
from everfed.data.partition import Natural
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.store import open_run
from everfed.store.files import read_sealed, strict, write_atomically, write_sealed

FLEET = ef.Fleet.from_cycles([1, 2])


def client(seed):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(8, 4)).astype(np.float32), draw.integers(0, 3, 8)


TRAIN = [client(0), client(1)]
KW = {"rounds": 2, "batch_size": 4, "device": "cpu", "progress": False, "client": ef.SGD(0.1)}


@pytest.mark.parametrize("name", ["f1", "top-3", "no such"])
def test_one_name_where_a_list_belongs_is_shown_as_a_list(name):
    with pytest.raises(ef.InputError, match=rf"^metrics is \"{name}\"; it must be a list, such as \[\"{name}\"\]\.$"):
        config.from_dict({"metrics": name})


def test_numbers_where_a_list_belongs_have_an_example_of_numbers():
    with pytest.raises(ef.InputError, match=r"it must be a list, such as \[1, 5, 10\]"):
        config.from_dict({"fleet": {"kind": "cycles", "cycles": 5}})


@pytest.mark.parametrize("metrics", [(), ("f1",), ("f1", "auc", "top-3"), ("mae", "r2")])
def test_every_name_is_listed_once(metrics):
    with pytest.raises(ef.InputError, match=r"early_stopping\.metric 'bleu'") as error:
        Experiment(metrics=metrics, early_stopping=ef.EarlyStopping(part=0.1, metric="bleu"))
    listed = str(error.value).partition("Valid: ")[2].rstrip(".").split(", ")
    assert len(listed) == len(set(listed))
    assert {"loss", "accuracy", "f1", *metrics} <= set(listed)


def said_by(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in said if "no test set" in str(w.message)]


def share(outputs, targets):
    return float((outputs.argmax(1) == targets).float().mean())


def test_metrics_without_a_test_set_are_told_once():
    without, with_one = ef.from_arrays(TRAIN, classes=3), ef.from_arrays(TRAIN, test=client(2), classes=3)
    said = said_by(lambda: ef.simulate(nn.Linear(4, 3), without, FLEET, metrics=("f1", share), **KW))
    assert said == ["metrics has f1, share, but there is no test set to compute it on; give one, or leave metrics out."]
    assert not said_by(lambda: ef.simulate(nn.Linear(4, 3), with_one, FLEET, metrics=("f1", share), **KW))
    assert not said_by(lambda: ef.simulate(nn.Linear(4, 3), without, FLEET, **KW))


def test_metrics_of_a_validation_set_need_no_test_set():
    rule = ef.EarlyStopping(part=0.3, metric="f1")
    data = ef.from_arrays(TRAIN, classes=3)
    said = said_by(lambda: ef.simulate(nn.Linear(4, 3), data, FLEET, metrics=("f1",), early_stopping=rule, **KW))
    assert said == []


def test_an_order_by_chance_cannot_be_turned_round():
    made = Natural("random", reverse=True)  # a stored experiment that has it can still be opened
    with pytest.raises(ef.InputError, match=r"^split\.reverse turns an order round, but match = 'random' has none"):
        made.deal([0, 1, 2], 2, 0, FLEET)


def infinite(outputs, targets):
    return math.inf


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
def test_what_a_folder_says_is_json(tmp_path):
    data = ef.from_arrays(TRAIN, test=client(2), classes=3)
    history = ef.simulate(nn.Linear(4, 3), data, FLEET, metrics=(infinite, "auc"), out=tmp_path, **KW)
    assert history.final.own["infinite"] == math.inf
    for file in tmp_path.glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["own"]["infinite"] is None
    assert open_run(tmp_path).final.own["infinite"] == math.inf  # the records have it


def test_numbers_that_json_lacks_are_null():
    content = {"a": [1.0, math.inf, (-math.inf, {"b": math.nan})], "c": "Infinity", "d": None, "e": True, "f": 3}
    found = {"a": [1.0, None, [None, {"b": None}]], "c": "Infinity", "d": None, "e": True, "f": 3}
    assert strict(content) == found


def test_sealed_files_of_earlier_versions_are_read(tmp_path, monkeypatch):
    """They have Infinity in them, which Python reads."""
    file = tmp_path / "result.json"
    with monkeypatch.context() as earlier:
        earlier.setattr("everfed.store.files.strict", lambda content: content)
        write_sealed(file, {"value": math.inf})
    assert "Infinity" in file.read_text()
    assert read_sealed(file) == {"value": math.inf}
    write_atomically(file, file.read_text().replace("Infinity", "1.0"))
    with pytest.raises(Exception, match="does not match its SHA-256"):
        read_sealed(file)
