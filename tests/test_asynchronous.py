"""Asynchronous runs: the facts of their rules, through the engine that trains."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.energy.battery import Storage
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.work import MOMENTS, Work
from everfed.learning.compress import Qsgd
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Decision, Greedy, Policy
from everfed.server.arrivals import Area, FedAsync, FedBuff, Renewal, RenewalDiscounted

METHODS = ("renewal", "renewal-discounted", "fedbuff", "fedasync", "area")
UNDISCOUNTED = ef.Method(Greedy(), FedBuff(size=1, discount="none"))


class Point(nn.Module):
    """A model that is one number, whatever it sees."""

    def __init__(self, value=0.5):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value]))

    def forward(self, x):
        return self.value.expand(len(x), 1) + 0.0 * x


def halves(outputs, targets):
    return 0.5 * ((outputs - targets) ** 2).mean()


# Two clients that pull towards 0 and towards 1.
PULLS = [(np.zeros((4, 1), np.float32), np.full((4, 1), float(c), np.float32)) for c in (0, 1)]


def pulling(method, rounds, cycles=(1, 20), duration=0.0, lr=0.02, arrivals="lump", steps=1, work=None, **more):
    fleet = ef.Fleet.from_cycles(cycles, arrivals=arrivals, **more)
    return ef.start(
        Point(), ef.from_arrays(PULLS, test=PULLS[0], task="regression"), fleet, method, rounds=rounds,
        local_steps=steps, batch_size=1, client=ef.SGD(lr=lr), work=work or Work(duration=duration), loss=halves,
        eval_every=rounds, check_trainer=False, trainer="one-by-one",
    )  # fmt: skip


def late_mean(run):
    """The mean of the number over the later three quarters of the run."""
    course = [float(run.server.params[0]) for _ in run]
    return np.mean(course[len(course) // 4 :])


@pytest.mark.parametrize("arrivals", ["lump", "bernoulli", "markov"])
def test_a_buffer_of_one_leans_to_the_frequent(arrivals):
    """The rare client's part is its part of all arrivals, 1/21."""
    assert late_mean(pulling(UNDISCOUNTED, 900, arrivals=arrivals)) == pytest.approx(1 / 21, abs=0.03)


def test_a_buffer_of_one_leans_to_the_frequent_with_work_times():
    """Work of a round, energy with chance q a round: (1 - q) / q more rounds of waiting, and the same for all."""
    q, rounds = np.array([1.0, 0.05]), 1000
    intervals = 1.0 + (1.0 - q) / q
    expected = (1 / intervals[1]) / (1 / intervals).sum()
    run = pulling(UNDISCOUNTED, rounds, duration=1.0, arrivals="bernoulli", capacity=1.0)
    assert late_mean(run) == pytest.approx(expected, abs=0.025)


@pytest.mark.parametrize("arrivals", ["lump", "bernoulli", "markov"])
@pytest.mark.parametrize("duration", [0.0, 0.5])
def test_renewal_does_not_lean(arrivals, duration):
    records = []
    run = pulling("renewal", 1000, cycles=(1, 10), duration=duration, lr=0.004, arrivals=arrivals)
    course = []
    for record in run:
        records.append(record)
        course.append(float(run.server.params[0]))
    assert np.mean(course[250:]) == pytest.approx(0.5, abs=0.06)
    for client in (0, 1):
        times = np.concatenate([r.arrived.times[r.participants == client] for r in records])
        weights = np.concatenate([r.scales[r.participants == client] for r in records])
        assert weights.sum() == pytest.approx(times[-1], rel=1e-12)  # whatever the process


@pytest.mark.parametrize("duration", [0.0, 0.5])
def test_area_is_the_mean_of_the_last_models(duration):
    run = pulling("area", 800, cycles=(1, 10), duration=duration, lr=0.1, arrivals="bernoulli")
    initial, course = float(run.server.params[0]), []
    for _ in run:
        models = run.server.rule.models
        last = [initial + float(models.gather(np.array([i]))["moved"][0, 0]) for i in (0, 1)]
        assert float(run.server.params[0]) == pytest.approx(np.mean(last), abs=1e-6)
        course.append(float(run.server.params[0]))
    assert np.mean(course[200:]) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("steps", [1, 4])
