"""Large fleets: what is kept and what is loaded follows participants, not clients."""

from __future__ import annotations

import os
import resource
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.auditing.variance import variance
from everfed.data.on_demand import OnDemand
from everfed.data.on_demand_sources import Generated
from everfed.energy import battery as battery_module
from everfed.energy.arrivals import Lump
from everfed.energy.battery import Battery
from everfed.learning.rows import ClientRows
from everfed.learning.task import CannotTrainError
from everfed.report.lines import show
from everfed.run import config
from everfed.trainers import choose

CPU = torch.device("cpu")


def million_like(clients: int, participants: int) -> ef.Fleet:
    """Cycles 1..K dealt round the clients, K such that about so many take part in a round."""
    cycles = np.arange(1, 100_001)
    rate = np.cumsum(1.0 / cycles) / cycles  # mean chance with cycles 1..K
    return ef.Fleet.from_cycles(np.resize(cycles[: np.argmax(rate <= participants / clients) + 1], clients))


# -- optimiser state on disk -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    fleet = ef.Fleet.from_cycles([1, 2, 3, 4] * 3)
    return ef.load("digits").partition(12, "iid"), fleet


@pytest.mark.parametrize("optimizer", [ef.Adam(1e-2), ef.SGD(0.1, momentum=0.9), ef.SGD(0.1)])
def test_state_on_disk_gives_the_same_run_bit_for_bit(optimizer, digits):
    data, fleet = digits
    settings = {"rounds": 8, "client": optimizer, "trainer": "batched", "device": "cpu"}
    device, disk = (ef.start("mlp", data, fleet, state_place=place, **settings) for place in ("device", "disk"))
    list(device), list(disk)
    assert torch.equal(device.server.params, disk.server.params)
    one, two = device.state_dict(), disk.state_dict()
    assert list(one) == list(two)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("places", [("disk", "disk"), ("disk", "device"), ("device", "disk")])
def test_a_run_resumes_from_state_on_either_place(places, digits):
    data, fleet = digits
    settings = {"rounds": 8, "client": ef.Adam(1e-2), "trainer": "batched", "device": "cpu"}
    first, second, whole = (
        ef.start("mlp", data, fleet, state_place=place, **settings) for place in (*places, "device")
    )
    for record in first:
        if record.round == 3:
            break
    saved = first.state_dict()
    for record in second:  # leaves rows of its own behind, which loading must forget
        if record.round == 5:
            break
    second.load_state_dict(saved)
    list(second), list(whole)
    assert torch.equal(second.server.params, whole.server.params)


def test_rows_on_disk_are_those_that_were_written():
    empty = {"a": torch.zeros(0, 3), "count": torch.zeros(0)}
    rows = ClientRows(empty, clients=1000, device=CPU, place="disk")
    stored, rng = {}, np.random.default_rng(0)
    for _ in range(40):
        clients = rng.choice(1000, size=7, replace=False)
        found = rows.gather(clients)
        assert torch.equal(found["a"], torch.stack([stored.get(int(c), torch.zeros(3)) for c in clients]))
        new = torch.as_tensor(rng.normal(size=(7, 3)), dtype=torch.float32)
        rows.scatter(clients, {"a": new, "count": found["count"] + 1})
        stored.update(zip(clients.tolist(), new, strict=True))
    file = rows.table["a"].file
    assert os.fstat(file.fileno()).st_size <= 2 * 12 * len(stored)  # no room for clients never seen
    saved = rows.state_dict()
    assert int(saved["count"].sum()) == 40 * 7
    rows.scatter(clients, {"a": new * 0, "count": torch.zeros(7)})
    assert torch.equal(saved["a"][saved["row_of"][clients]], new)  # a saved state does not change


