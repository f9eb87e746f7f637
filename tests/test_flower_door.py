"""The door under attack: proofs used twice, replies in another's name, callers that linger, large calls, TLS."""

from __future__ import annotations

import base64
import contextlib
import ssl
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from everfed.device.session import Place, Session
from everfed.flower import certificates, door, serve
from everfed.flower.door_rules import Lingerers, Proofs, not_its_own
from everfed.flower.identity import make_key
from flower_door import call, connected, listening, make_fleet, proof, served, superlink

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973  # of P-384


@pytest.fixture
def fleet(tmp_path):
    made = make_fleet(tmp_path / "fleet")
    for client in (0, 1):
        made.enrol(client, make_key(tmp_path / f"{client}"))
    return made


# Proofs


def test_a_proof_is_good_for_one_call(fleet, tmp_path, caplog):
    with served(fleet), superlink(fleet) as came:
        used = proof(tmp_path / "0")
        assert call(fleet, "POST", PULL, used, b"first")[0] == 200
        for path in (PULL, "/v1/fleet/deactivate-node", "/v1/fleet/activate-node"):
            status, said = call(fleet, "POST", path, used, b"again")
            assert (status, "signature of an earlier one" in said) == (503, True)
        # A signature (r, s) has a twin (r, -s) that anybody can make of it.
        r, s = decode_dss_signature(base64.b64decode(used["flwr-signature"]))
        twin = {**used, "flwr-signature": base64.b64encode(encode_dss_signature(r, ORDER - s)).decode()}
        assert call(fleet, "POST", PULL, twin, b"twin")[0] == 503
        # Nor does it hold for another time, or with another's key.
        assert call(fleet, "POST", PULL, {**used, "flwr-timestamp": proof(tmp_path / "0")["flwr-timestamp"]})[0] == 401
        other = {**used, "flwr-public-key": proof(tmp_path / "1")["flwr-public-key"]}
        assert call(fleet, "POST", PULL, other, b"other")[0] == 401
        assert call(fleet, "POST", PULL, proof(tmp_path / "0"), b"second")[0] == 200
        assert came == [(PULL, b"first"), (PULL, b"second")]
    assert "client 0 is refused: this call has the signature of an earlier one" in caplog.text


def test_proofs_are_forgotten_when_their_time_is_over():
    now = [0.0]
    proofs = Proofs(lambda: now[0])
    marks = [encode_dss_signature(number, 7) for number in range(1, 6)]
    for second, mark in enumerate(marks):
        now[0] = 100.0 * second
        assert proofs.use(0, mark)
        assert proofs.use(1, mark)
        assert not proofs.use(0, mark)
    assert len(proofs._used) == len(proofs._order) == 8  # those of the last 310 s, of two clients
    now[0] = 1e4
    assert proofs.use(0, marks[0])
    assert len(proofs._used) == 1


