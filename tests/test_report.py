"""The figure and the page's data, against what the records say."""

from __future__ import annotations

import base64
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import report_runs
from everfed.data.augment import CropFlip
from everfed.data.datasets import DATASETS
from everfed.errors import InputError
from everfed.learning.metrics import Metrics
from everfed.learning.optim import SGD
from everfed.report.data import page_data
from everfed.report.figure import figure
from everfed.report.lines import curve, lines
from everfed.report.page import page
from everfed.report.raster import sample
from everfed.report.style import styles
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Bernoulli
from everfed.server.rules import Normalized


@pytest.fixture(scope="module")
def runs():
    return report_runs.trained()


@pytest.fixture(scope="module")
def data(runs):
    return page_data(runs)


def small(**changes) -> Experiment:
    return replace(Experiment(fleet=CycleFleet(8, (1, 2, 4)), rounds=24, eval_every=4, device="cpu"), **changes)


# The figure


@pytest.mark.parametrize(
    ("ending", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_a_figure_is_written_in_the_format_of_its_ending(runs, tmp_path, ending, magic):
    path = figure(runs, tmp_path / "new" / f"figure{ending}", "a title")
    assert path.read_bytes().startswith(magic)


def test_a_pdf_embeds_truetype_fonts_and_is_the_same_every_time(runs, tmp_path):
    first, second = (figure(runs, tmp_path / name).read_bytes() for name in ("a.pdf", "b.pdf"))
    assert b"/Type3" not in first
    assert b"/FontFile2" in first
    assert first == second


@pytest.mark.parametrize("name", ["figure.gif", "figure", "figure.html"])
def test_an_unknown_ending_is_refused_with_the_valid_ones(runs, tmp_path, name):
    with pytest.raises(InputError, match=r"\.pdf, \.png or \.svg"):
        figure(runs, tmp_path / name)


def test_a_figure_of_runs_without_metrics_is_refused(tmp_path):
    run = report_runs.untrained(small())
    bare = replace(run, rounds=[replace(r, metrics=None) for r in run.rounds])
    with pytest.raises(InputError, match="no accuracy or loss to draw: the runs diverged, or they were not evaluated"):
        figure([bare], tmp_path / "figure.png")
    with pytest.raises(InputError, match="no run to report on"):
        figure([], tmp_path / "figure.png")


def test_a_figure_of_one_run_of_unequal_runs_and_of_an_unnamed_method(tmp_path):
    whole = report_runs.untrained(small())
    stopped = replace(report_runs.untrained(small(seed=1)), state="stopped")
    stopped = replace(stopped, rounds=stopped.rounds[:13])
    unnamed = report_runs.untrained(small(policy=Bernoulli(), server=Normalized()))
    assert figure([whole], tmp_path / "one.svg").exists()
    text = figure([whole, stopped, unnamed], tmp_path / "three.svg").read_text()
    assert "Algorithm 1" in text
    assert "bernoulli+normalized" in text
    points = curve([whole, stopped], lambda m: m.accuracy)
    assert points is not None
    assert points.rounds.tolist() == [4, 8, 12]  # the rounds that both have


def test_one_seed_has_no_spread_on_the_page_or_in_the_picture(tmp_path):
    one, two = (report_runs.untrained(small(seed=seed)) for seed in (0, 1))
    line = page_data([one])["lines"][0]
    assert set(line["accuracy"]["sd"]) == {None}
    assert (line["final"]["accuracy"]["sd"], line["final"]["accuracy"]["runs"]) == (None, 1)
    assert all(group["sd"] is None for group in line["groups"].values())
    assert "1 seed" in figure([one], tmp_path / "one.svg").read_text()
    assert "mean over 2 seeds, 95 % interval of the mean" in figure([one, two], tmp_path / "two.svg").read_text()


def test_the_page_tells_paired_differences():
    runs = report_runs.trained()
    found = page_data(runs)["differences"]
    assert found["reference"] == "Algorithm 1"
    by = {(run.experiment.title, run.experiment.seed): run.final.accuracy for run in runs}
    seeds = sorted({seed for _, seed in by})
    for row in found["rows"]:
        expected = statistics.fmean(by[row["label"], s] - by["Algorithm 1", s] for s in seeds)
        assert row["accuracy"]["mean"] == pytest.approx(expected)
        assert row["accuracy"]["pairs"] == len(seeds)
    assert page_data(runs[:1])["differences"] is None


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ({}, {"validation": 0.1}, 0),
        ({"validation": 0.1}, {}, 0),
        ({"validation": 0.1}, {"validation": 0.2}, 0),
        ({"validation": 0.1}, {"validation": 0.1}, 3),
        ({"validation": 0.1}, {"validation": 0.1, "split_seed": 1}, 1),  # the seed that splits alike
        ({}, {"split_seed": 1}, 3),
        ({}, {"data": DATASETS["synthetic"]()}, 0),
        (
            {"data": DATASETS["mnist"](folder="a")},
            {"data": DATASETS["mnist"](folder="b", augment=CropFlip(24), train_limit=9)},
            3,
        ),
        (
            {"data": DATASETS["mnist"](), "validation": 0.1},
            {"data": DATASETS["mnist"](train_limit=9), "validation": 0.1},
            0,
        ),
    ],
)
def test_no_difference_is_taken_between_accuracies_on_other_samples(one, other, pairs):
    runs = [report_runs.untrained(small(seed=seed, **one), f"a{seed}") for seed in range(3)]
    runs += [report_runs.untrained(small(seed=seed, **other).with_method("greedy"), f"b{seed}") for seed in range(3)]
    found = page_data(runs)
    rows = found["differences"]["rows"] if found["differences"] else []
    assert [row["accuracy"]["pairs"] for row in rows] == [pairs] * (pairs > 0)
    assert any("Not evaluated on the same samples as Algorithm 1" in note for note in found["notes"]) == (pairs < 3)


