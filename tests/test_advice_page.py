"""The page of advice: one file, small, offline, with the numbers of the advice; and its sliders, in a real browser."""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from browser import Browser, find_chromium
from everfed import presets
from everfed.advising.advise import advise
from everfed.advising.expected import expect, extrapolated
from everfed.advising.outlook import outlook
from everfed.advising.pilot import Pilot, PilotRun
from everfed.cli.app import app
from everfed.cli.outlook import stored_pilot, tell
from everfed.cli.screen import Screen
from everfed.energy.group import DeviceGroup
from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError
from everfed.learning.compress import Qsgd
from everfed.report.advice_page import advice_page, render
from everfed.run.experiment import Experiment
from everfed.studies.sweep import plan_runs, run_all

chromium = find_chromium()
needs_browser = pytest.mark.skipif(
    chromium is None, reason="no chromium, chromium-browser or google-chrome on the PATH"
)
EVIL = "<img src=x onerror=window.hit=1></script><script>window.hit=1</script>"


@pytest.fixture(scope="module")
def advice():
    groups = (
        DeviceGroup(name="harbour", count=4, site="miami", panel_wp=6.0, battery_wh=20.0),
        DeviceGroup(
            name="moor",
            count=12,
            site="greensboro",
            panel_wp=0.35,
            battery_wh=2.5,
            spread=0.1,
            cycle=2,
            switched_off=True,
            step_s=420,
        ),
    )
    return advise(DeviceFleet(groups, round_s=43_200.0), rounds=730, years=3, price_wp=2.0, price_wh=0.5)


@pytest.fixture(scope="module")
def found(advice):
    x = np.arange(1.0, 61.0)
    run = PilotRun(x, x, 10 * x, 100 * x, 0.95 - 0.7 * np.exp(-x / 15.0))
    return outlook(advice, extrapolated(Pilot("accuracy", False, (0.0, 1.0), [run])))


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def test_the_page_is_one_small_file_that_asks_for_nothing(advice, found):
    page = render(advice, found)
    assert len(page) < 300_000
    assert not re.search(r"https?://(?!www\.w3\.org)|<link(?! rel=\"icon\" href=\"data:,\")| src=", page)
    content = embedded(page)
    assert content["advice"]["verdict"] == advice.verdict
    assert content["expected"]["horizons"][0]["days"] == 30


def test_ten_groups_over_a_year_of_hours_make_less_than_three_megabytes(advice):
    one = advice.groups[0]
    tables = [[float(i % 24) for i in range(8760)]] * 60
    members = [[replace(one.model.members[0], table=6 * g + i) for i in range(6)] for g in range(10)]
    groups = [replace(one, name=f"g{g}", model=replace(one.model, members=members[g])) for g in range(10)]
    hours = replace(advice.horizon, rounds=8760, round_s=3600.0)
    assert len(render(replace(advice, groups=groups, tables=tables, horizon=hours))) < 3_000_000


def test_no_text_of_a_fleet_becomes_a_part_of_the_page(advice):
    evil = replace(advice, verdict=[EVIL, EVIL], groups=[replace(g, name=EVIL + g.name) for g in advice.groups])
    page = render(evil, None, EVIL)
    assert "<img" not in page
    assert page.count("<script") == 2


def test_days_become_weights_and_back(advice, found):
    days, weights = found.weight_by_day
    assert days[-1] == advice.horizon.days
    # All rounds of a year, times the mean weight over the devices.
    mean = sum(g.count * sum((m.weight or 0.0) * m.days for m in g.months) for g in advice.groups) / 16
    assert weights[-1] == pytest.approx(2 * mean)
    assert found.weight(2 * days[-1]) == pytest.approx(2 * weights[-1])
    joules = sum(g.flows_j.training + g.flows_j.radio for g in advice.groups)
    assert found.horizons[-1].spent_j == pytest.approx(joules)
    curve = found.to_dict()["curve"]
    assert all(
        low <= value <= high for low, value, high in zip(curve["low"], curve["value"], curve["high"], strict=True)
    )
    assert re.fullmatch(
        r"Expected accuracy: \d+\.\d % \[[\d., ]+\] after 30 days; .* A further percent .* [kM]J\.", found.words()
    )


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ((), "days has no value; give at least one, such as 30."),
        ((30, -1), "days is -1; it must be a positive number."),
        ((math.nan,), "days is nan; it must be a positive number."),
        ((math.inf,), "days is inf; it must be a positive number."),
        ((0,), "days is 0; it must be a positive number."),
    ],
)
def test_days_are_positive_numbers(advice, found, days, said):
    with pytest.raises(InputError) as error:
        outlook(advice, found.expected, days)
    assert str(error.value) == said


