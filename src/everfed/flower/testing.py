"""A whole fleet on one machine, with real processes and real connections: to try an app, and to break it.

    with Loopback(folder, clients=8) as fleet:
        fleet.start()
        state = fleet.run(app, {"folder": str(folder / "run")})

Everything it starts ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from everfed.flower.fleet_folder import CONNECTION, FleetFolder
from everfed.flower.identity import make_key

_POLL_S = 0.5
_END_S = 5.0
_WHOLE = 10**8  # characters of a log
_ASK_S = 30.0  # asking Flower takes a process and two seconds of it


class LoopbackError(RuntimeError):
    """A process failed or did not answer in time; the message shows the end of its log."""


class Loopback:
    """A fleet's server and its SuperNodes on 127.0.0.1, with TLS and node authentication.

    As in the field, SuperLink has an address of its own, and nodes come in by the door.

    folder: keys, certificates, logs and each node's own folder are kept there.
    """

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder, self.clients = folder.resolve(), clients
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.bin = Path(sys.executable).parent

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "fleet.toml").unlink(missing_ok=True)  # ports may be taken by now
        self.port = free_port()
        self.fleet = FleetFolder.make(self.folder, f"127.0.0.1:{self.port}", ["localhost"], free_port())
        for client in range(self.clients):
            if not self.key(client).exists():
                make_key(self.key(client))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def keys(self) -> Path:
        """The folder of the nodes' keys, private and public, named after the clients."""
        return self.folder / "keys"

    @property
    def certificates(self) -> Path:
        """The folder with ca.crt, which nodes need."""
        return self.fleet.certificates

    def key(self, client: int) -> Path:
        return self.keys / str(client)

    def start(self) -> None:
        """The server, then every client's node."""
        self.start_server()
        for client in range(self.clients):
            self.start_node(client)

    def start_server(self) -> None:
        """With all keys that there are by now."""
        self._start("superlink", [sys.executable, "-m", "everfed.flower.serve", str(self.folder), "127.0.0.1"])
        self._await_port("superlink", self.port)

    def start_node(
        self, client: int, *, key: Path | None = None, name: str | None = None, insecure: bool = False, **more: Any
    ) -> str:
        """A client's node. key: another one than its own; insecure: plain HTTP; more: for its configuration.

        Returns the process's name.
        """
        name = name or f"node-{client}"
        config = {"client": client, "state-dir": str(self.folder / name / "state"), **more}
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        options += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if insecure:
            options.append("--insecure")
        else:
            options += ["--root-certificates", str(self.certificates / "ca.crt")]
            options += ["--auth-supernode-private-key", str(key or self.key(client))]
        self._start(name, ["flower-supernode", *options])
        return name

    def start_device(self, client: int, app: str, *words: str, folder: Path, python: str = sys.executable) -> str:
        """A client's node in one process. app: module:name, in this folder; words: more options of its command;
        python: of another environment. Returns the process's name."""
        name = f"node-{client}"
        options = ["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", f"{self.certificates}/ca.crt"]
        options += ["--key", str(self.key(client)), "--client", str(client)]
        options += ["--state-dir", str(self.folder / name / "state"), *words, app]
        environment = self._environment(name)
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        self._start(name, [python, "-m", "everfed.device", "run", *options], cwd=folder, env=environment)
        return name

    def restart_node(self, client: int, timeout_s: float = 180.0, **more: Any) -> None:
        """Start a node that was killed, again and again as a service manager would, until the server takes it.

        It does when the old session of the key has lapsed, about 40 seconds after the kill.
        """
        name, until = f"node-{client}", time.monotonic() + timeout_s
        while time.monotonic() < until:
            mark = len(self.log(name, _WHOLE))
            self.start_node(client, **more)
            while self.processes[name].poll() is None and time.monotonic() < until:
                if "SuperNode ID" in self.log(name, _WHOLE)[mark:]:
                    return
                time.sleep(_POLL_S)
            self.kill(name)
            time.sleep(3.0)
        raise LoopbackError(f"the node of client {client} did not come back.\n{self.log(name)}")

    def register(self, client: int) -> None:
        """Let a client in that was not there when the server started; its key is made if it has none."""
        if not self.key(client).exists():
            make_key(self.key(client))
        self.fleet.synchronise()

    def flwr(self, *words: str) -> str:
        """One `flwr` command; returns what it printed."""
        done = subprocess.run(
            [self._program("flwr"), *words],
            env=self._environment(self.fleet.home.name),
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        if done.returncode:
            raise LoopbackError(f"flwr {' '.join(words[:2])} failed: {(done.stdout + done.stderr).strip()[-500:]}")
        return done.stdout

    def submit(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of an app; returns its number."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        printed = self.flwr("run", str(app), CONNECTION, "--run-config", settings, "--format", "json")
        return int(json.loads(printed[printed.index("{") :])["run-id"])

    def look(self, run: int) -> dict[str, Any]:
        """What Flower says of a run: its status, and the bytes it moved."""
        printed = self.flwr("list", CONNECTION, "--run-id", str(run), "--format", "json")
        found: dict[str, Any] = json.loads(printed[printed.index("{") :])["runs"][0]
        return found

    def wait(self, run: int, timeout_s: float, result: Path | None = None) -> dict[str, Any]:
        """Until a run has ended, whichever way. result: a file that appears when it has ended well."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = self.look(run)
            if str(found["status"]).startswith("finished"):
                return found
            ask_again = time.monotonic() + (_ASK_S if result and not result.exists() else 1.0)
            while time.monotonic() < ask_again and not (result and result.exists()):
                time.sleep(_POLL_S)
        raise LoopbackError(f"the run did not end within {timeout_s:g} s.\n{self.log('superlink')}")

    def run(self, app: Path, config: Mapping[str, Any], timeout_s: float = 600.0) -> dict[str, Any]:
        """A whole run of everfed's server, which ends with a file in its folder."""
        return self.wait(self.submit(app, config), timeout_s, Path(config["folder"]) / "result.json")

    def members(self, name: str) -> list[psutil.Process]:
        """All living processes that belong to a machine of the fleet, whoever started them.

        Flower starts its apps in sessions of their own, and some outlive whoever started them; what they
        have in common is their environment.
        """
        home = str(self.folder / name)
        # Asked one by one: `process_iter(["environ"])` would keep and reuse what it found the last time.
        return [process for process in psutil.process_iter() if _home(process) == home]

    def kill(self, name: str) -> None:
        """End a machine's processes at once, as a power cut would."""
        self._tell(name, psutil.Process.kill)
        self.processes[name].wait()

    def pause(self, name: str) -> None:
        """Halt a machine's processes where they are, until `resume`."""
        self._tell(name, psutil.Process.suspend)

    def resume(self, name: str) -> None:
        self._tell(name, psutil.Process.resume)

    def stop(self) -> None:
        """End everything that this object started: gently, then for good."""
        names = list(self.processes)
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for name in names:
                self._tell(name, psutil.Process.resume)
                self._tell(name, end)
            until = time.monotonic() + _END_S
            while time.monotonic() < until and any(self.members(name) for name in names):
                time.sleep(0.1)
        for process in self.processes.values():
            process.wait()
        self.processes = {}

    def log(self, name: str, last: int = 2000) -> str:
        path = self.folder / name / "log"
        return path.read_text(encoding="utf-8", errors="replace")[-last:] if path.exists() else ""

    def await_log(self, name: str, *words: str, timeout_s: float = 400.0) -> None:
        """Until a process's log holds these words, one after the other."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            text, at = self.log(name, _WHOLE), 0
            for word in words:
                at = text.find(word, at) + len(word) if word in text[at:] else -1
                if at < 0:
                    break
            else:
                return
            time.sleep(_POLL_S)
        raise LoopbackError(f"{name} never said {words} within {timeout_s:g} s.\n{self.log(name)}")

    def _tell(self, name: str, what: Callable[[psutil.Process], None]) -> None:
        for process in self.members(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                what(process)

    def _program(self, name: str) -> str:
        """A command of this environment, with the ending that it has on Windows."""
        return shutil.which(name, path=str(self.bin)) or str(self.bin / name)

    def _start(self, name: str, command: list[str], **how: Any) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        with open(self.folder / name / "log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [self._program(command[0]), *command[1:]], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, **{"env": self._environment(name), **how},
            )  # fmt: skip

    def _environment(self, name: str) -> dict[str, str]:
        own = {
            "FLWR_HOME": str(self.folder / name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",  # a device has its processor to itself; here all share one
            "PYTHONUTF8": "1",  # what they print is read as UTF-8
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        return {**os.environ, **own}

    def _await_port(self, name: str, port: int, timeout_s: float = 60.0) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self.processes[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            time.sleep(_POLL_S)
        raise LoopbackError(f"{name} does not answer on port {port}.\n{self.log(name)}")


def _home(process: psutil.Process) -> str | None:
    """The Flower folder that a process was started with; None for other processes, and for other people's."""
    home: str | None = None
    with contextlib.suppress(psutil.Error, OSError):
        home = process.environ().get("FLWR_HOME")
    return home


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
