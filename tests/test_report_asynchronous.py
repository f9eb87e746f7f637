"""Reports, figures and screens of asynchronous runs, alone and beside runs with rounds."""

from __future__ import annotations

import base64
import functools
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import everfed as ef
from browser import Browser, find_chromium
from everfed.cli.app import app
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.work import Work
from everfed.errors import EverfedWarning
from everfed.report.clock import clock
from everfed.report.data import page_data
from everfed.report.figure import figure
from everfed.report.notes import silence
from everfed.report.page import page
from everfed.report.raster import batteries, raster
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.store.reading import StoredRun

BASE = Experiment(
    fleet=CycleFleet(8, (1, 2, 4)), rounds=24, local_steps=2, eval_every=6, batch_size=4, device="cpu",
    client=ef.SGD(0.05),
)  # fmt: skip
SOLAR = DeviceFleet(
    tuple(
        DeviceGroup(name=site, count=3, site=site, device="esp32", radio="lora-sf7", panel_wp=0.05, battery_wh=0.1)
        for site in ("miami", "greensboro")
    ),
    round_s=3600.0,
)


def trained(experiment: Experiment) -> StoredRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EverfedWarning)
        records = list(start(experiment))
    return StoredRun(records, {}, path=Path(f"{experiment.method}-{experiment.seed}"), experiment=experiment)


@functools.cache
def mixed() -> tuple[StoredRun, ...]:
    """Two methods with rounds and three without."""
    work = Work(0.4, spread=0.2)
    asynchronous = replace(BASE, fleet=CycleFleet(8, (1, 2, 4), arrivals="trickle"))
    return (
        *(trained(asynchronous.with_method(m)) for m in ("algorithm1", "fedavg")),
        *(trained(replace(asynchronous, work=work).with_method(m)) for m in ("renewal", "fedasync", "area")),
    )


@functools.cache
def solar() -> tuple[StoredRun, ...]:
    return tuple(trained(replace(BASE, fleet=SOLAR, rounds=48).with_method(m)) for m in ("algorithm1", "renewal"))


def test_only_lines_without_rounds_tell_what_arrives():
    data = page_data(mixed())
    assert [line["arrivals"] is not None for line in data["lines"]] == [False, False, True, True, True]
    assert data["clock"] == {
        "unit": "rounds",
        "per_round": 1.0,
        "asynchronous": True,
        "title": "time, rounds",
        "dark": [],
        "dates": [],
    }
    assert all(line["worst"]["rounds"] == [6, 12, 18, 24] for line in data["lines"])


def test_rates_weights_and_staleness_are_those_of_the_records():
    data = page_data(mixed())
    for run, line in zip(mixed()[2:], data["lines"][2:], strict=True):
        told, groups = line["arrivals"], run.experiment.make_fleet().groups()
        assert told["updates"]["mean"] == run.participations
        assert told["versions"]["mean"] == run.rounds[-1].arrived.version
        for group in groups:
            mine = [np.isin(r.participants, group.clients) for r in run.rounds]
            stale = np.concatenate([r.arrived.staleness[i] for r, i in zip(run.rounds, mine, strict=True)])
            scales = sum(r.scales[i].sum() for r, i in zip(run.rounds, mine, strict=True))
            each = len(group.clients) * len(run.rounds)
            found = told["groups"][group.label]
            assert found["rate"]["mean"] == pytest.approx(len(stale) / each, rel=1e-4)
            assert found["staleness"]["mean"] == pytest.approx(stale.mean(), rel=1e-4)
            if run.experiment.method == "area":  # whose weights are of differences
                assert found["weight"] is None
            else:
                assert found["weight"]["mean"] == pytest.approx(scales / each, rel=1e-4)
    renewal = data["lines"][2]["arrivals"]["groups"]
    assert all(0.75 < group["weight"]["mean"] <= 1.0 for group in renewal.values())


def test_updates_that_arrive_in_one_round_are_added_up_in_the_raster():
    often = trained(replace(BASE, mode="asynchronous", work=Work(0.25), rounds=6, eval_every=6).with_method("fedavg"))
    found = raster(often, np.arange(8))
    assert found["arrivals"] == [4 * 6 - 1] * 8  # the last one arrives when the run is over
    assert found["scales"] == [3.0, 4.0]
    codes = np.frombuffer(base64.b64decode(found["codes"]), np.uint8).reshape(6, 8)
    assert codes.tolist() == [[1] * 8] + [[2] * 8] * 5


def test_batteries_are_those_of_the_timeline():
    for run in solar():
        (told,) = page_data([run])["runs"]
        fleet = run.experiment.make_fleet()
        assert told["battery"]["rounds"] == 48
        assert np.all(np.array(told["battery"]["left"]) <= np.array(told["battery"]["harvested"]) + 1e-9)
        assert np.all(np.array(told["battery"]["harvested"]) <= fleet.capacity.max() + 1e-9)
    everybody = solar()[1]
    fleet = everybody.experiment.make_fleet()
    levels = batteries(everybody, fleet, range(len(fleet)))["left"]
    stored = sum(column[-1] * unit for column, unit in zip(levels, fleet.unit_j.tolist(), strict=True))
    assert stored == pytest.approx(everybody.energy.stored, rel=1e-2)


