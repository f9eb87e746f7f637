"""On a cluster of two nodes on this machine: the results of one process, whoever dies meanwhile."""

from __future__ import annotations

from ray_nodes import Nodes, kill  # before everfed.ray

# isort: split
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from everfed.errors import ClusterError, InputError
from everfed.learning.compress import Qsgd
from everfed.learning.optim import SGD, Adam
from everfed.ray import OnCluster, cluster, connect, sharded
from everfed.ray.cluster import ray
from everfed.ray.state import split_clients
from everfed.run.start import start
from everfed.server.last_updates import Varp
from everfed.studies import sweep
from ray_runs import SMALL, close_to, everfed, notes_said, same_rounds

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(ray is None, reason="Ray is not installed; pip install 'everfed[ray]' brings it"),
]


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


def test_a_node_whose_everfed_was_altered_is_refused(two_nodes, nodes, tmp_path):
    altered = shutil.copytree(Path(cluster.__file__).parents[1], tmp_path / "everfed")
    optim = altered / "learning" / "optim.py"
    text = optim.read_text()
    assert "return optimizer.lr * optimizer" in text
    optim.write_text(text.replace("return optimizer.lr * optimizer", "return 0.5 * optimizer.lr * optimizer"))
    node = nodes.add(PYTHONPATH=str(tmp_path))
    try:
        nodes.wait(ray, 3)
        with connect() as three, pytest.raises(ClusterError, match=r"the node .* it has everfed code"):  # noqa: SIM117
            with sharded(SMALL, three, 6):  # two on each node
                pass
        runs = sweep.plan_runs({"rounds": 4, "device": "cpu"}, {}, range(6), tmp_path / "runs")
        with connect() as three, pytest.raises(ClusterError, match=r"the node .* it has everfed code"):
            sweep.run_all(runs, executor=OnCluster(three))
    finally:
        node.kill()
        nodes.nodes.remove(node)
        nodes.wait(ray, 2)


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


def test_errors_of_the_work_are_not_taken_for_the_address(nodes):
    with pytest.raises(ClusterError, match="mine"), connect(nodes.address):
        raise ClusterError("mine")


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
