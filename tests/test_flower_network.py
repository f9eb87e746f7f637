"""A fleet of real processes over a real connection, with TLS and keys, through kills.

`test_flower` has the same messages without a network. The full set, with eight nodes and every fault, is
experiments/flower_faults.py.
"""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.flower.client import load_experiment
from everfed.flower.identity import make_key
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback
from everfed.methods import plan
from flower_grid import counting

APP = Path(__file__).parents[1] / "examples" / "flower-fleet"
CLIENTS, ROUNDS = 3, 6
CHANGES = f"rounds={ROUNDS} fleet.clients={CLIENTS} fleet.cycles=[1,2] client.kind=adam"
DEADLINE_S = 120.0  # generous: a busy machine must not fail a test, and a late reply would count as lost

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run: the server is killed while client 0 trains; after it resumes, client 2 is killed and comes back."""
    folder = tmp_path_factory.mktemp("fleet")
    with Loopback(folder, CLIENTS) as fleet:
        fleet.start()
        stranger = folder / "stranger"
        make_key(stranger)
        outsiders = {
            "stranger": fleet.start_node(0, key=stranger, name="stranger-node"),
            "plain": fleet.start_node(0, insecure=True, name="plain-node"),
        }
        config = {
            "folder": str(folder / "run"),
            "keys": str(fleet.keys),
            "set": CHANGES,
            "query-s": DEADLINE_S,
            "train-s": DEADLINE_S,
        }
        fleet.submit(APP, config)
        fleet.await_log("node-0", "ROUND 1]", "Receiving: train")
        fleet.kill("superlink")
        killed_after = len(read(folder / "run"))
        exits = {name: fleet.processes[process].poll() for name, process in outsiders.items()}
        fleet.start_server()
        number = fleet.submit(APP, config)
        fleet.await_log("node-2", "ROUND 3]", "Sending: query")
        fleet.kill("node-2")
        back = threading.Thread(target=fleet.restart_node, args=(2,))
        back.start()
        state = fleet.wait(number, 600.0, folder / "run" / "result.json")
        back.join()
        alive = {name: len(fleet.members(name)) for name in fleet.processes}
    left = [pid for name in alive for pid in fleet.members(name)]
    return {
        "folder": folder / "run",
        "state": state,
        "exit": exits["stranger"],
        "outsiders": {name: fleet.log(process, 10**7) for name, process in outsiders.items()},
        "killed_after": killed_after,
        "alive": alive,
        "left": left,
    }


def experiment():
    return load_experiment(APP / "fleet_app" / "experiment.toml", {"set": CHANGES})


def test_the_run_ends_well_though_the_server_was_killed(story):
    assert story["state"]["status"] == "finished:completed"
    assert 0 < story["killed_after"] < ROUNDS
    assert len(json.loads((story["folder"] / "environment.json").read_text())["starts"]) == 2  # started twice
    assert ef.open_run(story["folder"]).state == "done"


def test_every_client_that_was_heard_did_what_the_simulator_says(story):
    steps = plan(experiment().make_fleet(), experiment().policy, ROUNDS)
    entries = read(story["folder"])
    assert [e.round for e in entries] == list(range(ROUNDS))
    for step, entry in zip(steps, entries, strict=True):
        expected = [c for c in step.clients.tolist() if c not in entry.absent]
        assert sorted(entry.planned) == expected


def test_the_model_is_that_of_a_simulation_with_the_same_losses(story):
    stored = ef.open_run(story["folder"])
    done = [list(e.done) for e in read(story["folder"])]
    simulated = counting(experiment(), lambda round, clients: np.isin(clients, done[round]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = list(simulated)
    assert [r.participants.tolist() for r in stored.rounds] == [r.participants.tolist() for r in expected]
    for name, value in simulated.params.items():
        np.testing.assert_allclose(stored.params[name].numpy(), value.numpy(), atol=1e-6)


def test_the_books_add_up_and_no_round_outlasts_its_deadlines(story):
    entries = read(story["folder"])
    for entry in entries:
        assert sorted(entry.planned) == sorted([*entry.done, *entry.lost, *entry.refused])
        assert not entry.refused
        assert entry.query_s < 1.1 * max(DEADLINE_S, 60.0)  # the first question waits as long as for the fleet
        assert entry.train_s < 1.1 * DEADLINE_S
    summary = json.loads((story["folder"] / "deployment.json").read_text())
    assert summary["planned"] == sum(len(e.planned) for e in entries)
    assert summary["models_sent"] == summary["planned"]


def test_strangers_and_plain_text_are_refused(story):
    assert story["exit"] not in (None, 0)  # the one is sent away, the other tries for ever
    for log in story["outsiders"].values():
        assert "Starting Flower SuperNode" in log
        assert "SuperNode ID" not in log  # which a node says once it is let in


def test_nothing_is_left_running(story):
    assert story["alive"]["superlink"] > 0
    assert story["alive"]["node-0"] > 0
    assert story["left"] == []
