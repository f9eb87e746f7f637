"""On a cluster: the results of one process, whoever dies meanwhile. A real Ray of two nodes runs on this machine."""

from __future__ import annotations

from ray_nodes import Nodes, kill  # before everfed.ray

# isort: split
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.cli import main
from everfed.errors import ClusterError, EverfedWarning, InputError
from everfed.learning.compress import Qsgd
from everfed.learning.models import Mlp
from everfed.learning.optim import SGD, Adam
from everfed.ray import OnCluster, cluster, connect, sharded, spread, worker
from everfed.ray.cluster import Cluster, ray
from everfed.ray.parcel import packed
from everfed.ray.state import merge_clients, split_clients
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.server.control import Scaffold
from everfed.server.gossip import FedAWE
from everfed.server.last_updates import Varp
from everfed.studies import sweep

needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed; pip install 'everfed[ray]' brings it")

SMALL = Experiment(
    fleet=CycleFleet(clients=12, cycles=(1, 2, 4)), model=Mlp(hidden=8), client=SGD(0.1), rounds=16, eval_every=16,
    device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes()
    cluster.add()
    try:
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.close()


@pytest.fixture
def two_nodes(nodes):
    """A cluster of two nodes, the second perhaps new since the last test killed it."""
    with connect(nodes.address):
        if sum(node["Alive"] for node in ray.nodes()) < 2 and not nodes.nodes[-1].processes():
            nodes.add()
        nodes.wait(ray, 2)
        with connect() as now:  # counted again: the second node may have come after the first look
            yield now


def close_to(one, other):
    """Parameters alike but for rounding."""
    return all(torch.allclose(one.params[name], other.params[name], rtol=1e-4, atol=2e-6) for name in one.params)


@contextmanager
def notes_said():
    """What people are told meanwhile."""
    notes = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", EverfedWarning)
        yield notes
    notes += [str(warning.message) for warning in told if issubclass(warning.category, EverfedWarning)]


def same_rounds(ones, others):
    pairs = list(zip(ones, others, strict=True))
    assert all(np.array_equal(a.participants, b.participants) for a, b in pairs)
    assert [b.round_weight for _, b in pairs] == pytest.approx([a.round_weight for a, _ in pairs])
    # The same minibatches: other ones would give other losses.
    assert [b.train_loss for _, b in pairs] == pytest.approx([a.train_loss for a, _ in pairs], rel=1e-4)


@needs_ray
@pytest.mark.parametrize(
    ("changes", "state", "dies"),
    [
        ({}, "worker", False),
        ({"client": Adam(0.01), "trainer": "one-by-one"}, "driver", True),
        (
            {
                "client": SGD(0.1, momentum=0.5),
                "server": Varp(0.5),
                "compression": Qsgd(),
                "split_seed": 5,
                "init_seed": 6,
                "batch_seed": 7,
                "schedule_seed": 8,
                "validation": 0.1,
            },
            "worker",
            False,
        ),
    ],
    ids=["sums", "state-travels", "whole-updates"],
)
def test_shares_give_what_one_process_gives(two_nodes, nodes, changes, state, dies):
    experiment = replace(SMALL, **changes)
    alone = start(experiment)
    expected = list(alone)
    seen = []
    with sharded(experiment, two_nodes, 2, state=state) as run, notes_said() as notes:
        for record in run:
            seen.append(record)
            if record.round == 2 and dies:
                kill(*[pid for node in nodes.nodes for pid in node.processes("ray::Worker")][:1])
    same_rounds(expected, seen)
    assert close_to(alone, run)
    assert len([note for note in notes if "was lost" in note]) == dies


@needs_ray
def test_a_worker_and_then_a_machine_die_in_the_middle(two_nodes, nodes):
    experiment = replace(SMALL, client=Adam(0.01))  # clients keep state, so what died was worth something
    alone = start(experiment)
    expected = list(alone)
    # The first rounds in one process: a run may go on with another engine.
    begun = start(experiment)
    for record in begun:
        if record.round == 1:
            break
    seen = list(expected[:2])
    with sharded(experiment, two_nodes, 4, state="worker") as run, notes_said() as notes:
        run.load_state_dict(begun.state_dict())
        for record in run:
            seen.append(record)
            if record.round == 4:  # state since the start of the run; die while training, not between rounds
                victim, *_ = nodes.nodes[0].processes("ray::Worker")
                os.kill(victim, signal.SIGSTOP)
                threading.Timer(1.0, kill, [victim]).start()
            if record.round == 13:  # state since the last copy; both of the machine's workers
                assert len(nodes.nodes[-1].processes("ray::Worker")) == 2
                nodes.nodes[-1].kill()
            if record.round == 14:  # one of the two that are left, which has two shares by now
                kill(nodes.nodes[0].processes("ray::Worker")[0])
        kept = run.source.trainer.state_dict()
    same_rounds(expected, seen)
    assert close_to(alone, run)
    assert sum("a new one replaces it" in note for note in notes) == 2, notes
    assert any("there is no room for a new one" in note for note in notes), notes
    for client, values in split_clients(alone.source.trainer.state_dict()).items():
        for name, value in values.items():
            assert np.allclose(split_clients(kept)[client][name], value, rtol=1e-3, atol=1e-6)


@needs_ray
def test_a_sweep_over_machines_that_die(two_nodes, nodes, tmp_path):
    raw = {"rounds": 400, "fleet": {"kind": "cycles", "clients": 12}, "device": "cpu"}
    grid = {"method": ["algorithm1", "fedavg"]}
    runs = sweep.plan_runs(raw, grid, [0, 1], tmp_path / "cluster")
    notes, killed, heard = [], [], []
    # Asked to stop, runs save what they have; started again, they go on from there.
    cut = sweep.run_all(runs, executor=OnCluster(two_nodes), on_progress=heard.append, stop=lambda: bool(heard))
    assert {run.state for run in cut} - {"done"} == {"stopped"}

    def murder():
        """A run's process, and a second later the machine with another run on it."""
        until = time.monotonic() + 60
        while time.monotonic() < until and not killed:
            killed.extend(nodes.nodes[-1].processes("ray::_work")[:1])
            time.sleep(0.05)
        time.sleep(0.5)
        kill(killed[0])
        time.sleep(0.7)
        nodes.nodes[-1].kill()

    thread = threading.Thread(target=murder)
    thread.start()
    stored = sweep.run_all(
        runs, executor=OnCluster(two_nodes), checkpoint_s=0.2, on_progress=lambda p: notes.append(p.note)
    )
    thread.join()
    said = [note for note in notes if note]
    assert len(said) >= 2, said
    assert all("its last checkpoint" in note for note in said)
    alone = sweep.run_all(sweep.plan_runs(raw, grid, [0, 1], tmp_path / "alone"), jobs=1)
    for one, other in zip(alone, stored, strict=True):
        assert other.state == "done"
        same_rounds(one.rounds, other.rounds)
        assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)