def test_a_disk_without_room_is_an_error_in_words():
    rows = ClientRows({"a": torch.zeros(0, 1000)}, clients=100, device=CPU, place="disk")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(ef.InputError, match=r"not enough disk space for .* set TMPDIR"):
            rows.gather(np.arange(50))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_state_on_disk_needs_the_batched_trainer(digits):
    data, fleet = digits
    with pytest.raises(ef.InputError, match="'one-by-one' keeps the clients' state in memory"):
        ef.start("mlp", data, fleet, client=ef.Adam(1e-3), rounds=2, trainer="one-by-one", state_place="disk")
    with pytest.raises(ef.InputError, match="state_place is 'tape'"):
        ef.start("mlp", data, fleet, client=ef.Adam(1e-3), rounds=2, state_place="tape")
    run = ef.start(
        "mlp", data, fleet, client=ef.Adam(1e-3), rounds=2, trainer="batched", state_place="disk", device="cpu"
    )
    with pytest.raises(CannotTrainError, match="state_place is disk"):
        choose._fast(run.source.trainer.task)


def test_a_large_convolution_with_state_on_disk_is_batched_on_a_cpu():
    data = ef.from_arrays([(np.zeros((2, 3, 40, 40), np.float32), [0, 1])])
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))
    fleet = ef.Fleet.from_cycles([1])
    names = []
    for place, keep in (("device", True), ("disk", True), ("disk", False)):
        settings = {"state_place": place, "keep_state": keep, "device": "cpu", "batch_size": 10}
        names.append(
            type(ef.start(model, data, fleet, client=ef.Adam(1e-3), rounds=1, **settings).source.trainer).__name__
        )
    assert names == ["OneByOne", "Batched", "OneByOne"]


def test_where_state_is_kept_is_part_of_an_experiment():
    assert config.from_dict({"state_place": "disk"}).state_place == "disk"
    assert config.from_dict({}).state_place == "device"
    with pytest.raises(ef.InputError, match="must be 'device' or 'disk'"):
        config.from_dict({"state_place": "disc"})


# -- what a large fleet costs ----------------------------------------------------------------------


class Counting:
    """One sample a client, and a note of who was read."""

    def __init__(self, clients):
        self.clients, self.read_of = clients, set()

    def __len__(self):
        return self.clients

    def sizes(self):
        return np.ones(self.clients, np.int64)

    def read(self, clients):
        self.read_of.update(clients.tolist())
        return (clients % 7)[:, None].astype(np.float32), clients % 2


def test_a_run_reads_its_participants_and_a_sample_for_the_groups():
    fleet, source = million_like(100_000, 50), Counting(100_000)
    data = OnDemand(source, ([[0.0], [1.0]], [0, 1]), 2)
    run = ef.start(nn.Linear(1, 2), data, fleet, rounds=5, client=ef.SGD(0.1))
    participants = set()
    for record in run:
        participants.update(record.participants.tolist())
    assert 100 < len(participants) < 1000
    assert participants <= source.read_of
    assert len(source.read_of) <= len(participants) + 1 + 200 * len(fleet.groups())


def test_many_cycles_make_few_groups():
    fleet = million_like(100_000, 100)
    assert len(np.unique(fleet.cycles())) > 5000
    groups = fleet.groups()
    assert len(groups) == 10
    assert sorted(np.concatenate([g.clients for g in groups]).tolist()) == list(range(100_000))
    data = OnDemand(Counting(100_000), ([[0.0], [1.0]], [0, 1]), 2)
    history = ef.simulate(nn.Linear(1, 2), data, fleet, rounds=1, client=ef.SGD(0.1))
    assert list(history.final.group_accuracy) == [g.label for g in groups]


