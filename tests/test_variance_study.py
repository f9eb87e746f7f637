"""The study of experiments/variance.py, in small: it runs what it names, goes on where it was, and adds up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from everfed import Sum, presets
from everfed.methods import METHODS
from everfed.run import config
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.server.last_updates import Varp
from everfed.server.optimizers import ServerMomentum, ServerSGD
from everfed.store import open_run, stored_rounds

SCRIPT = Path(__file__).parents[1] / "experiments" / "variance.py"
SMALL = replace(config.from_dict(presets.content("digits-quick")), rounds=40, eval_every=10, device="cpu")
CASE = ("digits", "by-energy 0.5", "sgd 0.1")


@pytest.fixture(scope="module")
def variance():
    """The script as a module; processes that it starts must find it too, hence the path."""
    sys.path.insert(0, str(SCRIPT.parent))
    import variance

    yield variance
    sys.path.remove(str(SCRIPT.parent))
    del sys.modules["variance"], sys.modules["variance_tables"], sys.modules["study_runs"]


@pytest.fixture(scope="module")
def told(variance):
    """The module that makes tables and files of what the script found."""
    return variance.variance_tables


@pytest.fixture(scope="module")
def small(variance):
    return variance.Study({"digits": SMALL}, ((CASE, False), (CASE, True)), seeds=(0,), closing=20, fine=4)


def known(variance, accuracy, method="algorithm1", momentum=False, seed=0, case=CASE, **changes):
    """A run with these accuracies at rounds 10, 20, ..., made by hand; 13.5 units per round."""
    rounds = [10 * (i + 1) for i in range(len(accuracy))]
    worst, spent = [a / 2 for a in accuracy], [13.5 * r for r in rounds]
    return {
        **vars(variance.Run(*case, method, momentum, seed)),
        "diverged": False,
        "mean_weight": 1.0,
        "var_weight": 0.2,
        "late_variation": round(float(np.std(accuracy[-2:])), 6),
        "curve": {"round": rounds, "accuracy": accuracy, "worst_group": worst, "spent": spent},
        **changes,
    }


def stored(study, run, folder):
    """One run of the study, in a folder."""
    for _ in stored_rounds(study.experiment(run), folder, make=study.start):
        pass
    return open_run(folder)


@pytest.fixture
def made(variance):
    """FedAvg twice, Algorithm 1 twice, the lattice once and once lost, last-updates below the target."""
    return [
        known(variance, [0.5, 0.9, 0.8, 1.0], "fedavg", seed=0),
        known(variance, [0.5, 0.7, 0.8, 0.9], "fedavg", seed=1),
        known(variance, [0.2, 0.6, 0.8, 0.9], seed=0),
        known(variance, [0.2, 0.9, 0.5, 0.8], seed=1),
        known(variance, [0.2, 0.8, 0.8, 0.9], "lattice", seed=0, var_weight=0.0625),
        known(variance, [0.2], "lattice", seed=1, diverged=True),
        known(variance, [0.2, 0.5, 0.5, 0.6], "last-updates", seed=0),
        known(variance, [0.2, 0.8, 0.8, 1.0], momentum=True, seed=0),
    ]


def test_the_study_is_the_one_of_the_page(variance):
    study = variance.Study()
    runs = study.runs({})
    assert len({run.name for run in runs}) == len(runs) == (3 + 4) * (8 + 7) * 3
    assert all((run.data, run.split, run.momentum) == ("cifar10", "by-energy 0.5", False) for run in runs[: 8 * 3])
    assert [run.seed for run in runs[:24]] == [0] * 8 + [1] * 8 + [2] * 8
    assert {run.momentum for run in runs if run.method == "fedavg"} == {False}
    assert {run.data for run in runs[: 3 * 15 * 3]} == {"cifar10"}
    by_energy = config.from_dict(presets.content("cifar10-by-energy"))
    base = study.bases["cifar10"]
    assert (base.model, base.fleet, base.batch_size) == (by_energy.model, by_energy.fleet, by_energy.batch_size)
    assert runs[0].experiment(base).client == replace(by_energy.client, lr=0.1)  # the rate before it was tuned
    assert [(b.device, b.precision) for b in variance.bases().values()] == [("cpu", "float32"), ("cuda", "bf16")]
    digits = config.from_dict(presets.content("digits"))
    assert variance.CLIENTS["sgd 0.2, cosine"] == replace(digits.client, lr=0.2)
    assert variance.CLIENTS["adam 0.001"] == config.from_dict(presets.content("paper-cifar10")).client


def test_a_run_is_the_method_it_names(variance):
    for method in (variance.REFERENCE, *variance.METHODS):
        one = variance.Run(*CASE, method, False, 2).experiment(SMALL)
        assert (one.seed, one.server_optimizer, one.split.strength) == (2, ServerSGD(), 0.5)
        if method in METHODS:
            assert (one.policy, one.server) == (METHODS[method].policy, METHODS[method].server)
    known = {m: variance.Run(*CASE, m, True, 0).experiment(SMALL) for m in ("ht-varp 0.5", "ht-varp 1", "lattice")}
    assert [one.server for one in known.values()] == [Varp(memory=0.5), Varp(memory=1.0), Sum()]
    assert known["ht-varp 1"].policy == METHODS["algorithm1"].policy
    assert {one.server_optimizer for one in known.values()} == {ServerMomentum(lr=0.1, beta=0.9)}


def test_a_run_is_told_as_its_records_say(variance, small, tmp_path):
    run = variance.Run(*CASE, "lattice", True, 1)
    done = json.loads(json.dumps(small.record(run, stored(small, run, tmp_path))))
    plain = list(start(run.experiment(SMALL)))
    weights = [record.round_weight for record in plain]
    assert done["var_weight"] == pytest.approx(np.var(weights), abs=1e-5)
    assert done["mean_weight"] == pytest.approx(np.mean(weights), abs=1e-5)
    # Every 10 rounds, and in the last 20 every 4 as well: looking more often changes nothing.
    assert done["curve"]["round"] == [10, 20, 24, 28, 30, 32, 36, 40]
    assert done["late_variation"] == pytest.approx(np.std(done["curve"]["accuracy"][2:], ddof=1), abs=1e-6)
    curve = dict(zip(done["curve"]["round"], zip(*list(done["curve"].values())[1:], strict=True), strict=True))
    for record in plain:
        if m := record.metrics:
            assert curve[record.round + 1] == (m.accuracy, m.worst_group_accuracy, record.energy.spent)


def test_the_weight_of_a_round_varies_as_the_theory_says(variance, tmp_path):
    """In the paper's fleet ten of cycle 20 make two rounds unlike each other on a lattice: 0.5 or none in weight."""
    study = variance.Study({"digits": replace(SMALL, fleet=CycleFleet())})
    found = {}
    for m in ("lattice", "fixed-phase", "last-updates", "fedavg"):
        run = variance.Run("digits", "iid", "sgd 0.1", m, False, 0)
        found[m] = study.record(run, stored(study, run, tmp_path / m))
    variances = {method: one["var_weight"] for method, one in found.items()}
    assert variances == {"lattice": pytest.approx(0.0625, rel=0.05), "fixed-phase": pytest.approx(0.0625, rel=0.05),
                         "last-updates": 0.0, "fedavg": 0.0}  # fmt: skip
    # Clients' data differ by one.
    assert all(one["mean_weight"] == pytest.approx(1.0, abs=0.01) for one in found.values())
    assert {one["curve"]["spent"][-1] for m, one in found.items() if m != "fedavg"} == {540.0}


