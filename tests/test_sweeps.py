"""Sweeps: which settings were varied, on what axis, and what the page and the figure draw of them."""

from __future__ import annotations

import itertools
import math
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib import pyplot

import report_runs
from browser import Browser, find_chromium
from everfed.data.partition import ByEnergy, Iid
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.errors import InputError
from everfed.learning.metrics import Metrics
from everfed.learning.optim import SGD
from everfed.report.compared import compare_runs
from everfed.report.data import page_data
from everfed.report.distinct import distinct
from everfed.report.figure import figure
from everfed.report.lines import lines
from everfed.report.notes import notes
from everfed.report.page import page, render
from everfed.report.sweep_figure import draw_sweeps
from everfed.report.sweeps import axis_kind, sweeps
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.showing.labels import fit_names
from everfed.stats import summarize
from everfed.studies.yardstick import yardstick

BASE = Experiment(fleet=CycleFleet(8, (1, 2, 4)), rounds=12, eval_every=4, device="cpu")
RATES = (0.05, 0.1, 0.2, 0.4)


def swept(rates=RATES, steps=(2,), methods=("algorithm1", "greedy"), seeds=(0, 1), spoilt=()):
    """A grid of runs without training, with accuracies that depend on all of it; some rates end as diverged."""
    out = []
    for lr, local, method, seed in itertools.product(rates, steps, methods, seeds):
        one = replace(BASE, client=SGD(lr), local_steps=local, seed=seed).with_method(method)
        run = report_runs.untrained(
            one, name=f"{method}-{lr}-{local}-{seed}", state="diverged" if lr in spoilt else "done"
        )
        height = accuracy(lr, local, method, seed)
        metrics = Metrics(1 - height, height, (height,) * 10, (1.0,) * 10, {"E=1": height}, {"E=1": 1.0})
        out.append(replace(run, rounds=[replace(r, metrics=r.metrics and metrics) for r in run.rounds]))
    return out


def accuracy(lr, steps, method, seed):
    return 0.3 + 0.5 * lr + 0.02 * steps + 0.1 * (method == "algorithm1") + 0.03 * seed


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3, 4], "linear"),
        ([0.1, 0.2, 0.3], "linear"),
        ([0, 10, 20], "linear"),
        ([0.05, 0.1], "linear"),
        ([0.01, 1], "log"),
        ([0.05, 0.1, 0.2, 0.4], "log"),
        ([1, 5, 10, 20], "log"),
        ([10, 100, 1000], "log"),
        ([0, 0.01, 0.1, 1], "steps"),
        ([1, 2, math.inf], "steps"),
        (["iid", "by-energy"], "names"),
        ([True, False], "names"),
    ],
)
def test_an_axis_is_logarithmic_where_a_setting_is_swept_by_factors(values, kind):
    assert axis_kind(values) == kind


def test_every_line_of_a_grid_is_a_point_of_each_swept_setting():
    drawn = lines(swept(steps=(1, 4)))
    found = {sweep.key: sweep for sweep in sweeps(drawn)}
    assert set(found) == {"client.lr", "local_steps"}
    for key, sweep in found.items():
        assert sorted(i for one in sweep.series for i in one.lines) == list(range(len(drawn)))
        for one in sweep.series:
            assert {drawn[i].method for i in one.lines} == {one.method}
            values = [drawn[i].settings[key] for i in one.lines]
            assert values == sorted(values) == [sweep.values[place] for place in one.places]
            assert len({str({k: v for k, v in drawn[i].settings.items() if k != key}) for i in one.lines}) == 1
    assert (found["client.lr"].kind, found["client.lr"].values) == ("log", RATES)


def test_colour_follows_the_method_and_dash_the_other_setting():
    (rate, steps) = sweeps(lines(swept(steps=(1, 4), methods=("algorithm1", "fedavg"))))
    for sweep in (rate, steps):
        by_others = {}
        for one in sweep.series:
            by_others.setdefault(one.others, set()).add(one.style.dash)
        assert all(len(dashes) == 1 for dashes in by_others.values())  # FedAvg's own dash does not interfere
        assert len(set(map(frozenset, by_others.values()))) == len(sweep.others) == len(by_others)
        assert {one.method: one.style.marker for one in sweep.series} == {"algorithm1": "o", "fedavg": "^"}