@needs_ray
def test_bad_input_is_refused_in_words(two_nodes):
    with pytest.raises(InputError, match="'cuda' was requested, but the cluster has no GPU"):
        OnCluster(two_nodes)([sweep.Planned(replace(SMALL, device="cuda"), {}, None)], {}, print, lambda: False)
    with pytest.raises(InputError, match="workers is 5, and the cluster has 4 CPUs"), sharded(SMALL, two_nodes, 5):
        pass
    with pytest.raises(InputError, match="choose 'worker' or 'driver'"), sharded(SMALL, two_nodes, 2, state="cloud"):
        pass
    scaffold = replace(SMALL, server=Scaffold())
    with pytest.raises(InputError, match="changes the clients' gradients"), sharded(scaffold, two_nodes, 2):
        pass
    fedawe = replace(SMALL, server=FedAWE())
    with pytest.raises(InputError, match=r"a model of its own.*such as echo"), sharded(fedawe, two_nodes, 2):
        pass
    nowhere = sweep.Planned(SMALL, {}, Path("/nowhere/at/all"))
    with pytest.raises(ClusterError, match="storage shared by all nodes"):
        ray.get(ray.remote(spread._work).remote(0, packed((nowhere, {}), ()), None, 0))


PLUGIN = """
import everfed as ef
from dataclasses import dataclass

@ef.register("policy", "mine-on-a-node")
@dataclass(frozen=True)
class Mine(ef.Greedy):
    pass
"""


