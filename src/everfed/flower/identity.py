"""Who is who: a node's key stands for one client, and for no other. Keys and certificates are made here too.

A node says in its configuration which client it is. The server does not take its word for it: SuperLink
has checked the node's key, and the roster says whose key that is. Without a roster (no node
authentication, as in Flower's simulation) a node is believed, but no two nodes at once for one client.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from flwr.serverapp import Grid

from everfed.errors import InputError, some

_DAYS = 825  # that a certificate is good for


class Roster:
    """Which node may answer for which client."""

    def __init__(self, keys: dict[bytes, int] | None = None) -> None:
        """keys: the client of every public key, as Flower keeps keys; None: nodes are believed."""
        self.keys = keys
        self.nodes: dict[int, int] = {}  # the client of each node, as far as known

    @classmethod
    def read(cls, folder: str | Path) -> Roster:
        """A folder of public keys in OpenSSH's format, `0.pub` for client 0 and so on."""
        found: dict[bytes, int] = {}
        for path in sorted(Path(folder).glob("*.pub")):
            if not path.stem.isdecimal():
                raise InputError(f"the key '{path}' is not named after a client; call it 0.pub, 1.pub, ...")
            key = read_key(path)
            if key in found:
                raise InputError(f"clients {found[key]} and {path.stem} have the same key; make each one of its own.")
            found[key] = int(path.stem)
        if not found:
            raise InputError(f"there are no public keys in '{folder}'; put one per client there, 0.pub, 1.pub, ...")
        return cls(found)

    def reachable(self, grid: Grid) -> list[int]:
        """The nodes that are connected and may be asked; those whose key is not in the roster are left alone."""
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


def read_key(path: Path) -> bytes:
    """A public key as Flower's server tells it to a ServerApp."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"'{path}' is not a public key in OpenSSH's format: {error}.") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def make_key(path: Path) -> Path:
    """A node's key pair in OpenSSH's format, as Flower wants it: `path` and `path`.pub. Returns the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def make_certificates(folder: Path, names: Sequence[str]) -> None:
    """`ca.crt`, which nodes need, and `server.pem` with `server.key`, which the server needs.

    names: the host names and addresses under which nodes reach the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("everfed fleet authority")
    authority = (
        _certificate(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        _certificate(_name(names[0]), authority_name, server_key)
        .add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))
    secret = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_secret(folder / "server.key", secret)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_secret(path: Path, content: bytes) -> None:
    """A file that nobody else can read, from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(content)
