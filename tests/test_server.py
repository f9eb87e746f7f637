"""Server rules and optimisers: what each adds to the model is what its formula says, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings as hypothesis_settings, strategies as st
from torch import nn

import everfed as ef
from everfed.learning.task import PlainTrained
from everfed.server.aggregate import Setting
from everfed.server.control import HTScaffold, Scaffold
from everfed.server.experience import Echo, FedAU
from everfed.server.gossip import FedAWE
from everfed.server.last_updates import FedVarp, LastUpdates, Mifa, Varp
from everfed.server.rules import Normalized, Sum, Truncated
from everfed.server.vectors import Vectors
from everfed.store.checkpoint import load_checkpoints, save_checkpoint

CPU = torch.device("cpu")
RULES = {name: row() for name, row in ef.SERVER_RULES.items() if not row.asynchronous}
OPTIMIZERS = {name: row() for name, row in ef.SERVER_OPTIMIZERS.items()}
REMEMBER = [LastUpdates, Mifa, FedVarp, Varp, Scaffold, HTScaffold]

SHARES = np.array([0.1, 0.2, 0.3, 0.4])
CYCLES = np.array([1.0, 2.0, 3.0, 6.0])
SIZE, ROUNDS = 3, 12
DELTAS = torch.as_tensor(np.random.default_rng(0).normal(size=(ROUNDS, 4, SIZE)), dtype=torch.float32)
# Who takes part: first without client 3, then a round with nobody, and late rounds with everybody.
HISTORY = [[0, 1], [0], [], [0, 2], [1, 2], [0], [0, 3], [2], [], [0, 1, 3], [0, 1, 2, 3], [3]]


def start(rule, optimizer=None):
    return rule.start(Setting(SHARES, SIZE, CPU, optimizer or ef.SGD(0.1), 2, ROUNDS, torch.zeros(SIZE)))


def results(clients, deltas, chunk):
    for first in range(0, len(clients), chunk):
        some = clients[first : first + chunk]
        yield PlainTrained(some, deltas[some].clone(), torch.ones(len(some)))


def play(aggregator, round, who, scales=CYCLES, deltas=None, skip=False, chunk=2):
    """One round of these clients; what nobody moves is a step of zeros."""
    who = np.array(who, np.int64)
    given = DELTAS[round] if deltas is None else deltas
    aggregator.open(round, who, scales[who], skip)
    for trained in results(who, given, chunk):
        aggregator.add(trained)
    outcome = aggregator.close()
    return outcome._replace(update=torch.zeros(SIZE) if outcome.update is None else outcome.update)


def replay(aggregator, rounds=range(ROUNDS), **how):
    return [play(aggregator, r, HISTORY[r], **how) for r in rounds]


def weighted_sum(coefficients, who, round):
    """The sum of coefficient * delta, in float64."""
    return np.asarray(coefficients, np.float64) @ DELTAS[round][list(who)].double().numpy()


def over(table):
    return pytest.mark.parametrize("value", table.values(), ids=table.keys())


def refused(*parts):
    return pytest.raises(ef.InputError, match=".*".join(re.escape(p) for p in parts))


# -- every rule ------------------------------------------------------------------------------------


@over(RULES)
class TestEveryRule:
    def test_is_a_value(self, value):
        assert value == type(value)()
        assert hash(value) == hash(type(value)())

    def test_a_round_with_nobody_at_the_start_is_empty(self, value):
        rule = start(value)
        rule.open(0, np.zeros(0, np.int64), np.zeros(0))
        assert rule.close() == (None, 0.0, None, None)

    def test_with_everybody_in_every_round_it_is_fedavg(self, value):
        one, fedavg = start(value), start(Sum())
        for r in range(ROUNDS):
            here, there = (play(a, r, range(4), np.ones(4)) for a in (one, fedavg))
            if value.normalizes or value.remembers:  # they divide by the shares, or take back what they add
                torch.testing.assert_close(here.update, there.update, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(here.update, there.update)
            assert here.weight == pytest.approx(1.0)

    def test_results_may_come_in_chunks_of_any_size(self, value):
        one, other = (replay(start(value), chunk=chunk) for chunk in (1, 4))
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.update, b.update, rtol=1e-5, atol=1e-6)
            assert a.weight == pytest.approx(b.weight)

    def test_losses_and_finiteness_are_told_in_the_order_of_the_participants(self, value):
        deltas = DELTAS[0].clone()
        deltas[2, 1] = math.inf
        outcome = play(start(value), 0, [0, 2, 3], deltas=deltas, skip=True, chunk=1)
        assert outcome.finite.tolist() == [True, False, True]
        assert outcome.losses.tolist() == [1.0, 1.0, 1.0]

    @pytest.mark.parametrize("stop", [0, 1, 5, 9])
    def test_goes_on_from_its_state_bit_for_bit(self, value, stop):
        whole = start(value)
        before = replay(whole, range(stop))
        assert len(before) == stop
        state = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
        kept = {name: tensor.clone() for name, tensor in state.items()}
        rest = replay(whole, range(stop, ROUNDS))
        for used in (False, True):  # a fresh one, or one that has been elsewhere
            other = start(value)
            if used:
                replay(other)
            other.load_state_dict(state)
            for a, b in zip(rest, replay(other, range(stop, ROUNDS)), strict=True):
                assert torch.equal(a.update, b.update)
                assert a.weight == b.weight
            assert state.keys() == kept.keys()
            assert all(torch.equal(state[name], kept[name]) for name in kept)  # loading is not sharing

    @pytest.mark.parametrize("seed", range(3))
    def test_a_participant_that_is_skipped_counts_as_absent(self, value, seed):
        rng = np.random.default_rng(seed)
        clean, broken = start(value), start(value)
        for r, who in enumerate(HISTORY):
            bad = [i for i in who if rng.random() < 0.4]
            deltas = DELTAS[r].clone()
            deltas[bad, rng.integers(SIZE)] = rng.choice([math.nan, math.inf, -math.inf])
            with_bad = play(broken, r, who, deltas=deltas, skip=True)
            without = play(clean, r, [i for i in who if i not in bad])
            torch.testing.assert_close(with_bad.update, without.update, rtol=1e-5, atol=1e-6)
            assert with_bad.weight == pytest.approx(without.weight)

    def test_a_result_that_is_not_finite_shows_unless_skipped(self, value):
        outcome = play(start(value), 0, [0, 1], deltas=torch.full((4, SIZE), math.nan))
        assert not outcome.update.isfinite().any()
        assert outcome.finite.tolist() == [False, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Truncated(0.5), ("limit is 0.5", "at least 1")),
        (lambda: Truncated(math.inf), ("limit is inf",)),
        (lambda: FedAU(0), ("cutoff is 0", "at least 1")),
        (lambda: Varp(-0.1), ("memory is -0.1", "from 0 to 1")),
        (lambda: Varp(math.nan), ("memory is nan",)),
        (lambda: Mifa(place="ram"), ("place is 'ram'", "'device' or 'disk'")),
        (lambda: LastUpdates("ram"), ("place is 'ram'",)),
        (lambda: FedVarp("ram"), ("place is 'ram'",)),
        (lambda: HTScaffold("ram"), ("place is 'ram'",)),
        (lambda: FedAWE(0.0), ("rate is 0.0", "positive")),
        (lambda: FedAWE(math.inf), ("rate is inf",)),
        (lambda: Varp(place="ram"), ("place is 'ram'",)),
        (lambda: Scaffold("ram"), ("place is 'ram'",)),
        (lambda: start(Scaffold(), ef.SGD(0.1, momentum=0.9)), ("SCAFFOLD needs", "plain SGD")),
        (lambda: start(Scaffold(), ef.Adam()), ("SCAFFOLD needs", "plain SGD")),
        (lambda: start(HTScaffold(), ef.Adam()), ("SCAFFOLD needs", "plain SGD")),
    ],
)
def test_bad_rules_are_refused(make, message):
    with refused(*message):
        make()


# -- rules without memory, by hand -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "coefficients"),
    [
        (Sum(), [0.1, 0.4, 2.4]),
        (Normalized(), [0.1 / 2.9, 0.4 / 2.9, 2.4 / 2.9]),
        (Truncated(2.5), [0.1, 0.4, 1.0]),
        (Truncated(6.0), [0.1, 0.4, 2.4]),
        (FedAU(), [0.1, 0.2, 0.4]),  # nothing is known yet
        (Echo(), [0.3, 0.6, 1.2]),  # three rounds since the start
        (FedAWE(), [0.3, 0.6, 1.2]),
        (FedAWE(rate=0.5), [0.15, 0.3, 0.6]),
        (LastUpdates(), [1 / 7, 2 / 7, 4 / 7]),
        (Mifa(), [0.0, 0.0, 0.0]),  # it waits for client 2
        (Mifa(wait=False), [0.1, 0.2, 0.4]),
        (FedVarp(), [1 / 7, 2 / 7, 4 / 7]),
        (Varp(), [0.1, 0.4, 2.4]),
        (Scaffold(), [1 / 7, 2 / 7, 4 / 7]),
        (HTScaffold(), [0.1, 0.4, 2.4]),
    ],
    ids=repr,
)
def test_first_participants_weigh_what_the_rule_says(rule, coefficients):
    outcome = play(start(rule), 2, [0, 1, 3])
    np.testing.assert_allclose(outcome.update.numpy(), weighted_sum(coefficients, [0, 1, 3], 2), rtol=1e-5, atol=1e-6)
    assert outcome.weight == pytest.approx(sum(coefficients))


def test_truncation_costs_a_client_what_is_cut_off():
    fleet = ef.Fleet.from_cycles([1, 5, 10, 20])
    report = ef.audit(fleet, ef.UniformWindow(), rounds=200, seeds=5, server=Truncated(8.0))
    np.testing.assert_allclose(report.exact.mean_weight, [1.0, 1.0, 0.8, 0.4])
    np.testing.assert_allclose(report.mean_weight, [1.0, 1.0, 0.8, 0.4])  # one slot a window, surely


def windows(cycle, count):
    """Every outcome of `count` windows of a cycle, one row each: the slot of each window, as a round."""
    slots = np.array(list(itertools.product(range(cycle), repeat=count)))
    return slots + cycle * np.arange(count)


@pytest.mark.parametrize("cycle", [1, 2, 5, 7])
def test_echo_weighs_by_the_place_in_the_window(cycle):
    slots = windows(cycle, 3)
    weigher = Echo().weighting(len(slots))
    for r in range(3 * cycle):
        joining = np.flatnonzero((slots == r).any(axis=1))
        mean = weigher.factors(r, joining, np.ones(len(joining))).sum() / len(slots)
        place = r % cycle
        assert mean == pytest.approx(((cycle + 1) / 2 + place if r >= cycle else place + 1) / cycle)


@pytest.mark.parametrize("cycle", [2, 5])
def test_fedau_nears_the_cycle_as_one_over_the_windows_seen(cycle):
    slots = windows(cycle, 4)
    weigher = FedAU(cutoff=2 * cycle - 1).weighting(len(slots))
    for r in range(4 * cycle):
        joining = np.flatnonzero((slots == r).any(axis=1))
        factors = weigher.factors(r, joining, np.ones(len(joining)))
        m = r // cycle  # windows that are over
        if m == 0:
            assert set(factors.tolist()) == {1.0}
            continue
        last = slots[joining, m - 1] % cycle
        np.testing.assert_allclose(factors, cycle - (cycle - 1 - last) / m)
        # The same for every place of the window: the weight does not depend on whether one joins now.
        assert factors.mean() == pytest.approx(cycle - (cycle - 1) / (2 * m))


def test_a_smaller_cutoff_than_the_gaps_makes_fedau_count_too_little():
    weigher = FedAU(cutoff=3).weighting(1)
    me, asked = np.array([0]), np.array([99.0])
    # Absent in rounds 0-7: two records of 3, and one of 3 as it joins in round 8; then a gap of 4: 3 and 1.
    got = [weigher.factors(r, me, asked)[0] for r in (8, 12, 13, 14)]
    assert got == pytest.approx([3.0, (3 * 3 + 3) / 4, (3 * 4 + 1) / 5, (3 * 4 + 1 + 1) / 6])


class SlowFedAU:
    """The rule as it is written: three counters a client, touched in every round."""

    def __init__(self, clients, cutoff):
        self.cutoff, self.since, self.records, self.weight = cutoff, [0] * clients, [0] * clients, [1.0] * clients

    def round(self, joining):
        used = [self.weight[i] for i in joining]
        for i in range(len(self.since)):
            self.since[i] += 1
            if i in joining or self.since[i] == self.cutoff:
                m, interval = self.records[i], self.since[i]
                self.weight[i] = interval if m == 0 else (m * self.weight[i] + interval) / (m + 1)
                self.records[i], self.since[i] = m + 1, 0
        return used


@hypothesis_settings(derandomize=True, deadline=None, max_examples=200)
@given(
    cutoff=st.integers(1, 12),
    joins=st.lists(st.lists(st.sampled_from([True, False, False, False]), min_size=3, max_size=3), max_size=60),
)
def test_fedau_is_the_rule_as_written(cutoff, joins):
    fast, slow = FedAU(cutoff).weighting(3), SlowFedAU(3, cutoff)
    for r, row in enumerate(joins):
        joining = np.flatnonzero(row)
        expected = slow.round(joining.tolist())
        if len(joining):
            np.testing.assert_allclose(fast.factors(r, joining, np.ones(len(joining))), expected, rtol=1e-12)


# -- rules with memory, by hand --------------------------------------------------------------------


# The local rates of a round, for 2 local steps of 12 rounds.
DECAYING = ef.SGD(0.1, schedule=ef.Cosine(0.1))
RATES = [sum(0.1 * DECAYING.schedule.factor(2 * r + k, 2 * ROUNDS) for k in range(2)) for r in range(ROUNDS)]


def slow_mifa(wait):
    """Gradients of everybody, at the rate of now; unseen ones are zero, or everybody waits for them."""
    gradients = np.zeros((4, SIZE))
    seen = set()
    for r, who in enumerate(HISTORY):
        for i in who:
            gradients[i] = DELTAS[r, i].double().numpy() / RATES[r]
        seen |= set(who)
        moves = len(seen) == 4 or not wait
        yield RATES[r] * SHARES @ gradients * moves, sum(SHARES[list(seen)]) * moves


def slow_fedvarp():
    """The participants' mean of what is new, on top of the mean of what was remembered."""
    last = np.zeros((4, SIZE))
    seen = set()
    for r, who in enumerate(HISTORY):
        update, weight = SHARES @ last, sum(SHARES[list(seen)])
        for i in who:
            part = SHARES[i] / SHARES[who].sum()
            update = update + part * (DELTAS[r, i].double().numpy() - last[i])
            weight += part * (i not in seen)
        for i in who:
            last[i] = DELTAS[r, i].double().numpy()
        seen |= set(who)
        yield update, weight


