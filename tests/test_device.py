"""Small devices without a network: what they import, how they sleep, a trainer in NumPy, and a board's protocol."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage, ObjectTree, PullObjectResponse

import everfed as ef
from everfed.device import runner
from everfed.device.__main__ import main
from everfed.device.app import Work, device_app
from everfed.device.gateway import Board, BoardError, serve
from everfed.device.session import Place
from everfed.energy.battery import Books
from everfed.errors import InputError
from everfed.flower import FromFile, Measured, Simulated, client_app, remote_run
from everfed.flower.certificates import make_certificates
from everfed.flower.energy import MeterError
from everfed.flower.identity import make_key
from everfed.flower.node_state import Memory
from everfed.flower.sleep import MOST_ROUNDS, Sleepers, spare_s
from everfed.flower.wire import ARRAYS, RECORD, Answer, Ask
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Greedy, UniformWindow
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, Node, fleet_of, run

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "device"
SHORT_ROUNDS = replace(QUICK, round_s=0.01)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def example(name):
    spec = importlib.util.spec_from_file_location(f"device_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What a device loads


@pytest.fixture(scope="module")
def loaded():
    """The modules that a process has after it imported all that a node with a trainer in NumPy uses."""
    code = (
        "import sys\n"
        "from everfed.device import __main__, app, gateway, runner, session\n"
        "from everfed.flower import EnergyMod, FromCommand, FromFile, Measured, PowerSupply, Simulated, client_app\n"
        "from everfed.scheduling.table import POLICIES\n"
        "from everfed.energy.fleet import Fleet\n"
        "from everfed.flower import node_state, own_work, calls\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    return set(done.stdout.split())


def test_a_node_loads_neither_torch_nor_what_only_servers_need(loaded):
    assert {"numpy", "flwr", "everfed.device.runner", "everfed.flower.client"} <= loaded
    heavy = {"torch", "pyarrow", "sklearn", "matplotlib", "scipy", "pandas", "psutil", "PIL", "fastapi", "sqlalchemy"}
    assert not heavy & loaded


def test_the_slim_distribution_has_what_a_node_loads(loaded):
    project = tomllib.loads((ROOT / "packages" / "device" / "pyproject.toml").read_text(encoding="utf-8"))
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in taken.items():
        assert (ROOT / "packages" / "device" / source).exists()
        assert target in ("everfed-device.pth", source.replace("../../src/", "everfed_device/"))
    rooms = {Path(source).stem for source in taken}
    used = {name.split(".")[1] for name in loaded if name.startswith("everfed.")}
    assert used <= rooms


# Sleep until the slot


@pytest.mark.parametrize("method", ["algorithm1", "greedy", "wait-for-all", "fedavg", "lattice", "self-weighted"])
def test_a_fleet_that_sleeps_until_its_slots_gives_the_simulators_model(method):
    experiment = SMALL.with_method(method)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    made, records, protocol = run(experiment, nodes, limits=SHORT_ROUNDS)
    simulated = ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    assert [r.scales.tolist() for r in records] == [r.scales.tolist() for r in expected]
    awake, _, _ = run(experiment)
    for name, value in awake.params.items():
        assert np.array_equal(made.params[name], value)  # to the last bit, as if all had been asked
        np.testing.assert_allclose(made.params[name].numpy(), simulated.params[name].numpy(), atol=1e-6)
    # All are asked in the last round, so that the books are whole; and nobody who sleeps counts as absent.
    assert records[-1].energy.to_dict() == pytest.approx(expected[-1].energy.to_dict())
    assert all(not entry.absent and entry.silent == 0 for entry in protocol.ledger.entries)
    assert protocol.ledger.summary()["missed"] == 0


def test_who_has_no_slot_is_not_asked():
    experiment = replace(SMALL, fleet=CycleFleet(clients=CLIENTS, cycles=(8,)), rounds=16)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    run(experiment, nodes, limits=SHORT_ROUNDS)
    queries = [
        [int(m.metadata.group_id) for m in node.received if "query" in m.metadata.message_type] for node in nodes
    ]
    trained = [
        [int(m.metadata.group_id) for m in node.received if m.metadata.message_type == "train"] for node in nodes
    ]
    for asked, slots in zip(queries, trained, strict=True):
        assert len(slots) == 2
        # At the start, in each slot, after each one to know that its update is saved, and in the last round.
        assert set(asked) == {0, 15, *slots, *(slot + 1 for slot in slots if slot + 1 < 16)}


def test_a_server_that_goes_on_lets_sleepers_sleep_and_one_that_lost_its_memory_asks_all():
    experiment = replace(SMALL, fleet=CycleFleet(clients=CLIENTS, cycles=(8,)), rounds=16)
    grid = InProcessGrid(fleet_of(client_app(experiment), CLIENTS))
    first = remote_run(experiment, grid, limits=SHORT_ROUNDS)
    steps = iter(first)
    next(steps)
    kept = first.source.state_dict()
    sleepers = [c for c in range(CLIENTS) if first.source.round_server.sleepers.asleep(c, 1)]
    assert sleepers
    again = remote_run(experiment, grid, limits=replace(QUICK, round_s=0.5)).source.round_server
    again.load_state_dict({**kept, "protocol.next_at": kept["protocol.next_at"] * 0 + time.time() + 0.3})
    began = time.monotonic()
    again.await_round(grid, 1)
    assert time.monotonic() - began > 0.2  # not before the devices expect it
    assert [c for c in range(CLIENTS) if again.sleepers.asleep(c, 1)] == sleepers
    nodes = grid.get_node_ids()
    assert len(again.sleepers.awake(nodes, 1, dict(zip(nodes, range(CLIENTS), strict=True)))) == CLIENTS - len(sleepers)
    fresh = remote_run(experiment, grid, limits=SHORT_ROUNDS).source.round_server
    assert fresh.sleepers.awake(nodes, 1, {}) == nodes


def test_older_peers_ask_and_are_asked_in_every_round():
    def without_next(reply, number):
        record = reply.content[RECORD]
        for key in ("next", "asking-j"):
            record.pop(key, None)
        return reply

    nodes = fleet_of(client_app(SMALL), CLIENTS)
    run(SMALL, nodes, without_next, limits=SHORT_ROUNDS)
    for node in nodes:
        asked = [m for m in node.received if "query" in m.metadata.message_type]
        assert len(asked) == SMALL.rounds
    question = Ask(3).to_record()  # an older server's, without a clock
    assert spare_s(question, Answer(0, 3, False, 1.0, 0, Books(), 9).to_record()) == 0.0


ASKED = {"round": 10, "round-s": 60.0, "next-s": 20.0}


@pytest.mark.parametrize(
    ("ask", "answer", "seconds"),
    [
        (ASKED, {"join": False, "next": 11}, 20.0),
        (ASKED, {"join": False, "next": 13}, 140.0),
        (ASKED, {"join": True, "next": 13}, 0.0),
        (ASKED, {"join": False, "next": 10}, 0.0),
        (ASKED, {"join": False, "next": 10**9}, 20.0 + (MOST_ROUNDS - 1) * 60.0),
        ({**ASKED, "round-s": 0.0}, {"join": False, "next": 13}, 0.0),
        ({**ASKED, "round-s": float("nan")}, {"join": False, "next": 13}, 0.0),
        ({**ASKED, "next-s": float("inf")}, {"join": False, "next": 13}, 120.0),
        ({**ASKED, "round": "ten"}, {"join": False, "next": 13}, 0.0),
        ({}, {}, 0.0),
        (None, 3, 0.0),
    ],
)
def test_how_long_a_device_may_be_away(ask, answer, seconds):
    assert spare_s(ask, answer) == seconds


def test_a_meter_with_windows_names_its_next_slot_and_one_without_the_next_round(tmp_path):
    (tmp_path / "level").write_text("5")
    measured = Measured(FromFile(str(tmp_path / "level"), cost=1.0), cycle=10)
    node = Node(None, {})
    memory = Memory(node)
    slots = [r for r in range(40) if measured.choose(UniformWindow(), 3, Ask(r), memory).join]
    assert len(slots) == 4
    for round in range(slots[2]):
        said = measured.choose(UniformWindow(), 3, Ask(round), Memory(node))
        assert said.next == next(slot for slot in slots if slot > round)
    assert measured.choose(Greedy(), 3, Ask(7), Memory(node)).next == 8


def test_the_energy_of_being_asked_is_in_the_books():
    nodes = fleet_of(client_app(SMALL), CLIENTS, **{"asking-j": 2.5})
    _, _, protocol = run(SMALL, nodes)
    assert protocol.ledger.summary()["asking_j"] == 2.5 * CLIENTS


@pytest.mark.parametrize(
    ("key", "value"), [("asking-j", float("nan")), ("asking-j", -1.0), ("asking-j", 1e300), ("next", 0.5)]
)
def test_a_client_that_lies_about_sleep_and_questions_is_turned_away(key, value):
    def change(reply, number):
        if number == 100 and reply.has_content():
            reply.content[RECORD][key] = value
        return reply

    _, _, protocol = run(SMALL, change=change, limits=SHORT_ROUNDS)
    assert protocol.ledger.summary()["turned_away"] > 0
    assert all(0 not in entry.done for entry in protocol.ledger.entries)


@pytest.mark.parametrize("said", [-(2**63), 2**63 - 1])
def test_a_client_that_names_an_absurd_round_is_asked_after_a_while(said):
    sleepers = Sleepers(2, 60.0)
    sleepers.hear(100, Answer(1, 5, False, 1.0, 0, Books(), said), 10**6)
    assert sleepers.until.tolist() == [0, 5 + MOST_ROUNDS if said > 0 else 0]
    sleepers.hear(100, Answer(1, 5, True, 1.0, 0, Books(), said), 10**6)
    assert not sleepers.asleep(1, 6)


# Servers that fail


class Rubbish(http.server.BaseHTTPRequestHandler):
    """Answers each call in turn with one of the bad replies, or drops it."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.rsplit("/", 1)[-1]
        self.server.calls.append(name)
        kind = self.server.kind
        if kind == "drops":
            self.connection.close()
            return
        content = b"\xff" * 50
        if kind == "message" and name == "activate-node":
            content = ActivateNodeResponse(node_id=5).SerializeToString()
        elif kind == "message" and name == "pull-messages":
            tree = ObjectTree(object_id="a" * 64)
            content = PullMessagesResponse(
                messages_list=[ProtoMessage()], message_object_trees=[tree]
            ).SerializeToString()
        elif kind == "message" and name == "pull-object":
            found = PullObjectResponse(object_found=True, object_available=True, object_content=b"rubbish")
            content = found.SerializeToString()
        self.send_response(500 if kind == "status" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words): ...