@needs_ray
def test_work_is_opened_only_by_the_code_that_sent_it(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "plugin_on_a_node.py"
    module.write_text(PLUGIN)
    experiment = Experiment.of({"rounds": 4, "policy": "mine-on-a-node", "plugins": ["plugin_on_a_node"]})
    parcel = packed(experiment, experiment.plugins)
    assert parcel.open() == experiment
    with pytest.raises(
        ClusterError, match=rf"{socket.gethostname()} .* it has torch {torch.__version__[:4]}.* driver has 1.0"
    ):
        replace(parcel, versions={**parcel.versions, "torch": "1.0"}).open()
    module.write_text(PLUGIN + "# another version\n")
    with pytest.raises(ClusterError, match="it has plugin plugin_on_a_node"):
        parcel.open()


@needs_ray
def test_a_node_whose_everfed_was_altered_is_refused(two_nodes, nodes, tmp_path):
    altered = shutil.copytree(Path(ef.__file__).parent, tmp_path / "everfed")
    optim = altered / "learning" / "optim.py"
    optim.write_text(optim.read_text().replace("self.lr", "0.5 * self.lr"))
    node = nodes.add(PYTHONPATH=str(tmp_path))
    try:
        nodes.wait(ray, 3)
        with connect() as three, pytest.raises(ClusterError, match="the node .* it has everfed code"):  # noqa: SIM117
            with sharded(SMALL, three, 6):  # two on each node
                pass
        runs = sweep.plan_runs({"rounds": 4, "device": "cpu"}, {}, range(6), tmp_path / "runs")
        with connect() as three, pytest.raises(ClusterError, match="the node .* it has everfed code"):
            sweep.run_all(runs, executor=OnCluster(three))
    finally:
        node.kill()
        nodes.nodes.remove(node)
        nodes.wait(ray, 2)


@needs_ray
def test_a_machine_that_freezes_is_replaced(two_nodes, nodes):
    alone = start(SMALL)
    expected, seen = list(alone), []
    with sharded(SMALL, two_nodes, 2) as run, notes_said() as notes:
        for record in run:
            seen.append(record)
            if record.round == 2:
                nodes.nodes[-1].freeze()
                frozen_at = time.monotonic()
            if record.round == 3:
                noticed = time.monotonic() - frozen_at
    nodes.nodes[-1].kill()
    same_rounds(expected, seen)
    assert close_to(alone, run)
    assert any("was lost" in note for note in notes), notes
    # Three health checks of 1 s, half a second apart, and some seconds until a new worker has started.
    assert 3.0 < noticed < 90.0


@needs_ray
def test_a_cluster_without_processors_is_refused_in_seconds(monkeypatch):
    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setattr(cluster, "WAIT_S", 1.0)
    empty = Nodes(cpus=0)
    try:
        with (
            notes_said() as notes,
            pytest.raises(InputError, match="has 1 node, 0 GPUs and no CPU, and every run or worker takes one"),
            connect(empty.address),
        ):
            pass
    finally:
        empty.close()
    assert any("has no CPU; waiting 1 s for a node" in note for note in notes)


@pytest.mark.parametrize("neighbours", [1, 4])
def test_a_workers_budget_is_the_same_while_memory_is_not_short(monkeypatch, neighbours):
    budgets = set()
    for free in (9 << 30, 20 << 30, 300 << 30):
        monkeypatch.setattr(worker, "free_memory", lambda free=free: free)
        budgets.add(worker._room("cpu", neighbours))
    assert budgets == {2 << 30}
    monkeypatch.setattr(worker, "free_memory", lambda: 1 << 30)
    assert worker._room("cpu", neighbours) == (1 << 30) // (2 * neighbours)


def test_a_gpu_is_used_where_there_is_one():
    assert Cluster(cpus=4, gpus=1, nodes=1).on_gpu("cuda")
    assert Cluster(cpus=4, gpus=1, nodes=1).on_gpu("auto")
    assert not Cluster(cpus=4, gpus=1, nodes=1).on_gpu("cpu")
    assert not Cluster(cpus=4, gpus=0, nodes=1).on_gpu("auto")


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
def test_state_comes_apart_and_together_again(trainer):
    run = start(replace(SMALL, client=Adam(0.01), trainer=trainer))
    empty = run.source.trainer.state_dict()
    assert split_clients(empty) == {}
    next(iter(run))  # the first round: not everybody has trained yet
    whole = run.source.trainer.state_dict()
    kept = split_clients(whole)
    assert len(kept) < 12
    other = start(replace(SMALL, client=Adam(0.01), trainer=trainer))
    other.source.trainer.load_state_dict(merge_clients(kept, empty))
    again = split_clients(other.source.trainer.state_dict())
    assert again.keys() == kept.keys()
    assert all(np.array_equal(again[c][name], kept[c][name]) for c in kept for name in kept[c])
    assert split_clients(whole, [0, 11]).keys() == {c for c in (0, 11) if c in kept}


def everfed(*arguments, **environment):
    script = "import sys; {}; from everfed.cli import main; main()"
    without = environment.pop("without", None)
    code = script.format(f"sys.modules['{without}'] = None" if without else "pass")
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip


def test_without_ray_the_extra_is_named():
    done = everfed("run", "digits", "--engine", "ray", without="ray")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'everfed[ray]'" in done.stderr


@needs_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1'"),
        ("ray://127.0.0.1:10001", "belongs to Ray's client server"),
        ("head", "give 'host:port'"),
    ],
)
def test_addresses_that_lead_nowhere(address, said):
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(InputError, match=said), connect(address):
        pass


