"""Expected accuracy in days and joules: a pilot's curve on the calendar of a fleet.

A pilot is extrapolated over the sum of round weights. What a fleet adds to it per round follows from its groups'
weights, month by month: under Algorithm 1 a round adds the mean weight over the devices, 1 if all keep their promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everfed.advising.advice import Advice, GroupAdvice
from everfed.advising.expected import FARTHEST, LEVEL, Estimate, Expected
from everfed.arrays import Floats
from everfed.checks import Positive, checked
from everfed.energy.physical import Encoding, message_sizes
from everfed.energy.supply import DAY_S
from everfed.errors import InputError, counted, some
from everfed.stats import finite
from everfed.units import energy

DAYS = (30, 90, 365)
_POINTS = 60  # of the curve that a page draws,
_FROM = 0.3  # from this part of the pilot on: before, its curve is not what the fit cares for


@dataclass(frozen=True)
class Horizon:
    """What to expect after some days. spent_j: on training and radio until then. percent_j: for a further percent, the
    median over the curves; None: most never get there, or the metric is not one of percents."""

    days: float
    estimate: Estimate
    spent_j: float
    percent_j: float | None


@dataclass(frozen=True, eq=False)
class Outlook:
    """What to expect of a metric on a fleet of devices, as `everfed.outlook` finds it.

    weight_by_day: (days, summed round weights), between which the sum is linear; it goes on as in the last year.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, seed=0)
    >>> pilot = ef.simulate("logistic", data, fleet, rounds=20, eval_every=2, client=ef.SGD(0.1))
    >>> from everfed.energy.physical import DeviceFleet, DeviceGroup
    >>> lamps = DeviceGroup(name="lamps", count=2, panel_wp=0.2, battery_wh=3.0, step_s=60.0, switched_off=True)
    >>> found = ef.outlook(ef.advise(DeviceFleet((lamps,), round_s=86_400.0), years=0), ef.expect([pilot]))
    >>> found.weight(60.0) > found.weight(30.0) > 0.0
    True
    """

    expected: Expected  # what a pilot lets expect
    weight_by_day: tuple[Floats, Floats]
    joules_per_weight: float  # what the fleet spends per unit of summed round weights, J
    horizons: list[Horizon]  # the estimates after so many days
    percent_j: float | None  # for a further percent from the end of the pilot on
    notes: tuple[str, ...]  # why not to trust it

    def weight(self, days: float) -> float:
        return float(_grown(*self.weight_by_day, days))

    def words(self) -> str:
        """What to expect when, and what a percent costs, in a sentence each."""
        metric, pilot = self.expected.pilot.metric.replace("_", " "), self.expected.pilot
        said = [f"{self.shown(h.estimate)} after {h.days:g} days" for h in self.horizons]
        text = f"Expected {metric}: {'; '.join(said)}."
        if self.percent:
            end = 100.0 * float(np.median(self.expected.curves.at(pilot.weight)))
            cost = "is not reached by most curves" if self.percent_j is None else f"costs {energy(self.percent_j)}"
            text += f" A further percent from where the pilot ends ({end:.1f} %) {cost}."
        return text

    @property
    def percent(self) -> bool:
        return _in_percent(self.expected)

    def shown(self, estimate: Estimate) -> str:
        """96.1 % [94.8, 97.0], or without the percent sign where a metric is none."""
        factor, unit, digits = (100.0, " %", 1) if self.percent else (1.0, "", 3)
        value, low, high = (f"{factor * v:.{digits}f}" for v in (estimate.value, estimate.low, estimate.high))
        return f"{value}{unit} [{low}, {high}]"

    def to_dict(self) -> dict[str, Any]:
        """For JSON and the page."""
        pilot = self.expected.pilot
        days, weights = self.weight_by_day
        known = np.concatenate([run.weight for run in pilot.runs])
        values = np.concatenate([run.values for run in pilot.runs])
        at = [_day(days, weights, float(weight)) for weight in known]
        last = max(h.days for h in self.horizons)
        grid = np.geomspace(_FROM * max(at), max(last, *at), _POINTS)
        curve = [self.expected.at(self.weight(float(day))) for day in grid]
        return {
            "metric": pilot.metric,
            "percent": self.percent,
            "better": "lower" if pilot.lower else "higher",
            "level": LEVEL,
            "farthest": FARTHEST,
            "pilot": {"runs": len(pilot.runs), "evaluations": pilot.evaluations, "weight": pilot.weight},
            "words": self.words(),
            "percent_j": self.percent_j,
            "horizons": [
                {"days": h.days, **h.estimate.to_dict(), "spent_j": h.spent_j, "percent_j": h.percent_j}
                for h in self.horizons
            ],
            "points": [[day, float(value)] for day, value in zip(at, values, strict=True)],
            "curve": {
                "days": grid.tolist(),
                "value": [one.value for one in curve],
                "low": [one.low for one in curve],
                "high": [one.high for one in curve],
                "tested": [one.tested for one in curve],
            },
            "notes": list(self.notes),
        }


def outlook(advice: Advice, expected: Expected, days: Sequence[float] = DAYS) -> Outlook:
    """What to expect of a metric on this fleet after so many days.

    advice: of the fleet, from `everfed.advise`.
    expected: of the metric, from `everfed.expect`.
    days: after which to estimate it.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    >>> data = ef.load("digits").partition(clients=4, seed=0)
    >>> pilot = ef.simulate("logistic", data, fleet, rounds=20, eval_every=2, client=ef.SGD(0.1))
    >>> from everfed.energy.physical import DeviceFleet, DeviceGroup
    >>> lamps = DeviceGroup(name="lamps", count=2, panel_wp=0.2, battery_wh=3.0, step_s=60.0, switched_off=True)
    >>> found = outlook(ef.advise(DeviceFleet((lamps,), round_s=86_400.0), years=0), ef.expect([pilot]), days=[30, 90])
    >>> [horizon.days for horizon in found.horizons]
    [30, 90]
    """
    if len(days) == 0:
        raise InputError("days has no value; give at least one, such as 30.")
    for day in days:
        checked("days", day, Positive)
    by_day = _progress(advice)
    total = float(by_day[1][-1])
    if not total > 0.0:
        raise InputError("no device of this fleet ever trains, so that nothing can be expected of its model.")
    spent = sum(g.flows_j.training + g.flows_j.radio for g in advice.groups)
    per_weight = spent / total

    def further(weight: float) -> float | None:
        if not _in_percent(expected):
            return None
        return finite(expected.per_percent(weight, "weight").value * per_weight)

    found = []
    for day in days:
        weight = float(_grown(*by_day, day))
        found.append(Horizon(day, expected.at(weight), weight * per_weight, further(weight)))
    notes = [*_other_rounds(advice, expected), *expected.notes]
    silent = [g.name for g in advice.groups if g.weight is None]
    if silent:
        notes.append(f"{some(silent)}: no slot in the advice's horizon, so taken not to train; advise on more rounds.")
    if any(not h.estimate.tested for h in found):
        far = max(h.estimate.ahead for h in found)
        notes.append(
            f"the farthest horizon is {far:,.0f} times as long as the pilot, and intervals were tested up to "
            f"{FARTHEST:g} times; a longer pilot says more."
        )
    return Outlook(expected, by_day, per_weight, found, further(expected.pilot.weight), tuple(notes))


def _other_rounds(advice: Advice, expected: Expected) -> Iterator[str]:
    """Where the pilot's rounds are not those that the advice counted the energy of."""
    pilot, steps = expected.experiment, advice.groups[0].model.local_steps
    if pilot is None:
        return
    told = "energies and days are those of the advice's rounds, not of the pilot's"
    had = counted(pilot.local_steps, "local step")
    if pilot.local_steps != steps:
        yield (
            f"the pilot's rounds have {had} and the advice is for {steps}: {told}; "
            f"ask for advice with local_steps = {pilot.local_steps}."
        )
    if _sizes(pilot.encoding) != _sizes(advice.encoding):
        yield (
            f"the pilot's messages have other sizes than those that the advice is for: {told}; advise with the pilot's "
            "compression and downlink."
        )