def slow_last_updates():
    """(update, weight) of every round of HISTORY, as the rule is written."""
    last = {}
    for r, who in enumerate(HISTORY):
        last |= {i: DELTAS[r, i].double().numpy() for i in who}
        total = sum(SHARES[i] for i in last)
        yield sum(SHARES[i] * y for i, y in last.items()) / total, 1.0


def slow_varp(memory):
    last = {}
    for r, who in enumerate(HISTORY):
        update = sum((SHARES[i] * memory * y for i, y in last.items()), np.zeros(SIZE))
        weight = sum(SHARES[i] * memory for i in last)
        for i in who:
            update = update + SHARES[i] * CYCLES[i] * (DELTAS[r, i].double().numpy() - memory * last.get(i, 0.0))
            weight += SHARES[i] * CYCLES[i] * (1.0 - memory * (i in last))
        last |= {i: DELTAS[r, i].double().numpy() for i in who}
        yield update, weight


@pytest.mark.parametrize("place", ["device", "disk"])
@pytest.mark.parametrize(
    ("rule", "slow"),
    [
        (lambda place: LastUpdates(place), slow_last_updates),
        (lambda place: Mifa(True, place), lambda: slow_mifa(True)),
        (lambda place: Mifa(False, place), lambda: slow_mifa(False)),
        (lambda place: FedVarp(place), slow_fedvarp),
        *((lambda place, m=m: Varp(m, place), lambda m=m: slow_varp(m)) for m in (0.0, 0.3, 1.0)),
    ],
    ids=["last-updates", "mifa", "mifa without waiting", "fedvarp", "ht-varp 0", "ht-varp 0.3", "ht-varp 1"],
)
def test_memory_is_the_rule_as_written(rule, slow, place):
    for outcome, (update, weight) in zip(replay(start(rule(place=place), DECAYING)), slow(), strict=True):
        np.testing.assert_allclose(outcome.update.numpy(), update, rtol=1e-4, atol=1e-5)
        assert outcome.weight == pytest.approx(weight)


