"""Names below and beside an axis that do not overprint."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

_LONGEST = 28  # letters of a name that stands at a slant or beside an axis; the rest is cut
_UPRIGHT = 1.5  # letters of room that a name needs that stands upright


class Names(NamedTuple):
    at: list[int]  # which of the names are shown
    texts: list[str]
    how: dict[str, Any]  # for Matplotlib's `set_xticks`


def fit_names(names: Sequence[str], room: int) -> Names:
    """Names as they fit below an axis that has room for so many letters in a row.

    In lines, smaller, at a slant or upright; and if even these would overprint, every second or third of them.
    """
    plain = {"parse_math": False}  # a dollar in a name is a dollar
    each = max(1, room // max(1, len(names)) - 2)  # a gap between neighbours
    for size, gain in ((None, 1.0), (8, 1.25), (7, 1.43)):
        wrapped = [_lines(name, int(each * gain)) for name in names]
        if all(text is not None for text in wrapped):
            said = [text or "" for text in wrapped]
            return Names(list(range(len(names))), said, {"fontsize": size, **plain} if size else plain)
    shown = list(range(0, len(names), max(1, math.ceil(_UPRIGHT * len(names) / room))))
    cut = [cut_short(names[i]) for i in shown]
    slant = {"rotation": 90 if room // max(1, len(names)) < 2 else 40, "rotation_mode": "anchor", "ha": "right"}
    return Names(shown, cut, {"fontsize": 8 if len(names) <= 12 else 7, **slant, **plain})


def names_beside(ax: Any, places: Sequence[float], names: Sequence[str], rows: int, room: int = 20) -> None:
    """Names beside the y axis of a table with so many rows, as many as have room."""
    shown: list[int] = []
    for i, place in enumerate(places):
        if not shown or place - places[shown[-1]] >= rows / room:
            shown.append(i)
    ax.set_yticks([places[i] for i in shown], [cut_short(names[i]) for i in shown], parse_math=False)


def cut_short(name: str, longest: int = _LONGEST) -> str:
    """Without its middle, since names often differ in their ends alone.

    >>> cut_short("Greensboro, ESP32"), cut_short("Greensboro, ESP32", 12)
    ('Greensboro, ESP32', 'Greensb…SP32')
    """
    last = longest // 3
    return name if len(name) <= longest else f"{name[: longest - 1 - last]}…{name[-last:]}"


def _lines(name: str, width: int) -> str | None:
    """At most three lines of at most so many letters, broken at spaces; None if there are longer words."""
    parts = [
        line
        for part in name.replace(" @ ", ", @ ").split(", ")
        for line in textwrap.wrap(part, max(1, width), break_long_words=False, break_on_hyphens=False)
    ]
    return "\n".join(parts) if len(parts) <= 3 and all(len(part) <= width for part in parts) else None