class NotRay(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@needs_ray
@pytest.mark.parametrize("kind", ["silent", "http", "grpc"])
def test_a_port_that_is_not_rays_is_refused_in_seconds(kind, monkeypatch):
    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)
    if kind == "silent":
        server = socket.create_server(("127.0.0.1", 0))
        port, close = server.getsockname()[1], server.close
    elif kind == "http":
        web = HTTPServer(("127.0.0.1", 0), NotRay)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        port, close = web.server_port, web.shutdown
    else:  # speaks the same protocol, and knows none of Ray's calls
        grpc = pytest.importorskip("grpc")
        other = grpc.server(ThreadPoolExecutor(1))
        port, close = other.add_insecure_port("127.0.0.1:0"), lambda: other.stop(None)
        other.start()
    asked_at = time.monotonic()
    try:
        with pytest.raises(InputError, match=f"no Ray cluster (answers|can be joined) at '127.0.0.1:{port}'"):
            with connect(f"127.0.0.1:{port}"):
                pass
    finally:
        close()
    assert time.monotonic() - asked_at < 10.0


@needs_ray
def test_errors_of_the_work_are_not_taken_for_the_address(nodes):
    with pytest.raises(ClusterError, match="mine"), connect(nodes.address):
        raise ClusterError("mine")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "digits", "--workers", "2"], "--workers applies to clusters; add --engine ray."),
        (["compare", "digits", "--engine", "rya"], "unknown engine 'rya'. Did you mean 'ray'?"),
    ],
)
def test_options_of_clusters_need_the_engine(monkeypatch, capsys, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert said in capsys.readouterr().err


@needs_ray
def test_the_command_on_a_cluster_and_on_a_ray_of_its_own(nodes, tmp_path):
    small = ["--clients", "12", "--rounds", "20", "--device", "cpu", "--json"]
    alone = json.loads(everfed("run", *small, "--out", str(tmp_path / "alone")).stdout)
    ours = ["--engine", "ray", "--address", nodes.address, "--workers", "2"]
    done = everfed("run", *small, *ours, "--out", str(tmp_path / "cluster"))
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)
    assert shared["final"]["loss"] == pytest.approx(alone["final"]["loss"], rel=1e-4)
    many = ["compare", *small, "--methods", "algorithm1,greedy", "--seeds", "1"]
    local = json.loads(everfed(*many, "--jobs", "1", "--out", str(tmp_path / "one")).stdout)
    done = everfed(*many, "--engine", "ray", "--out", str(tmp_path / "ray"), RAY_TMPDIR=str(nodes.folder))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["methods"] == local["methods"]
    assert not list(nodes.folder.glob("everfed-*"))  # its Ray has left nothing behind
