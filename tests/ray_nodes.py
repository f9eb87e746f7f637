"""A real Ray cluster on this machine: a node is killed as a whole, like a machine that loses power."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

# A token of these tests' own. Ray reads how to authenticate when it is imported, so this module comes before it.
FOLDER = Path(f"/tmp/ef-{uuid.uuid4().hex[:8]}")  # Ray's sockets need a short path
FOLDER.mkdir(mode=0o700)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
(FOLDER / "token").write_text(uuid.uuid4().hex)
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(FOLDER / "token"))
os.environ.update({"RAY_worker_niceness": "0"})  # Ray would make workers give way to everything else that runs here

RAY = Path(sys.executable).with_name("ray")
_QUICK = {  # a node's death is noticed in about two seconds, not in fifteen
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Node:
    """`ray start --block` in a session of its own, by which all of its processes are found."""

    def __init__(self, folder: Path, *options: str, cpus: int = 2, **environment: str) -> None:
        command = [RAY, "start", "--block", f"--num-cpus={cpus}", "--num-gpus=0", "--object-store-memory=100000000"]
        with open(folder / "daemons.log", "a") as log:
            self.daemon = subprocess.Popen(
                [*command, *options], env={**os.environ, **_QUICK, **environment}, start_new_session=True,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def processes(self, title: str = "") -> list[int]:
        """Its processes, or those whose title begins so ('ray::Worker')."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    mine = os.getsid(int(folder.name)) == self.daemon.pid
                    if mine and (folder / "cmdline").read_bytes().startswith(title.encode()):
                        found.append(int(folder.name))
                except OSError:  # it has ended meanwhile
                    pass
        return found

    def freeze(self) -> None:
        """SIGSTOP to everything: like a machine whose network is cut, it answers nothing and closes nothing."""
        for pid in self.processes():
            os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL to everything at once, until nothing is left."""
        until = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < until:
            for pid in left:
                kill(pid)
            self.daemon.poll()
            time.sleep(0.05)
        self.daemon.wait(10)


class Nodes:
    """A head and further nodes of two CPUs each, with a token of their own; ends them all."""

    def __init__(self, cpus: int = 2) -> None:
        """cpus: of the head."""
        self.folder = FOLDER / f"{cpus}"
        self.folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}")
        self.nodes = [Node(self.folder, *head, cpus=cpus)]
        until = time.monotonic() + 60
        while not self._answers(int(port)):
            assert time.monotonic() < until, (self.folder / "daemons.log").read_text()
            time.sleep(0.2)

    def _answers(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def add(self, **environment: str) -> Node:
        self.nodes.append(Node(self.folder, f"--address={self.address}", **environment))
        return self.nodes[-1]

    def wait(self, ray, count: int) -> None:
        """Until the cluster, to which this process is connected, has so many nodes."""
        until = time.monotonic() + 90
        while sum(node["Alive"] for node in ray.nodes()) != count:
            assert time.monotonic() < until, (self.folder / "daemons.log").read_text()
            time.sleep(0.2)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
