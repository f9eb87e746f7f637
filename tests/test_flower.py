"""Deployment on Flower without a network: the same model as a simulation, decisions, energy sources."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict

import everfed as ef
from everfed.energy.battery import Books
from everfed.errors import InputError
from everfed.flower import EnergyMod, FromCommand, FromFile, Measured, PowerSupply, Simulated, client_app, remote_run
from everfed.flower.energy import own_plan
from everfed.flower.meters import MeterError
from everfed.flower.node_state import Memory
from everfed.flower.training import LocalTraining
from everfed.flower.wire import Answer, Ask
from everfed.methods import plan
from everfed.run import config
from everfed.scheduling.table import POLICIES
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, run
from token_files import token_task

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def assert_same(made, records, simulated):
    expected = list(simulated)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    assert [r.scales.tolist() for r in records] == [r.scales.tolist() for r in expected]
    for ours, theirs in zip(records, expected, strict=True):
        assert ours.energy.to_dict() == pytest.approx(theirs.energy.to_dict())
    for name, value in simulated.params.items():
        np.testing.assert_allclose(made.params[name].numpy(), value.numpy(), atol=1e-6)


@pytest.mark.parametrize("method", ["algorithm1", "greedy", "wait-for-all", "fedavg", "lattice", "self-weighted"])
def test_a_deployment_is_the_simulation(method):
    experiment = SMALL.with_method(method)
    made, records, protocol = run(experiment)
    assert_same(made, records, ef.start(experiment))
    assert protocol.ledger.summary()["lost"] == 0
    assert protocol.ledger.summary()["bias"] == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"client": ef.Adam(1e-3)},
        {"server": ef.SERVER_RULES["normalized"]()},
        {"server": ef.SERVER_RULES["ht-varp"]()},
        {"server_optimizer": ef.ServerMomentum()},
        {"split_seed": 5, "init_seed": 6, "batch_seed": 7, "schedule_seed": 8, "validation": 0.1},
    ],
    ids=["adam", "normalized", "ht-varp", "momentum", "seeds"],
)
def test_optimisers_server_rules_and_seeds_are_the_simulators(change):
    experiment = replace(SMALL, **change)
    made, records, _ = run(experiment)
    assert_same(made, records, ef.start(experiment))


def test_a_task_of_tokens_is_the_simulators(tmp_path):
    text = replace(SMALL, **token_task(tmp_path, CLIENTS))
    made, records, _ = run(text)
    assert_same(made, records, ef.start(text))
    assert "perplexity" in records[-1].metrics.own


def test_samples_of_ones_own_and_held_out_ones_do_not_go_together():
    experiment = replace(SMALL, validation=0.1)
    data = SMALL.make_data(SMALL.make_fleet())
    with pytest.raises(InputError, match="validation and data are both given"):
        remote_run(experiment, InProcessGrid([]), data=data)
    with pytest.raises(InputError, match="this client brings its own"):
        LocalTraining(experiment, 0, lambda client: (data.x[:5], data.y[:5]))


def test_single_phase_gives_the_same_model_and_sends_more():
    two, records, asked = run(SMALL)
    one, _, unasked = run(SMALL, limits=replace(QUICK, two_phase=False))
    assert all(np.array_equal(two.params[name], one.params[name]) for name in two.params)
    assert unasked.ledger.summary()["models_sent"] == CLIENTS * SMALL.rounds
    assert asked.ledger.summary()["models_sent"] == sum(len(r.participants) for r in records)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("scaffold", "not sent to devices"),
        ("ht-scaffold", "not sent to devices"),
        ("fedawe", "from a model of its own.*such as echo"),
    ],
)
def test_a_server_rule_that_needs_more_of_its_clients_is_refused(rule, words):
    experiment = replace(SMALL, server=ef.SERVER_RULES[rule]())
    with pytest.raises(InputError, match=words):
        remote_run(experiment, InProcessGrid([]))


def test_asking_first_is_needed_where_the_server_decides():
    with pytest.raises(InputError, match="must be asked first"):
        remote_run(SMALL.with_method("wait-for-all"), InProcessGrid([]), limits=replace(QUICK, two_phase=False))


@pytest.mark.parametrize("name", sorted(name for name, kind in POLICIES.items() if not kind().coordinated))
def test_every_policy_decides_alone_as_in_the_fleet(name):
    policy = POLICIES[name]()
    fleet = ef.Fleet.from_cycles([1, 3, 5, 3], arrivals="bernoulli", capacity=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = list(plan(fleet, policy, 30, seed=3))
    for client in range(len(fleet)):
        alone = own_plan(fleet, policy, 3, client, 30)
        expected = [client in step.clients.tolist() for step in steps]
        assert alone["join"].tolist() == expected
        scales = [step.scales[step.clients == client][0] for step in steps if client in step.clients]
        assert alone["scale"][alone["join"]].tolist() == scales


def context(client=0, folder=None, **config):
    where = {"state-dir": str(folder)} if folder else {}
    return Context(1, 7, {"client": client, **where, **config}, RecordDict(), {})


def question(round, kind="query.everfed", **more):
    InProcessGrid([])  # sets the run that messages belong to
    return Message(RecordDict({"everfed": Ask(round, **more).to_record()}), 7, kind)


def ask(mod, where, round, kind="query.everfed", **more):
    reply = mod(question(round, kind, **more), where, lambda m, c: Message(RecordDict(), reply_to=m))
    return Answer.of(reply.content)


def test_a_reboot_changes_no_decision():
    fleet = ef.Fleet.from_cycles([1, 5, 10, 20])
    mod = EnergyMod(ef.UniformWindow(), Simulated(fleet, seed=1))
    slots = {s.round for s in plan(fleet, ef.UniformWindow(), 40, seed=1) if 2 in s.clients}
    where = context(client=2)
    assert {r for r in range(40) if ask(mod, where, r).join} == slots
    # A new process, an empty memory, and rounds in any order.
    assert {r for r in reversed(range(40)) if ask(mod, context(client=2), r).join} == slots


def test_a_query_loads_no_learning_framework_once_the_rounds_are_known(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(config.to_toml(SMALL))
    where = context(client=1, folder=tmp_path / "state")
    first = Answer.of(client_app(file)(question(3), where).content)
    code = f"""
