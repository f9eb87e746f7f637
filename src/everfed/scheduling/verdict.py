"""An audit in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from everfed.arrays import Floats
from everfed.energy.fleet import Fleet
from everfed.errors import some

if TYPE_CHECKING:
    from everfed.scheduling.audit import Figures

# A client whose mean weight is off by less than this is not worth a word, however certain it is.
_NEGLIGIBLE = 1e-3

# For rules that let the absent speak: the weights of single participations say nothing about them.
REMEMBERED = (
    "no judgement by weights: the server lets absent clients speak by their last update, so that every client "
    "counts by its data from its first participation on, with updates up to a gap old."
)


def verdict(fleet: Fleet, measured: Figures, exact: Figures, shares: Floats, doubt: Floats, rounds: int) -> str:
    """Is each client heard in proportion to its data, and is the energy there?"""
    weight = exact.mean_weight if exact.mean_weight is not None else measured.mean_weight
    assert weight is not None
    assert measured.violations is not None
    tolerance = doubt if exact.mean_weight is None else np.zeros(len(fleet))
    tolerance = np.maximum(tolerance, np.maximum(_cut_window(fleet, rounds), _NEGLIGIBLE))
    if np.all(np.isinf(tolerance)):
        words = "not judged: one seed cannot tell bias from chance, and there is no formula; audit more seeds"
    elif np.all(np.abs(weight - 1.0) <= tolerance):
        words = "unbiased: every client's update counts by its data, on average"
        if (exact.single_round_bias or 0.0) > _NEGLIGIBLE:
            words += (
                " over time only; in single rounds some count up to "
                f"{1.0 + exact.single_round_bias:.3g} times too much"  # type: ignore[operator]
            )
        late = np.flatnonzero(fleet.offsets() > 0)
        if len(late) and (exact.round_weight_mean or 1.0) < 1.0 - _NEGLIGIBLE:
            words += (
                f"; but only from round {int(fleet.offsets().max())} on: "
                f"until then rounds leave out clients that have not started ({some(late)})"
            )
    else:
        # Over the whole run, a client that starts late has had less time to be heard.
        words = _bias(fleet, weight * _active(fleet, rounds) / rounds, shares, tolerance)
    if measured.violations:
        words += f"; spends energy that is not there, {measured.violations:,.0f} times a run"
    return words + "."


def _active(fleet: Fleet, rounds: int) -> Floats:
    active: Floats = np.maximum(rounds - fleet.offsets(), 0).astype(np.float64)
    return active


def _cut_window(fleet: Fleet, rounds: int) -> Floats:
    """A last window that is cut short holds one participation more or less: no fault of the schedule."""
    tolerance = np.zeros(len(fleet))
    cut = fleet.undivided(rounds)
    tolerance[cut] = np.minimum(fleet.cycles()[cut] / np.maximum(_active(fleet, rounds)[cut], 1.0), 0.1)
    return tolerance


def _bias(fleet: Fleet, weight: Floats, shares: Floats, tolerance: Floats) -> str:
    total = float(shares @ weight)
    if total == 0.0:
        return "nobody ever trains: the model does not move"
    relative = weight / total
    if np.all(np.abs(relative - 1.0) <= tolerance / total + _NEGLIGIBLE):
        return (
            f"fair but slow: all clients count alike, but a round moves the model by {total:.1%} "
            "of a full-participation step on average"
        )
    heavy = np.flatnonzero(relative > 1.0 + _NEGLIGIBLE)
    groups = fleet.groups()
    parts = [float(shares[g.clients] @ weight[g.clients]) / total for g in groups]
    said = "/".join(f"{100 * part:.0f}" for part in parts)
    names = ", ".join(g.label for g in groups)
    words = f"biased towards clients {some(heavy)}: weight shares {said} % by energy group ({names})"
    if abs(total - 1.0) > 0.01:
        words += f", and a round moves the model by {total:.1%} of a full-participation step on average"
    return words
