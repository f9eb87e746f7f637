"""The study of experiments/non_iid.py, in small: it chooses rates as it says, goes on where it was, and adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from everfed import presets
from everfed.data.datasets import load
from everfed.run import config
from everfed.run.start import start
from everfed.studies import sweep

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
    del sys.modules["non_iid"], sys.modules["non_iid_tables"], sys.modules["study_runs"]


@pytest.fixture(scope="module")
def told(non_iid):
    """The module that makes tables and files of what the script found."""
    return non_iid.non_iid_tables


@pytest.fixture(scope="module")
def runs_of(non_iid):
    """The module that does many runs, whatever the study."""
    return non_iid.study_runs


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def line(non_iid, accuracy, rate=0.1, part="tune", method="greedy", diverged=None, **changes):
    """A line of a results file with these accuracies at its evaluations, made by hand."""
    run = non_iid.Run(part, "by-energy 1", method, "sgd", rate, 0)
    constant = {"length": [1.0, 2.0], "train_loss": [0.5, 1.5], "push": [[-0.1, -0.1], [0.2, 0.2]]}
    curve = {"round": list(range(len(accuracy))), "accuracy": accuracy, "worst_group": accuracy, "rare": accuracy}
    return {
        "name": run.name,
        **vars(run),
        "settings": {"rounds": 20},
        "seconds": 3.0,
        "diverged": diverged,
        "groups": ["E=1", "E=20"],
        "shares": [0.75, 0.25],
        "rare_classes": [1],
        "curve": curve | {key: [value] * len(accuracy) for key, value in constant.items()},
        "close_up": [],
        **changes,
    }


def test_the_methods_are_those_of_the_comparison(non_iid):
    assert non_iid.COMPARED == sweep.COMPARED


def test_only_numpy_and_torch_are_needed():
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import non_iid; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"pyarrow", "typer", "safetensors", "sklearn", "matplotlib", "rich"} & set(done.stdout.split())


def test_held_out_samples_are_training_samples_that_nobody_trains_on(non_iid, digits):
    tuning = non_iid.hold_out(digits, 300)
    assert (len(tuning.y), len(tuning.test_y)) == (len(digits.y) - 300, 300)
    rows = [{row.tobytes() for row in x} for x in (tuning.x, tuning.test_x, digits.x, digits.test_x)]
    assert rows[0] | rows[1] == rows[2]
    assert not rows[1] & rows[0]
    assert np.array_equal(tuning.test_x, non_iid.hold_out(digits, 300).test_x)


def test_the_rate_with_the_best_last_five_evaluations_is_chosen(non_iid):
    lucky = line(non_iid, [0.9, 0.2, 0.2, 0.2, 0.2, 0.8], rate=0.1)  # best at its start and at its end
    steady = line(non_iid, [0.1, 0.5, 0.5, 0.5, 0.5, 0.5], rate=0.02)
    lost = line(non_iid, [0.99], rate=0.5, diverged="training diverged")
    assert non_iid.chosen_rate([lucky, steady, lost]) == 0.02
    assert non_iid.chosen_rate([lucky, None, lost]) is None  # the tuning is not complete
    assert non_iid.chosen_rate([{**steady, "rate": 0.3}, steady]) == 0.02  # of equals the smaller


def test_measures_are_those_of_the_curve(non_iid):
    m = non_iid.measures(line(non_iid, [0.0] * 10 + [0.2, 0.4] * 5))
    assert m["last"] == 0.4
    assert m["last5"] == pytest.approx((0.4 * 3 + 0.2 * 2) / 5)
    assert m["wiggle"] == pytest.approx(0.1)
    assert m["train_loss"] == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)
    assert non_iid.measures(line(non_iid, [0.5], diverged="lost")) is None


def test_a_group_that_is_not_heard_does_not_count_in_the_train_loss(told):
    assert told.group_mean([0.5, None], [0.75, 0.25]) == 0.5
    assert told.group_mean([None, None], [0.75, 0.25]) is None


def test_pushes_and_jumps_are_those_of_the_rare_classes(non_iid, told):
    heard = [([1, 0], [0.8, 0.1]), ([1, 1], [0.6, 0.5]), ([1, 0], [0.9, 0.2]), ([0, 2], [0.8, 0.8])]
    close_up = [{"round": r, "heard": h, "class_accuracy": a} for r, (h, a) in enumerate(heard)]
    one = line(non_iid, [0.5], close_up=close_up)
    assert told.jumps(one) == pytest.approx((0.5, -0.15))
    one["curve"]["push"] = [[[-0.3, -0.1], [0.4, 0.2]]]
    assert told.pushes(one) == pytest.approx((0.25 * 0.2, -0.75 * 0.1, -0.75 * 0.3 + 0.25 * 0.4))


def test_no_run_is_started_that_would_not_fit(non_iid, runs_of):
    slow, quick = (non_iid.Run("tune", "by-energy 1", m, "sgd", 0.1, 0) for m in ("fedavg", "wait-for-all"))
    known = [line(non_iid, [0.5], method="fedavg", seconds=50.0), line(non_iid, [0.5], method="wait-for-all")]
    done = {one["name"]: one for one in known}
    assert runs_of.fitting([slow, quick], done, left_s=61.0) == slow
    assert runs_of.fitting([slow, quick], done, left_s=59.0) == quick
    assert runs_of.fitting([slow, quick], done, left_s=3.0) is None
    unknown = non_iid.Run("tune", "by-energy 1", "algorithm1", "sgd", 0.1, 0)
    assert runs_of.fitting([unknown], done, left_s=59.0) is None  # taken to be as slow as the slowest
    assert runs_of.fitting([unknown], {}, left_s=1.0) == unknown
    assert runs_of.fitting([unknown], {}, left_s=0.0) is None


def test_stages_come_in_order_and_finals_once_their_rate_is_known(non_iid):
    study = non_iid.Study(SMALL, rates=(0.1, 0.2), seeds=(0, 1))
    runs = study.runs({})
    assert {run.part for run in runs} == {"tune", "adam", "control"}
    assert list(dict.fromkeys(run.split for run in runs)) == list(dict.fromkeys(split for _, split in study.stages))
    tuned = {run.name: line(non_iid, [0.5], rate=run.rate) for run in study.tuning("by-energy 1", "greedy")}
    finals = [run for run in study.runs(tuned) if run.part == "final"]
    assert [(run.method, run.rate, run.seed) for run in finals] == [("greedy", 0.1, 0), ("greedy", 0.1, 1)]
    assert study.total() == 5 * 4 * (2 + 2) + 2 * 8 + 3


@pytest.mark.parametrize("split", ["by-energy 1", "dirichlet 0.3"])
def test_a_run_is_a_line_with_all_that_the_tables_need(non_iid, digits, split):
    study = non_iid.Study(SMALL, held_out=300)
    run = non_iid.Run("final", split, "algorithm1", "sgd", 0.2, 0)
    done = json.loads(json.dumps(non_iid.execute(study, digits, run)))
    assert done["name"] == run.name
    assert done["curve"]["round"] == [4, 8, 12, 16, 20]
    assert sum(done["shares"]) == pytest.approx(1, abs=1e-4)
    assert len(done["close_up"]) == 20  # the run is shorter than the close-up
    assert [c["class_accuracy"] for c in done["close_up"][3::4]] == done["curve"]["class_accuracy"]
    lengths = [value for row in done["curve"]["length"] for value in row if value is not None]
    assert lengths
    assert min(lengths) > 0
    assert [row is None for row in done["curve"]["push"][-1]] == [v is None for v in done["curve"]["length"][-1]]
    if split == "by-energy 1":
        recalls = done["curve"]["class_accuracy"][-1]
        assert done["rare_classes"] == [8, 9]
        assert done["curve"]["rare"][-1] == pytest.approx((recalls[8] + recalls[9]) / 2, abs=1e-4)


def test_watching_and_looking_closely_change_nothing(non_iid, digits):
    study = non_iid.Study(SMALL, held_out=300)
    run = non_iid.Run("final", "by-energy 1", "greedy", "sgd", 0.2, 0)
    watched = non_iid.execute(study, digits, run)
    optimizer, _ = non_iid.client("sgd", 0.2)
    plain = start(replace(SMALL, client=optimizer).with_method("greedy"))
    accuracies = [record.metrics.accuracy for record in plain if record.metrics]
    assert watched["curve"]["accuracy"] == pytest.approx(accuracies, abs=1e-5)


def test_a_run_past_its_deadline_is_given_up_and_a_diverged_one_says_so(non_iid, digits):
    study = non_iid.Study(SMALL, held_out=300)
    run = non_iid.Run("tune", "by-energy 1", "algorithm1", "sgd", 0.2, 0)
    assert non_iid.execute(study, digits, run, deadline=0.0) is None
    lost = non_iid.execute(study, digits, replace(run, rate=1e30))
    assert "diverged" in lost["diverged"]
    assert non_iid.measures(lost) is None


def test_a_study_goes_on_where_it_was_and_ends_with_its_tables(non_iid, told, tmp_path, capsys):
    results = tmp_path / "deep" / "results.jsonl"
    study = non_iid.Study(SMALL, BOTH, rates=(0.05, 0.2), adam_rates=(1e-3,), seeds=(0, 1), held_out=300)
    assert not non_iid.carry_out(study, results, limit_s=0.0)  # no time, no run
    only_adam = replace(study, stages=BOTH[1:])
    assert len(non_iid.carry_out(only_adam, results)) == 4
    torn = results.read_text()[:-40]  # killed while the last line was written
    results.write_text(torn)
    capsys.readouterr()
    done = non_iid.carry_out(study, results, jobs=2)
    printed = capsys.readouterr().out
    assert "3 of 20 runs are done already" in printed
    assert "all runs are done" in printed
    assert printed.count("accuracy") == 17  # the 16 runs of the other stage, and the torn one
    assert len(done) == study.total() == 20
    lines = results.read_text().splitlines()
    assert lines[:3] == torn.splitlines()[:3]
    assert non_iid.read(results) == done
    assert non_iid.carry_out(study, results) == done
    assert results.read_text().splitlines() == lines  # nothing was done twice

    for method in non_iid.COMPARED:
        tuned = [done[run.name] for run in study.tuning("by-energy 1", method)]
        best = max(tuned, key=lambda one: np.mean(one["curve"]["accuracy"][-5:]))
        finals = told.select(done, part="final", method=method)
        assert [(one["rate"], one["seed"]) for one in finals] == [(best["rate"], 0), (best["rate"], 1)]
    text = told.tables(done)
    assert text.splitlines()[4].startswith("| by-energy 1 | ")
    assert "nan" not in text
    assert text.count("**") == 2 * len(non_iid.COMPARED)  # one chosen rate a method
    mean = np.mean([np.mean(one["curve"]["accuracy"][-5:]) for one in told.select(done, part="final", method="greedy")])
    assert f"{100 * mean:.1f} ± " in text.splitlines()[4]


def test_lines_of_another_set_up_do_not_count(non_iid, runs_of, told, tmp_path):
    results = tmp_path / "results.jsonl"
    for rounds in (20, 30):
        runs_of.append(results, line(non_iid, [0.5], settings={"rounds": rounds}))
    assert [one["settings"] for one in non_iid.read(results, {"rounds": 20}).values()] == [{"rounds": 20}]
    assert [one["settings"] for one in non_iid.read(results).values()] == [{"rounds": 30}]  # those of the last line
    assert non_iid.read(tmp_path / "none.jsonl") == {}
    assert told.tables({}) == "no runs yet"


def test_the_tables_are_printed_from_the_results_file_alone(non_iid, runs_of, tmp_path, monkeypatch, capsys):
    results = tmp_path / "results.jsonl"
    runs_of.append(results, line(non_iid, [0.25], part="final"))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "table", "--results", str(results)])
    non_iid.main()
    assert "| by-energy 1 |  | 25.0 / 0.0 / 0.75 |  |  |" in capsys.readouterr().out


def test_the_json_has_every_run_and_the_figure_is_drawn_from_it(non_iid, runs_of, told, tmp_path, monkeypatch):
    results, short, picture = (tmp_path / name for name in ("results.jsonl", "short.json", "picture.png"))
    finals = [line(non_iid, [0.25], part="final", method=method) for method in non_iid.COMPARED]
    silent = line(non_iid, [0.5], rate=0.3)
    silent["curve"]["train_loss"] = [[None, None]]
    for one in [*finals, silent, line(non_iid, [0.5], rate=0.5, diverged="lost")]:
        runs_of.append(results, one)
    for command, source, out in (("json", results, short), ("figure", short, picture)):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), command, "--results", str(source), "--out", str(out)])
        non_iid.main()
    runs = json.loads(short.read_text())["runs"]
    assert runs == told.short_runs(results)
    assert runs[0] == {
        "part": "final", "split": "by-energy 1", "method": "algorithm1", "client": "sgd", "rate": 0.1, "seed": 0,
        "last": 0.25, "last5": 0.25, "worst": 0.25, "rare": 0.25, "train_loss": 0.75, "wiggle": 0.0,
    }  # fmt: skip
    assert [run["train_loss"] for run in runs if run["rate"] == 0.3] == [None]
    assert [run["diverged"] for run in runs if run["rate"] == 0.5] == [True]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_and_figure_need_to_know_where_to(non_iid, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "figure"])
    with pytest.raises(SystemExit):
        non_iid.main()
    assert "figure needs --out" in capsys.readouterr().err


def test_the_page_says_what_the_json_says(told):
    """The published table of optimisers, worked out again from the JSON of the study that made it."""
    docs = SCRIPT.parents[1] / "docs" / "results"
    runs, page = told.short_runs(docs / "non_iid-first.json"), (docs / "non_iid.md").read_text(encoding="utf-8")
    shown = [run for run in runs if run["part"] in ("adam", "control")]
    assert shown
    for run in shown:
        row = next(r for r in page.splitlines() if r.startswith(f"| {run['split']}, {run['client']} {run['rate']:g}"))
        assert f"{100 * run['last5']:.1f} / {100 * run['rare']:.1f}" in row