import sys
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
from everfed.flower.wire import Answer, Ask
from everfed.flower import client_app
message = Message(RecordDict({{"everfed": Ask(3).to_record()}}), 7, "query.everfed")
node = {{"client": 1, "state-dir": {str(tmp_path / "state")!r}}}
answer = Answer.of(client_app(Path({str(file)!r}))(message, Context(1, 7, node, RecordDict(), {{}})).content)
print(answer.join, answer.scale, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(first.join), str(first.scale), "False"]


def test_messages_without_a_question_pass_the_mod():
    mod = EnergyMod(ef.Greedy(), Simulated(ef.Fleet.from_cycles([1])))
    InProcessGrid([])
    plain = Message(RecordDict(), 7, "train")
    assert mod(plain, context(), lambda m, c: "passed on") == "passed on"


def test_a_node_must_know_which_client_it_is():
    mod = EnergyMod(ef.Greedy(), Simulated(ef.Fleet.from_cycles([1])))
    with pytest.raises(InputError, match="which client"):
        mod(question(0), Context(1, 7, {}, RecordDict(), {}), None)
    with pytest.raises(InputError, match="clients 0 to 0"):
        ask(mod, context(client=5), 0)


# Energy that is measured


def battery(folder, **values):
    (folder / "BAT0").mkdir(parents=True, exist_ok=True)
    for name, value in {"type": "Battery", **values}.items():
        (folder / "BAT0" / name).write_text(f"{value}\n")
    return str(folder)


