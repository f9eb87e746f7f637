"""The page in a real browser: what it draws, what it does, and what it does not ask the network for."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import report_runs
from browser import Browser, find_chromium
from everfed.learning.metrics import Metrics
from everfed.report.data import page_data
from everfed.report.page import page
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.history import RoundRecord

chromium = find_chromium()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium is None, reason="no chromium, chromium-browser or google-chrome on the PATH"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = Browser(chromium or "", tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def runs():
    return report_runs.trained()


@pytest.fixture(scope="module")
def data(runs):
    return page_data(runs)


@pytest.fixture(scope="module")
def path(runs, tmp_path_factory):
    return page(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def tab(browser, path):
    """The page, freshly opened, in a window of a desk's size; nothing may be complained about in the end."""
    browser.size(1200)
    browser.open(path)
    browser.settle()
    yield browser
    assert browser.complaints() == []
    assert set(browser.requests()) == {path.as_uri()}


def drawn(tab: Browser, chart: str, line: int) -> np.ndarray:
    """A curve's points in the units of the axes, read back from its path."""
    svg = f"document.querySelector('#{chart} svg')"
    d = tab.run(f"{svg}.querySelector('path.curve[data-line=\"{line}\"]')?.getAttribute('d')")
    x0, x1, y0, y1 = (float(v) for v in (domain(tab, chart, "x") + domain(tab, chart, "y")))
    left, right, bottom, top = map(float, tab.run(f"{svg}.dataset.frame").split())
    points = np.array([[float(v) for v in pair] for pair in re.findall(r"([-\d.]+) ([-\d.]+)", d)])
    x = x0 + (points[:, 0] - left) / (right - left) * (x1 - x0)
    y = y0 + (points[:, 1] - bottom) / (top - bottom) * (y1 - y0)
    return np.stack([x, y])


def domain(tab: Browser, chart: str, axis: str) -> list[float]:
    return [float(v) for v in tab.run(f"document.querySelector('#{chart} svg').dataset.{axis}").split()]


def count(tab: Browser, selector: str) -> int:
    return int(tab.run(f"document.querySelectorAll({selector!r}).length"))


def text(tab: Browser, selector: str) -> str:
    return str(tab.run(f"document.querySelector({selector!r}).textContent"))


def click(tab: Browser, selector: str) -> None:
    tab.run(f"document.querySelector({selector!r}).click()")
    tab.settle()


def drag(tab: Browser, chart: str, start: float, end: float) -> None:
    tab.run(f"document.querySelector('#{chart}').scrollIntoView({{block: 'center'}})")
    box = tab.run(
        f"(b => [b.left, b.top, b.width, b.height])(document.querySelector('#{chart} svg').getBoundingClientRect())"
    )
    y = box[1] + box[3] / 2
    tab.mouse("Moved", box[0] + start * box[2], y)
    tab.mouse("Pressed", box[0] + start * box[2], y, button="left", buttons=1, clickCount=1)
    tab.mouse("Moved", box[0] + end * box[2], y, button="left", buttons=1)
    tab.mouse("Released", box[0] + end * box[2], y, button="left", clickCount=1)
    tab.settle()


def test_the_page_opens_fast(browser, path):
    browser.size(1200)
    seconds = browser.open(path)
    print(f"opened in {seconds:.2f} s")
    assert seconds < 10
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("chart", "metric", "factor"), [("accuracy-chart", "accuracy", 100), ("loss-chart", "loss", 1)]
)
@pytest.mark.parametrize(("against", "x"), [("rounds", "rounds"), ("spent", "spent")])
def test_curves_are_drawn_with_the_runs_numbers(tab, data, chart, metric, factor, against, x):
    click(tab, f"input[name=against][value={against}]")
    for i, line in enumerate(data["lines"]):
        points = drawn(tab, chart, i)
        assert points[0] == pytest.approx(line[metric][x], abs=0.002 * max(line[metric][x]) + 0.05)
        highest = max(max(other[metric]["mean"]) for other in data["lines"])
        assert points[1] == pytest.approx(factor * np.array(line[metric]["mean"]), abs=0.002 * factor * highest)


