"""Few bytes on a real connection: small models and small updates of devices without torch, weighed by a proxy."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback
from flower_grid import InProcessGrid, Node, remote_run
from test_device_network import APP, prepared, settings, slim_python, start_device

__all__ = ["slim_python"]  # the fixture

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


class Scales:
    """A proxy that weighs what passes in each direction."""

    def __init__(self, port):
        self.port, self.up, self.down = port, 0, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            near, _ = self.socket.accept()
            far = socket.create_connection(("127.0.0.1", self.port))
            for one, two, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(one, two, way), daemon=True).start()

    def _pass(self, one, two, way):
        try:
            while content := one.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(content))
                two.sendall(content)
        except OSError:
            pass
        finally:
            for end in (one, two):
                end.close()


def in_process(folder, experiment):
    """The same devices without a network: their model."""
    spec = importlib.util.spec_from_file_location("device", folder / "device.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("digits", None)
    nodes = [Node(module.app, {"client": c, "data": str(folder / f"{c}.npz")}) for c in range(2)]
    made = remote_run(experiment, InProcessGrid(nodes), differences=True)
    records = list(made)
    return made.params, [r.participants.tolist() for r in records], made.source.ledger.summary()


def test_small_models_and_updates_give_the_same_model_over_the_network_and_are_in_the_books(slim_python, tmp_path):
    changes = "rounds=5 fleet.clients=2 fleet.cycles=[1] model.hidden=2000 downlink=bf16 compression=qsgd"
    devices = tmp_path / "devices"
    experiment = prepared(devices, changes)
    with Loopback(tmp_path / "fleet", 2) as fleet:
        fleet.start_server()
        for client in range(2):
            fleet.register(client)
        door, scales = fleet.port, Scales(fleet.port)
        fleet.port = scales.socket.getsockname()[1]
        for client in range(2):
            start_device(fleet, client, devices, python=slim_python)
        fleet.port = door
        number = fleet.submit(APP, settings(fleet, tmp_path / "run", changes, differences=True))
        fleet.await_log("node-1", "round 1: answered 'train'")
        fleet.kill("node-1")  # it keeps the model that it holds
        fleet.port = scales.socket.getsockname()[1]
        start_device(fleet, 1, devices, python=slim_python)
        fleet.port = door
        state = fleet.wait(number, 500.0, tmp_path / "run" / "result.json")
        logs = [fleet.log(f"node-{client}", 10**7) for client in range(2)]
        weighed = scales.down, scales.up
    assert state["status"] == "finished:completed"
    assert not any("Traceback" in log for log in logs)
    stored, entries = ef.open_run(tmp_path / "run"), read(tmp_path / "run")
    expected, participants, plain = in_process(devices, replace(experiment))
    if not any(entry.lost or entry.absent for entry in entries):
        assert [r.participants.tolist() for r in stored.rounds] == participants
        for name, value in expected.items():
            assert np.array_equal(stored.params[name].numpy(), value.numpy())
        assert sum(e.bytes_received for e in entries) == pytest.approx(plain["bytes_received"], rel=0.1)
    whole = 4 * sum(value.numel() for value in expected.values())
    sent, received = sum(e.bytes_sent for e in entries), sum(e.bytes_received for e in entries)
    assert sent < 0.5 * 10 * whole
    assert received < 0.3 * 10 * whole
    # What is in the books has passed, and beside it what connections and questions need.
    assert sent * 0.95 < weighed[0] < sent * 1.3 + 1e6
    assert received * 0.95 < weighed[1] < received * 1.3 + 1e6