def test_runs_that_differ_in_many_settings_at_once_are_no_sweep():
    one, other = (
        swept(rates=(0.1,), seeds=(0,), methods=("algorithm1",)),
        report_runs.untrained(replace(BASE, rounds=16)),
    )
    assert sweeps(lines([*one, other])) == []
    tuned = swept(rates=(0.1,), methods=("algorithm1",)) + swept(rates=(0.4,), methods=("greedy",))
    assert sweeps(lines(tuned)) == []  # one rate per method, as `tune` finds them


def test_a_method_with_one_value_stands_beside_the_sweep_of_another():
    runs = swept(methods=("algorithm1",)) + swept(rates=(0.1,), methods=("fedavg",))
    (sweep,) = sweeps(lines(runs))
    assert {one.method: [sweep.values[p] for p in one.places] for one in sweep.series} == {
        "algorithm1": list(RATES), "fedavg": [0.1],
    }  # fmt: skip


def test_lines_of_a_method_are_in_the_order_of_their_numbers():
    runs = swept(rates=(0.4, 10.0, 2.0), methods=("algorithm1",))
    assert [line.settings["client.lr"] for line in lines(runs)] == [0.4, 2.0, 10.0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_lists_of_numbers_are_in_the_order_of_their_numbers_and_not_of_their_letters(order):
    wanted = [(1, 5), (1, 10), (1, 5, 10, 20)]
    runs = [report_runs.untrained(replace(BASE, fleet=CycleFleet(8, wanted[i]))) for i in order]
    (sweep,) = sweeps(lines(runs))
    assert [tuple(value) for value in sweep.values] == wanted


@pytest.mark.parametrize("height", [0.0, 0.0004, 0.5, 0.9999, 1.0])
def test_an_axis_of_percents_has_one_of_them_at_least_and_shows_the_points(height):
    runs = []
    for run in swept(methods=("algorithm1",)):
        metrics = Metrics(1.0, height, (height,) * 10, (1.0,) * 10, {"E=1": height}, {"E=1": 1.0})
        runs.append(replace(run, rounds=[replace(r, metrics=r.metrics and metrics) for r in run.rounds]))
    low, high = drawn_by(runs).axes[0].get_ylim()
    assert high - low >= 1
    assert low <= 100 * height <= high
    assert -0.02 * high <= low


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 12, 40])
def test_ticks_of_rounds_are_whole(rounds):
    run = report_runs.untrained(replace(BASE, rounds=rounds, eval_every=1))
    for axes in (compare_runs([run]).plot(), run.plot()):
        axes.figure.canvas.draw()
        shown = [tick for tick in axes.get_xticks() if 0 <= tick <= rounds]
        assert len(shown) >= 2
        assert all(tick == int(tick) for tick in shown)
        pyplot.close(axes.figure)


def test_what_is_to_be_said_of_all_values_of_a_sweep_is_said_once():
    runs = [
        report_runs.untrained(replace(BASE, client=SGD(lr), rounds=2, seed=seed), name=f"{lr}-{seed}")
        for lr in RATES
        for seed in (0, 1)
    ]
    drawn = lines(runs)
    (said,) = [note for note in notes(distinct(runs), drawn) if "never train" in note]
    assert said.startswith("; ".join(line.label for line in drawn) + ", seed 0: ")
    assert "of each are like that" in said


def test_titles_say_what_all_runs_are_of():
    one, other = (
        report_runs.untrained(replace(BASE, split=ByEnergy())),
        report_runs.untrained(replace(BASE, split=Iid())),
    )
    large = report_runs.untrained(replace(BASE, fleet=CycleFleet(12, (1, 2, 4))))
    assert page_data([one])["title"] == "Digits, by-energy split, 8 clients"
    assert page_data([one, other])["title"] == "Digits, by-energy and iid splits, 8 clients"
    assert page_data([one, other, large])["title"] == "Digits, by-energy and iid splits, 8 to 12 clients"


def test_the_headline_of_a_sweep_names_the_best_settings_of_each_method():
    said = page_data(swept())["headline"]
    assert said.startswith("With the best settings of each method: Algorithm 1 · client.lr=0.4 reaches 65.5 %")
    assert "Benchmark 1 (greedy) · client.lr=0.4 55.5 %" in said


def test_labels_of_unlike_runs_name_what_tells_them_apart():
    runs = [
        report_runs.untrained(replace(BASE, split=ByEnergy(), rounds=16, local_steps=3, client=SGD(0.1), batch_size=8)),
        report_runs.untrained(replace(BASE, split=Iid(), rounds=12, local_steps=2, client=SGD(0.2), batch_size=16)),
    ]
    labels = [line.label for line in lines(runs)]
    assert len(set(labels)) == 2
    assert all(re.fullmatch(r"Algorithm 1 · \S+=\S+ · …", label) for label in labels)