def ones(value):
    return torch.full((4, SIZE), float(value))


def test_last_updates_in_numbers():
    server = start(LastUpdates())
    assert play(server, 0, [1], deltas=ones(2.0)).update[0].item() == pytest.approx(2.0)  # it stands for all
    assert play(server, 1, [3], deltas=ones(5.0)).update[0].item() == pytest.approx((0.2 * 2 + 0.4 * 5) / 0.6)
    assert play(server, 2, []).update[0].item() == pytest.approx((0.2 * 2 + 0.4 * 5) / 0.6)
    assert play(server, 3, [1], deltas=ones(0.0)).update[0].item() == pytest.approx(0.4 * 5 / 0.6)
    assert play(server, 4, [0, 2], deltas=ones(1.0)).update[0].item() == pytest.approx(0.4 * 5 + 0.4 * 1)


def test_ht_varp_in_numbers():
    server = start(Varp(memory=0.5))
    assert play(server, 0, [1], deltas=ones(2.0)).update[0].item() == pytest.approx(0.4 * 2)
    assert play(server, 1, []).update[0].item() == pytest.approx(0.5 * 0.2 * 2)
    assert play(server, 2, [1], deltas=ones(3.0)).update[0].item() == pytest.approx(0.5 * 0.2 * 2 + 0.4 * (3 - 1))
    assert play(server, 3, [3], deltas=ones(1.0)).update[0].item() == pytest.approx(0.5 * 0.2 * 3 + 2.4 * 1)


