"""Runs keep the energy they were given: a trace is copied into the folder, and its content is part of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from everfed import EverfedWarning, InputError
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.learning.models import Mlp
from everfed.report.data import page_data
from everfed.report.measures import with_measures
from everfed.report.table import table
from everfed.run import config, toml
from everfed.run.experiment import Experiment
from everfed.store import open_run, stored_rounds
from everfed.studies.comparison import summarize
from everfed.studies.sweep import folder_name, plan_runs, run_all
from older_folders import as_older_version

pytestmark = pytest.mark.filterwarnings("ignore::everfed.EverfedWarning")
PLAIN = {"device": "esp32", "radio": "none", "switched_off": True, "battery_wh": 1.0}


def write(path, watts=0.01):
    rows = [f"{3600 * hour},{watts * (6 <= hour % 24 < 18)}" for hour in range(48)]
    path.write_text("\n".join(["seconds,power_w", *rows]) + "\n")
    return path


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "data").mkdir()
    groups = (
        DeviceGroup(count=2, name="roof", trace=str(write(tmp_path / "data" / "roof.csv")), **PLAIN),
        DeviceGroup(count=2, name="roof", trace=str(write(tmp_path / "data" / "wall.csv", 0.005)), **PLAIN),
    )
    fleet = DeviceFleet(groups, round_s=43_200.0)
    return Experiment(fleet=fleet, model=Mlp(hidden=4), rounds=4, local_steps=1, eval_every=2, device="cpu")


def finish(experiment, folder):
    return list(stored_rounds(experiment, folder))


def seen(folder):
    """All that is read of a run: its fleet, its page and its table."""
    run = open_run(folder)
    page = page_data([run])
    labelled = [("mine", run)]
    table(with_measures(summarize(labelled), labelled), {"mine": "Mine"}, [run])
    harvest = run.experiment.make_fleet().arrivals.harvest(1, 0).tolist()
    return harvest, page["fleets"], run.final.group_accuracy


def test_a_run_can_be_moved_and_read_without_the_original(tmp_path, experiment, monkeypatch):
    finish(experiment, tmp_path / "run")
    before = seen(tmp_path / "run")
    assert set(before[2]) == {"roof", "roof (2)"}
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert seen(tmp_path / "elsewhere") == before
    assert seen(Path("..") / "elsewhere") == before
    # The file of the folder is an experiment like any other.
    again = config.from_dict(config.read(Path("..") / "elsewhere" / "experiment.toml"))
    assert finish(again, tmp_path / "elsewhere") == []
    finish(again, tmp_path / "copy")
    assert seen(tmp_path / "copy")[0] == before[0]


def test_copies_and_their_hashes_are_in_the_folder(tmp_path, experiment):
    finish(experiment, tmp_path / "run")
    originals = {name: (tmp_path / "data" / name).read_bytes() for name in ("roof.csv", "wall.csv")}
    copies = {path.name: path.read_bytes() for path in (tmp_path / "run" / "traces").rglob("*.csv")}
    assert copies == originals
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in originals.items()}
    assert open_run(tmp_path / "run").environment["traces"] == hashes
    stored = open_run(tmp_path / "run").experiment.fleet.groups
    assert [g.trace_sha256 for g in stored] == [hashes["roof.csv"], hashes["wall.csv"]]
    assert str(tmp_path) not in (tmp_path / "run" / "experiment.toml").read_text()
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["starts"][0]["fleet"]
    assert [row["label"] for row in told] == ["roof", "roof (2)"]
    assert told[0]["source"].endswith("repeated from its start")


def test_a_changed_trace_never_gives_the_old_result_back(tmp_path, experiment):
    finish(experiment, tmp_path / "run")
    source = tmp_path / "data" / "roof.csv"
    before = source.stat()
    write(source, 0.02)  # as long as before
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"roof.csv is not the one that the run in .* started with: its SHA-256"):
        finish(experiment, tmp_path / "run")
    write(source)
    assert finish(experiment, tmp_path / "run") == []


def test_nor_does_a_resumed_run_go_on_with_another(tmp_path, experiment):
    rounds = stored_rounds(experiment, tmp_path / "run", checkpoint_s=0.0)
    next(rounds)
    rounds.close()
    write(tmp_path / "data" / "wall.csv", 0.03)
    with pytest.raises(InputError, match=r"wall\.csv is not the one"):
        finish(experiment, tmp_path / "run")
    # The folder's own file goes on with the copy.
    write(tmp_path / "data" / "roof.csv", 0.03)
    own = config.from_dict(config.read(tmp_path / "run" / "experiment.toml"))
    assert [record.round for record in finish(own, tmp_path / "run")][-1] == 3


def test_a_trace_that_cannot_be_read_leaves_no_folder(tmp_path, experiment):
    write(tmp_path / "data" / "roof.csv", -1.0)
    with pytest.raises(InputError, match=r"data/roof\.csv, line 8: power_w is -1.0"):
        finish(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_copy_is_not_trusted(tmp_path, experiment):
    finish(experiment, tmp_path / "run")
    (copy,) = (tmp_path / "run" / "traces").rglob("roof.csv")
    write(copy, 0.02)
    with pytest.raises(InputError, match="has changed"):
        open_run(tmp_path / "run").experiment.make_fleet()


def test_folders_of_a_sweep_are_named_by_content_not_by_place(tmp_path, experiment):
    here = folder_name(experiment)
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    moved = experiment.fleet.with_files(lambda path, sha256: str(tmp_path / "moved" / Path(path).name))
    assert folder_name(replace(experiment, fleet=moved)) == here
    write(tmp_path / "data" / "roof.csv", 0.02)
    assert folder_name(experiment) != here


def test_a_sweep_notices_a_file_that_changes_under_it(tmp_path, experiment):
    raw = config.to_dict(experiment)
    runs = plan_runs(raw, {"method": ["greedy"]}, [0], tmp_path / "sweep")
    write(tmp_path / "data" / "roof.csv", 0.02)
    with pytest.raises(InputError, match="has changed"):
        run_all(runs, jobs=1)
    again = plan_runs(raw, {"method": ["greedy"]}, [0], tmp_path / "sweep")
    assert again[0].folder != runs[0].folder
    (done,) = run_all(again, jobs=1)
    assert done.state == "done"


def test_seeds_of_one_trace_are_one_line_of_a_report(tmp_path, experiment):
    runs = []
    for seed in (0, 1):
        finish(replace(experiment, seed=seed), tmp_path / f"run{seed}")
        runs.append(open_run(tmp_path / f"run{seed}"))
    page = page_data(runs)
    assert [line["seeds"] for line in page["lines"]] == [[0, 1]]
    assert len(page["fleets"]) == 1
    write(tmp_path / "data" / "roof.csv", 0.02)
    finish(replace(experiment, seed=1), tmp_path / "other")
    assert len(page_data([runs[0], open_run(tmp_path / "other")])["lines"]) == 2


def test_paths_in_a_file_are_relative_to_it_and_others_to_the_working_directory(tmp_path, monkeypatch):
    write(tmp_path / "roof.csv")
    text = '[fleet]\nkind = "devices"\n[[fleet.groups]]\ntrace = "roof.csv"\n'
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    (group,) = config.from_dict(config.read(Path("..") / "mine.toml")).fleet.groups
    assert Path(group.trace).samefile(tmp_path / "roof.csv")
    assert len(DeviceFleet((replace(group, **PLAIN),)).build()) == 10
    assert DeviceGroup(trace="roof.csv").trace == str(tmp_path / "cwd" / "roof.csv")
    with pytest.raises(InputError, match=r"there is no trace at .*cwd/roof\.csv"):
        DeviceFleet((DeviceGroup(trace="roof.csv"),)).build()


def test_what_devices_keep_of_a_run_is_tied_to_the_content_too(tmp_path):
    pytest.importorskip("flwr")
    from everfed.flower.client import fingerprint

    write(tmp_path / "roof.csv")
    (tmp_path / "mine.toml").write_text('[fleet]\nkind = "devices"\n[[fleet.groups]]\ntrace = "roof.csv"\n')
    shutil.copytree(tmp_path, tmp_path / "device")
    names = [fingerprint(folder / "mine.toml", {}) for folder in (tmp_path, tmp_path / "device")]
    assert names[0] == names[1]
    write(tmp_path / "roof.csv", 0.02)
    assert fingerprint(tmp_path / "mine.toml", {}) != names[0]


OLD_KEYS = (
    "trace_scale", "column", "time_column", "unit", "time_unit", "trace_utc_h", "extend", "trace_sha256",
)  # fmt: skip


def as_it_was_written(folder, trace):
    """Turn a run folder into one of an older version: panel_wp scales the trace, and there is no clock."""
    as_older_version(folder)
    raw = config.read(folder / "experiment.toml")
    groups = []
    for group in raw["fleet"]["groups"]:
        old = {key: value for key, value in group.items() if key not in OLD_KEYS}
        groups.append({**old, "trace": str(trace), "panel_wp": 10.0, "site": "greensboro"})
    fleet = {key: value for key, value in raw["fleet"].items() if key != "utc_h"} | {"groups": groups}
    plain = config.to_toml(replace(config.from_dict(raw), fleet=DeviceFleet()))
    head = plain[: plain.index("[fleet]")]
    lines = [f"{key} = {toml.written(value)}" for key, value in fleet.items()]
    rest = plain[plain.index("[policy]") :]
    (folder / "experiment.toml").write_text(head + "[fleet]\n" + "\n".join(lines) + "\n\n" + rest)
    shutil.rmtree(folder / "traces")
    entries = json.loads((folder / "environment.json").read_text())
    kept = [{key: value for key, value in entry.items() if key not in ("fleet", "traces")} for entry in entries]
    (folder / "environment.json").write_text(json.dumps(kept))


def test_folders_of_older_versions_open_and_are_reported_on(tmp_path, experiment):
    finish(experiment, tmp_path / "run")
    # Times in a column "time", which were seconds, and a length that is no whole number of days.
    rows = [f"{3600 * hour},{0.01 * (6 <= hour % 24 < 18)}" for hour in range(50)]
    (tmp_path / "old.csv").write_text("\n".join(["time,power_w", *rows]) + "\n")
    as_it_was_written(tmp_path / "run", tmp_path / "old.csv")
    run = open_run(tmp_path / "run")
    assert [g.trace_scale for g in run.experiment.fleet.groups] == [10.0, 10.0]
    with pytest.warns(EverfedWarning, match="recomputed"):
        harvest, _, _ = seen(tmp_path / "run")
    assert harvest[0] > 0.0
    (tmp_path / "run" / "result.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="was started by an older version"):
            finish(run.experiment, tmp_path / "run")
