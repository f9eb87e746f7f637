"""Every system can run it: nothing that only Unix has, one writer a folder, and names that never change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import everfed as ef
from everfed import presets
from everfed.data.fetch import cache_folder
from everfed.machine import cores, free_memory
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import StoreError, open_run, stored_rounds
from everfed.store.folder import RunFolder
from everfed.store.lock import is_running
from everfed.studies.sweep import folder_name

SMALL = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=8, batch_size=4, eval_every=4, device="cpu", client=ef.SGD(0.1))

# What other packages do on Unix is their affair, so they come first; after that this is a Windows without Triton.
ELSEWHERE = """
import contextlib, importlib, os, signal, sys
for name in "filelock psutil torch pyarrow sklearn.datasets scipy.stats matplotlib.pyplot ray flwr.app".split():
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, name in (
    (os, "sched_getaffinity"), (os, "uname"), (os, "fork"), (os, "posix_fallocate"), (os, "getuid"),
    (signal, "SIGKILL"), (signal, "SIGHUP"), (psutil := importlib.import_module("psutil").Process, "cpu_affinity"),
):
    if hasattr(module, name):
        delattr(module, name)
"""


def python(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def printed(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def test_all_is_imported_and_runs_are_stored_resumed_and_listed_without_what_only_unix_has(tmp_path):
    script = """
sys.modules["triton"] = None
from pathlib import Path
from everfed.cli import main
from everfed.run import config
from everfed.store import open_run, stored_rounds
root = Path(sys.argv[1])
experiment = config.from_dict(config.read(root / "small.toml"))
rounds = stored_rounds(experiment, root / "there" / "run")
for _ in range(5):
    next(rounds)
assert open_run(root / "there" / "run").state == "running"
rounds.close()
assert open_run(root / "there" / "run").state == "stopped"
for _ in stored_rounds(experiment, root / "there" / "run"):
    pass
sys.argv = ["everfed", "runs", str(root / "there")]
try:
    main()
except SystemExit as end:
    assert not end.code
print("modules:")
del sys.modules["triton"]
import pkgutil
import everfed
for found in pkgutil.walk_packages(everfed.__path__, "everfed.", onerror=lambda name: None):
    if found.name == "everfed.__main__":
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:  # an extra that is not installed is no matter of the system
        if (error.name or "everfed").split(".")[0] not in ("flwr", "ray", "triton", "cryptography"):
            if type(error).__name__ != "MissingExtraError":
                raise
    else:
        print(found.name)