@pytest.mark.parametrize("memory", [0.0, 0.3, 1.0])
def test_ht_varp_is_unbiased_with_the_variance_stated(memory):
    # Every set of participants of one round, with its chance, after a round in which everybody was seen.
    outcomes = []
    for join in itertools.product([True, False], repeat=3):
        server = start(Varp(memory))
        play(server, 0, range(4))
        who = [0, *(i + 1 for i in range(3) if join[i])]
        chance = math.prod(1 / CYCLES[i] if i in who else 1 - 1 / CYCLES[i] for i in (1, 2, 3))
        outcomes.append((chance, play(server, 1, who)))
    mean = sum(chance * o.update.double() for chance, o in outcomes)
    np.testing.assert_allclose(mean.numpy(), weighted_sum(SHARES, range(4), 1), rtol=1e-5, atol=1e-6)
    assert sum(chance * o.weight for chance, o in outcomes) == pytest.approx(1.0)
    variance = sum(chance * (o.update.double() - mean).square().sum().item() for chance, o in outcomes)
    left = (DELTAS[1] - memory * DELTAS[0]).double().square().sum(dim=1).numpy()
    assert variance == pytest.approx((SHARES**2 * (CYCLES - 1)) @ left, rel=1e-4)


def test_memory_that_does_not_fit_is_refused_with_advice():
    with refused("a vector per client", "4 PB in total", "free on cpu", "place='disk'"):
        Vectors(10**6, 10**9, CPU, "device")