def test_runs_on_held_out_samples_are_called_so(tmp_path):
    run = report_runs.untrained(small(validation=0.1))
    assert page_data([run])["evaluated_on"] == "validation"
    assert "Validation accuracy" in figure([run], tmp_path / "one.svg").read_text()


# Lines


def test_runs_are_grouped_by_method_and_by_settings_that_differ():
    found = [
        report_runs.untrained(small(seed=seed, client=SGD(lr=lr), eval_every=every))
        for lr in (0.1, 0.01) for seed, every in ((0, 4), (1, 2))
    ]  # fmt: skip
    found.append(report_runs.untrained(small(client=SGD(lr=0.1)).with_method("greedy")))
    labels = {line.label: len(line.runs) for line in lines(found)}
    assert labels == {
        "Algorithm 1 · client.lr=0.1": 2,
        "Algorithm 1 · client.lr=0.01": 2,
        "Benchmark 1 (greedy) · client.lr=0.1": 1,
    }
    # One line per method: rates tuned for each are no part of the names.
    assert [line.label for line in lines([found[0], found[1], found[-1]])] == ["Algorithm 1", "Benchmark 1 (greedy)"]
    apart = [found[2], found[3], found[-1]]
    assert [line.label for line in lines(apart)] == ["Algorithm 1", "Benchmark 1 (greedy)"]


def test_runs_of_one_experiment_carry_the_methods_title_alone(runs):
    assert [line.label for line in lines(runs)] == [
        "Algorithm 1", "Benchmark 1 (greedy)", "FedAvg (unlimited energy)",
    ]  # fmt: skip


def test_styles_do_not_repeat_a_colour_and_fedavg_is_dashed():
    looks = styles(["algorithm1", "fedavg", "algorithm1", "mine+sum", *(f"m{i}" for i in range(12))])
    assert len({s.colour for s in looks}) == len(looks)
    assert looks[1].dash
    assert looks[0].colour == "#0072B2"


# The page's data


def test_curves_are_means_and_sample_deviations_of_the_records(runs, data):
    for i, line in enumerate(data["lines"]):
        mine = runs[2 * i : 2 * i + 2]
        tables = [{r.round + 1: r for r in run.rounds if r.metrics} for run in mine]
        assert line["accuracy"]["rounds"] == list(tables[0])
        for j, done in enumerate(line["accuracy"]["rounds"]):
            for metric in ("accuracy", "loss"):
                values = [getattr(table[done].metrics, metric) for table in tables]
                assert line[metric]["mean"][j] == pytest.approx(statistics.fmean(values), rel=1e-4)
                assert line[metric]["sd"][j] == pytest.approx(statistics.stdev(values), rel=1e-4, abs=1e-9)
            spent = statistics.fmean(table[done].energy.spent for table in tables)
            assert line["loss"]["spent"][j] == pytest.approx(spent, rel=1e-4)


def test_final_numbers_are_those_of_the_records(runs, data):
    for i, line in enumerate(data["lines"]):
        mine = runs[2 * i : 2 * i + 2]
        final = line["final"]
        assert final["accuracy"]["mean"] == pytest.approx(statistics.fmean(r.final.accuracy for r in mine), rel=1e-4)
        worst = [min(r.final.group_accuracy.values()) for r in mine]
        assert final["worst_group"]["mean"] == pytest.approx(statistics.fmean(worst), rel=1e-4)
        assert final["participations"]["mean"] == pytest.approx(
            statistics.fmean(r.participations for r in mine), rel=1e-4
        )
        for key in ("harvested", "spent", "wasted"):
            assert final[key]["mean"] == pytest.approx(statistics.fmean(getattr(r.energy, key) for r in mine), rel=1e-4)
        for label, value in line["groups"].items():
            values = [r.final.group_accuracy[label] for r in mine]
            assert value["mean"] == pytest.approx(statistics.fmean(values), rel=1e-4)
        assert line["classes"] == pytest.approx(np.mean([r.final.class_accuracy for r in mine], axis=0), rel=1e-4)
    best = max(line["final"]["accuracy"]["mean"] for line in data["lines"])
    assert data["target"] == pytest.approx(0.9 * best, abs=5e-4)