def test_fleets_of_devices_have_hours_and_nights():
    told = clock(solar())
    assert (told.unit, told.per_round, told.title) == ("hours", 1.0, "time, hours")
    fleet = SOLAR.build(2)
    harvests = np.array([fleet.harvest(r, 0).sum() for r in range(48)])
    dark = np.zeros(48, bool)
    for first, after in told.dark:
        dark[first:after] = True
    assert dark.tolist() == (harvests == 0).tolist()
    assert 10 < dark.sum() < 40
    longer = [replace(run, rounds=run.rounds * 3) for run in solar()]
    assert clock(longer).unit == "days"
    assert clock([*solar(), mixed()[0]]) == clock([mixed()[2]])  # rounds of different lengths: rounds


def test_pages_of_rounds_alone_stay_as_they_were():
    assert clock(mixed()[:2]).title == "rounds"


@pytest.mark.parametrize(
    ("runs", "said"), [(mixed, "time (rounds)"), (solar, "clock (48 hours); shaded: no device harvests")]
)
def test_a_figure_has_time_energy_and_the_worst_group(runs, said, tmp_path):
    text = figure(runs(), tmp_path / "figure.svg").read_text()
    assert text.count(said) == 2
    for words in ("Accuracy of the worst energy group", "energy spent (", "Final accuracy by energy group", "renewal"):
        assert words in text
    assert ">round<" not in text


def test_a_figure_of_rounds_alone_has_two_panels(tmp_path):
    text = figure(mixed()[:2], tmp_path / "figure.svg").read_text()
    assert ">round<" in text
    assert "worst" not in text


def test_clients_that_are_never_heard_are_told_in_time_not_in_rounds():
    far = replace(BASE, fleet=CycleFleet(4, (1, 1, 1, 1), offsets=(0, 0, 0, 40)), rounds=6).with_method("renewal")
    assert silence(trained(far)) == (
        "no update of 1 of 4 clients arrives in 6 rounds of time: 1 of the 4 of E=1, client 3 (their first energy "
        "arrives after the run). So the model learns nothing from their data."
    )
    few = replace(BASE, fleet=CycleFleet(4, (30,), arrivals="trickle"), rounds=12, local_steps=5)
    few = replace(few, work=Work(0.5, local_steps="affordable")).with_method("renewal")
    assert silence(trained(few)) == ""  # a step is paid for long before a whole work is


def everfed(*arguments: str) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_commands_speak_of_time(tmp_path):
    quick = ("digits-quick", "--device", "cpu", "--rounds", "20", "--set", "fleet.arrivals=trickle")
    affordable = ("--set", "work.local_steps=affordable", "--set", "work.duration=0.4")
    said = everfed("run", *quick, *affordable, "--method", "renewal", "--out", tmp_path / "one")
    assert "20 rounds of time" in said
    assert re.search(r"time 20/20 rounds  accuracy .* arrived \d+  version \d+  energy", said)
    for row in ("updates that arrived", "versions of the model", "staleness in versions", "local steps of an update"):
        assert row in said
    assert "participations" not in said
    everfed(
        "compare", *quick, "--methods", "algorithm1,renewal,fedbuff", "--seeds", "1", "--out", tmp_path / "all", "-q"
    )
    assert (tmp_path / "all" / "figure.png").exists()
    assert "4 runs" in everfed("runs", tmp_path)
    for command in (("report", tmp_path, "-o", tmp_path / "r.html"), ("figure", tmp_path, "-o", tmp_path / "f.pdf")):
        everfed(*command)
    assert "whole" in everfed("check", tmp_path / "one")
    everfed("export", tmp_path / "one", "-o", tmp_path / "model.safetensors")


@pytest.mark.long
@pytest.mark.skipif(find_chromium() is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_a_browser(width, tmp_path):
    one = Browser(find_chromium() or "", tmp_path / "profile")
    try:
        for runs, title in ((mixed(), "time, rounds"), (solar(), "date")):
            path = page(runs, tmp_path / "report.html")
            one.size(width)
            one.open(path)
            one.settle()
            assert one.complaints() == []
            assert one.run("document.querySelector('#arrivals').hidden") is False
            lines = sum(run.experiment.asynchronous for run in runs)
            groups = len(runs[0].experiment.make_fleet().groups())
            assert one.run("document.querySelectorAll('#rate-chart rect.bar').length") == lines * groups
            assert title in one.run("document.querySelector('#accuracy-chart').textContent")
            nights = one.run("document.querySelectorAll('#accuracy-chart .dark-spell').length")
            assert nights == len(clock(runs).dark)
            assert one.run("document.documentElement.scrollWidth") <= width
    finally:
        one.close()
