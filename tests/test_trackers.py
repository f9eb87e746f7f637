"""What is tracked is what was recorded, read back by the trackers' own libraries."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import everfed as ef
from everfed.errors import InputError, MissingExtraError
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import open_run, stored_rounds
from everfed.store.trackers import tracked

SMALL = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=8, eval_every=2, device="cpu", client=ef.SGD(0.1))

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' libraries warn about themselves


def follow(name, folder, stop=lambda: False):
    list(tracked(stored_rounds(SMALL, folder, stop=stop), [name], SMALL, folder))
    return open_run(folder)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_holds_the_records(tmp_path):
    run = follow("tensorboard", tmp_path / "run")
    scalars = read_tensorboard(tmp_path / "run")
    assert scalars["round/participants"] == [(r.round, len(r.participants)) for r in run.rounds]
    expected = [(r.round, pytest.approx(r.metrics.accuracy)) for r in run.rounds if r.metrics]
    assert scalars["test/accuracy"] == expected
    assert scalars["energy/spent"][-1] == (7, pytest.approx(run.energy.spent))


def test_tensorboard_shows_each_round_once_after_a_resume(tmp_path):
    seen = iter(range(100))
    follow("tensorboard", tmp_path / "run", stop=lambda: next(seen) >= 4)
    follow("tensorboard", tmp_path / "run")
    assert [step for step, _ in read_tensorboard(tmp_path / "run")["round/weight"]] == list(range(8))


def test_mlflow_holds_the_records_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = follow("mlflow", tmp_path / "run")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/run/mlflow.db")
    run_id = (tmp_path / "run" / "mlflow-run").read_text()
    history = client.get_metric_history(run_id, "test/accuracy")
    assert [(m.step, m.value) for m in history] == [(r.round, r.metrics.accuracy) for r in run.rounds if r.metrics]
    stored = client.get_run(run_id)
    assert stored.data.params["client.lr"] == "0.1"
    assert stored.info.status == "FINISHED"


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    for module, name in (("torch.utils.tensorboard", "tensorboard"), ("mlflow", "mlflow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"everfed\[{name}\]"):
            follow(name, tmp_path / name)


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path):
    experiment = replace(SMALL, rounds=1)
    with pytest.raises(InputError, match="Did you mean 'tensorboard'"):
        next(tracked(iter(()), ["tensorbord"], experiment, tmp_path))
