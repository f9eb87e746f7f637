"""Names below an axis that do not overprint."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

_LONGEST = 28  # letters of a name that stands at a slant; the rest is cut


class Names(NamedTuple):
    texts: list[str]
    how: dict[str, Any]  # for Matplotlib's `set_xticks`


def fit_names(names: Sequence[str], room: int) -> Names:
    """Names as they fit below an axis that has room for so many letters in a row: in lines, smaller, or at a slant."""
    each = max(1, room // max(1, len(names)) - 2)  # a gap between neighbours
    for size, gain in ((None, 1.0), (8, 1.25), (7, 1.43)):
        wrapped = [_lines(name, int(each * gain)) for name in names]
        if all(text is not None for text in wrapped):
            return Names([text or "" for text in wrapped], {"fontsize": size} if size else {})
    cut = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    slant = {"rotation": 90 if room // max(1, len(names)) < 2 else 40, "rotation_mode": "anchor", "ha": "right"}
    return Names(cut, {"fontsize": 8 if len(names) <= 12 else 7, **slant})


def _lines(name: str, width: int) -> str | None:
    """At most three lines of at most so many letters, broken at spaces; None if there are longer words."""
    parts = [
        line
        for part in name.replace(" @ ", ", @ ").split(", ")
        for line in textwrap.wrap(part, max(1, width), break_long_words=False, break_on_hyphens=False)
    ]
    return "\n".join(parts) if len(parts) <= 3 and all(len(part) <= width for part in parts) else None