@pytest.mark.parametrize("rule", REMEMBER)
@pytest.mark.parametrize(("place", "words"), [("device", "on cpu"), ("disk", "on disk")])
def test_rules_with_memory_say_what_it_takes(rule, place, words):
    (line,) = start(rule(place=place)).explain()
    assert "of every client that has taken part: up to 48 B" in line  # 4 clients of 3 numbers
    assert words in line


# -- in the loop -----------------------------------------------------------------------------------

# Each client holds copies of one sample, so every minibatch is that sample and gradients can be done by hand.
X = torch.tensor([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5], [0.0, -2.0]])
Y = torch.tensor([1.0, -1.0, 2.0, 0.5])


def data(x=X, y=Y):
    return ef.from_arrays([(x[i].repeat(n, 1), y[i].repeat(n, 1)) for i, n in enumerate([1, 2, 3, 4])])


def simulation(rule=None, policy=None, offsets=None, given=None, **changes):
    """Algorithm 1 with cycles 1, 2, 3, 6, but for what is said."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.5]]))
    how = {"rounds": 12, "local_steps": 3, "batch_size": 1, "client": ef.SGD(0.1), "device": "cpu"}
    fleet = ef.Fleet.from_cycles([1, 2, 3, 6], offsets)
    method = ef.Method(policy or ef.UniformWindow(), rule or Sum(), "mine")
    return ef.start(model, given or data(), fleet, method, **{**how, **changes})


def gradient(weight, client):
    return 2 * (X[client] @ weight - Y[client]) * X[client]


def weight_of(run):
    return run.params["weight"][0]


def told(record):
    return {k: v for k, v in record.to_dict().items() if k != "seconds"}


def test_ht_varp_without_memory_is_algorithm_1_bit_for_bit():
    varp, plain = (simulation(rule, client=ef.Adam(0.05)) for rule in (Varp(memory=0.0), Sum()))
    for one, other in zip(varp, plain, strict=True):
        assert told(one) == told(other)
        assert torch.equal(weight_of(varp), weight_of(plain))


@pytest.mark.parametrize("scaffold", [Scaffold(), HTScaffold()], ids=repr)
def test_scaffold_with_one_local_step_and_everybody_is_fedavg(scaffold):
    # sum p_i (c - c_i) = 0, so that corrections cancel; with more steps each client bends them its own way.
    one, fedavg = (simulation(rule, ef.Always(), local_steps=1) for rule in (scaffold, Sum()))
    for _ in zip(one, fedavg, strict=True):
        torch.testing.assert_close(weight_of(one), weight_of(fedavg), rtol=1e-5, atol=1e-6)
    more, plain = (simulation(rule, ef.Always(), local_steps=5) for rule in (scaffold, Sum()))
    list(more), list(plain)
    assert (weight_of(more) - weight_of(plain)).norm() > 1e-2


def test_scaffold_goes_where_the_gradient_of_all_is_zero_and_fedavg_does_not():
    x, y, p = X.double().numpy(), Y.double().numpy(), np.sqrt(SHARES)
    best = np.linalg.lstsq(p[:, None] * x, p * y, rcond=None)[0]
    off = []
    for rule in (Scaffold(), Sum()):
        run = simulation(rule, ef.Always(), local_steps=4, rounds=30, client=ef.SGD(0.2))
        list(run)
        off.append(np.linalg.norm(weight_of(run).numpy() - best))
    assert off[0] < 1e-4 < 0.05 < off[1]


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("schedule", [ef.Constant(), ef.Cosine(0.1)], ids=repr)
@pytest.mark.parametrize("rule", [Scaffold(), HTScaffold()], ids=repr)
def test_scaffold_remembers_mean_gradients_and_their_mean(rule, trainer, schedule):
    optimizer = ef.SGD(0.1, schedule=schedule)
    run = simulation(rule, client=optimizer, trainer=trainer)
    own, weight = torch.zeros(4, 2), weight_of(run)
    shares = torch.tensor(SHARES, dtype=torch.float32)
    for record in run:
        rates = [0.1 * schedule.factor(3 * record.round + step, 36) for step in range(3)]
        mean, step = shares @ own, torch.zeros(2)
        for i, scale in zip(record.participants.tolist(), record.scales.tolist(), strict=True):
            w, seen = weight, torch.zeros(2)
            for rate in rates:
                g = gradient(w, i)
                w, seen = w - rate * (g - own[i] + mean), seen + rate * g
            # As published: the mean over participants, weighed by shares. Ours: Algorithm 1's sum.
            part = SHARES[i] * scale if rule.heeds_scales else SHARES[i] / SHARES[record.participants].sum()
            step = step + part * (w - weight)
            own[i] = seen / sum(rates)
        torch.testing.assert_close(weight_of(run), weight + step, rtol=1e-4, atol=1e-5)
        weight = weight_of(run)
        torch.testing.assert_close(run.server.rule.own.read(np.arange(4)), own, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(run.server.rule.mean, shares @ own, rtol=1e-4, atol=1e-4)


def broken():
    """Client 2's numbers are too large for float32 to multiply."""
    x = X.clone()
    x[2] = 1e30
    return data(x)


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@over(RULES)
def test_skipping_goes_on_as_if_the_client_had_never_come(value, trainer):
    sick = simulation(value, given=broken(), on_divergence="skip", trainer=trainer)
    without = simulation(value, offsets=[0, 0, 999, 0], trainer=trainer)
    dropped = []
    for record, clean in zip(sick, without, strict=True):
        assert [i for i in record.participants if i != 2] == clean.participants.tolist()
        assert weight_of(sick).isfinite().all()
        torch.testing.assert_close(weight_of(sick), weight_of(without), rtol=1e-5, atol=1e-6)
        assert record.round_weight == pytest.approx(clean.round_weight)
        assert record.train_loss == pytest.approx(clean.train_loss)
        dropped.append(record.dropped)
    assert [d for d in dropped if d] == [(2,)] * 4
    if isinstance(value, Scaffold | HTScaffold):
        own = sick.server.rule.own.read(np.arange(4))
        assert torch.equal(own[2], torch.zeros(2))
        torch.testing.assert_close(sick.server.rule.mean, torch.tensor(SHARES, dtype=torch.float32) @ own)