def test_many_copies_are_one_note():
    runs = swept()
    copies = [replace(run, path=Path("copy") / run.path) for run in runs]
    known = distinct([*runs, *copies])
    assert len(known.runs) == len(runs)
    (said,) = notes(known, lines(known.runs))
    assert said.endswith(f"is not counted again. {len(runs) - 1} more folders hold runs that are counted already.")


def test_a_run_that_never_began_is_named_with_its_settings():
    runs = swept(methods=("algorithm1",), seeds=(0,))
    runs[-1] = replace(runs[-1], rounds=[], state="diverged")
    said = page_data(runs)["notes"]
    assert said == ["Algorithm 1 · client.lr=0.4: no result, since 1 of 1 seed diverged in the first round."]
    runs[-1] = replace(runs[-1], state="stopped")
    said = page_data(runs)["notes"]
    assert said == ["Omitted, since they have not finished a round: Algorithm 1 · client.lr=0.4, seed 0 (stopped)."]


@pytest.mark.parametrize("ending", [".png", ".pdf", ".svg"])
def test_a_sweeps_figure_has_its_settings_methods_and_worst_group(ending, tmp_path):
    path = figure(swept(steps=(1, 4)), tmp_path / f"figure{ending}")
    if ending == ".svg":
        text = path.read_text()
        for said in (
            "client.lr",
            "local_steps",
            "Algorithm 1",
            "Benchmark 1 (greedy)",
            "Worst energy group",
            "local_steps=4",
        ):
            assert said in text
    assert path.stat().st_size > 5000


def test_the_kind_of_a_figure_can_be_chosen(tmp_path):
    assert "Against client.lr" in figure(swept(), tmp_path / "a.svg").read_text()
    assert "Against client.lr" not in figure(swept(), tmp_path / "b.svg", kind="curves").read_text()
    with pytest.raises(InputError, match="no sweep to draw"):
        figure(swept(rates=(0.1,)), tmp_path / "c.svg", kind="sweep")
    with pytest.raises(InputError, match="one of auto, curves, sweep"):
        figure(swept(), tmp_path / "d.svg", kind="raster")


def test_a_figure_marks_what_diverged_and_draws_no_value_for_it(tmp_path):
    text = figure(swept(spoilt=(0.4,)), tmp_path / "a.svg").read_text()
    assert "diverged" in text
    assert "diverged" not in figure(swept(), tmp_path / "b.svg").read_text()


def partly_diverged(seeds, when):
    """Algorithm 1 with six seeds a rate; these seeds of the largest rate diverge, in the first round or later."""
    runs = swept(methods=("algorithm1",), seeds=range(6))
    gone = [run.experiment.client.lr == RATES[-1] and run.experiment.seed in seeds for run in runs]
    return [
        replace(run, state="diverged", rounds=[] if when == "first round" else run.rounds[:8]) if lost else run
        for run, lost in zip(runs, gone, strict=True)
    ]


def drawn_by(runs):
    """The first panel of the sweep's figure, drawn."""
    found = lines(runs)
    return draw_sweeps(found, sweeps(found), yardstick(runs), None)


@pytest.mark.parametrize("when", ["first round", "later"])
@pytest.mark.parametrize("count", range(7))
def test_seeds_that_diverged_are_marked_and_in_no_mean(count, when, tmp_path):
    runs = partly_diverged(range(count), when)
    data = page_data(runs)
    (sweep,) = data["sweeps"]
    assert sweep["values"] == ["0.05", "0.1", "0.2", "0.4"]  # also where no seed of a value has a round
    last = data["lines"][-1]
    assert last["not_done"] == ({"diverged": count} if count else {})
    assert last["diverged"] == (f"{count} of 6 seeds" if count else "")
    assert last["lost"] == (count == 6)
    survivors = [accuracy(RATES[-1], 2, "algorithm1", seed) for seed in range(count, 6)]
    if survivors:
        assert last["final"]["accuracy"]["mean"] == pytest.approx(sum(survivors) / len(survivors), rel=1e-4)

    picture = drawn_by(runs)
    panel = picture.axes[0]
    assert len(panel.get_xticks()) == len(RATES)
    crosses = [line.get_xdata()[0] for line in panel.lines if line.get_gid() == "diverged"]
    assert crosses == ([RATES[-1]] if count else [])
    partly = 0 < count < 6
    assert [text.get_text() for text in panel.texts] == ([f"{count} of 6"] if partly else [])
    assert (f"client.lr=0.4: {count} of 6 seeds diverged" in picture.get_suptitle().replace("\n", " ")) == partly
    hollow = [line.get_ydata()[0] for line in panel.lines if line.get_markerfacecolor() == "white"]
    assert hollow == (pytest.approx([100 * sum(survivors) / len(survivors)]) if partly else [])
    assert ("diverged" in figure(runs, tmp_path / "a.svg").read_text()) == (count > 0)