def test_round_weights_are_counted_completely(runs, data):
    for i, line in enumerate(data["lines"]):
        weights = [r.round_weight for run in runs[2 * i : 2 * i + 2] for r in run.rounds]
        assert sum(line["weights"]["counts"]) == len(weights)
        assert line["weights"]["mean"] == pytest.approx(statistics.fmean(weights), rel=1e-4)
        assert line["weights"]["variance"] == pytest.approx(statistics.pvariance(weights), rel=1e-4, abs=1e-9)
    fedavg = data["lines"][2]["weights"]["counts"]
    assert sorted(fedavg)[-1] == 80  # every round has weight 1: one bin


def decoded(run, fleet) -> np.ndarray:
    """Scales [rounds, rows] as the page's script reads them."""
    picture, n = run["raster"], len(fleet["ids"])
    raw = np.frombuffer(base64.b64decode(picture.get("bits") or picture["codes"]), np.uint8)
    if "bits" in picture:
        bits = np.unpackbits(raw.reshape(picture["rounds"], -1), axis=1, bitorder="little")[:, :n]
        codes = bits * np.array(picture["row_scales"])
    else:
        codes = raw.reshape(picture["rounds"], n)
    return np.array([0.0, *picture["scales"]])[codes]


def test_the_raster_holds_every_participation_and_its_scale(runs, data):
    for run, shown in zip(runs, data["runs"], strict=True):
        fleet = data["fleets"][shown["fleet"]]
        assert fleet["cycles"] == sorted(fleet["cycles"])
        picture = decoded(shown, fleet)
        for record in run.rounds:
            expected = dict(zip(record.participants.tolist(), record.scales.tolist(), strict=True))
            row = picture[record.round]
            assert {fleet["ids"][k]: row[k] for k in np.flatnonzero(row)} == expected


def test_the_raster_keeps_scales_that_change_within_a_client():
    run = report_runs.untrained(small())
    changed = [replace(r, scales=r.scales * (1 + r.round % 3)) for r in run.rounds]
    data = page_data([replace(run, rounds=changed)])
    assert "codes" in data["runs"][0]["raster"]
    picture = decoded(data["runs"][0], data["fleets"][0])
    for record in changed:
        assert sorted(picture[record.round][picture[record.round] > 0]) == sorted(record.scales.tolist())


def test_battery_levels_follow_harvest_and_participation(runs, data):
    for run, shown in zip(runs, data["runs"], strict=True):
        if run.experiment.method == "fedavg":
            continue  # spends what is not there
        for column, client in enumerate(shown["battery"]["clients"]):
            harvested, left = shown["battery"]["harvested"][column], shown["battery"]["left"][column]
            for record in run.rounds[: shown["battery"]["rounds"]]:
                paid = harvested[record.round] - left[record.round]
                assert paid == pytest.approx(1.0 if client in record.participants else 0.0, abs=2e-3)


def test_the_headline_says_who_reaches_what(runs, data):
    first = data["lines"][0]["final"]
    accuracy, worst = (100 * first[name]["mean"] for name in ("accuracy", "worst_group"))
    said = f"Algorithm 1 reaches {accuracy:.1f} % (worst energy group {worst:.1f} %)"
    assert data["headline"].startswith(said)
    assert data["summary"] == "6 runs, 3 methods, 2 seeds; all done."


def test_settings_are_split_into_shared_and_differing(data):
    settings = data["settings"]
    assert settings["columns"] == ["method", "seeds"]
    assert settings["rows"][0] == ["Algorithm 1", "0, 1"]
    assert ["rounds", "40"] in settings["shared"]
    assert not any(key in ("seed", "policy.kind") for key, _ in settings["shared"])
    assert data["environments"][0]["values"] == [["python", "3.11"], ["packages.torch", "2.5"]]


def test_how_a_model_was_trained_is_shown_with_its_commas():
    how = {"trainer": "Kernels", "at_once": 8, "parts": ["0 Linear: kernel", "1 Tanh: torch, no kernel for it"]}
    run = replace(report_runs.untrained(small()), environment={"training": how})
    assert page_data([run])["environments"][0]["values"] == [
        ["training.trainer", "Kernels"],
        ["training.at_once", "8"],
        ["training.parts", "0 Linear: kernel; 1 Tanh: torch, no kernel for it"],
    ]


