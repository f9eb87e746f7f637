"""The study of experiments/non_iid.py, in small: it chooses rates as it says, goes on where it was, and adds up."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import everfed as ef
import report_runs
from everfed import presets
from everfed.data.datasets import load
from everfed.methods import COMPARED
from everfed.run import config
from everfed.run.start import start
from everfed.store import open_run, stored_rounds

SCRIPT = Path(__file__).parents[1] / "experiments" / "non_iid.py"
SMALL = replace(config.from_dict(presets.content("digits-quick")), rounds=20, eval_every=4, device="cpu")
BOTH = (("sgd", "by-energy 1"), ("adam", "by-energy 1"))


@pytest.fixture(scope="module")
def non_iid():
    """The script as a module; processes that it starts must find it too, hence the path."""
    sys.path.insert(0, str(SCRIPT.parent))
    import non_iid

    yield non_iid
    sys.path.remove(str(SCRIPT.parent))
    for name in ("held_out", "non_iid", "non_iid_tables", "study_runs", "watched"):
        del sys.modules[name]
    ef.DATASETS.pop("held-out", None)  # registered by one of them, and no kind of other tests


@pytest.fixture(scope="module")
def told(non_iid):
    """The module that makes tables and files of what the script found."""
    return non_iid.non_iid_tables


@pytest.fixture(scope="module")
def watched(non_iid):
    return non_iid.watched


def made(accuracy, train_loss=0.75, state="done"):
    """A stored run with these accuracies, one a round, made by hand."""
    run = report_runs.scripted([[0]] * len(accuracy), accuracy)
    own = {"rare": 0.5, "train_loss": train_loss}
    rounds = [replace(r, metrics=replace(r.metrics, own=own)) for r in run.rounds]
    return replace(run, rounds=rounds, state=state)


def short(non_iid, told, accuracy, rate=0.1, part="tune", method="greedy", **how):
    """The same in short."""
    run = non_iid.Run(part, "by-energy 1", method, "sgd", rate, 0)
    return vars(run) | told.figures(made(accuracy, **how))


def test_the_methods_are_those_of_the_comparison(non_iid):
    assert non_iid.COMPARED == COMPARED


def test_held_out_samples_are_training_samples_that_nobody_trains_on(non_iid):
    digits, tuning = load("digits"), non_iid.HeldOut(SMALL.data, 300).load()
    assert (len(tuning.y), len(tuning.test_y)) == (len(digits.y) - 300, 300)
    rows = [{row.tobytes() for row in x} for x in (tuning.x, tuning.test_x, digits.x, digits.test_x)]
    assert rows[0] | rows[1] == rows[2]
    assert not rows[1] & rows[0]
    assert np.array_equal(tuning.test_x, non_iid.HeldOut(SMALL.data, 300).load().test_x)


def test_the_rate_with_the_best_last_five_evaluations_is_chosen(non_iid, told):
    lucky = short(non_iid, told, [0.9, 0.2, 0.2, 0.2, 0.2, 0.8], rate=0.1)  # best at its start and at its end
    steady = short(non_iid, told, [0.1, 0.5, 0.5, 0.5, 0.5, 0.5], rate=0.02)
    lost = short(non_iid, told, [0.99], rate=0.5, state="diverged")
    assert told.chosen_rate([lucky, steady, lost]) == 0.02
    assert told.chosen_rate([lucky, None, lost]) is None  # the tuning is not complete
    assert told.chosen_rate([{**steady, "rate": 0.3}, steady]) == 0.02  # of equals the smaller


def test_figures_are_those_of_the_curve(told):
    accuracies = [0.0] * 30 + [0.2, 0.4] * 5
    found = told.figures(made(accuracies))
    assert found["last"] == 0.4
    assert found["last5"] == pytest.approx((0.4 * 3 + 0.2 * 2) / 5)
    assert found["late_variation"] == pytest.approx(np.std(accuracies[-10:], ddof=1), abs=1e-6)
    assert (found["rare"], found["train_loss"]) == (0.5, 0.75)
    assert told.figures(made([0.5], train_loss=math.nan))["train_loss"] is None
    assert told.figures(made([0.5], state="diverged")) == {"diverged": True}


def test_a_group_that_is_not_heard_does_not_count_in_the_train_loss(watched):
    assert watched.group_mean([0.5, math.nan], [0.75, 0.25]) == 0.5
    assert watched.group_mean([0.5, 1.5], [0.75, 0.25]) == 0.75
    assert math.isnan(watched.group_mean([math.nan, math.nan], [0.75, 0.25]))


def test_pushes_and_jumps_are_those_of_the_rare_classes(non_iid, watched):
    found = watched.pushes([[-0.3, -0.1], [0.4, 0.2]], [0.75, 0.25], [1])
    assert list(found.values()) == pytest.approx([0.25 * 0.2, -0.75 * 0.1, -0.75 * 0.3 + 0.25 * 0.4])
    silent = watched.pushes([[-0.3, -0.1], [math.nan, math.nan]], [0.75, 0.25], [1])
    assert all(math.isnan(value) for value in silent.values())
    run = report_runs.scripted([[0]] * 4, [0.5] * 4)
    heard = [(0, 0.8, 0.1), (1, 0.6, 0.5), (0, 0.9, 0.2), (1, 0.8, 0.8)]
    rounds = []
    for record, (rarest, others, rare) in zip(run.rounds, heard, strict=True):
        own = {"rarest heard": rarest, "recall others": others, "recall rare": rare}
        own |= {f"{name} E=1": 1.0 for name in ("length", "train_loss")}
        own |= {"train_loss": 1.0, "push own": 0.1, "push others": math.nan, "push rest": 0.0}
        rounds.append(replace(record, metrics=replace(record.metrics, own=own)))
    close = non_iid.closely(replace(run, rounds=rounds))
    assert (close["jump rare"], close["jump others"]) == pytest.approx((0.5, -0.15))
    assert (close["push own"], close["push others"]) == (0.1, None)
    assert close["length E=1"] == [1.0, 1.0]


def test_stages_come_in_order_and_finals_once_their_rate_is_known(non_iid, told):
    study = non_iid.Study(SMALL, rates=(0.1, 0.2), seeds=(0, 1))
    runs = study.runs({})
    assert {run.part for run in runs} == {"tune", "adam", "control"}
    assert list(dict.fromkeys(run.split for run in runs)) == list(dict.fromkeys(split for _, split in study.stages))
    tuned = {run.name: short(non_iid, told, [0.5], rate=run.rate) for run in study.tuning("by-energy 1", "greedy")}
    finals = [run for run in study.runs(tuned) if run.part == "final"]
    assert [(run.method, run.rate, run.seed) for run in finals] == [("greedy", 0.1, 0), ("greedy", 0.1, 1)]


def stored(study, run, folder, stop=lambda: False):
    """One run of the study in a folder, as far as `stop` lets it come."""
    for _ in stored_rounds(study.experiment(run), folder, make=study.start, stop=stop):
        pass
    return open_run(folder)


@pytest.mark.parametrize("split", ["by-energy 1", "dirichlet 0.3"])
def test_watching_adds_to_the_records_and_changes_nothing_else(non_iid, watched, split, tmp_path):
    study = non_iid.Study(SMALL, held_out=300)
    run = non_iid.Run("final", split, "algorithm1", "sgd", 0.2, 0)
    closely = stored(study, run, tmp_path)
    assert all(record.metrics for record in closely.rounds)  # the run is shorter than the close-up
    spaced = watched.spaced(closely)
    plain = list(start(replace(study.experiment(run), eval_every=4)))
    seen = [(r.round, r.metrics.accuracy, r.metrics.class_accuracy) for r in spaced.rounds if r.metrics]
    assert seen == [(r.round, r.metrics.accuracy, r.metrics.class_accuracy) for r in plain if r.metrics]
    assert [r.train_loss for r in closely.rounds] == [r.train_loss for r in plain]
    own, recalls = spaced.final.own, spaced.final.class_accuracy
    assert own["length E=1"] > 0
    assert own["recall rare"] >= 0
    if split == "by-energy 1":
        assert own["rare"] == own["recall rare"] == pytest.approx((recalls[8] + recalls[9]) / 2)
    else:
        assert own["rare"] == list(spaced.final.group_accuracy.values())[-1]
    found = json.loads(json.dumps(study.record(run, closely), allow_nan=False))
    assert found["last"] == pytest.approx(spaced.final.accuracy, abs=1e-6)
    assert found["close"]["groups"] == ["E=1", "E=10"]


def test_cut_off_between_evaluations_a_watched_run_goes_on_as_if_it_never_was(non_iid, tmp_path):
    study = non_iid.Study(replace(SMALL, rounds=60, eval_every=8), held_out=300)
    run = non_iid.Run("tune", "by-energy 1", "algorithm1", "sgd", 0.2, 0)
    whole = stored(study, run, tmp_path / "whole")
    left = iter([False] * 10 + [True] * 50)  # after 11 rounds: 3 since the last evaluation
    assert len(stored(study, run, tmp_path / "cut", stop=lambda: next(left)).rounds) == 11
    again = stored(study, run, tmp_path / "cut")
    assert [repr(record.metrics) for record in again.rounds] == [repr(record.metrics) for record in whole.rounds]
    evaluated = [record.round + 1 for record in again.rounds if record.metrics]
    assert evaluated == [8, 16, *range(21, 61)]


@pytest.mark.long
def test_a_study_goes_on_where_it_was_and_ends_with_its_tables(non_iid, told, tmp_path, capsys):
    study = non_iid.Study(SMALL, BOTH, rates=(0.05, 1e30), adam_rates=(1e-3,), seeds=(0, 1), held_out=300)
    assert not non_iid.carry_out(study, tmp_path, limit_s=0.0)  # no time, no run
    assert len(non_iid.carry_out(replace(study, stages=BOTH[1:]), tmp_path, jobs=2)) == 4
    capsys.readouterr()
    done = non_iid.carry_out(study, tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith("4 runs are done, 8 left")
    assert "20 runs are done, none left" in printed
    assert len(done) == len(list(tmp_path.iterdir())) == 20
    assert non_iid.read(study, tmp_path) == done
    runs = list(done.values())
    assert sum("diverged" in run for run in runs) == 4  # one rate in two is far too large
    assert {run["rate"] for run in told.select(runs, part="final")} == {0.05}
    text = told.tables(runs)
    assert text.splitlines()[4].startswith("| by-energy 1 | ")
    assert "nan" not in text
    assert text.count("**") == 2 * len(told.COMPARED)  # one chosen rate a method
    mean = np.mean([run["last5"] for run in told.select(runs, part="final", method="greedy")])
    assert f"{100 * mean:.1f} ± " in text.splitlines()[4]
    assert told.tables([]) == "no runs yet"


def test_the_json_has_every_run_without_the_close_look(non_iid, tmp_path, monkeypatch, capsys):
    results, out = tmp_path / "runs", tmp_path / "short.json"
    options = ["--preset", "digits-quick", "--device", "cpu", "--precision", "float32", "--rounds", "20"]
    options += ["--seeds", "1", "--splits", "by-energy 1", "--adam-rates", "0.001", "--held-out", "300"]

    def call(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words, "--results", str(results), *options])
        non_iid.main()

    monkeypatch.setattr(non_iid, "STAGES", BOTH[1:])
    call("run")
    assert "## The clients' optimiser" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call("json")
    assert "json needs --out" in capsys.readouterr().err
    call("json", "--out", str(out))
    runs = non_iid.study_runs.read_json(out)
    assert [run["method"] for run in runs] == sorted(non_iid.COMPARED)
    keys = ["part", "split", "method", "client", "rate", "seed", "last", "last5", "worst", "rare", "train_loss"]
    assert list(runs[0]) == [*keys, "late_variation"]


def test_what_was_called_wiggle_is_read_as_late_variation(non_iid):
    runs = non_iid.study_runs.read_json(SCRIPT.parents[1] / "docs" / "results" / "non_iid-first.json")
    assert all("late_variation" in run for run in runs if "diverged" not in run)


def test_the_page_says_what_the_json_says(non_iid):
    """The published table of optimisers, worked out again from the JSON of the study that made it."""
    docs = SCRIPT.parents[1] / "docs" / "results"
    runs = non_iid.study_runs.read_json(docs / "non_iid-first.json")
    page = (docs / "non_iid.md").read_text(encoding="utf-8")
    shown = [run for run in runs if run["part"] in ("adam", "control")]
    assert shown
    for run in shown:
        row = next(r for r in page.splitlines() if r.startswith(f"| {run['split']}, {run['client']} {run['rate']:g}"))
        assert f"{100 * run['last5']:.1f} / {100 * run['rare']:.1f}" in row