def test_the_headline_says_that_seeds_of_the_best_setting_diverged_and_leaves_out_what_is_lost():
    assert page_data(partly_diverged((0, 1), "later"))["headline"].endswith(", but 2 of 6 seeds diverged.")
    assert "client.lr=0.2 reaches" in page_data(partly_diverged(range(6), "later"))["headline"]


def test_a_run_that_diverged_is_not_averaged_with_one_that_goes_on():
    runs = swept(methods=("algorithm1",), rates=(0.1,))
    (line,) = lines([replace(runs[0], state="diverged"), replace(runs[1], state="running")])
    assert [run.state for run in line.runs] == ["running"]


@pytest.mark.parametrize(
    "names",
    [
        ["E=1", "E=5", "E=10", "E=20"],
        [f"E={e}" for e in range(1, 25)],
        [f"{place}, {device}" for place in ("Miami", "Greensboro", "Sand Point") for device in ("ESP32", "Pi Zero")],
        [f"a very long name of group number {i}" for i in range(12)],
        [f"group{'x' * 60}{i}" for i in range(3)],
        [f"Site number {i}, ESP32" for i in range(300)],
        [rf"$\frac{{ {i}$" for i in range(4)],  # not a formula
    ],
)
def test_names_of_groups_do_not_overprint(names):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(picture)
    _, axes = picture.subplots(1, 2, width_ratios=(1.45, 1))
    fitted = fit_names(names, 50)
    axes.bar(range(len(names)), 1)
    axes.set_xticks(fitted.at, fitted.texts, **fitted.how)
    picture.canvas.draw()
    ticks = axes.get_xticklabels()
    assert len({tick.get_text() for tick in ticks}) == len(ticks) or "…" in ticks[0].get_text()
    assert len(ticks) == len(names) or (len(names) > 30 and len(ticks) > 20)
    places = [axes.transData.transform((i, 0))[0] for i in fitted.at]
    angle = ticks[0].get_rotation()
    if angle == 0:
        boxes = [tick.get_window_extent() for tick in ticks]
        gaps = [b.x0 - a.x1 for a, b in itertools.pairwise(boxes)]
    else:  # parallel lines of text: as far apart as they are high
        height = ticks[0].get_fontsize() * picture.dpi / 72
        gaps = [(b - a) * math.sin(math.radians(angle)) - height for a, b in itertools.pairwise(places)]
    assert min(gaps) > 0
    assert picture.get_tightbbox().y0 >= -0.01  # and none leaves the picture


chromium = find_chromium()
in_a_browser = pytest.mark.skipif(chromium is None, reason="no chromium, chromium-browser or google-chrome on the PATH")