def test_measures_are_those_of_the_curve(variance, told):
    m = told.measures(known(variance, [0.0, 0.9, 0.5, 0.7]))
    assert m["accuracy"] == pytest.approx((0.9 + 0.7) / 2)  # rounds 20 and 40: 20 apart
    assert m["worst"] == pytest.approx((0.9 + 0.7) / 4)
    assert m["late_variation"] == pytest.approx(0.1)
    many = [0.1] * 10 + [0.2, 0.9, 0.4, 0.9, 0.6, 0.9, 0.8, 0.9, 0.3]
    assert told.measures(known(variance, many))["accuracy"] == pytest.approx((0.2 + 0.4 + 0.6 + 0.8 + 0.3) / 5)
    assert told.measures(known(variance, [0.2], diverged=True)) is None


def test_targets_come_from_fedavg_and_runs_tell_when_they_had_them(told, made):
    runs = told.records(made)
    # FedAvg ends at (0.9 + 1) / 2 and (0.7 + 0.9) / 2.
    assert {run["target"] for run in runs if "diverged" not in run} == {0.7875}  # 0.9 times the mean of these
    assert [run.get("rounds") for run in runs] == [20, 30, 30, 20, 20, None, None, 20]
    assert [run["energy"] for run in runs[:3]] == [270.0, 405.0, 405.0]
    assert runs[5]["diverged"] is True
    alone = told.records(made[2:])  # no FedAvg, no target
    assert {run["target"] for run in alone if "diverged" not in run} == {None}


