"""Small devices on a real connection: no torch, a node in one process, kills, sleep until the slot, and a gateway."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.flower.client import load_experiment
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback, free_port
from everfed.methods import plan

ROOT = Path(__file__).parents[1]
APP = ROOT / "examples" / "flower-fleet"
DEADLINE_S = 150.0  # generous: a busy machine must not fail a test

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

DEVICE = """
import digits
from everfed.device.app import device_app
from everfed.energy.fleet import Fleet
from everfed.flower.energy import Measured, Simulated
from everfed.scheduling.policies import UniformWindow

TERMS = dict(policy=UniformWindow(), local_steps={steps}, batch_size=10, lr=0.1)
app = device_app(digits.train, digits.load, energy=Simulated(Fleet.from_cycles({cycles})), **TERMS)


def app_for(board):
    return device_app(board.train, energy=Measured(board, cycle={cycles}[board.client]), **TERMS)
"""


@pytest.fixture(scope="module")
def slim_python(tmp_path_factory):
    """An environment with `everfed-device` alone, from this checkout."""
    folder = tmp_path_factory.mktemp("slim") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        str(ROOT / "packages" / "device"),
    ]
    done = subprocess.run(install, capture_output=True, encoding="utf-8", cwd=folder)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    return str(python)


def prepared(folder, changes):
    """The experiment, with a folder of what its devices run and have: an app, and a file of samples per client."""
    experiment = load_experiment(APP / "fleet_app" / "experiment.toml", {"set": changes})
    fleet = experiment.make_fleet()
    data = experiment.make_data(fleet)
    folder.mkdir()
    for client in range(len(fleet)):
        own = data.samples_of(client)
        x, y = np.asarray(data.x[own], np.float32), np.asarray(data.y[own])
        np.savez(folder / f"{client}.npz", x=x, y=y)
        np.savetxt(folder / f"{client}.txt", np.column_stack([x.reshape(len(y), -1), y]))
    (folder / "digits.py").write_text((ROOT / "examples" / "device" / "digits.py").read_text())
    text = DEVICE.format(cycles=fleet.cycles().tolist(), steps=experiment.local_steps)
    (folder / "device.py").write_text(text)
    return experiment


def start_device(fleet, client, folder, *words, **how):
    data = f'data="{(folder / f"{client}.npz").as_posix()}"'
    return fleet.start_device(client, "device:app", "--node-config", data, *words, folder=folder, **how)


def assert_the_simulators(folder, experiment, atol=1e-5):
    stored, simulated = ef.open_run(folder), ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in stored.rounds] == [r.participants.tolist() for r in expected]
    assert [r.scales.tolist() for r in stored.rounds] == [r.scales.tolist() for r in expected]
    for name, value in simulated.params.items():
        np.testing.assert_allclose(stored.params[name].numpy(), value.numpy(), atol=atol)


def settings(fleet, folder, changes, **more):
    return {"folder": str(folder), "keys": str(fleet.keys), "set": changes, "query-s": DEADLINE_S,
            "train-s": DEADLINE_S, "wait-s": 120.0, **more}  # fmt: skip


def test_a_slim_environment_has_no_torch_and_stands_beside_the_whole_package(slim_python, tmp_path):
    code = (
        "import importlib.util, everfed.flower, everfed.device.runner, everfed.device.app\n"
        "from everfed.flower import EnergyMod, Measured, PowerSupply, Simulated, client_app\n"
        "print(*(name for name in ('torch', 'pyarrow', 'sklearn', 'matplotlib') if importlib.util.find_spec(name)))\n"
        "print(everfed.__version__, everfed.__file__)"
    )
    command = [slim_python, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, cwd=tmp_path, env={})
    heavy, where = done.stdout.splitlines()
    assert heavy == ""
    assert where.startswith(ef.__version__)
    assert "everfed_device" in where
    # Where the whole package is installed as well, that one is found: site-packages come before what a .pth adds.
    site = Path(where.split(" ", 1)[1]).parents[2]
    (site / "everfed").mkdir()
    (site / "everfed" / "__init__.py").write_text("")
    try:
        found = subprocess.run(
            [slim_python, "-c", "import everfed; print(everfed.__file__)"],
            capture_output=True, encoding="utf-8", check=True, cwd=tmp_path, env={},
        )  # fmt: skip
        assert Path(found.stdout.strip()) == site / "everfed" / "__init__.py"
    finally:
        shutil.rmtree(site / "everfed")


def test_slim_devices_and_a_supernode_train_one_model_through_kills(slim_python, tmp_path):
    changes = "rounds=6 fleet.clients=3 fleet.cycles=[1,2]"
    devices = tmp_path / "devices"
    experiment = prepared(devices, changes)
    with Loopback(tmp_path / "fleet", 3) as fleet:
        fleet.start_server()
        for client in range(3):
            fleet.register(client)
        for client in (0, 1):
            start_device(fleet, client, devices, python=slim_python)
        fleet.start_node(2)  # Flower's own, with torch
        config = settings(fleet, tmp_path / "run", changes)
        fleet.submit(APP, config)
        fleet.await_log("node-0", "round 1: answered 'train'")
        fleet.kill("superlink")
        fleet.start_server()
        number = fleet.submit(APP, config)
        fleet.await_log("node-0", "round 2: answered 'train'")
        # A clean end: the node leaves, so that the server takes it back at once.
        fleet.processes["node-0"].send_signal(signal.SIGTERM)
        assert fleet.processes["node-0"].wait(DEADLINE_S) == 0
        start_device(fleet, 0, devices, python=slim_python)
        state = fleet.wait(number, 400.0, tmp_path / "run" / "result.json")
        used = fleet.log("node-0", 10**7)
        memory = [sum(p.memory_info().rss for p in fleet.members(f"node-{client}")) for client in (0, 1)]
    assert 0 < max(memory) < 120e6  # after training, in its one process; a SuperNode takes more before it is asked
    assert state["status"] == "finished:completed"
    entries = read(tmp_path / "run")
    assert not any(entry.refused or entry.turned_away for entry in entries)
    if not any(entry.lost or entry.absent for entry in entries):  # a node that was away for a round is no error
        assert_the_simulators(tmp_path / "run", experiment)
    assert {c for entry in entries for c in entry.done} == {0, 1, 2}
    assert "Traceback" not in used


def test_sleepers_give_the_simulators_model_through_power_cuts_of_device_and_server(slim_python, tmp_path):
    changes = "rounds=8 fleet.clients=2 fleet.cycles=[4]"
    devices = tmp_path / "devices"
    experiment = prepared(devices, changes)
    joules = ("--j-per-question", "30", "--j-per-poll", "0.5")
    with Loopback(tmp_path / "fleet", 2) as fleet:
        fleet.start_server()
        for client in range(2):
            fleet.register(client)
        start_device(fleet, 0, devices, *joules, python=slim_python)
        start_device(fleet, 1, devices, *joules, "--check-in-s", "8", python=slim_python)
        config = settings(fleet, tmp_path / "run", changes, **{"round-s": 20.0})
        fleet.submit(APP, config)
        fleet.await_log("node-0", "asleep for")
        fleet.kill("node-0")
        start_device(fleet, 0, devices, *joules, python=slim_python)
        fleet.kill("superlink")
        fleet.start_server()
        number = fleet.submit(APP, config)
        state = fleet.wait(number, 500.0, tmp_path / "run" / "result.json")
        logs = [fleet.log(f"node-{client}", 10**7) for client in range(2)]
    assert state["status"] == "finished:completed"
    entries = read(tmp_path / "run")
    steps = plan(experiment.make_fleet(), experiment.policy, experiment.rounds)
    for entry, step in zip(entries, steps, strict=True):
        there = [c for c in step.clients.tolist() if c not in entry.absent and c not in entry.lost]
        assert sorted(entry.done) == there
    if not any(entry.lost or entry.absent for entry in entries):  # a busy machine may have been late
        assert_the_simulators(tmp_path / "run", experiment)
    for log in logs:
        assert log.count("answered 'train'") >= 2  # one more, if the server was killed in its round
        assert "Traceback" not in log
    assert "asleep for 8 s" in logs[1]  # and again, having looked whether there is another run
    summary = json.loads((tmp_path / "run" / "deployment.json").read_text())
    assert summary["asking_j"] >= 30.0 * 2


def test_a_gateway_speaks_for_boards_without_numpy(tmp_path):
    changes = "rounds=3 fleet.clients=2 fleet.cycles=[1] model=logistic local_steps=3"
    devices = tmp_path / "devices"
    experiment = prepared(devices, changes)
    port = free_port()
    with Loopback(tmp_path / "fleet", 2) as fleet:
        fleet.start_server()
        for client in range(2):
            fleet.register(client)
        words = ["--superlink", f"127.0.0.1:{fleet.port}", "--root-certificates", f"{fleet.certificates}/ca.crt"]
        words += [word for client in range(2) for word in ("--key", f"{client}={fleet.key(client)}")]
        words += ["--state-dir", str(tmp_path / "state"), "--listen", f"127.0.0.1:{port}", "device:app_for"]
        fleet._start("gateway", [sys.executable, "-m", "everfed.device", "gateway", *words], cwd=devices)
        fleet._await_port("gateway", port)
        for client in range(2):
            board = [str(ROOT / "examples" / "device" / "board.py"), f"127.0.0.1:{port}", str(client)]
            fleet._start(f"board-{client}", [sys.executable, *board, str(devices / f"{client}.txt")])
        number = fleet.submit(APP, settings(fleet, tmp_path / "run", changes))
        state = fleet.wait(number, 300.0, tmp_path / "run" / "result.json")
        log = fleet.log("gateway", 10**7)
    assert state["status"] == "finished:completed"
    assert "board 0 is connected" in log
    assert_the_simulators(tmp_path / "run", experiment)