@pytest.mark.parametrize("kind", ["bytes", "status", "drops", "message"])
def test_a_node_outlives_a_server_that_sends_rubbish(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_BACK_OFF_S", (0.01, 0.05))
    make_certificates(tmp_path, ["127.0.0.1"])
    make_key(tmp_path / "key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rubbish)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.calls, server.kind = [], kind
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = Place(f"127.0.0.1:{server.server_port}", tmp_path / "key", tmp_path / "ca.crt")
    node = runner.Runner(place, lambda message, context: None, {"client": 0, "state-dir": str(tmp_path / "state")})
    thread = threading.Thread(target=node.run)
    thread.start()
    until = time.monotonic() + 60.0
    while server.calls.count("activate-node") < 4 and time.monotonic() < until:
        time.sleep(0.02)
    alive = thread.is_alive()
    node.stop.set()
    thread.join(60.0)
    server.shutdown()
    server.server_close()
    assert alive
    assert not thread.is_alive()
    assert server.calls.count("activate-node") >= 4
    assert ("pull-object" in server.calls) == (kind == "message")
    counted = json.loads((tmp_path / "state" / "traffic.json").read_text())
    assert counted["polls"] == server.calls.count("pull-messages")


@pytest.mark.parametrize(
    ("key", "certificates", "words"), [("ca.crt", "ca.crt", "not a private key"), ("key", "key", "PEM")]
)
def test_files_that_cannot_serve_are_named(key, certificates, words, tmp_path, capsys):
    make_certificates(tmp_path, ["127.0.0.1"])
    make_key(tmp_path / "key")
    options = ["--superlink", "127.0.0.1:1", "--client", "0", "--state-dir", str(tmp_path / "state")]
    files = ["--key", str(tmp_path / key), "--root-certificates", str(tmp_path / certificates)]
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(["run", *options, *files, "json:loads"]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert words in capsys.readouterr().err


# A trainer in NumPy


def arrays_of(experiment, client):
    data = experiment.make_data(experiment.make_fleet())
    own = data.samples_of(client)
    return np.asarray(data.x[own], np.float32).reshape(len(own), -1), np.asarray(data.y[own], np.int64)


def test_the_example_in_numpy_trains_as_torch_does():
    digits = example("digits")
    experiment = replace(SMALL, client=ef.SGD(0.05))
    app = device_app(
        digits.train, lambda config: arrays_of(experiment, config["partition-id"]), policy=experiment.policy,
        energy=Simulated(experiment.make_fleet()), local_steps=experiment.local_steps,
        batch_size=experiment.batch_size, lr=0.05,
    )  # fmt: skip
    by_torch, expected, _ = run(experiment)
    by_numpy, records, protocol = run(experiment, fleet_of(app, CLIENTS), limits=SHORT_ROUNDS)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    assert protocol.ledger.summary()["lost"] == protocol.ledger.summary()["refused"] == 0
    for name, value in by_torch.params.items():
        np.testing.assert_allclose(by_numpy.params[name].numpy(), value.numpy(), atol=2e-6)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (({"b": np.zeros(2)}, 0.0), "returned the parameters"),
        (({"a": np.zeros(3)}, 0.0), "of shape"),
        (({"a": np.zeros(2)}, float("nan")), "finite"),
    ],
)
def test_what_a_trainer_returns_is_checked(returned, words):
    settings = {"local_steps": 1, "batch_size": 1, "lr": 0.1}
    fleet = ef.Fleet.from_cycles([1])
    app = device_app(lambda *_: returned, policy=Greedy(), energy=Simulated(fleet), **settings)
    InProcessGrid([])
    model = ArrayRecord({"a": Array(np.zeros(2, np.float32))})
    message = Message(RecordDict({RECORD: Ask(0).to_record(), ARRAYS: model}), 1, "train")
    reply = Node(app, {"client": 0}).handle(message, 1)
    assert words in reply.error.reason


# Microcontrollers


@pytest.fixture
def line():
    """A gateway's server, the board that it expects, and a way to be that board."""
    board = Board(7, train_s=5.0)
    server = serve("127.0.0.1:0", {7: board})
    connections = []

    def connect(hello=b"HELLO 7\n"):
        connection = socket.create_connection(server.server_address[:2], timeout=20.0)
        connections.append(connection)
        connection.sendall(hello)
        return connection

    yield board, connect
    for connection in connections:
        connection.close()
    server.shutdown()
    server.server_close()


def until_connected(board):
    until = time.monotonic() + 30.0
    while board._stream is None and time.monotonic() < until:
        time.sleep(0.01)


def test_a_board_trains_as_the_numpy_trainer_would(line):
    board, connect = line
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)).astype(np.float32), rng.integers(0, 10, 30)
    samples = [[*map(float, row), int(label)] for row, label in zip(x, y, strict=True)]
    mcu, connection = example("board"), connect()

    def live():  # until the gateway hangs up, or has nothing to say for long
        with contextlib.suppress(OSError), connection.makefile("rwb") as stream:
            while heard := stream.readline():
                stream.write(mcu.answer(heard, stream, 7, samples))
                stream.flush()

    threading.Thread(target=live, daemon=True).start()
    until_connected(board)
    assert board.rounds() == 1.0
    work = Work(client=7, round=3, local_steps=4, batch_size=5, lr=0.1, seed=11)
    start = {"1.weight": rng.normal(size=(10, 6)).astype(np.float32), "1.bias": np.zeros(10, np.float32)}
    made, loss = board.train(start, None, work)
    weight, bias, losses = start["1.weight"].astype(np.float64), start["1.bias"].astype(np.float64), []
    for batch in work.minibatches(len(y)):
        scores = x[batch] @ weight.T + bias
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(5), y[batch]]).mean())
        p[np.arange(5), y[batch]] -= 1.0
        weight -= 0.1 * p.T @ x[batch] / 5
        bias -= 0.1 * p.sum(0) / 5
    np.testing.assert_allclose(made["1.weight"], weight, atol=1e-6)
    np.testing.assert_allclose(made["1.bias"], bias, atol=1e-6)
    assert loss == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize(
    "said",
    [b"ENERGY much\n", b"ENERGY -1\n", b"ENERGY inf\n", b"HELLO 7\n", b"\n", b"x" * 300 + b"\n", b"", b"\xff\xfe\n"],
)
def test_a_board_that_says_nonsense_has_no_energy(line, said):
    board, connect = line
    connection = connect()
    until_connected(board)
    connection.sendall(said)
    connection.shutdown(socket.SHUT_WR)
    with pytest.raises(MeterError):
        board.rounds()


def test_a_damaged_update_a_refusal_and_an_absent_board_are_errors(line):
    board, connect = line
    work = Work(7, 0, 1, 1, 0.1, 0)
    model = {"a": np.zeros(2, np.float32)}
    with pytest.raises(BoardError, match="not connected"):
        board.train(model, None, work)
    for said, words in [
        (b"DONE 0.5 2\n" + bytes(8) + b"\x01\x02\x03\x04", "damaged"),
        (b"DONE 0.5 3\n" + bytes(16), "were expected"),
        (b"DONE nan 2\n" + bytes(12), "were expected"),
        (b"DONE 0.5 2\n" + bytes(3), "middle of an array"),
        (b"FAIL battery low\n", "battery low"),
    ]:
        connection = connect()
        until_connected(board)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(BoardError, match=words):
            board.train(model, None, work)
        board.detach(board._stream)


def test_a_board_of_another_client_is_turned_away(line):
    board, connect = line
    for hello in (b"HELLO 8\n", b"HELLO seven\n", b"GET / HTTP/1.1\r\n"):
        assert connect(hello).recv(1) == b""
    assert board._stream is None


def test_an_address_says_where():
    with pytest.raises(InputError, match="host:port"):
        serve("everywhere", {})