"""
    (tmp_path / "small.toml").write_text(config.to_file(SMALL), encoding="utf-8")
    listed, modules = printed(python(ELSEWHERE + script, str(tmp_path))).split("modules:\n")
    assert len(modules.split()) > 100
    assert {"everfed.store.folder", "everfed.studies.sweep", "everfed.cli.app"} <= set(modules.split())
    assert "run" in listed
    assert "done" in listed
    for _ in stored_rounds(SMALL, tmp_path / "here"):
        pass
    here, there = open_run(tmp_path / "here"), open_run(tmp_path / "there" / "run")
    assert [r.to_dict() for r in there.rounds] == [r.to_dict() for r in here.rounds]


def test_what_a_terminal_cannot_show_is_replaced(tmp_path):
    for _ in stored_rounds(SMALL, tmp_path / "läuft"):
        pass
    command = "from everfed.cli import main; main()"
    out = printed(python(command, "runs", str(tmp_path), COLUMNS="300", PYTHONIOENCODING="ascii"))
    assert "l?uft" in out


def test_cores_and_memory_are_those_of_this_machine():
    assert 1 <= cores() <= (os.cpu_count() or 1)
    assert 0 < free_memory() <= psutil.virtual_memory().total


HOLD = """
import sys, time
from pathlib import Path
from everfed.run import config
from everfed.store.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.hold(config.from_dict(config.read(Path(sys.argv[2]))))
print("held", flush=True)
time.sleep(600)
"""


def test_a_folder_that_another_process_holds_is_refused_by_its_name_until_that_is_killed(tmp_path):
    folder = tmp_path / "run"
    (tmp_path / "small.toml").write_text(config.to_file(SMALL), encoding="utf-8")
    process = python(HOLD, str(folder), str(tmp_path / "small.toml"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_running(folder)
        with pytest.raises(StoreError, match=rf"is in use by process {process.pid} on \S+; wait for it"):
            RunFolder(folder).hold(SMALL)
        assert is_running(folder)  # neither the reader nor the one that was refused took anything from it
    finally:
        process.kill()
        process.communicate()
    assert not is_running(folder)
    mine = RunFolder(folder)
    mine.hold(SMALL)
    assert is_running(folder)
    mine.release()
    assert not is_running(folder)


def test_a_lock_that_an_earlier_version_left_is_taken_over(tmp_path):
    (tmp_path / "lock").write_text("process 1 on a-machine-with-a-long-name", encoding="utf-8")
    assert not is_running(tmp_path)
    folder = RunFolder(tmp_path)
    folder.hold(SMALL)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()} on "):
        RunFolder(tmp_path).hold(SMALL)
    folder.release()


def test_readers_see_no_run_in_each_other_and_stop_nobody_from_starting(tmp_path):
    (tmp_path / "lock").touch()
    said, started = [], threading.Event()

    def ask():
        while not started.is_set():
            said.append(is_running(tmp_path))
            time.sleep(0.01)

    readers = [threading.Thread(target=ask) for _ in range(6)]
    for reader in readers:
        reader.start()
    time.sleep(1.0)
    seen = list(said)
    folder = RunFolder(tmp_path)
    folder.hold(SMALL)
    started.set()
    for reader in readers:
        reader.join()
    folder.release()
    assert len(seen) > 50
    assert not any(seen)


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("cifar10-by-energy", "algorithm1-seed=0-35909931"),
        ("digits", "algorithm1-seed=0-7dd8f78b"),
        ("digits-dirichlet", "algorithm1-seed=0-2f4455de"),
        ("digits-iid", "algorithm1-seed=0-f90c9a58"),
        ("digits-quick", "algorithm1-seed=0-35c50e1a"),
        ("paper-cifar10", "algorithm1-seed=0-a7111595"),
        ("solar-fleet", "algorithm1-seed=0-83cc1c3e"),
    ],
)
def test_folders_keep_the_names_they_have_always_had(preset, name):
    assert folder_name(replace(config.from_dict(presets.content(preset)), seed=0)) == name


@pytest.mark.parametrize(
    "value", [float("inf"), float("-inf"), 1e300, 1.0, 1e-7, -3, True, 'ä"\\\x00\x1f\x7f\u2028\n', []]
)
def test_what_is_written_as_toml_is_read_back(value):
    back = config.parse(config.raw_to_toml({"a": value, "b": {"c": [value, {"d": value}]}}))
    assert back == {"a": value, "b": {"c": [value, {"d": value}]}}
    assert type(back["a"]) is type(value)


def test_downloads_stay_where_they_were_and_go_to_the_systems_cache_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("EVERFED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name, appauthor: Path("system") / name)
    assert cache_folder() == Path("system") / "everfed"
    (tmp_path / "everfed").mkdir()
    assert cache_folder() == tmp_path / "everfed"
    monkeypatch.setenv("EVERFED_DATA", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_a_fleets_processes_are_found_paused_and_killed_by_the_machine_they_belong_to(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")
    from everfed.flower.testing import Loopback

    fleet = Loopback(tmp_path, 1)
    script = "import subprocess, sys, time; print(1, flush=True); subprocess.run([sys.executable, '-c', sys.argv[1]])"
    process = python(script, "import time; time.sleep(600)", FLWR_HOME=str(tmp_path.resolve() / "node-0"))
    fleet.processes["node-0"] = process  # type: ignore[assignment]

    def stopped() -> list[bool]:
        return [p.status() == psutil.STATUS_STOPPED for p in fleet.members("node-0")]

    try:
        await_that(lambda: {p.pid for p in fleet.members("node-0")} > {process.pid})
        fleet.pause("node-0")
        await_that(lambda: stopped() == [True, True])
        fleet.resume("node-0")
        await_that(lambda: stopped() == [False, False])
        assert fleet.members("node-1") == []
    finally:
        fleet.kill("node-0")
    await_that(lambda: fleet.members("node-0") == [])
    process.communicate()


def await_that(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