def test_fewer_steps_count_more(steps):
    """n of T steps of a small rate, times T / n, move the model as far as T do."""
    affordable = Work(duration=0.0, local_steps="affordable")
    moved = []
    for work in (affordable, Work(duration=0.0)):
        run = pulling("renewal", 21, (5, 5), lr=1e-4, arrivals="trickle", steps=steps, work=work)
        records = list(run)
        counted = np.concatenate([r.arrived.steps for r in records])
        assert counted[2:].max() == (1 if work is affordable else steps)  # the first ones had a whole unit
        moved.append(float(run.server.params[0]) - 0.5)
        per_client = sum(r.round_weight for r in records)
    assert per_client == pytest.approx(20.0, abs=1.5)
    assert moved[0] == pytest.approx(moved[1], abs=1e-6)


@pytest.mark.parametrize(("discount", "values"), [
    ("none", [1.0, 1.0, 1.0, 1.0]), ("polynomial", [1.0, 0.5**0.5, 3.0**-0.5, 11.0**-0.5]),
    ("hinge", [1.0, 1.0, 1.0, 1 / (0.5 * 6 + 1)]),
])  # fmt: skip
def test_discounts(discount, values):
    assert FedBuff(discount=discount).discounts(np.array([0, 1, 2, 10])).tolist() == pytest.approx(values)


class SinceLast(Policy):
    """Greedy, scaled by the rounds since the client's last participation, or since the start of the first."""

    def init(self, clients, round=0):
        return {"last": np.zeros(len(clients.ids))}

    def step(self, state, view):
        scale = view.round - state["last"]
        return Decision(view.affords, scale, {"last": np.where(view.affords, view.round, state["last"])})


def digits(method, **more):
    fleet = CycleFleet(clients=12, cycles=(1, 3, 4), arrivals=more.pop("arrivals", "bernoulli"))
    e = ef.Experiment(fleet=fleet, rounds=12, local_steps=3, eval_every=4, seed=5, **more)
    chosen = ef.METHODS[method] if isinstance(method, str) else method
    return replace(e, policy=chosen.policy, server=chosen.server)


def trained(experiment, **more):
    run = ef.start(experiment, **more)
    records = list(run)
    return run.server.params, records


def assert_close(one, two, tolerance=1e-5):
    assert float((one - two).norm() / one.norm()) < tolerance


@pytest.mark.parametrize("arrivals", ["lump", "bernoulli"])
def test_without_work_times_renewal_is_greedy_weighed_by_its_gaps(arrivals):
    one, _ = trained(digits("renewal", work=Work(duration=0.0), arrivals=arrivals))
    two, _ = trained(digits(ef.Method(SinceLast()), arrivals=arrivals))
    assert_close(one, two)


@pytest.mark.parametrize("method", ["greedy", "greedy-scaled"])
@pytest.mark.parametrize("client", [ef.SGD(lr=0.1, momentum=0.9), ef.Adam(lr=0.01)], ids=["momentum", "adam"])
def test_without_work_times_a_sum_is_that_of_rounds(method, client):
    one, found = trained(digits(method, mode="asynchronous", work=Work(duration=0.0), client=client))
    two, expected = trained(digits(method, client=client))
    assert_close(one, two)
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.participants, b.participants)
        assert np.allclose(a.scales, b.scales)
        assert a.energy == b.energy
        assert a.round_weight == pytest.approx(b.round_weight)
        assert (a.train_loss is None) == (b.train_loss is None)
        assert a.train_loss is None or a.train_loss == pytest.approx(b.train_loss, rel=1e-4)


def test_a_buffer_of_all_is_fedavg_a_round_later():
    together = CycleFleet(clients=6, cycles=(1,))
    base = ef.Experiment(fleet=together, split=ef.SPLITS["iid"](), rounds=9, local_steps=2, eval_every=1, seed=3)
    base = replace(base, client=ef.SGD(lr=0.1))
    late = replace(base, policy=Greedy(), server=FedBuff(size=6, discount="none", weighted=True), work=Work())
    _, found = trained(late)
    _, expected = trained(base.with_method("fedavg"))
    for a, b in zip(found[1:], expected, strict=False):
        assert a.metrics.loss == pytest.approx(b.metrics.loss, rel=1e-5)
        assert a.update_norm == pytest.approx(b.update_norm, rel=1e-4)


WORK = Work(duration=0.4, spread=0.2, local_steps="affordable", partial="send")


