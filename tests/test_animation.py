"""The animation of README is what its script draws, and the script draws a real plan."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import everfed as ef
from browser import Browser, find_chromium

HERE = Path(__file__).parent.parent
sys.path.insert(0, str(HERE / "experiments"))

import animation  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def text() -> str:
    return animation.OUT.read_text(encoding="utf-8")


def test_the_committed_file_is_what_the_script_draws(text):
    assert animation.drawing(animation.course()) == text
    assert len(text.encode()) < 200_000


def test_every_training_of_the_plan_is_a_mark_a_flight_and_a_weight(text):
    fleet = ef.Fleet.from_cycles([1, 5, 10, 20])
    steps = list(ef.plan(fleet, ef.UniformWindow(), rounds=20, seed=0))  # README's plan, whatever fills the batteries
    wanted = sorted((step.round, animation.COLOURS[c]) for step in steps for c in step.clients)
    root = ElementTree.fromstring(text)
    named = [(node, node.get("class", "").split()) for node in root.iter()]
    marks = sorted(
        (int(names[1][1:]), node.get("fill")) for node, names in named if names[:1] == ["in"] and names[1][0] == "t"
    )
    flights = sorted((int(names[1][1:]), node[0].get("fill")) for node, names in named if names[:1] == ["fly"])
    assert marks == flights == wanted
    bars = [node for node, names in named if node.tag == f"{SVG}rect" and names[1:] and names[1][0] == "g"]
    for own in animation.COLOURS:  # every client has the same weight in the end: E updates of weight 20 / E
        widths = [float(bar.get("width")) + 1.2 for bar in bars if bar.get("fill") == own]
        assert sum(widths) == pytest.approx(20 * animation.UNIT, abs=0.1)
        assert np.ptp(widths) < 0.02


def test_batteries_never_pay_what_they_do_not_hold():
    told = animation.course()
    assert told.joins.sum(axis=0).tolist() == [20, 4, 2, 1]
    assert np.allclose(told.harvested - told.left, told.joins)
    assert told.left.min() > -1e-9
    assert told.harvested.max() <= animation.CAPACITY + 1e-9


def test_it_needs_no_script_and_no_network(text):
    assert "<script" not in text
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


@pytest.mark.skipif(find_chromium() is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_it_moves_and_stands_still_where_motion_is_not_wanted(text, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(f"<body>{text}</body>", encoding="utf-8")
    shown = "[...document.querySelectorAll('.in.t19, .in.t0')].map(n => getComputedStyle(n).opacity)"
    with closing(Browser(find_chromium() or "", tmp_path / "profile")) as browser:
        browser.open(page)
        to = "document.getAnimations().forEach(a => {{ a.pause(); a.currentTime = {} }})"
        browser.run(to.format(0))
        assert set(browser.run(shown)) == {"0"}
        browser.run(to.format(1000 * animation.LENGTH - 1))
        assert set(browser.run(shown)) == {"1"}
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        browser.open(page)
        assert browser.run("document.getAnimations().length") == 0
        assert set(browser.run(shown)) == {"1"}
        assert browser.run("[...document.querySelectorAll('.fly')].every(n => getComputedStyle(n).opacity === '0')")
