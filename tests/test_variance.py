"""Where a round's variance comes from, by formula and by counting, and whose panel should grow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import everfed as ef
from everfed.auditing.variance import variance
from everfed.energy.arrivals import Lump
from everfed.energy.changing import Changing
from everfed.energy.physical import DeviceFleet, DeviceGroup

PAPER = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
EQUAL = np.full(40, 1 / 40)


def enumerated(cycles, shares, deltas):
    """E|sum over participants of p E delta - its mean|^2 in the last round of a window, over all slots."""
    total, count = 0.0, 0
    mean = shares @ deltas
    for slots in itertools.product(*(range(e) for e in cycles)):
        joined = np.array([slot == e - 1 for slot, e in zip(slots, cycles, strict=True)])
        update = (joined * np.asarray(cycles) * shares) @ deltas
        total += float(((update - mean) ** 2).sum())
        count += 1
    return total / count


def test_the_exact_variance_is_that_of_all_schedules_together():
    cycles, shares = [1, 2, 3, 5], np.array([0.1, 0.2, 0.3, 0.4])
    deltas = np.random.default_rng(0).normal(size=(4, 3))
    found = variance(ef.Fleet.from_cycles(cycles), ef.UniformWindow(), shares, 30, deltas)
    assert found.exact == pytest.approx(enumerated(cycles, shares, deltas))
    assert found.by_client.sum() == pytest.approx(found.exact)
    assert found.by_client[0] == 0.0


def test_the_papers_fleet():
    found = variance(PAPER, ef.UniformWindow(), EQUAL, 20)
    assert found.exact == pytest.approx(0.2)
    assert found.lemma2 == 400.0  # two thousand times too large
    assert PAPER.cycles()[found.noisiest] == 20


def test_longer_updates_of_one_client_count_more():
    lengths = np.ones(40)
    lengths[1] = 10.0
    found = variance(PAPER, ef.UniformWindow(), EQUAL, 20, lengths)
    assert found.exact == pytest.approx(0.2 + 99 * 4 / 1600)
    assert found.noisiest == 1
    assert found.lemma2 == 40_000.0


def test_a_lattice_with_vectors_is_what_many_seeds_give():
    fleet, shares = ef.Fleet.from_cycles([3] * 5), np.array([0.1, 0.15, 0.2, 0.25, 0.3])
    deltas = np.random.default_rng(1).normal(size=(5, 2)) + 1.0
    found = variance(fleet, ef.Lattice(), shares, 3, deltas)
    from everfed.scheduling.plan import Schedule

    seeds = np.arange(40_000, dtype=np.uint64)[:, None]
    join, scale = Schedule(fleet, ef.Lattice(), seeds).step(0)
    updates = (join * scale * shares) @ deltas
    assert found.exact == pytest.approx(float(((updates - shares @ deltas) ** 2).sum(axis=1).mean()), rel=0.02)


def upgraded(fleet, policy, shares, client):
    """The variance after a client's cycle has fallen by one round, worked out anew."""
    cycles = fleet.cycles().copy()
    cycles[client] -= 1
    return variance(ef.Fleet.from_cycles(cycles), policy, shares, 24).exact


@pytest.mark.parametrize("policy", [ef.UniformWindow(), ef.Bernoulli()], ids=repr)
def test_the_panel_that_helps_most_is_the_best_of_all(policy):
    fleet = ef.Fleet.from_cycles([1, 2, 4, 9, 9, 16])
    shares = np.array([0.1, 0.5, 0.1, 0.1, 0.15, 0.05])
    found = variance(fleet, policy, shares, 24)
    drops = {}
    for client, cycle in enumerate(fleet.cycles().tolist()):
        if cycle > 1:
            energy = 1 / (cycle - 1) - 1 / cycle
            drops[client] = (found.exact - upgraded(fleet, policy, shares, client)) / energy
    assert found.upgrade.client == max(drops, key=drops.get)
    assert found.upgrade.variance == pytest.approx(upgraded(fleet, policy, shares, found.upgrade.client))
    assert f"client {found.upgrade.client}" in found.advice()


def test_a_cheaper_device_is_helped_first_where_energy_is_counted_in_joules():
    alike = {"count": 1, "battery_wh": 200.0, "start": 1.0, "switched_off": True, "step_s": 200.0}
    group, cheap = (DeviceGroup(**alike, name=name, panel_wp=wp) for name, wp in (("dear", 1.0), ("cheap", 0.5)))
    fleet = DeviceFleet((group, cheap)).build(5)
    found = variance(fleet, ef.UniformWindow(), np.array([0.5, 0.5]), 200)
    assert found.upgrade.client == 1  # the longer cycle: a small part of its supply takes a whole round off
    assert "J more per round" in found.advice()


