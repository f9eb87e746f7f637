"""Stored runs are compared with the numbers of `everfed compare`, wherever they lie and however they are given."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import everfed as ef
import report_runs
from everfed.errors import EverfedWarning, InputError
from everfed.learning.metrics import Metrics
from everfed.report.data import page_data
from everfed.report.table import difference_text
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.stats import paired
from everfed.studies.yardstick import ACCURACY

SMALL = Experiment(fleet=CycleFleet(4, (1, 4)), rounds=8, eval_every=4, device="cpu", client=ef.SGD(0.1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def made(folder):
    return ef.compare(SMALL, methods=["greedy", "algorithm1", "wait-for-all"], seeds=3, out=folder)


def test_the_numbers_are_those_of_the_comparison_itself(made, folder):
    for given in (folder, [folder], made.runs, [run.path for run in made.runs], [*made.runs, folder]):
        found = ef.compare_runs(given)
        assert found.reference == made.reference == "algorithm1"
        assert found.summary == made.summary
        assert found.differences == made.differences
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["differences"]["methods"] == found.differences


def test_differences_are_paired_over_seeds(made):
    greedy, ours = ({r.experiment.seed: r.final.accuracy for r in made.runs if r.experiment.method == name}
                    for name in ("greedy", "algorithm1"))  # fmt: skip
    by_hand = paired([greedy[s] for s in range(3)], [ours[s] for s in range(3)])
    found = ef.compare_runs(made.runs)
    assert found.differences["greedy"]["accuracy"]["mean"] == by_hand.mean
    assert found.differences["greedy"]["accuracy"]["p"] == by_hand.p
    row = found.to_frame().loc["greedy"]
    assert row["accuracy_difference"] == by_hand.mean
    assert row["accuracy_p"] == by_hand.p
    assert row["seeds"] == 3


def ended(method, seed, height, **settings):
    """A run that was not trained, with this final accuracy."""
    one = replace(SMALL, seed=seed, **settings).with_method(method)
    run = report_runs.untrained(one, name=f"{method}-{seed}-{height}-{settings}")
    metrics = Metrics(1 - height, height, (height,) * 10, (1.0,) * 10, {"E=1": height}, {"E=1": 1.0})
    return replace(run, rounds=[replace(r, metrics=r.metrics and metrics) for r in run.rounds])


def spread_over(method, seeds, **settings):
    return [ended(method, seed, 0.4 + 0.01 * (seed**2 * sum(map(ord, method)) % 37), **settings) for seed in seeds]


def printed(found):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(found.table())
    return console.export_text()


def cells(text, label, between):
    """The row that begins with a label, cell by cell."""
    (row,) = [line for line in text.splitlines() if line.strip(" │").startswith(label)][-1:]
    return [cell.strip() for cell in re.split(between, row.strip(" │"))]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(range(5), (2, 3, 4, 7)), (range(5), range(5)), (range(4), range(3)), ((0, 1), (1, 2))]
)
def test_a_difference_of_fewer_pairs_than_seeds_says_how_many(ours, theirs):
    found = ef.compare_runs([*spread_over("algorithm1", ours), *spread_over("greedy", theirs)])
    pairs = len({*ours} & {*theirs})
    assert found.differences["greedy"]["accuracy"]["pairs"] == pairs
    assert found.to_frame().loc["greedy"]["accuracy_pairs"] == pairs
    header, row = (cells(repr(found), name, r"\s{2,}") for name in ("method", "Benchmark 1 (greedy)"))
    assert ("pairs" in header) == (len(ours) != pairs or len(theirs) != pairs)
    if "pairs" in header:
        assert row[header.index("pairs")] == str(pairs)
    assert f"{pairs} paired seed" in " ".join(printed(found).split())


def test_pairs_are_a_column_of_the_table_where_methods_differ_in_them():
    runs = [*spread_over("algorithm1", range(5)), *spread_over("greedy", range(5)), *spread_over("fedavg", (2, 3, 9))]
    text = printed(ef.compare_runs(runs))
    rows = {
        name: cells(text.split("difference from")[1].split("energy in")[0], name, "│") for name in ("Benchm", "FedA")
    }
    assert [row[1] for row in rows.values()] == ["5", "2"]


def test_a_method_with_one_seed_in_common_is_no_test_that_others_are_corrected_for():
    runs = [*spread_over("algorithm1", range(5)), *spread_over("greedy", range(5))]
    alone = ef.compare_runs(runs)
    both = ef.compare_runs([*runs, *spread_over("fedavg", (4, 5, 6))])
    for name in ("accuracy", "worst_group_accuracy"):
        one = both.differences["fedavg"][name]
        assert (one["pairs"], one["p"], one["p_holm"]) == (1, None, None)
        found = both.differences["greedy"][name]
        assert found == alone.differences["greedy"][name]
        assert found["p_holm"] == found["p"]
    assert "Holm-corrected for 1 comparison;" in printed(both)
    (shown,) = [row for row in page_data(both.runs)["differences"]["rows"] if "greedy" in row["label"]]
    assert shown["accuracy"] == alone.differences["greedy"]["accuracy"]  # the page agrees


def test_a_constant_difference_is_a_test_that_counts():
    ours = spread_over("algorithm1", range(3))
    constant = [ended("fedavg", run.experiment.seed, run.final.accuracy + 0.1) for run in ours]
    found = ef.compare_runs([*ours, *spread_over("greedy", range(3)), *constant]).differences
    assert found["fedavg"]["accuracy"]["p"] is None
    assert found["greedy"]["accuracy"]["p_holm"] == pytest.approx(min(1, 2 * found["greedy"]["accuracy"]["p"]))


def test_long_labels_wrap_and_numbers_stay_whole():
    settings = [
        {"client": ef.SGD(lr), "local_steps": n, "batch_size": b} for lr in (0.05, 0.1) for n in (1, 4) for b in (8, 16)
    ]
    runs = [run for own in settings for run in spread_over("algorithm1", range(3), **own)]
    found = ef.compare_runs([*runs, *spread_over("greedy", (1, 2), **settings[0])])
    text = repr(found)
    assert "p (Holm)" in text
    assert max(map(len, text.splitlines())) <= 100
    whole = " ".join(text.split())
    for label, row in found.differences.items():
        assert difference_text(row["accuracy"], ACCURACY) in text
        assert all(part in whole for part in label.split(" · "))


def test_runs_that_are_not_done_are_told_in_words():
    runs = spread_over("algorithm1", range(5)) + spread_over("greedy", range(2))
    states = ["done", "diverged", "diverged", "stopped", "done", "done", "done"]
    found = ef.compare_runs([replace(run, state=state) for run, state in zip(runs, states, strict=True)])
    assert "algorithm1: seeds 1, 2 diverged, seed 3 stopped" in repr(found)
    assert repr(ef.compare_runs(runs[:1])).startswith("Comparison of 1 run, test set")


def test_any_label_can_be_the_reference(made):
    found = ef.compare_runs(made.runs, reference="greedy")
    assert found.differences.keys() == {"algorithm1", "wait-for-all"}
    ours = ef.compare_runs(made.runs).differences["greedy"]["accuracy"]["mean"]
    assert found.differences["algorithm1"]["accuracy"]["mean"] == pytest.approx(-ours)
    with pytest.raises(InputError, match="Did you mean 'greedy'"):
        ef.compare_runs(made.runs, reference="greedi")


def test_runs_of_one_method_are_told_apart_by_their_settings(made, tmp_path):
    ef.simulate(replace(SMALL, client=ef.SGD(0.2)), out=tmp_path / "faster")
    found = ef.compare_runs([*(run for run in made.runs if run.experiment.method == "algorithm1"), tmp_path])
    assert [len(row["seeds"]) for row in found.summary.values()] == [3, 1]
    assert all("client.lr" in label for label in found.summary)
    (difference,) = found.differences.values()
    assert difference["accuracy"]["pairs"] == 1


def test_a_folder_without_runs_and_damaged_runs_are_said(made, tmp_path):
    with pytest.raises(InputError, match="there are no runs in"):
        ef.compare_runs(tmp_path)
    with pytest.raises(InputError, match="no run to compare"):
        ef.compare_runs([])
    with pytest.raises(InputError, match="give stored runs"):
        ef.compare_runs([3])
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "experiment.toml").write_text("rounds = -1\n")
    with pytest.warns(EverfedWarning, match="1 of 1 runs in .* cannot be read"):
        found = ef.compare_runs([*made.runs, tmp_path])
    assert len(found.runs) == len(made.runs)


def test_models_that_were_made_for_each_seed_are_told(tmp_path):
    """Each has random weights of its own, so the seeds would stay apart without a word."""
    data = ef.from_arrays([(np.eye(4, 3), [0, 1, 2, 0])] * 2, test=(np.eye(3), [0, 1, 2]))
    fleet = ef.Fleet.from_cycles([1, 2])

    def trained(make, where):
        for seed in (0, 1):
            ef.simulate(make(), data, fleet, rounds=2, batch_size=2, seed=seed, out=tmp_path / where / str(seed))
        return ef.compare_runs(tmp_path / where)

    apart = trained(lambda: nn.Linear(3, 3), "modules")
    assert len(apart.summary) == 2
    assert any("2 models 'Linear' with other weights" in note for note in apart.notes)
    together = trained(lambda: linear, "functions")
    assert [len(row["seeds"]) for row in together.summary.values()] == [2]
    assert together.notes == []


def linear():
    return nn.Linear(3, 3)


def test_unknown_numbers_of_a_frame_are_nan_so_that_columns_stay_numbers():
    frame = ef.compare_runs([*spread_over("algorithm1", (0,)), *spread_over("greedy", (0,))]).to_frame()
    assert np.isnan(frame.loc["greedy", "accuracy_p"])
    assert all(kind.kind in "if" for kind in frame.dtypes)


def test_what_is_not_compared_is_said_first_and_names_few_labels():
    runs = [run for held in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6) for run in spread_over("greedy", (0,), validation=held)]
    (note,) = [note for note in ef.compare_runs(runs).notes if "same samples" in note]
    assert note.startswith("Not evaluated on the same samples")
    assert note.endswith("and 2 more.")