def test_switching_to_energy_changes_the_axis(tab, data):
    before = domain(tab, "accuracy-chart", "x")
    assert before == [0, 40]
    click(tab, "input[name=against][value=spent]")
    assert domain(tab, "accuracy-chart", "x")[1] == max(line["accuracy"]["spent"][-1] for line in data["lines"])
    assert "energy spent" in text(tab, "#accuracy-chart svg")
    assert domain(tab, "loss-chart", "x") == domain(tab, "accuracy-chart", "x")


def test_hiding_a_method_hides_it_everywhere(tab, data):
    places = ("#accuracy-chart path.curve", "#loss-chart path.curve", "#group-chart rect", "#class-table td",
              "#weight-charts rect", "#result-table tr")  # fmt: skip
    hidden = [f'{place}[data-line="1"]' for place in places]
    assert all(count(tab, selector) > 0 for selector in hidden)
    click(tab, '#methods input[data-line="1"]')
    assert [count(tab, selector) for selector in hidden] == [0] * len(places)
    assert count(tab, '#accuracy-chart path.curve[data-line="0"]') == 1
    click(tab, '#methods input[data-line="1"]')
    assert all(count(tab, selector) > 0 for selector in hidden)


def test_all_methods_may_be_hidden(tab):
    for line in range(3):
        click(tab, f'#methods input[data-line="{line}"]')
    assert count(tab, "#accuracy-chart path.curve") == 0


def test_dragging_zooms_both_charts_and_reset_restores(tab):
    whole = domain(tab, "accuracy-chart", "x")
    drag(tab, "accuracy-chart", 0.4, 0.7)
    zoomed = domain(tab, "accuracy-chart", "x")
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    assert domain(tab, "loss-chart", "x") == zoomed
    click(tab, "#accuracy-chart .reset")
    assert domain(tab, "accuracy-chart", "x") == domain(tab, "loss-chart", "x") == whole
    drag(tab, "loss-chart", 0.4, 0.7)
    assert domain(tab, "loss-chart", "x") != whole
    tab.run("document.querySelector('#loss-chart svg').dispatchEvent(new MouseEvent('dblclick'))")
    assert domain(tab, "loss-chart", "x") == whole


def test_hovering_tells_all_visible_methods(tab, data):
    tab.run("document.querySelector('#accuracy-chart').scrollIntoView({block: 'center'})")
    box = tab.run("(b => [b.right, b.top])(document.querySelector('#accuracy-chart svg').getBoundingClientRect())")
    tab.mouse("Moved", box[0] - 14, box[1] + 120)
    said = text(tab, "#tip")
    assert said.startswith("rounds: 40")
    for line in data["lines"]:
        assert line["label"] in said
        assert f"{100 * line['accuracy']['mean'][-1]:.4g}"[:4] in said


def test_the_keyboard_moves_the_crosshair(tab):
    tab.run("document.querySelector('#accuracy-chart svg').focus()")
    for _ in range(2):
        tab.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert text(tab, "#tip").startswith("rounds: 10")


def test_bars_and_classes_show_the_runs_numbers(tab, data):
    for i, line in enumerate(data["lines"]):
        for label, value in line["groups"].items():
            assert tab.run(
                f'document.querySelector(\'#group-chart rect[data-line="{i}"][data-group="{label}"]\').dataset.value'
            ) == (str(value["mean"]).removesuffix(".0"))
        cells = tab.run(f"[...document.querySelectorAll('#class-table td[data-line=\"{i}\"]')].map(c => c.textContent)")
        assert [float(c) for c in cells] == pytest.approx([100 * v for v in line["classes"]], abs=0.51)


def test_the_raster_has_every_participation_of_the_chosen_run(tab, runs):
    for i, run in enumerate(runs):
        tab.run(f"(s => {{ s.value = {i}; s.dispatchEvent(new Event('change')) }})(document.getElementById('run'))")
        assert int(tab.run("document.querySelector('#raster canvas').dataset.joined")) == run.participations
        alpha = (
            "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length"
        )
        pixels = tab.run(f"(c => {alpha})(document.querySelector('#raster canvas'))")
        assert pixels == run.participations


