"""The server's side on Flower without a network: what must not count, losses, resuming, the strategy."""

from __future__ import annotations

import ssl
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

import everfed as ef
from everfed.errors import InputError
from everfed.flower import EnergyStrategy, Roster, RoundLimits, client_app, remote_run
from everfed.flower.certificates import make_certificates
from everfed.flower.identity import make_key, read_key
from everfed.flower.ledger import read
from everfed.flower.server import stored_remote_rounds
from everfed.methods import plan
from everfed.server.robust import DEFENCES
from flower_grid import CLIENTS, QUICK, SHORT, SMALL, InProcessGrid, Node, counting, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def spoil(how):
    """Change the replies of node 101, client 1, to the question or to the model."""

    def change(reply, number):
        if number != 101 or reply.has_error():
            return reply
        answer, arrays = reply.content["everfed"], reply.content.get("arrays")
        if how == "empty":
            reply.content.pop("everfed")
        elif how in ("scale", "client", "round"):
            answer[how] = {"scale": 1e6, "client": 0, "round": 99}[how]
        elif arrays is not None:
            name, values = next((n, a.numpy()) for n, a in arrays.items())
            changed = {
                "nan": np.full_like(values, np.nan),
                "huge": values + np.float32(1e3),
                "shape": values[:-1],
                "dtype": values.astype(np.float64),
            }.get(how)
            kept = {n: a for n, a in arrays.items() if not (n == name and how == "missing")}
            reply.content["arrays"] = ArrayRecord(kept if changed is None else {**kept, name: Array(changed)})
        return reply

    return change


def without(client):
    """The simulation of SHORT in which one client never counts."""
    return counting(SHORT, lambda round, clients: clients != client)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "not finite"),
        ("huge", "above the bound"),
        ("shape", "of shape"),
        ("dtype", "float64"),
        ("missing", "not the model's"),
        ("scale", "above its limit"),
        ("client", "answers for client 0"),
        ("round", "for round 99"),
        ("empty", "no record"),
    ],
    ids=["nan", "huge", "shape", "dtype", "missing", "scale", "another-client", "another-round", "empty"],
)
def test_a_bad_reply_is_refused_named_counted_and_changes_nothing(how, reason):
    made, records, protocol = run(SHORT, change=spoil(how), limits=replace(QUICK, max_norm=50.0))
    entries = protocol.ledger.entries
    said = [why for e in entries for why in (*e.refused.values(), *e.turned_away.values())]
    assert len(said) == SHORT.rounds
    assert all(reason in why for why in said)
    assert all(1 not in e.done for e in entries)
    assert all(sorted(e.planned) == sorted([*e.done, *e.refused, *e.lost]) for e in entries)
    simulated = without(1)
    list(simulated)
    for name, value in simulated.params.items():
        np.testing.assert_allclose(made.params[name].numpy(), value.numpy(), atol=1e-6)
    assert all(1 not in r.participants for r in records)


def test_a_rare_client_cannot_speak_in_every_round():
    def insist(reply, number):
        if number == 102:  # client 2 has a cycle of 4
            reply.content["everfed"]["join"] = True
        return reply

    _, _, protocol = run(SMALL, change=insist)
    turned = [why for e in protocol.ledger.entries for why in e.turned_away.values()]
    assert turned
    assert all("takes part without energy" in why for why in turned)
    assert protocol.ledger.counts("done")[2] <= SMALL.rounds / 4


def test_a_key_speaks_for_one_client_only(tmp_path):
    keys = [make_key(tmp_path / str(client)) for client in range(CLIENTS)]
    assert (tmp_path / "0").stat().st_mode & 0o077 == 0
    roster = Roster.read(tmp_path)
    app = client_app(SMALL)
    nodes = [Node(app, {"client": c}, public_key=read_key(keys[c])) for c in range(CLIENTS)]
    nodes[1].config = {"client": 3}  # a registered node that pretends to be another
    nodes.append(Node(app, {"client": 0}, public_key=b"a stranger's"))
    _, _, protocol = run(SMALL, nodes, roster=roster)
    turned = {why for e in protocol.ledger.entries for why in e.turned_away.values()}
    said = "client 1: it answers for client 3, but its key is client 1's"
    assert turned == {said, f"{said}; left out until round 23"}
    assert all(1 in e.absent and 3 not in e.absent for e in protocol.ledger.entries)
    assert nodes[-1].received == []


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: None, "no public keys"),
        (lambda f: (f / "first.pub").write_text("x"), "not named after a client"),
        (lambda f: (f / "0.pub").write_text("x"), "not a public key"),
        (lambda f: (f / "1.pub").write_bytes(make_key(f / "0").read_bytes()), "same key"),
    ],
)
def test_a_roster_that_cannot_be_used_is_refused(tmp_path, prepare, message):
    prepare(tmp_path)
    with pytest.raises(InputError, match=message):
        Roster.read(tmp_path)


