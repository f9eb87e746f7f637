"""What people see of unusual objects: one client, one round, many groups, names from others, numbers that are none."""

from __future__ import annotations

import itertools
import re
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

import everfed as ef
import report_runs
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.errors import EverfedWarning
from everfed.learning.metrics import Metrics
from everfed.report.figure import figure
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.showing import svg
from everfed.showing.card import Card, Grid

mpl.use("agg")
MOST_LINES, WIDEST = 29, 100
SMALL = Experiment(fleet=CycleFleet(4, (1, 4)), rounds=8, eval_every=4, device="cpu")
EVIL = "<script>alert('1')</script> & \"both\" quotes, $\\frac{ $ [bold]red[/bold] \x1b[31m"
ESP32 = DeviceGroup(
    count=2, site="miami", device="esp32", radio="lora-sf7", step_s=50, panel_wp=0.02, battery_wh=0.5
)  # fmt: skip


def fleet_of(names):
    """Groups of devices with these names, each with a smaller panel than the one before."""
    groups = [replace(ESP32, name=name, panel_wp=0.02 / (1 + i / 50)) for i, name in enumerate(names)]
    return DeviceFleet(tuple(groups), round_s=43200, start_day="01-01", model_mb=0.02)


FLEETS = {
    "one client": CycleFleet(1, (1,)),
    "many cycles": CycleFleet(400, tuple(range(1, 401))),
    "names from others": fleet_of([EVIL, EVIL * 3, "Miami"]),
    "long names": fleet_of([f"{'a long name ' * 20}{i}" for i in range(12)]),
    "one long word": fleet_of(["x" * 300, "y" * 300]),
    "hundreds of groups": fleet_of([f"Site number {i}, ESP32" for i in range(150)]),
}


@pytest.fixture(autouse=True)
def _horizons_do_not_matter():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of Matplotlib and NumPy, say
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a control character has none
        warnings.simplefilter("ignore", EverfedWarning)
        yield


def shown_well(thing):
    lines = repr(thing).splitlines()
    assert len(lines) <= MOST_LINES, repr(thing)
    assert max(map(len, lines)) <= WIDEST, repr(thing)
    assert all(line.isprintable() for line in lines)
    card = thing._repr_html_()
    assert "<script" not in card
    ElementTree.fromstring(card.replace("\x1b", ""))  # tags are closed, and texts escaped
    return card


def drawn_well(thing):
    """Names do not overprint, and leave room for what they name."""
    import matplotlib.pyplot as plt

    ax = thing.plot()
    ax.figure.canvas.draw()  # raises where a name is read as a formula; warns where it leaves no room
    whole = ax.figure.bbox
    assert ax.bbox.width > 0.3 * whole.width
    assert ax.bbox.height > 0.3 * whole.height
    boxes = [label.get_window_extent() for label in ax.get_yticklabels() if label.get_text()]
    assert all(not one.overlaps(two) for one, two in itertools.pairwise(sorted(boxes, key=lambda box: box.y0)))
    if legend := ax.get_legend():
        assert legend.get_window_extent().height <= whole.height
    plt.close("all")


@pytest.mark.parametrize("kind", FLEETS)
def test_fleets_plans_audits_and_runs_of_every_kind_are_shown_well(kind, tmp_path):
    experiment = replace(SMALL, fleet=FLEETS[kind])
    fleet, run = experiment.make_fleet(), report_runs.untrained(experiment)
    things = [fleet, ef.plan(fleet, "algorithm1", 8), ef.audit(fleet, "greedy", 8, 2), run, ef.compare_runs([run])]
    for thing in things:
        shown_well(thing)
        drawn_well(thing)
    shown_well(experiment)
    figure([run], tmp_path / "figure.png", title="$\\frac{ $")


@pytest.mark.parametrize("kind", ["long names", "hundreds of groups"])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_data_are_drawn_beside_every_kind_of_fleet(kind, task):
    fleet = replace(SMALL, fleet=FLEETS[kind]).make_fleet()
    y = np.arange(3) if task == "classes" else np.arange(3.0)
    data = ef.from_arrays([(np.zeros((3, 2)), y)] * len(fleet), name=EVIL)
    shown_well(data)
    drawn_well(data)
    ax = data.plot(fleet=fleet)
    ax.figure.canvas.draw()
    labels = ax.get_yticklabels() if task == "classes" else ax.get_xticklabels()
    assert len({label.get_text() for label in labels}) == len(labels) > 1


def with_metrics(metrics, state="diverged"):
    run = report_runs.untrained(SMALL)
    return replace(run, rounds=[replace(r, metrics=r.metrics and metrics) for r in run.rounds], state=state)