def test_the_raster_tells_client_cycle_round_and_scale(tab, runs, data):
    record: RoundRecord = runs[0].rounds[5]
    fleet = data["fleets"][0]
    client = int(record.participants[-1])
    row, scale = fleet["ids"].index(client), record.scales[-1]
    tab.run("document.querySelector('#raster canvas').scrollIntoView({block: 'center'})")
    box = tab.run(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('#raster canvas').getBoundingClientRect())"
    )
    tab.mouse("Moved", box[0] + (5.5 / 40) * box[2], box[1] + (row + 0.5) / 8 * box[3])
    assert text(tab, "#tip") == f"client {client}, cycle {fleet['cycles'][row]}round 5: trained, scale {scale:g}"


def test_batteries_and_weights_are_drawn(tab, data):
    assert count(tab, "#battery-chart svg") == 3
    for i, line in enumerate(data["lines"]):
        rects = f"[...document.querySelectorAll('#weight-charts rect[data-line=\"{i}\"]')]"
        bars = tab.run(f"{rects}.map(r => Number(r.dataset.count))")
        assert bars == [c for c in line["weights"]["counts"] if c]
    assert "mean 1 · variance 0" in text(tab, "#weight-charts")


def test_the_target_changes_energy_and_rounds_to_target(tab, runs):
    def cell(column: str) -> str:
        return text(tab, f'#result-table tr[data-line="2"] td[data-column="{column}"]')

    def aim(percent: float) -> None:
        tab.run(
            f"(i => {{ i.value = {percent}; i.dispatchEvent(new Event('input')) }})(document.getElementById('target'))"
        )

    low = min(r.metrics.accuracy for run in runs[4:] for r in run.rounds if r.metrics)
    aim(100 * low - 1)
    assert cell("rounds to target") == "5"  # the first evaluation
    assert cell("energy to target") == "40"  # FedAvg: 8 clients, 5 rounds
    best = max(run.final.accuracy for run in runs[4:])
    aim(100 * best - 0.1)
    assert cell("rounds to target") != "5"
    aim(100)
    assert cell("energy to target") == "never"


def columns(tab: Browser, host: str) -> list[str]:
    return list(tab.run(f"[...document.querySelectorAll('#{host} thead button')].map(b => b.textContent)"))


def test_energy_is_drawn_and_told_without_columns_of_zeros(tab, data):
    assert columns(tab, "energy-table") == [
        "method", "harvested", "never harvested", "spent", "wasted", "wasted, %",
    ]  # fmt: skip
    for i, line in enumerate(data["lines"]):
        row = f'#energy-table tr[data-line="{i}"]'
        assert float(text(tab, f'{row} td[data-column="spent"]').split()[0]) == line["final"]["spent"]["mean"]
    width = (
        "document.querySelector('#energy-bars [data-line=\"{}\"][data-account=spent]').getBoundingClientRect().width"
    )
    widths = [tab.run(width.format(i)) for i in (0, 2)]
    spent = [data["lines"][i]["final"]["spent"]["mean"] for i in (0, 2)]
    assert widths[0] / widths[1] == pytest.approx(spent[0] / spent[1], rel=0.01)
    fedavg = text(tab, '#result-table tr[data-line="2"] td[data-column="fairness"]')
    assert fedavg == "1.000"
    hint = tab.run(
        "[...document.querySelectorAll('#result-table th')].find(h => h.textContent === 'late variation, %').title"
    )
    assert "standard deviation of the accuracy" in hint
    click(tab, '#methods input[data-line="2"]')
    assert count(tab, '#energy-bars [data-line="2"]') == count(tab, '#energy-table [data-line="2"]') == 0


