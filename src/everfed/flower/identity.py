"""Who is who: a node's key stands for one client, and for no other. Keys are made here too.

A node says in its configuration which client it is. The server does not take its word for it: SuperLink
has checked the node's key, and the roster says whose key that is. Without a roster (no node
authentication, as in Flower's simulation) a node is believed, but no two nodes at once for one client.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from everfed.errors import InputError, some

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("flwr.everfed")


class Roster:
    """Which node may answer for which client."""

    def __init__(self, keys: dict[bytes, int] | None = None, folder: Path | None = None) -> None:
        """keys: the client of every public key, as Flower keeps keys; None: nodes are believed.

        folder: where they were read, and are read again when it changes.
        """
        self.keys, self.folder = keys, folder
        self.nodes: dict[int, int] = {}  # the client of each node, as far as known
        self._stamp = _stamp(folder) if folder else None

    @classmethod
    def read(cls, folder: str | Path) -> Roster:
        """A folder of public keys in OpenSSH's format, `0.pub` for client 0 and so on."""
        folder = Path(folder)
        found, wrong = read_keys(folder)
        if wrong:
            raise InputError(wrong[0])
        if not found:
            raise InputError(f"there are no public keys in '{folder}'; put one per client there, 0.pub, 1.pub, ...")
        return cls(found, folder)

    @classmethod
    def watch(cls, folder: Path) -> Roster:
        """As `read`, of a folder that may be empty as yet, or have a key that cannot be used."""
        return cls(read_keys(folder)[0], folder)

    def refresh(self) -> None:
        """Take in keys that were added, replaced or removed; one that cannot be read counts as removed."""
        if self.folder is None or (stamp := _stamp(self.folder)) == self._stamp:
            return
        before = self.keys or {}
        self._stamp, (self.keys, wrong) = stamp, read_keys(self.folder)
        for what in wrong:
            log.warning("%s", what)
        new = sorted(client for key, client in self.keys.items() if key not in before)
        gone = sorted(client for key, client in before.items() if key not in self.keys)
        log.info("the keys have changed: new ones of clients [%s], gone ones of clients [%s]", some(new), some(gone))

    def reachable(self, grid: Grid) -> list[int]:
        """The nodes that are connected and may be asked; those whose key is not in the roster are left alone."""
        self.refresh()
        nodes: list[Any] = list(grid.get_nodes())
        online = [int(node.node_id) for node in nodes]
        if self.keys is None:
            self.nodes = {n: c for n, c in self.nodes.items() if n in online}
            return sorted(online)
        owners = ((int(node.node_id), self.keys.get(bytes(node.public_key))) for node in nodes)
        self.nodes = {node: client for node, client in owners if client is not None}
        return sorted(self.nodes)

    def objection(self, node: int, client: int) -> str | None:
        """Why this node may not answer for this client; None if it may."""
        if self.keys is not None:
            own = self.nodes.get(node)
            if own == client:
                return None
            return f"its key is client {own}'s" if own is not None else "its key is not registered"
        others = [n for n, c in self.nodes.items() if c == client and n != node]
        if others:
            return f"node {some(others)} already answers for that client"
        self.nodes[node] = client
        return None


def read_keys(folder: Path) -> tuple[dict[bytes, int], list[str]]:
    """The client of every good key in a folder, and what is wrong with the others."""
    found: dict[bytes, int] = {}
    wrong: list[str] = []
    for path in sorted(folder.glob("*.pub")):
        try:
            client, key = client_of(path), read_key(path)
        except InputError as error:
            wrong.append(str(error))
            continue
        if key in found:
            wrong.append(f"clients {found[key]} and {client} have the same key; make each one of its own.")
        else:
            found[key] = client
    return found, wrong


def client_of(path: Path) -> int:
    """The client that a key's file is named after."""
    if not (path.stem.isascii() and path.stem.isdecimal()):
        raise InputError(f"the key '{path}' is not named after a client; call it 0.pub, 1.pub, ...")
    return int(path.stem)


def read_key(path: Path) -> bytes:
    """A public key as Flower's server tells it to a ServerApp."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"'{path}' is not a public key in OpenSSH's format: {error}.") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"'{path}' is not a private key in OpenSSH's format without a password: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"'{path}' is not a key on a NIST curve; make one with 'everfed devices key'.")
    return key


def make_key(path: Path) -> Path:
    """A node's key pair in OpenSSH's format, as Flower wants it: `path` and `path`.pub. Returns the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def write_secret(path: Path, content: bytes) -> None:
    """A file that nobody else can read, from its first byte on, and that is never half there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with open(unfinished, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _stamp(folder: Path) -> list[tuple[str, int, int, int]]:
    """Changes whenever a key is added, replaced or removed."""
    found = []
    for path in sorted(folder.glob("*.pub")):
        with contextlib.suppress(FileNotFoundError):  # removed since
            about = path.stat()
            found.append((path.name, about.st_mtime_ns, about.st_size, about.st_ino))
    return found
