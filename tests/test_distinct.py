"""A report counts every run once, however often it is met, and averages nothing that does not belong together."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import report_runs
from everfed.cli import main
from everfed.errors import EverfedWarning
from everfed.learning.optim import SGD
from everfed.methods import METHODS
from everfed.report.data import page_data
from everfed.report.distinct import distinct
from everfed.report.figure import figure
from everfed.report.lines import lines
from everfed.report.page import page
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import open_run, stored_rounds

SMALL = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=8, local_steps=1, batch_size=2, eval_every=2, device="cpu")


def made(seed=0, path="a", state="done", until=None, **changes):
    run = report_runs.untrained(replace(SMALL, seed=seed, **changes), path, state)
    return replace(run, rounds=run.rounds[:until])


def altered(run, round, path, **changes):
    """The same run with one record changed."""
    records = [replace(r, **changes) if r.round == round else r for r in run.rounds]
    return replace(run, rounds=records, path=Path(path))


def test_two_seeds_are_two_runs():
    found = distinct([made(0), made(1, "b")])
    assert len(found.runs) == 2
    assert (found.copies, found.contradicted, found.notes) == ([[], []], [False, False], [])


@pytest.mark.parametrize(
    "copy",
    [
        made(path="b"),
        replace(made(path="b"), environment={"started": "later"}),
        made(path="b", device="cuda:1"),
        made(path="b", eval_every=4),  # looked at less often
        made(path="b", eval_every=3),  # and in other rounds
        made(path="b", state="stopped", until=3),
        made(path="b", state="running", until=0),
        altered(made(), 2, "b", seconds=99.0),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_copy_counts_once_and_the_one_that_goes_furthest_is_kept(copy, first):
    run = made()
    found = distinct([run, copy] if first else [copy, run])
    (kept,) = found.runs
    assert (kept.state, len(kept.rounds)) == ("done", 8)
    (note,) = found.notes
    assert "'a'" in note
    assert "'b'" in note
    assert "not counted again" in note
    if len(copy.rounds) < 8:
        assert (kept.path, found.copies) == (Path("a"), [[Path("b")]])
        assert "an earlier state of" in note
    data = page_data([run, copy])
    assert data["lines"][0]["seeds"] == [0]
    assert data["lines"][0]["final"]["accuracy"]["runs"] == 1
    assert data["summary"].startswith("1 run, 1 method, 1 seed")
    assert data["notes"]


def test_of_three_copies_two_are_left_out():
    found = distinct([made(path=name) for name in "abc"])
    assert [run.path.name for run in found.runs] == ["a"]
    assert found.copies == [[Path("b"), Path("c")]]
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    "changes", [{"update_norm": 0.2}, {"round_weight": 9.0}, {"train_loss": float("nan")}, {"dropped": (1,)}]
)
def test_runs_that_contradict_each_other_are_told_and_never_averaged(changes, tmp_path):
    found = [made(0), altered(made(0), 5, "b", **changes), made(1, "c")]
    known = distinct(found)
    assert len(known.runs) == 3
    assert known.contradicted == [True, True, False]
    (note,) = known.notes
    assert "'a', 'b' have the same experiment and seed (Algorithm 1, seed 0)" in note
    assert "from round 5 on" in note
    assert {line.label: len(line.runs) for line in lines(found)} == {
        "Algorithm 1 · in a": 1, "Algorithm 1 · in b": 1, "Algorithm 1": 1,
    }  # fmt: skip
    assert "different records from round 5" in page(found, tmp_path / "page.html").read_text()
    with pytest.warns(EverfedWarning, match="different records from round 5"):
        figure(found, tmp_path / "figure.png")


def test_what_is_not_a_number_equals_itself():
    run = altered(made(), 3, "a", train_loss=float("nan"))
    assert len(distinct([run, replace(run, path=Path("b"))]).runs) == 1


def test_settings_that_look_alike_when_shortened_are_not_averaged():
    rates = (0.123456789, 0.123456788)
    found = [made(seed, f"{lr}-{seed}", client=SGD(lr=lr)) for lr in rates for seed in (0, 1)]
    drawn = {line.label: [run.experiment.client.lr for run in line.runs] for line in lines(found)}
    assert drawn == {f"Algorithm 1 · client.lr={lr}": [lr, lr] for lr in rates}


def test_methods_of_one_title_are_told_apart(monkeypatch):
    monkeypatch.setitem(METHODS, "twin", replace(METHODS["greedy"], server=METHODS["greedy-normalized"].server))
    monkeypatch.delitem(METHODS, "greedy-normalized")
    found = [report_runs.untrained(SMALL.with_method(name), name) for name in ("greedy", "twin")]
    assert [line.label for line in lines(found)] == [
        "Benchmark 1 (greedy) (greedy)", "Benchmark 1 (greedy) (twin)",
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"rounds": 6}, {"fleet": CycleFleet(4, (1, 3))}, {"batch_size": 3}])
def test_runs_of_other_settings_are_lines_of_their_own(change):
    assert [len(line.runs) for line in lines([made(0), made(0, "b", **change)])] == [1, 1]


def test_runs_of_two_versions_in_one_line_are_told():
    versions = [replace(made(s, str(s)), environment={"packages": {"everfed": f"0.{s}"}}) for s in (0, 1)]
    (note,) = page_data(versions)["notes"]
    assert note == "Algorithm 1: its runs were made by different versions of everfed: 0.0, 0.1."


# -- folders, by the command -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for _ in stored_rounds(replace(SMALL, seed=seed), root / "out" / f"seed{seed}"):
            pass
    shutil.copytree(root / "out" / "seed0", root / "elsewhere" / "copy")
    (root / "link").symlink_to(root / "out", target_is_directory=True)
    # The same run done again in another folder, cut off and resumed there.
    stops = iter([False, True])
    for _ in stored_rounds(replace(SMALL, seed=1), root / "again" / "mine", stop=lambda: next(stops)):
        pass
    for _ in stored_rounds(replace(SMALL, seed=1), root / "again" / "mine"):
        pass
    assert open_run(root / "again" / "mine").state == "done"
    return root


@pytest.mark.parametrize(
    ("given", "notes"),
    [
        (["out"], 0),
        (["out", "out"], 1),
        (["out", "./out/../out"], 1),
        (["out", "{root}/out"], 1),
        (["link", "out"], 1),
        (["out", "out/seed0"], 1),
        (["out/seed0", "out"], 1),
        (["out", "elsewhere"], 1),
        (["elsewhere", "out"], 1),
        (["out", "again"], 1),
        (["."], 2),
        ([".", "link", "elsewhere/copy"], 4),
    ],
)
def test_folders_that_lead_to_the_same_runs_count_them_once(folders, given, notes, monkeypatch, capsys):
    monkeypatch.chdir(folders)

    def everfed(command, *options):
        monkeypatch.setattr(sys, "argv", ["everfed", command, *(name.format(root=folders) for name in given), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        shown = capsys.readouterr()
        assert shown.err.count("note:") == notes
        return shown.out

    assert sorted(run["seed"] for run in json.loads(everfed("runs", "--json"))) == [0, 1]
    if notes == 1 and given[0] != "elsewhere":
        return
    everfed("figure", "-o", "figure.svg")
    everfed("report", "-o", "page.html")
    assert "2 runs, 1 method, 2 seeds" in Path("page.html").read_text()


def test_a_run_that_is_given_twice_is_not_called_its_own_copy():
    found = distinct([made(), made()])
    assert len(found.runs) == 1
    assert found.notes == ["'a' was given more than once, and is not counted again."]
