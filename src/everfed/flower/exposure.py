"""Is Flower's control interface open to other machines? Whoever reaches it runs code on the server and on every node.

An app cannot ask SuperLink how it was started, but it can try: it knows SuperLink's port from its own command line,
and this machine's addresses. A firewall on the way is not seen from here.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import socket
import ssl
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait

import psutil

log = logging.getLogger("flwr.everfed")

_PATIENCE_S = 1.5  # for all addresses together
_HARMLESS = "/v1/control/list-nodes"


def warn_if_open(argv: Iterable[str] | None = None) -> str | None:
    """What is wrong, which is logged too; None: nothing that can be seen from here. argv: of Flower's server app."""
    port = _port(list(sys.argv if argv is None else argv))
    found = open_addresses(port) if port else []
    if not found:
        return None
    said = (
        f"Flower's control API is open to other machines at {', '.join(found)}: whoever reaches it can run code here "
        "and on every node. Unless a firewall closes it, start the server with 'everfed devices serve'."
    )
    log.warning("%s", said)
    return said


def open_addresses(port: int) -> list[str]:
    """Those of this machine's addresses, as others reach it, at which the control interface answers."""
    hosts = sorted(_hosts())
    pool = ThreadPoolExecutor(max_workers=max(len(hosts), 1))
    answers = [pool.submit(_answers, host, port) for host in hosts]
    done, _ = wait(answers, timeout=_PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return [f"{host}:{port}" for host, answer in zip(hosts, answers, strict=True) if answer in done and answer.result()]


def _port(argv: list[str]) -> int | None:
    """SuperLink's port, from the command line of the process that runs the app; None in Flower's simulation."""
    with contextlib.suppress(ValueError, IndexError):
        return int(argv[argv.index("--runtime-api-address") + 1].rpartition(":")[2])
    return None


def _hosts() -> set[str]:
    found = set()
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                with contextlib.suppress(ValueError):
                    ip = ipaddress.ip_address(address.address.partition("%")[0])
                    if not ip.is_loopback and not ip.is_link_local:
                        found.add(str(ip))
    return found


def _answers(host: str, port: int) -> bool:
    """Whether a question that needs the control interface gets an answer, with TLS or without."""
    until = time.monotonic() + _PATIENCE_S
    unchecked = ssl._create_unverified_context()
    for context in (unchecked, None):
        left = until - time.monotonic()
        call = (
            http.client.HTTPSConnection(host, port, timeout=left, context=context)
            if context
            else http.client.HTTPConnection(host, port, timeout=left)
        )
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException), contextlib.closing(call):
            call.request("POST", _HARMLESS, b"", {"content-type": "application/x-protobuf"})
            return call.getresponse().status not in (403, 404)
    return False
