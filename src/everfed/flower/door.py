"""What a fleet's server shows to the network: the calls that nodes make, and nothing else.

Flower 1.41 serves three interfaces on one port: the nodes', the apps', and the one that registers keys and starts
runs, which asks for no credentials. So SuperLink listens on 127.0.0.1 only, and this door on the network: it knows ten
paths, lets in who signs with a key of the fleet, and passes those calls on.

It also says what Flower keeps to itself: a device whose clock is off, or whose key is not registered, is told so when
it connects. (SuperLink answers 401, on which a SuperNode ends with exit code 0 and without a word.)
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import json
import logging
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everfed.flower.certificates import CA
from everfed.flower.device_check import AUTHORITIES, HELLO, clock_sentence
from everfed.flower.door_rules import Proofs, not_its_own
from everfed.flower.identity import Roster

log = logging.getLogger("flwr.everfed")

ACTIVATE, PUSH = "/v1/fleet/activate-node", "/v1/fleet/push-messages"
# All that a SuperNode with a key calls. With node authentication, registering is the control interface's affair.
_PATHS = {ACTIVATE, PUSH} | {
    f"/v1/fleet/{name}"
    for name in (
        "deactivate-node", "send-node-heartbeat", "pull-messages", "get-run", "get-fab", "push-object", "pull-object",
        "confirm-message-received",
    )
}  # fmt: skip
MOST_MIB = 32
_MOST_HEAD = 4 * 2**20  # bytes of a call that pushes a reply, which is read as a whole; its contents come in others
_CALLS = 32  # of one client at once; Flower's nodes make up to four
_PIECE_S = 60.0  # for the next piece of a call to come, or of an answer to be taken
_QUIET_S = 60.0  # between two lines about one client in the log
_REFUSED = 2004  # Flower's number for a node that could not be activated

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _NodeError(Exception):
    """It is the node's fault that a call does not reach its end."""


