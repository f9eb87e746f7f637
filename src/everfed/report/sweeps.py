"""Sweeps: how the final result depends on each setting that was varied, one series per method.

A setting is swept where two lines of one method differ in it alone. Runs that merely lie in one folder, and differ in
many settings at once, are no sweep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everfed.report.distinct import exactly
from everfed.report.lines import Line, ranked, show
from everfed.report.style import Style, method_styles, variant

_BY_FACTORS = 4.0  # from the least to the largest value: a logarithmic axis pays


@dataclass(frozen=True)
class Series:
    """The lines of one method that differ in the swept setting alone."""

    label: str  # the method's title
    method: str
    others: str  # the other settings, empty if there is none
    style: Style  # the hue of the method, the dash of the other settings
    lines: tuple[int, ...]  # places among the page's lines, by rising value
    places: tuple[int, ...]  # of their values among those of the axis


@dataclass(frozen=True)
class Sweep:
    """One setting and what it does to the result."""

    key: str
    kind: str  # of the axis: "linear", "log", "steps" (numbers at equal distances) or "names"
    values: tuple[Any, ...]
    series: tuple[Series, ...]

    @property
    def shown(self) -> list[str]:
        """The values as people write them, in full where short ones are the same."""
        short = [show(value) for value in self.values]
        return [exactly(v) if short.count(s) > 1 else s for s, v in zip(short, self.values, strict=True)]

    @property
    def positions(self) -> list[float]:
        """Where the values lie on the axis."""
        return [float(v) for v in self.values] if self.kind in ("linear", "log") else list(range(len(self.values)))

    @property
    def others(self) -> dict[str, Style]:
        """The other settings and their dashes, in grey: a legend beside that of the methods."""
        found = list(dict.fromkeys(one.others for one in self.series))
        return {said: variant(_GREY, i, len(found)) for i, said in enumerate(found)} if len(found) > 1 else {}

    def to_dict(self) -> dict[str, Any]:
        series = [
            {"label": " · ".join(filter(None, (s.label, s.others))), "method": s.method, "style": s.style.to_dict(),
             "lines": list(s.lines), "places": list(s.places)}
            for s in self.series
        ]  # fmt: skip
        others = [{"label": said, "style": style.to_dict()} for said, style in self.others.items()]
        return {
            "key": self.key,
            "kind": self.kind,
            "values": self.shown,
            "own": list(dict.fromkeys(map(show, self.values))),
            "at": self.positions,
            "series": series,
            "others": others,
        }


_GREY = Style("#444444", "#C4C8CE", "")


def sweeps(drawn: Sequence[Line]) -> list[Sweep]:
    """One per swept setting, in the order in which labels name them."""
    keys = dict.fromkeys(key for line in drawn for key in line.settings)
    return [sweep for key in keys if (sweep := _sweep(key, drawn))]


def _sweep(key: str, drawn: Sequence[Line]) -> Sweep | None:
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, line in enumerate(drawn):
        if key in line.settings:
            groups.setdefault((exactly(_others(line, key)), line.method, line.folder), []).append(i)
    # A method with one value of the key stands beside others that have it with the same other settings.
    varied = {others for (others, _, _), members in groups.items() if len(members) > 1}
    if not varied:
        return None
    chosen = {group: members for group, members in groups.items() if group[0] in varied}
    known = {exactly(drawn[i].settings[key]): drawn[i].settings[key] for members in chosen.values() for i in members}
    order = ranked(known.values())
    looks = method_styles(line.method for line in drawn)
    settings = list(dict.fromkeys(others for others, *_ in chosen))
    if len(settings) > 1:  # dashes speak of them alone
        looks = {method: replace(look, dash=()) for method, look in looks.items()}
    series = []
    for (others, method, _), members in chosen.items():
        first = drawn[members[0]]
        series.append(
            Series(
                first.experiment.title,
                method,
                " · ".join(f"{name}={show(value)}" for name, value in _others(first, key).items()),
                variant(looks[method], settings.index(others), len(settings)),
                tuple(members),
                tuple(order.index(exactly(drawn[i].settings[key])) for i in members),
            )
        )
    values = tuple(known[text] for text in order)
    return Sweep(key, axis_kind(values), values, tuple(series))


def _others(line: Line, key: str) -> Mapping[str, Any]:
    return {name: value for name, value in line.settings.items() if name != key}


def axis_kind(values: Sequence[Any]) -> str:
    """How an axis shows these values, which rise where they are numbers."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return "names"
    numbers = np.array(values, np.float64)
    if not np.isfinite(numbers).all():
        return "steps"  # an infinite battery, say, after the largest that is not
    if len(numbers) < 3:
        return "log" if 0 < numbers[0] * _BY_FACTORS < numbers[-1] else "linear"
    if _unevenness(numbers) < 0.01:
        return "linear"
    if numbers[0] > 0:
        wide = numbers[-1] >= _BY_FACTORS * numbers[0]
        return "log" if wide and _unevenness(np.log(numbers)) < _unevenness(numbers) + 0.1 else "linear"
    # 0, then factors: a logarithm has no place for 0.
    rest = numbers[1:]
    return "steps" if numbers[0] == 0 and len(rest) > 1 and rest[-1] > _BY_FACTORS * rest[0] else "linear"


def _unevenness(numbers: Any) -> float:
    """Of the gaps: their standard deviation over their mean."""
    gaps = np.diff(numbers)
    return float(np.std(gaps) / np.mean(gaps)) if math.isfinite(float(np.mean(gaps))) else math.inf
