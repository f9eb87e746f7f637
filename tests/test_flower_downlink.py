"""The model on its way down: read to the last bit, in fewer bytes, and whole where a device holds nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import everfed as ef
from everfed.device.app import device_app
from everfed.energy.devices import device, radio, round_cost
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.errors import InputError
from everfed.flower import EnergyStrategy, Simulated, client_app, remote_run, wire
from everfed.flower.downlink import ABOUT, SMALL, Downlink, pack, unpack
from everfed.flower.thinning import RECORD as UPDATE
from everfed.learning.compress import COMPRESSORS
from everfed.learning.downlink import as_sent
from everfed.run.fleets import CycleFleet
from everfed.server.robust import DEFENCES
from flower_arrivals import SlowGrid, assert_replayed, run_stored, task
from flower_grid import CLIENTS, QUICK, SMALL as TASK, InProcessGrid, Node, fleet_of, own_app, run

pytestmark = pytest.mark.filterwarnings("ignore")

EXACT = replace(TASK, trainer="one-by-one")
WAYS = [("full", True), ("bf16", False), ("bf16", True)]


def assert_same(one, two):
    for name, value in two.items():
        assert torch.equal(one[name], value), name


def ways_sent(node):
    """How each model came to a node."""
    sent = [m.content for m in node.received if {"arrays", SMALL} & set(m.content) or ABOUT in m.content]
    return [content[ABOUT]["way"] if ABOUT in content else "arrays" for content in sent]


# The numbers


def patterns(size):
    """Every kind of float32: zeros of both signs, denormals, infinities, NaNs, and any bits."""
    rng = np.random.default_rng(size)
    odd = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38], np.float32)
    return np.concatenate([odd, rng.integers(0, 2**32, size, np.uint32).view(np.float32)])


def test_a_difference_is_read_to_the_last_bit():
    one, two = patterns(1000), patterns(1000)[::-1].copy()
    for model, base in ((one, two), (two, one), (one, one)):
        assert unpack(pack(model, base), base).tobytes() == model.tobytes()


def test_near_models_are_small_and_damaged_differences_are_noticed():
    base = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    near = base * np.float32(1.0 + 1e-3)
    packed = pack(near, base)
    assert len(packed) < 0.6 * base.nbytes
    assert len(pack(base, base)) < 100
    for damaged in (packed[:-40], b"", b"no", pack(near[:-1], base[:-1]), pack(np.tile(near, 2), np.tile(base, 2))):
        with pytest.raises(ValueError, match="difference"):
            unpack(damaged, base)


def test_bf16_is_the_nearest_with_ties_to_even():
    model = np.concatenate([np.random.default_rng(1).normal(size=1000).astype(np.float32), patterns(0)[:4]])
    bits = model.view(np.uint32)
    tie = ((bits & 0xFFFF0000) | 0x8000).view(np.float32)
    for numbers in (model, tie):
        raw = numbers.view(np.uint32).astype(np.uint64)
        nearest = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16 << 16).astype(np.uint32)
        assert (as_sent(torch.from_numpy(numbers), "bf16").numpy().view(np.uint32) == nearest).all()


# Runs


@pytest.mark.parametrize(("downlink", "differences"), WAYS)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"compression": COMPRESSORS["qsgd"](bits=4), "client": ef.Adam(1e-3)},
        {"robust": DEFENCES["median"](), "compression": COMPRESSORS["rand-k"](keep=0.5)},
        {"server_optimizer": ef.SERVER_OPTIMIZERS["adam"](), "client": ef.SGD(0.1, momentum=0.9)},
    ],
    ids=["plain", "quantised-adam", "median-thinned", "server-adam"],
)
def test_the_model_is_the_simulators_and_takes_fewer_bytes(downlink, differences, parts):
    experiment = replace(EXACT, downlink=downlink, **parts)
    made, records, server = run(experiment, differences=differences)
    simulated = ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    tolerance = 0.0 if "compression" in parts else 2e-7  # whole models are sent, not updates
    for name, value in simulated.params.items():
        np.testing.assert_allclose(made.params[name].numpy(), value.numpy(), atol=tolerance, rtol=0)
    whole = 22 * 4 * sum(value.numel() for value in simulated.params.values())
    part = {("full", True): 0.9, ("bf16", False): 0.6, ("bf16", True): 0.5}[downlink, differences]
    assert server.ledger.summary()["bytes_sent"] < part * whole


def test_differences_change_no_bit_of_the_model():
    plain, *_ = run(EXACT)
    nodes = fleet_of(client_app(EXACT), CLIENTS)
    small, _, server = run(EXACT, nodes, differences=True)
    assert_same(small.params, plain.params)
    assert not any(entry.lost or entry.refused for entry in server.ledger.entries)
    for node in nodes:
        first, *later = ways_sent(node)
        assert first == "full"
        assert set(later) <= {"difference"}


@pytest.mark.parametrize("stored", [True, False], ids=["folder", "context"])
def test_who_holds_nothing_the_server_knows_is_sent_the_whole_model(tmp_path, stored):
    """A device that comes late, one that lost its state, and all after a restart of the server."""
    experiment = replace(EXACT.with_method("fedavg"), rounds=6, client=ef.Adam(1e-3))

    def nodes(name):
        where = [{"state-dir": str(tmp_path / name / str(c))} if stored else {} for c in range(CLIENTS)]
        return [Node(client_app(experiment), {"client": c, **where[c]}) for c in range(CLIENTS)]

    def rounds(name, differences):
        fleet = nodes(name)
        fleet[3].online = False
        grid = InProcessGrid(fleet)
        settings = {"limits": QUICK, "differences": differences}
        made = remote_run(experiment, grid, **settings)
        ways = []
        for record in made:
            if record.round == 1:
                fleet[3].online = True
            if record.round == 2:  # what was kept is gone, and with it Adam's state
                if stored:
                    for path in (tmp_path / name / "0").rglob("*.safetensors"):
                        path.unlink()
                fleet[0].state = RecordDict()
            if record.round == 3:
                state = made.state_dict()
                break
        ways = [ways_sent(node) for node in fleet]
        again = remote_run(experiment, grid, **settings)
        again.load_state_dict(state)
        list(again)
        return again.params, ways, [ways_sent(node)[len(w) :] for node, w in zip(fleet, ways, strict=True)]

    plain, *_ = rounds("plain", False)
    small, before, after = rounds("small", True)
    assert_same(small, plain)
    changed = "difference"
    assert before == [
        ["full", changed, changed, "full"], ["full", changed, changed, changed], ["full", changed, changed, changed],
        ["full", changed],
    ]  # fmt: skip
    assert after == [["full", changed]] * CLIENTS


def test_a_base_that_is_lost_between_question_and_model_costs_one_participation(tmp_path):
    experiment = replace(EXACT.with_method("fedavg"), rounds=4)
    nodes = [Node(client_app(experiment), {"client": c, "state-dir": str(tmp_path / str(c))}) for c in range(CLIENTS)]
    made = remote_run(experiment, InProcessGrid(nodes), limits=QUICK, differences=True)
    for record in made:
        if record.round == 0:
            next((tmp_path / "1").rglob("model.safetensors")).write_bytes(b"damaged")
    lost = [entry.lost for entry in made.source.ledger.entries]
    assert [sorted(entry) for entry in lost] == [[], [1], [], []]
    assert "will be sent as a whole" in lost[1][1]
    assert ways_sent(nodes[1]) == ["full", "difference", "full", "difference"]


@pytest.mark.parametrize(("downlink", "differences"), WAYS)
def test_devices_of_earlier_versions_are_sent_whole_models_and_train_from_the_same(downlink, differences):
    experiment = replace(EXACT, downlink=downlink)

    def older(reply, number):
        if number == 101 and reply.has_content():
            reply.content["everfed"].pop("holds")
        return reply

    nodes = fleet_of(client_app(experiment), CLIENTS)
    made, *_ = run(experiment, nodes, change=older, differences=differences)
    expected, *_ = run(experiment, differences=differences)
    assert_same(made.params, expected.params)
    assert set(ways_sent(nodes[1])) == {"arrays"}
    assert set(ways_sent(nodes[0])) <= {"full", "bf16", "difference"}


@pytest.mark.parametrize("name", ["x" * 15, "é" * 16 + "y", 7, "y" * 10**5])
def test_a_name_that_is_none_is_refused(name):
    def claim(reply, number):
        if number == 101:
            reply.content["everfed"]["holds"] = name
        return reply

    _, records, server = run(replace(EXACT.with_method("fedavg"), rounds=1), change=claim, differences=True)
    assert records[0].participants.tolist() == [0, 2, 3]
    assert "no model's name" in server.ledger.entries[0].turned_away["101"]


def test_a_liar_about_what_it_holds_gets_a_whole_model_or_harms_itself_alone():
    def claim(reply, number):
        if number == 101:
            reply.content["everfed"]["holds"] = "0123456789abcdef"
        return reply

    experiment = replace(EXACT.with_method("fedavg"), rounds=3)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    made, *_ = run(experiment, nodes, change=claim, differences=True)
    assert_same(made.params, run(experiment)[0].params)
    assert set(ways_sent(nodes[1])) == {"full"}


@pytest.mark.parametrize(("downlink", "differences"), WAYS)
def test_without_rounds_too(tmp_path, downlink, differences):
    experiment = task("renewal", rounds=5, downlink=downlink)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    run_stored(experiment, tmp_path, SlowGrid(nodes, slow_s=0.02), differences=differences)
    log, _ = assert_replayed(experiment, tmp_path)
    assert log
    ways = {way for node in nodes for way in ways_sent(node)}
    assert ways == ({downlink, "difference"} if differences else {downlink})


def test_models_sent_to_all_at_once_are_halved_and_not_differences():
    experiment = replace(EXACT, downlink="bf16", rounds=4)
    limits = replace(QUICK, two_phase=False)
    with pytest.raises(InputError, match="differences is true, but two_phase is false"):
        run(experiment, limits=limits, differences=True)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    made, *_ = run(experiment, nodes, limits=limits)
    assert_same(made.params, run(experiment)[0].params)
    assert [ways_sent(node) for node in nodes] == [["arrays"] + ["bf16"] * 3] * CLIENTS


@pytest.mark.parametrize(("downlink", "differences"), WAYS)
def test_apps_of_ones_own_see_plain_arrays(downlink, differences):
    fleet = ef.Fleet.from_cycles([1, 2, 2])
    first = ArrayRecord({"b": Array(np.full((2, 3), 1 / 3, np.float32)), "a": Array(np.array([0.7], np.float32))})
    nodes = fleet_of(own_app(fleet, ef.UniformWindow()), 3)
    strategy = EnergyStrategy(
        fleet, ef.UniformWindow(), [0.5, 0.25, 0.25], limits=QUICK, downlink=downlink, differences=differences
    )
    made = strategy.start(InProcessGrid(nodes), first, num_rounds=6).arrays
    assert not any(entry.lost or entry.refused for entry in strategy.round_server.ledger.entries)
    expected = EnergyStrategy(fleet, ef.UniformWindow(), [0.5, 0.25, 0.25], limits=QUICK)
    whole = expected.start(InProcessGrid(fleet_of(own_app(fleet, ef.UniformWindow()), 3)), first, num_rounds=6).arrays
    for name in ("a", "b"):
        np.testing.assert_allclose(made[name].numpy(), whole[name].numpy(), rtol=2e-2)
        if downlink == "full":
            assert np.array_equal(made[name].numpy(), whole[name].numpy())
    with pytest.raises(InputError, match="downlink is 'half'"):
        EnergyStrategy(fleet, ef.UniformWindow(), [0.5, 0.25, 0.25], downlink="half")


def test_a_server_remembers_as_many_models_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr("everfed.flower.downlink._ROOM", 3 * 4 * 100)
    down, shapes = Downlink("full", True), {"w": (100,)}
    names = []
    for number in range(5):
        model = np.full(100, 1.0 + number / 1000, np.float32)
        names.append(down.records(model, shapes, "")[ABOUT]["keep"])
    assert list(down.sent) == names[2:]
    again = np.full(100, 2.0, np.float32)
    assert down.records(again, shapes, names[0])[ABOUT]["way"] == "full"
    assert down.records(again, shapes, names[3])[ABOUT]["way"] == "difference"
    assert down.records(again, shapes, None).keys() == {"arrays"}


# What a simulation knows of it


def test_the_energy_of_fetching_half_the_bytes_is_in_the_fleet():
    group = DeviceGroup(count=2, device="raspberry-pi-4b", panel_wp=100.0)
    fleet = DeviceFleet((group,), model_mb=4.3)
    experiment = ef.Experiment(fleet=fleet, downlink="bf16", rounds=2)
    computer, link = device("raspberry-pi-4b"), radio("wifi")
    whole = round_cost(computer, link, local_steps=5, model_mb=4.3)
    half = round_cost(computer, link, local_steps=5, model_mb=4.3, received=0.5)
    assert whole.joules - half.joules == pytest.approx(2.15 * link.down_j_per_mb)
    assert half.down_s == whole.down_s / 2
    built, full = experiment.make_fleet(), replace(experiment, downlink="full").make_fleet()
    assert built.unit_j[0] / full.unit_j[0] == pytest.approx(half.joules / whole.joules)
    rows = fleet.assumptions(5, experiment.encoding)
    assert rows[0].air_s == pytest.approx(half.up_s + half.down_s)


@pytest.mark.parametrize(("method", "words"), [("fedawe", "a model of its own"), ("area", "stay off for ever")])
def test_what_cannot_be_rounded_is_refused(method, words):
    with pytest.raises(InputError, match=words):
        ef.start(replace(TASK.with_method(method), downlink="bf16"))


def test_rounding_is_named_where_numbers_of_bits_are_chosen():
    thrifty = replace(TASK, compression=COMPRESSORS["adaptive-qsgd"](), downlink="bf16")
    with pytest.raises(InputError, match="AdaptiveQsgd compression trades"):
        thrifty.make_fleet()


# Updates of devices without torch


@pytest.mark.parametrize("how", ["qsgd", "rand-k"])
def test_a_numpy_device_sends_a_small_update_with_the_simulators_bits(how):
    """The server compresses what an older device sends whole: the same numbers."""
    experiment = replace(
        EXACT.with_method("fedavg"), fleet=CycleFleet(clients=2, cycles=(1,)), rounds=3, compression=COMPRESSORS[how]()
    )

    def train(parameters, data, work):
        rng = np.random.default_rng(work.round)
        return {name: value + rng.normal(size=value.shape).astype("f4") for name, value in parameters.items()}, 0.5

    energy = Simulated(experiment.make_fleet(), experiment.seeds.schedule)
    app = device_app(train, policy=experiment.policy, energy=energy, local_steps=5, batch_size=10, lr=0.1)
    sent = {"small": 0, "whole": 0}

    def count(reply, number):
        sent["small" if UPDATE in reply.content else "whole"] += bool({UPDATE, "arrays"} & set(reply.content))
        return reply

    made, _, server = run(experiment, fleet_of(app, 2), change=count)
    assert sent == {"small": 6, "whole": 0}

    class Deaf(Node):
        """A device that does not know how the server wants updates."""

        def handle(self, message, number):
            message.content.pop("update.wanted", None)
            return super().handle(message, number)

    whole, _, plain = run(experiment, [Deaf(app, {"partition-id": c}) for c in range(2)], change=count)
    assert sent["whole"] == 6
    assert_same(made.params, whole.params)
    assert server.ledger.summary()["bytes_received"] < 0.4 * plain.ledger.summary()["bytes_received"]


@pytest.mark.parametrize("bits", [4, 16])
def test_a_strategy_of_ones_own_compresses_too(bits):
    fleet, how = ef.Fleet.from_cycles([1, 1, 1]), COMPRESSORS["qsgd"](bits=bits)
    strategy = EnergyStrategy(fleet, ef.Greedy(), [0.5, 0.25, 0.25], limits=QUICK, compression=how)
    first = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
    nodes = fleet_of(own_app(fleet, ef.Greedy()), 3)
    made = strategy.start(InProcessGrid(nodes), first, num_rounds=2).arrays["w"].numpy()
    # Equal numbers in a bucket of n are a share 1/sqrt(n) of its length: rounded, each is on average what it was.
    assert made.mean() == pytest.approx(2 * 1.75, rel=0.3 if bits == 4 else 1e-3)
    assert strategy.round_server.ledger.summary()["bytes_received"] < 6 * (1000 * bits / 8 + 2000)


def test_the_books_have_every_byte_both_ways():
    experiment = replace(EXACT, downlink="bf16", compression=COMPRESSORS["qsgd"](bits=4))
    nodes = fleet_of(client_app(experiment), CLIENTS)
    received = 0

    def weigh(reply, number):
        nonlocal received
        received += wire.size(reply.content)
        return reply

    class Weighing(Node):
        sent = 0

        def handle(self, message, number):
            Weighing.sent += wire.size(message.content)
            return super().handle(message, number)

    nodes = [Weighing(node.app, node.config) for node in nodes]
    _, _, server = run(experiment, nodes, change=weigh, differences=True)
    summary = server.ledger.summary()
    assert (summary["bytes_sent"], summary["bytes_received"]) == (Weighing.sent, received)


def test_records_that_are_none_are_an_error_of_the_device_and_not_of_the_run():
    spoilt = {ABOUT: ConfigRecord({"way": "bf16"}), "update.wanted": ConfigRecord({"seed": [0, 0], "bits": 1})}
    experiment = replace(EXACT.with_method("fedavg"), rounds=1)

    class Spoilt(Node):
        def handle(self, message, number):
            if "arrays" in message.content:
                for name, record in spoilt.items():
                    message.content[name] = record
            return super().handle(message, number)

    nodes = fleet_of(client_app(experiment), CLIENTS)
    nodes[1] = Spoilt(nodes[1].app, nodes[1].config)
    _, records, server = run(experiment, nodes)
    assert records[0].participants.tolist() == [0, 2, 3]
    assert "the message holds no model" in server.ledger.entries[0].lost[1]
