"""What is tracked is what was recorded, read back by the trackers' own libraries."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

import everfed as ef
from everfed.errors import InputError, MissingExtraError
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import open_run, stored_rounds
from everfed.store.trackers import tracked
from everfed.studies.sweep import plan_runs, run_all

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


def test_the_runs_of_a_sweep_have_one_mlflow_store(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("one", "two"):
        follow("mlflow", tmp_path / "sweep" / "runs" / name)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/sweep/mlflow.db")
    group = client.get_experiment_by_name("everfed")
    assert {run.info.run_name for run in client.search_runs([group.experiment_id])} == {"one", "two"}


@pytest.mark.long
def test_processes_of_a_sweep_write_one_mlflow_store_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = plan_runs(SMALL, {"method": ["algorithm1", "greedy"]}, [0, 1], tmp_path / "sweep" / "runs")
    stored = run_all(runs, jobs=2, trackers=["mlflow"])
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/sweep/mlflow.db")
    (group,) = [one for one in client.search_experiments() if one.name == "everfed"]
    found = {run.info.run_name: run for run in client.search_runs([group.experiment_id])}
    assert set(found) == {run.name for run in stored}
    for run in stored:
        history = client.get_metric_history(found[run.name].info.run_id, "energy/spent")
        assert [(m.step, m.value) for m in history] == [(r.round, r.energy.spent) for r in run.rounds]
        assert found[run.name].info.status == "FINISHED"
    assert not list((tmp_path / "sweep" / "runs").rglob("mlflow.db"))


def read_wandb(folder):
    """The records of an offline run: blocks of 32 KiB with records of (checksum, length, part of a record, content)."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as at the end of a process: everything is on disk then
    (path,) = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))[-1:]
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_wandb_holds_the_records_and_the_settings_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "sweep" / "runs" / "one"
    run = follow("wandb", folder)
    records = list(read_wandb(folder))
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["round"] for row in rows] == list(range(8))
    assert [row["energy/spent"] for row in rows] == [r.energy.spent for r in run.rounds]
    expected = [r.metrics.accuracy for r in run.rounds if r.metrics]
    assert [row["test/accuracy"] for row in rows if "test/accuracy" in row] == expected
    (begun,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.run_group, begun.display_name) == ("everfed", "sweep", "one")
    assert begun.run_id == (folder / "wandb-run").read_text()
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["client.lr"] == 0.1


def test_wandb_goes_on_with_the_same_run_after_a_resume(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    seen = iter(range(100))
    follow("wandb", tmp_path / "run", stop=lambda: next(seen) >= 4)
    first = (tmp_path / "run" / "wandb-run").read_text()
    follow("wandb", tmp_path / "run")
    assert (tmp_path / "run" / "wandb-run").read_text() == first
    (begun,) = [r.run for r in read_wandb(tmp_path / "run") if r.WhichOneof("record_type") == "run"]
    assert begun.run_id == first


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    libraries = (("torch.utils.tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb"))
    for module, name in libraries:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"everfed\[{name}\]"):
            follow(name, tmp_path / name)


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path):
    experiment = replace(SMALL, rounds=1)
    with pytest.raises(InputError, match="Did you mean 'tensorboard'"):
        next(tracked(iter(()), ["tensorbord"], experiment, tmp_path))