@over(RULES)
def test_without_skipping_the_run_ends(value):
    with pytest.raises(ef.DivergenceError, match="client 2 are not finite"):
        list(simulation(value, given=broken()))


@pytest.mark.parametrize("rule", REMEMBER)
def test_the_disk_remembers_what_the_device_does_bit_for_bit(rule):
    near, far = (simulation(rule(place=place)) for place in ("device", "disk"))
    for one, other in zip(near, far, strict=True):
        assert told(one) == told(other)
        assert torch.equal(weight_of(near), weight_of(far))
    states = [run.state_dict() for run in (near, far)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # And what one has kept the other can go on with.
    again = simulation(rule(place="disk"))
    again.load_state_dict(states[0])
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), states[0].values(), strict=True))


@pytest.mark.parametrize("method", ["last-updates", "mifa", "ht-varp"])
def test_what_the_kernels_train_is_remembered_alike(method):
    pytest.importorskip("triton", reason="Triton is not installed here")
    rng = np.random.default_rng(0)
    small = ef.from_arrays([(rng.normal(size=(6, 5)), rng.integers(0, 3, 6)) for _ in range(3)])
    how = {"rounds": 4, "local_steps": 2, "batch_size": 4, "client": ef.SGD(0.1)}
    how["device"] = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU in Triton's interpreter
    one, other = (
        ef.simulate("logistic", small, ef.Fleet.from_cycles([1, 2, 2]), method, trainer=trainer, **how).params
        for trainer in ("kernels", "batched")
    )
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)


