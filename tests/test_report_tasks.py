"""Runs without an accuracy: what is shown of them is their loss, for which lower is better, and in no percent."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import report_runs
from browser import Browser, find_chromium
from everfed.cli import main
from everfed.data.federated import from_arrays
from everfed.errors import InputError
from everfed.learning.metrics import Metrics
from everfed.report.data import page_data
from everfed.report.figure import figure
from everfed.report.measures import reached, with_measures
from everfed.report.page import page
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import find_runs, open_run
from everfed.studies.comparison import differences, summarize
from everfed.studies.tuning import score
from everfed.studies.yardstick import ACCURACY, LOSS, yardstick

BASE = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=4, eval_every=2, device="cpu")
TOML = """
rounds = 6
eval_every = 1
local_steps = 1
device = "cpu"
model = {kind = "mlp"}
data = {kind = "folder", path = "samples"}
client = {kind = "sgd", lr = 0.05}
fleet = {kind = "cycles", clients = 4, cycles = [1, 2]}
"""


@pytest.fixture(scope="module")
def everfed(tmp_path_factory):
    """Runs the command in this process, in a folder with a regression of four clients: (exit code, output)."""
    folder = tmp_path_factory.mktemp("regression")
    rng = np.random.default_rng(0)
    (folder / "samples").mkdir()
    x = rng.normal(size=(80, 3)).astype(np.float32)
    arrays = {"x": x, "y": 5 + x @ np.ones(3, np.float32), "client": np.repeat(np.arange(4), 20)}
    for name, values in arrays.items():
        np.save(folder / "samples" / f"{name}.npy", values)
    (folder / "regression.toml").write_text(TOML)

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
            patch.chdir(folder)
            patch.setattr(sys, "argv", ["everfed", *arguments])
            patch.setenv("COLUMNS", "200")
            code = 0
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        return code, printed.getvalue()

    call.folder = folder
    return call


@pytest.fixture(scope="module")
def compared(everfed) -> tuple[str, Path]:
    """A comparison of two methods under two seeds: what it prints, and its folder."""
    options = ("--methods", "algorithm1,greedy", "--seeds", "2", "--jobs", "1", "--out", "out")
    code, printed = everfed("compare", "regression.toml", *options)
    assert code == 0
    return printed, everfed.folder / "out"


def regressions(seeds=(0, 1)):
    """Losses from 2.3 down to 0.7, in which greedy is always a tenth higher; of two groups, one a half higher."""
    base = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=20, eval_every=5, device="cpu")
    out = []
    for method, more in (("algorithm1", 0.0), ("greedy", 0.1)):
        for seed in seeds:
            run = report_runs.untrained(replace(base, seed=seed).with_method(method), f"{method}-{seed}")
            rounds = [replace(r, metrics=r.metrics and plain(r.metrics.loss + more + seed / 100)) for r in run.rounds]
            out.append(replace(run, rounds=rounds))
    return out


def classification():
    return report_runs.untrained(Experiment(fleet=CycleFleet(4, (1, 2)), rounds=20, device="cpu"))


def plain(loss):
    return Metrics(loss, group_loss={"E=1": loss, "E=2": loss + 0.5}, own={"mae": loss / 2, "r2": 1 - loss})


def test_runs_are_judged_by_what_all_of_them_have():
    classes, regression = [classification()], regressions()[:1]
    bare = [replace(classes[0], rounds=[replace(r, metrics=None) for r in classes[0].rounds])]
    assert yardstick(classes) is yardstick([*classes, *bare]) is yardstick(bare) is ACCURACY
    assert yardstick(regression) is yardstick([*regression, *bare]) is yardstick([*classes, *regression]) is LOSS


def test_lower_losses_are_better_and_the_worst_group_has_the_highest():
    assert LOSS.worst_group(plain(1.0)) == 1.5
    assert LOSS.worst_group(Metrics(1.0)) is None
    assert LOSS.goal([2.0, 1.0, None, float("nan")]) == pytest.approx(1.1)
    assert LOSS.goal([-1.0]) == pytest.approx(-0.9)  # a likelihood's loss may be negative
    assert LOSS.reaches(1.0, 1.1)
    assert not LOSS.reaches(1.2, 1.1)
    assert not LOSS.reaches(None, 1.1)
    assert LOSS.text(0.25) == "0.25"
    assert ACCURACY.text(0.25) == "25.0"


def test_a_summary_of_regressions_has_losses_groups_and_further_metrics():
    labelled = [(run.experiment.method, run) for run in regressions()]
    found = with_measures(summarize(labelled), labelled)
    row = found["greedy"]
    assert row["loss"]["mean"] == pytest.approx(0.805)
    assert row["worst_group_loss"]["mean"] == pytest.approx(1.305)
    assert row["group_loss"]["E=2"]["mean"] == pytest.approx(1.305)
    assert row["metrics"]["mae"]["mean"] == pytest.approx(0.4025)
    assert not any("accuracy" in key for key in row)
    assert row["to_target"]["loss"] == pytest.approx(0.7755)  # a tenth above the best, 0.705
    assert row["to_target"]["reached"] == 0
    assert found["algorithm1"]["to_target"]["reached"] == 2
    assert reached(labelled[0][1], 1.5, LOSS).round == 9  # the first at or below it: 2.3 - 1.6 * 10 / 20
    (apart,) = differences(labelled, "algorithm1").values()
    assert apart["loss"]["mean"] == pytest.approx(0.1)
    assert apart["loss"]["pairs"] == 2


def test_groups_that_nobody_knows_are_no_zeros():
    run = classification()
    blind = replace(
        run, rounds=[replace(r, metrics=r.metrics and Metrics(r.metrics.loss, r.metrics.accuracy)) for r in run.rounds]
    )
    row = summarize([("mine", blind)])["mine"]
    assert row["worst_group_accuracy"] is None
    assert row["group_accuracy"] == {}


def test_a_comparison_prints_and_stores_losses(compared):
    printed, out = compared
    assert "worst group" in printed
    assert "in loss" in printed
    assert "mae" in printed
    assert "2 seeds" in printed
    assert "accuracy" not in printed
    assert "percentage" not in printed
    summary = json.loads((out / "summary.json").read_text())
    assert summary["measure"] == {"name": "loss", "higher_is_better": False, "percent": False}
    stored = [open_run(path) for path in find_runs(out)]
    for method, row in summary["methods"].items():
        losses = [run.final.loss for run in stored if run.experiment.method == method]
        assert row["loss"]["mean"] == pytest.approx(np.mean(losses))
        assert row["seeds"] == [0, 1]
    assert Path(out.parent / summary["figure"]).stat().st_size > 10_000
    assert score(stored[0]) == pytest.approx(-stored[0].rounds[-1].metrics.loss)


def test_lists_show_the_loss_and_beside_it_accuracies_where_some_have_them(compared, everfed):
    rows = json.loads(everfed("runs", "out", "--json")[1])
    assert all(row["accuracy"] is None and row["loss"] > 0 and set(row["metrics"]) == {"mae", "r2"} for row in rows)
    listed = everfed("runs", "out")[1]
    assert f"{rows[0]['loss']:.4g}" in listed
    assert "accuracy" not in listed
    code, printed = everfed("run", "digits", "--rounds", "1", "--out", "classes")
    assert code == 0
    assert "test accuracy" in printed
    both = everfed("runs", "out", "classes")[1]
    for words in ("accuracy", "worst", "group loss"):  # headings may take two lines
        assert words in both


def test_a_run_shows_its_groups_losses_and_metrics(everfed):
    code, printed = everfed("run", "regression.toml", "--out", "alone")
    final = open_run(everfed.folder / "alone").final
    assert code == 0
    assert "accuracy" not in printed
    for value in (final.loss, *final.group_loss.values()):
        assert f"{value:.4f}" in printed
    assert "test mae" in printed
    assert "test r2" in printed


def test_tuning_shows_losses_and_takes_the_lowest(everfed):
    options = ("--methods", "greedy", "--seeds", "7", "--grid", "client.lr=0.001,0.05", "--extend", "0", "--jobs", "1")
    code, printed = everfed("tune", "regression.toml", *options, "--validation", "0.3", "--out", "tuned")
    assert code == 0
    assert "validation loss" in printed
    assert "%" not in printed
    found = json.loads((everfed.folder / "tuned" / "tuned.json").read_text())
    assert found["metric"].startswith("minus the validation loss")
    assert found["best"]["greedy"]["settings"] == {"client.lr": 0.05}  # the targets are far from zero: faster is better
    assert all(trial["mean"] < 0 for trial in found["trials"])


def test_a_figure_of_losses_is_drawn_and_one_of_nothing_refused(tmp_path):
    text = figure(regressions(), tmp_path / "figure.svg").read_text()
    assert "Test loss" in text
    assert "Final loss by energy group" in text
    assert "accuracy" not in text
    assert "(%)" not in text
    bare = [replace(run, rounds=[replace(r, metrics=None) for r in run.rounds]) for run in regressions()]
    with pytest.raises(InputError, match="they were not evaluated"):
        figure(bare, tmp_path / "nothing.svg")


def test_the_pages_data_are_of_losses():
    data = page_data(regressions())
    assert data["measure"]["name"] == "loss"
    assert data["target"] == pytest.approx(0.7755)
    first = data["lines"][0]
    assert first["accuracy"] is None
    assert first["final"]["worst_group"]["mean"] == pytest.approx(1.205)
    assert first["groups"]["E=2"]["mean"] == pytest.approx(1.205)
    assert first["final"]["metrics"]["r2"]["mean"] == pytest.approx(0.295)
    assert data["runs"][0]["loss"][-1] == pytest.approx(0.7)
    assert data["differences"]["rows"][0]["loss"]["mean"] == pytest.approx(0.1)
    mixed = page_data([*regressions(), classification()])
    assert mixed["measure"]["name"] == "loss"
    assert "loss" in mixed["headline"]


@pytest.mark.long
@pytest.mark.skipif(find_chromium() is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_the_page_of_a_regression_speaks_of_its_loss_alone(tmp_path):
    browser = Browser(find_chromium() or "", tmp_path / "profile")
    try:
        browser.open(page(regressions(), tmp_path / "page.html"))
        browser.settle()
        shown = browser.run("document.body.innerText.toLowerCase()")
        assert "accuracy" not in shown
        assert "percentage points" not in shown
        assert "loss by energy group" in shown
        assert "target loss" in shown
        assert "mae" in shown
        assert browser.run("document.getElementById('target').value") == "0.7755"
        cell = (
            'document.querySelector(\'#result-table tr[data-line="{}"] td[data-column="rounds to target"]\').innerText'
        )
        assert browser.run(cell.format(0)) == "20"
        assert browser.run(cell.format(1)) == "never"
        browser.run(
            "(t => { t.value = '1.5'; t.dispatchEvent(new Event('input')); })(document.getElementById('target'))"
        )
        assert browser.run(cell.format(0)) == "12.5 ± 3.5"  # after 10 rounds, and with the other seed after 15
        assert browser.complaints() == []
    finally:
        browser.close()


def test_runs_on_several_data_sets_are_not_ranked_in_the_headline():
    digits = report_runs.untrained(replace(BASE, seed=1))
    rows = from_arrays([(np.zeros((4, 2)), [0, 1, 0, 1])] * len(digits.experiment.make_fleet()), name="mine <b>")
    other = report_runs.untrained(replace(BASE, data=rows, model="logistic"))
    assert "not ranked" in page_data([digits, other])["headline"]
    assert "mine <b>" in page_data([digits, other])["headline"]
    assert "reaches" in page_data([digits])["headline"]


def test_of_many_losses_the_headline_names_the_best_and_the_last():
    runs = []
    for i in range(9):
        run = report_runs.untrained(replace(BASE, local_steps=i + 1))
        ended = [replace(r, metrics=r.metrics and Metrics(0.5 + i, None, None, None, None, None)) for r in run.rounds]
        runs.append(replace(run, rounds=ended))
    said = page_data(runs)["headline"]
    assert "(6 more lie between)" in said
    assert all(f" {loss}" in said for loss in ("0.5", "1.5", "8.5"))
    assert " 2.5" not in said
