"""A fleet's folder on its server: certificates, the devices' public keys, and what SuperLink needs.

    fleet.toml          the address for devices, and SuperLink's on this machine
    certificates/       ca.crt for devices; the authority's and the server's keys, which stay here
    keys/               7.pub is client 7's; this folder decides who is in the fleet
    bundles/            what is carried to devices
    superlink/          SuperLink's database and its certificate for this machine
    flwr/               FLWR_HOME for those who start runs

SuperLink has a list of keys of its own; `synchronise` makes it agree with the folder, whatever happened before.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everfed.errors import InputError, first_line
from everfed.flower.certificates import CA, make_certificates
from everfed.flower.device_check import split_address
from everfed.flower.identity import client_of, read_key, read_keys

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

CONNECTION = "fleet"  # what `flwr run` calls the server
_SPENT = "unregistered"  # the state of a key that was removed


class NotServingError(InputError):
    """SuperLink does not answer."""


@dataclass(frozen=True)
class FleetFolder:
    """The folder, and what its fleet.toml says. address: for devices; control: SuperLink's, on this machine."""

    path: Path
    address: str
    control: str

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        path = path.resolve()
        try:
            found = tomllib.loads((path / "fleet.toml").read_text(encoding="utf-8"))
            return cls(path, str(found["address"]), str(found["control"]))
        except FileNotFoundError:
            raise InputError(f"'{path}' is not a fleet's folder; make one with 'everfed devices init'.") from None
        except (KeyError, ValueError) as error:
            raise InputError(f"'{path / 'fleet.toml'}' cannot be read: {first_line(error)}.") from None

    @classmethod
    def make(cls, path: Path, address: str, names: Sequence[str] = (), control_port: int = 0) -> FleetFolder:
        """names: others that devices reach the server by; control_port: default one above the address's."""
        path = path.resolve()
        if (path / "fleet.toml").exists():
            raise InputError(f"'{path}' is a fleet's folder already.")
        host, port = split_address(address)
        fleet = cls(path, address, f"127.0.0.1:{control_port or port + 1}")
        for folder in (fleet.keys, fleet.superlink, fleet.home):
            folder.mkdir(parents=True, exist_ok=True)
        fleet.superlink.chmod(0o700)  # its database holds what devices sent
        make_certificates(fleet.certificates, list(dict.fromkeys([host, *names])))
        text = f'[superlink.{CONNECTION}]\naddress = "{fleet.control}"\n'
        text += f"root-certificates = {json.dumps(str(fleet.trust))}\n"
        (fleet.home / "config.toml").write_text(text, encoding="utf-8")
        text = f'address = "{address}"  # for devices\ncontrol = "{fleet.control}"  # for this machine alone\n'
        (path / "fleet.toml").write_text(text, encoding="utf-8")
        return fleet

    @property
    def certificates(self) -> Path:
        return self.path / "certificates"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def bundles(self) -> Path:
        return self.path / "bundles"

    @property
    def superlink(self) -> Path:
        return self.path / "superlink"

    @property
    def trust(self) -> Path:
        """The certificate by which this machine's processes know SuperLink."""
        return self.superlink / "certificates" / CA

    @property
    def home(self) -> Path:
        return self.path / "flwr"

    def enrol(self, client: int, key: Path, *, replace: bool = False) -> None:
        """Put a client's public key into the folder."""
        public, target = read_key(key), self.keys / f"{client}.pub"
        if target.exists() and not replace:
            raise InputError(
                f"client {client} has a key already; to exchange it, use 'everfed devices replace {client}'."
            )
        if replace and not target.exists():
            raise InputError(f"client {client} has no key to replace; use 'everfed devices register {client}'.")
        owner = read_keys(self.keys)[0].get(public)
        if owner is not None:
            raise InputError(f"this key is client {owner}'s already; make a new one for each device.")
        with contextlib.suppress(NotServingError), self._control() as control:
            if _nodes(control).get(public, (0, ""))[1] == _SPENT:
                raise InputError(
                    "this key was removed from the fleet before, and SuperLink takes no key twice; make a new one."
                )
        unfinished = target.with_suffix(".unfinished")
        unfinished.write_bytes(key.read_bytes())
        os.replace(unfinished, target)

    def expel(self, client: int) -> None:
        target = self.keys / f"{client}.pub"
        if not target.exists():
            have = sorted(client_of(path) for path in self.keys.glob("*.pub"))
            raise InputError(f"client {client} has no key here; those with one: {', '.join(map(str, have)) or 'none'}.")
        target.unlink()

    def synchronise(self) -> None:
        """Make SuperLink know the keys in the folder, and no others. Keys that were removed once stay so."""
        from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

        keys, wrong = read_keys(self.keys)
        if wrong:
            raise InputError(wrong[0])
        with self._control() as control:
            known = _nodes(control)
            for key in keys.keys() - known.keys():
                control.RegisterNode(RegisterNodeRequest(public_key=key))
            for key, (node, state) in known.items():
                if key not in keys and state != _SPENT:
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def states(self) -> dict[int, str]:
        """What SuperLink says of every client with a key: online, offline, registered (never seen) or unknown."""
        keys, _ = read_keys(self.keys)
        with self._control() as control:
            known = _nodes(control)
        return {client: known.get(key, (0, "unknown"))[1] for key, client in sorted(keys.items(), key=lambda k: k[1])}

    @contextlib.contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        import httpx
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

        if not self.trust.exists():
            raise NotServingError("SuperLink was never started; start it with 'everfed devices serve'.")
        own = [RuntimeVersionHttpInterceptor(component_name="flwr")]
        try:
            with ControlHttpClient.from_server_address(self.control, False, self.trust.read_bytes(), own) as control:
                yield control
        except httpx.TransportError as error:
            raise NotServingError(
                f"SuperLink does not answer at {self.control} ({first_line(error)}); start it with 'everfed devices "
                "serve', which also takes over what has changed."
            ) from None
        except httpx.HTTPStatusError as error:
            raise InputError(f"SuperLink refused: {error.response.text[:300]}") from None


def _nodes(control: ControlHttpClient) -> dict[bytes, tuple[int, str]]:
    """SuperLink's node and its state, by public key."""
    from flwr.proto.control_pb2 import ListNodesRequest

    found = control.ListNodes(ListNodesRequest()).nodes_info
    return {bytes(n.public_key): (n.node_id, n.status) for n in found}
