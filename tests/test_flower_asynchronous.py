"""A server without rounds on Flower, without a network: nodes in threads of their own, each as slow as it is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord

import everfed as ef
from everfed.energy.battery import Storage
from everfed.energy.work import MOMENTS, Pace, Work
from everfed.errors import InputError
from everfed.flower import FromFile, Measured, Simulated, client_app, own_work, remote_run
from everfed.flower.calls import NONE, Call
from everfed.flower.ledger import read
from everfed.flower.node_state import Memory
from everfed.learning.compress import Qsgd
from everfed.run import config
from everfed.run.fleets import CycleFleet
from everfed.run.replay import read_log, replay
from everfed.scheduling.timeline import Timeline
from flower_arrivals import METHODS, TASK, Context, SlowGrid, assert_replayed, limits, run_stored, task
from flower_grid import CLIENTS, SMALL, InProcessGrid, fleet_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("method", METHODS)
def test_the_simulator_repeats_a_deployment_to_the_last_bit(tmp_path, method):
    experiment = task(method)
    grid = SlowGrid(fleet_of(client_app(experiment), CLIENTS))
    records = run_stored(experiment, tmp_path, grid)
    log, _ = assert_replayed(experiment, tmp_path)
    stale = np.concatenate([r.arrived.staleness for r in records])
    moments = [work.arrived for work in log]
    assert moments == sorted(set(moments))
    times = np.concatenate([r.arrived.times for r in records])
    assert times.tolist() == [moment / MOMENTS for moment in moments]
    assert all(int(t) == r.round for r in records for t in r.arrived.times)
    # Others must arrive in between, or the order would not matter; real time has no promise of that.
    if len(log) < 7 or stale.max() == 0 or {work.client for work in log} != set(range(CLIENTS)):
        pytest.skip(
            f"this machine is too busy: {len(log)} works arrived, the stalest {stale.max(initial=0)} versions late"
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"client": ef.Adam(1e-3), "work": Work(duration=0.5, local_steps="affordable")},
        {"compression": Qsgd(bits=4), "server_optimizer": ef.ServerMomentum()},
    ],
    ids=["adam-some-steps", "compressed-momentum"],
)
def test_steps_optimisers_and_compression_are_the_simulators(tmp_path, changes):
    fleet = CycleFleet(clients=CLIENTS, cycles=(1, 2, 3), arrivals="trickle")
    experiment = task("renewal", fleet=fleet, rounds=8, **changes)
    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS)))
    log, _ = assert_replayed(experiment, tmp_path)
    if "work" in changes:
        assert len({work.steps for work in log}) > 1


def test_greedy_methods_run_without_rounds_too(tmp_path):
    experiment = task("greedy-scaled", mode="asynchronous", rounds=6)
    records = run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS)))
    assert_replayed(experiment, tmp_path)
    assert {s for r in records for s in r.scales.tolist()} <= {1.0, 2.0, 3.0}


# A client alone


@pytest.mark.parametrize("local_steps", ["all", "affordable"])
@pytest.mark.parametrize(
    ("arrivals", "storage"),
    [("lump", Storage()), ("bernoulli", Storage(leak=0.01, start=1.5)), ("trickle", Storage(cost_spread=0.3))],
    ids=["lump", "bernoulli", "uncertain"],
)
def test_a_client_alone_works_as_in_the_fleet(local_steps, arrivals, storage):
    fleet = ef.Fleet.from_cycles([1, 3, 5, 3], arrivals=arrivals, capacity=2, storage=storage)
    zero, work, rounds = np.zeros(4), Work(duration=0.0, local_steps=local_steps), 40
    pace = Pace(zero, zero, zero + 0.2)
    whole = Timeline(fleet, ef.Greedy(), 3, pace, work, 5)
    expected = [[] for _ in range(4)]
    for number in range(rounds):
        happened = whole.round(number)
        for client, slot, steps, fails in zip(*happened.begun[:1], *happened.begun[3:], strict=True):
            if not fails:
                expected[client].append((slot, steps))
    energy = []
    for client in range(4):
        terms = own_work.terms_of(fleet, ef.Greedy(), 3, pace, work, 5, client, rounds)
        found, memory, number, counted = [], Memory(Context()), 0, NONE
        while number < rounds:
            call = Call(1, number, {client: counted}, {client: NONE})
            offered = own_work.offer(own_work.Simulated(terms), terms, call, memory)
            if offered.join:
                found.append((offered.slot, offered.steps))
                counted = offered.slot
            assert offered.again > number
            number = offered.again  # in between there is nothing that it could do
        assert found == expected[client]
        energy.append(offered.energy)
    assert sum(e.spent for e in energy) == pytest.approx(happened.energy.spent)


def test_the_same_work_is_offered_until_it_is_on_the_servers_disk():
    fleet = ef.Fleet.from_cycles([1], capacity=3)
    pace, memory = Pace(np.ones(1), np.zeros(1), np.zeros(1)), Memory(Context())
    terms = own_work.terms_of(fleet, ef.Greedy(), 0, pace, Work(), 5, 0, 100)

    def offered(run, round, counted, kept):
        return own_work.offer(own_work.Simulated(terms), terms, Call(run, round, {0: counted}, {0: kept}), memory)

    first = offered(1, 0, NONE, NONE)
    assert (first.join, first.slot, first.energy.spent) == (True, 0, 1.0)
    again = offered(1, 2, NONE, NONE)  # the message was lost
    assert (again.slot, again.energy.spent) == (0, 1.0)
    assert offered(1, 2, 0, NONE).slot == 2
    assert offered(1, 3, 2, NONE).slot == 3
    back = offered(1, 1, NONE, NONE)  # a server that was killed before any of this was on its disk
    assert (back.slot, back.energy.spent) == (0, 3.0)
    early = offered(1, 1, 0, 0)
    assert (early.join, early.again) == (False, 2)  # its work of slot 2 is later than round 1
    assert offered(1, 2, 0, 0).slot == 2
    assert offered(2, 0, NONE, NONE).slot == 0  # another run
    assert not offered(2, 0, 0, 0).join
    memory.drop("work")  # a disk that was lost
    assert offered(2, 1, 1, 1).again == 2
    assert offered(2, 2, 1, 1).slot == 2


def test_a_call_loads_no_learning_framework_once_the_terms_are_known(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(config.to_toml(task("renewal")))
    code = f"""
