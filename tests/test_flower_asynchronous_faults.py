"""A server without rounds on Flower: lost messages, restarts, kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.flower import client_app
from everfed.flower.arrival_server import ArrivalServer
from everfed.flower.ledger import read
from everfed.flower.server import stored_remote_rounds
from everfed.run.fleets import CycleFleet
from everfed.run.replay import read_log
from flower_arrivals import SlowGrid, assert_once, assert_replayed, limits, run_stored, task
from flower_grid import CLIENTS, fleet_of

pytestmark = pytest.mark.filterwarnings("ignore")


def test_lost_messages_and_absent_nodes_cost_nobody_else(tmp_path):
    experiment = task("renewal", rounds=10)
    nodes = fleet_of(client_app(experiment), CLIENTS, **{"state-dir": str(tmp_path / "state")})
    lost = []

    def lose(reply, number):
        if number == 100 and "arrays" in reply.content and len(lost) < 2:
            lost.append(reply)
            return None
        return reply

    nodes[3].online = False
    run_stored(experiment, tmp_path / "run", SlowGrid(nodes, lose, 0.0), train_s=2 * limits().round_s, wait_s=1.0)
    entries = read(tmp_path / "run")
    late = [e.lost[0] for e in entries if 0 in e.lost]
    assert late[:2] == ["no reply in time"] * 2
    log, _ = assert_replayed(experiment, tmp_path / "run")
    assert {work.client for work in log} == {0, 1, 2}
    assert sum(work.client == 1 for work in log) >= 3  # nobody waited
    first = next(work for work in log if work.client == 0)
    assert first.slot == lost[0].content["everfed"]["slot"]  # the same work, at last


def test_a_server_goes_on_from_its_folder(tmp_path):
    experiment = task("renewal-discounted", client=ef.Adam(1e-3))
    nodes = fleet_of(client_app(experiment), CLIENTS, **{"state-dir": str(tmp_path / "state")})
    for record, _ in stored_remote_rounds(experiment, SlowGrid(nodes), tmp_path / "run", limits=limits()):
        if record.round == 4:
            break  # with work in flight
    run_stored(experiment, tmp_path / "run", SlowGrid(nodes))
    assert_replayed(experiment, tmp_path / "run")
    assert_once(tmp_path / "run", tmp_path / "state")
    assert [r.round for r in ef.open_run(tmp_path / "run").rounds] == list(range(experiment.rounds))


def test_what_arrived_after_the_last_checkpoint_is_asked_for_again(tmp_path, monkeypatch):
    """Killed at the end of a round, before it is saved: the round's arrivals are forgotten, and counted later."""
    fleet = CycleFleet(clients=CLIENTS, cycles=(1,), capacity=4)
    experiment = task("renewal", client=ef.Adam(1e-3), fleet=fleet, rounds=7)
    nodes = fleet_of(client_app(experiment), CLIENTS, **{"state-dir": str(tmp_path / "state")})
    close, forgotten = ArrivalServer._close, []

    def killed(server):
        close(server)
        if server.number >= 3 and server.entry.done:
            forgotten.extend(read_log(tmp_path / "run")[-len(server.entry.done) :])
            raise KeyboardInterrupt

    monkeypatch.setattr(ArrivalServer, "_close", killed)
    with pytest.raises(KeyboardInterrupt):
        run_stored(experiment, tmp_path / "run", SlowGrid(nodes, slow_s=0.02))
    monkeypatch.undo()
    run_stored(experiment, tmp_path / "run", SlowGrid(nodes, slow_s=0.02))
    log, _ = assert_replayed(experiment, tmp_path / "run")
    assert_once(tmp_path / "run", tmp_path / "state")
    counted = {(work.client, work.slot) for work in log}
    assert forgotten
    assert all((work.client, work.slot) in counted for work in forgotten)


SERVER = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import everfed as ef
from everfed.flower import client_app
from flower_arrivals import SlowGrid, run_stored, task
from flower_grid import CLIENTS, fleet_of
experiment = task("fedbuff", client=ef.Adam(1e-3), rounds=10)
nodes = fleet_of(client_app(experiment), CLIENTS, **{"state-dir": sys.argv[1] + "/state"})
run_stored(experiment, Path(sys.argv[1]) / "run", SlowGrid(nodes))
"""


@pytest.mark.long
def test_killed_at_any_moment_with_all_its_nodes_it_loses_nothing(tmp_path):
    def begin():
        here = Path(__file__).parent
        paths = os.pathsep.join([str(here), str(here.parent / "src")])
        return subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], env={**os.environ, "PYTHONPATH": paths})

    for rounds, delay in ((1, 0.1), (3, 0.35), (6, 0.2)):
        server = begin()
        until = time.monotonic() + 120.0
        while len(read(tmp_path / "run")) < rounds and time.monotonic() < until and server.poll() is None:
            time.sleep(0.02)
        time.sleep(delay)
        server.kill()
        assert server.wait() != 0
    server = begin()
    assert server.wait(timeout=180.0) == 0
    experiment = task("fedbuff", client=ef.Adam(1e-3), rounds=10)
    assert_replayed(experiment, tmp_path / "run")
    assert_once(tmp_path / "run", tmp_path / "state")
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())["starts"]
    assert len(starts) == 4
