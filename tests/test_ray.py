"""On a Ray of this machine's own: the results of one process, and refusals. `test_ray_faults` has nodes that die."""

from __future__ import annotations

import ray_nodes  # noqa: F401  before everfed.ray

# isort: split
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from everfed.cli import main
from everfed.errors import ClusterError, InputError
from everfed.learning.optim import SGD, Adam
from everfed.ray import OnCluster, cluster, connect, sharded, spread, worker
from everfed.ray.cluster import Cluster, ray
from everfed.ray.parcel import packed
from everfed.ray.state import merge_clients, split_clients
from everfed.run import config
from everfed.run.early_stopping import EarlyStopping
from everfed.run.start import start
from everfed.scheduling.table import POLICIES
from everfed.server.control import Scaffold
from everfed.server.gossip import FedAWE
from everfed.studies import sweep
from ray_runs import SMALL, close_to, everfed, same_rounds
from token_files import token_task

needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed; pip install 'everfed[ray]' brings it")


@pytest.fixture(scope="module")
def own_ray():
    with connect(cpus=2) as cluster:
        yield cluster


@pytest.mark.long
@needs_ray
def test_shares_and_sweeps_give_what_one_process_gives(own_ray, tmp_path):
    alone = start(SMALL)
    expected = list(alone)
    with sharded(SMALL, own_ray, 2) as run:
        same_rounds(expected, list(run))
    assert close_to(alone, run)
    (stored,) = sweep.run_all([sweep.Planned(SMALL, {}, tmp_path / "run")], executor=OnCluster(own_ray))
    same_rounds(expected, stored.rounds)
    assert all(torch.equal(alone.params[name], stored.params[name]) for name in alone.params)


@pytest.mark.long
@needs_ray
def test_a_task_of_tokens_is_trained_by_shares(own_ray, tmp_path):
    text = replace(SMALL, **token_task(tmp_path, SMALL.fleet.clients))
    alone = start(text)
    expected = list(alone)
    with sharded(text, own_ray, 2) as run:
        same_rounds(expected, list(run))
    assert close_to(alone, run)


@pytest.mark.long
@needs_ray
def test_early_stopping_ends_where_one_process_does(own_ray):
    watched = replace(SMALL, client=SGD(1.5), eval_every=1, early_stopping=EarlyStopping(part=0.2, patience=1))
    alone = start(watched)
    expected = alone.history(list(alone))
    assert len(expected.rounds) < SMALL.rounds
    with sharded(watched, own_ray, 2) as run:
        found = run.history(list(run))
    same_rounds(expected.rounds, found.rounds)
    assert found.model_round == expected.model_round
    assert found.curve("loss", on="validation")[1] == pytest.approx(
        expected.curve("loss", on="validation")[1], rel=1e-3
    )


@pytest.mark.long
@needs_ray
def test_bad_input_is_refused_in_words(own_ray):
    with pytest.raises(InputError, match="'cuda' was requested, but the cluster has no GPU"):
        OnCluster(own_ray)([sweep.Planned(replace(SMALL, device="cuda"), {}, None)], {}, print, lambda: False)
    with pytest.raises(InputError, match="workers is 5, and the cluster has 2 CPUs"), sharded(SMALL, own_ray, 5):
        pass
    with pytest.raises(InputError, match="choose 'worker' or 'driver'"), sharded(SMALL, own_ray, 2, state="cloud"):
        pass
    scaffold = replace(SMALL, server=Scaffold())
    with pytest.raises(InputError, match="changes the clients' gradients"), sharded(scaffold, own_ray, 2):
        pass
    fedawe = replace(SMALL, server=FedAWE())
    with pytest.raises(InputError, match=r"a model of its own.*such as echo"), sharded(fedawe, own_ray, 2):
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
def test_work_is_opened_only_by_the_code_that_sent_it(monkeypatch, tmp_path, request):
    monkeypatch.syspath_prepend(tmp_path)
    request.addfinalizer(lambda: POLICIES.pop("mine-on-a-node", None))  # no kind of other tests
    module = tmp_path / "plugin_on_a_node.py"
    module.write_text(PLUGIN)
    experiment = config.from_dict({"rounds": 4, "policy": {"kind": "mine-on-a-node"}, "plugins": ["plugin_on_a_node"]})
    parcel = packed(experiment, experiment.plugins)
    assert parcel.open() == experiment
    with pytest.raises(
        ClusterError, match=rf"{socket.gethostname()} .* it has torch {torch.__version__[:4]}.* driver has 1.0"
    ):
        replace(parcel, versions={**parcel.versions, "torch": "1.0"}).open()
    module.write_text(PLUGIN + "# another version\n")
    with pytest.raises(ClusterError, match="it has plugin plugin_on_a_node"):
        parcel.open()


@pytest.mark.parametrize(("neighbours", "usual"), [(1, 2 << 30), (16, 1 << 30)])
def test_a_workers_budget_is_the_same_while_memory_is_not_short(monkeypatch, neighbours, usual):
    monkeypatch.setattr(worker, "total_memory", lambda: 32 << 30)
    budgets = set()
    for free in (3 << 30, 20 << 30, 31 << 30):
        monkeypatch.setattr(worker, "free_memory", lambda free=free: free)
        budgets.add(worker._room("cpu", neighbours))
    assert budgets == {usual}
    monkeypatch.setattr(worker, "free_memory", lambda: 1 << 30)
    assert worker._room("cpu", neighbours) == 512 << 20


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
        threading.Thread(target=web.handle_request).start()
        port, close = web.server_port, web.server_close
    else:  # speaks the same protocol, and knows none of Ray's calls
        grpc = pytest.importorskip("grpc")
        other = grpc.server(ThreadPoolExecutor(1))
        port, close = other.add_insecure_port("127.0.0.1:0"), lambda: other.stop(None)
        other.start()
    asked_at = time.monotonic()
    try:
        said = rf"no Ray cluster (answers|can be joined) at '127.0.0.1:{port}'"
        with pytest.raises(InputError, match=said), connect(f"127.0.0.1:{port}"):
            pass
    finally:
        close()
    assert time.monotonic() - asked_at < 10.0


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
