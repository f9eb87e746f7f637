"""A fleet's own certificate authority, the server's certificate, and how both are replaced while devices run.

Devices trust what is in `ca.crt`. A new authority is introduced in three steps: `begin` adds it to ca.crt, beside the
old one; when all devices have that file, `switch` has the server's certificate issued by the new one; `retire` removes
the old one from ca.crt.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from everfed.errors import InputError
from everfed.flower.identity import write_secret

_SERVER_DAYS, _AUTHORITY_DAYS = 825, 3650
CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"
_NEXT, _NEXT_KEY = "next-ca.crt", "next-ca.key"


def make_certificates(folder: Path, names: Sequence[str]) -> None:
    """`ca.crt`, which devices need, with its `ca.key`, and `server.pem` with `server.key`, which the server needs.

    names: the host names and addresses under which devices reach the server.
    """
    certificate = _make_authority(folder / CA_KEY)
    _write(folder / CA, certificate)
    issue_server(folder, names)


def issue_server(folder: Path, names: Sequence[str] = ()) -> None:
    """A new certificate and key of the server, from the authority there is. names: default those it has now."""
    if not names:
        names = server_names(folder)
    authority = _signers(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority[1].public_key())
    server = (
        _certificate(_name(names[0][:64]), authority[0].subject, key, _SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority[1], hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / SERVER_KEY, secret)
    _write(folder / SERVER, server.public_bytes(Encoding.PEM))


def begin(folder: Path) -> None:
    """A new authority, which devices are to trust beside the old one."""
    if (folder / _NEXT).exists():
        raise InputError("a new authority was begun already; go on with 'switch' when all devices have the new ca.crt.")
    if len(read(folder / CA)) > 1:
        raise InputError("the last change of authority is not finished; finish it with 'retire'.")
    certificate = _make_authority(folder / _NEXT_KEY)
    _write(folder / _NEXT, certificate)
    _write(folder / CA, (folder / CA).read_bytes() + certificate)


def switch(folder: Path) -> None:
    """The server's certificate comes from the new authority from now on; devices must trust it by now."""
    if not (folder / _NEXT).exists():
        raise InputError("there is no new authority to switch to; make one with 'begin'.")
    os.replace(folder / _NEXT_KEY, folder / CA_KEY)
    (folder / _NEXT).unlink()
    issue_server(folder)


def retire(folder: Path) -> None:
    """Only the authority that issued the server's certificate is trusted by devices that get ca.crt from now on."""
    if (folder / _NEXT).exists():
        raise InputError("the server's certificate is still the old authority's; 'switch' first.")
    _write(folder / CA, _signers(folder)[0].public_bytes(Encoding.PEM))


def read(path: Path) -> list[x509.Certificate]:
    """The certificates in a file."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' has no certificate: {error}.") from None


def server_names(folder: Path) -> list[str]:
    """The names and addresses that the server's certificate is good for."""
    names = read(folder / SERVER)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def days_left(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400


def _signers(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority whose key is kept, among those that devices trust."""
    path = folder / CA_KEY
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the authority's key '{path}' cannot be read: {error}; without it no certificate is issued."
        ) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for certificate in read(folder / CA):
        if certificate.public_key() == key.public_key():
            return certificate, key
    raise InputError(f"'{path}' is not the key of a certificate in '{folder / CA}'.")


def _make_authority(key_file: Path) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities that are trusted at once must not have the same name.
    name = _name(f"everfed fleet authority {x509.random_serial_number():x}"[:64])
    authority = (
        _certificate(name, name, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_secret(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return authority.public_bytes(Encoding.PEM)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)
