"""A fleet's server and its nodes as real processes: strangers, exchanged keys and certificates, wrong clocks."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from cryptography import x509

from everfed.flower import exposure
from everfed.flower.bundle import make_bundle
from everfed.flower.certificates import make_certificates
from everfed.flower.identity import make_key
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback, free_port
from wrong_clock import wrong_clock

pytestmark = pytest.mark.long

APP = Path(__file__).resolve().parent.parent / "examples" / "flower-fleet"
JOINED = "SuperNode ID"  # which a node says once it is let in
STAYS, REPLACED, REMOVED, LATER = range(4)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A server, and the nodes of all clients but the last."""
    with Loopback(tmp_path_factory.mktemp("enrolment"), 4) as fleet:
        fleet.start_server()
        for client in (STAYS, REPLACED, REMOVED):
            fleet.start_node(client)
        for client in (STAYS, REPLACED, REMOVED):
            await_(lambda client=client: JOINED in fleet.log(f"node-{client}", 10**6), fleet.log(f"node-{client}"))
        yield fleet


def await_(condition, what="", timeout_s=240.0):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.3)


def devices(fleet, *words):
    """`everfed devices`, on the server."""
    command = [sys.executable, "-m", "everfed", "devices", *words, "--fleet", str(fleet.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def flwr(home, *words):
    """One `flwr` command of somebody with this configuration: (did it work, what it said)."""
    program = str(Path(sys.executable).parent / "flwr")
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    done = subprocess.run([program, *words], capture_output=True, text=True, env=environment, timeout=240)
    return done.returncode == 0, done.stdout + done.stderr


def connection(home, address, authority):
    home.mkdir()
    text = f'[superlink.fleet]\naddress = "{address}"\nroot-certificates = "{authority}"\n'
    (home / "config.toml").write_text(text)
    return home


def test_a_stranger_with_the_authority_gets_nowhere(fleet, tmp_path):
    home = connection(tmp_path / "home", fleet.fleet.address, fleet.fleet.certificates / "ca.crt")
    key = make_key(tmp_path / "own")
    before = fleet.fleet.states()
    own = connection(tmp_path / "inside", fleet.fleet.control, fleet.fleet.trust)
    listed = flwr(own, "supernode", "list", "fleet")[1]  # on the server itself, the same command works
    assert "online" in listed
    for words in (
        ("supernode", "list", "fleet"),
        ("supernode", "register", str(key), "fleet"),
        ("run", str(APP), "fleet"),
        ("supernode", "unregister", "1", "fleet"),
    ):
        worked, said = flwr(home, *words)
        assert not worked, said
        assert "Not Found" in said or "404" in said, said
    assert fleet.fleet.states() == before
    assert '"runs": []' in flwr(own, "list", "fleet", "--format", "json")[1]
    assert exposure.open_addresses(int(fleet.fleet.control.split(":")[1])) == []


def test_keys_are_exchanged_and_removed_while_the_server_runs(fleet, tmp_path):
    server = fleet.processes["superlink"].pid
    make_key(tmp_path / "new")
    devices(fleet, "replace", str(REPLACED), "--key", str(tmp_path / "new.pub"))
    devices(fleet, "remove", str(REMOVED))
    for client in (REPLACED, REMOVED):
        await_(lambda client=client: fleet.processes[f"node-{client}"].poll() is not None, f"node {client} goes on")
    old = fleet.start_node(REPLACED, name="old")
    new = fleet.start_node(REPLACED, key=tmp_path / "new", name="new")
    await_(lambda: JOINED in fleet.log(new, 10**6), "the new key is not let in")
    await_(lambda: fleet.processes[old].poll() is not None, fleet.log(old))
    assert fleet.processes[old].returncode != 0
    assert "the key of this device is not registered" in fleet.log(old)
    assert fleet.fleet.states() == {STAYS: "online", REPLACED: "online", LATER: "registered"}
    assert fleet.processes["superlink"].pid == server
    assert fleet.processes["superlink"].poll() is None
    assert fleet.processes[f"node-{STAYS}"].poll() is None


def test_a_client_that_is_removed_is_not_asked_in_later_rounds(fleet):
    folder = fleet.folder / "run"  # with the two clients that are online after the last test
    changes = "method=fedavg rounds=2 fleet.clients=4 local_steps=1"
    limits = {"wait-s": 2.0, "query-s": 90.0, "train-s": 90.0}
    number = fleet.submit(APP, {"folder": str(folder), "keys": str(fleet.keys), "set": changes, **limits})
    await_(lambda: "Sending: query" in fleet.log("new", 10**6), "the client was not asked", 200.0)
    devices(fleet, "remove", str(REPLACED))
    state = fleet.wait(number, 300.0, folder / "result.json")
    assert state["status"] == "finished:completed"
    entries = read(folder)
    assert entries[0].reachable == 2
    assert REPLACED in entries[-1].absent
    assert STAYS not in entries[-1].absent
    assert entries[-1].reachable == 1
    assert "open_control_api" not in json.loads((folder / "deployment.json").read_text())


def shown(fleet):
    """The number of the certificate that the server shows."""
    found = ssl.get_server_certificate(("127.0.0.1", fleet.port))
    return x509.load_pem_x509_certificate(found.encode()).serial_number


def test_a_wrong_clock_is_said_by_flowers_own_node_and_by_the_start_script(fleet, tmp_path, monkeypatch):
    for name, value in wrong_clock(tmp_path / "clock", 8.0).items():
        monkeypatch.setenv(name, value)
    name = fleet.start_node(LATER, name="ahead")
    await_(lambda: fleet.processes[name].poll() is not None, fleet.log(name))
    assert fleet.processes[name].returncode != 0
    assert "8 s ahead of the server's" in " ".join(fleet.log(name).split())
    done = subprocess.run([str(unpacked(fleet, LATER) / "start.sh")], capture_output=True, text=True, env=path())
    assert done.returncode != 0
    assert "8 s ahead of the server's" in done.stderr


def unpacked(fleet, client):
    """A device's folder, with a bundle in it and the key that Loopback made."""
    folder = fleet.folder / f"device-{client}"
    with tarfile.open(make_bundle(fleet.fleet, client, with_key=False, folder=str(folder))) as archive:
        archive.extractall(folder, filter="data")
    (folder / "key").write_bytes(fleet.key(client).read_bytes())
    (folder / "key").chmod(0o600)
    return folder


def path():
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_a_bundle_joins_and_certificates_are_exchanged_meanwhile(fleet):
    first = shown(fleet)
    devices(fleet, "certificates", "renew")
    await_(lambda: shown(fleet) != first)
    devices(fleet, "certificates", "begin")
    folder = unpacked(fleet, LATER)
    assert (folder / "ca.crt").read_text().count("BEGIN") == 2
    second = shown(fleet)
    devices(fleet, "certificates", "switch")
    await_(lambda: shown(fleet) != second)
    devices(fleet, "certificates", "retire")
    home = f"{folder.name}/flwr"  # by which Loopback finds what belongs to the device, and ends it
    with open(folder / "log", "wb") as log:
        command = [str(folder / "start.sh"), "--port", str(free_port())]
        fleet.processes[home] = subprocess.Popen(command, stdout=log, stderr=log, env=path(), start_new_session=True)
    await_(lambda: JOINED in (folder / "log").read_text(), (folder / "log").read_text())
    assert (folder / "ca.crt").read_bytes() == (fleet.fleet.certificates / "ca.crt").read_bytes()  # the new one alone
    assert fleet.fleet.states()[LATER] == "online"


@pytest.mark.skipif(not exposure._hosts(), reason="this machine has no address but its own")
def test_a_superlink_that_is_open_to_others_is_noticed(tmp_path):
    make_certificates(tmp_path, ["127.0.0.1"])
    port = free_port()
    program = str(Path(sys.executable).parent / "flower-superlink")
    options = ["--host", "0.0.0.0", "--port", str(port), "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    options += ["--ssl-ca-certfile", "ca.crt", "--enable-supernode-auth"]
    environment = {
        **path(),
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen([program, *options], cwd=tmp_path, env=environment, stdout=log, stderr=log) as superlink,
    ):
        try:
            await_(lambda: listens(port), "SuperLink does not start")
            said = exposure.warn_if_open(["flwr-serverapp", "--runtime-api-address", f"127.0.0.1:{port}"])
        finally:
            superlink.terminate()
    assert said is not None
    assert "open to other machines" in said


def listens(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
