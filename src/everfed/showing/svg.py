"""Small pictures for notebooks, as SVG. Words and axes take the page's own colour, so that they suit a dark theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from everfed.arrays import Floats
from everfed.showing.colours import MIDDLE
from everfed.showing.labels import cut_short

WIDTH, HEIGHT = 330, 150
_LETTERS = 20  # of a name beside dots
_MOST_POINTS = 300  # of a curve; a pixel shows no more
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 20, 22


def lines(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]], title: str, bottom: float | None = None
) -> str:
    """Curves (name, x, y) over a common x; bottom: the least y that is shown."""
    drawn = [(name, np.asarray(x, float), np.asarray(y, float)) for name, x, y in series if len(x)]
    drawn = [(name, x[np.isfinite(y)], y[np.isfinite(y)]) for name, x, y in drawn]
    drawn = [one for one in drawn if len(one[1])]
    if not drawn:
        return ""
    left, right = min(x.min() for _, x, _ in drawn), max(x.max() for _, x, _ in drawn)
    low, high = min(y.min() for _, _, y in drawn), max(y.max() for _, _, y in drawn)
    low = low if bottom is None else min(bottom, low)
    parts = _frame(title, left, right, low, high)
    for place, (_, x, y) in enumerate(drawn):
        if len(x) > _MOST_POINTS:
            some = np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(np.int64)
            x, y = x[some], y[some]
        across, up = _across(x, left, right), _up(y, low, high)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
        colour = MIDDLE[place % len(MIDDLE)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(x) == 1:
            parts.append(f'<circle cx="{across[0]:.1f}" cy="{up[0]:.1f}" r="3" fill="{colour}"/>')
    return _svg(parts + _legend([name for name, _, _ in drawn]))


def dots(rows: Sequence[tuple[str, float, float | None]], title: str, level: float) -> str:
    """One row (name, measured, exact) each: a dot for the first, a ring for the second, a line where they should be."""
    rows = [row for row in rows if math.isfinite(row[1])]
    if not rows:
        return ""
    values = [v for _, one, two in rows for v in (one, two, level) if v is not None]
    low, high = min(0.0, *values), max(values) * 1.1
    step = (HEIGHT - _TOP - _BOTTOM) / len(rows)
    names = [cut_short(name, _LETTERS) for name, _, _ in rows]
    left = max(_LEFT, 12 + 5.7 * max(map(len, names)))
    parts = [_word(_LEFT - 34, 12, title, "start", 0), *_ticks_below(low, high, edge=left)]
    at = _across(np.array([level]), low, high, left)[0]
    parts.append(_line(at, _TOP, at, HEIGHT - _BOTTOM, 0.8, "4 3"))
    for place, (name, (_, measured, exact)) in enumerate(zip(names, rows, strict=True)):
        y = _TOP + (place + 0.5) * step
        parts.append(_word(left - 6, y + 3.5, name, "end"))
        x = _across(np.array([measured]), low, high, left)[0]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{MIDDLE[0]}"/>')
        if exact is not None and math.isfinite(exact):
            x = _across(np.array([exact]), low, high, left)[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="none" stroke="{MIDDLE[1]}"/>')
    return _svg(parts)


def raster(cells: Floats, title: str, below: str, colour: str = MIDDLE[0]) -> str:
    """[rows, columns] of numbers from 0 to 1, as squares of that opacity."""
    rows, columns = cells.shape
    if not cells.size:
        return ""
    wide, high = (WIDTH - _LEFT - _RIGHT + 34) / columns, (HEIGHT - _TOP - _BOTTOM) / rows
    left = _LEFT - 34
    parts = [_word(left, 12, title, "start", 0), _word(left, HEIGHT - 6, below, "start")]
    parts.append(
        f'<rect x="{left}" y="{_TOP}" width="{wide * columns:.1f}" height="{high * rows:.1f}" fill="currentColor" '
        'opacity="0.07"/>'
    )
    gap = min(1.0, 0.12 * min(wide, high)) if min(wide, high) > 4 else 0.0  # pixels
    for row, column in np.argwhere(cells > 0.0):
        parts.append(
            f'<rect x="{left + column * wide + gap / 2:.2f}" y="{_TOP + row * high + gap / 2:.2f}" '
            f'width="{wide - gap:.2f}" height="{high - gap:.2f}" fill="{colour}" '
            f'opacity="{0.25 + 0.75 * float(cells[row, column]):.2f}"/>'
        )
    return _svg(parts)


def bars(values: Sequence[float], title: str, below: str) -> str:
    """One bar each, from zero."""
    heights = np.asarray(values, float)
    if not heights.size:
        return ""
    most = float(heights.max()) or 1.0
    parts = _frame(title, 0, len(heights), 0.0, most, across=False)
    wide = (WIDTH - _LEFT - _RIGHT) / len(heights)
    for place, height in enumerate(heights):
        top = _up(np.array([height]), 0.0, most)[0]
        parts.append(
            f'<rect x="{_LEFT + place * wide:.2f}" y="{top:.1f}" width="{max(0.6, 0.9 * wide):.2f}" '
            f'height="{HEIGHT - _BOTTOM - top:.1f}" fill="{MIDDLE[0]}"/>'
        )
    return _svg([*parts, _word(_LEFT, HEIGHT - 6, below, "start")])


def _frame(title: str, left: float, right: float, low: float, high: float, across: bool = True) -> list[str]:
    parts = [_word(_LEFT - 34, 12, title, "start", 0)]
    for value in dict.fromkeys((low, (low + high) / 2, high)):
        y = _up(np.array([value]), low, high)[0]
        parts += [_line(_LEFT, y, WIDTH - _RIGHT, y, 0.18), _word(_LEFT - 5, y + 3.5, _short(value), "end")]
    return parts + (_ticks_below(left, right, lines=False) if across else [])


def _ticks_below(low: float, high: float, lines: bool = True, edge: float = _LEFT) -> list[str]:
    out = []
    middle = (low + high) / 2
    middle = middle if high - low < 10 else round(middle)
    at = [(low, "start"), (middle, "middle"), (high, "end")]
    if not lines:  # rounds, of which there are whole ones
        at = [(value, anchor) for value, anchor in at if value == round(value)][: 1 if low == high else 3]
    for value, anchor in at:
        x = _across(np.array([value]), low, high, edge)[0]
        if lines:
            out.append(_line(x, _TOP, x, HEIGHT - _BOTTOM, 0.18))
        out.append(_word(x, HEIGHT - 6, _short(value), anchor))
    return out


def _legend(names: Sequence[str]) -> list[str]:
    """Names beside a curve's colour, at the top right; one curve needs none, and many have no room."""
    if not 1 < len(names) <= 4 or sum(map(len, names)) > 30:
        return []
    out, x = [], float(WIDTH - _RIGHT)
    for place in range(len(names) - 1, -1, -1):
        out.append(_word(x, 12, names[place], "end"))
        x -= 5.4 * len(names[place]) + 8
        out.append(f'<circle cx="{x:.1f}" cy="8.5" r="3.5" fill="{MIDDLE[place % len(MIDDLE)]}"/>')
        x -= 12
    return out


def _across(values: Floats, left: float, right: float, edge: float = _LEFT) -> Floats:
    part = (values - left) / ((right - left) or 1.0)
    out: Floats = edge + part * (WIDTH - edge - _RIGHT)
    return out


def _up(values: Floats, low: float, high: float) -> Floats:
    part = (values - low) / ((high - low) or 1.0)
    out: Floats = HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)
    return out


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _line(x1: float, y1: float, x2: float, y2: float, opacity: float, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-opacity="{opacity}"{dashed}/>'


def _word(x: float, y: float, text: str, anchor: str, least: float = 0.75) -> str:
    size = 10 if least else 11
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="currentColor" '
        f'fill-opacity="{least or 1}">{escape(text)}</text>'
    )


def _svg(parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" font-family="sans-serif">{"".join(parts)}</svg>'
    )