def test_the_tables_add_up(told, made):
    found = told.blocks(told.records(made))
    assert list(found) == ["digits, against algorithm1", "digits, by momentum", ", ".join(CASE)]
    rows = found[", ".join(CASE)].splitlines()
    assert "rounds to 78.8 %" in rows[0]
    assert rows[2:] == [
        "| fedavg | 87.5 ± 10.6 | 43.8 ± 5.3 | 7.50 ± 3.54 | 0.200 ± 0.000 | 25 ± 7 | 338 ± 95 |",
        "| algorithm1 | 80.0 ± 7.1 | 40.0 ± 3.5 | 10.00 ± 7.07 | 0.200 ± 0.000 | 25 ± 7 | 338 ± 95 |",
        "| lattice | 85.0 (1 of 2) | 42.5 (1 of 2) | 5.00 (1 of 2) | 0.062 (1 of 2) | 20 (1 of 2) | 270 (1 of 2) |",
        "| last-updates | 55.0 | 27.5 | 5.00 | 0.200 | not reached | not reached |",
        "| algorithm1 + momentum | 90.0 | 45.0 | 10.00 | 0.200 | 20 | 270 |",
    ]
    against = found["digits, against algorithm1"].splitlines()
    assert against[2].startswith("| fedavg | +7.5 ± 17.7, ×0.75 |  |")
    assert against[3].startswith("| lattice | +10.0, ×1.00 (1 of 2) |")
    assert "| algorithm1 | +15.0, ×2.00 |" in found["digits, by momentum"]
    lost = [run for run in told.records(made) if "diverged" in run]
    assert told.cell(lost, "accuracy") == told.change(lost, lost) == "diverged"
    assert told.tables([]) == "no runs yet"


def test_a_study_goes_on_where_it_was(variance, told, small, tmp_path, capsys):
    short = replace(small, bases={"digits": replace(SMALL, rounds=20)})
    assert not variance.carry_out(short, tmp_path, limit_s=0.0)
    first = variance.carry_out(replace(short, stages=short.stages[:1]), tmp_path)
    assert len(first) == 8
    capsys.readouterr()
    done = variance.carry_out(short, tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith("8 runs are done, 7 left")
    assert "15 runs are done, none left" in printed
    assert {name: done[name] for name in first} == first
    assert variance.read(small, tmp_path) == {}  # runs of another set-up do not count
    assert "nan" not in told.tables(told.records(list(done.values())))


def test_a_run_that_diverges_says_so(variance, told, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(variance.CLIENTS, "sgd 0.1", variance.SGD(1e30))
    done = variance.carry_out(replace(small, stages=small.stages[:1]), tmp_path)
    assert len(done) == 8
    assert all(run["diverged"] for run in told.records(list(done.values())))
    assert capsys.readouterr().out.count("diverged") == 8


def test_table_json_and_page_are_made_from_what_is_there(variance, told, made, tmp_path, monkeypatch, capsys):
    short, page = tmp_path / "short.json", tmp_path / "page.md"
    runs = told.records([*made, known(variance, [0.5, 0.5], "fedavg", case=("cifar10", "iid", "sgd 0.1"))])

    def call(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
        variance.main()

    call("table", "--results", tmp_path / "none")
    assert "no runs yet" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call("json", "--results", tmp_path / "none")
    assert "json needs --out" in capsys.readouterr().err
    variance.study_runs.write_json(short, variance.Study().settings(), runs)
    assert json.loads(short.read_text())["settings"]["cifar10"]["rounds"] == 1000
    assert variance.study_runs.read_json(short) == runs
    page.write_text("start\n")
    with pytest.raises(SystemExit, match="has no place for a table"):
        call("page", "--results", short, "--out", page)
    marks = "".join(f"# {name}\n<!-- table: {name} -->\nold\n<!-- end -->\n" for name in told.blocks(runs))
    page.write_text(f"start\n{marks}finish")
    for _ in range(2):  # a second time changes nothing
        call("page", "--results", short, "--out", page)
        text = page.read_text()
        assert "old" not in text
        assert text.startswith("start\n# cifar10, against")
        assert text.endswith("<!-- end -->\nfinish")
        assert all(
            f"<!-- table: {name} -->\n\n{table}\n\n<!-- end -->" in text for name, table in told.blocks(runs).items()
        )


def test_the_page_has_a_place_for_every_table(told):
    page = (SCRIPT.parents[1] / "docs" / "results" / "variance.md").read_text(encoding="utf-8")
    lost = {"method": "last-updates", "momentum": False, "seed": 0, "diverged": True}
    every = [{"data": d, "split": s, "client": c, **lost} for d, s, c in told.CASES]
    for name in told.blocks(every):
        assert page.count(f"<!-- table: {name} -->") == 1
    assert page.count("<!-- table: ") == page.count("<!-- end -->") == len(told.blocks(every))


def test_the_page_says_what_the_json_says(variance, told):
    """The published tables, worked out again from the published JSON."""
    docs = SCRIPT.parents[1] / "docs" / "results"
    page = (docs / "variance.md").read_text(encoding="utf-8")
    for name, table in told.blocks(variance.study_runs.read_json(docs / "variance.json")).items():
        assert f"<!-- table: {name} -->\n\n{table}\n" in page