def test_a_linux_battery_in_energy_charge_and_per_cent(tmp_path):
    # 2 Wh of 10 are 7200 J; a fifth of the battery, 7200 J, stays untouched.
    root = battery(tmp_path / "a", energy_now=2_000_000, energy_full=10_000_000)
    assert PowerSupply(100.0, root=root).rounds() == pytest.approx(0.0)
    assert PowerSupply(100.0, reserve=0.1, root=root).rounds() == pytest.approx(36.0)
    root = battery(tmp_path / "b", charge_now=500_000, charge_full=1_000_000, voltage_now=4_000_000)
    assert PowerSupply(7200.0, reserve=0.0, root=root).rounds() == pytest.approx(1.0)
    root = battery(tmp_path / "c", capacity=50)
    assert PowerSupply(10.0, reserve=0.3, full_j=1000.0, root=root).rounds() == pytest.approx(20.0)
    with pytest.raises(MeterError, match="full_j"):
        PowerSupply(10.0, root=root).rounds()
    with pytest.raises(MeterError, match="no battery"):
        PowerSupply(10.0, root=str(tmp_path / "nothing")).rounds()


def test_a_file_and_a_command_that_tell_the_energy(tmp_path):
    path = tmp_path / "level"
    path.write_text("55 %\n")
    assert FromFile(str(path), cost=5.0, reserve=20.0).rounds() == pytest.approx(7.0)
    assert FromCommand(("cat", str(path)), cost=55.0).rounds() == pytest.approx(1.0)
    path.write_text("full")
    for meter in (FromFile(str(path), 1.0), FromCommand(("cat", str(path)), 1.0), FromCommand(("false",), 1.0)):
        with pytest.raises(MeterError):
            meter.rounds()
    with pytest.raises(InputError, match="positive"):
        FromFile("x", cost=0.0)


def test_measured_energy_decides_and_is_asked_once_a_round(tmp_path):
    path = tmp_path / "joules"
    mod = EnergyMod(ef.Greedy(), Measured(FromFile(str(path), cost=10.0)))
    where = context()
    path.write_text("25")
    assert ask(mod, where, 0).join
    path.write_text("9")
    assert not ask(mod, where, 0, kind="train").join  # said yes, but the energy went meanwhile
    assert not ask(mod, where, 1).join
    path.write_text("30")
    assert not ask(mod, where, 1).join  # what was said for a round stays said
    later = ask(mod, where, 2)
    assert later.join
    assert later.planned == 2
    path.unlink()
    assert not ask(mod, where, 3).join  # who does not know its energy stays away


def test_what_a_client_learnt_survives_a_power_cut(tmp_path):
    path = tmp_path / "joules"
    policy = POLICIES["self-weighted"]()
    mod = EnergyMod(policy, Measured(FromFile(str(path), cost=1.0)))
    path.write_text("1")
    scales = [ask(mod, context(folder=tmp_path / "state"), r).scale for r in (0, 4, 8, 12)]
    assert scales == pytest.approx([1.0, 1.0, 2.5, 3.0])  # mean intervals of 1, then (1 + 4)/2, then (1 + 4 + 4)/3
    assert ask(mod, context(), 16).scale == 1.0  # without its folder it begins to learn anew


def test_memory_survives_damage(tmp_path):
    memory = Memory(context(), tmp_path)
    memory.save("a", {"x": np.arange(3)})
    assert memory.load("a")["x"].tolist() == [0, 1, 2]
    (tmp_path / "a.safetensors").write_bytes(b"cut off")
    assert memory.load("a") is None
    assert memory.load("b") is None
    assert memory.names("a") == ["a"]


def test_answers_travel_as_records():
    answer = Answer(3, 7, True, 20.0, 2, Books(harvested=1.5, violations=2))
    assert Answer.of(RecordDict({"everfed": answer.to_record()})) == answer
    with pytest.raises(ValueError, match="whole number"):
        Answer.of(RecordDict({"everfed": ConfigRecord({**answer.to_record(), "client": 1.5})}))
    told = Ask(4, 2, {1: frozenset({0, 3}), 2: frozenset({1})})
    assert Ask.of(RecordDict({"everfed": told.to_record()})) == told
