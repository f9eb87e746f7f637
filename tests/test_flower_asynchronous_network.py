"""A server without rounds and a fleet of real processes, over a real connection, through kills."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.flower.client import load_experiment
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback
from everfed.run.replay import read_log, replay
from flower_arrivals import assert_once

APP = Path(__file__).parents[1] / "examples" / "flower-fleet"
CLIENTS, ROUNDS = 3, 8
CHANGES = f"method=renewal rounds={ROUNDS} fleet.clients={CLIENTS} fleet.cycles=[1,2] client.kind=adam"

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run: SuperLink and server are killed while client 0 trains, and a node later."""
    folder = tmp_path_factory.mktemp("fleet")
    with Loopback(folder, CLIENTS) as fleet:
        fleet.start()
        config = {
            "folder": str(folder / "run"), "keys": str(fleet.keys), "set": CHANGES, "query-s": 60.0, "train-s": 60.0,
            "round-s": 15.0,
        }  # fmt: skip
        fleet.submit(APP, config)
        await_training(fleet, folder / "run")
        fleet.kill("superlink")
        killed_after = len(read(folder / "run"))
        fleet.start_server()
        number = fleet.submit(APP, config)
        until = time.monotonic() + 300.0
        while len(read(folder / "run")) < ROUNDS - 3 and time.monotonic() < until:
            time.sleep(0.5)
        fleet.kill("node-2")
        state = fleet.wait(number, 300.0, folder / "run" / "result.json")
    return {"folder": folder / "run", "nodes": folder, "state": state, "killed_after": killed_after}


def await_training(fleet, folder):
    """Until client 0 is handed work after the first round; in which round that is, real time decides."""
    until, begun = time.monotonic() + 150.0, None
    while time.monotonic() < until:
        handed = fleet.log("node-0", 10**7).count("Receiving: train")
        begun = handed if begun is None and read(folder) else begun
        if begun is not None and handed > begun:
            return
        time.sleep(0.2)
    raise AssertionError(f"node-0 was handed no work: {fleet.log('node-0')}")


def experiment():
    return load_experiment(APP / "fleet_app" / "experiment.toml", {"set": CHANGES})


def test_the_run_ends_well_though_the_server_was_killed(story):
    assert story["state"]["status"] == "finished:completed"
    assert 0 < story["killed_after"] < ROUNDS
    assert len(json.loads((story["folder"] / "environment.json").read_text())["starts"]) == 2
    assert ef.open_run(story["folder"]).state == "done"
    assert [entry.round for entry in read(story["folder"])] == list(range(ROUNDS))
    assert not any(entry.refused or entry.turned_away for entry in read(story["folder"]))


def test_the_simulator_makes_the_same_model_of_the_log_to_the_last_bit(story):
    stored, log = ef.open_run(story["folder"]), read_log(story["folder"])
    assert len({work.client for work in log}) >= 2  # on a busy machine a node may not get its turn
    again = replay(experiment(), log)
    records = list(again)
    assert [r.participants.tolist() for r in stored.rounds] == [r.participants.tolist() for r in records]
    for name, value in again.params.items():
        assert stored.params[name].numpy().tobytes() == value.numpy().tobytes(), name


def test_every_work_that_a_client_began_counts_once(story):
    for client in range(CLIENTS):
        assert_once(story["folder"], story["nodes"] / f"node-{client}" / "state", [client])