def test_numbers_of_an_outlook_are_plain(found):
    told = found.to_dict()
    assert told == json.loads(json.dumps(told, allow_nan=False))
    assert {type(h["spent_j"]) for h in told["horizons"]} == {float}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"local_steps": 2}, ["the pilot's rounds have 2 local steps and the advice is for 5"]),
        ({"compression": Qsgd(bits=4)}, ["the pilot's messages have other sizes"]),
        ({"downlink": "bf16"}, ["the pilot's messages have other sizes"]),
        ({"local_steps": 9, "downlink": "bf16"}, ["the pilot's rounds have 9 local steps", "the pilot's messages"]),
    ],
)
def test_an_outlook_says_when_the_pilots_rounds_are_not_those_of_the_advice(advice, found, changes, said):
    pilot = replace(found.expected, experiment=Experiment(**changes))
    notes = [note for note in outlook(advice, pilot).notes if "advice" in note]
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))


def test_a_loss_is_told_as_it_is_and_has_no_percent(advice):
    x = np.arange(1.0, 61.0)
    run = PilotRun(x, x, 10 * x, 100 * x, 2.0 * np.exp(-x / 15.0) + 0.2)
    found = outlook(advice, extrapolated(Pilot("loss", True, (0.0, math.inf), [run])))
    assert re.fullmatch(r"Expected loss: 0\.\d{3} \[[\d., ]+\] after 30 days; [^%]* after 365 days\.", found.words())
    assert found.percent_j is None
    assert "energy per further percent" not in text_of_table(found)


def text_of_table(found):
    screen = Screen()
    with screen.out.capture() as captured:
        tell(screen, found)
    return captured.get()


def test_a_fleet_that_never_trains_has_no_outlook(advice, found):
    def still(g):
        return replace(g, months=[replace(m, weight=0.0) for m in g.months])

    with pytest.raises(InputError, match="ever trains"):
        outlook(replace(advice, groups=[still(g) for g in advice.groups]), found.expected)


@pytest.fixture(scope="module")
def tab(advice, found, tmp_path_factory):
    if chromium is None:
        pytest.skip("no browser")
    folder = tmp_path_factory.mktemp("page")
    path = advice_page(advice, folder / "advice.html", found, "two shores")
    with closing(Browser(chromium, folder / "profile")) as browser:
        browser.size(1200)
        browser.open(path)
        browser.settle()
        yield browser, path


def text(browser, selector):
    return str(browser.run(f"document.querySelector({selector!r}).textContent"))


def slide(browser, name, value):
    browser.run(
        f"(i => {{ i.value = {value}; i.dispatchEvent(new Event('input')) }})"
        f"(document.querySelector('input[data-name={name}]'))"
    )


def choose(browser, group):
    browser.run(
        f"(s => {{ s.value = {group}; s.dispatchEvent(new Event('change')) }})(document.querySelector('.group-pick'))"
    )


def outcome(browser):
    return browser.run(
        "(p => [Number(p.dataset.weight), Number(p.dataset.perDay)])(document.querySelector('#outcome .big'))"
    )


