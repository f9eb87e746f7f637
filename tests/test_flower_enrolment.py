"""Who gets into a fleet: the door, keys that change while a run goes on, certificates, bundles, a device's check."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from everfed.cli import main
from everfed.errors import InputError
from everfed.flower import Roster, certificates, client_app, device_check, exposure
from everfed.flower.bundle import make_bundle
from everfed.flower.device_check import Device
from everfed.flower.identity import make_key, read_key
from everfed.flower.serve import reload_chain
from flower_door import call, listening, make_fleet, proof
from flower_grid import CLIENTS, SMALL, Node, run
from wrong_clock import wrong_clock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def everfed(monkeypatch, capsys, tmp_path):
    """The command, in a folder of its own: (exit code, what it printed on both streams)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["everfed", "devices", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, "".join(capsys.readouterr())

    return call


@pytest.fixture
def fleet(tmp_path):
    return make_fleet(tmp_path / "fleet")


# The door


def test_the_door_knows_nothing_but_what_nodes_call(fleet, tmp_path):
    fleet.enrol(0, make_key(tmp_path / "key"))
    known = proof(tmp_path / "key")
    with listening(fleet):
        for path in (
            "/v1/control/register-node", "/v1/control/start-run", "/v1/control/list-nodes", "/v1/runtime/get-run",
            "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/../control/list-nodes",
            "/v1/fleet/%2e%2e/control/list-nodes", "//v1/control/list-nodes", "/docs", "/openapi.json", "/",
        ):  # fmt: skip
            assert call(fleet, "POST", path, known)[0] == 404, path
            assert call(fleet, "GET", path, known)[0] == 404, path
        assert call(fleet, "GET", "/v1/fleet/pull-messages", known)[0] == 404
        # A node's call goes on to SuperLink, which is not there: Flower tries again on 502.
        assert call(fleet, "POST", "/v1/fleet/pull-messages", known, b"x")[0] == 502
        assert (
            call(fleet, "POST", "/v1/fleet/pull-messages", {**proof(tmp_path / "key"), "content-length": str(2**26)})[0]
            == 413
        )


def test_strangers_and_wrong_clocks_are_told_so(fleet, tmp_path):
    fleet.enrol(0, make_key(tmp_path / "key"))
    make_key(tmp_path / "stranger")
    with listening(fleet):
        status, said = call(fleet, "POST", "/v1/fleet/activate-node", proof(tmp_path / "stranger"))
        assert (status, "not registered" in said) == (400, True)
        assert call(fleet, "POST", "/v1/fleet/pull-messages", proof(tmp_path / "stranger"))[0] == 401
        assert call(fleet, "POST", "/v1/fleet/pull-messages")[0] == 401
        stolen = {**proof(tmp_path / "key"), "flwr-signature": proof(tmp_path / "stranger")["flwr-signature"]}
        assert call(fleet, "POST", "/v1/fleet/pull-messages", stolen)[0] == 401
        status, said = call(fleet, "POST", "/v1/fleet/activate-node", proof(tmp_path / "key", 8.0))
        assert status == 400
        assert "8 s ahead of the server's" in said
        status, said = call(fleet, "POST", "/v1/fleet/activate-node", proof(tmp_path / "key", -400.0))
        assert "400 s behind the server's" in said
        assert call(fleet, "POST", "/v1/fleet/activate-node", proof(tmp_path / "key", 3.0), b"x")[0] == 502


def test_the_door_follows_the_keys(fleet, tmp_path):
    fleet.enrol(0, make_key(tmp_path / "old"))
    with listening(fleet):
        assert call(fleet, "POST", "/v1/fleet/get-run", proof(tmp_path / "old"), b"x")[0] == 502
        fleet.enrol(0, make_key(tmp_path / "new"), replace=True)
        await_(lambda: call(fleet, "POST", "/v1/fleet/get-run", proof(tmp_path / "new"), b"x")[0] == 502)
        assert call(fleet, "POST", "/v1/fleet/get-run", proof(tmp_path / "old"), b"x")[0] == 401
        fleet.expel(0)
        await_(lambda: call(fleet, "POST", "/v1/fleet/get-run", proof(tmp_path / "new"), b"x")[0] == 401)


def await_(condition, timeout_s=30.0):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


# Certificates


def trusts(authorities, fleet):
    """Whether a device with these authorities accepts the server."""
    context = ssl.create_default_context(cadata=authorities)
    connection = http.client.HTTPSConnection(*fleet.address.split(":"), context=context, timeout=30)
    with contextlib.closing(connection):
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            return False
        return True


def test_certificates_change_under_a_listening_server(fleet):
    folder = fleet.certificates
    chain, first = (folder / "server.pem", folder / "server.key"), (folder / "ca.crt").read_text()
    assert (folder / "ca.key").stat().st_mode & 0o077 == 0
    with listening(fleet) as live:
        before = chain[0].read_bytes()
        certificates.issue_server(folder)
        assert chain[0].read_bytes() != before
        assert reload_chain(live, *chain)
        assert trusts(first, fleet)
        certificates.begin(folder)
        both = (folder / "ca.crt").read_text()
        assert reload_chain(live, *chain)
        assert trusts(first, fleet)
        assert trusts(both, fleet)
        certificates.switch(folder)
        assert reload_chain(live, *chain)
        assert not trusts(first, fleet)
        assert trusts(both, fleet)
        certificates.retire(folder)
        only = (folder / "ca.crt").read_text()
        assert len(only) < len(both)
        assert trusts(only, fleet)
        certificates.issue_server(folder)
        assert reload_chain(live, *chain)
        assert trusts(only, fleet)
        good = chain[1].read_bytes()
        chain[1].write_bytes((folder / "ca.key").read_bytes())  # as between the writing of two files
        assert not reload_chain(live, *chain)
        assert trusts(only, fleet)
        chain[1].write_bytes(good)


@pytest.mark.parametrize(
    ("before", "step", "message"),
    [
        ([], certificates.switch, "no new authority"),
        ([certificates.begin], certificates.begin, "begun already"),
        ([certificates.begin], certificates.retire, "'switch' first"),
        ([certificates.begin, certificates.switch], certificates.begin, "not finished"),
    ],
)
def test_steps_out_of_order_are_refused(fleet, before, step, message):
    for earlier in before:
        earlier(fleet.certificates)
    with pytest.raises(InputError, match=message):
        step(fleet.certificates)


# Keys


def test_a_running_app_notices_keys_between_rounds(tmp_path):
    keys = [make_key(tmp_path / str(client)) for client in range(CLIENTS)]
    public = [read_key(key) for key in keys]
    experiment = replace(SMALL, rounds=4, eval_every=4)
    app = client_app(experiment)
    nodes = [Node(app, {"client": c}, public_key=public[c]) for c in range(CLIENTS)]
    newcomer = make_key(tmp_path / "elsewhere" / "new")
    nodes.append(Node(app, {"client": 2}, public_key=read_key(newcomer)))
    changed = []

    def change(reply, number):
        if number == 101 and reply.content["everfed"]["round"] >= 1 and not changed:
            keys[0].unlink()  # removed
            (tmp_path / "2.pub").write_bytes(newcomer.read_bytes())  # replaced
            (tmp_path / "3.pub").write_text("half a ke")
            changed.append(reply.content["everfed"]["round"])
        return reply

    _, _, protocol = run(experiment, nodes, change, roster=Roster.read(tmp_path))
    first = changed[0] + 1
    absent = [sorted(entry.absent) for entry in protocol.ledger.entries]
    assert absent == [[]] * first + [[0, 3]] * (experiment.rounds - first)
    asked = [{m.content["everfed"]["round"] for m in node.received} for node in nodes]
    assert max(asked[0]) == max(asked[2]) == max(asked[3]) == changed[0]
    assert asked[1] == set(range(experiment.rounds))
    assert asked[4] == set(range(first, experiment.rounds))


def test_enrolment_by_command(everfed, tmp_path):
    assert everfed("list")[0] == 2  # no fleet yet
    assert everfed("init", "fleet.example")[1].count("is not an address") == 1
    assert everfed("init", "fleet.example:8000")[0] == 0
    assert "already" in everfed("init", "fleet.example:8000")[1]
    assert "everfed devices bundle 7" in everfed("register", "7")[1]
    assert "everfed devices register 7" in everfed("bundle", "7")[1]
    code, said = everfed("register", "7")
    assert (code, "the server does not run" in said) == (0, True)
    assert "devices replace 7" in everfed("register", "7")[1]
    assert "client 7's already" in everfed("register", "8", "--key", "fleet/keys/7.pub")[1]
    old = read_key(tmp_path / "fleet" / "keys" / "7.pub")
    assert "everfed devices replace 7" in everfed("bundle", "7")[1]
    assert everfed("replace", "7")[0] == 0
    assert read_key(tmp_path / "fleet" / "keys" / "7.pub") != old
    assert "no key to replace" in everfed("replace", "8", "--key", "fleet/bundles/7.pub")[1]
    assert "those with one: 7" in everfed("remove", "8")[1]
    assert everfed("remove", "7")[0] == 0
    assert not list((tmp_path / "fleet" / "keys").glob("*.pub"))
    assert "'everfed devices serve'" in everfed("list")[1]
    assert everfed("certificates", "begin")[1].count("authority") == 2
    assert "--name is for renew" in everfed("certificates", "--name", "x")[1]
    assert "other.example" in everfed("certificates", "renew", "--name", "other.example")[1]


def test_without_flower_the_command_names_the_extra(tmp_path):
    hide = "import sys; sys.modules['flwr'] = None; sys.argv = ['everfed', 'devices', 'list']; "
    words = [sys.executable, "-c", f"{hide}from everfed.cli import main; main()"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "everfed[flower]" in done.stderr


def test_devices_need_no_pytorch(tmp_path):
    hide = "import sys; sys.modules['torch'] = None; sys.argv = ['everfed', 'devices', 'key', '.']; "
    words = [sys.executable, "-c", f"{hide}from everfed.cli import main; main()"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


# A device


@pytest.fixture
def joined(fleet, tmp_path):
    """Client 7's folder as it is on its device, registered."""
    folder = tmp_path / "device"
    archive = make_bundle(fleet, 7, folder=str(folder), config="cycle=20")
    assert archive.stat().st_mode & 0o077 == 0
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    fleet.enrol(7, fleet.bundles / "7.pub")
    return folder


def test_a_bundle_is_all_that_a_device_needs(fleet, joined):
    assert (joined / "key").stat().st_mode & 0o777 == 0o600
    assert (joined / "start.sh").stat().st_mode & 0o100
    start = (joined / "start.sh").read_text()
    assert f"--superlink {fleet.address} " in start
    assert f"'client=7 state-dir=\"{joined}/state\" cycle=20'" in start
    assert f"ExecStart={joined}/start.sh" in (joined / "everfed.service").read_text()
    with listening(fleet):
        (said,) = device_check.check(Device.open(joined))
    assert "client 7 may join" in said


def other_authority(fleet, folder):
    certificates.make_certificates(fleet.path / "other", ["127.0.0.1"])
    (folder / "ca.crt").write_bytes((fleet.path / "other" / "ca.crt").read_bytes())


def server(address):
    def change(fleet, folder):
        text = (folder / "device.toml").read_text().replace(f"127.0.0.1:{fleet.address.split(':')[1]}", address)
        (folder / "device.toml").write_text(text.replace("PORT", fleet.address.split(":")[1]))

    return change


def as_client_8(fleet, folder):
    (folder / "device.toml").write_text((folder / "device.toml").read_text().replace("client = 7", "client = 8"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda fleet, folder: (folder / "key").unlink(), "not a private key"),
        (lambda fleet, folder: (folder / "key").chmod(0o644), "chmod 600"),
        (lambda fleet, folder: (folder / "state").write_text("a file"), "state folder .* cannot be written"),
        (lambda fleet, folder: fleet.expel(7), "does not know this device's key"),
        (as_client_8, "says that it is client 8, but its key is client 7's"),
        (other_authority, "ca.crt is not the one of this server"),
        (server("nobody.invalid:PORT"), "cannot be resolved"),
        (server("127.0.0.1:1"), "cannot be reached"),
        (server("127.0.0.2:PORT"), "certificates renew --name 127.0.0.2|cannot be reached"),
    ],
)
def test_a_device_that_cannot_join_says_why(fleet, joined, break_it, message):
    break_it(fleet, joined)
    with listening(fleet), pytest.raises(InputError, match=message):
        device_check.check(Device.open(joined))


@pytest.mark.parametrize(("off_s", "message"), [(8.0, "8 s ahead of"), (-400.0, "400 s behind")])
def test_a_wrong_clock_is_named(fleet, joined, tmp_path, off_s, message):
    words = [sys.executable, "-m", "everfed", "devices", "check", str(joined)]
    environment = {**os.environ, **wrong_clock(tmp_path / "clock", off_s)}
    with listening(fleet):
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_expired_certificate_may_be_a_wrong_clock(fleet, joined, monkeypatch):
    monkeypatch.setattr(certificates, "_SERVER_DAYS", -0.01)
    certificates.issue_server(fleet.certificates)
    with listening(fleet), pytest.raises(InputError, match="out of date, or this device's clock is wrong: it says 20"):
        device_check.check(Device.open(joined))


def test_a_device_takes_over_new_authorities(fleet, joined):
    certificates.begin(fleet.certificates)
    with listening(fleet):
        assert any("2 authorities" in note for note in device_check.check(Device.open(joined), update=True))
        assert (joined / "ca.crt").read_bytes() == (fleet.certificates / "ca.crt").read_bytes()
        assert len(device_check.check(Device.open(joined), update=True)) == 1


# Is the control interface open?


class Anything(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.skipif(not exposure._hosts(), reason="this machine has no address but its own")
@pytest.mark.parametrize(("host", "is_open"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_an_open_control_interface_is_noticed(host, is_open, caplog):
    with http.server.ThreadingHTTPServer((host, 0), Anything) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        began = time.monotonic()
        found = exposure.warn_if_open(["flwr-serverapp", "--runtime-api-address", f"127.0.0.1:{answering.server_port}"])
        assert time.monotonic() - began < 5.0
        answering.shutdown()
    assert (found is not None) == is_open
    assert exposure.warn_if_open(["pytest"]) is None
