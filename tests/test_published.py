"""Rules under published names do what was published: each against a plain loop written from the formulas.

Two clients with the losses (w - c)^2 and equal shares, so that the publications' 1/N and 1/|S| can be written as they
are there. Client 0 trains in every round, client 1 in every second from round 1 on.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.store.checkpoint import load_checkpoints, save_checkpoint

CENTRES = (1.0, -3.0)
START, STEPS, ROUNDS = 0.5, 3, 6
TRAINERS = ["batched", "one-by-one"]
SCHEDULES = [ef.Constant(), ef.InverseTime(2.0), ef.Cosine(0.1)]


def simulation(
    rule, *, everybody=False, schedule=None, centres=CENTRES, sizes=(1, 1), cycles=(1, 2), offsets=(0, 1), **changes
):
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(START)
    data = ef.from_arrays([(np.ones((n, 1)), np.full((n, 1), c)) for c, n in zip(centres, sizes, strict=True)])
    fleet = ef.Fleet.from_cycles(list(cycles), offsets)
    policy = ef.Always() if everybody else ef.Greedy()
    how = {"rounds": ROUNDS, "local_steps": STEPS, "batch_size": 1, "device": "cpu"}
    how["client"] = ef.SGD(0.05, schedule=schedule or ef.Constant())
    return ef.start(model, data, fleet, ef.Method(policy, rule, "mine"), **{**how, **changes})


def path(run):
    """The weight after every round."""
    return [run.params["weight"].item() for _ in run]


def told(record):
    return {name: value for name, value in record.to_dict().items() if name != "seconds"}


def rates(schedule, round):
    return [0.05 * schedule.factor(STEPS * round + k, STEPS * ROUNDS) for k in range(STEPS)]


def trained(w, client, schedule, round, correction=0.0):
    for rate in rates(schedule, round):
        w -= rate * (2 * (w - CENTRES[client]) + correction)
    return w


def present(round):
    return [0, 1] if round % 2 else [0]


def published_mifa(schedule, wait):
    w, gradients = START, [None, None]
    for r in range(ROUNDS):
        for i in present(r):
            gradients[i] = (w - trained(w, i, schedule, r)) / sum(rates(schedule, r))
        if not wait or None not in gradients:
            w -= sum(rates(schedule, r)) * sum(g or 0.0 for g in gradients) / 2
        yield w


def published_fedawe(schedule, rate):
    own, since = [START, START], [0, 0]
    for r in range(ROUNDS):
        here = present(r)
        since = [k + 1 for k in since]
        ends = [own[i] + rate * since[i] * (trained(own[i], i, schedule, r) - own[i]) for i in here]
        for i in here:
            own[i], since[i] = sum(ends) / len(here), 0
        yield sum(own) / 2


def published_fedvarp(schedule):
    w, last = START, [0.0, 0.0]
    for r in range(ROUNDS):
        here = present(r)
        new = {i: trained(w, i, schedule, r) - w for i in here}
        w += sum(last) / 2 + sum(new[i] - last[i] for i in here) / len(here)
        for i in here:
            last[i] = new[i]
        yield w


def published_scaffold(schedule):
    w, own, mean = START, [0.0, 0.0], 0.0
    for r in range(ROUNDS):
        here = present(r)
        ends = {i: trained(w, i, schedule, r, mean - own[i]) for i in here}
        new = {i: own[i] - mean + (w - ends[i]) / sum(rates(schedule, r)) for i in here}
        w += sum(ends[i] - w for i in here) / len(here)
        mean += sum(new[i] - own[i] for i in here) / 2
        for i in here:
            own[i] = new[i]
        yield w


def published_fedau(schedule, cutoff):
    w, intervals, away = START, [[], []], [0, 0]
    for r in range(ROUNDS):
        step = 0.0
        for i in range(2):
            if i in present(r):
                step += (np.mean(intervals[i]) if intervals[i] else 1.0) * (trained(w, i, schedule, r) - w)
                intervals[i].append(away[i] + 1)
                away[i] = 0
            else:
                away[i] += 1
                if away[i] >= cutoff:
                    intervals[i].append(away[i])
                    away[i] = 0
        w += step / 2
        yield w


PUBLISHED = {
    "mifa": (ef.Mifa(), lambda s: published_mifa(s, True)),
    "mifa without waiting": (ef.Mifa(wait=False), lambda s: published_mifa(s, False)),
    "fedawe": (ef.FedAWE(), lambda s: published_fedawe(s, 1.0)),
    "fedawe at half the rate": (ef.FedAWE(0.5), lambda s: published_fedawe(s, 0.5)),
    "fedvarp": (ef.FedVarp(), published_fedvarp),
    "scaffold": (ef.Scaffold(), published_scaffold),
    "fedau": (ef.FedAU(), lambda s: published_fedau(s, 50)),
    "fedau with a short cutoff": (ef.FedAU(1), lambda s: published_fedau(s, 1)),
}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_rule_is_the_published_loop(name, schedule, trainer):
    rule, published = PUBLISHED[name]
    expected = list(published(schedule))
    assert path(simulation(rule, schedule=schedule, trainer=trainer)) == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) > 3  # something happens


def test_every_method_with_a_published_title_has_its_loop_here():
    titles = {"MIFA": "mifa", "FedAWE": "fedawe", "FedVARP": "fedvarp", "SCAFFOLD": "scaffold", "FedAU": "fedau"}
    shown = {method.title: method.server for method in ef.METHODS.values()}
    for title, name in titles.items():
        assert shown[title] == PUBLISHED[name][0]
        named = [other for other in shown if title.lower() in other.lower() and other != title]
        assert all(other.startswith("HT-") for other in named), named


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("name", [n for n in PUBLISHED if not n.startswith(("scaffold", "fedawe at"))])
def test_with_everybody_in_every_round_it_is_fedavg(name, schedule):
    how = {"everybody": True, "schedule": schedule, "sizes": (1, 3)}
    one, fedavg = (path(simulation(rule, **how)) for rule in (PUBLISHED[name][0], ef.Sum()))
    assert one == pytest.approx(fedavg, rel=1e-5)


def test_fedawe_with_everybody_is_fedavg_at_its_global_rate():
    one = path(simulation(ef.FedAWE(0.3), everybody=True, sizes=(1, 3)))
    fedavg = path(simulation(ef.Sum(), everybody=True, sizes=(1, 3), server_optimizer=ef.ServerSGD(0.3)))
    assert one == pytest.approx(fedavg, rel=1e-5)


# -- MIFA ------------------------------------------------------------------------------------------


def test_mifa_at_a_constant_rate_is_last_updates_once_everybody_has_been_heard():
    # Both are there in round 0, so that nobody stands in for anybody.
    def ends(rule, schedule):
        return path(simulation(rule, schedule=schedule, offsets=(0, 0)))

    assert ends(ef.Mifa(), ef.Constant()) == pytest.approx(ends(ef.LastUpdates(), ef.Constant()), rel=1e-5)
    mifa, stored = (ends(rule, ef.Cosine(0.1))[-1] for rule in (ef.Mifa(), ef.LastUpdates()))
    assert abs(mifa - stored) > 0.01


def test_mifa_tells_the_losses_while_it_waits():
    first, second = list(simulation(ef.Mifa()))[:2]
    assert (first.update_norm, first.round_weight) == (0.0, 0.0)
    assert first.train_loss > 0.0
    assert second.update_norm > 0.0
    assert second.round_weight == pytest.approx(1.0)


class Stops:
    """A rate of zero from half of the run on."""

    def factor(self, iteration, total):
        return float(iteration < total / 2)


def test_mifa_cannot_divide_by_a_rate_of_zero():
    with pytest.raises(ef.InputError, match=r"learning rate, which is 0\.0 in round 3"):
        path(simulation(ef.Mifa(), schedule=Stops()))


# -- FedAWE ----------------------------------------------------------------------------------------

MANY = {
    "centres": tuple(np.linspace(-2, 2, 6)), "sizes": (1, 2, 3, 1, 2, 4),
    "cycles": (1, 2, 3, 2, 4, 5), "offsets": (0, 1, 0, 1, 2, 0),
}  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("memory_budget", [1, None])
def test_fedawe_hands_out_the_mean_of_the_clients_models(trainer, memory_budget):
    run = simulation(ef.FedAWE(), **MANY, rounds=20, trainer=trainer, memory_budget=memory_budget)
    server = run.server.rule
    for record in run:
        models = server.starts(np.arange(6))
        assert models.mean().item() == pytest.approx(run.params["weight"].item(), rel=1e-4, abs=1e-5)
        # Whoever was here holds the same model now, and the others what they had.
        assert len(models[record.participants].unique()) <= 1
        assert set(server.models) == set(server.held.tolist())  # what nobody holds is not kept
    assert -1 not in server.models


def test_fedawe_weighs_clients_by_their_shares():
    # Everybody's innovation counts N p_i, so that the mean model moves as FedAvg's from the same start.
    fedawe, fedavg = (simulation(rule, **MANY, everybody=True) for rule in (ef.FedAWE(), ef.Sum()))
    assert path(fedawe) == pytest.approx(path(fedavg), rel=1e-4)


@pytest.mark.parametrize("at", [0, 1, 7, 19])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_fedawe_resumes_from_a_checkpoint_bit_for_bit(at, trainer, tmp_path):
    def make():
        optimizer = ef.SGD(0.05, momentum=0.5, schedule=ef.Cosine(0.1))
        return simulation(ef.FedAWE(), **MANY, rounds=20, trainer=trainer, client=optimizer)

    whole = make()
    first, rest = list(itertools.islice(whole, at)), []
    save_checkpoint(tmp_path, at, whole.state_dict(), {})
    rest = [told(record) for record in whole]
    again = make()
    (found,) = load_checkpoints(tmp_path)
    again.load_state_dict(found.tensors)
    assert [told(record) for record in again] == rest
    assert len(first) + len(rest) == 20
    assert torch.equal(again.server.params, whole.server.params)


def test_proximal_clients_are_pulled_to_where_they_started():
    # Client 1 starts from its own model: a strong pull leaves it there.
    run = simulation(ef.FedAWE(), gradients=[ef.Proximal(10.0)], rounds=2, client=ef.SGD(0.05))
    own = [START, START]
    ends = []
    for r in range(2):
        for i in present(r):
            w = own[i]
            for _ in range(STEPS):
                w -= 0.05 * (2 * (w - CENTRES[i]) + 10.0 * (w - own[i]))
            ends.append(own[i] + (r + 1 if i else 1) * (w - own[i]))
        for i in present(r):
            own[i] = np.mean(ends)
        ends = []
    assert path(run)[-1] == pytest.approx(np.mean(own), rel=1e-5)


def test_a_server_optimizer_has_nothing_to_move_under_fedawe():
    for optimizer in (ef.ServerSGD(0.5), ef.ServerMomentum()):
        with pytest.raises(ef.InputError, match=r"sends its own models to clients.*the rule's rate"):
            simulation(ef.FedAWE(), server_optimizer=optimizer)
    path(simulation(ef.FedAWE(), server_optimizer=ef.ServerSGD()))


def test_kernels_start_clients_from_their_own_models():
    pytest.importorskip("triton")
    data, fleet = ef.load("digits").partition(4, "iid"), ef.Fleet.from_cycles([1, 2, 2, 3])
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    how = {"rounds": 4, "local_steps": 2, "batch_size": 4, "client": ef.SGD(0.1), "device": "cpu"}
    fast, slow = (ef.simulate(module, data, fleet, "fedawe", trainer=name, **how) for name in ("kernels", "batched"))
    for name, value in slow.params.items():
        torch.testing.assert_close(fast.params[name], value, rtol=1e-4, atol=1e-6)
