"""Output of the commands, and progress of runs: a live view in a terminal, log lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from everfed.cli.spoken import printable
from everfed.errors import EverfedWarning
from everfed.run.history import RoundRecord
from everfed.showing.progress import Bars, Terminal
from everfed.store.files import strict
from everfed.studies import sweep
from everfed.units import energy

_BARS = "▁▂▃▄▅▆▇█"
PANEL = "Output"

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the result, no progress or notes.", rich_help_panel=PANEL)
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (like NO_COLOR=1).", rich_help_panel=PANEL)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=PANEL)]


class _Console(Console):
    """Shows every text as it is: no markup, no emoji, no control characters. Styles are given as styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class TextScreen:
    """Results go to standard output, everything else to standard error."""

    as_json = False

    def __init__(self, quiet: Quiet = False, no_color: NoColor = False, debug: Debug = False) -> None:
        """debug: read by `main`, which shows errors."""
        plain = no_color or "NO_COLOR" in os.environ
        colours: Any = None if plain else "auto"
        self.out = _Console(color_system=colours, width=None if sys.stdout.isatty() else 120)
        self.err = _Console(stderr=True, color_system=colours, quiet=quiet, soft_wrap=True)
        self.live = self.err.is_terminal and not quiet
        self._told: set[str] = set()
        warnings.simplefilter("always", EverfedWarning)
        warnings.showwarning = self._warn

    def _warn(self, message: Any, category: type[Warning], *details: Any, **more: Any) -> None:
        if issubclass(category, EverfedWarning) and str(message) not in self._told:
            self._told.add(str(message))  # a fleet that is built twice has the same to say
            self.note(str(message))

    def bars(self, totals: dict[str, int]) -> Bars:
        """Progress bars, which are drawn at once; nothing where there is no terminal."""
        return Bars(totals, Terminal(self.err) if self.live else None, delay_s=0.0)

    def say(self, what: str, text: str) -> None:
        """A sentence of the result behind a bold word."""
        self.out.print(Text.assemble((printable(what), "bold"), f": {printable(text)}"))

    def note(self, text: str) -> None:
        self.err.print(f"note: {text}", style="yellow")


class Screen(TextScreen):
    """A screen for commands that can also print JSON."""

    def __init__(
        self,
        json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=PANEL)] = False,
        quiet: Quiet = False,
        no_color: NoColor = False,
        debug: Debug = False,
    ) -> None:
        super().__init__(quiet, no_color, debug)
        self.as_json = json

    def json(self, value: Any) -> None:
        print(json.dumps(strict(value), indent=2, allow_nan=False))


def table(title: str, columns: Sequence[str], left: Sequence[str] | None = None, caption: str | None = None) -> Table:
    """An empty table of numbers. left: left-aligned columns, by default the first."""
    out = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in columns:
        out.add_column(column, justify="left" if column in (left or columns[:1]) else "right", overflow="fold")
    return out


def sparkline(values: Sequence[float], width: int = 30) -> str:
    """A line of blocks, from the lowest to the highest of the last `width` values."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (v - low) / span))] for v in shown)


def watched(
    records: Iterator[RoundRecord], total: int, screen: TextScreen, unit: str = "units"
) -> Iterator[RoundRecord]:
    """Yield the same records, showing each. unit: of the energy accounts."""
    accuracy: list[float] = []
    loss: list[float] = []
    with screen.bars({"": total}) as bars:
        for record in records:
            if record.metrics:
                loss.append(record.metrics.loss)
                accuracy += [record.metrics.accuracy] if record.metrics.accuracy is not None else []
                if not screen.live:
                    screen.err.print(_line(record, total, unit))
            bars.details = _details(record, accuracy, loss, unit) if screen.live else ""
            bars.update("", record.round + 1)
            yield record


def _details(record: RoundRecord, accuracy: list[float], loss: list[float], unit: str) -> str:
    lines = []
    if accuracy:
        lines.append(f"accuracy  {100 * accuracy[-1]:6.1f} %  {sparkline(accuracy)}")
    if loss:
        lines.append(f"loss      {loss[-1]:8.4f}  {sparkline(loss)}")
    books = record.energy
    took_part = "clients this round, round weight"
    if record.arrived:
        took_part = f"updates in this round of time, version {record.arrived.version:,}, weight"
    word = "arrived " if record.arrived else "training"
    lines.append(f"{word}  {len(record.participants):8,}  {took_part} {record.round_weight:.2f}")
    spent, harvested, wasted = (spent_energy(a, unit) for a in (books.spent, books.harvested, books.wasted))
    lines.append(f"energy    {spent:>8}  spent, {harvested} harvested, {wasted} wasted")
    return "\n".join(lines)


def _line(record: RoundRecord, total: int, unit: str) -> str:
    assert record.metrics
    accuracy = record.metrics.accuracy
    said = f"accuracy {100 * accuracy:.1f} %  " if accuracy is not None else ""
    held = f"validation loss {record.validation.loss:.4f}  " if record.validation else ""
    when, who = f"round {record.round + 1}/{total}", f"training {len(record.participants)}"
    if record.arrived:  # the model moves between rounds too
        when = f"time {record.round + 1}/{total} rounds"
        who = f"arrived {len(record.participants)}  version {record.arrived.version:,}"
    spent = spent_energy(record.energy.spent, unit)
    return f"{when}  {said}loss {record.metrics.loss:.4f}  {held}{who}  energy spent {spent}"


def spent_energy(value: float, unit: str) -> str:
    """Joules of devices with their prefix, or whole units."""
    return energy(value) if unit == "J" else f"{value:,.0f}"


@contextmanager
def many_runs(runs: Sequence[sweep.Planned], screen: TextScreen) -> Iterator[Callable[[sweep.Progress], None]]:
    """One progress bar per label; yields a function to call with every Progress."""
    labels = list(dict.fromkeys(run.label for run in runs))
    members = {label: [i for i, run in enumerate(runs) if run.label == label] for label in labels}
    done = [0] * len(runs)
    latest: dict[int, sweep.Progress] = {}  # with an evaluation
    finished: set[int] = set()
    totals = {label: sum(runs[i].experiment.rounds for i in mine) for label, mine in members.items()}

    def show(progress: sweep.Progress) -> None:
        i, run = progress.run, runs[progress.run]
        done[i] = progress.round
        if progress.loss is not None:
            latest[i] = progress
        mine = members[run.label]
        result = _result([latest[j] for j in mine if j in latest])
        bars.update(run.label, sum(done[j] for j in mine), result)
        if progress.note:
            screen.note(progress.note)
        elif progress.round == run.experiment.rounds and i not in finished and not screen.live:
            result = _result([latest[i]] if i in latest else [])
            screen.err.print(f"{run.label}, seed {run.experiment.seed}: done, {result}")
        if progress.round == run.experiment.rounds:
            finished.add(i)

    with screen.bars(totals) as bars:
        yield show


def _result(latest: Sequence[sweep.Progress]) -> str:
    """The mean accuracy, or the mean loss where there is no accuracy."""
    accuracies = [one.accuracy for one in latest if one.accuracy is not None]
    if latest and not accuracies:
        return f"loss {fmean(one.loss for one in latest if one.loss is not None):.4g}"
    return f"accuracy {100 * fmean(accuracies):.1f} %" if accuracies else "accuracy -"
