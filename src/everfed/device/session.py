"""One node's conversation with a SuperLink: Flower's Fleet API over TLS, spoken from within the device's own process.

The messages and the HTTP client are Flower's. Only the headers of a request are written here: the classes that Flower
has for them load a web server, 20 MB that a device has no use for.
"""

from __future__ import annotations

import base64
import contextlib
import random
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import fab_from_proto, message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore import constant
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.version import package_name, package_version
from flwr.supernode.fleet_http_client import FleetHttpClient

from everfed.errors import InputError

_MOST_OBJECTS = 10_000  # parts of one message
_FORGOTTEN = "the server does not know this node any more"
_BEAT = (0.5, 0.7)  # of the promised interval, between two heartbeats


class SessionError(RuntimeError):
    """The server ended the conversation, or said something that makes no sense; connect again later."""


@dataclass(frozen=True)
class Place:
    """Where a node reports, and as whom. certificates: of the authority that signed the server's; None: the system's.

    max_bytes: of one message; a longer one is not downloaded to its end.
    """

    address: str
    key: Path
    certificates: Path | None = None
    max_bytes: int = 256_000_000

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        try:
            key = load_ssh_private_key(self.key.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(
                f"'{self.key}' is not a private key in OpenSSH's format without a password: {error}."
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"'{self.key}' is not an ECDSA key; make one with: ssh-keygen -t ecdsa -b 384.")
        return key

    def authorities(self) -> bytes | None:
        if self.certificates is None:
            return None
        try:
            content = self.certificates.read_bytes()
            ssl.create_default_context(cadata=content.decode("ascii"))
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise InputError(f"'{self.certificates}' does not hold certificates in PEM format: {error}.") from None
        return content


class _Headers:
    """Signs every request with the node's key, and says which Flower this is."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.key, self.public = key, public_key_to_bytes(key.public_key())
        self.version = {
            constant.FLWR_PACKAGE_NAME_METADATA_KEY: package_name,
            constant.FLWR_PACKAGE_VERSION_METADATA_KEY: package_version,
            constant.FLWR_COMPONENT_NAME_METADATA_KEY: "SuperNode",
        }

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        stamp = now().isoformat()
        signature = sign_message(self.key, stamp.encode("ascii"))
        context.request.headers.update({
            **self.version,
            TIMESTAMP_HEADER: stamp,
            constant.FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(self.public).decode("ascii"),
            constant.FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(signature).decode("ascii"),
        })  # fmt: skip
        return call_next(context)


class Session:
    """From the moment that a node reports for duty until it leaves. Any error ends it, except those of one message."""

    def __init__(self, place: Place, node: int = 0) -> None:
        """node: the number that the server gave this key, if it is known: it then need not wait until the server has
        given up an earlier session, which a power cut may have ended."""
        self.place, self.lost = place, ""  # why the server no longer knows this node
        self._headers = _Headers(place.private_key())
        self._client = self._connection()
        self._over = threading.Event()
        self._settings: dict[int, dict[str, Any]] = {}  # by run
        self.node = Node(node_id=node)

    def __enter__(self) -> Self:
        try:
            if not self.node.node_id or not self._known():
                request = ActivateNodeRequest(
                    public_key=self._headers.public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
                self.node = Node(node_id=self._client.ActivateNode(request).node_id)
        except BaseException:
            self._client.close()
            raise
        self._start_beats()
        return self

    def _known(self) -> bool:
        """Whether the server takes a heartbeat of this node for what it is, which also brings it back."""
        try:
            return bool(self._client.SendNodeHeartbeat(self._heartbeat()).success)
        except (httpx.HTTPStatusError, ValueError):
            return False

    def __exit__(self, *_: object) -> None:
        """Leave, so that the server knows at once; it notices by itself after a minute."""
        self._stop_beats()
        with contextlib.suppress(httpx.HTTPError, ValueError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self._client.close()

    def pause(self) -> None:
        """Be silent from now on, without leaving: of a node that has left, the server takes no reply.

        It thinks this one there for two more intervals of heartbeats, which is time to fetch what was sent.
        """
        self._stop_beats()
        with contextlib.suppress(httpx.HTTPError, ValueError):
            self._client.SendNodeHeartbeat(self._heartbeat())
        self._client.close()
        self._client = self._connection()  # which connects when it is used

    def resume(self) -> None:
        """Be there again, however long that was. Raises SessionError if the server has forgotten the node."""
        if not self._known():
            raise SessionError(_FORGOTTEN)
        self._start_beats()

    def _connection(self) -> FleetHttpClient:
        authorities = self.place.authorities()
        return FleetHttpClient.from_server_address(self.place.address, False, authorities, interceptors=[self._headers])

    def _heartbeat(self) -> SendNodeHeartbeatRequest:
        return SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)

    def _start_beats(self) -> None:
        self._over.clear()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def _stop_beats(self) -> None:
        self._over.set()
        self._beats.join(HEARTBEAT_CALL_TIMEOUT)

    def _beat(self) -> None:
        """Tell the server that the node is there, also while it trains. Failures show in the next exchange."""
        while not self._over.wait(HEARTBEAT_DEFAULT_INTERVAL * random.uniform(*_BEAT)):
            try:
                if not self._client.SendNodeHeartbeat(self._heartbeat()).success:
                    self.lost = _FORGOTTEN
            except httpx.HTTPStatusError as error:
                self.lost = f"the server refuses heartbeats with status {error.response.status_code}"
            except (httpx.HTTPError, ValueError):
                pass

    def receive(self) -> Message | None:
        """The next message with its content, or None. Raises SessionError for one that cannot be read."""
        if self.lost:
            raise SessionError(self.lost)
        found = self._client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        run = found.messages_list[0].metadata.run_id
        try:
            return self._inflated(run, found.message_object_trees[0])
        except httpx.HTTPError:
            raise
        except Exception as error:  # whatever rubbish makes Flower's decoders raise
            raise SessionError(f"a message cannot be read ({type(error).__name__}: {error})") from error

    def _inflated(self, run: int, tree: ObjectTree) -> Message:
        numbers = [part.object_id for part in iterate_object_tree(tree)]
        if len(numbers) > _MOST_OBJECTS:
            raise ValueError(f"it has {len(numbers)} parts, more than {_MOST_OBJECTS}")
        content = pull_objects(
            numbers,
            _counted(make_pull_object_fn_protobuf(self._client.PullObject, self.node, run), self.place.max_bytes),
        )
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self.node, run)(tree.object_id)
        message = inflate_object_from_contents(tree.object_id, content)
        if not isinstance(message, Message):
            raise TypeError(f"it is a {type(message).__name__}")
        message.metadata.__dict__["_message_id"] = tree.object_id  # which the content cannot hold, being its hash
        return message

    def settings(self, run: int) -> dict[str, Any]:
        """A run's configuration: that of its app, with the changes of `flwr run --run-config`."""
        if run not in self._settings:
            found = run_from_proto(self._client.GetRun(GetRunRequest(node=self.node, run_id=run)).run)
            request = GetFabRequest(node=self.node, hash_str=found.fab_hash, run_id=run)
            self._settings[run] = get_fused_config_from_fab(
                fab_from_proto(self._client.GetFab(request).fab).content, found
            )
        return self._settings[run]

    def send(self, reply: Message, seconds: float) -> None:
        """seconds: that the app took."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare = remove_content_from_message(reply) if reply.has_content() else reply
        pushed = self._client.PushMessages(
            PushMessagesRequest(
                node=self.node, messages_list=[message_to_proto(bare)],
                message_object_trees=[get_object_tree(reply)], clientapp_runtime_list=[seconds],
            )
        )  # fmt: skip
        run, wanted = reply.metadata.run_id, set(pushed.objects_to_push)
        push = make_push_object_fn_protobuf(self._client.PushObject, self.node, run, pushed.session_id)
        push_objects(get_all_nested_objects(reply), push, object_ids_to_push=wanted)


def _counted(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """The same, until more than `most` bytes have come."""
    total = 0

    def counted(number: str) -> bytes:
        nonlocal total
        content = pull(number)
        total += len(content)
        if total > most:
            raise ValueError(f"it has more than {most} bytes")
        return content

    return counted
