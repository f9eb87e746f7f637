"""Keys and certificates for a fleet: one key pair a node, and a certificate for the server."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

_DAYS = 825


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