SVG = "{http://www.w3.org/2000/svg}"
NAN, INF = float("nan"), float("inf")
ODD = {
    "nothing is a number": Metrics(NAN, NAN, (NAN,) * 10, (1.0,) * 10, {"E=1": NAN, "E=4": NAN}, {"E=1": NAN}),
    "infinite": Metrics(INF, 0.1, (0.1,) * 10, (1.0,) * 10, {"E=1": 0.1, "E=4": NAN}, {"E=1": INF, "E=4": NAN}),
    "huge, no classes": Metrics(1.5e30, None, None, None, None, {"E=1": 1e30, "E=4": 2e30}, own={"mae": NAN}),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("state", ["done", "diverged"])
def test_numbers_that_are_none_are_not_shown_as_numbers(name, state):
    run = with_metrics(ODD[name], state)
    for thing in (run, ef.compare_runs([run])):
        assert "nan" not in shown_well(thing).lower()
        assert "nan" not in repr(thing).lower()
        drawn_well(thing)
    assert len(run.to_frame()) == 8


def test_a_group_that_appears_late_is_drawn_from_then_on():
    run = report_runs.untrained(SMALL)
    groups = iter([{"E=1": 0.9}, {"E=1": 0.8, "E=4": 0.3}])
    rounds = [replace(r, metrics=r.metrics and replace(r.metrics, group_accuracy=next(groups))) for r in run.rounds]
    late = replace(run, rounds=rounds)
    shown_well(late)
    drawn_well(late)


@pytest.mark.parametrize("rounds", [0, 2])
def test_runs_that_ended_before_an_evaluation_have_frames_too(rounds):
    run = report_runs.untrained(SMALL)
    run = replace(run, rounds=run.rounds[:rounds], state="stopped")
    assert run.to_frame().index.name == "round"
    assert len(run.to_frame()) == rounds
    frame = ef.compare_runs([run]).to_frame()
    assert (len(frame), frame.index.name) == (0, "label")
    assert "<svg" not in shown_well(run)


def test_energy_that_batteries_began_with_is_not_said_to_be_harvested():
    fleet = fleet_of(["dim"])
    dim = replace(fleet, groups=(replace(fleet.groups[0], panel_wp=4e-4),))
    run = report_runs.untrained(replace(SMALL, fleet=dim).with_method("greedy"))
    assert run.energy.spent > run.energy.harvested
    assert " of " not in re.search(r"energy  +(.*)", repr(run))[1]


def test_one_of_a_thing_is_not_called_several():
    fleet = ef.Fleet.from_cycles([1])
    assert repr(ef.audit(fleet, "greedy", 1, 1)).startswith("Audit: 1 round, 1 seed\n")
    assert "1 client a round" in repr(fleet)
    assert "round 0 across, 1 client down" in ef.plan(fleet, "greedy", 1)._repr_html_()


def test_of_many_rows_the_first_and_the_last_are_shown():
    """The last groups have the least energy, which is what an audit is about."""
    audit = ef.audit(replace(SMALL, fleet=FLEETS["hundreds of groups"]).make_fleet(), "greedy", 8, 2)
    names = [group.label for group in audit.groups]
    for text in (repr(audit).split("measured (exact)")[1], audit._repr_html_().split("measured (exact)")[1]):
        assert names[0] in text
        assert names[-1] in text
    assert "140 more" in repr(audit)


def test_rows_that_find_no_room_are_counted():
    for count, words in itertools.product((3, 9, 11, 12, 300), (1, 60)):
        rows = [(f"{i} {'word ' * words}", str(i)) for i in range(count)]
        text = Card("title", [("fact", "long " * 200)] * 3, Grid.of(("name", "number"), rows)).text().splitlines()
        assert len(text) <= MOST_LINES
        shown = {int(line.split()[-1]) for line in text if line.split()[-1].isdigit()}
        hidden = sum(int(found[1]) for line in text if (found := re.search(r"\.\.\. (\d+) more", line)))
        assert len(shown) + hidden == count
        assert {0, count - 1} <= shown


def test_the_ticks_of_a_small_picture_are_whole_rounds_and_stand_apart():
    def ticks(x):
        root = ElementTree.fromstring(svg.lines([("all", x, [1.0] * len(x))], "loss", 0.0))
        return [text.text for text in root.iter(f"{SVG}text") if float(text.get("y")) > svg.HEIGHT - 10]

    assert ticks([1]) == ["1"]
    assert ticks([2, 5]) == ["2", "5"]
    assert ticks([2, 4, 6]) == ["2", "4", "6"]


def test_the_squares_of_a_small_raster_fill_their_cells():
    for rows, columns in ((1, 1), (2, 20), (24, 60)):
        root = ElementTree.fromstring(svg.raster(np.ones((rows, columns)), "title", "below"))
        back, *squares = root.iter(f"{SVG}rect")
        whole = float(back.get("width")) * float(back.get("height"))
        area = sum(float(square.get("width")) * float(square.get("height")) for square in squares)
        assert 0.75 * whole < area <= whole * 1.001


def test_names_beside_dots_stay_inside_the_picture():
    root = ElementTree.fromstring(svg.dots([("Greensboro, Pi Zero", 0.5, 0.6), ("E=1", 1.0, None)], "weight", 1.0))
    for text in root.iter(f"{SVG}text"):
        if text.get("text-anchor") == "end":
            assert float(text.get("x")) > 5.2 * len(text.text)  # as wide as letters of this size are on average


def test_many_curves_differ_in_colour_or_dash():
    fleet = ef.Fleet.from_cycles(range(1, 401))
    lines = fleet.plot().get_lines()
    assert len({(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in lines}) == len(lines)


def test_the_path_of_a_run_is_a_name_too():
    run = replace(report_runs.untrained(SMALL), path=Path(EVIL))
    shown_well(run)
