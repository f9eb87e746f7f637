"""Devices on Flower with settings, data and lives of their own: configuration, own data, one run after another."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import nn
from typer.testing import CliRunner

import everfed as ef
from everfed.cli import app as cli
from everfed.data.federated import from_arrays
from everfed.errors import InputError
from everfed.flower import EnergyStrategy, Measured, RoundLimits, client_app, remote_run, server_app
from everfed.flower.calls import Call, Offer
from everfed.flower.device import energy_of, metered, samples_of
from everfed.flower.ledger import read
from everfed.flower.meters import FromCommand, FromFile, PowerSupply
from everfed.flower.own_data import sized
from everfed.flower.run_config import limits_in
from everfed.flower.server import stored_remote_rounds
from everfed.flower.training import LocalTraining
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, Node, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EVEN = replace(SMALL, client=ef.SGD(0.1), rounds=4, eval_every=2)  # a rate that does not follow the rounds
LIMITS = {"query-s": 20.0, "train-s": 20.0, "wait-s": 0.0}


def serve(app, nodes, folder, **more):
    """A whole ServerApp on nodes of this process."""
    config = {"folder": str(folder), **LIMITS, **more}
    for node in nodes:
        node.run_config = config
    app(InProcessGrid(nodes), Context(1, 1, {}, RecordDict(), config))
    return ef.open_run(folder)


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), atol=1e-6)


def read_by_commands(folder, count):
    call = CliRunner().invoke
    listed = call(cli.app, ["runs", str(folder), "--json"])
    assert listed.exit_code == 0, listed.output
    assert listed.output.count('"state": "done"') == count
    for command, out in (("report", "page.html"), ("figure", "figure.svg")):
        done = call(cli.app, [command, str(folder), "-o", str(folder / out)])
        assert done.exit_code == 0, done.output
        assert (folder / out).stat().st_size > 1000


# Settings of a device


@pytest.mark.parametrize(
    ("config", "meter"),
    [
        ({"meter": "power-supply", "cost-j": 120, "reserve": 0.1}, PowerSupply(120.0, reserve=0.1)),
        (
            {"meter": "power-supply", "cost-j": 5.0, "battery": "BAT1", "path": "/my/data"},
            PowerSupply(5.0, name="BAT1"),
        ),
        ({"meter": "file", "path": "/run/joules", "cost": 3}, FromFile("/run/joules", 3.0)),
        ({"meter": "command", "command": "cat '/run/my joules'", "cost": 3}, FromCommand(("cat", "/run/my joules"), 3)),
    ],
)
def test_a_nodes_configuration_makes_its_meter(config, meter):
    assert metered({"client": 1, "cycle": 20, "capacity": 2, "my-data": "x", **config}) == Measured(
        meter, cycle=20, capacity=2.0
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"meter": "sun"}, "unknown meter 'sun'.*power-supply"),
        ({"meter": "file", "path": "x"}, "needs 'cost'"),
        ({"meter": "file", "path": "x", "cost": "3 J"}, "'cost' .* is '3 J'; it must be a number"),
        ({"meter": "file", "path": "x", "cost": 1, "cycle": 2.5}, "must be a whole number"),
        ({"meter": "file", "path": "x", "cost": 1, "cost-j": 5}, "takes no 'cost-j'"),
        ({"metre": "file"}, "unknown key 'metre'.*Did you mean 'meter'"),
        ({"cycle": 20}, "'cycle' but no meter"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_in_words(config, words):
    with pytest.raises(InputError, match=words):
        metered({"client": 0, **config})


def test_energy_and_samples_see_the_nodes_configuration():
    node = {"client": 3, "cost": 7.0, "data": "/srv/mine"}
    made = energy_of(lambda client, config: Measured(FromFile(f"/run/{client}", config["cost"])), node)
    assert made == Measured(FromFile("/run/3", 7.0))
    assert energy_of(made, node) is made
    assert samples_of(lambda client, config: (client, config["data"]), node) == (3, "/srv/mine")
    assert samples_of(lambda client, seed=5: (client, seed), node) == (3, 5)
    for wrong in (5, lambda client, config: 5):
        with pytest.raises(InputError, match="energy"):
            energy_of(wrong, node)


def test_meters_of_the_configuration_decide_who_trains(tmp_path):
    (tmp_path / "full").write_text("9")
    (tmp_path / "empty").write_text("0")
    experiment = replace(EVEN, rounds=2).with_method("greedy")
    app = client_app(experiment)
    where = [str(tmp_path / ("empty" if client == 1 else "full")) for client in range(CLIENTS)]
    nodes = [Node(app, {"client": c, "meter": "file", "path": where[c], "cost": 1.0}) for c in range(CLIENTS)]
    _, records, _ = run(experiment, nodes, limits=replace(QUICK, scale_slack=9.0))
    assert [r.participants.tolist() for r in records] == [[0, 2, 3]] * 2


def test_keys_of_ones_own_pass_and_slips_are_caught(caplog):
    with caplog.at_level(logging.INFO, "flwr.everfed"):
        found = limits_in({"folder": "x", "set": "", "query-s": 7, "lr": 0.1, "local-epochs": 2})
    assert found == RoundLimits(query_s=7.0)
    assert "local-epochs, lr" in caplog.text
    for slip, meant in {"trian-s": "train-s", "folders": "folder", "late-joiner": "late-joiners"}.items():
        with pytest.raises(InputError, match=f"unknown key '{slip}'.*Did you mean '{meant}'"):
            limits_in({slip: 1})


# Data that only the devices have


def own_pairs():
    """Each client knows three of six classes at most."""
    draw = np.random.default_rng(3)
    labels = [draw.integers(first, first + 3, 30) for first in (0, 0, 2, 3)]
    return [(draw.normal(size=(30, 5)).astype(np.float32) + y[:, None], y) for y in labels]


def test_clients_that_lack_classes_train_the_whole_model_and_the_server_has_no_training_data(tmp_path):
    pairs = own_pairs()
    draw = np.random.default_rng(4)
    test = draw.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 6
    experiment = replace(EVEN, data=ef.Experiment.data, model=ef.MODELS["logistic"]())
    app = client_app(experiment, samples=lambda client, config: pairs[config["shelf"]])
    nodes = [Node(app, {"client": c, "shelf": c}) for c in range(CLIENTS)]
    stored = serve(server_app(experiment, sizes=[30] * 4, test=test), nodes, tmp_path / "run", **{"my-key": 1})
    whole = replace(experiment, data=from_arrays(pairs, test=test, classes=6), split=ef.Experiment.split)
    simulated = ef.simulate(whole)
    assert_close(stored.params, simulated.params)
    assert stored.final.accuracy == simulated.final.accuracy
    assert stored.final.group_accuracy is None  # of nobody's test samples
    read_by_commands(tmp_path, 1)


def test_a_label_outside_is_refused_in_a_sentence_and_named_on_the_server():
    pairs = own_pairs()
    nodes = fleet_of(client_app(EVEN, samples=lambda client: pairs[client]), CLIENTS)
    test = np.zeros((4, 5), np.float32), [0, 1, 2, 3]
    made = remote_run(replace(EVEN, rounds=1), InProcessGrid(nodes), data=sized([30] * 4, test), limits=QUICK)
    list(made)
    (entry,) = made.source.ledger.entries
    assert "InputError: the label of training sample" in entry.lost[3]
    assert "labels of 4 classes run from 0 to 3" in entry.lost[3]


@pytest.mark.parametrize(
    ("task", "y", "test", "classes"),
    [
        ("next-token", [[1, 2], [0, 1]], [[5, 6], [1, 3]], 7),
        ("multilabel", [[1, 0, 0], [0, 1, 0]], [[1, 0, 1], [0, 0, 0]], 3),
        ("regression", [0.5, 1.0], [0.0, 2.0], 0),
    ],
)
def test_other_tasks_take_their_outputs_from_the_server_too(task, y, test, classes):
    x = np.array([[1, 2], [3, 4]]) if task == "next-token" else np.eye(2, dtype=np.float32)
    known = sized([2] * CLIENTS, (x, test), task=task, classes=classes or None)
    assert (known.task, known.classes, known.sizes().tolist()) == (task, classes, [2] * CLIENTS)
    kind = nn.Embedding(7, 7) if task == "next-token" else "logistic"
    own = replace(EVEN, model=kind, task=task)
    told = {"task": known.task, "classes": known.classes}
    local = LocalTraining(own, 1, lambda client: (x, y), told=told)
    assert (local.setup.data.task, local.setup.data.classes) == (task, classes)


@pytest.mark.parametrize(
    ("sizes", "test", "words"),
    [([0, 3], (np.eye(2), [0, 1]), "sizes is"), ([3.5], (np.eye(2), [0, 1]), "sizes is"), ([3], None, "a test set")],
)
def test_sizes_that_make_no_sense_are_refused(sizes, test, words):
    with pytest.raises(InputError, match=words):
        sized(sizes, test)


def test_a_model_of_ones_own_is_run_reported_and_drawn(tmp_path):
    own = replace(EVEN, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    app = client_app(own)
    stored = serve(server_app(own), fleet_of(app, CLIENTS), tmp_path / "runs" / "one", set="rounds=2")
    assert_close(stored.params, ef.simulate(replace(own, rounds=2)).params)
    ef.simulate(replace(own, rounds=2, seed=1), out=tmp_path / "runs" / "two")
    read_by_commands(tmp_path / "runs", 2)


# One run after another


@pytest.mark.parametrize("stored", [True, False], ids=["folder", "context"])
def test_nothing_leaks_from_one_run_into_the_next(tmp_path, stored):
    experiment = replace(EVEN, client=ef.Adam(1e-3), policy=ef.POLICIES["self-weighted"]())
    level = tmp_path / "level"

    def nodes(name):
        meter = {"meter": "file", "path": str(level), "cost": 1.0}
        where = [{"state-dir": str(tmp_path / name / str(c))} if stored else {} for c in range(CLIENTS)]
        return [Node(client_app(experiment), {"client": c, **meter, **where[c]}) for c in range(CLIENTS)]

    def once(nodes, *levels):
        level.write_text(levels[0])
        made = remote_run(experiment, InProcessGrid(nodes), limits=replace(QUICK, scale_slack=9.0))
        records = []
        for record in made:
            records.append(record)
            level.write_text(levels[min(record.round + 1, len(levels) - 1)])
        return made, records

    kept = nodes("kept")
    once(kept, "5")
    again, records = once(kept, "0", "0", "0", "5")  # who first trains in the last round has no state before it
    fresh, expected = once(nodes("fresh"), "0", "0", "0", "5")
    assert [len(r.participants) for r in records] == [0, 0, 0, CLIENTS]
    assert_equal(again.params, fresh.params)
    assert [r.scales.tolist() for r in records] == [r.scales.tolist() for r in expected]
    assert [r.energy.to_dict() for r in records] == [r.energy.to_dict() for r in expected]


def test_a_finished_run_gets_more_rounds(tmp_path):
    experiment = replace(EVEN, client=ef.Adam(1e-3))
    nodes = fleet_of(client_app(experiment), CLIENTS, **{"state-dir": str(tmp_path / "state")})
    folder = tmp_path / "run"
    assert len(serve(server_app(experiment), nodes, folder).rounds) == 4
    longer = serve(server_app(experiment), nodes, folder, set="rounds=6")
    assert len(longer.rounds) == 6
    whole = serve(server_app(experiment), fleet_of(client_app(experiment), CLIENTS), tmp_path / "whole", set="rounds=6")
    assert_equal(longer.params, whole.params)
    assert [e.round for e in read(folder)] == list(range(6))
    assert [len(r.participants) for r in longer.rounds] == [len(r.participants) for r in whole.rounds]


def test_a_client_without_rounds_learns_of_more_of_them():
    experiment = replace(EVEN, rounds=3).with_method("renewal")
    InProcessGrid([])  # sets the run that messages belong to

    def offers(*asked):
        node = Node(client_app(experiment), {"client": 1})
        for round, changes in asked:
            node.run_config = {"set": changes}
            counted = {1: -1 if round == 0 else round - 1}
            call = Call(5, round, counted, counted)
            yield node.handle(Message(RecordDict({"everfed": call.to_record()}), 7, "query.everfed"), 7)

    added = [Offer.of(reply.content) for reply in offers(*((r, "" if r < 3 else "rounds=8") for r in range(8)))]
    whole = [Offer.of(reply.content) for reply in offers(*((r, "rounds=8") for r in range(8)))]
    assert [(o.join, o.slot) for o in added] == [(o.join, o.slot) for o in whole]
    assert any(o.join for o in added[3:])


def test_more_rounds_are_refused_where_earlier_ones_would_have_been_others(tmp_path):
    short = replace(SMALL, rounds=2)  # its rate falls to the end of the run
    grid = InProcessGrid(fleet_of(client_app(short), CLIENTS))
    list(stored_remote_rounds(short, grid, tmp_path, limits=QUICK))
    with pytest.raises(InputError, match="cannot be extended from 2 to 4 rounds: its learning rates follow"):
        list(stored_remote_rounds(replace(short, rounds=4), grid, tmp_path, limits=QUICK))


def test_who_joins_later_has_its_share_from_then_on(tmp_path):
    fleet, shares = ef.Fleet.from_cycles([1, 1, 1]), np.array([0.5, 0.25, 0.25])
    nodes = fleet_of(own_app(fleet, ef.Greedy()), 3)
    nodes[2].online = False
    grid = InProcessGrid(nodes)
    first = ArrayRecord({"w": Array(np.zeros(1, np.float32))})

    def rounds(number):
        strategy = EnergyStrategy(fleet, ef.Greedy(), shares, limits=QUICK, folder=tmp_path, late_joiners=True)
        return strategy.start(grid, first, num_rounds=number).arrays["w"].numpy()[0]

    without = (0.5 * 1 + 0.25 * 2) / 0.75  # each client's update is its number plus one
    assert rounds(2) == pytest.approx(2 * without)
    nodes[2].online = True
    assert rounds(3) == pytest.approx(2 * without + 0.5 * 1 + 0.25 * 2 + 0.25 * 3)
    nodes[2].online = False  # who has come keeps its share, and is missed
    assert rounds(4) == pytest.approx(2 * without + 1.75 + 0.5 * 1 + 0.25 * 2)
    assert [e.joined for e in read(tmp_path)] == [[0, 1], [], [2], []]


def test_late_joiners_need_a_rule_that_sums():
    fedau = replace(SMALL, server=ef.SERVER_RULES["fedau"]())
    with pytest.raises(InputError, match="FedAU works with the shares of the whole fleet"):
        remote_run(fedau, InProcessGrid([]), late_joiners=True)
    with pytest.raises(InputError, match="clients may come at any time"):
        remote_run(SMALL.with_method("renewal"), InProcessGrid([]), late_joiners=True)
