"""One look per method, the same in the figure and on the page."""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Style:
    """How a line looks. Colour is never the only difference: markers and dashes say it too."""

    colour: str  # on white
    dark: str  # on a dark page
    marker: str  # as matplotlib names it; the page draws the same shapes
    dash: tuple[int, ...] = ()  # lengths of strokes and gaps; empty is solid

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {"colour": self.colour, "dark": self.dark, "marker": self.marker, "dash": list(self.dash)}

    @property
    def linestyle(self) -> Any:
        """For Matplotlib, whose dashes count in line widths."""
        return (0, [part / 2 for part in self.dash]) if self.dash else "-"


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
_DASHES: tuple[tuple[int, ...], ...] = ((), (2, 3), (8, 3, 2, 3), (10, 4))
_MARKERS = "osD^vP<X"
_FAINTEST = 0.5  # how far the last line of a method goes towards white


def styles(methods: Iterable[str]) -> list[Style]:
    """One style a line: the hue is the method's, and shade and dash tell the lines of one method apart.

    Lines of a single method have hues of their own, since there is no other method to tell it from.
    """
    wanted = list(methods)
    if len(set(wanted)) == 1:
        looks = method_styles([wanted[0], *(f"{wanted[0]} {i}" for i in range(1, len(wanted)))])
        return [
            replace(look, dash=_DASHES[i % len(_DASHES)] if i else look.dash) for i, look in enumerate(looks.values())
        ]
    bases = method_styles(wanted)
    counts, seen = Counter(wanted), Counter[str]()
    out = []
    for method in wanted:
        out.append(variant(bases[method], seen[method], counts[method]))
        seen[method] += 1
    return out


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """The style of each method: its own where it is known, else one that no other method here has."""
    wanted = list(dict.fromkeys(methods))
    spare = [style for method, style in _KNOWN.items() if method not in wanted and method != "fedavg"]
    out = {}
    for i, method in enumerate(wanted):
        base = _KNOWN.get(method) or (spare.pop(0) if spare else _generated(i))
        known = method in _KNOWN
        out[method] = base if known else Style(base.colour, base.dark, _MARKERS[i % len(_MARKERS)])
    return out


def variant(base: Style, place: int, among: int) -> Style:
    """The look of one of several lines of a method; the first is the method's own."""
    if place == 0:
        return base
    part = _FAINTEST * place / max(1, among - 1)
    dashes = [base.dash, *(dash for dash in _DASHES if dash != base.dash)]
    step = _MARKERS.find(base.marker) + place // len(dashes)
    return Style(
        _mixed(base.colour, part),
        _mixed(base.dark, part),
        base.marker and _MARKERS[step % len(_MARKERS)],
        dashes[place % len(dashes)],
    )


def _mixed(colour: str, part: float) -> str:
    """A colour, part of the way towards white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(v + part * (255 - v)):02X}" for v in parts)


def _generated(place: int) -> Style:
    """Steps of the golden angle keep any number of hues apart."""
    hue = (place * 0.381966) % 1.0
    light, dark = (colorsys.hls_to_rgb(hue, lightness, 0.55) for lightness in (0.40, 0.66))
    return Style(_hex(light), _hex(dark), "o")


def _hex(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02X}" for part in rgb)
