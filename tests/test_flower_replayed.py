"""Replies that come twice, late or in another's place: each counts once, for the question that it answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import everfed as ef
from everfed.flower import EnergyStrategy, client_app, remote_run
from everfed.flower.downlink import ABOUT, name_of
from everfed.flower.ledger import read
from everfed.run.replay import read_log
from flower_arrivals import SlowGrid, assert_replayed, run_stored, task
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, counting, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore")

EVERY_ROUND = replace(SMALL.with_method("fedavg"), rounds=4)
EVIL = 101


def assert_same(ours, theirs):
    for name, value in theirs.items():
        assert ours[name].numpy().tobytes() == value.numpy().tobytes(), name


def copied(reply, to):
    """The contents of a reply, as the reply to another message."""
    return Message(RecordDict(dict(reply.content.items())), reply_to=to)


class Twice(InProcessGrid):
    """Every reply is there as often as it is asked for, and each time twice."""

    def pull_messages(self, message_ids):
        return [self.replies[number] for number in message_ids if number in self.replies for _ in range(2)]


class SlowlyTwice(SlowGrid):
    pull_messages = Twice.pull_messages


def test_a_reply_that_comes_twice_counts_once():
    once, *_ = run(EVERY_ROUND)
    made = remote_run(EVERY_ROUND, Twice(fleet_of(client_app(EVERY_ROUND), CLIENTS)), limits=QUICK)
    records = list(made)
    assert_same(made.params, once.params)
    assert all(sorted(r.participants.tolist()) == list(range(CLIENTS)) for r in records)
    assert made.source.round_server.ledger.summary()["done"] == CLIENTS * EVERY_ROUND.rounds


def test_a_reply_that_comes_twice_counts_once_without_rounds(tmp_path):
    experiment = task("renewal", rounds=4)
    run_stored(experiment, tmp_path, SlowlyTwice(fleet_of(client_app(experiment), CLIENTS), slow_s=0.0))
    log, _ = assert_replayed(experiment, tmp_path)
    works = [(work.client, work.slot) for work in log]
    assert works
    assert len(works) == len(set(works))


def old_ones(kinds):
    """The first reply of a node to each kind of message, again and again."""
    kept = {}

    def change(reply, number):
        if number != EVIL or reply.has_error():
            return reply
        kind = "model" if "arrays" in reply.content else "answer"
        first = kept.setdefault(kind, reply)
        return reply if first is reply or kind not in kinds else first

    return change


@pytest.mark.parametrize(
    ("kinds", "two_phase"),
    [(("answer",), True), (("model",), True), (("answer", "model"), True), (("model",), False)],
)
def test_a_reply_of_an_earlier_round_is_refused_by_name(kinds, two_phase):
    _, records, server = run(
        EVERY_ROUND, change=old_ones(kinds), limits=replace(QUICK, two_phase=two_phase, strikes=0)
    )  # fmt: skip
    assert 1 in records[0].participants
    assert not any(1 in record.participants for record in records[1:])
    for entry in server.ledger.entries[1:]:
        (why,) = [*entry.refused.values(), *entry.turned_away.values()]
        assert f"the answer is for round 0, and the question was for round {entry.round}" in why
        assert "client 1" in why or 1 in entry.refused


@pytest.mark.parametrize("kinds", [("answer",), ("model",)])
def test_without_rounds_an_earlier_reply_is_refused_by_name_too(tmp_path, kinds):
    experiment = task("renewal", fleet=replace(SMALL.fleet, cycles=(1,)), rounds=4)
    grid = SlowGrid(fleet_of(client_app(experiment), CLIENTS), old_ones(kinds), 0.0)
    run_stored(experiment, tmp_path, grid)
    assert len([work for work in read_log(tmp_path) if work.client == 1 and work.added]) == 1
    said = [why for e in read(tmp_path) for why in e.turned_away.values()]
    assert said
    assert all(why.startswith("client 1: ") for why in said)
    assert_replayed(experiment, tmp_path)


def test_an_answer_in_the_place_of_a_model_is_none():
    last = {}

    def change(reply, number):
        if number == EVIL and "arrays" in reply.content:
            return last["answer"]
        last["answer"] = reply if number == EVIL else last.get("answer")
        return reply

    _, records, server = run(EVERY_ROUND, change=change)
    assert not any(1 in record.participants for record in records)
    assert "the reply holds no model" in server.ledger.entries[0].refused[1]


def test_replies_to_nothing_and_doubles_do_not_disturb_a_loop_of_ones_own():
    """Flower's own loop hands a strategy whatever came, and a reply says itself what it answers."""
    fleet, policy = ef.Fleet.from_cycles([1, 1, 1]), ef.Greedy()
    strategy = EnergyStrategy(fleet, policy, [1 / 3] * 3, limits=QUICK, evaluate_every=1)
    grid = InProcessGrid(fleet_of(own_app(fleet, policy), 3))
    model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    messages = list(strategy.configure_train(1, model, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    stray = copied(replies[0], messages[0])
    stray.metadata.__dict__["_reply_to_message_id"] = "of somebody else"
    changed, _ = strategy.aggregate_train(1, [*replies, replies[0], stray])
    assert changed["w"].numpy().tolist() == [2.0, 2.0]
    assert strategy.aggregate_evaluate(1, [stray]) is None


# Models that are claimed to be held


def test_who_claims_a_model_that_others_hold_harms_itself_alone():
    """The name is right, but the model is not there: the device cannot read the difference, and says so."""
    experiment = replace(EVERY_ROUND, trainer="one-by-one")
    nodes = fleet_of(client_app(experiment), CLIENTS)

    def claim(reply, number):
        if number == EVIL and not reply.has_error() and "arrays" not in reply.content:
            names = [m.content[ABOUT]["keep"] for m in nodes[0].received if ABOUT in m.content]
            nodes[1].state = RecordDict()
            reply.content["everfed"]["holds"] = names[-1] if names else ""
        return reply

    made, records, server = run(experiment, nodes, change=claim, differences=True)
    lost = [entry.lost.get(1, "") for entry in server.ledger.entries]
    assert lost[0] == ""
    assert all("is lost; the next one will be sent as a whole" in why for why in lost[1:])
    alone = counting(experiment, lambda round, clients: (clients != 1) | (round == 0))
    assert [r.participants.tolist() for r in alone] == [r.participants.tolist() for r in records]
    assert_same(made.params, alone.params)


def test_a_model_of_another_run_is_known_by_its_bits_alone():
    """The same devices, with the first run's last model in their hands, in a second run."""
    experiment = replace(EVERY_ROUND, rounds=2)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    first, *_ = run(experiment, nodes, differences=True)
    again, *_ = run(experiment, nodes, differences=True)
    assert_same(first.params, again.params)
    flat = np.concatenate([value.numpy().reshape(-1) for value in first.params.values()])
    assert name_of(flat) != name_of(flat + np.float32(1e-3))
