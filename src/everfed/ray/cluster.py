"""A Ray cluster to work on: one that is there, or one of this machine's own for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from everfed.errors import ClusterError, InputError, MissingExtraError, counted, first_line, warn
from everfed.machine import cores

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
# A worker that asks for no GPU shall see none; Ray asks for this to be said.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")

ray: Any
try:
    ray = import_module("ray")
except ImportError:  # these modules can be looked at without Ray; `connect` cannot be called
    ray = None

_QUIET = {"logging_level": "ERROR", "log_to_driver": False}
CONNECT_S = 10.0  # how long an address may take to answer
WAIT_S = 10.0  # how long to wait for a node or a worker without a word about it
_LONGEST_TMP = 30  # Ray puts sockets some 75 characters below its folder, and the system allows 107


@dataclass(frozen=True)
class Cluster:
    """What the cluster had when it was connected to."""

    cpus: int
    gpus: int
    nodes: int

    def on_gpu(self, device: str) -> bool:
        """Whether to train on GPUs: if requested, or if there are some and the device is auto."""
        if not device.startswith("cuda"):
            return device == "auto" and self.gpus > 0
        if not self.gpus:
            raise InputError(
                f"the device '{device}' was requested, but the cluster has no GPU "
                f"({counted(self.nodes, 'node')}, {counted(self.cpus, 'CPU')}); add a node that has one "
                "(ray start --num-gpus), or use device 'cpu' or 'auto'."
            )
        return True


@contextmanager
def connect(address: str | None = None, *, cpus: int | None = None) -> Iterator[Cluster]:
    """A cluster for the length of a `with` block.

    address: 'host:port' of a running cluster's head, or 'auto' for the one this machine belongs to. None: a
        Ray of this machine's own, started now and ended afterwards.
    cpus: of such a Ray; None: the cores this process may use.
    """
    if ray is None:
        raise MissingExtraError("the engine 'ray' needs Ray; install it with: pip install 'everfed[ray]'.")
    if ray.is_initialized():
        yield _described()
        return
    with _own_folder() if address is None else nullcontext("") as folder:
        try:
            if address is None:
                ray.init("local", num_cpus=cpus or cores(), include_dashboard=False, _temp_dir=folder, **_QUIET)
                yield _described()
            else:
                _join(address)
                yield _with_cpus(address)
        finally:
            ray.shutdown()


@contextmanager
def _own_folder() -> Iterator[str]:
    """Where a Ray of our own keeps its sockets and logs; removed with it."""
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="everfed-", dir=base if len(base) <= _LONGEST_TMP or os.name == "nt" else "/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _join(address: str) -> None:
    """Connect, or say why not. What nothing answers is refused at once: Ray itself would try for minutes."""
    where = os.environ.get("RAY_ADDRESS") or "" if address == "auto" else address
    if "://" in where:
        raise InputError(
            f"the address '{where}' belongs to Ray's client server; run on a node of the cluster and give 'auto', or "
            "the head's 'host:port' (6379 unless you chose another)."
        )
    try:
        if where and where != "auto":
            _reach(where)
            ray._raylet.GcsClient(address=where)  # Ray's own protocol, and the token; `init` would try for minutes
        ray.init(address, **_QUIET)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        if _refused(error):
            raise InputError(
                f"the cluster at '{address}' requires a token: copy the head's ~/.ray/auth_token to this machine, or "
                "name it in RAY_AUTH_TOKEN_PATH, and set RAY_AUTH_MODE=token."
            ) from error
        raise InputError(
            f"no Ray cluster can be joined at '{address}' ({first_line(error)}); check 'ray status' on its head, or "
            "omit --address to use this machine."
        ) from error


def _refused(error: BaseException | None) -> bool:
    """Whether the cluster turned us away for want of its token; Ray tells that some causes deep, or in the text."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__} {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"the address is '{address}'; give 'host:port' of the cluster's head, or 'auto'.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as probe:
            if os.environ.get("RAY_USE_TLS", "0") != "1" and not _speaks_http2(probe):
                raise ConnectionError("something else than Ray is there")
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at '{address}' ({first_line(error)}); start one there with "
            f"'ray start --head --port={port}', or omit --address to use this machine."
        ) from error


def _speaks_http2(probe: socket.socket) -> bool:
    """Whether a server answers as those of Ray do: an HTTP/2 connection's first frame is its settings (type 4)."""
    probe.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    answer = probe.recv(9)
    return len(answer) >= 4 and answer[3] == 4


def _with_cpus(address: str) -> Cluster:
    """The cluster, once it has a CPU: without one, work would wait for ever."""
    until, said = time.monotonic() + WAIT_S, False
    while not (found := _described()).cpus:
        if time.monotonic() > until:
            raise InputError(
                f"the cluster at '{address}' has {counted(found.nodes, 'node')}, {counted(found.gpus, 'GPU')} and no "
                "CPU, and every run or worker takes one; add a node that has some (ray start --num-cpus), or keep one "
                "if the cluster grows on demand."
            )
        if not said:
            warn(f"the cluster at '{address}' has no CPU; waiting {WAIT_S:.0f} s for a node.")
        said = True
        time.sleep(0.5)
    return found


def room() -> str:
    """What is free, for people who wait."""
    there, free = (found.get("CPU", 0.0) for found in (ray.cluster_resources(), ray.available_resources()))
    return f"{free:g} of the cluster's {counted(int(there), 'CPU')} are free, see 'ray status'"


def _described() -> Cluster:
    found = ray.cluster_resources()
    alive = sum(node["Alive"] for node in ray.nodes())
    return Cluster(int(found.get("CPU", 0)), int(found.get("GPU", 0)), alive)


def cause(error: Any) -> Exception:
    """What our own code raised in a worker, out of what Ray wraps around it."""
    inner = getattr(error, "cause", None)
    if isinstance(inner, Exception):
        inner = cause(inner)
        if isinstance(inner, ModuleNotFoundError):
            return ClusterError(
                f"a worker has no module '{inner.name}': the same everfed must be installed on every node."
            )
        return inner
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def lost(error: Exception) -> bool:
    """Whether this says that a process or a machine died, rather than that our code went wrong there."""
    kinds = ray.exceptions
    return isinstance(error, kinds.RayError) and not isinstance(error, kinds.RayTaskError)


def end(actor: Any) -> None:
    """Make sure that an actor is no more, dead already or not."""
    with contextlib.suppress(Exception):
        ray.kill(actor)