def _sizes(encoding: Encoding | None) -> list[tuple[float, float]]:
    """Of messages up and down, as parts of the model's, for every choice of bits."""
    return [message_sizes(encoding, bits) for bits in (encoding.choices() if encoding else [0])]


def _in_percent(expected: Expected) -> bool:
    return expected.pilot.bounds == (0.0, 1.0)


def _progress(advice: Advice) -> tuple[Floats, Floats]:
    """(days, summed round weights) at the ends of the months; devices hold equal shares of the data."""
    devices = sum(g.count for g in advice.groups)
    days, weights = [0.0], [0.0]
    for number, month in enumerate(advice.groups[0].months):
        rounds = month.days * DAY_S / advice.horizon.round_s
        share = sum(g.count * _kept(g, number) for g in advice.groups) / devices
        days.append(days[-1] + month.days)
        weights.append(weights[-1] + rounds * share)
    return np.array(days), np.array(weights)


def _kept(g: GroupAdvice, month: int) -> float:
    """A group's weight in a month, or in the horizon where that month has no slot; 0 where none has."""
    found = g.months[month].weight
    return (g.weight or 0.0) if found is None else found


def _grown(days: Floats, weights: Floats, day: float) -> float:
    """The sum after some days; the horizon repeats."""
    whole, rest = divmod(day, float(days[-1]))
    return whole * float(weights[-1]) + float(np.interp(rest, days, weights))


def _day(days: Floats, weights: Floats, weight: float) -> float:
    """When the sum is reached."""
    whole, rest = divmod(weight, float(weights[-1]))
    return whole * float(days[-1]) + float(np.interp(rest, weights, days))


def other_method(found: Outlook, method: str) -> Outlook:
    """The same with a note that the pilot's method is not the one that the fleet's weights are of."""
    note = (
        f"the pilot is of {method}, and the fleet's progress per day is that of Algorithm 1, whose rounds weigh as "
        "much as its groups keep of their promises."
    )
    return replace(found, notes=(*found.notes, note))
