"""Memory, traffic and seconds of a node on a real connection: Flower's SuperNode with torch, and `everfed.device`.

    python benchmarks/devices.py [--python OTHER/bin/python]

One client in every round, over TLS on this machine, through a proxy that counts bytes. --python: an environment with
`everfed-device` alone, for the second node. Prints a table in Markdown.
"""

import argparse
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from everfed.device.session import Place, Session
from everfed.flower.client import load_experiment
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "examples" / "flower-fleet"
ROUNDS = 6
SETTINGS = f"rounds={ROUNDS} fleet.clients=1 fleet.cycles=[1]"
DEVICE = """
from digits import load, train
from everfed.device.app import device_app
from everfed.energy.fleet import Fleet
from everfed.flower.energy import Simulated
from everfed.scheduling.policies import UniformWindow

app = device_app(train, load, policy=UniformWindow(), energy=Simulated(Fleet.from_cycles([1])),
                 local_steps=10, batch_size=10, lr=0.1)
"""


class Proxy:
    """Passes connections on to a port, and counts their bytes, both ways."""

    def __init__(self, port: int) -> None:
        self.target, self.total = port, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near = self.listener.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server has ended
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                self.total += len(content)
                sink.sendall(content)
        except OSError:
            pass
        sink.close()


def memory(fleet: Loopback, name: str) -> float:
    """MB of all processes of a node."""
    total = 0
    for process in fleet.members(name):
        try:
            total += process.memory_info().rss
        except Exception:  # it has just ended
            continue
    return total / 1e6


def measured(folder: Path, slim: bool, python: str, idle_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    with Loopback(folder, 1) as fleet:
        fleet.start_server()
        fleet.register(0)
        server, proxy = fleet.port, Proxy(fleet.port)
        fleet.port = proxy.port  # for the node alone
        if slim:
            data = write_app(folder)
            fleet.start_device(0, "bench_app:app", "--node-config", f'data="{data}"', folder=folder, python=python)
        else:
            fleet.start_node(0)
        fleet.port = server
        await_words(fleet, "connected as node" if slim else "SuperNode ID")
        time.sleep(15.0)
        before = proxy.total
        time.sleep(idle_s)
        found["idle MB"] = memory(fleet, "node-0")
        found["idle kB per hour"] = (proxy.total - before) * 3600.0 / idle_s / 1e3
        run = folder / "run"
        config = {"folder": str(run), "keys": str(fleet.keys), "set": SETTINGS, "query-s": 90.0, "train-s": 90.0}
        before, peak = proxy.total, 0.0
        fleet.submit(APP, config)
        while not (run / "result.json").exists():
            peak = max(peak, memory(fleet, "node-0"))
            time.sleep(0.1)
        found["training MB, at most"] = peak
        found["kB per round"] = (proxy.total - before) / ROUNDS / 1e3
        entries = read(run)[1:]  # the first has to load everything
        found["seconds per question"] = statistics.median(entry.query_s for entry in entries)
        found["seconds per training"] = statistics.median(entry.train_s for entry in entries)
        if slim:
            fleet.processes["node-0"].terminate()
            fleet.processes["node-0"].wait()
            with Session(Place(f"127.0.0.1:{proxy.port}", fleet.key(0), fleet.certificates / "ca.crt")) as session:
                before = proxy.total
                session.pause()
                session.resume()
                session.receive()
                print(f"to fall asleep, wake and look moves {(proxy.total - before) / 1e3:.1f} kB")
    return found


def write_app(folder: Path) -> Path:
    """The example's trainer for a fleet of one, and the samples that this client has in the experiment."""
    experiment = load_experiment(APP / "fleet_app" / "experiment.toml", {"set": SETTINGS})
    data = experiment.make_data(experiment.make_fleet())
    own = data.samples_of(0)
    np.savez(folder / "own.npz", x=np.asarray(data.x[own], np.float32), y=np.asarray(data.y[own]))
    (folder / "digits.py").write_text((ROOT / "examples" / "device" / "digits.py").read_text())
    (folder / "bench_app.py").write_text(DEVICE)
    return folder / "own.npz"


def await_words(fleet: Loopback, words: str) -> None:
    until = time.monotonic() + 120.0
    while words not in fleet.log("node-0", 10**6) and time.monotonic() < until:
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch an idle node")
    given = parser.parse_args()
    columns = {}
    for name, slim in (("everfed.device, NumPy", True), ("SuperNode, torch", False)):
        with tempfile.TemporaryDirectory() as folder:
            columns[name] = measured(Path(folder).resolve(), slim, given.python, given.idle)
            print(name, columns[name], flush=True)
    print("| | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for row in next(iter(columns.values())):
        print(f"| {row} | " + " | ".join(f"{column[row]:.3g}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