def resumes(tmp_path, at, **setting):
    """Whether a run that is saved to a file at a round and goes on elsewhere ends where the whole one does."""
    whole, first, second = (simulation(**setting) for _ in range(3))
    records = list(whole)
    steps = iter(first)
    for _ in range(at):
        next(steps)
    save_checkpoint(tmp_path, at, first.state_dict(), {})
    (checkpoint,) = load_checkpoints(tmp_path)
    second.load_state_dict(checkpoint.tensors)
    assert [told(r) for r in second] == [told(r) for r in records[at:]]
    ends = [run.state_dict() for run in (whole, second)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    # The state itself was not touched by going on from it, so that a third run can.
    third = simulation(**setting)
    third.load_state_dict(checkpoint.tensors)
    assert [told(r) for r in third] == [told(r) for r in records[at:]]


@pytest.mark.parametrize("at", [0, 5])
@over(RULES)
def test_a_run_under_every_rule_resumes_bit_for_bit(value, at, tmp_path):
    # Clients that are sent models of their own leave a server optimiser nothing to do.
    momentum = {} if isinstance(value, FedAWE) else {"server_optimizer": ef.ServerMomentum()}
    resumes(tmp_path, at, rule=value, **momentum)


@over(OPTIMIZERS)
def test_a_run_under_every_server_optimizer_resumes_bit_for_bit(value, tmp_path):
    resumes(tmp_path, 5, server_optimizer=value, client=ef.SGD(0.1, momentum=0.5))


# -- server optimisers -----------------------------------------------------------------------------


def moves(optimizer, updates):
    """What the parameters become, from zero."""
    state, at, path = optimizer.init(updates.shape[1], CPU), torch.zeros(updates.shape[1]), []
    for update in updates:
        at = at + optimizer.step(update.clone(), state)
        path.append(at)
    return torch.stack(path)


UPDATES = torch.as_tensor(np.random.default_rng(1).normal(size=(8, 5)), dtype=torch.float32)


def by_hand(square, beta1=0.9, lr=0.3, tau=0.01):
    """The common frame of the adaptive ones, in float64; square: v from v and u."""
    u = UPDATES.double().numpy()
    m, v, at, path = np.zeros(5), np.full(5, tau**2), np.zeros(5), []
    for now in u:
        m = beta1 * m + (1 - beta1) * now
        v = square(v, now)
        at = at + lr * m / (np.sqrt(v) + tau)
        path.append(at)
    return np.array(path)


def test_momentum_by_hand():
    m, at, path = np.zeros(5), np.zeros(5), []
    for u in UPDATES.double().numpy():
        m = 0.8 * m + u
        at = at + 0.2 * m
        path.append(at)
    np.testing.assert_allclose(moves(ef.ServerMomentum(0.2, 0.8), UPDATES), path, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "square", "beta1"),
    [
        (ef.ServerAdam(0.3, 0.9, 0.01, 0.95), lambda v, u: 0.95 * v + 0.05 * u**2, 0.9),
        (ef.ServerYogi(0.3, 0.9, 0.01, 0.95), lambda v, u: v - 0.05 * u**2 * np.sign(v - u**2), 0.9),
        (ef.ServerAdaGrad(0.3, 0.6, 0.01), lambda v, u: v + u**2, 0.6),
    ],
    ids=["adam", "yogi", "adagrad"],
)
def test_adaptive_optimizers_by_hand(optimizer, square, beta1):
    np.testing.assert_allclose(moves(optimizer, UPDATES), by_hand(square, beta1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ef.ServerSGD(0.3), lambda p: torch.optim.SGD(p, 0.3)),
        (ef.ServerMomentum(0.3, 0.8), lambda p: torch.optim.SGD(p, 0.3, momentum=0.8)),
        (
            ef.ServerAdaGrad(0.3, tau=0.01),
            lambda p: torch.optim.Adagrad(p, 0.3, initial_accumulator_value=0.01**2, eps=0.01),
        ),
    ],
    ids=["sgd", "momentum", "adagrad"],
)
def test_where_torch_has_the_rule_it_agrees(ours, theirs):
    parameter, path = torch.zeros(5, requires_grad=True), []
    optimizer = theirs([parameter])
    for update in UPDATES:
        parameter.grad = -update
        optimizer.step()
        path.append(parameter.detach().clone())
    torch.testing.assert_close(moves(ours, UPDATES), torch.stack(path), rtol=1e-5, atol=1e-6)


