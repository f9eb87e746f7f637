"""Progress of long work: bars in a terminal, one line in a notebook, nothing anywhere else.

The library and the commands use the same `Bars`. Nothing is imported or drawn in the first half second, and only the
outermost bars are drawn, so that work inside of other work does not show its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Protocol

from everfed.showing.card import printable

_DELAY_S = 0.5  # what is done by then shows nothing
_EVERY_S = 0.1  # between two drawings
_drawing: list[Bars] = []  # the outermost bars, once they are drawn


class View(Protocol):
    """Where bars are drawn."""

    def draw(self, bars: Bars) -> None: ...

    def close(self, bars: Bars) -> None: ...


def view(progress: bool | None = None) -> View | None:
    """Where the library shows progress: in a notebook or a terminal; None: nowhere.

    progress: False turns it off, True on even where the output is a file. The environment variable EVERFED_PROGRESS=0
    turns it off unless True is given.
    """
    if progress is False or (progress is None and os.environ.get("EVERFED_PROGRESS") == "0"):
        return None
    if in_notebook():
        return Notebook()
    terminal = bool(getattr(sys.stderr, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
    return Terminal(transient=True) if terminal or progress else None


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Bars(AbstractContextManager["Bars"]):
    """How far each of several parts is. totals: steps of each, by label. where: None draws nothing."""

    def __init__(self, totals: Mapping[str, int], where: View | None, delay_s: float = _DELAY_S) -> None:
        self.totals, self.where = dict(totals), where
        self.done = dict.fromkeys(self.totals, 0)
        self.results = dict.fromkeys(self.totals, "")  # a few words behind each bar
        self.details = ""  # lines below all bars, in a terminal
        self.began = time.monotonic()
        self._due = self.began + delay_s

    def update(self, label: str, done: int, result: str | None = None) -> None:
        self.done[label] = done
        if result is not None:
            self.results[label] = result
        if self.where is None or time.monotonic() < self._due:
            return
        if not _drawing:
            _drawing.append(self)
        if _drawing[0] is self:
            self.where.draw(self)
        self._due = time.monotonic() + _EVERY_S

    def __exit__(self, *ended: object) -> None:
        if self.where is not None and _drawing and _drawing[0] is self:
            _drawing.clear()
            self.where.close(self)


class Terminal:
    """Bars of rich. transient: whether they are erased in the end."""

    def __init__(self, console: Any = None, transient: bool = False) -> None:
        self.console, self.transient = console, transient
        self.live: Any = None

    def _open(self, bars: Bars) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn as Remaining,
        )
        from rich.text import Text

        label, result = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[result]"))
        times = (TimeElapsedColumn(), TextColumn("left"), Remaining())
        self.progress = Progress(label, BarColumn(20), MofNCompleteColumn(), *times, result)
        self.tasks = {}
        for name, total in bars.totals.items():
            self.tasks[name] = self.progress.add_task(printable(name), total=total, result="")
        for task in self.progress.tasks:
            task.start_time = bars.began
        self.text = Text("")
        shown = Group(self.progress, self.text) if bars.details else self.progress
        console = self.console or Console(stderr=True, highlight=False)
        # What is printed to a file meanwhile must not go to the terminal.
        self.live = Live(
            shown, console=console, refresh_per_second=8, transient=self.transient, redirect_stdout=sys.stdout.isatty()
        )
        self.live.start()

    def draw(self, bars: Bars) -> None:
        if self.live is None:
            self._open(bars)
        for label, task in self.tasks.items():
            self.progress.update(task, completed=bars.done[label], result=bars.results[label])
        self.text.plain = bars.details

    def close(self, bars: Bars) -> None:
        self.draw(bars)
        self.live.stop()


class Notebook:
    """One line of a cell's output, which stays with the time it took. Needs no widgets."""

    def __init__(self) -> None:
        self.handle: Any = None

    def draw(self, bars: Bars) -> None:
        self._show(bars)

    def close(self, bars: Bars) -> None:
        self._show(bars)

    def _show(self, bars: Bars) -> None:
        from IPython.display import display

        bundle = dict(zip(("text/plain", "text/html"), one_line(bars), strict=True))
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)


def one_line(bars: Bars) -> tuple[str, str]:
    """All bars in one line, as text and as HTML."""
    done, total = sum(bars.done.values()), max(1, sum(bars.totals.values()))
    took = time.monotonic() - bars.began
    left = f", {_time(took * (total - done) / done)} left" if 0 < done < total else ""
    label, result = (next(iter(one.values()), "") if len(one) == 1 else "" for one in (_names(bars), bars.results))
    words = f"{done:,} of {total:,}, {_time(took)}{left}{'; ' * bool(result)}{result}"
    bar = f'<progress max="{total}" value="{done}" style="width:12em;vertical-align:middle"></progress>'
    plain = f"{label} {100 * done // total} % ({words})".strip()
    return plain, f'<div style="font-size:13px">{escape(label)} {bar} {escape(words)}</div>'


def _names(bars: Bars) -> dict[str, str]:
    return {label: label for label in bars.totals}


def _time(seconds: float) -> str:
    """'4 s', '3:05', '1:02:09'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
