"""How long an update may be: of devices that send a random part of it, without rounds, and through a restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord

import everfed as ef
from everfed.energy.work import MOMENTS
from everfed.flower import EnergyStrategy, client_app
from everfed.flower.ledger import read
from everfed.flower.norms import NormBound
from everfed.learning.compress import RandK
from everfed.run.replay import read_log
from flower_arrivals import SlowGrid, assert_replayed, run_stored, task
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPES = {
    "even": lambda draw, size: np.ones(size),
    "normal": lambda draw, size: draw.normal(size=size),
    "long-tailed": lambda draw, size: draw.standard_t(2, size),
    "one number": lambda draw, size: np.where(np.arange(size) == 0, 5.0 * size**0.5, 1.0),  # 25 of 26 parts of it
}


def sent_lengths(shape, size, keep, clients, rounds, seed=0):
    """Lengths of honest updates as the server reads them, [rounds, clients]."""
    draw = np.random.default_rng(seed)
    update = SHAPES[shape](draw, size)
    kept = draw.random((rounds, clients, size)) < keep
    return np.sqrt((kept * (update / keep) ** 2).sum(axis=2))


def fates(bound, lengths):
    everybody, scales = np.arange(lengths.shape[1]), np.ones(lengths.shape[1])
    return [fate for row in lengths for fate in bound.check(everybody, row, scales, 1.0)]


@pytest.mark.parametrize("keep", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("size", [60, 650, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_random_part_of_an_honest_update_is_not_too_long(shape, size, keep):
    lengths = sent_lengths(shape, size, keep, clients=8, rounds=100)
    assert fates(NormBound(np.ones(8), 20.0, keep), lengths) == [1.0] * lengths.size


def test_without_its_credit_the_same_would_be_shortened():
    lengths = sent_lengths("one number", 650, 0.02, clients=8, rounds=100)
    assert any(fate != 1.0 for fate in fates(NormBound(np.ones(8), 20.0), lengths))


@pytest.mark.parametrize("keep", [1.0, 0.1, 0.02])
def test_in_the_long_run_a_liar_has_no_more_than_without_compression(keep):
    """The root of the mean square of what counts; the first update may use up the whole credit."""
    bound, rounds = NormBound(np.ones(5), 20.0, keep), 400
    everybody, scales = np.arange(5), np.ones(5)
    assert bound.check(everybody, np.ones(5), scales, 1.0) == [1.0] * 5
    taken = []
    for _ in range(rounds):
        longest = 0.99 * 20.0 * keep**-0.5
        *honest, liar = bound.check(everybody, np.array([1.0] * 4 + [longest]), scales, 1.0)
        assert honest == [1.0] * 4
        taken.append(liar * longest)
    assert max(taken) <= 20.0 * keep**-0.5
    assert np.sum(np.square(taken)) <= 20.0**2 * (rounds + 1.0 / keep)
    assert isinstance(bound.check(np.array([4]), np.array([1e3 * keep**-0.5]), np.ones(1), 1.0)[0], str)


def test_what_a_bound_knows_survives_a_restart():
    bound = NormBound(np.ones(3), 20.0, 0.1)
    bound.check(np.arange(3), np.array([1.0, 2.0, 3.0]), np.ones(3), 7.0)
    bound.check(np.array([2]), np.array([100.0]), np.ones(1), 9.0)
    again = NormBound(np.ones(3), 20.0, 0.1)
    again.restore(bound.state())
    assert (again.latest == bound.latest).all()
    assert again.credit[2] < 10.0
    assert (again.credit == bound.credit).all()
    assert again.began == bound.began == 7.0  # who is alone cannot have a longer model's bound by a restart
    of_before = NormBound(np.ones(3), 20.0)
    of_before.restore(bound.latest)  # as earlier versions saved it
    assert (of_before.latest == bound.latest).all()
    unused = NormBound(np.ones(3), 20.0)
    unused.restore(NormBound(np.ones(3), 20.0).state())
    assert unused.began is None


@pytest.mark.parametrize("keep", [0.3, 0.05])
def test_honest_fleets_that_send_a_random_part_are_never_shortened(keep):
    experiment = replace(SMALL.with_method("fedavg"), rounds=6, compression=RandK(keep))
    made, records, server = run(experiment)
    assert server.ledger.summary()["shortened"] == server.ledger.summary()["refused"] == 0
    assert all(len(record.participants) == CLIENTS for record in records)
    simulated = ef.simulate(experiment)
    for name, value in simulated.params.items():
        assert np.allclose(made.params[name].numpy(), value.numpy(), atol=1e-6)


def test_a_strategys_own_compression_has_its_credit_too(tmp_path):
    fleet, policy = ef.Fleet.from_cycles([1, 1, 1]), ef.Greedy()
    strategy = EnergyStrategy(fleet, policy, [1 / 3] * 3, limits=QUICK, compression=RandK(0.04), folder=tmp_path)
    assert strategy.round_server.norms.most_credit == pytest.approx(25.0)
    first = ArrayRecord({"w": Array(np.zeros(200, np.float32))})
    strategy.start(InProcessGrid(fleet_of(own_app(fleet, policy), 3)), first, num_rounds=2)
    assert strategy.round_server.ledger.summary()["done"] == 6


# Without rounds


def stretched(nodes, number, factor):
    """Multiply one node's updates after its first: who is heard before all others has nothing to be compared with."""

    def change(reply, at):
        arrays = reply.content.get("arrays") if at == number and not reply.has_error() else None
        trained = [m for m in nodes[number - 100].received if m.metadata.message_type == "train"]
        if arrays is not None and len(trained) > 1:
            sent = {n: a.numpy() for n, a in nodes[number - 100].received[-1].content["arrays"].items()}
            longer = {n: Array(sent[n] + np.float32(factor) * (a.numpy() - sent[n])) for n, a in arrays.items()}
            reply.content["arrays"] = ArrayRecord(longer)
        return reply

    return change


@pytest.mark.parametrize(("factor", "counts"), [(60.0, True), (1e6, False)])
def test_a_long_update_without_rounds_is_shortened_and_named(tmp_path, factor, counts):
    """60 times the usual was refused there: an honest client that comes late may have as much to say."""
    experiment = task("renewal", fleet=replace(SMALL.fleet, cycles=(1,)), rounds=5)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    run_stored(experiment, tmp_path, SlowGrid(nodes, stretched(nodes, 103, factor), 0.03), norm_factor=5.0)
    entries = read(tmp_path)
    shortened = [e.shortened[3] for e in entries if 3 in e.shortened]
    refused = [e.refused[3] for e in entries if 3 in e.refused]
    assert all(set(e.shortened) <= {3} for e in entries)
    assert bool(shortened) == counts
    assert bool(refused) != counts
    assert all("above the bound" in why for why in refused)
    assert all(0.0 < part < 0.5 for part in shortened)
    assert any(work.part < 1.0 for work in read_log(tmp_path)) == counts


def test_the_simulator_shortens_what_the_server_shortened(tmp_path):
    """Honest clients of unequal lengths under a narrow bound: the log says by how much, and the model is the same."""
    experiment = task("renewal", fleet=replace(SMALL.fleet, cycles=(1,)), rounds=5)
    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), slow_s=0.0), norm_factor=1.01)
    log, _ = assert_replayed(experiment, tmp_path)
    shortened = {(work.arrived // MOMENTS, work.client) for work in log if work.part < 1.0}
    assert shortened
    assert shortened == {(e.round, client) for e in read(tmp_path) for client in e.shortened}
