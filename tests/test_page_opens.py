"""The page opens in a real browser, whatever names are in it; `test_page_in_browser` looks at all that it draws."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

import report_runs
from browser import Browser, find_chromium
from everfed.report.page import page
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet

chromium = find_chromium()
pytestmark = pytest.mark.skipif(chromium is None, reason="no chromium, chromium-browser or google-chrome on the PATH")


def test_a_script_in_a_name_does_not_run(tmp_path):
    evil = "<img src=x onerror=window.hit=1><script>window.hit=1<\N{FULLWIDTH SOLIDUS}script>"
    run = report_runs.untrained(
        Experiment(fleet=CycleFleet(8, (1, 2, 4)), rounds=20, device="cpu"), name=evil, state=evil
    )
    path = page([replace(run, environment={evil: evil})], tmp_path / "page.html", title=evil)
    with closing(Browser(chromium or "", tmp_path / "profile")) as browser:
        browser.open(path)
        browser.settle()
        assert browser.run("window.hit") is None
        assert browser.run("document.title") == evil
        assert browser.complaints() == []