def test_two_nodes_cannot_be_one_client_without_keys():
    nodes = fleet_of(client_app(SMALL), CLIENTS)
    nodes.append(Node(client_app(SMALL), {"client": 0}))
    _, _, protocol = run(SMALL, nodes)
    turned = [why for e in protocol.ledger.entries for why in e.turned_away.values()]
    assert len(turned) == SMALL.rounds
    assert all(why.endswith("already answers for that client") for why in turned)


def test_certificates_name_the_server(tmp_path):
    make_certificates(tmp_path, ["127.0.0.1", "fleet.example"])
    found = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    found.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    assert len(found.get_ca_certs()) == 1


# Faults


def test_losses_are_counted_and_their_bias_shown():
    def lose(reply, number):
        return None if number == 102 and "arrays" in reply.content else reply

    _, records, protocol = run(SHORT, change=lose, limits=replace(QUICK, train_s=3.0))
    summary = protocol.ledger.summary()
    assert summary["planned"] == CLIENTS * SHORT.rounds
    assert summary["lost"] == SHORT.rounds
    assert summary["done"] == summary["planned"] - summary["lost"]
    assert summary["worst_client"] == 2
    assert summary["worst_delivered"] == 0.0
    share = protocol.ledger.shares[2]
    assert summary["bias"] == pytest.approx(share)  # all of its weight went to the others
    assert all(2 not in r.participants for r in records)


def test_a_client_that_was_away_says_what_it_missed():
    nodes = fleet_of(client_app(SMALL), CLIENTS)
    grid = InProcessGrid(nodes)
    made = remote_run(SMALL, grid, limits=QUICK)
    records = []
    for record in made:
        records.append(record)
        nodes[0].online = not 1 <= record.round < 4  # away in rounds 2, 3 and 4
    protocol = made.source.round_server
    assert [e.round for e in protocol.ledger.entries if 0 in e.absent] == [2, 3, 4]
    assert protocol.ledger.summary()["missed"] == 3
    steps = list(plan(SMALL.make_fleet(), SMALL.policy, SMALL.rounds))
    for step, entry in zip(steps, protocol.ledger.entries, strict=True):
        there = [c for c in step.clients.tolist() if c not in entry.absent]
        assert sorted(entry.done) == there  # back at once where the simulator has it


def test_an_empty_fleet_blocks_nothing():
    made = remote_run(SMALL, InProcessGrid([]), limits=QUICK)
    records = list(made)
    assert len(records) == SMALL.rounds
    assert all(len(r.participants) == 0 for r in records)


def test_an_app_that_raises_is_a_lost_participation():
    def broken(x):
        raise RuntimeError("out of memory")

    nodes = fleet_of(client_app(SMALL), CLIENTS)
    nodes[0] = Node(client_app(SMALL, samples=broken), {"client": 0})
    _, _, protocol = run(SMALL, nodes)
    assert all(e.lost == {0: "its app raised an error: RuntimeError: out of memory"} for e in protocol.ledger.entries)


@pytest.mark.parametrize("optimizer", [SMALL.client, ef.Adam(1e-3)], ids=["sgd", "adam"])
def test_a_killed_server_goes_on_and_ends_alike(tmp_path, optimizer):
    experiment = replace(SMALL, client=optimizer)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    grid = InProcessGrid(nodes)

    class KilledError(Exception):
        pass

    def kill(reply, number):  # in round 3, after clients have trained and changed their state
        if grid.sent and nodes[0].received[-1].metadata.group_id == "3" and "arrays" in reply.content:
            raise KilledError
        return reply

    grid.change = kill
    with pytest.raises(KilledError):
        list(stored_remote_rounds(experiment, grid, tmp_path, limits=QUICK))
    assert len(read(tmp_path)) == 3
    grid.change = lambda reply, number: reply
    rest = [record.round for record, _ in stored_remote_rounds(experiment, grid, tmp_path, limits=QUICK)]
    assert rest == list(range(3, SMALL.rounds))
    stored, simulated = ef.open_run(tmp_path), ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in stored.rounds] == [r.participants.tolist() for r in expected]
    for name, value in simulated.params.items():
        np.testing.assert_allclose(stored.params[name].numpy(), value.numpy(), atol=1e-6)
    assert [e.round for e in read(tmp_path)] == list(range(SMALL.rounds))


def test_early_stopping_ends_where_a_simulation_does():
    watched = replace(
        SMALL,
        client=ef.SGD(1.5),
        eval_every=1,
        early_stopping=ef.EarlyStopping(part=0.2, patience=1),
        trainer="batched",
    )
    expected = ef.simulate(watched)
    made, records, _ = run(watched)
    found = made.history(records)
    assert len(found.rounds) == len(expected.rounds) < SMALL.rounds
    assert found.model_round == expected.model_round
    assert found.curve("loss", on="validation")[1] == pytest.approx(
        expected.curve("loss", on="validation")[1], rel=1e-3
    )
    with pytest.raises(InputError, match="early_stopping holds samples out of the experiment's own data"):
        remote_run(watched, InProcessGrid([]), data=watched.make_data(watched.make_fleet()))