import sys
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
from everfed.flower import client_app
from everfed.flower.calls import Call, Offer
message = Message(RecordDict({{"everfed": Call(1, 3, {{1: -1}}, {{1: -1}}).to_record()}}), 7, "query.everfed")
node = {{"client": 1, "state-dir": {str(tmp_path / "state")!r}}}
offer = Offer.of(client_app(Path({str(file)!r}))(message, Context(1, 7, node, RecordDict(), {{}})).content)
print(offer.join, offer.slot, "torch" in sys.modules)
"""
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (done.stdout.split() for done in said)
    assert first[2] == "True"
    assert second == [*first[:2], "False"]  # the same work, since nobody has counted it


def test_a_client_without_energy_is_asked_again_when_it_has_some(tmp_path):
    experiment = task("renewal", fleet=CycleFleet(clients=CLIENTS, cycles=(6,)))
    nodes = fleet_of(client_app(experiment), CLIENTS)
    records = run_stored(experiment, tmp_path, SlowGrid(nodes, slow_s=0.0))
    kinds = [[m.metadata.message_type for m in node.received] for node in nodes]
    assert all(1 <= k.count("train") <= 2 for k in kinds)
    assert all(k.count("query.everfed") <= 4 for k in kinds)
    assert records[-1].energy.spent == sum(k.count("train") for k in kinds)


def test_a_meter_says_how_many_steps_there_are(tmp_path):
    experiment = task("renewal", rounds=5, work=Work(duration=0.5, local_steps="affordable"))
    for client, level in enumerate((1.0, 0.45, 0.0, 0.05)):
        (tmp_path / f"{client}").write_text(str(level))
    nodes = [
        fleet_of(client_app(experiment, energy=Measured(FromFile(str(tmp_path / f"{c}"), 1.0))), CLIENTS)[c]
        for c in range(CLIENTS)
    ]
    folder = tmp_path / "run"
    run_stored(experiment, folder, SlowGrid(nodes, slow_s=0.0), scale_slack=10.0)
    log, _ = assert_replayed(experiment, folder)
    steps = {c: {work.steps for work in log if work.client == c} for c in range(CLIENTS)}
    most = experiment.local_steps
    assert steps == {0: {most}, 1: {int(0.45 * most)}, 2: set(), 3: set()}


# What must not count


def spoil(how):
    """Change the replies of node 101, client 1."""

    def change(reply, number):
        if number != 101 or reply.has_error():
            return reply
        answer, arrays = reply.content["everfed"], reply.content.get("arrays")
        if how == "empty":
            reply.content.pop("everfed")
        elif how in ("client", "round"):
            answer[how] = {"client": 0, "round": 99}[how]
        elif how in ("slot", "steps") and answer["join"]:
            answer[how] = {"slot": 10**6, "steps": 10**6}[how]
        elif how == "later" and arrays is not None:
            answer["slot"] += 1
        elif arrays is not None:
            name, values = next((n, a.numpy()) for n, a in arrays.items())
            changed = {"nan": np.full_like(values, np.nan), "huge": values + np.float32(1e3), "shape": values[:-1]}
            reply.content["arrays"] = ArrayRecord({**arrays, name: Array(changed.get(how, values))})
        return reply

    return change


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "not finite"),
        ("huge", "above the bound"),
        ("shape", "of shape"),
        ("client", "answers for client 0"),
        ("round", "for round 99"),
        ("slot", "slot 1000000"),
        ("steps", "1000000 local steps"),
        ("later", "not the one it gave"),
        ("empty", "no record"),
    ],
)
def test_a_bad_reply_is_refused_by_name_and_changes_nothing(tmp_path, how, reason):
    experiment = task("renewal", rounds=3)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    records = run_stored(experiment, tmp_path, SlowGrid(nodes, spoil(how), 0.0), max_norm=50.0)
    entries = read(tmp_path)
    said = [why for e in entries for why in (*e.refused.values(), *e.turned_away.values())]
    assert said
    assert all(reason in why for why in said)
    assert all(1 not in e.done for e in entries)
    assert all(1 not in r.participants for r in records)
    log, _ = assert_replayed(experiment, tmp_path)
    assert all(not work.added for work in log if work.client == 1)


def test_the_same_work_cannot_count_twice(tmp_path):
    experiment = task("renewal", rounds=5)

    def repeat(reply, number):  # every work of client 0 is its first
        if number == 100 and reply.content["everfed"]["join"]:
            reply.content["everfed"]["slot"] = 0
        return reply

    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), repeat, 0.0))
    assert [work.slot for work in read_log(tmp_path) if work.client == 0] == [0]
    turned = [why for e in read(tmp_path) for why in e.turned_away.values()]
    assert turned
    assert all("those up to 0 have been counted" in why for why in turned)


def test_a_rare_client_cannot_work_all_the_time(tmp_path):
    experiment = task("renewal", fleet=CycleFleet(clients=CLIENTS, cycles=(1, 1, 6, 1)), rounds=8)
    rich = replace(experiment, fleet=CycleFleet(clients=CLIENTS, cycles=(1,)))
    nodes = fleet_of(client_app(experiment), CLIENTS)
    nodes[2] = fleet_of(client_app(rich), CLIENTS)[2]  # believes that it has energy in every round
    run_stored(experiment, tmp_path, SlowGrid(nodes, slow_s=0.0))
    turned = [why for e in read(tmp_path) for why in e.turned_away.values()]
    assert turned
    assert "units of energy, and it can have" in turned[0]
    assert all("it claims energy.harvested" in why for why in turned[1:])
    assert sum(work.client == 2 for work in read_log(tmp_path)) <= 2


def test_what_asynchronous_runs_cannot_have_is_said():
    for change, words in (({"round_s": 0.0}, "round-s"), ({"two_phase": False}, "asked first")):
        with pytest.raises(InputError, match=words):
            remote_run(task("renewal"), InProcessGrid([]), limits=replace(limits(), **change))
    with pytest.raises(InputError, match="only asynchronous runs"):
        replay(SMALL, [])
    app = client_app(TASK.with_method("renewal"), energy=Simulated(TASK.make_fleet()))
    run = remote_run(task("renewal", rounds=1), SlowGrid(fleet_of(app, CLIENTS)), limits=limits())
    assert all(len(record.participants) == 0 for record in run)
    assert run.source.ledger.entries[0].silent == CLIENTS


def test_a_log_of_another_experiment_is_refused(tmp_path):
    experiment = task("renewal", rounds=4)
    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), slow_s=0.02))
    with pytest.raises(InputError, match="the log does not fit"):
        list(replay(task("fedbuff", rounds=4), read_log(tmp_path)))