def test_the_audit_speaks_about_every_line(data):
    said = [line["verdict"]["verdict"] for line in data["lines"]]
    assert said[0].startswith("unbiased")
    assert said[1].startswith("biased")
    assert "spends energy that is not there" in said[2]


def test_unfinished_and_empty_runs_are_told(tmp_path):
    done = report_runs.untrained(small())
    running = report_runs.untrained(small(seed=1), state="running")
    running = replace(running, rounds=running.rounds[:10])
    empty = replace(running, rounds=[], experiment=small(seed=2))
    data = page_data([done, running, empty])
    assert "not all are done: 2 running, 1 done" in data["summary"]
    assert "1 run without a finished round left out" in data["summary"]
    # The one that is done makes the average; the other does not cut its curve.
    assert data["lines"][0]["loss"]["rounds"] == [4, 8, 12, 16, 20, 24]
    assert data["lines"][0]["final"]["accuracy"]["runs"] == 1
    assert data["notes"] == [
        "Omitted, since they have not finished a round: Algorithm 1, seed 2 (running).",
        "Algorithm 1: not done, and omitted from its averages: seed 1 (running).",
    ]
    assert [run["state"] for run in data["runs"]] == ["done", "running"]
    alone = page_data([running])
    assert "Where no run of a method is done, runs count with their last evaluation." in alone["summary"]
    assert alone["lines"][0]["loss"]["rounds"] == [4, 8]
    assert alone["notes"] == []
    with pytest.raises(InputError, match="none of the runs has finished a round"):
        page_data([empty])


def test_regression_missing_evaluations_and_nan_make_a_page(tmp_path):
    run = report_runs.untrained(small())
    regression = replace(run, rounds=[replace(r, metrics=r.metrics and Metrics(0.5)) for r in run.rounds])
    bare = replace(run, rounds=[replace(r, metrics=None) for r in run.rounds])
    diverged = replace(run, rounds=[replace(r, metrics=r.metrics and Metrics(math.nan)) for r in run.rounds])
    assert page_data([regression])["headline"] == "Final test loss: Algorithm 1 0.5."
    assert page_data([bare])["headline"] == "No run has been evaluated yet."
    for one in (regression, bare, diverged):
        json.dumps(page_data([one]), allow_nan=False)
        assert page([one], tmp_path / "page.html").exists()


# The page as a file


def test_texts_from_the_data_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    run = replace(
        report_runs.untrained(small()), path=Path(evil.replace("/", "\N{FULLWIDTH SOLIDUS}")), environment={evil: evil}
    )
    text = page([run], tmp_path / "page.html", title=evil).read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("<script") == 2  # the data and the page's own
    assert text.count("</script") == 2


def test_the_page_names_no_address_to_fetch_from(runs, tmp_path):
    text = page(runs, tmp_path / "page.html").read_text()
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == text.count("http-equiv")
    assert "default-src 'none'" in text


@pytest.mark.long
def test_twelve_runs_of_a_thousand_rounds_stay_under_five_megabytes(tmp_path):
    base = Experiment(rounds=1000, eval_every=1, device="cpu")
    found = [
        report_runs.untrained(replace(base, seed=seed).with_method(m))
        for m in ("algorithm1", "greedy", "wait-for-all", "fedavg") for seed in range(3)
    ]  # fmt: skip
    assert page(found, tmp_path / "page.html").stat().st_size < 5_000_000


def test_ten_thousand_clients_are_sampled_and_stay_small(tmp_path):
    run = report_runs.untrained(Experiment(fleet=CycleFleet(10_000), rounds=200, device="cpu"))
    data = page_data([run])
    fleet = data["fleets"][0]
    assert fleet["clients"] == 10_000
    assert len(fleet["ids"]) == 400
    assert [g["rows"] for g in fleet["groups"]] == [100] * 4
    assert data["lines"][0]["verdict"]["audited"] == 2000
    picture = decoded(data["runs"][0], fleet)
    row = {client: k for k, client in enumerate(fleet["ids"])}
    for record in run.rounds:
        assert np.flatnonzero(picture[record.round]).tolist() == sorted(
            row[c] for c in record.participants.tolist() if c in row
        )
    assert page([run], tmp_path / "page.html").stat().st_size < 1_000_000


def test_a_sample_keeps_small_energy_groups():
    fleet = CycleFleet(1000, (1,) * 199 + (7,)).build()
    chosen = sample(fleet, 50)
    assert len(chosen) <= 51
    assert fleet.cycles()[chosen].max() == 7


def test_long_runs_are_cut_and_thinned():
    run = report_runs.untrained(small(rounds=5000, eval_every=1))
    data = page_data([run])
    assert data["runs"][0]["raster"]["rounds"] == 2000
    assert data["runs"][0]["cut"]
    assert len(data["runs"][0]["rounds"]) == 2000
    assert data["runs"][0]["rounds"][-1] == 5000