def test_coordinated_clients_stay_right_through_a_new_server(tmp_path):
    experiment = SMALL.with_method("wait-for-all")
    grid = InProcessGrid(fleet_of(client_app(experiment), CLIENTS))
    for record, _ in stored_remote_rounds(experiment, grid, tmp_path, limits=QUICK):
        if record.round == 4:
            break
    fresh = InProcessGrid(fleet_of(client_app(experiment), CLIENTS))  # nodes that remember nothing
    list(stored_remote_rounds(experiment, fresh, tmp_path, limits=QUICK))
    participants = [r.participants.tolist() for r in ef.open_run(tmp_path).rounds]
    assert participants == [s.clients.tolist() for s in plan(experiment.make_fleet(), experiment.policy, SMALL.rounds)]


# A strategy for apps of one's own


def start(strategy, grid, rounds=6):
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    return strategy.start(grid, first, num_rounds=rounds).arrays["w"].numpy()


def test_the_strategy_sums_scaled_updates_without_normalising(tmp_path):
    fleet, shares = ef.Fleet.from_cycles([1, 2, 3]), np.array([0.5, 0.25, 0.25])
    grid = InProcessGrid(fleet_of(own_app(fleet, ef.UniformWindow()), 3))
    steps = list(plan(fleet, ef.UniformWindow(), 6))
    expected = sum(
        shares[c] * scale * (c + 1) for s in steps for c, scale in zip(s.clients.tolist(), s.scales, strict=True)
    )
    strategy = EnergyStrategy(fleet, ef.UniformWindow(), shares, limits=QUICK, folder=tmp_path)
    assert start(strategy, grid) == pytest.approx([expected] * 2)
    # Flower's own loop can drive it too.
    plain = EnergyStrategy(fleet, ef.UniformWindow(), shares, limits=QUICK)
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    result = Strategy.start(plain, grid, first, num_rounds=6)
    assert result.arrays["w"].numpy() == pytest.approx([expected] * 2)
    # And a strategy that is started again goes on where its folder is.
    again = EnergyStrategy(fleet, ef.UniformWindow(), shares, limits=QUICK, folder=tmp_path)
    assert start(again, grid) == pytest.approx([expected] * 2)
    assert again.round_server.ledger.summary()["done"] == sum(len(s.clients) for s in steps)


def test_the_strategy_takes_rules_and_optimisers():
    fleet, shares = ef.Fleet.from_cycles([1, 1]), np.array([0.5, 0.5])
    grid = InProcessGrid(fleet_of(own_app(fleet, ef.Greedy()), 2))
    halved = EnergyStrategy(fleet, ef.Greedy(), shares, limits=QUICK, server_optimizer=ef.SERVER_OPTIMIZERS["sgd"](0.5))
    assert start(halved, grid, 2) == pytest.approx([1.5, 1.5])
    mean = EnergyStrategy(
        fleet, ef.Greedy(), np.array([0.25, 0.75]), limits=QUICK, server=ef.SERVER_RULES["normalized"]()
    )
    assert start(mean, grid, 1) == pytest.approx([1.75, 1.75])
    with pytest.raises(InputError, match="one number for each"):
        EnergyStrategy(fleet, ef.Greedy(), np.array([1.0]))


def test_the_strategy_takes_a_defence():
    """Updates of 1, 2 and 3: the median of the three, each with a third of the weight."""
    fleet = ef.Fleet.from_cycles([1, 1, 1])
    grid = InProcessGrid(fleet_of(own_app(fleet, ef.Greedy()), 3))
    shares = np.array([0.25, 0.25, 0.5])
    plain = EnergyStrategy(fleet, ef.Greedy(), shares, limits=QUICK)
    assert start(plain, grid, 1) == pytest.approx([2.25, 2.25])
    median = EnergyStrategy(fleet, ef.Greedy(), np.full(3, 1 / 3), limits=QUICK, robust=DEFENCES["median"]())
    assert start(median, grid, 1) == pytest.approx([2.0, 2.0])
    heavy = EnergyStrategy(fleet, ef.Greedy(), np.array([0.1, 0.1, 0.8]), limits=QUICK, robust=DEFENCES["median"]())
    assert start(heavy, grid, 1) == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("scaffold", "changes the clients' gradients"),
        ("ht-scaffold", "changes the clients' gradients"),
        ("fedawe", "from a model of its own"),
        ("mifa", r"learning rate, which is unknown here.*last-updates"),
    ],
)
def test_the_strategy_says_which_rules_it_cannot_serve(rule, words):
    strategy = EnergyStrategy(
        ef.Fleet.from_cycles([1, 1]), ef.Greedy(), np.array([0.5, 0.5]), server=ef.SERVER_RULES[rule]()
    )
    with pytest.raises(InputError, match=words):
        strategy.begin(ArrayRecord({"w": Array(np.zeros(2, np.float32))}))


@pytest.mark.parametrize("wrong", [{"query-s": 0}, {"scale-slack": 0.5}, {"max-norm": -1}, {"train-sec": 3}])
def test_terms_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError):
        RoundLimits.of(wrong)