class Door:
    """An ASGI application. superlink: its address on this machine; trust: the certificate it shows there.

    most_mib: the longest call that is passed on; Flower cuts arrays into parts of 5 MiB, but nothing else.
    """

    def __init__(self, superlink: str, trust: Path, certificates: Path, keys: Path, most_mib: int = MOST_MIB) -> None:
        self.superlink, self.certificates, self.roster = superlink, certificates, Roster.watch(keys)
        self.most_mib = most_mib
        context = ssl.create_default_context(cafile=str(trust))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self.client = httpx.AsyncClient(verify=context, timeout=60.0, limits=limits, trust_env=False)
        self._looked = 0.0
        self._proofs, self._calls = Proofs(), Counter[int]()
        self._said: dict[int | None, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, headers = scope["path"], {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        if (scope["method"], path) == ("GET", AUTHORITIES):
            await _answer(send, 200, (self.certificates / CA).read_bytes(), "application/x-pem-file")
        elif (scope["method"], path) == ("GET", HELLO):
            said = {"time": time.time(), "client": self.client_of(headers)}
            await _answer(send, 200, json.dumps(said).encode())
        elif scope["method"] != "POST" or path not in _PATHS:
            await _answer(send, 404, b'{"detail": "Not Found"}')
        else:
            await self._call(path, headers, receive, send)

    async def _call(self, path: str, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """One of the calls that nodes make."""
        client = self.client_of(headers)
        length = headers.get("content-length", "") if "transfer-encoding" not in headers else ""  # one length, not two
        most = _MOST_HEAD if path == PUSH else self.most_mib * 2**20
        if why := self.objection(client, headers):
            # A SuperNode that is refused with 401 ends without a word, one that cannot be activated says why.
            status = 400 if path == ACTIVATE else 401
            await _answer(send, status, json.dumps({"code": _REFUSED, "detail": why}).encode())
            return
        assert client is not None
        if not length.isdecimal() or int(length) > most:
            option = "" if path == PUSH else " (--most-mib)"
            why = f"its call has {length or 'unknown'} bytes, and at most {most // 2**20} MiB are passed on{option}"
            await self._refuse(send, 413, client, why)
        elif not self._proofs.use(client, base64.b64decode(headers["flwr-signature"])):  # Flower tries again on 503
            await self._refuse(send, 503, client, "this call has the signature of an earlier one")
        elif self._calls[client] >= _CALLS:
            await self._refuse(send, 503, client, f"it has {_CALLS} calls at hand, and that is the most")
        else:
            self._calls[client] += 1
            try:
                await self.pass_on(client, path, headers, receive, send)
            finally:
                self._calls[client] -= 1

    async def _refuse(self, send: Send, status: int, client: int, why: str) -> None:
        self.note(client, why)
        await _answer(send, status, json.dumps({"detail": why}).encode())

    def client_of(self, headers: dict[str, str]) -> int | None:
        """The client whose key signed this call; None for a stranger."""
        if time.monotonic() > self._looked + 0.5:
            self.roster.refresh()
            self._looked = time.monotonic()
        try:
            key = base64.b64decode(headers["flwr-public-key"], validate=True)
            client = (self.roster.keys or {})[key]
            public = serialization.load_pem_public_key(key)
            assert isinstance(public, ec.EllipticCurvePublicKey)
            signature = base64.b64decode(headers["flwr-signature"], validate=True)
            public.verify(signature, headers["flwr-timestamp"].encode(), ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, AssertionError, binascii.Error, InvalidSignature):
            return None
        return client

    def objection(self, client: int | None, headers: dict[str, str]) -> str | None:
        """Why this call must not go on, for the device's log and the server's; None if it may. client: who signed."""
        if client is None:
            why = "the key of this device is not registered; on the server, run 'everfed devices register'."
        else:
            try:
                signed = datetime.datetime.fromisoformat(headers["flwr-timestamp"]).timestamp()
            except (ValueError, OverflowError):
                return "the time of this call is not one."
            why = clock_sentence(signed - time.time()) or ""
        if why:
            self.note(client, why)
        return why or None

    def note(self, client: int | None, why: str) -> None:
        """For the server's log; who is refused every second fills no disk."""
        if time.monotonic() > self._said.get(client, -_QUIET_S) + _QUIET_S:
            self._said[client] = time.monotonic()
            log.warning("%s is refused: %s", "a stranger" if client is None else f"client {client}", why)

    async def pass_on(
        self, client: int, path: str, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:  # fmt: skip
        """A call to SuperLink and its answer, piece by piece: neither is ever held as a whole."""
        keep = {k: v for k, v in headers.items() if k in ("content-type", "accept") or k.startswith("flwr-")}
        length, started = headers["content-length"], False
        try:
            body = _body(receive, int(length))
            if path == PUSH:
                body = await _own_reply(body)
            call = self.client.build_request("POST", f"https://{self.superlink}{path}", content=body, headers=keep)
            call.headers["content-length"] = length
            call.headers.pop("transfer-encoding", None)
            answer = await self.client.send(call, stream=True)
            try:
                kept = [(k, v) for k, v in answer.headers.raw if k.lower() not in (b"connection", b"date", b"server")]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
                started = True
                async for piece in answer.aiter_raw():
                    async with asyncio.timeout(_PIECE_S):  # of somebody who does not take it
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                await answer.aclose()
        except _NodeError as error:
            await self._refuse(send, 400, client, str(error))
        except TimeoutError:
            self.note(client, f"it took nothing of an answer for {_PIECE_S:.0f} s")
            raise
        except (httpx.HTTPError, httpx.StreamError) as error:
            if started:
                raise  # the connection breaks, which the node notices
            log.warning("SuperLink does not answer: %s", str(error) or type(error).__name__)
            await _answer(send, 502, b'{"detail": "SuperLink does not answer"}')


async def _body(receive: Receive, length: int) -> AsyncIterator[bytes]:
    left = length
    while left > 0:
        try:
            async with asyncio.timeout(_PIECE_S):
                event = await receive()
        except TimeoutError:
            raise _NodeError(f"nothing more of its call came for {_PIECE_S:.0f} s") from None
        if event["type"] == "http.disconnect":
            raise _NodeError("it hung up in the middle of a call")
        piece = event.get("body", b"")
        left -= len(piece)
        if left < 0 or (left and not event.get("more_body")):
            raise _NodeError(f"its call does not have the {length} bytes that it says")
        yield piece


async def _own_reply(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, if it is a reply of the node that sends it."""
    content = b"".join([piece async for piece in body])
    if why := not_its_own(content):
        raise _NodeError(why)

    async def again() -> AsyncIterator[bytes]:
        yield content

    return again()


async def _answer(send: Send, status: int, body: bytes, kind: str = "application/json") -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