def peak(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_plan_takes_memory_for_its_clients_not_for_rounds_times_clients():
    fleet = million_like(50_000, 50)

    def planned(rounds):
        def work():
            for _ in ef.plan(fleet, ef.UniformWindow(), rounds):
                pass

        return work

    planned(1)()  # what is computed once
    short, long = peak(planned(3)), peak(planned(60))
    assert long < 1.1 * short
    assert long < 200 * len(fleet)


def test_a_round_takes_memory_for_its_participants():
    """Beyond some arrays of one number per client, which all are there from the start."""
    clients = 50_000
    fleet = million_like(clients, 50)
    source = Generated(np.full(clients, 4), lambda c: (np.full((4, 100), c % 9, np.float32), [0, 1, 0, 1]))
    run = ef.start(nn.Linear(100, 2), OnDemand(source, None, 2), fleet, rounds=20, client=ef.SGD(0.1))
    rounds = iter(run)
    next(rounds)
    whole = clients * 4 * 100 * 4  # all samples
    assert peak(lambda: [next(rounds) for _ in range(10)]) < 60 * clients < whole / 20


# -- the shortcuts for few arrivals and many peers -------------------------------------------------


@pytest.mark.parametrize("copies", [(), (3,)])
@pytest.mark.parametrize("joules", [False, True])
def test_charging_few_clients_equals_charging_all(copies, joules, monkeypatch):
    rng = np.random.default_rng(0)
    capacity = rng.uniform(1.0, 2.5, 500)
    unit_j = rng.uniform(1.0, 5.0, 500) if joules else None
    few, plain = Battery(capacity, copies, unit_j=unit_j), Battery(capacity, copies, unit_j=unit_j)
    for _ in range(60):
        arrived = np.where(rng.random(500) < 0.05, rng.uniform(0.0, 1.5, 500), 0.0)
        few.charge(arrived)
        with monkeypatch.context() as patch:
            patch.setattr(battery_module, "_FEW", 0.0)
            plain.charge(arrived)
        assert np.array_equal(few.level, plain.level)
        join = few.affords() & (rng.random(few.level.shape) < 0.3)
        few.spend(join), plain.spend(join)
    assert plain.wasted > 0
    for name, value in plain.books().to_dict().items():
        assert few.books().to_dict()[name] == pytest.approx(value, rel=1e-12)


def test_units_are_due_when_the_cycle_says_so():
    rng = np.random.default_rng(1)
    cycles, offsets = rng.integers(1, 9, 300), rng.integers(0, 7, 300)
    arrivals = Lump(cycles, offsets)
    for r in range(40):
        expected = [r >= o and (r - o) % e == 0 for e, o in zip(cycles.tolist(), offsets.tolist(), strict=True)]
        assert arrivals.harvest(r, 0).tolist() == expected
    some = np.array([7, 3, 200])
    assert arrivals.part(some).harvest(9, 0).tolist() == arrivals.harvest(9, 0)[some].tolist()


def test_a_bigger_panel_in_a_lattice_is_judged_by_its_neighbours_alone():
    cycles = np.array([2, 2, 3, 3, 3, 7, 7, 8, 9, 9])
    fleet, shares = ef.Fleet.from_cycles(cycles), np.full(10, 0.1)
    lengths = np.linspace(1.0, 2.0, 10)
    found = variance(fleet, ef.Lattice(), shares, 504, lengths)
    assert found.upgrade is not None
    changed = cycles.copy()
    changed[found.upgrade.client] -= 1
    after = variance(ef.Fleet.from_cycles(changed), ef.Lattice(), shares, 504, lengths)
    assert found.upgrade.variance == pytest.approx(after.exact, rel=1e-9)


def test_a_long_list_of_cycles_is_told_in_a_few_words():
    assert show([1, 5, 10]) == "1, 5, 10"
    words = show(list(range(1, 10_001)))
    assert words.startswith("1, 2, 3, ..., 10000 (10,000 values #")
    assert words != show([*range(1, 10_000), 10_001])
    assert len(words) < 60


def test_peers_are_found_once():
    fleet = million_like(2000, 100)
    assert fleet.peers is fleet.peers
    assert sum(len(members) for members in fleet.peers) == 2000
    assert replace(fleet).peers is not fleet.peers
    for members in fleet.peers:
        assert len(np.unique(fleet.cycles()[members])) == 1
        assert np.all(np.diff(members) > 0)