def test_a_fleet_of_devices_speaks_joules(browser, tmp_path):
    runs = report_runs.devices()
    data = page_data(runs)
    browser.size(1200)
    browser.open(page(runs, tmp_path / "page.html"))
    browser.settle()
    assert columns(browser, "energy-table") == [
        "method", "held at start", "harvested", "spent", "standby", "leaked", "lost", "wasted", "stored", "wasted, %",
        "brown-outs",
    ]  # fmt: skip
    lost = text(browser, '#energy-table tr[data-line="1"] td[data-column="lost"]')
    assert float(lost.split()[0]) == pytest.approx(data["lines"][1]["final"]["lost"]["mean"], rel=0.005)
    assert count(browser, "#energy-bars .lost") == 2
    assert "in kJ" in text(browser, "#energy")
    assert "miami" in text(browser, "#battery-chart")
    assert "sand-point" in text(browser, "#settings-body")
    click(browser, "input[name=against][value=spent]")
    assert "energy spent, kJ" in text(browser, "#accuracy-chart svg")
    spent = [next(r for r in run.rounds if r.metrics and r.metrics.accuracy >= data["target"]) for run in runs[2:]]
    told = text(browser, '#result-table tr[data-line="1"] td[data-column="energy to target"]')
    assert float(told.split()[0]) == pytest.approx(np.mean([r.energy.spent for r in spent]) / 1000, rel=0.005)
    for width in (360, 1200):
        browser.size(width, 780, mobile=width < 500)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


def test_results_can_be_sorted(tab, data):
    click(tab, "#result-table thead tr th:nth-child(2) button")
    order = tab.run("[...document.querySelectorAll('#result-table tbody tr')].map(r => Number(r.dataset.line))")
    means = [data["lines"][i]["final"]["accuracy"]["mean"] for i in order]
    assert means == sorted(means, reverse=True)
    assert text(tab, "#result-table [aria-sort=descending]") == "accuracy, %"


def test_every_chart_has_a_table_and_every_section_a_name(tab):
    for section in ("curves", "groups", "participation", "battery", "weights"):
        click(tab, f"#{section} details.numbers summary")
        assert count(tab, f"#{section} details.numbers tbody tr") > 2
    assert tab.run(
        "[...document.querySelectorAll('section')].every(s => s.id && s.querySelector('h2') && s.querySelector('p'))"
    )
    assert tab.run(
        "[...document.querySelectorAll('svg.chart, canvas')].every(c => c.getAttribute('aria-label') || c.ariaHidden)"
    )


def test_the_theme_toggles(tab):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, canvas = tab.run(colour), "document.querySelector('#raster canvas').toDataURL()"
    painted = tab.run(canvas)
    click(tab, "#theme")
    assert tab.run(colour) != light
    assert tab.run(canvas) != painted
    click(tab, "#theme")
    assert tab.run(colour) == light


def test_a_dark_system_gets_a_dark_page(browser, path):
    browser.open(path)
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert browser.run("getComputedStyle(document.body).backgroundColor") != light
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_overflows_the_window(browser, path, width):
    browser.size(width, 780, mobile=width < 500)
    browser.open(path)
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


def test_runs_without_accuracy_or_evaluation_make_a_page(browser, tmp_path):
    run = report_runs.untrained(Experiment(fleet=CycleFleet(8, (1, 2, 4)), rounds=20, device="cpu"))
    bare = replace(run, rounds=[replace(r, metrics=None) for r in run.rounds])
    plain = replace(run, rounds=[replace(r, metrics=r.metrics and Metrics(r.metrics.loss)) for r in run.rounds])
    for one in (bare, plain):
        browser.open(page([one], tmp_path / "page.html"))
        browser.settle()
        assert browser.complaints() == []
        assert browser.run("document.documentElement.dataset.ready") is not None


def test_a_large_page_opens_fast(browser, tmp_path):
    base = Experiment(rounds=1000, eval_every=1, device="cpu")
    found = [report_runs.untrained(replace(base, seed=s).with_method(m)) for m in report_runs.METHODS for s in range(4)]
    path = page(found, tmp_path / "large.html")
    browser.size(1200)
    seconds = browser.open(path)
    print(f"{path.stat().st_size / 1e6:.2f} MB opened in {seconds:.2f} s")
    assert seconds < 10
    assert browser.complaints() == []
