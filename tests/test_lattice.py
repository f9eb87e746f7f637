"""The lattice: every client's chances as in Algorithm 1, and as even a crowd in every round as can be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from everfed import Fleet, Lattice, UniformWindow, audit
from everfed.errors import InputError
from everfed.scheduling import lattice
from everfed.scheduling.laws import law_of
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, View, ranked

PAPER = Fleet.from_cycles([1, 5, 10, 20] * 10)
SIZES = [(10, 5), (10, 10), (10, 20), (13, 5), (3, 7)]  # peers, cycle
# Variance of how many take part in a round: independently, and on the lattice.
COUNTS = {(10, 5): (1.6, 0.0), (10, 10): (0.9, 0.0), (10, 20): (0.475, 0.25), (13, 5): (2.08, 0.24)}


def joins(fleet, policy, rounds, seeds):
    """Who joins, [rounds, seeds, N]."""
    schedule = Schedule(fleet, policy, np.arange(seeds, dtype=np.uint64)[:, None])
    return np.array([schedule.step(r)[0] for r in range(rounds)])


def laws(fleet, policy, rounds):
    """The law of every round."""
    return list(law_of(fleet, policy, rounds).rounds())


def with_all_shifts(monkeypatch, grid, order):
    """Seed s draws the shift (s + 1/2) / grid; the order of the peers is seed `order`'s for all of them."""
    real = lattice.random.words

    def words(seed, purpose, *where, **how):
        drawn = real(np.full_like(seed, order), purpose, *where, **how)
        if purpose != lattice.random.Purpose.SHIFT:
            return drawn
        shift = (np.asarray(seed).astype(np.float64) + 0.5) / grid
        return np.broadcast_to((shift * 2.0**32).astype(np.uint64), drawn.shape)

    monkeypatch.setattr(lattice.random, "words", words)


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize(("peers", "cycle"), SIZES)
def test_over_all_shifts_every_client_has_every_slot_alike(peers, cycle, redraw, monkeypatch):
    # With a grid that both the peers and the cycle divide, each slot's share of it is exact, whatever the order.
    grid = 16 * math.lcm(peers, cycle)
    clients = Clients.of(Fleet.from_cycles([cycle] * peers), np.arange(grid, dtype=np.uint64)[:, None])
    for order in range(3):
        with monkeypatch.context() as patch:
            with_all_shifts(patch, grid, order)
            slots = Lattice(redraw=redraw)._slot(clients, np.s_[:], np.full(peers, 5))
        for client in range(peers):
            assert np.bincount(slots[:, client], minlength=cycle).tolist() == [grid // cycle] * cycle


@pytest.mark.parametrize(("peers", "cycle"), SIZES)
def test_over_many_seeds_every_client_joins_every_round_alike(peers, cycle):
    seeds = 3000
    frequency = joins(Fleet.from_cycles([cycle] * peers), Lattice(), 2 * cycle, seeds).mean(axis=1)
    deviation = math.sqrt((1 - 1 / cycle) / cycle / seeds)
    assert np.abs(frequency - 1 / cycle).max() < 4.5 * deviation


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize(("peers", "cycle"), SIZES)
def test_rounds_see_as_many_peers_as_the_mean_rounded_down_or_up(peers, cycle, redraw):
    counts = joins(Fleet.from_cycles([cycle] * peers), Lattice(redraw=redraw), 4 * cycle, 200).sum(axis=2)
    assert set(np.unique(counts).tolist()) == {peers // cycle, math.ceil(peers / cycle)}


@pytest.mark.parametrize(("peers", "cycle"), SIZES)
def test_there_is_one_slot_a_window(peers, cycle):
    fleet = Fleet.from_cycles([cycle] * peers, offsets=[3] * peers)
    joined = joins(fleet, Lattice(), 3 + 4 * cycle, 50)
    assert not joined[:3].any()
    assert (joined[3:].reshape(4, cycle, 50, peers).sum(axis=1) == 1).all()


@pytest.mark.parametrize(("size", "variances"), COUNTS.items())
def test_the_variance_of_the_number_of_participants(size, variances):
    peers, cycle = size
    fleet = Fleet.from_cycles([cycle] * peers)
    for policy, variance in zip((UniformWindow(), Lattice()), variances, strict=True):
        # Shares of 1/E make a round's weight the number of its participants.
        law = laws(fleet, policy, 8)[7]
        assert law.weight_variance(np.full(peers, 1 / cycle)) == pytest.approx(variance, abs=1e-12)
        counts = joins(fleet, policy, cycle, 2000).sum(axis=2)
        assert counts.var() == pytest.approx(variance, rel=0.1)


def test_the_weight_of_the_papers_rounds_varies_a_third_as_much():
    report = audit(PAPER, Lattice(), rounds=200, seeds=100)
    assert report.exact.round_weight_variance == pytest.approx(0.0625, rel=1e-12)
    assert report.round_weight_variance == pytest.approx(0.0625, rel=0.05)
    assert report.exact.round_weight_mean == pytest.approx(1.0)
    assert audit(PAPER, UniformWindow(), rounds=20, seeds=2).exact.round_weight_variance == pytest.approx(0.2)


@pytest.mark.parametrize(("peers", "cycle"), [*SIZES, (4, 2), (2, 1)])
def test_the_variance_of_unequal_updates_is_the_formulas(peers, cycle):
    """p^2 (E - 1) sum |d_i|^2 + p^2 E^2 (pi_2 - 1/E^2) sum over pairs <d_i, d_j>, from rounds that were played."""
    deltas = np.random.default_rng(0).normal(0.5, 1.0, size=(peers, 3))
    m, rest = divmod(peers, cycle)
    both = m * (2 * rest + cycle * (m - 1)) / (cycle * peers * (peers - 1))
    pairs = float((deltas.sum(axis=0) ** 2).sum() - (deltas**2).sum())
    p = 1 / peers
    variance = p**2 * (cycle - 1) * (deltas**2).sum() + p**2 * cycle**2 * (both - 1 / cycle**2) * pairs
    if peers % cycle == 0 and cycle > 1:  # what the peers have in common is gone
        apart = ((deltas - deltas.mean(axis=0)) ** 2).sum()
        assert variance == pytest.approx(p**2 * (cycle - 1) * peers / (peers - 1) * apart)
    joined = joins(Fleet.from_cycles([cycle] * peers), Lattice(), cycle, 40_000 // cycle)
    updates = p * cycle * (joined @ deltas) - p * deltas.sum(axis=0)
    assert (updates**2).sum(axis=2).mean() == pytest.approx(variance, rel=0.05, abs=1e-12)
    together = [joined[..., i] & joined[..., j] for i in range(peers) for j in range(i)]
    assert np.mean(together) == pytest.approx(both, rel=0.05, abs=1e-12)
    for block in laws(Fleet.from_cycles([cycle] * peers), Lattice(), 1)[0].blocks:
        assert block.joint_probability == pytest.approx(both)


def test_groups_of_other_cycles_and_starts_are_independent():
    fleet = Fleet.from_cycles([4, 4, 4, 4, 6, 6], offsets=[0, 0, 12, 12, 0, 0])
    blocks = laws(fleet, Lattice(), 13)[12].blocks
    assert sorted(block.clients.tolist() for block in blocks) == [[0, 1], [2, 3], [4, 5]]
    assert [block.clients.tolist() for block in laws(fleet, Lattice(), 1)[0].blocks] == [[0, 1], [4, 5]]
    joined = joins(fleet, Lattice(), 24, 2000)[12:].astype(float)
    for i, j in ((0, 2), (0, 4), (2, 4)):
        one, other = joined[..., i], joined[..., j]
        covariance = (one * other).mean(axis=1) - one.mean(axis=1) * other.mean(axis=1)
        assert np.abs(covariance).max() < 4.5 / 4 / math.sqrt(2000)
    assert not (joined[..., 0] * joined[..., 1]).any()  # peers fewer than rounds never meet


def test_windows_are_drawn_anew_unless_the_phase_is_fixed():
    fleet = Fleet.from_cycles([6] * 4)
    for redraw in (True, False):
        slots = joins(fleet, Lattice(redraw=redraw), 60, 3).reshape(10, 6, 3, 4).argmax(axis=1)
        assert (len(np.unique(slots, axis=0)) == 1) is not redraw


class TestFixedPhase:
    def test_gaps_are_the_cycle(self):
        cycles = [3, 3, 5, 7, 7, 7]
        joined = joins(Fleet.from_cycles(cycles), Lattice(redraw=False), 105, 20)
        for i, cycle in enumerate(cycles):
            for seed in range(20):
                assert set(np.diff(np.flatnonzero(joined[:, seed, i])).tolist()) == {cycle}
        mean, variance = law_of(PAPER, Lattice(redraw=False), 205).gaps().mean_and_variance()
        assert mean.tolist() == [1, 5, 10, 20] * 10
        assert variance == pytest.approx([0.0] * 40)

    def test_needs_a_battery_of_one_unit_where_energy_trickles(self):
        small = Fleet.from_cycles([1, 5, 10, 20] * 10, arrivals="trickle", capacity=1)
        law = laws(small, Lattice(redraw=False), 60)[0]
        assert law.probability.tolist() == [1.0, 0.2, 0.1, 0.05] * 10
        joined = joins(small, Lattice(redraw=False), 200, 20)
        assert (joined.sum(axis=0) == [200, 40, 20, 10] * 10).all()
        # One that is drawn anew would have to skip slots.
        assert law_of(small, Lattice(), 60) is None
        assert joins(small, Lattice(), 200, 20).sum() < joined.sum()

    def test_the_phase_is_the_first_window_of_the_lattice(self):
        one, other = (joins(PAPER, Lattice(redraw=redraw), 5, 10) for redraw in (True, False))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("redraw", [True, False])
def test_a_client_alone_decides_as_in_the_fleet(redraw):
    fleet = Fleet.from_cycles([1, 4, 6, 6, 4, 6, 4], offsets=[0, 0, 0, 0, 3, 0, 0])
    policy, seed = Lattice(redraw=redraw), 11
    schedule = Schedule(fleet, policy, seed)
    together = np.array([schedule.step(r)[0] for r in range(40)])
    everybody = Clients.of(fleet, seed)
    full = np.ones(1, np.bool_)
    for i in range(len(fleet)):
        me = everybody.part(np.array([i]))
        for begin in (0, 17):  # from the start, or after a loss of power
            state = policy.init(me, begin)
            for r in range(begin, 40):
                join, scale, state = policy.step(state, View(r, full, np.ones(1)))
                assert join[0] == together[r, i]
                assert scale[0] == fleet.cycles()[i]


def test_ranks_count_peers_of_one_cycle_and_start():
    cycles, offsets = np.array([5, 3, 5, 3, 5]), np.array([0, 0, 2, 0, 0])
    ranks, peers = ranked(cycles, offsets)
    assert ranks.tolist() == [0, 0, 0, 1, 1]
    assert peers.tolist() == [2, 2, 1, 2, 2]


def test_clients_without_ranks_are_refused():
    known = Clients.of(PAPER, 0)
    for missing in ({"ranks": None}, {"peers": None}):
        with pytest.raises(InputError, match=r"rank among the clients with its cycle.*when a client enrols"):
            Lattice().init(replace(known, **missing))


@pytest.mark.parametrize("believed", [1, 3, 7, 12])
def test_a_wrong_number_of_peers_or_a_wrong_rank_costs_no_bias(believed):
    seeds = 4000
    clients = Clients.of(Fleet.from_cycles([5] * 6), np.arange(seeds, dtype=np.uint64)[:, None])
    wrong = replace(clients, ranks=np.array([0, 2, 2, 5, 9, 40]), peers=np.full(6, believed))
    state, full = Lattice().init(wrong), np.ones((seeds, 6), np.bool_)
    frequency = []
    for r in range(15):
        join, _, state = Lattice().step(state, View(r, full, full))
        frequency.append(join.mean(axis=0))
    assert np.abs(np.array(frequency) - 0.2).max() < 4.5 * math.sqrt(0.16 / seeds)


def test_clients_that_disagree_about_their_number_decide_as_each_would_alone():
    clients = Clients.of(Fleet.from_cycles([5] * 6), 3)
    wrong = replace(clients, peers=np.array([6, 6, 6, 7, 7, 2]))
    window = np.zeros(6, np.int64)
    together = Lattice()._slot(wrong, np.s_[:], window)
    alone = [Lattice()._slot(wrong.part(np.array([i])), np.s_[:], window[:1])[0] for i in range(6)]
    assert together.tolist() == alone


def test_rows_of_many_seeds_are_runs_of_one_seed_each():
    side_by_side = joins(PAPER, Lattice(), 40, 3)
    for seed in range(3):
        schedule = Schedule(PAPER, Lattice(), seed)
        np.testing.assert_array_equal(side_by_side[:, seed], [schedule.step(r)[0] for r in range(40)])