@in_a_browser
def test_the_page_draws_filters_and_remembers(tmp_path):
    """Points have the runs' means, chips hide methods and values, and a chosen theme is there after a reload."""
    runs = swept(steps=(1, 4), spoilt=(0.05,))
    data = page_data(runs)
    path = page(runs, tmp_path / "page.html")
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.size(1200)
        browser.open(path)
        browser.settle()
        assert browser.run("[...document.querySelectorAll('#sweep-charts svg.chart')].map(s => s.dataset.kind)") == [
            "linear",
            "log",
        ]
        points = browser.run(
            "[...document.querySelectorAll('#sweep-1 .point')]"
            ".map(p => [Number(p.dataset.line), Number(p.dataset.value)])"
        )
        assert {line for line, _ in points} == {
            i for i, line in enumerate(data["lines"]) if line["settings"]["client.lr"] != "0.05"
        }
        for line, shown in points:
            own = data["lines"][line]["settings"]
            lr, steps = float(own["client.lr"]), int(own["local_steps"])
            values = [accuracy(lr, steps, data["lines"][line]["method"], seed) for seed in (0, 1)]
            assert shown == pytest.approx(100 * summarize(values).mean, rel=1e-4)
        assert browser.run("document.querySelectorAll('#sweep-1 .lost-point').length") == 4  # two methods, two steps
        browser.run("document.querySelector('[data-facet=\"method=greedy\"]').click()")
        browser.run("document.querySelector('[data-facet=\"client.lr=0.4\"]').click()")
        browser.settle()
        left = browser.run("[...document.querySelectorAll('#result-table tbody tr')].map(r => Number(r.dataset.line))")
        assert left == [
            i for i, line in enumerate(data["lines"])
            if line["method"] != "greedy" and line["settings"]["client.lr"] != "0.4"
        ]  # fmt: skip
        colour = "getComputedStyle(document.body).backgroundColor"
        light = browser.run(colour)
        browser.run("document.getElementById('theme').click()")
        dark = browser.run(colour)
        browser.open(path)
        assert dark != light
        assert browser.run(colour) == dark
        browser.run("document.getElementById('theme').click()")
        browser.open(path)
        assert browser.run(colour) == light
        browser.size(400, 780, mobile=True)
        assert browser.run("document.documentElement.scrollWidth") <= 400
        heights = browser.run("[...document.querySelectorAll('.chip')].map(c => c.getBoundingClientRect().height)")
        assert min(heights) >= 32  # a thumb hits them
        assert browser.run("document.getElementById('methods').getBoundingClientRect().height") < 780 / 3
        assert browser.complaints() == []


@in_a_browser
def test_a_page_draws_crosses_for_seeds_that_never_finished_a_round(tmp_path):
    runs = partly_diverged((0, 1), "first round") + [
        replace(run, rounds=[], state="diverged") for run in swept(rates=(1.6,), methods=("algorithm1",))
    ]
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.size(1200)
        browser.open(page(runs, tmp_path / "page.html"))
        browser.settle()
        crosses = "[...document.querySelectorAll('#sweep-0 .lost-point')].map(p => p.textContent)"
        assert browser.run(crosses) == ["2 of 6", ""]
        assert browser.run("document.querySelectorAll('#sweep-0 .point .hollow').length") == 1
        assert "client.lr=0.4: 2 of 6 seeds diverged" in browser.run(
            "document.getElementById('sweep-note').textContent"
        )
        assert browser.run("document.querySelectorAll('#result-table tbody tr').length") == 5
        assert browser.run("document.querySelectorAll('#weight-charts figure').length") == 4  # one has no round
        browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        browser.settle()
        assert browser.complaints() == []


@in_a_browser
def test_a_page_of_a_short_run_has_ticks_at_whole_rounds(tmp_path):
    run = report_runs.untrained(replace(BASE, rounds=2, eval_every=1))
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.size(1200)
        browser.open(page([run], tmp_path / "page.html"))
        browser.settle()
        ticks = browser.run("[...document.querySelectorAll('#accuracy-chart svg text')].map(t => t.textContent)")
        assert {"1", "2"} <= set(ticks)
        assert not {"0.5", "1.5"} & set(ticks)
        assert browser.complaints() == []


@in_a_browser
def test_zooming_clips_curves_and_crosshair_to_the_axes(tmp_path):
    path = page(swept(rates=(0.1,)), tmp_path / "page.html")
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.size(1200)
        browser.open(path)
        browser.settle()
        svg = "document.querySelector('#accuracy-chart svg')"
        browser.run("document.querySelector('#accuracy-chart').scrollIntoView({block: 'center'})")
        left, top, width, height = browser.run(
            f"(b => [b.left, b.top, b.width, b.height])({svg}.getBoundingClientRect())"
        )
        y = top + height / 2
        down = {"button": "left", "buttons": 1, "clickCount": 1}
        for kind, at, more in (
            ("Moved", 0.72, {}),
            ("Pressed", 0.72, down),
            ("Moved", 0.92, down),
            ("Released", 0.92, down),
        ):
            browser.mouse(kind, left + at * width, y, **more)
        browser.settle()
        low, high = map(float, browser.run(f"{svg}.dataset.x").split())
        assert 4 < low < high < 12  # no evaluation inside but the one at 8
        clip = browser.run(f"['x', 'width'].map(n => Number({svg}.querySelector('clipPath rect').getAttribute(n)))")
        frame = [float(v) for v in browser.run(f"{svg}.dataset.frame").split()]
        assert clip == [frame[0], frame[1] - frame[0]]
        assert (
            browser.run(f"{svg}.querySelector('path.curve').parentNode.getAttribute('clip-path')")
            == "url(#clip-accuracy-chart)"
        )
        browser.mouse("Moved", left + 0.97 * width, y)
        browser.settle()
        crosses = browser.run(f"[...{svg}.querySelectorAll('.cross circle')].map(c => Number(c.getAttribute('cx')))")
        assert all(frame[0] <= x <= frame[1] for x in crosses)
        shown = [float(v) for v in browser.run(f"{svg}.dataset.y").split()]
        assert shown != [0, 1]  # curves that cross the window set its height
        assert browser.complaints() == []


