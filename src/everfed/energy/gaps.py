"""Rows that are missing from recorded files, and the rule by which they are filled in.

A file says nothing of its gaps, so that every rule is a guess; the default refuses them. What was filled in is told.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from everfed.arrays import Bools, Floats, Ints
from everfed.errors import InputError
from everfed.units import duration

# hold: as before the gap. zero: nothing arrives. interpolate: on a straight line from before it to after it.
RULES = ("refuse", "hold", "zero", "interpolate")
Rule = Annotated[str, RULES]
Longest = Annotated[float, "(0, inf)"]
DEFAULT_LONGEST_H = 3.0


class Gaps(NamedTuple):
    """What becomes of missing rows and empty values; longer gaps than longest_h hours are refused all the same."""

    rule: str = "refuse"
    longest_h: float = DEFAULT_LONGEST_H

    @property
    def refuses(self) -> bool:
        return self.rule == "refuse"


REFUSE = Gaps()


def fill(values: Floats, missing: Bools, step_s: float, gaps: Gaps, where: str) -> tuple[Floats, float]:
    """The values without gaps, and the share of them that was filled in. where: the file, for errors."""
    if not missing.any():
        return values, 0.0
    edges = np.flatnonzero(np.diff(np.pad(missing.astype(np.int8), 1))).reshape(-1, 2)
    longest = int(np.argmax(edges[:, 1] - edges[:, 0]))
    first, after = (int(end) for end in edges[longest])
    length_s = (after - first) * step_s
    said = f"{where}: {duration(length_s)} without values, from {duration(first * step_s)} after its start"
    if gaps.refuses:
        raise InputError(f'{said}; fill the gap in, or say gaps = "hold", "zero" or "interpolate".')
    if length_s > gaps.longest_h * 3600.0 * (1.0 + 1e-9):
        raise InputError(
            f"{said}, and gaps of at most {duration(gaps.longest_h * 3600.0)} are filled in; cut the file there, or "
            "raise longest_gap_h."
        )
    at_an_end = missing[0] or (missing[-1] and gaps.rule == "interpolate")
    if at_an_end and gaps.rule != "zero":
        end = "first" if missing[0] else "last"
        raise InputError(
            f"{where}: the {end} value is missing, and there is none to {gaps.rule} from; cut the file, or say gaps = "
            '"zero".'
        )
    return _filled(values, missing, gaps.rule), float(missing.mean())


def _filled(values: Floats, missing: Bools, rule: str) -> Floats:
    if rule == "zero":
        return np.where(missing, 0.0, values)
    rows: Ints = np.arange(len(values))
    if rule == "hold":
        return values[np.maximum.accumulate(np.where(missing, 0, rows))]
    known = rows[~missing]
    found: Floats = np.interp(rows, known, values[known])
    return found
