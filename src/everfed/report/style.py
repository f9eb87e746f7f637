"""One look per method, the same in the figure and on the page."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How a line looks. Colour is never the only difference: markers and dashes say it too."""

    colour: str  # on white
    dark: str  # on a dark page
    marker: str  # as matplotlib names it; the page draws the same shapes
    dash: tuple[int, ...] = ()  # lengths of strokes and gaps; empty is solid


# Okabe and Ito's palette: distinct under the common colour blindnesses, and in grey print.
_KNOWN = {
    "algorithm1": Style("#0072B2", "#4FA8E0", "o"),
    "greedy": Style("#D55E00", "#F0803C", "s"),
    "wait-for-all": Style("#009E73", "#2FC79B", "D"),
    "fedavg": Style("#444444", "#C4C8CE", "^", (6, 4)),
    "greedy-normalized": Style("#E69F00", "#F2B636", "v"),
    "greedy-scaled": Style("#CC79A7", "#E29BC2", "P"),
    "algorithm1-unscaled": Style("#56B4E9", "#86CBF2", "<"),
    "bernoulli": Style("#8A6FBF", "#AE97DB", "X"),
}
_MARKERS = "osD^vP<X"
_DASHES: tuple[tuple[int, ...], ...] = ((), (2, 3), (8, 3, 2, 3), (10, 4))


def styles(methods: Iterable[str]) -> list[Style]:
    """One style a line: a known method's own for its first line, others take what is left."""
    wanted = list(methods)
    taken: set[str] = set()
    out: list[Style | None] = []
    for method in wanted:
        free = method in _KNOWN and method not in taken
        out.append(_KNOWN[method] if free else None)
        taken.add(method)
    spare = [style for method, style in _KNOWN.items() if method not in taken and method != "fedavg"]
    again: dict[str, int] = {}
    for i, method in enumerate(wanted):
        again[method] = again.get(method, -1) + 1
        if out[i] is None:
            base = spare.pop(0) if spare else _generated(i)
            repeat = again[method]  # 0 for the only line of a method that has no style of its own
            out[i] = Style(base.colour, base.dark, _MARKERS[i % len(_MARKERS)], _DASHES[repeat % len(_DASHES)])
    return [style for style in out if style is not None]


def _generated(place: int) -> Style:
    """Steps of the golden angle keep any number of hues apart."""
    hue = (place * 0.381966) % 1.0
    light, dark = (colorsys.hls_to_rgb(hue, lightness, 0.55) for lightness in (0.40, 0.66))
    return Style(_hex(light), _hex(dark), "o")


def _hex(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02X}" for part in rgb)