def test_devices_of_one_cycle_need_what_their_own_supply_lacks():
    """Cycles are rounded up: of two devices with a cycle of 11, one may need half a per cent more for 10."""
    alike = {"count": 1, "battery_wh": 400.0, "start": 1.0, "switched_off": True, "step_s": 200.0}

    def fleet_of(*panels):
        return DeviceFleet(tuple(DeviceGroup(**alike, name=f"{wp}", panel_wp=wp) for wp in panels)).build(5)

    per_wp = float(fleet_of(0.5).arrivals.mean[0] * 0.9 / 0.5)  # units per round that arrive, a watt-peak
    far, near = 1.001 / 11 / per_wp, 0.995 / 10 / per_wp
    fleet = fleet_of(far, near)
    assert fleet.cycles().tolist() == [11, 11]
    found = variance(fleet, ef.UniformWindow(), np.array([0.5, 0.5]), 200)
    assert found.upgrade.client == 1
    assert found.upgrade.energy_part == pytest.approx(0.005, abs=1e-3)
    assert fleet_of(far, near * (1.0 + found.upgrade.energy_part * 1.001)).cycles().tolist() == [11, 10]
    alone = variance(fleet_of(far), ef.UniformWindow(), np.array([1.0]), 200)
    assert alone.upgrade.energy_part == pytest.approx(11 / 10 / 1.001 - 1, abs=1e-3)


def test_what_nobody_can_compute_is_no_advice():
    lump = [Lump(np.array([e]), np.zeros(1, np.int64)) for e in (4, 2)]
    fleet = ef.Fleet(Changing(*lump, 24), np.array([3.0]))
    found = variance(fleet, ef.UniformWindow(), np.array([1.0]), 48)
    assert found.exact is not None
    assert found.advice().startswith("unknown")


def test_on_a_lattice_one_client_alone_may_not_be_worth_a_panel():
    found = variance(PAPER, ef.Lattice(), EQUAL, 20)
    assert found.exact == pytest.approx(0.0625)
    assert found.upgrade is None
    assert "no single device" in found.advice()


def test_nobody_waits_nobody_needs_more():
    found = variance(ef.Fleet.from_cycles([1, 1]), ef.UniformWindow(), np.array([0.5, 0.5]), 10)
    assert (found.exact, found.upgrade) == (0.0, None)
    assert "absent clients add no variance" in found.advice()


@pytest.mark.parametrize("policy", [ef.Greedy(), ef.WaitForAll(), ef.Always()], ids=repr)
def test_fixed_timing_has_no_variance(policy):
    found = variance(PAPER, policy, EQUAL, 20)
    assert (found.exact, found.upgrade, found.noisiest) == (0.0, None, None)


def test_what_has_no_law_has_no_exact_variance_and_no_advice():
    fleet = ef.Fleet.from_cycles([2, 5], arrivals="trickle", capacity=1)
    found = variance(fleet, ef.UniformWindow(), np.array([0.5, 0.5]), 20)
    assert (found.exact, found.by_client, found.upgrade) == (None, None, None)
    assert found.advice().startswith("unknown")


class TestTheAuditOfServerRules:
    FLEET = ef.Fleet.from_cycles([1, 4, 10])

    def report(self, policy, server, rounds=400, seeds=60):
        return ef.audit(self.FLEET, policy, rounds, seeds, server=server)

    def test_the_plain_sum_changes_nothing(self):
        plain, summed = (self.report(ef.UniformWindow(), rule) for rule in (None, ef.Sum()))
        assert plain.to_dict() == summed.to_dict()

    def test_truncation_shows_its_bias_exactly(self):
        found = self.report(ef.UniformWindow(), ef.Truncated(limit=5.0))
        assert found.exact.mean_weight == pytest.approx([1.0, 1.0, 0.5])
        assert found.mean_weight == pytest.approx([1.0, 1.0, 0.5])  # each window once, so exactly
        assert found.verdict.startswith(
            "biased over the run: E=1 clients count 1.00 times, E=4 clients 1.00, E=10 clients 0.50"
        )
        assert found.variance.exact == pytest.approx((3 + 25 * 0.1 * 0.9) / 9)

    def test_fedau_learns_what_algorithm_1_is_told(self):
        late = self.report(ef.UniformWindow(scaled=False), ef.FedAU(cutoff=50), rounds=4000, seeds=20)
        assert late.mean_weight == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
        assert late.exact.mean_weight is None

    def test_fedau_with_a_short_cutoff_weighs_the_rare_too_little(self):
        found = self.report(ef.UniformWindow(scaled=False), ef.FedAU(cutoff=4), rounds=4000, seeds=20)
        assert found.mean_weight[2] < 0.5

    def test_normalising_gives_every_round_the_weight_one(self):
        found = self.report(ef.Greedy(), ef.Normalized())
        assert found.round_weight_mean == pytest.approx(1.0)
        assert found.round_weight_variance == pytest.approx(0.0, abs=1e-12)
        assert found.verdict.startswith("biased")

    def test_memory_is_not_judged_by_single_weights(self):
        found = self.report(ef.UniformWindow(scaled=False), ef.LastUpdates())
        assert "last update" in found.verdict
        assert self.report(ef.UniformWindow(), ef.Varp()).verdict.startswith("unbiased")


@pytest.mark.parametrize(
    ("deltas", "words"),
    [(np.ones(39), "one length or one vector"), (np.ones((40, 2, 2)), "one length"), (np.full(40, np.nan), "finite")],
)
def test_bad_updates_are_refused(deltas, words):
    with pytest.raises(ef.InputError, match=words):
        ef.audit(PAPER, ef.UniformWindow(), 10, 2, deltas=deltas)