@pytest.mark.parametrize("method", METHODS)
def test_results_do_not_depend_on_how_batches_are_cut(method):
    """One at a time, a few at once, and all; each with dropout's and crops' random numbers of its own slot."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
    compression = {} if method == "area" else {"compression": Qsgd(bits=8)}
    e = digits(method, work=WORK, arrivals="trickle", model=module, **compression)
    whole, records = trained(e)
    small, _ = trained(e, memory_budget=400_000)
    plain, _ = trained(replace(e, trainer="one-by-one"))
    assert len({int(n) for r in records for n in r.arrived.steps}) > 1
    assert_close(whole, small, 1e-4)
    assert_close(whole, plain, 1e-3 if method != "area" else 1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("split", [1, 5, 9])
def test_a_run_goes_on_where_it_was_saved(method, split):
    e = digits(method, work=WORK, arrivals="trickle", client=ef.SGD(lr=0.1, momentum=0.9))
    whole, records = trained(e)
    first = ef.start(e)
    for record in first:
        if record.round + 1 == split:
            break
    state = {name: value.clone() for name, value in first.state_dict().items()}
    second = ef.start(e)
    second.load_state_dict(state)
    rest = list(second)
    assert torch.equal(second.server.params, whole)
    for a, b in zip(rest, records[split:], strict=True):
        assert {**a.to_dict(), "seconds": 0} == {**b.to_dict(), "seconds": 0}


@pytest.mark.parametrize(
    "client",
    [ef.SGD(0.1, schedule=ef.Cosine()), pytest.param(ef.Adam(0.01), marks=pytest.mark.long)],
    ids=["sgd", "adam"],
)
def test_kernels_train_work_from_different_versions(client):
    """Each row from its own model, with its own slot's draws, dropout and rate."""
    pytest.importorskip("triton")
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10)
    )
    e = digits("renewal", work=Work(duration=0.6, spread=0.2), model=module, client=client)
    e = replace(e, rounds=3, fleet=CycleFleet(clients=4, cycles=(1, 2)), local_steps=2, batch_size=2)
    plain, records = trained(replace(e, trainer="one-by-one"))
    assert max(int(r.arrived.staleness.max(initial=0)) for r in records) > 0
    fast, _ = trained(replace(e, trainer="kernels", check_trainer=False))
    assert_close(fast, plain, 1e-4)


@pytest.mark.parametrize(("offset", "said"), [(0, "1 of 2 clients arrives"), (30, "first energy arrives after")])
def test_clients_whose_work_never_arrives_are_named(offset, said):
    with pytest.warns(ef.EverfedWarning, match=said):
        pulling("renewal", 3, cycles=(1, 20), duration=1.0, offsets=[0, offset] if offset else [0, 2])


def test_versions_are_kept_only_while_somebody_needs_them():
    run = ef.start(digits("renewal", work=Work(duration=0.9, spread=0.2)))
    for record in run:
        flight = run.source.flight
        assert set(flight.models) == {piece.version for piece in flight.pieces.values()}
        assert sum(flight.users.values()) == len(flight.pieces)
        assert record.arrived.version >= max((p.version for p in flight.pieces.values()), default=0)


def test_every_arrival_is_counted_once_and_is_as_stale_as_it_says():
    records = trained(digits("renewal", work=WORK, arrivals="trickle"))[1]
    times = np.concatenate([r.arrived.times for r in records])
    who = np.concatenate([r.participants for r in records])
    assert (np.diff(times) >= 0.0).all()
    assert len(set(zip(times, who, strict=True))) == len(times)
    versions = [r.arrived.version for r in records]
    assert versions == sorted(versions)
    assert versions[-1] == len(set(times))  # the arrivals of one moment make one version
    for r in records:
        assert ((r.arrived.times >= r.round) & (r.arrived.times < r.round + 1)).all()


def test_lost_work_never_arrives_and_partial_work_does():
    fleet = ef.Fleet.from_cycles([3] * 8, arrivals="trickle", capacity=2.0, storage=Storage(cost_spread=0.3))
    data = ef.load("digits").partition(8, "iid")
    found = {}
    for partial in ("lose", "send"):
        h = ef.simulate("mlp", data, fleet, "renewal", rounds=60, work=Work(partial=partial), eval_every=60)
        steps = np.concatenate([r.arrived.steps for r in h.rounds])
        found[partial] = (h.energy.brownouts, h.participations, steps.min())
        assert abs(h.energy.imbalance()) < 1e-9
    assert found["lose"][0] > 0
    assert found["send"][0] < found["lose"][0]
    assert found["send"][1] > found["lose"][1]
    assert found["lose"][2] == 5 > found["send"][2]