@over(OPTIMIZERS)
def test_every_optimizer_says_whether_it_is_linear(value):
    assert value == type(value)()
    double, single = moves(value, 2 * UPDATES), moves(value, UPDATES)
    assert torch.allclose(double, 2 * single, rtol=1e-4) == value.linear
    a, b = UPDATES, UPDATES.flip(0)
    assert torch.allclose(moves(value, a + b), moves(value, a) + moves(value, b), atol=1e-4) == value.linear


@over(OPTIMIZERS)
def test_the_model_moves_as_the_optimizer_says(value):
    run, plain = simulation(server_optimizer=value), simulation()
    state, weight = value.init(2, CPU), weight_of(run)
    rounds_of_plain = iter(plain)
    for record in run:
        plain.server.params = weight.clone()  # the same start for the round without an optimiser
        next(rounds_of_plain)
        weight = weight + value.step(weight_of(plain) - weight, state)
        torch.testing.assert_close(weight_of(run), weight, rtol=1e-3, atol=1e-4)
        assert record.update_norm >= 0.0
        weight = weight_of(run)


@pytest.mark.parametrize(("optimizer", "moving"), [(ef.ServerSGD(0.5), False), (ef.ServerMomentum(), True)], ids=repr)
def test_momentum_alone_goes_on_when_nobody_trains(optimizer, moving):
    run = simulation(policy=ef.WaitForAll(), server_optimizer=optimizer)
    places = [weight_of(run), *(weight_of(run) for _ in run)]
    trained = [not torch.equal(a, b) for a, b in itertools.pairwise(places)]
    assert trained == [True, *[moving] * 5, True, *[moving] * 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ef.ServerSGD(0.0), ("lr is 0.0", "positive")),
        (lambda: ef.ServerSGD(math.inf), ("lr is inf",)),
        (lambda: ef.ServerMomentum(lr=-1.0), ("lr is -1.0",)),
        (lambda: ef.ServerMomentum(beta=1.0), ("beta is 1.0", "from 0 to below 1")),
        (lambda: ef.ServerAdam(beta2=-0.1), ("beta2 is -0.1",)),
        (lambda: ef.ServerYogi(beta2=1.0), ("beta2 is 1.0",)),
        (lambda: ef.ServerAdaGrad(tau=0.0), ("tau is 0.0",)),
        (lambda: ef.ServerAdam(beta1=1.5), ("beta1 is 1.5",)),
        (lambda: simulation(server_optimizer=0.5), ("server_optimizer is 0.5", "ServerSGD()")),
    ],
)
def test_bad_server_optimizers_are_refused(make, message):
    with refused(*message):
        make()
