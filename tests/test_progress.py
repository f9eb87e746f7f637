"""Progress is shown where somebody looks, after half a second, by the outermost call; it changes no result."""

from __future__ import annotations

import io
import sys
import types

import numpy as np
import pytest

import everfed as ef
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.showing import progress
from everfed.showing.progress import Bars, Notebook, Terminal, one_line, view

SMALL = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=4, eval_every=2, device="cpu", client=ef.SGD(0.1))


class Told:
    """A view that keeps what it is shown."""

    def __init__(self):
        self.seen, self.closed = [], 0

    def draw(self, bars):
        self.seen.append(one_line(bars)[0])

    def close(self, bars):
        self.closed += 1


class Screen(io.StringIO):
    def isatty(self):
        return True


def in_a_terminal(monkeypatch):
    """Called in the test: pytest sets standard error anew before it."""
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("EVERFED_PROGRESS", raising=False)


@pytest.fixture
def at_once(monkeypatch):
    """No delay, and what is drawn is kept."""
    made = []

    def views(asked=None):
        if asked is False:
            return None
        made.append(Told())
        return made[-1]

    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    monkeypatch.setattr(Bars.__init__, "__defaults__", (0.0,))
    for module in ("everfed.run.following", "everfed.studies.following", "everfed.auditing.following"):
        monkeypatch.setattr(f"{module}.view", views)
    return made


def test_nothing_is_shown_where_nobody_looks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert view() is None
    assert isinstance(view(True), Terminal)


def test_a_terminal_has_bars_unless_they_are_turned_off(monkeypatch):
    in_a_terminal(monkeypatch)
    assert isinstance(view(), Terminal)
    assert view(False) is None
    monkeypatch.setenv("TERM", "dumb")
    assert view() is None
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("EVERFED_PROGRESS", "0")
    assert view() is None


def test_a_notebook_has_one_line(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(view(), Notebook)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))  # a plain shell
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert view() is None


def test_a_notebooks_line_is_displayed_once_and_then_updated(monkeypatch):
    shown = []

    class Handle:
        def update(self, bundle, raw):
            shown.append(("update", bundle))

    def display(bundle, raw, display_id):
        shown.append(("display", bundle))
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    with Bars({"work": 2}, Notebook(), delay_s=0.0) as bars:
        monkeypatch.setattr(progress, "_EVERY_S", 0.0)
        bars.update("work", 1, "loss 0.5 <b>")
        bars._due = 0.0
        bars.update("work", 2)
    assert [how for how, _ in shown] == ["display", "update", "update"]
    assert shown[0][1]["text/plain"].startswith("work 50 % (1 of 2, 0 s")
    assert "&lt;b&gt;" in shown[0][1]["text/html"]


def test_quick_work_shows_nothing():
    told = Told()
    with Bars({"work": 100}, told) as bars:
        for done in range(100):
            bars.update("work", done)
    assert told.seen == []
    assert told.closed == 0


def test_only_the_outermost_bars_are_drawn():
    outer, inner = Told(), Told()
    with Bars({"outer": 2}, outer, delay_s=0.0) as bars:
        bars.update("outer", 1)
        with Bars({"inner": 2}, inner, delay_s=0.0) as nested:
            nested.update("inner", 1)
    assert (len(outer.seen), len(inner.seen)) == (1, 0)
    assert (outer.closed, inner.closed) == (1, 0)
    with Bars({"after": 1}, inner, delay_s=0.0) as bars:
        bars.update("after", 1)
    assert inner.closed == 1


def test_a_terminal_line_is_erased_in_the_end_and_says_how_far_it_is():
    from rich.console import Console

    screen = Screen()
    shown = Terminal(Console(file=screen, force_terminal=True, width=100), transient=True)
    with Bars({"Algorithm\x1b[31m 1": 4}, shown, delay_s=0.0) as bars:
        bars.update("Algorithm\x1b[31m 1", 3, "accuracy 91.0 %")
    text = screen.getvalue()
    assert "3/4" in text
    assert "accuracy 91.0 %" in text
    assert "Algorithm?[31m 1" in text  # a name cannot command the terminal
    assert text.endswith("\x1b[2K")


def test_runs_sweeps_tuning_and_audits_report_their_rounds(at_once, tmp_path):
    ef.simulate(SMALL)
    ef.compare(SMALL, methods=["algorithm1", "greedy"], seeds=2, out=tmp_path / "compare")
    ef.tune(SMALL, {"client.lr": [0.1, 0.2]}, methods=["greedy"], seeds=[1], out=tmp_path / "tune", extend=0)
    ef.audit(ef.Fleet.from_cycles([1, 2]), "greedy", 10, 5)
    ef.audit(ef.Fleet.from_cycles([1, 2]), "renewal", 10, 5)
    simulated, compared, tuned, audited, asynchronous = (told.seen[-1] for told in at_once)
    assert simulated.startswith("Algorithm 1 100 % (4 of 4")
    assert "accuracy" in simulated
    assert compared.startswith("rounds 100 % (16 of 16")
    assert compared.endswith("4 of 4 runs done)")
    assert tuned.startswith("rounds 100 % (8 of 8")
    assert audited.startswith("audit 100 % (10 of 10")
    assert asynchronous.startswith("audit 100 % (10 of 10")
    assert all(told.closed == 1 for told in at_once)


def test_progress_changes_no_result(at_once, tmp_path):
    shown, quiet = ef.simulate(SMALL), None
    assert at_once
    at_once.clear()
    quiet = ef.simulate("mlp", SMALL.make_data(SMALL.make_fleet()), SMALL.make_fleet(), progress=False, rounds=4,
                        eval_every=2, device="cpu", client=ef.SGD(0.1))  # fmt: skip
    assert not at_once
    assert all(np.array_equal(shown.params[name], quiet.params[name]) for name in shown.params)
    assert shown.final == quiet.final