def sometimes_broken(outputs, targets):
    return torch.where(targets > 5.0, torch.nan, 0.5 * (outputs - targets) ** 2).mean()


@pytest.mark.parametrize("method", METHODS)
def test_updates_that_are_not_finite_are_left_out_with_their_time(method):
    """The next update of the client then counts for the time of both."""
    broken = (PULLS[1][0], np.array([[1.0], [1.0], [9.0], [9.0]], np.float32))
    rule = FedBuff(size=2) if method == "fedbuff" else ef.METHODS[method].server
    about = {"rounds": 60, "local_steps": 1, "batch_size": 1, "loss": sometimes_broken, "check_trainer": False}
    data, fleet = ef.from_arrays([PULLS[0], broken], test=PULLS[0], task="regression"), ef.Fleet.from_cycles([1, 2])
    run = ef.start(Point(), data, fleet, ef.Method(Greedy(), rule), on_divergence="skip", **about)
    records = list(run)
    left_out = [client for r in records for client in r.dropped]
    assert set(left_out) == {1}
    heard = np.concatenate([r.participants for r in records])
    assert np.count_nonzero(heard == 1) + len(left_out) == 30
    assert bool(torch.isfinite(run.server.params).all())
    if method == "renewal":
        weights = np.concatenate([r.scales for r in records])
        times = np.concatenate([r.arrived.times for r in records])
        assert weights[heard == 1].sum() == pytest.approx(times[heard == 1][-1])
    with pytest.raises(ef.DivergenceError, match="the updates of client 1 are not finite"):
        list(ef.start(Point(), data, fleet, ef.Method(Greedy(), rule), **about))


@pytest.mark.parametrize("change", [
    {"mode": "asynchronous", "method": "scaffold"},
    {"mode": "asynchronous", "method": "wait-for-all"},
    {"mode": "asynchronous", "method": "algorithm1"},
    {"mode": "asynchronous", "method": "fedavg", "work": Work(duration=0.0)},
    {"mode": "synchronous", "method": "renewal"},
    {"mode": "synchronous", "method": "greedy", "work": Work(duration=0.5)},
    {"method": "renewal", "work": Work(duration=2.0)},
    {"method": "area", "compression": Qsgd()},
    {"method": "area", "server_optimizer": ef.ServerMomentum()},
    {"method": "fedasync", "server_optimizer": ef.ServerAdam()},
    {"method": ef.Method(Greedy(), FedBuff(size=13))},
    {"method": ef.Method(ef.UniformWindow(), Renewal())},
], ids=str)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(change):
    method = change.pop("method")
    with pytest.raises(ef.InputError) as error:
        ef.start(digits(method, **change))
    assert len(str(error.value)) > 40
    assert str(error.value).count("\n") == 0


@pytest.mark.parametrize("method", METHODS)
def test_methods_have_no_plan_of_rounds(method):
    with pytest.raises(ef.InputError, match="has no rounds to plan"):
        ef.plan(ef.Fleet.from_cycles([1, 5]), method, 10)


@pytest.mark.parametrize(
    ("rule", "gradients"),
    [(Renewal(), (ef.Proximal(0.1), ef.Clip(0.5))), (RenewalDiscounted(), ()), (FedBuff(size=4), ()), (FedAsync(), ()),
     (Area(), ())],
    ids=lambda part: type(part).__name__,
)  # fmt: skip
def test_fleets_of_devices_have_their_own_times(rule, gradients):
    group = DeviceGroup(count=6, device="raspberry-pi-zero-2w", panel_wp=0.05, battery_wh=0.15, switched_off=True)
    fleet = DeviceFleet((group,), round_s=1800.0, start_day="06-21", utc_h=5.0)
    e = ef.Experiment(fleet=fleet, rounds=20, policy=Greedy(), server=rule, gradients=gradients, local_steps=4)
    run = ef.start(e)
    pace = run.source.timeline.pace
    assert np.allclose(pace.train * 1800.0, 4 * 2.0)
    assert (pace.air > 0).all()
    assert ((pace.radio > 0) & (pace.radio < 1)).all()
    records = list(run)
    assert max(len(r.participants) for r in records) > 6  # several works of a device within half an hour
    assert abs(records[-1].energy.imbalance()) < 1e-6 * records[-1].energy.harvested
    with pytest.raises(ef.InputError, match=r"work\.duration is 0\.5 rounds, but devices take their own time"):
        ef.start(replace(e, work=Work(duration=0.5)))


def test_moments_are_fine_enough():
    assert MOMENTS == 2**20
