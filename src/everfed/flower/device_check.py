"""On a device: is all there that its node needs? One sentence says what is not.

A SuperNode that cannot join tries for ever, or ends with exit code 0 and without a word. So the start script of a
bundle asks here first. Nothing of Flower is imported: this is quick, and works on a device that Flower refuses.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import json
import os
import socket
import ssl
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from everfed.errors import InputError, first_line
from everfed.flower.certificates import days_left, read
from everfed.flower.identity import read_private_key

HELLO, AUTHORITIES = "/v1/everfed/hello", "/v1/everfed/ca.crt"  # what a fleet's door answers beside Flower's calls
AHEAD_S, BEHIND_S = 5.0, 305.0  # how far off Flower lets a device's clock be
_PATIENCE_S = 15.0
_SOON_DAYS = 30.0


@dataclass(frozen=True)
class Device:
    """A bundle's folder, and what its device.toml says."""

    folder: Path
    client: int
    server: str
    state: Path

    @classmethod
    def open(cls, folder: Path) -> Device:
        path = folder / "device.toml"
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls(folder, int(found["client"]), str(found["server"]), Path(found["state-dir"]))
        except FileNotFoundError:
            raise InputError(f"'{folder}' is not a device's folder: it has no device.toml.") from None
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"'{path}' cannot be read: {first_line(error)}.") from None


def check(device: Device, *, update: bool = False) -> list[str]:
    """Raises an InputError that says what keeps the node from joining; returns what is worth knowing otherwise.

    update: take over the authorities that the server tells of, over a connection that the present ones vouch for.
    """
    key = read_private_key(device.folder / "key")
    _check_private(device.folder / "key")
    _check_writable(device.state)
    expired = [c for c in read(device.folder / "ca.crt") if days_left(c) < 0.0]
    now = time.time()
    call = _connect(device, len(expired) > 0)
    with contextlib.closing(call):
        said = _hello(call, key)
        ahead = (now + time.time()) / 2 - float(said["time"])  # a slow link costs at most half its delay
        if why := clock_sentence(ahead):
            raise InputError(why)
        if said["client"] is None:
            raise InputError(
                f"the server does not know this device's key: copy '{device.folder / 'key.pub'}' there and run "
                f"'everfed devices register {device.client} --key key.pub' ('replace' if the client had another)."
            )
        if said["client"] != device.client:
            raise InputError(
                f"this device says that it is client {device.client}, but its key is client {said['client']}'s."
            )
        notes = [f"client {device.client} may join: {device.server} knows its key, and its clock is {ahead:+.1f} s off"]
        if update:
            notes += _update(call, device.folder / "ca.crt")
    left = min(days_left(c) for c in read(device.folder / "ca.crt"))
    if left < _SOON_DAYS:
        notes.append(f"an authority in ca.crt expires in {left:.0f} days; fetch the server's with --update")
    return notes


def clock_sentence(ahead_s: float) -> str | None:
    """What is wrong with a clock that is this far ahead of the server's; None: nothing that Flower would mind."""
    if -BEHIND_S < ahead_s < AHEAD_S:
        return None
    off = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
    return (
        f"the clock of this device is {off} the server's, and Flower allows {AHEAD_S:.0f} s ahead or {BEHIND_S:.0f} s "
        "behind; set it, for example with 'timedatectl set-ntp true'."
    )


def signed(key: ec.EllipticCurvePrivateKey, timestamp: str) -> dict[str, str]:
    """The headers by which a node proves its key, as Flower's do."""
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    encoded = {"flwr-public-key": base64.b64encode(public), "flwr-signature": base64.b64encode(signature)}
    return {"flwr-timestamp": timestamp, **{name: value.decode() for name, value in encoded.items()}}


def split_address(address: str) -> tuple[str, int]:
    """The host and port of 'fleet.example:8000' or '[::1]:8000'."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"'{address}' is not an address; write its name and port, such as fleet.example:8000.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(device: Device, expired: bool) -> http.client.HTTPSConnection:
    """A connection that ca.crt vouches for. Each way to fail has its own remedy."""
    host, port = split_address(device.server)
    context = ssl.create_default_context(cafile=str(device.folder / "ca.crt"))
    call = http.client.HTTPSConnection(host, port, timeout=_PATIENCE_S, context=context)
    try:
        call.connect()
    except socket.gaierror:
        raise InputError(f"the name {host} cannot be resolved; check the device's DNS, or the name.") from None
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        if "not yet valid" in why or "expired" in why:
            here = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
            what = "an authority in ca.crt has expired" if expired else "the server's certificate seems out of date"
            hint = f"{what}, or this device's clock is wrong: it says {here} UTC."
        elif "mismatch" in why.lower() or "not valid for" in why:
            hint = f"{why}; issue one with 'everfed devices certificates renew --name {host}' on the server."
        else:
            hint = f"{why}; ca.crt is not the one of this server, or too old: copy certificates/ca.crt from there."
        raise InputError(f"the server's certificate is not accepted: {hint}") from None
    except ssl.SSLError as error:
        raise InputError(f"{device.server} does not speak TLS: {first_line(error)}.") from None
    except TimeoutError:
        raise InputError(f"{device.server} does not answer within {_PATIENCE_S:g} s; is the network up?") from None
    except OSError as error:
        raise InputError(f"{device.server} cannot be reached: {error.strerror or first_line(error)}.") from None
    return call


def _hello(call: http.client.HTTPSConnection, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    timestamp = datetime.datetime.now(datetime.UTC).isoformat()
    try:
        call.request("GET", HELLO, headers=signed(key, timestamp))
        answer = call.getresponse()
        said: dict[str, Any] = json.loads(answer.read(10_000))
        float(said["time"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        raise InputError(
            f"what answers at {call.host}:{call.port} is not a fleet's server; there, run 'everfed devices serve'."
        ) from None
    return said


def _update(call: http.client.HTTPSConnection, path: Path) -> list[str]:
    call.request("GET", AUTHORITIES)
    new = call.getresponse().read(100_000)
    if new == path.read_bytes():
        return []
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(new)
    count = len(read(unfinished))
    os.replace(unfinished, path)
    return [f"ca.crt was renewed from the server, with {count} authorities" if count > 1 else "ca.crt was renewed"]


def _check_private(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise InputError(f"others can read the key '{path}'; run: chmod 600 '{path}'")


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise InputError(f"the state folder '{folder}' cannot be written: {error.strerror}.") from None