@pytest.mark.parametrize("stamp", ["", "now", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-01-01"])
def test_a_time_that_is_none_is_refused_though_it_is_signed(fleet, tmp_path, stamp):
    from everfed.flower.device_check import signed
    from everfed.flower.identity import read_private_key

    with served(fleet):
        assert call(fleet, "POST", PULL, signed(read_private_key(tmp_path / "0"), stamp))[0] == 401


# Replies


def pushed(node=7, messages=1, trees=1, **about):
    said = {
        "run_id": 3,
        "src_node_id": 7,
        "dst_node_id": 1,
        "reply_to_message_id": "m",
        "message_type": "train",
    } | about
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[Message(metadata=Metadata(**said))] * messages,
        message_object_trees=[ObjectTree(object_id="o")] * trees,
    ).SerializeToString()  # fmt: skip


FORGED = {
    "of another node": (pushed(src_node_id=8), "a reply of node 8, and is node 7"),
    "of the server to a node": (pushed(src_node_id=1, dst_node_id=8, reply_to_message_id=""), "no reply"),
    "of itself to a node": (pushed(dst_node_id=8), "no reply to the server"),
    "to nothing": (pushed(reply_to_message_id=""), "no reply"),
    "two": (pushed(messages=2), "2 replies"),
    "none": (pushed(messages=0), "0 replies"),
    "without a tree": (pushed(trees=0), "in one call"),
    "rubbish": (b"\xff\xff\xff\xff", "cannot be read"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_reply_in_anothers_name_reaches_nobody(fleet, tmp_path, how, caplog):
    body, words = FORGED[how]
    with served(fleet), superlink(fleet) as came:
        status, said = call(fleet, "POST", PUSH, proof(tmp_path / "1"), body)
        assert (status, words in said) == (400, True)
        assert call(fleet, "POST", PUSH, proof(tmp_path / "1"), pushed())[0] == 200  # its own
        assert came == [(PUSH, pushed())]
    assert "client 1 is refused" in caplog.text
    assert words in caplog.text


def test_a_tree_without_end_cannot_be_read():
    tag = bytes([ObjectTree.DESCRIPTOR.fields_by_name["children"].number << 3 | 2])
    outer = bytes([PushMessagesRequest.DESCRIPTOR.fields_by_name["message_object_trees"].number << 3 | 2])
    tree = b""
    for _ in range(5000):
        tree = tag + _varint(len(tree)) + tree
    assert "cannot be read" in (not_its_own(pushed(trees=0) + outer + _varint(len(tree)) + tree) or "")


def _varint(number):
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


# Slow and large calls


def begun(fleet, key, path=PULL, length=100, body=b"0123456789"):
    """A call of which a part has been sent."""
    head = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}"]
    head += [f"{name}: {value}" for name, value in proof(key).items()]
    connection = connected(fleet)
    connection.sendall(("\r\n".join(head) + "\r\n\r\n").encode() + body)
    return connection


@pytest.mark.parametrize("path", [PULL, PUSH])
def test_a_call_that_stops_in_the_middle_is_ended_and_named(fleet, tmp_path, monkeypatch, caplog, path):
    monkeypatch.setattr(door, "_PIECE_S", 0.3)
    with served(fleet), superlink(fleet) as came, contextlib.closing(begun(fleet, tmp_path / "0", path)) as stuck:
        answer = stuck.recv(4096)
        assert b"400" in answer.split(b"\r\n")[0]
        assert call(fleet, "POST", PULL, proof(tmp_path / "1"), b"x")[0] == 200
        assert [body for _, body in came if body == b"x"] == [b"x"]
    assert "client 0 is refused: nothing more of its call came" in caplog.text
    assert "SuperLink does not answer" not in caplog.text


def test_one_client_has_so_many_calls_at_once_and_the_others_theirs(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(door, "_CALLS", 3)
    with served(fleet), superlink(fleet), contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(contextlib.closing(begun(fleet, tmp_path / "0")))
        status = 0
        for _ in range(100):  # until the door has read the three
            status, said = call(fleet, "POST", PULL, proof(tmp_path / "0"), b"x")
            if status == 503:
                break
        assert (status, "calls at hand" in said) == (503, True)
        assert call(fleet, "POST", PULL, proof(tmp_path / "1"), b"x")[0] == 200
        stack.close()
        for _ in range(100):
            if call(fleet, "POST", PULL, proof(tmp_path / "0"), b"x")[0] == 200:
                return
    pytest.fail("calls that were given up still count")


def test_large_calls_are_not_taken_in(fleet, tmp_path):
    with served(fleet), superlink(fleet) as came:
        for path, length in ((PUSH, 2**23), (PULL, 2**26), (PULL, 10**18)):
            status, said = call(fleet, "POST", path, {**proof(tmp_path / "0"), "content-length": str(length)})
            assert (status, "MiB are passed on" in said) == (413, True)
        chunked = {**proof(tmp_path / "0"), "transfer-encoding": "chunked"}
        assert call(fleet, "POST", PULL, chunked, b"5\r\nhello\r\n0\r\n\r\n")[0] == 413
        both = {**proof(tmp_path / "0"), "transfer-encoding": "chunked", "content-length": "5"}
        assert call(fleet, "POST", PULL, both, b"f\r\nhello and more!\r\n0\r\n\r\n")[0] == 413
        with contextlib.closing(connected(fleet)) as wide:
            with contextlib.suppress(OSError):
                wide.sendall(b"GET /everfed/hello HTTP/1.1\r\n" + b"x: " + b"y" * 2**20)
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert b" 400 " in wide.recv(4096).split(b"\r\n")[0]
        assert call(fleet, "POST", PULL, proof(tmp_path / "0"), b"x")[0] == 200
        assert came == [(PULL, b"x")]


# Those who linger


def test_who_says_nothing_or_half_a_word_is_put_out(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_LINGER_S", 1.0)
    monkeypatch.setattr(serve, "_LOOK_S", 0.1)
    with served(fleet), superlink(fleet), contextlib.ExitStack() as stack:
        silent, trickling = (stack.enter_context(contextlib.closing(connected(fleet))) for _ in range(2))
        trickling.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        working = stack.enter_context(contextlib.closing(begun(fleet, tmp_path / "0", length=20)))
        for connection in (silent, trickling):
            with contextlib.suppress(ssl.SSLError, ConnectionError):  # it was cut off, which TLS may call an error
                assert connection.recv(100) == b""
        working.sendall(b"0123456789")  # a slow call is none that lingers
        assert b" 200 " in working.recv(4096)


class Connection:
    def __init__(self, cycle, ended):
        self.cycle, self.transport = cycle, SimpleNamespace(abort=lambda: ended.append(self))


def test_of_too_many_idle_connections_the_oldest_end_and_none_that_has_a_call():
    now, ended = [0.0], []
    lingerers = Lingerers(60.0, 3, lambda: now[0])
    at_hand, done = SimpleNamespace(response_complete=False), SimpleNamespace(response_complete=True)
    busy = [Connection(at_hand, ended) for _ in range(5)]
    idle = []
    for _ in range(3):
        idle.append(Connection(done, ended))
        now[0] += 1.0
        assert lingerers.end([*busy, *idle]) == 0
    idle.append(Connection(None, ended))
    assert lingerers.end([*busy, *idle]) == 1
    assert ended == idle[:1]
    # A call in between makes a connection new again; one that has none for a minute ends.
    idle[1].cycle = SimpleNamespace(response_complete=True)
    now[0] = 63.5
    assert lingerers.end([*busy, *idle[1:]]) == 2
    assert ended == [idle[0], idle[2], idle[3]]
    now[0] = 1000.0
    assert lingerers.end([*busy, idle[1]]) == 1
    assert ended[-1] is idle[1]


# TLS


def test_the_door_speaks_modern_tls_and_nothing_else(fleet):
    with listening(fleet) as live:
        assert live.minimum_version >= ssl.TLSVersion.TLSv1_2
        names = [cipher["name"] for cipher in live.get_ciphers()]
        assert names
        assert all("GCM" in name or "CHACHA20" in name for name in names)
        old = ssl.create_default_context(cafile=str(fleet.certificates / "ca.crt"))
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_ciphers("ECDHE-ECDSA-AES256-SHA:ECDHE-RSA-AES256-SHA")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(fleet, old)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{fleet.address}/everfed/hello", timeout=10.0)
        good = ssl.create_default_context(cafile=str(fleet.certificates / "ca.crt"))
        good.maximum_version = ssl.TLSVersion.TLSv1_2
        connected(fleet, good).close()


def test_a_device_says_nothing_to_another_server(fleet, tmp_path):
    """With another authority's certificate, or for another name, it does not get to see one call."""
    stranger = tmp_path / "stranger"
    certificates.make_certificates(stranger, ["127.0.0.1"])
    wrong_name = tmp_path / "name"
    certificates.make_certificates(wrong_name, ["fleet.example"])
    cases = {"authority": (stranger, fleet.certificates / "ca.crt"), "name": (wrong_name, wrong_name / "ca.crt")}
    for folder, trusted in cases.values():
        for name in ("server.pem", "server.key"):
            (fleet.trust.parent / name).write_bytes((folder / name).read_bytes())
        with superlink(fleet) as came:
            session = Session(Place(fleet.control, tmp_path / "0", trusted))
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"), session:
                pass
            assert came == []
