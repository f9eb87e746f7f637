"""The verdict of an audit as a sentence."""

from __future__ import annotations

import math

import numpy as np

from everfed.arrays import Floats
from everfed.auditing.judge import ERROR_RATE, NEGLIGIBLE, Judgement
from everfed.auditing.limit import Limit
from everfed.auditing.tally import Tally

# Groups listed individually; if there are more, those that deviate most.
_MOST_GROUPS = 6

# For rules that use stored updates: the weights of single participations do not determine their bias.
REMEMBERED = (
    "no judgement by weights: the server uses the last update of absent clients, so that every client "
    "counts by its data from its first participation on, with updates up to a gap old"
)
PARTLY_REMEMBERED = (
    "no judgement by weights: beside what comes in, the server uses a part of the last updates of absent clients, and "
    "this policy's scales alone do not make up for the rest"
)

CORRECTED = (
    "no judgement by weights: clients correct their local steps by what the server knows of the others' gradients, so "
    "that averaging over those who take part favours nobody once the corrections have settled"
)

AVERAGED = (
    "the model is the mean of the clients' last models at every moment, so that every client counts by its data from "
    "its first arrival on, with models up to a gap old, and before it with the initial model"
)


def unjudged(reason: str, tally: Tally) -> str:
    """The verdict if weights do not determine the bias; clients that never train are still reported."""
    absent = [g.label for g in tally.groups if np.any(tally.joins[g.clients] == 0.0)]
    if absent:
        reason += f"; but in {tally.rounds} rounds some clients never trained ({', '.join(absent)})"
    return reason + "."


def verdict(
    tally: Tally, exact: Floats | None, found: Floats, violations: float | None, overall: Judgement,
    rounds: Judgement | None = None,
) -> str:  # fmt: skip
    """The verdict on bias, over the run and in every round (None: clients do not meet in rounds), and on energy.

    exact, found: every client's mean weight.
    """
    weight = found if exact is None else exact
    total = float(tally.shares @ (weight * tally.started_part()))
    if total == 0.0:
        words = f"nobody ever trains in {tally.rounds} rounds: the model does not move"
    elif overall.unbiased:
        words = "unbiased over the run: every client counts by its data" + _certainty(overall)
        words += _every_round(rounds) + _late(tally)
    elif overall.unbiased is None:
        words = "not decided: no bias was found over the run" + _unnoticed(overall) + _every_round(rounds, "; but")
    elif overall.alike and not np.any(tally.fleet.offsets()):
        pace = "slow" if total < 1.0 else "too fast"
        words = f"fair but {pace}: all clients count alike, {total:.3g} times instead of once{_certainty(overall)}"
    else:
        words = _biased(tally, weight, overall, total)
    if violations:
        words += f"; spends energy that is not there, {violations:,.0f} times per run"
    return words + "."


def _certainty(found: Judgement) -> str:
    if found.exact:
        return ""
    if found.unbiased:
        return f" (to within {found.resolution:.1%}; error rate {ERROR_RATE:.0%})"
    return f" (error rate {ERROR_RATE:.0%})"


def _unnoticed(found: Judgement) -> str:
    if found.resolution is None or math.isinf(found.resolution):
        return ", but these seeds could not have shown any; audit more of them"
    return f", but one of {found.resolution:.0%} might not have been noticed; audit more seeds"


def _every_round(found: Judgement | None, joint: str = ", but") -> str:
    if found is None:
        return ""
    if found.unbiased is False:
        (label, weight), *_ = found.by_group.items()
        return f"{joint} not in every round: in round {found.round} {_named(label)} count {weight:.3g} times"
    if found.unbiased:
        return ", and in every round" + _certainty(found) if joint == ", but" else ""
    if found.resolution is None or math.isinf(found.resolution):
        return "; these seeds say nothing about single rounds"
    return f"; no single round was found to be off, where {1.0 + found.resolution:.2g} times would have been noticed"


def _late(tally: Tally) -> str:
    late = np.flatnonzero(tally.fleet.offsets() > 0)
    if len(late) == 0:
        return ""
    names = ", ".join(g.label for g in tally.groups if np.intersect1d(g.clients, late).size)
    return (
        f"; but only from round {int(tally.fleet.offsets().max())} on: until then rounds leave out clients that have "
        f"not started ({len(late)} of {len(tally.fleet)}, in {names})"
    )


def _biased(tally: Tally, weight: Floats, overall: Judgement, total: float) -> str:
    # Those that differ most from the others: where all count too little, it is they who have too much or too little.
    groups = sorted(tally.groups, key=lambda g: -abs(overall.by_group[g.label] - total))[:_MOST_GROUPS]
    said: list[str] = []
    # Where groups count right on the whole, it is clients within them that do not.
    hidden = max(abs(overall.by_group[g.label] - 1.0) for g in tally.groups) < 10 * NEGLIGIBLE
    for group in (g for g in tally.groups if g in groups):
        inside = weight[group.clients]
        counts = f"{overall.by_group[group.label]:.2f}"
        text = f"{_named(group.label)} {counts}" if said else f"{_named(group.label)} count {counts} times"
        if np.ptp(inside) > 10 * NEGLIGIBLE and (overall.exact or hidden):
            text += f" ({inside.min():.2f} to {inside.max():.2f} by client)"
        said.append(text)
    more = len(tally.groups) - len(said)
    rest = f" and {more} more groups" if more > 0 else ""
    between = "; " if any("," in group.label for group in groups) else ", "
    words = "biased over the run: " + between.join(said) + rest + _certainty(overall)
    run = weight * tally.started_part()  # clients that start late had fewer rounds
    parts = [float(tally.shares[g.clients] @ run[g.clients]) / total for g in tally.groups]
    fair = [float(tally.shares[g.clients].sum()) for g in tally.groups]
    if len(parts) > 1 and max(abs(a - b) for a, b in zip(parts, fair, strict=True)) >= 0.005:
        words += f"; shares of the weight {_percent(parts)} % where those of the data are {_percent(fair)} %"
    if abs(total - 1.0) > 0.01:
        words += f"; a round moves the model by {total:.1%} of a full-participation step on average"
    return words


def _percent(parts: list[float]) -> str:
    return "/".join(f"{100 * part:.0f}" for part in parts)


def _named(label: str) -> str:
    return f"{label} clients" if label.startswith("E=") else label


def distance(found: Limit, variance: float | None, unbiased: bool | None) -> str:
    """How far a schedule's variance is from the least there can be."""
    least = found.independent
    if math.isinf(least):
        return f"no schedule can be unbiased: in {', '.join(found.starved)} there are clients that can never train."
    words = f"an unbiased schedule of independent clients has a variance of at least {least:.4g}"
    if not found.exact:
        words += " (measured)"
    if unbiased and variance is not None:
        words += f"; this one {_compared(variance, least)}"
    if found.lattice is not None and found.lattice < least * (1.0 - 1e-9):
        words += f"; peers that share their draws, as the lattice's do, reach {found.lattice:.4g}"
    return words + "."


def _compared(variance: float, least: float) -> str:
    if abs(variance - least) <= 0.005 * least + 1e-12:
        return "attains it"
    if variance < least:
        return f"has {variance:.4g}"
    return f"has {variance:.4g}" + (f", {variance / least:.3g} times that" if least > 0.0 else "")
