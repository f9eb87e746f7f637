"""The scripts of benchmarks/ that compare everfed with others: what can be seen of them without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import everfed as ef

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))


def answered(script, file, *options):
    """The last lines of its table, and the rows of its file."""
    command = [sys.executable, BENCHMARKS / script, "--no-envs", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[2:], json.loads(file.read_text())


def test_the_loop_of_cuda_graphs_runs_eagerly_on_a_cpu_and_says_so(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--peers", "graphs", "--rounds", "2", "--warmup", "1", "--threads", "1", "--json", file]
    (line,), (row,) = answered("peers/run.py", file, *options)
    assert "failed" not in row
    assert (row["peer"], row["graph"]) == ("loop of CUDA graphs, eager for want of CUDA", False)
    assert line.startswith(f"| {row['peer']} |")
    assert row["loss_after"] < row["loss_before"]  # the script itself counts the steps


def test_a_recorded_client_begins_afresh_each_time(peers):
    from torch_parts import build
    from with_graphs import Recorded
    from workloads import Workload

    # Adam, whose moments must not pass from client to client, on the small data.
    adam = Workload("digits40", batch=10, optimizer="adam", lr=1e-3, parameters=4_810)
    recorded = Recorded(build(adam), adam, "cpu", "float32")
    sums = []
    for _ in range(3):
        torch.manual_seed(1)
        torch._foreach_zero_(recorded.total)
        recorded.train()
        sums.append([total.clone() for total in recorded.total])
    assert all(torch.equal(a, b) for later in sums[1:] for a, b in zip(sums[0], later, strict=True))
    assert int(recorded.steps) == 15


def test_a_recorded_client_draws_its_own_samples_alone(peers):
    from torch_parts import build
    from with_graphs import Recorded
    from workloads import WORKLOADS

    recorded = Recorded(build(WORKLOADS["digits40"]), WORKLOADS["digits40"], "cpu", "float32")
    recorded.client.fill_(7)
    order = recorded.order()  # 50 of 44: all of them, and six again
    assert sorted(set(order.tolist())) == list(range(7 * 44, 8 * 44))
    assert len(order) == 50


def test_a_cohort_is_exactly_50_of_1000_in_every_round_and_weighs_one(peers):
    from duel_everfed import UniformCohort

    fleet = ef.Fleet.from_cycles(np.ones(1000, int))
    rounds = [step.clients for step in ef.plan(fleet, UniformCohort(cohort=50), rounds=400, seed=0)]
    assert {(len(clients), len(set(clients.tolist()))) for clients in rounds} == {(50, 50)}
    taken = np.bincount(np.concatenate(rounds), minlength=1000)
    # Each is drawn 20 times on average, with variance 19; the largest of 1,000 is within 6 deviations.
    assert abs(taken - 20).max() < 6 * 19**0.5
    assert abs(taken.var() - 19) < 5 * 19 * (2 / 1000) ** 0.5
    for step in ef.plan(fleet, UniformCohort(cohort=50), rounds=2, seed=0):
        assert (step.scales / 1000).sum() == pytest.approx(1.0)


def test_the_duel_has_a_row_for_everfed_and_a_reason_where_pfl_is_missing(tmp_path):
    file = tmp_path / "duel.json"
    sizes = ["--clients", "8", "--cohort", "3", "--rounds", "2", "--rate", "0.03"]
    lines, rows = answered(
        "duel.py", file, "--data", "synthetic", *sizes, "--contenders", "everfed", "pfl", "--warm", "--out", file
    )
    everfed, again, pfl, _ = rows
    assert [row["caches"] for row in rows] == ["empty", "filled"] * 2
    assert again["accuracies"] == everfed["accuracies"]  # the same run, started again
    assert (everfed["parameters"], everfed["cohorts"]) == (1_626_442, [3])
    assert 0 < everfed["first_round_s"] < everfed["wall_s"]
    assert list(everfed["accuracies"]) == ["2"]
    assert lines[0].startswith("| everfed | empty | ")
    assert lines[1].startswith("| everfed | filled | ")
    if "failed" in pfl:  # it is not among the development packages
        assert "No module named 'pfl'" in pfl["failed"]
        assert lines[2].startswith("| pfl | empty | failed |")


def test_the_price_of_own_adapters_is_a_row_for_each_trainer():
    command = [sys.executable, BENCHMARKS / "adapters.py", "--layers", "1", "--width", "16", "--length", "8"]
    done = subprocess.run([*command, "--clients", "3"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("5,264 parameters, 512 of an adapter; ")
    assert done.stdout.splitlines()[-1].startswith("| batched | ")


def test_each_contender_has_caches_of_its_own_that_nobody_has_filled(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from duel import CONTENDERS, cached_in

    folders = [cached_in(tmp_path / f"caches-{name}") for name in CONTENDERS]
    assert all({"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= given.keys() for given in folders)
    assert len({path for given in folders for path in given.values()}) == 3 * len(CONTENDERS)
