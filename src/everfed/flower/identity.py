"""Who is who: a node's key speaks for one client, and for no other.

A node says in its configuration which client it is. The server does not take its word for it: SuperLink
has checked the node's key, and the roster says whose key that is. Without a roster (no node
authentication, as in Flower's simulation) a node is believed, but no two nodes at once for one client.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Context

from everfed.errors import InputError, some

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def client_of(context: Context) -> int:
    """The client that this node is: `client` of its configuration, or Flower's `partition-id`."""
    for key in ("client", "partition-id"):
        value = context.node_config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise InputError(
        "this node does not know which client it is; start it with --node-config 'client=0' (0 for the first)."
    )


class Roster:
    """Which nodes may speak for which client."""

    def __init__(self, keys: dict[bytes, int] | None = None) -> None:
        """keys: the client of every public key, as Flower keeps keys; None: nodes are believed."""
        self.keys = keys
        self.nodes: dict[int, int] = {}  # the client of each node, as far as known
        self.strangers: set[int] = set()  # nodes whose key is nobody's

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
            raise InputError(f"there are no public keys in '{folder}'; put one a client there, 0.pub, 1.pub, ...")
        return cls(found)

    def reachable(self, grid: Grid) -> list[int]:
        """The nodes that are there now and may be asked; those of strangers are left alone."""
        nodes: list[Any] = list(grid.get_nodes())
        online = [int(node.node_id) for node in nodes]
        if self.keys is None:
            self.nodes = {n: c for n, c in self.nodes.items() if n in online}
            return sorted(online)
        self.nodes, self.strangers = {}, set()
        for node in nodes:
            client = self.keys.get(bytes(node.public_key))
            if client is None:
                self.strangers.add(int(node.node_id))
            else:
                self.nodes[int(node.node_id)] = client
        return sorted(self.nodes)

    def objection(self, node: int, client: int) -> str | None:
        """Why this node may not speak for this client; None if it may."""
        if self.keys is not None:
            own = self.nodes.get(node)
            if own == client:
                return None
            return f"its key is that of client {own}" if own is not None else "its key is not registered"
        others = [n for n, c in self.nodes.items() if c == client and n != node]
        if others:
            return f"node {some(others)} speaks for it already"
        self.nodes[node] = client
        return None


def read_key(path: Path) -> bytes:
    """A public key as Flower's server tells it to a ServerApp."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"'{path}' is not a public key in OpenSSH's format: {error}.") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
