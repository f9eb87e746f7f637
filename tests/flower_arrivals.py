"""Asynchronous runs on nodes of this process, each in threads of its own, and what must hold of them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import cache

from safetensors.numpy import load_file

import everfed as ef
from everfed.energy.work import Work
from everfed.flower import RoundLimits
from everfed.flower.node_state import Memory
from everfed.flower.server import stored_remote_rounds
from everfed.flower.training import LocalTraining
from everfed.flower.wire import Ask
from everfed.run.fleets import CycleFleet
from everfed.run.replay import read_log, replay
from flower_grid import CLIENTS, SMALL, InProcessGrid

TASK = replace(
    SMALL, fleet=CycleFleet(clients=CLIENTS, cycles=(1, 2, 3)), rounds=9, work=Work(duration=0.5), eval_every=3
)
METHODS = ("renewal", "renewal-discounted", "fedbuff", "fedasync", "area")


def task(method, **changes):
    made = TASK.with_method(method)
    if method == "fedbuff":
        made = replace(made, server=ef.SERVER_RULES["fedbuff"](size=3))
    return replace(made, **changes)


@cache
def limits():
    """Rounds as long as this machine needs now for some works, once it is warm."""
    took = []
    for optimizer in (ef.Adam(1e-3), TASK.client, TASK.client):
        began = time.monotonic()
        experiment = task("renewal", client=optimizer, rounds=1)
        local = LocalTraining(experiment, 0)
        local.train(local.setup.layout.flatten(local.setup.module).numpy(), Ask(0), Memory(Context()), 2)
        took.append(time.monotonic() - began)
    return RoundLimits(query_s=20.0, train_s=20.0, wait_s=5.0, round_s=min(max(0.4, 4 * took[-1]), 4.0))


class Context:
    """What a node keeps within a run."""

    def __init__(self):
        self.state = {}


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
            # Not a daemon: a thread that is inside torch when the interpreter ends aborts the process.
            threading.Thread(target=self._serve, args=(message, number)).start()
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


def run_stored(experiment, folder, grid, differences=False, **changes):
    settings = {"limits": replace(limits(), **changes), "differences": differences}
    return [record for record, _ in stored_remote_rounds(experiment, grid, folder, **settings)]


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


def assert_once(folder, state, clients=range(CLIENTS)):
    """Every work that a client began has been counted once, but for the one it is at."""
    log = read_log(folder)
    for client in clients:
        slots = [work.slot for work in log if work.client == client]
        assert slots == sorted(set(slots))
        kept = load_file(next(state.glob(f"*/client-{client}/work.safetensors")))
        waiting = [slot for slot, _ in kept["works"].tolist() if slot not in slots]
        assert len(waiting) <= 1
        assert kept["numbers"][2] == len(slots) + len(waiting)
