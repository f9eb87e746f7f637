"""A server without rounds on Flower, without a network: nodes in threads of their own, each as slow as it is."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

import everfed as ef
from everfed.energy.work import MOMENTS, Work
from everfed.errors import InputError
from everfed.flower import RoundLimits, client_app, remote_run
from everfed.flower.server import stored_remote_rounds
from everfed.run.fleets import CycleFleet
from everfed.run.replay import read_log, replay
from flower_grid import CLIENTS, SMALL, InProcessGrid, fleet_of

pytestmark = pytest.mark.filterwarnings("ignore")

ROUND_S = 0.5
LIMITS = RoundLimits(query_s=20.0, train_s=20.0, wait_s=5.0, round_s=ROUND_S)
TASK = replace(
    SMALL, fleet=CycleFleet(clients=CLIENTS, cycles=(1, 2, 3)), rounds=12, work=Work(duration=0.5), eval_every=6
)
METHODS = ("renewal", "renewal-discounted", "fedbuff", "fedasync", "area")


def task(method, **changes):
    made = TASK.with_method(method)
    if method == "fedbuff":
        made = replace(made, server=ef.SERVER_RULES["fedbuff"](size=3))
    return replace(made, **changes)


class SlowGrid(InProcessGrid):
    """Every node answers in a thread of its own, one message at a time, and is slower the higher its number."""

    def __init__(self, nodes, change=lambda reply, number: reply, slow_s=0.1):
        super().__init__(nodes, change)
        self.slow_s, self.locks = slow_s, {number: threading.Lock() for number in self.nodes}

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self.sent += 1
            number = f"m{self.sent}"
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            threading.Thread(target=self._serve, args=(message, number), daemon=True).start()
        return numbers

    def _serve(self, message, number):
        node = message.metadata.dst_node_id
        with self.locks[node]:
            if not self.nodes[node].online:
                return
            reply = self.nodes[node].handle(message, node)
            if message.metadata.message_type == "train":
                time.sleep(self.slow_s * (node - 100))
            reply = self.change(reply, node)
            if reply is not None:
                self.replies[number] = reply


def run_stored(experiment, folder, grid, limits=LIMITS):
    records = [record for record, _ in stored_remote_rounds(experiment, grid, folder, limits=limits)]
    return ef.open_run(folder), records


def assert_replayed(experiment, folder):
    """The simulator makes the model of the log, to the last bit; returns the log and the replay's records."""
    log = read_log(folder)
    again = replay(experiment, log)
    records = list(again)
    stored = ef.open_run(folder)
    for name, value in again.params.items():
        assert stored.params[name].numpy().tobytes() == value.numpy().tobytes(), name
    for ours, theirs in zip(stored.rounds, records, strict=True):
        assert ours.participants.tolist() == theirs.participants.tolist()
        assert ours.scales.tolist() == theirs.scales.tolist()
    return log, records


@pytest.mark.parametrize("method", METHODS)
def test_the_simulator_repeats_a_deployment_to_the_last_bit(tmp_path, method):
    experiment = task(method)
    grid = SlowGrid(fleet_of(client_app(experiment), CLIENTS))
    _, records = run_stored(experiment, tmp_path, grid)
    log, _ = assert_replayed(experiment, tmp_path)
    assert len(log) > 8
    stale = np.concatenate([r.arrived.staleness for r in records])
    assert stale.max() > 0  # others arrived in between, so that the order matters
    assert {work.client for work in log} == set(range(CLIENTS))
    moments = [work.arrived for work in log]
    assert moments == sorted(set(moments))
    times = np.concatenate([r.arrived.times for r in records])
    assert times.tolist() == [moment / MOMENTS for moment in moments]
    assert all(int(t) == r.round for r in records for t in r.arrived.times)
