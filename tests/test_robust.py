"""Defences by weight: each is what a plain loop says, and what they refuse; attackers; and what an audit finds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.auditing.audit import audit
from everfed.energy.fleet import Fleet
from everfed.learning.attacks import ATTACKS, NoAttack, SignFlip, attacked
from everfed.learning.task import PlainTrained
from everfed.report.page import page
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.schema import schema
from everfed.run.start import start
from everfed.server.aggregate import Setting
from everfed.server.guarded import guarded
from everfed.server.last_updates import LastUpdates
from everfed.server.robust import DEFENCES, GeometricMedian, Krum, LearntClip, MultiKrum, NoDefence, TrimmedMean
from everfed.server.rules import Normalized, Sum, Truncated
from everfed.store.runner import stored_rounds
from everfed.theory.coverage import check_honest

CPU = torch.device("cpu")
GUARDS = {name: kind() for name, kind in DEFENCES.items() if kind is not NoDefence}
over = pytest.mark.parametrize("name", GUARDS)
SMALL = Experiment(fleet=CycleFleet(clients=8, cycles=(1, 2, 4)), rounds=9, local_steps=2, eval_every=9, device="cpu")


# -- plain loops -----------------------------------------------------------------------------------


def median(values, weights):
    """By definition: half of the weight at most lies below it, and half at most above."""
    total = sum(weights)
    fits = [
        v
        for v in values
        if sum(w for x, w in zip(values, weights, strict=True) if x < v) <= total / 2 + 1e-9
        and sum(w for x, w in zip(values, weights, strict=True) if x > v) <= total / 2 + 1e-9
    ]
    return (min(fits) + max(fits)) / 2


def trimmed(values, weights, trim):
    """Weights in thousandths of the whole, each a value of its own: the ends are cut off the sorted list."""
    listed = sorted(v for v, w in zip(values, weights, strict=True) for _ in range(w))
    cut = round(trim * len(listed))
    return np.mean(listed[cut : len(listed) - cut])


def krum_scores(updates, weights, attackers):
    total, scores = sum(weights), []
    for i in range(len(updates)):
        near = sorted(range(len(updates)), key=lambda j: ((updates[i] - updates[j]) ** 2).sum())
        left, score = (1.0 - attackers) * total, 0.0
        for j in near:
            part = min(left, weights[j])
            score += part * ((updates[i] - updates[j]) ** 2).sum()
            left -= part
        scores.append(score)
    return scores


def naive(name, updates, weights):
    """The centre in float64, without any of the code under test."""
    columns = updates.T
    if name == "median":
        return np.array([median(c, weights) for c in columns])
    if name == "trimmed-mean":
        return np.array([trimmed(c, weights, 0.2) for c in columns])
    scores = krum_scores(updates, weights, 0.2)
    order = np.argsort(scores)
    if name == "krum":
        best = [i for i in order if scores[i] <= scores[order[0]] * (1 + 1e-9)]
        return np.average(updates[best], axis=0, weights=np.array(weights)[best])
    left, parts = 0.8 * sum(weights), np.zeros(len(updates))
    for i in order:
        parts[i] = min(left, weights[i])
        left -= parts[i]
    return parts @ updates / parts.sum()


def combined(defence, updates, weights, round=0):
    rows = torch.as_tensor(updates, dtype=torch.float32)
    weights = np.asarray(weights, np.float64)
    return defence.start().combine(round, rows, weights, torch.as_tensor(weights, dtype=torch.float32) @ rows)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum"])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 9, 16])
def test_the_centre_is_that_of_a_plain_loop(name, count):
    chance = np.random.default_rng(count)
    for size in (1, 2, 7):
        updates = chance.normal(size=(count, size)).astype(np.float32).astype(np.float64)
        weights = 5 * chance.integers(1, 40, count)  # fives, so that a fifth is a whole number
        found = combined(GUARDS[name], updates, weights / 1000)
        np.testing.assert_allclose(found, weights.sum() / 1000 * naive(name, updates, weights), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 11])
def test_no_point_nearby_has_a_lesser_sum_of_distances_than_the_geometric_median(count):
    chance = np.random.default_rng(count)
    updates, weights = chance.normal(size=(count, 4)), chance.uniform(0.1, 2.0, count)
    found = combined(GeometricMedian(steps=2000), updates, weights).numpy() / weights.sum()

    def distances(point):
        return weights @ np.linalg.norm(updates - point, axis=1)

    nearby = found + 0.01 * chance.normal(size=(200, 4))
    assert distances(found) <= min(map(distances, nearby)) + 1e-6


def test_the_median_of_many_coordinates_is_found_block_by_block(monkeypatch):
    updates, weights = np.random.default_rng(1).normal(size=(5, 23)), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    whole = [combined(GUARDS[name], updates, weights) for name in ("median", "trimmed-mean", "multi-krum")]
    monkeypatch.setattr("everfed.server.robust._BLOCK", 20)
    parts = [combined(GUARDS[name], updates, weights) for name in ("median", "trimmed-mean", "multi-krum")]
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


@over
class TestEveryDefence:
    def test_equal_updates_give_the_plain_sum(self, name):
        row, weights = np.array([1.0, -2.0, 0.5]), np.array([0.1, 2.5, 0.4, 0.05])
        found = combined(GUARDS[name], np.tile(row, (4, 1)), weights)
        np.testing.assert_allclose(found, weights.sum() * row, rtol=1e-6)

    def test_one_participant_alone_is_the_plain_sum(self, name):
        np.testing.assert_allclose(combined(GUARDS[name], [[3.0, -1.0]], [2.5]), [7.5, -2.5], rtol=1e-6)

    def test_two_of_equal_weight_give_their_mean(self, name):
        found = combined(GUARDS[name], [[1.0, 5.0], [3.0, -5.0]], [0.5, 0.5])
        np.testing.assert_allclose(found, [2.0, 0.0], atol=1e-5)

    def test_the_order_of_participants_does_not_matter(self, name):
        chance = np.random.default_rng(3)
        updates, weights = chance.normal(size=(9, 6)), chance.uniform(0.1, 1.0, 9)
        other = chance.permutation(9)
        one, two = (combined(GUARDS[name], updates[o], weights[o]) for o in (np.arange(9), other))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)

    def test_all_updates_zero_move_nothing(self, name):
        assert not combined(GUARDS[name], np.zeros((4, 3)), np.ones(4)).any()

    def test_a_tenth_of_the_weight_does_not_carry_the_update_away(self, name):
        chance = np.random.default_rng(4)
        honest = np.ones((9, 5)) + 0.1 * chance.normal(size=(9, 5))
        found = combined(GUARDS[name], np.vstack([honest, np.full((1, 5), -1e30)]), np.full(10, 0.1))
        # A clipped update still counts, but no more than twice as much as the others.
        assert (found > 0.5).all() if name != "clip" else found.norm() < 9 * 0.25 * 5**0.5

    def test_updates_may_come_in_chunks_of_any_size(self, name):
        updates = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
        one, *others = [play(Sum(), GUARDS[name], updates, chunk=chunk).update for chunk in (7, 1, 3)]
        for other in others:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)

    def test_a_round_with_nobody_is_empty(self, name):
        rule = guarded(Sum(), setting(), GUARDS[name])
        rule.open(0, np.zeros(0, np.int64), np.zeros(0))
        assert rule.close() == (None, 0.0, None, None)

    @pytest.mark.parametrize("rule", [Sum(), Normalized(), Truncated(2.0), LastUpdates()], ids=repr)
    def test_one_whose_update_is_not_finite_counts_as_absent(self, name, rule):
        updates = torch.randn(7, 5, generator=torch.Generator().manual_seed(5))
        bad = updates.clone()
        bad[3, 2] = torch.nan
        skipped = play(rule, GUARDS[name], bad, skip=True)
        absent = play(rule, GUARDS[name], updates, who=[0, 1, 2, 4, 5, 6])
        torch.testing.assert_close(skipped.update, absent.update)
        assert skipped.weight == pytest.approx(absent.weight)
        assert skipped.finite.tolist() == [i != 3 for i in range(7)]

    def test_nobody_finite_moves_nothing(self, name):
        outcome = play(Sum(), GUARDS[name], torch.full((7, 5), torch.nan), skip=True)
        assert not outcome.update.any()

    def test_it_ends_a_run_over_what_is_not_finite_by_default(self, name):
        broken = replace(SMALL, robust=GUARDS[name], client=ef.SGD(1e30))
        with pytest.raises(ef.DivergenceError, match="not finite"):
            list(start(broken))

    @pytest.mark.parametrize("method", ["algorithm1", "last-updates", "greedy-normalized"])
    def test_goes_on_from_its_state_bit_for_bit(self, name, method):
        experiment = replace(SMALL.with_method(method), robust=GUARDS[name])
        whole, cut = start(experiment), start(experiment)
        rounds = iter(cut)
        for _ in range(4):
            next(rounds)
        again = start(experiment)
        again.load_state_dict({key: value.clone() for key, value in cut.state_dict().items()})
        records = list(whole)
        assert [r.update_norm for r in again] == [r.update_norm for r in records[4:]]
        assert torch.equal(again.server.params, whole.server.params)

    def test_is_written_and_read(self, name):
        experiment = Experiment(robust=GUARDS[name], attack=SignFlip((1, 2), 2.0))
        assert config.from_dict(config.parse(config.to_toml(experiment))) == experiment
        assert config.from_dict({"robust": name}).robust == GUARDS[name]


def setting(clients=7, size=5):
    return Setting(np.full(clients, 1.0 / clients), size, CPU, ef.SGD(0.1), 2, 10, torch.zeros(size))


def play(rule, defence, updates, who=None, chunk=7, skip=False):
    """One round of clients of unequal scales."""
    aggregator = guarded(rule, setting(*updates.shape), defence)
    who = np.arange(len(updates)) if who is None else np.array(who)
    aggregator.open(0, who, np.array([1.0, 5.0, 2.0, 3.0, 1.0, 4.0, 2.0])[who], skip)
    for first in range(0, len(who), chunk):
        some = who[first : first + chunk]
        aggregator.add(PlainTrained(some, updates[some].clone(), torch.ones(len(some))))
    return aggregator.close()


def test_of_two_unequal_participants_the_heavier_decides_a_median():
    for name in ("median", "geometric-median", "krum"):
        found = combined(GUARDS[name], [[1.0, 5.0], [3.0, -5.0]], [2.5, 0.125])
        np.testing.assert_allclose(found, [2.625, 13.125], rtol=1e-4)


def test_attackers_below_half_of_the_weight_stay_within_the_honest_values():
    honest = np.random.default_rng(0).normal(size=(4, 30))
    updates = np.vstack([honest, np.full((1, 30), 1e6)])
    below, above = (combined(GUARDS["median"], updates, [0.25, 0.25, 0.25, 0.25, w]) / (1 + w) for w in (0.99, 1.01))
    assert (below.numpy() <= honest.max(axis=0) + 1e-5).all()
    assert (above > 1e5).all()


def test_last_updates_are_defended_by_shares_and_not_by_the_rounds_weight():
    """A client that is alone in a round moves the model by the centre of what all sent last."""
    updates = torch.randn(7, 5, generator=torch.Generator().manual_seed(6))
    rule = guarded(LastUpdates(), setting(), GUARDS["median"])
    for round, who in enumerate([np.arange(7), np.array([2])]):
        rule.open(round, who, np.ones(len(who)))
        rule.add(PlainTrained(who, (updates if round == 0 else torch.full((1, 5), 1e9)).clone(), torch.ones(len(who))))
        found = rule.close().update
    updates[2] = 1e9
    torch.testing.assert_close(found, updates.median(dim=0).values)


class TestClip:
    def test_an_honest_run_with_a_large_factor_is_the_plain_one_bit_for_bit(self):
        for method in ("algorithm1", "last-updates"):
            plain, clipped = (
                start(replace(SMALL.with_method(method), robust=r)) for r in (NoDefence(), LearntClip(1e6))
            )
            assert [r.update_norm for r in plain] == [r.update_norm for r in clipped]
            assert torch.equal(plain.server.params, clipped.server.params)

    def test_the_bound_is_learnt_from_lengths_after_scaling_before_any_cut(self):
        guard = LearntClip(factor=2.0, window=2).start()

        def step(round, lengths, weights):
            rows, weights = torch.diag(torch.tensor(lengths)), np.array(weights)
            return guard.combine(round, rows, weights, torch.as_tensor(weights, dtype=torch.float32) @ rows).tolist()

        assert step(0, [1.0, 1.0, 9.0], [1.0, 1.0, 1.0]) == [1.0, 1.0, 2.0]  # twice this round's median
        assert step(1, [1.0, 1.0, 9.0], [3.0, 3.0, 3.0]) == [2.0, 2.0, 2.0]  # of round 0: 1, 1, 9 with weight 1 each
        # Of both: 1, 1, 9 with weight 1; 3, 3, 27 with weight 3: half of the weight lies up to 3.
        assert step(2, [8.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == pytest.approx([6.0, 1.0, 1.0])
        # Round 0 is forgotten: 3, 3, 27 with weight 3; 8, 1, 1 with weight 1.
        assert step(3, [9.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == pytest.approx([6.0, 1.0, 1.0])


REFUSED = {
    "asynchronous": ({"method": "renewal", "robust": "median"}, "as it arrives"),
    "asynchronous-sum": ({"method": "greedy", "mode": "asynchronous", "robust": "krum"}, "as it arrives"),
    "stores": ({"method": "ht-varp", "robust": "median"}, "does more with them than to sum them"),
    "corrects": ({"method": "scaffold", "robust": "clip"}, "does more with them than to sum them"),
    "own-models": ({"method": "fedawe", "robust": "clip"}, "does more with them than to sum them"),
    "attack-asynchronous": ({"method": "renewal", "attack": {"kind": "noise", "clients": [1]}}, "simulated in rounds"),
    "nobody": ({"attack": "sign-flip"}, "attack.clients is empty"),
    "unknown-client": ({"attack": {"kind": "noise", "clients": [40]}}, "0 to 39"),
    "trim": ({"robust": {"kind": "trimmed-mean", "trim": 0.5}}, "robust.*trim"),
    "name": ({"robust": "meadian"}, "Did you mean 'median'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused_in_words(case):
    raw, words = REFUSED[case]
    with pytest.raises(ef.InputError, match=words):
        start(config.from_dict({"device": "cpu", **raw}))


def test_more_updates_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr("everfed.server.guarded.free_on", lambda device: 1000)
    monkeypatch.setattr("everfed.server.guarded._LARGE", 0)
    with pytest.raises(ef.InputError, match="compares the updates of"):
        list(start(replace(SMALL, robust=GUARDS["median"])))


def test_a_defence_and_an_attack_of_ones_own_are_named_in_files():
    @ef.register("robust", "test-halved")
    @dataclass(frozen=True)
    class Halved(type(GUARDS["median"]).__base__):
        def centre(self, updates, weights):
            return (weights @ updates.double() / 2).to(updates.dtype)

    try:
        plain, halved = (start(replace(SMALL, rounds=1, robust=r)) for r in ("none", "test-halved"))
        one, two = next(iter(plain)), next(iter(halved))
        assert two.update_norm == pytest.approx(one.update_norm / 2)
        assert "test-halved" in str(schema())
    finally:
        del DEFENCES["test-halved"]


# -- attackers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, kind in ATTACKS.items() if kind is not NoAttack])
def test_attackers_send_updates_of_the_stated_length_and_the_others_their_own(name):
    attack = ATTACKS[name](clients=(1, 3), factor=2.0)
    deltas = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))

    def sent(clients, round=5):
        given = PlainTrained(clients, deltas[clients].clone(), torch.ones(len(clients)))
        (found,) = attacked([given], attack, round, 7)
        return found.deltas

    found = sent(np.arange(4))
    assert torch.equal(found[[0, 2]], deltas[[0, 2]])
    torch.testing.assert_close(found[[1, 3]].norm(dim=1), 2.0 * deltas[[1, 3]].norm(dim=1))
    assert torch.equal(sent(np.array([2, 3]))[1], found[3])  # whoever else takes part
    cosine = torch.cosine_similarity(found[1], found[3], dim=0)
    assert abs(cosine) > 0.999 if name == "same-direction" else abs(cosine) < 0.5
    again = torch.cosine_similarity(sent(np.arange(4), round=6)[1], found[1], dim=0)
    assert (again < 0.5) == (name == "noise")


def test_a_flipped_sign_is_a_flipped_sign():
    honest, attacked_run = (
        start(replace(SMALL.with_method("fedavg"), rounds=1, fleet=CycleFleet(clients=2, cycles=(1,)), attack=a))
        for a in (NoAttack(), SignFlip((0, 1)))
    )
    first = honest.server.params.clone()
    list(honest), list(attacked_run)
    torch.testing.assert_close(attacked_run.server.params - first, first - honest.server.params)


def test_a_multi_krum_over_last_updates_withstands_what_the_sum_does_not():
    experiment = replace(
        Experiment(fleet=CycleFleet(clients=8, cycles=(1, 5, 10, 20)), rounds=60, local_steps=10, device="cpu"),
        client=ef.SGD(0.1), attack=SignFlip((3, 7)), check_trainer=False,
    ).with_method("last-updates")  # fmt: skip
    scores = {}
    for name, defence in {"none": NoDefence(), "multi-krum": MultiKrum(0.3)}.items():
        run = start(replace(experiment, robust=defence))
        scores[name] = run.history(list(run)).final.accuracy
    assert scores["multi-krum"] > scores["none"] + 0.05


def test_options_are_held_to_their_ranges():
    for wrong in ({"trim": 0.5}, {"trim": -0.1}):
        with pytest.raises(ef.InputError, match="trim"):
            TrimmedMean(**wrong)
    with pytest.raises(ef.InputError, match="attackers"):
        Krum(attackers=0.5)
    with pytest.raises(ef.InputError, match=re.escape("clients[0]")):
        SignFlip(clients=(-1,))


# -- audits, bounds, reports, networks -------------------------------------------------------------

PAPER = Fleet.from_cycles([1, 5, 10, 20] * 2)


class TestAudit:
    def test_a_defence_is_never_called_unbiased(self):
        for name, defence in GUARDS.items():
            found = audit(PAPER, "algorithm1", rounds=40, seeds=5, robust=defence)
            assert "unbiased over the run" not in found.verdict, name
            assert found.over_the_run is found.in_every_round is found.mean_weight is None
            assert type(defence).__name__ in found.verdict

    def test_a_median_pulls_to_whoever_has_most_of_the_rounds_weight(self):
        found = audit(PAPER, "algorithm1", rounds=200, seeds=10, robust=GUARDS["median"]).defended
        assert found.biased
        assert found.common == pytest.approx(1.0, abs=0.05)
        assert found.by_group["E=1"] < 0.7
        assert all(value == pytest.approx(1.0, abs=0.2) for value in found.plain.values())

    def test_a_median_of_a_majority_leaves_nothing_of_the_minority(self):
        """Five of one group and three of another, all in every round: the exact value is 0 and 8/5."""
        fleet = Fleet.from_cycles([1, 1, 1, 1, 1, 2, 2, 2])
        found = audit(fleet, "fedavg", rounds=10, seeds=5, robust=GUARDS["median"]).defended
        assert found.by_group == pytest.approx({"E=1": 8 / 5, "E=2": 0.0})
        assert (found.common, found.band) == pytest.approx((1.0, 0.0))

    def test_a_clip_that_cuts_nothing_is_still_no_promise(self):
        found = audit(PAPER, "algorithm1", rounds=40, seeds=5, robust=LearntClip(1e6))
        assert not found.defended.biased
        assert found.verdict.startswith("not unbiased in general")

    def test_attackers_are_told_with_their_weight(self):
        found = audit(PAPER, "fedavg", rounds=20, seeds=5, attack=SignFlip((3, 7)))
        assert found.verdict.startswith("unbiased over the run")
        assert "The run has attackers: client 3, 7, with 25.0% of the data" in found.verdict
        assert found.defended.attacked["common"] == pytest.approx(0.5)  # six for, two against
        assert found.defended.most == pytest.approx(0.25)
        assert found.to_dict()["defended"]["attackers"] == (3, 7)

    def test_what_cannot_be_run_is_not_audited_either(self):
        with pytest.raises(ef.InputError, match="does more with them"):
            audit(PAPER, "ht-varp", rounds=20, seeds=5, robust=GUARDS["median"])

    @pytest.mark.parametrize("cycles", [[4] * 5, [4], list(range(1, 13))], ids=["one", "alone", "many"])
    def test_fleets_of_one_energy_group_and_of_many(self, cycles):
        found = audit(Fleet.from_cycles(cycles), "algorithm1", rounds=24, seeds=5, robust=GUARDS["median"])
        assert found.defended.by_group


def test_no_theorem_covers_a_defence_or_attackers():
    with pytest.raises(ef.InputError, match="LearntClip makes the server's step biased"):
        check_honest(LearntClip(), NoAttack())
    with pytest.raises(ef.InputError, match="SignFlip"):
        check_honest(NoDefence(), SignFlip((1,)))
    check_honest(NoDefence(), NoAttack())


def test_a_report_says_that_runs_were_attacked(tmp_path):
    attacked_run = replace(SMALL, attack=SignFlip((1,)), robust=GUARDS["median"])
    for _ in stored_rounds(attacked_run, tmp_path / "run"):
        pass
    said = page([ef.open_run(tmp_path / "run")], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the run has attackers, client 1 (sign-flip); the server's defence: median" in said
    assert "biased by the defence CoordinateMedian" in said


@pytest.mark.parametrize("name", ["median", "clip"])
def test_a_flower_server_has_the_same_defences(name):
    pytest.importorskip("flwr")
    from flower_grid import SHORT, run

    experiment = replace(SHORT, robust=GUARDS[name])
    made, records, _ = run(experiment)
    simulated = start(experiment)
    list(simulated)
    assert len(records) == 2
    torch.testing.assert_close(made.server.params, simulated.server.params, rtol=1e-5, atol=1e-6)
    with pytest.raises(ef.InputError, match="these clients are real"):
        run(replace(experiment, attack=SignFlip((1,))))
