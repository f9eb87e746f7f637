"""A fleet's server: SuperLink for this machine, and the door for the devices. One ends with the other.

`python -m everfed.flower.serve FOLDER HOST` is the same without the command line's imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from everfed.errors import ClusterError, InputError
from everfed.flower.certificates import CA_KEY, SERVER, SERVER_KEY, make_certificates
from everfed.flower.device_check import split_address
from everfed.flower.door import MOST_MIB, Door
from everfed.flower.door_rules import Lingerers
from everfed.flower.fleet_folder import FleetFolder
from everfed.studies.signals import heeding

log = logging.getLogger("flwr.everfed")

_LOOK_S = 0.5  # between two looks at certificates and SuperLink
_START_S, _END_S = 120.0, 10.0
_LINGER_S = 60.0  # that a connection may be open without a call
_OPEN = 65536  # connections and files at once
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; uvicorn's own are older ones


def serve(fleet: FleetFolder, host: str = "0.0.0.0", most_mib: int = MOST_MIB) -> None:
    """Until it is told to stop. host: the address of this machine that the door listens on; most_mib: of one call."""
    import flwr.supercore.logger  # noqa: F401 (sets up the log that everything here goes to)

    _, port = split_address(fleet.address)
    inner_host, inner_port = split_address(fleet.control)
    if _listens(inner_host, inner_port):
        raise InputError(f"something listens at {fleet.control} already; is this fleet being served?")
    inner = fleet.trust.parent
    make_certificates(inner, ["127.0.0.1", "localhost"])
    (inner / CA_KEY).unlink()  # it issues nothing else
    options = [
        "--host", inner_host, "--port", str(inner_port), "--disable-runtime-dependency-installation",
        "--ssl-certfile", f"{inner / SERVER}", "--ssl-keyfile", f"{inner / SERVER_KEY}",
        "--ssl-ca-certfile", f"{fleet.trust}", "--enable-supernode-auth",
        "--database", f"{fleet.superlink / 'superlink.db'}",
    ]  # fmt: skip
    own = {"FLWR_HOME": str(fleet.superlink), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    bin = Path(sys.executable).parent
    own["PATH"] = f"{bin}{os.pathsep}{os.environ.get('PATH', '')}"  # where SuperLink finds its other programs
    program = shutil.which("flower-superlink", path=own["PATH"]) or "flower-superlink"
    with heeding(_end), _ending(subprocess.Popen([program, *options], env={**os.environ, **own})) as superlink:
        until = time.monotonic() + _START_S
        while not _listens(inner_host, inner_port):
            if superlink.poll() is not None or time.monotonic() > until:
                raise ClusterError("SuperLink did not start; what it wrote is above.")
            time.sleep(0.1)
        fleet.synchronise()
        door = Door(fleet.control, fleet.trust, fleet.certificates, fleet.keys, most_mib)
        asyncio.run(_open(fleet, door, host, port, superlink))
        if superlink.poll() is not None:
            raise ClusterError(f"SuperLink ended with code {superlink.returncode}; what it wrote is above.")


@contextlib.contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive this one."""
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.wait()


def _end(number: int, frame: Any) -> NoReturn:
    """On a signal: leave by way of what has to be ended first."""
    raise SystemExit(0 if number == signal.SIGTERM else 128 + number)


async def _open(fleet: FleetFolder, door: Door, host: str, port: int, superlink: subprocess.Popen[bytes]) -> None:
    """The door, until SuperLink ends or a signal comes."""
    chain = fleet.certificates / SERVER, fleet.certificates / SERVER_KEY
    config = door_config(door, host, port, *chain)
    server = uvicorn.Server(config)
    lingerers = Lingerers(_LINGER_S, _most_open() // 2)

    async def watch() -> None:
        stamp = _stamp(*chain)
        while not server.should_exit:
            await asyncio.sleep(_LOOK_S)
            if superlink.poll() is not None:
                server.should_exit = True
            lingerers.end(server.server_state.connections)
            if (now := _stamp(*chain)) != stamp and (context := config.ssl) and reload_chain(context, *chain):
                stamp = now
                log.info("the server's certificate was exchanged")

    watcher = asyncio.create_task(watch())
    log.info("devices are served at port %d of %s; keys, runs and apps at %s alone", port, host, fleet.control)
    try:
        await server.serve()
    finally:
        watcher.cancel()
        await door.client.aclose()


def door_config(door: Door, host: str, port: int, certificate: Path, key: Path) -> uvicorn.Config:
    """How the door listens. h11 and not httptools, which takes headers of any length."""
    return uvicorn.Config(
        door, host=host, port=port, http="h11", ws="none", lifespan="off", access_log=False, log_config=None,
        server_header=False, timeout_keep_alive=int(_LINGER_S), timeout_graceful_shutdown=2,
        ssl_certfile=str(certificate), ssl_keyfile=str(key), ssl_ciphers=_CIPHERS,
    )  # fmt: skip


def _most_open() -> int:
    """How many connections and files this process may have open, once that is as many as it can be."""
    if sys.platform == "win32":
        return 4096
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN if most == resource.RLIM_INFINITY else min(most, _OPEN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def reload_chain(live: ssl.SSLContext, certificate: Path, key: Path) -> bool:
    """New connections get the new certificate; false while its two files do not belong together."""
    try:
        # Tried elsewhere first: a failed load would leave the live one with half of it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError):
        return False
    live.load_cert_chain(certificate, key)
    return True


def _stamp(*paths: Path) -> list[tuple[int, int]] | None:
    try:
        return [(path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]
    except FileNotFoundError:
        return None


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


if __name__ == "__main__":
    serve(FleetFolder.open(Path(sys.argv[1])), sys.argv[2])
