"""What an object says of itself: one description, as a short text in a terminal and as a card in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

MOST_ROWS = 10  # of a table: its first and its last ones; those between are counted
_MOST_TEXT = 28  # lines of a text, unless its facts alone have more
_WIDEST = 100  # characters of a line
_LEAST_LABEL = 12  # of a row, however wide its numbers are
_MOST_FOLDED = 3  # lines of a label
_MOST_LINES = 5  # of one fact
_GREY = "rgba(128,128,128,0.35)"  # seen on white and on black


@dataclass(frozen=True)
class Grid:
    """A table of texts: its first rows and its last ones. more: how many between them are not shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    last: Sequence[Sequence[str]] = ()
    more: int = 0

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> Grid:
        """Of many rows those at both ends: the best and the worst powered groups, say."""
        if len(rows) <= most + 1:  # a line for one row would save none
            return cls(columns, rows)
        first = most - most // 2
        return cls(columns, rows[:first], rows[len(rows) - most // 2 :], len(rows) - most)

    def fewer(self) -> Grid:
        """With one row less in the middle; the first and the last stay."""
        first, last, hidden = list(self.rows), list(self.last), self.more
        if not hidden:
            first, last = first[: -(-len(first) // 2)], first[-(-len(first) // 2) :]
        (first.pop() if len(first) > len(last) else last.pop(0))
        return Grid(self.columns, first, last, hidden + 1)

    def lines(self, width: int = _WIDEST, most: int | None = None) -> list[str]:
        """Words to the left, numbers to the right; where it is too wide the words wrap, so that no number is cut.

        most: lines; rows that would need more are counted instead.
        """
        table = [list(self.columns), *map(list, [*self.rows, *self.last])]
        widths = [max(len(row[i]) for row in table) for i in range(len(self.columns))]
        room = max(_LEAST_LABEL, width - sum(widths[1:]) - 2 * len(widths[1:]))
        widths[0] = min(widths[0], room)

        def said(rows: Sequence[Sequence[str]]) -> list[str]:
            return [
                "  ".join(
                    cell.ljust(w) if i == 0 else cell.rjust(w)
                    for i, (cell, w) in enumerate(zip(line, widths, strict=True))
                )
                for row in rows
                for line in (_folded(row, room) if len(row[0]) > room else [row])
            ]

        rest = [f"... {self.more:,} more ..."] if self.more else []
        out = said([self.columns, *self.rows]) + rest + said(self.last)
        if most is None or len(out) <= most or len(self.rows) + len(self.last) <= 2:
            return out
        return self.fewer().lines(width, most)

    def html(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            look = f"padding:1px 0 1px 14px;border:0;border-bottom:1px solid {_GREY};background:none;font-weight:"
            sides = ("left;padding-left:0", *["right"] * (len(row) - 1))
            weight = "600" if tag == "th" else "400"
            return "".join(
                f'<{tag} style="{look}{weight};text-align:{side}">{escape(cell)}</{tag}>'
                for side, cell in zip(sides, row, strict=True)
            )

        head = f"<tr>{cells(self.columns, 'th')}</tr>"
        body, last = (
            "".join(f'<tr style="background:none">{cells(row, "td")}</tr>' for row in rows)
            for rows in (self.rows, self.last)
        )
        wide = f'colspan="{len(self.columns)}" style="opacity:0.7;text-align:left;padding:1px 0;border:0"'
        rest = f'<tr style="background:none"><td {wide}>… {self.more:,} more …</td></tr>' if self.more else ""
        look = "border-collapse:collapse;margin:6px 0 0;font-size:inherit"
        return f'<table style="{look}">{head}{body}{rest}{last}</table>'


@dataclass(frozen=True)
class Card:
    """A title, facts by name, a table and a picture. picture: makes an SVG, or '' if there is nothing to draw."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    grid: Grid | None = None
    picture: Callable[[], str] | None = None

    def text(self) -> str:
        wide = max((len(name) for name, _ in self.facts), default=0)
        lines = [self.title]
        for name, value in self.facts:
            parts = textwrap.wrap(value, _WIDEST - wide - 4, max_lines=_MOST_LINES, placeholder=" ...") or [""]
            lines += [f"  {name if i == 0 else '':<{wide}}  {part}" for i, part in enumerate(parts)]
        lines = [_clipped(printable(line)) for line in lines]
        if self.grid:
            left = _MOST_TEXT - len(lines)
            lines += [f"  {printable(line)}".rstrip() for line in self.grid.lines(_WIDEST - 2, left)]
        return "\n".join(lines)

    def html(self) -> str:
        cells = "".join(
            f'<div style="opacity:0.7">{escape(name)}</div><div>{escape(value)}</div>' for name, value in self.facts
        )
        rows = f'<div style="display:grid;grid-template-columns:max-content auto;gap:0 12px">{cells}</div>'
        words = f'<div style="font-weight:600;margin-bottom:2px">{escape(self.title)}</div>{rows}'
        table = self.grid.html() if self.grid else ""
        picture = self.picture() if self.picture else ""
        drawn = f'<div style="flex:none">{picture}</div>' if picture else ""
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start;font-size:13px;'
            'line-height:1.5">'
            f'<div style="max-width:52em">{words}{table}</div>{drawn}</div>'
        )


class Shown:
    """Objects that describe themselves with `_card`. Their dataclasses must say repr=False to be heard."""

    def _card(self) -> Card:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def _folded(row: Sequence[str], room: int) -> list[list[str]]:
    """A row whose first cell takes several lines; the numbers stand in the first."""
    parts = textwrap.wrap(row[0], room, subsequent_indent="  ", break_on_hyphens=False) or [""]
    if len(parts) > _MOST_FOLDED:  # names may differ in their ends alone
        whole = textwrap.wrap(row[0], room - 6, break_on_hyphens=False)
        parts = [whole[0], f"  ... {whole[-2]}", f"  {whole[-1]}"]
    return [[part, *(row[1:] if i == 0 else [""] * len(row[1:]))] for i, part in enumerate(parts)]


def _clipped(line: str) -> str:
    return line.rstrip() if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."


def printable(text: str) -> str:
    """In one line, and without what a terminal would obey: names may come from files of others.

    >>> printable("a\\x1b[31m red\\nname")
    'a?[31m red name'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))


def ends(values: Sequence[Any], most: int = MOST_ROWS) -> Sequence[Any]:
    """Of many values the first and the last, as tables show them.

    >>> ends(range(100), 4)
    [0, 1, 98, 99]
    """
    if len(values) <= most:
        return values
    return [*values[: most - most // 2], *values[len(values) - most // 2 :]]


def brief(values: Sequence[object], most: int = 6, between: str = ", ") -> str:
    """'1, 5, 10, 20', and of many the first, the last and their number.

    >>> brief([1, 5, 10, 20]), brief(range(100))
    ('1, 5, 10, 20', '0, 1, 2, ..., 99 (100 values)')
    """
    if len(values) <= most:
        return between.join(map(str, values))
    shown = [*values[:3], "...", f"{values[len(values) - 1]} ({len(values):,} values)"]
    return between.join(map(str, shown))


def numeral(value: float | None, digits: int = 4) -> str:
    """Four significant digits, thousands with commas; '-' if there is none.

    >>> numeral(12345.6), numeral(0.00123456), numeral(None), numeral(3.0)
    ('12,346', '0.001235', '-', '3')
    """
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def span(low: float, high: float) -> str:
    """'5', or '5 to 20'."""
    return numeral(low) if low == high else f"{numeral(low)} to {numeral(high)}"