@needs_browser
def test_the_page_tells_the_numbers_of_the_advice(tab, advice):
    browser, _ = tab
    assert browser.complaints() == []
    for i, g in enumerate(advice.groups):
        row = text(browser, f'#state-table tr[data-group="{i}"]')
        assert g.name in row
        assert f"{g.weight:.3f}" in row
        assert f"{g.battery_wh:g} Wh" in row
        assert ("starved" in row) == g.starved
    shares = browser.run(
        "[...document.querySelectorAll('#flow-bars [data-group=\"0\"]')].map(d => parseFloat(d.style.width))"
    )
    assert sum(shares) == pytest.approx(100.0, abs=0.01)  # nothing is lost on the way
    assert browser.run("document.querySelectorAll('#years-chart .dot').length") == 3 * len(advice.groups)
    assert "30 days" in text(browser, "#expected-table")


@needs_browser
def test_sliders_recompute_and_return(tab, advice):
    browser, _ = tab
    browser.run("document.getElementById('reset-sliders').click()")
    moor = next(i for i, g in enumerate(advice.groups) if g.name == "moor")
    choose(browser, moor)
    weight, per_day = outcome(browser)
    assert weight == pytest.approx(advice.groups[moor].weight, abs=0.05)
    assert per_day == pytest.approx(advice.groups[moor].rounds_per_day, rel=0.1)
    slide(browser, "panel", 96)  # sixteen times
    assert outcome(browser)[0] > weight
    slide(browser, "battery", 96)
    assert outcome(browser)[0] == 1.0
    slide(browser, "panel", -96)
    slide(browser, "battery", 0)
    assert outcome(browser)[0] < weight
    slide(browser, "battery", -96)
    assert "Impossible: the battery cannot hold" in text(browser, "#outcome")
    assert outcome(browser)[0] == 0.0
    browser.run("document.getElementById('reset-sliders').click()")
    assert outcome(browser) == [weight, per_day]


@needs_browser
@pytest.mark.parametrize("group", [0, 1])
def test_the_size_map_shows_the_present_and_the_advised_sizes(tab, group):
    browser, _ = tab
    browser.run("delete document.getElementById('size-map').dataset.ready")
    choose(browser, group)
    for _ in range(100):
        if browser.run("document.getElementById('size-map').dataset.ready"):
            break
        time.sleep(0.1)
    assert browser.run("document.querySelectorAll('#size-map .cell').length") == 18 * 14
    assert browser.run("document.querySelectorAll('#size-map .point.now').length") == 1
    assert browser.run("document.querySelector('#size-map .contour').getAttribute('d').length") > 0


@needs_browser
@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_overflows_the_window(tab, width):
    browser, path = tab
    browser.size(width, 780, mobile=width < 500)
    browser.open(path)
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


@needs_browser
def test_odd_fleets_make_whole_pages(tab, advice, tmp_path):
    """A horizon of a few days, no drawn years, names without an end, a device that is dead and one that is too slow."""
    browser, _ = tab
    groups = (
        DeviceGroup(name="x" * 80, count=2, site="miami", panel_wp=6.0, battery_wh=20.0),
        DeviceGroup(name="dead", count=2, site="sand-point", panel_wp=0.1),
        DeviceGroup(name="slow", count=1, site="miami", panel_wp=6.0, step_s=40_000.0),
    )
    found = advise(DeviceFleet(groups, round_s=43_200.0), rounds=20, years=0)
    path = advice_page(found, tmp_path / "odd.html")
    browser.size(360, 780, mobile=True)
    browser.open(path)
    for group in range(3):
        choose(browser, group)
        browser.settle()
        assert outcome(browser)[0] == pytest.approx(found.groups[group].weight, abs=1e-9)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run("document.body.innerText.match(/NaN|undefined|null/)") is None
    wrong = "[...document.querySelectorAll('svg *')].some(e => [...e.attributes].some(a => /NaN|undef/.test(a.value)))"
    assert browser.run(wrong) is False
    assert browser.complaints() == []


@needs_browser
def test_every_chart_has_words_and_every_section_a_name(tab):
    browser, path = tab
    browser.size(1200)
    browser.open(path)
    browser.settle()
    named = (
        "[...document.querySelectorAll('section')].every(s => s.id && s.querySelector('h2') && s.querySelector('p'))"
    )
    assert browser.run(named)
    assert browser.run("[...document.querySelectorAll('svg.chart')].every(c => c.getAttribute('aria-label'))")
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != before
    browser.run("document.getElementById('theme').click()")


