"""A grid without a network: messages go straight to ClientApps of this process, each with its own Context."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from everfed.flower import EnergyMod, RoundLimits, Simulated, client_app, remote_run
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.rounds import LocalRounds
from everfed.run.start import start

CLIENTS = 4
SMALL = Experiment(fleet=CycleFleet(clients=CLIENTS, cycles=(1, 2, 4)), rounds=8, eval_every=4, device="cpu")
SHORT = replace(SMALL.with_method("fedavg"), rounds=2)
QUICK = RoundLimits(query_s=20.0, train_s=20.0, wait_s=0.0)


class Node:
    """A node: its ClientApp, its configuration, and what it keeps within a run."""

    def __init__(self, app, config, run_config=None, public_key=b""):
        self.app, self.config, self.run_config, self.public_key = app, config, run_config or {}, public_key
        self.state, self.online, self.received = RecordDict(), True, []

    def handle(self, message, number):
        self.received.append(message)
        context = Context(0, number, self.config, self.state, self.run_config)
        try:
            reply = self.app(message, context)
        except Exception as error:
            return Message(Error(2, str(error)), reply_to=message)
        self.state = context.state
        return reply


class InProcessGrid(Grid):
    """change: called with every reply and its node's number; may return another reply, or None to lose it."""

    def __init__(self, nodes, change=lambda reply, number: reply):
        self.nodes, self.change = dict(enumerate(nodes, start=100)), change
        self.replies, self.sent = {}, 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as a SuperLink would set them

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None): ...

    def get_node_ids(self):
        return [number for number, node in self.nodes.items() if node.online]

    def get_nodes(self):
        return [SimpleNamespace(node_id=n, public_key=self.nodes[n].public_key) for n in self.get_node_ids()]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"m{self.sent}"
            numbers.append(f"m{self.sent}")
            number = message.metadata.dst_node_id
            if self.nodes[number].online:
                reply = self.change(self.nodes[number].handle(message, number), number)
                if reply is not None:
                    self.replies[f"m{self.sent}"] = reply
        return numbers

    def pull_messages(self, message_ids):
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def counting(experiment, counts):
    """The simulation in which a participant counts only where counts(round, clients), a mask, says so."""
    simulated = start(experiment)

    class Counted(LocalRounds):
        def next(self, round, params):
            step = self.schedule.plan_round(round)
            keep = counts(round, step.clients)
            step = replace(step, clients=step.clients[keep], scales=step.scales[keep])
            return step, self.trainer.train(params, step.clients, round)

    return replace(simulated, source=Counted(simulated.source.schedule, simulated.source.trainer))


def own_app(fleet, policy):
    """A plain Flower app whose mod is its own."""
    return adding_its_number(EnergyMod(policy, Simulated(fleet)).app())


def adding_its_number(app):
    """An app's training: its update is its client's number plus one, whatever it is sent."""

    @app.train()
    def train(message, context):
        step = np.float32(context.node_config["partition-id"] + 1)
        arrays = ArrayRecord({n: Array(a.numpy() + step) for n, a in message.content["arrays"].items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"train_loss": 1.0})}), reply_to=message)

    return app


def fleet_of(app, clients, run_config=None, **config):
    return [Node(app, {"partition-id": i, **config}, run_config) for i in range(clients)]


def run(experiment, nodes=None, change=lambda reply, number: reply, **settings):
    """An experiment on nodes of this process: (the finished run, its records, its protocol)."""
    grid = InProcessGrid(nodes or fleet_of(client_app(experiment), CLIENTS), change)
    made = remote_run(experiment, grid, **{"limits": QUICK, **settings})
    return made, list(made), made.source.round_server
