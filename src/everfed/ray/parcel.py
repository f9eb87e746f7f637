"""Work that is sent to other machines. It is opened only where the same code computes as here.

A node with another everfed, torch or plugin would give other numbers without any error.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everfed.errors import ClusterError
from everfed.ray.cluster import ray
from everfed.versions import plugin_digests, versions


@dataclass(frozen=True)
class Parcel:
    """A pickled value, and the versions of the machine that sent it."""

    content: bytes
    plugins: tuple[str, ...]
    versions: Mapping[str, Any]
    digests: Mapping[str, str]  # of the plugins

    def open(self) -> Any:
        """The value, if this process has the sender's versions; ClusterError names the node and the differences."""
        _refuse_other(self.versions, versions())  # first: to unpickle runs code
        value = pickle.loads(self.content)  # loads the plugins
        _refuse_other(self.digests, plugin_digests(self.plugins))
        return value


def packed(value: Any, plugins: Iterable[str]) -> Parcel:
    """plugins: the modules that the value needs."""
    names = tuple(plugins)
    return Parcel(ray.cloudpickle.dumps(value), names, versions(), plugin_digests(names))


def _refuse_other(sent: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    wrong = [
        f"{name} {here.get(name)} (the driver has {value})" for name, value in sent.items() if here.get(name) != value
    ]
    if wrong:
        raise ClusterError(
            f"the node {socket.gethostname()} ({ray.util.get_node_ip_address()}) would compute other numbers than the "
            f"driver: it has {', '.join(wrong)}. Install the same versions on every node."
        )
