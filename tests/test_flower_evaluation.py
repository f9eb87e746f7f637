"""Evaluation on clients: what one of them says of itself does not decide the fleet's number, unless it is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

import everfed as ef
from everfed.flower import EnergyStrategy, client_app, wire
from everfed.flower.evaluation import mean_metrics
from everfed.flower.ledger import read
from everfed.flower.outliers import far
from everfed.store.checkpoint import load_checkpoints
from flower_arrivals import SlowGrid, run_stored, task
from flower_grid import CLIENTS, QUICK, SHORT, InProcessGrid, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore")

CLIENTS_ASKED = 5
SHARES = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
LIAR = 3
HONEST = {"eval_acc": [0.6, 0.7, 0.8, 0.7, 0.5], "eval_loss": [2.0, 1.5, 1.0, 1.4, 2.2]}


def evaluated(lie=None, rounds=1, shares=SHARES, every=1, **more):
    """A fleet in which one client says something else: (its metrics by round, the strategy, its nodes)."""
    fleet, policy = ef.Fleet.from_cycles([1] * CLIENTS_ASKED), ef.Greedy()
    app = own_app(fleet, policy)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        said = {name: values[client] for name, values in HONEST.items()} | {"num-examples": 100}
        said |= lie if lie and client == LIAR else {}
        return Message(RecordDict({"metrics": MetricRecord(said)}), reply_to=message)

    strategy = EnergyStrategy(fleet, policy, shares, limits=QUICK, evaluate_every=every, **more)
    grid = InProcessGrid(fleet_of(app, CLIENTS_ASKED))
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    found = strategy.start(grid, first, num_rounds=rounds)
    return found.evaluate_metrics_clientapp, strategy, list(grid.nodes.values())


def mean_of(name, without=()):
    kept = [c for c in range(CLIENTS_ASKED) if c not in without]
    return float(SHARES[kept] @ np.array(HONEST[name])[kept] / SHARES[kept].sum())


def test_honest_metrics_are_weighed_by_what_the_server_knows(caplog):
    found, *_ = evaluated()
    for name in HONEST:
        assert found[1][name] == pytest.approx(mean_of(name))
    assert (found[1]["clients"], found[1]["limited"]) == (5, 0)
    assert "far from" not in caplog.text


@pytest.mark.parametrize("rounds", [2, 3])
def test_its_bytes_are_in_the_books_of_the_round_it_followed(rounds, tmp_path):
    """As the nodes see them, and once: also of a round after which nobody is asked."""
    (_, without, _), (_, counted, nodes) = (
        evaluated(rounds=rounds, every=every, folder=tmp_path / str(every)) for every in (0, 2)
    )
    kept = read(tmp_path / "2")
    asked = [[m for m in node.received if m.metadata.message_type == "evaluate"] for node in nodes]
    assert [len(messages) for messages in asked] == [1] * CLIENTS_ASKED
    sent = sum(wire.size(message.content) for messages in asked for message in messages)
    for plain, entry, written in zip(
        without.round_server.ledger.entries, counted.round_server.ledger.entries, kept, strict=True
    ):
        due = entry.round == 1
        assert entry.bytes_sent - plain.bytes_sent == (sent if due else 0)
        assert entry.models_sent - plain.models_sent == (CLIENTS_ASKED if due else 0)
        assert (entry.bytes_received > plain.bytes_received) == due
        assert written == entry


@pytest.mark.parametrize("claim", [1, 10**6, 2**62, 1e29, 1e-9])
def test_a_claimed_number_of_examples_moves_nothing(claim):
    found, *_ = evaluated({"num-examples": claim})
    assert found[1]["eval_acc"] == pytest.approx(mean_of("eval_acc"))


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("value", [1e308, -1e308, float("nan"), float("inf"), 1e31])
def test_what_is_no_number_is_left_out_by_name(name, value, caplog):
    found, *_ = evaluated({name: value})
    assert found[1][name] == pytest.approx(mean_of(name, without=[LIAR]))
    assert found[1]["clients"] == 4
    assert f"the evaluation of client {LIAR} is left out: its '{name}' is" in caplog.text


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("value", [1e30, -1e30, 1e6, 50.0, -50.0])
def test_what_is_far_from_the_others_is_limited_and_named(name, value, caplog):
    found, *_ = evaluated({name: value})
    assert f"'{name}' of client {LIAR} is {value:g}, far from what the others say; it counts as" in caplog.text
    assert found[1]["limited"] == 1
    values = np.delete(HONEST[name], LIAR)
    spread = np.ptp(values)
    reach = 20.0 * spread + 21.0 * np.abs(values).max()  # however the liar moves the median within the others
    assert abs(found[1][name] - mean_of(name)) <= SHARES[LIAR] * reach


def test_what_is_far_but_not_too_far_counts_and_is_named(caplog):
    """A client with data of its own may have five times the loss of the others; a liar may say so as well."""
    found, *_ = evaluated({"eval_loss": 20.0})
    assert found[1]["limited"] == 0
    assert found[1]["eval_loss"] == pytest.approx(mean_of("eval_loss") + SHARES[LIAR] * (20.0 - 1.4))
    assert f"'eval_loss' of client {LIAR} is 20, far from what the others say" in caplog.text


@pytest.mark.parametrize("lie", [{"num-examples": 0}, {"num-examples": -5}, {f"m{i}": 1.0 for i in range(200)}])
def test_replies_that_make_no_sense_cost_their_sender_a_quarantine(lie, caplog):
    found, strategy, nodes = evaluated(lie, rounds=5)
    assert [dict(m)["clients"] for m in found.values()] == [4] * 5
    assert "left out until round" in caplog.text
    asked = [m for m in nodes[LIAR].received if m.metadata.message_type == "evaluate"]
    assert len(asked) == 3  # and no more
    assert strategy.round_server.standing.barred_until(LIAR, 4)


def test_fractions_are_never_limited_but_named(caplog):
    """Honest accuracies differ as they like: one client may have the class that the model does not know."""
    draw = np.random.default_rng(0)
    for _ in range(500):
        values = draw.beta(*draw.uniform(0.05, 5.0, 2), size=draw.integers(1, 12))
        weights = draw.dirichlet(np.ones(len(values)))
        assert all(values[i] == nearest for i, nearest in far(values, weights))
    said = {client: {"acc": 0.001 if client else 0.9} for client in range(5)}
    found = mean_metrics(said, np.full(5, 0.2))
    assert found["acc"] == pytest.approx(0.2 * 0.9 + 0.8 * 0.001)
    assert found["limited"] == 0
    assert "'acc' of client 0 is 0.9, far from what the others say" in caplog.text


@pytest.mark.parametrize("clients", [2, 3, 4, 7])
def test_a_liar_with_less_than_half_of_the_weight_is_held_whatever_it_says(clients):
    draw = np.random.default_rng(1)
    for _ in range(200):
        honest = draw.normal(5.0, 1.0, clients)
        for lie in (1e30, -1e30, 1e4, -1e4):
            values = np.array([lie, *honest[1:]])
            counted = values.copy()
            for i, nearest in far(values, np.ones(clients)):
                counted[i] = nearest
            assert counted[1:].tolist() == honest[1:].tolist()
            assert abs(counted[0]) <= 21.0 * np.abs(honest).max() * (1.0 + 1e-9)


def test_a_training_loss_that_is_far_from_the_others_is_named(tmp_path):
    """It is in the records and nowhere else; it counts there, by name."""

    def lie(reply, number):
        if number == 101 and "metrics" in reply.content:
            reply.content["metrics"]["train_loss"] = 1e12
        return reply

    _, _, server = run(SHORT, change=lie)
    assert all(e.odd[1] == "its loss is 1e+12, far from what the others say" for e in server.ledger.entries)
    assert all(set(e.odd) == {1} for e in server.ledger.entries)
    *_, server = run(replace(SHORT, rounds=4))
    assert not any(e.odd for e in server.ledger.entries)
    assert len(server.ledger.entries[0].done) == CLIENTS


def test_without_rounds_too(tmp_path):
    def lie(reply, number):
        if number == 101 and not reply.has_error() and "metrics" in reply.content:
            reply.content["metrics"]["train_loss"] = 1e12
        return reply

    experiment = task("renewal", fleet=replace(SHORT.fleet, cycles=(1,)), rounds=4)
    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), lie, 0.0))
    odd = [e.odd for e in read(tmp_path)]
    assert any(found.get(1) == "its loss is 1e+12, far from what the others say" for found in odd)
    assert all(set(found) <= {1} for found in odd[1:])  # in the first round there may be one alone to compare with


# Other claims that nobody can check


def test_who_makes_up_the_fleets_cost_of_being_asked_is_named():
    def lie(reply, number):
        if number == 101:
            reply.content["everfed"]["asking-j"] = 1e9
        return reply

    def nodes(asking_j):
        return fleet_of(client_app(SHORT), CLIENTS, **({"asking-j": asking_j} if asking_j else {}))

    *_, server = run(SHORT, nodes(2.5), change=lie)
    assert all("1e+09 J, 20 times all others together" in e.odd[1] for e in server.ledger.entries)
    assert all(set(e.odd) == {1} for e in server.ledger.entries)
    for asking_j, change in ((2.5, lambda reply, number: reply), (0.0, lie)):  # honest ones; one device that says it
        *_, server = run(SHORT, nodes(asking_j), change=change)
        assert not any(e.odd for e in server.ledger.entries)


def test_without_rounds_a_client_cannot_invent_what_it_missed_either(tmp_path):
    experiment = task("renewal", fleet=replace(SHORT.fleet, clients=CLIENTS, cycles=(1, 1, 6, 1)), rounds=7)

    def boast(reply, number):
        if number == 102 and not reply.has_error():
            reply.content["everfed"]["planned"] = reply.content["everfed"]["round"] + 1
        return reply

    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), boast, 0.0))
    saved = next(load_checkpoints(tmp_path))
    assert saved.tensors["protocol.own"].tolist()[2] <= 3  # two units have come, and one was there perhaps