@in_a_browser
def test_dates_are_on_the_axes_and_long_names_of_groups_stay_on_a_phone(tmp_path):
    groups = tuple(
        DeviceGroup(
            name=f"Weather station {k} on the north ridge",
            count=1,
            site="miami",
            device="esp32",
            radio="lora-sf7",
            panel_wp=0.01 * (1 + k),
            battery_wh=0.5,
        )
        for k in range(12)
    )
    fleet = DeviceFleet(groups, round_s=43200.0)
    data = page_data([report_runs.untrained(replace(BASE, fleet=fleet, rounds=40))])
    data["clock"]["dates"] = [[0, "1 Jan"], [14, "8 Jan"], [28, "15 Jan"]]
    path = tmp_path / "page.html"
    path.write_text(render(data), encoding="utf-8")
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        for width in (400, 1200):
            browser.size(width, 780, mobile=width < 500)
            browser.open(path)
            browser.settle()
            for chart in ("#accuracy-chart svg", "#battery-chart svg:last-child", "#raster svg"):
                assert browser.run(f"document.querySelector('{chart}').textContent").count("Jan") >= 2
            boxes = browser.run(
                "[...document.querySelectorAll('#group-chart text')].filter(t => t.textContent.startsWith('Weather'))"
                ".map(t => (b => [b.left, b.right])(t.getBoundingClientRect()))"
            )
            assert len(boxes) == 12
            assert min(left for left, _ in boxes) >= 0
            assert max(right for _, right in boxes) <= width
            assert all(a[1] <= b[0] + 1 for a, b in itertools.pairwise(boxes))  # upright: side by side
            assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.complaints() == []


@in_a_browser
def test_names_of_hundreds_of_groups_do_not_overprint_on_a_page(tmp_path):
    groups = tuple(
        DeviceGroup(name=f"Site {k}, ESP32", count=1, site="miami", device="esp32", radio="lora-sf7",
                    panel_wp=0.02 / (1 + k / 99), battery_wh=0.5)
        for k in range(150)
    )  # fmt: skip
    path = tmp_path / "page.html"
    page([report_runs.untrained(replace(BASE, fleet=DeviceFleet(groups, round_s=43200.0), rounds=8))], path)
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.size(1200, 780)
        browser.open(path)
        browser.settle()
        for names in ("#raster .rows span", "#group-chart text"):
            boxes = browser.run(
                f"[...document.querySelectorAll('{names}')].filter(t => t.textContent.startsWith('Site'))"
                ".map(t => (b => [b.top, b.bottom, b.left, b.right])(t.getBoundingClientRect()))"
            )
            assert 10 < len(boxes) < 150
            for one, two in itertools.pairwise(boxes):
                assert one[1] <= two[0] + 2 or one[3] <= two[2] + 2  # below it, or beside it
        assert browser.complaints() == []


@in_a_browser
def test_a_sweep_without_worst_groups_has_no_empty_chart_of_them(tmp_path):
    """Beside the sweep there is a run of another method that has energy groups."""

    def run(method, bare, **settings):
        made = report_runs.untrained(replace(BASE, rounds=8, eval_every=4, **settings).with_method(method))
        return replace(made, rounds=[replace(r, metrics=r.metrics and _told(r.metrics, bare)) for r in made.rounds])

    def _told(metrics, bare):
        return Metrics(metrics.loss, None, None, None, None, None if bare else {"E=1": 1.0})

    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        for bare, charts in ((True, 1), (False, 2)):
            swept = [run("algorithm1", bare, local_steps=steps) for steps in (1, 2, 4)]
            path = tmp_path / f"{bare}.html"
            page([*swept, run("greedy", False, batch_size=3)], path)
            browser.open(path)
            browser.settle()
            assert browser.run("document.querySelectorAll('#sweep-charts svg.chart').length") == charts
        assert browser.complaints() == []