FLEET = """
rounds = 60
data = "digits"
[fleet]
kind = "devices"
round_s = 43200
[[fleet.groups]]
name = "roof"
count = 4
site = "miami"
panel_wp = 8
battery_wh = 20
"""


def test_the_command_writes_page_and_outlook(tmp_path):
    fleet = tmp_path / "roof.toml"
    fleet.write_text(FLEET, encoding="utf-8")
    args = ["advise", str(fleet), "--years", "0", "--experiment", "digits-quick", "--pilot-rounds", "20", "--json"]
    done = CliRunner().invoke(app, [*args, "-q", "-o", str(tmp_path / "a.html")])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [h["days"] for h in result["expected"]["horizons"]] == [30, 90, 365]
    assert all(math.isfinite(h["spent_j"]) for h in result["expected"]["horizons"])
    assert any("learning rate falls" in note for note in result["expected"]["notes"])
    assert "<title>Advice for roof</title>" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_folder_of_seeds_is_a_pilot_and_a_folder_of_experiments_is_not(tmp_path):
    content = {**presets.content("digits-quick"), "rounds": 12, "eval_every": 1, "device": "cpu"}
    run_all(plan_runs(content, {}, [0, 1], tmp_path / "seeds"), jobs=1)
    assert len(stored_pilot(tmp_path / "seeds")) == 2
    found = expect(stored_pilot(tmp_path / "seeds"))
    assert found.pilot.evaluations == 24
    assert any("fell over the 12 rounds" in note for note in found.notes)
    run_all(plan_runs(content, {"client.lr": [0.05]}, [0], tmp_path / "seeds"), jobs=1)
    with pytest.raises(InputError, match="runs of 2 experiments"):
        stored_pilot(tmp_path / "seeds")


def test_advice_is_for_the_rounds_of_its_pilot_unless_others_are_asked_for(tmp_path):
    content = {**presets.content("digits-quick"), "rounds": 12, "eval_every": 1, "device": "cpu", "local_steps": 2}
    content["downlink"] = "bf16"
    run_all(plan_runs(content, {}, [0], tmp_path / "runs"), jobs=1)
    (run,) = stored_pilot(tmp_path / "runs")
    twice = expect([run, *stored_pilot(tmp_path / "runs")])
    assert twice.pilot.evaluations == expect([run]).pilot.evaluations
    assert "1 run of the pilot was given more than once, and counts once." in twice.notes
    (tmp_path / "roof.toml").write_text(FLEET, encoding="utf-8")

    def told(*more):
        args = ["advise", str(tmp_path / "roof.toml"), "--years", "0", "--json", "--pilot", str(tmp_path / "runs")]
        done = CliRunner().invoke(app, [*args, *more])
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)
        return result["groups"][0]["model"], result["expected"]["notes"], done.stderr

    model, notes, err = told()
    assert model["local_steps"] == 2
    assert "advice for rounds as the pilot's: its local_steps, downlink" in err
    assert not [note for note in notes if "the pilot's" in note]
    full, notes, _ = told("--local-steps", "7", "--set", "downlink=full")
    assert full["local_steps"] == 7
    assert full["down_j"] > model["down_j"]
    assert "the pilot's rounds have 2 local steps and the advice is for 7" in notes[0]
    assert "the pilot's messages have other sizes" in notes[1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--pilot", "nowhere"], "does not exist"),
        (["--pilot", "."], "no stored runs"),
        (["--pilot", "x", "--experiment", "digits"], "give one of them"),
        (["--page", "a.html", "-o", "b.html"], "two pages"),
    ],
)
def test_a_wrong_pilot_is_refused_before_anything_is_computed(tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roof.toml").write_text(FLEET, encoding="utf-8")
    done = CliRunner().invoke(app, ["advise", "roof.toml", *more])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
