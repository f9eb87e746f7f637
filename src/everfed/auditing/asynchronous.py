"""The audit of asynchronous clients: what each counts per round of time, how noisily, and how stale.

Measured by stepping the timeline and the server's rule over many seeds, without training, and computed exactly where
the process of the energy gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from everfed.arrays import Floats
from everfed.auditing import judge
from everfed.auditing.arrival_tally import ArrivalTally, Staleness, relative_to_mean
from everfed.auditing.following import counted_rounds
from everfed.auditing.judge import Judgement
from everfed.auditing.renewals import Rates, rates
from everfed.auditing.shown import ShownAudit
from everfed.auditing.weighing import at_once
from everfed.auditing.words import AVERAGED, unjudged, verdict
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet, Group
from everfed.energy.work import Pace, Work
from everfed.errors import warn
from everfed.scheduling.laws import comes_evenly
from everfed.scheduling.policies import Clients, Energy, Policy
from everfed.scheduling.timeline import Timeline
from everfed.server.arrivals import Area, ArrivalRule, Discounted, FedAsync, FedBuff, PlainArrivals, Renewal
from everfed.stats import finite

_ROWS = 1 << 20  # seeds x clients stepped at once; bounds the memory for large fleets

# From here on the verdict says that a run is too short for the long run's weights.
_NOTABLE = 0.05


@dataclass(frozen=True)
class ArrivalFigures:
    """Per client [N]; exact ones are those of the long run."""

    arrival_rate: Floats | None = None  # arrivals per round since the client's start
    mean_weight: Floats | None = None  # 1: the client counts by its data
    noise: Floats | None = None  # squares of what multiplies the client's updates, per round


@dataclass(frozen=True, repr=False)
class AsynchronousAudit(ShownAudit, ArrivalFigures):
    """Measured values; `exact` has them where they are known for this fleet, rule and work, and None elsewhere.

    The weight of an arrival is its coefficient over the client's share of the data, times the part of the local steps
    that were done. `mean_weight` is its sum over the rounds since the client's start. For renewal, whose weights are
    times, it is the sum over the time up to the client's last arrival, and `covered` says which part of the run that
    is. FedBuff and FedAsync have an arbitrary step: their weights and their noise are given for a step whose mean
    weight over all clients is 1.

    >>> import everfed as ef
    >>> found = ef.audit(ef.Fleet.from_cycles([1, 2, 4]), "renewal", rounds=40, seeds=20)
    >>> found.arrival_rate.round(2).tolist()
    [0.98, 0.5, 0.25]
    """

    exact: ArrivalFigures = ArrivalFigures()
    weight_per_round: Floats | None = None  # all weights over all rounds of the run, as they are
    first_arrival: Floats | None = None  # mean time, in rounds, of the runs with one; NaN: none
    covered: Floats | None = None  # the part of the run up to the client's last arrival, on average
    staleness: dict[str, Staleness] | None = None  # by energy group, and of all
    mean_staleness: Floats | None = None  # by client
    mean_steps: float = 0.0  # local steps of an arrival
    works_per_round: float = 0.0
    lost: float = 0.0  # the part of the works that failed
    energy: Books = Books()  # of a run, on average
    over_the_run: Judgement | None = None  # is the mean weight 1 for every client?
    verdict: str = ""
    rounds: int = 0
    seeds: int = 0
    groups: tuple[Group, ...] = field(default=(), compare=False)  # the fleet's energy groups, for tables and plots

    _columns: ClassVar[Any] = (
        ("arrivals per round", "arrival_rate"),
        ("mean weight", "mean_weight"),
        ("noise of a client", "noise"),
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; NaN and infinity become None."""
        found = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "groups"}
        return {"mode": "asynchronous", **found}


def audit_arrivals(
    fleet: Fleet, policy: Policy, rule: ArrivalRule, shares: Floats, rounds: int, seeds: Sequence[int], pace: Pace,
    work: Work, local_steps: int, vectors: Floats, progress: bool | None = None,
) -> AsynchronousAudit:  # fmt: skip
    """vectors: [N, d] the clients' updates, for the noise."""
    rule.check(len(fleet))
    tally, lengths = ArrivalTally(fleet, shares, rounds, rule), np.sqrt((vectors**2).sum(axis=1))
    batch = at_once(rule, _ROWS // len(fleet))
    with counted_rounds(rounds, -(-len(seeds) // batch), progress) as tell:
        for start in range(0, len(seeds), batch):
            some = np.array(seeds[start : start + batch], dtype=np.uint64)[:, None]
            tally.follow(Timeline(fleet, policy, some, pace, work, local_steps), tell)
    tally.finish()
    even = policy.energy is Energy.UNLIMITED or (comes_evenly(fleet, policy) and not fleet.storage.cost_spread)
    exact = _exactly(tally, rates(fleet, policy, pace, work, local_steps), policy, lengths)
    if exact.mean_weight is not None and judge.contradicts(tally, exact.mean_weight, even):
        off = np.abs(tally.clients.mean(tally.seeds) - exact.mean_weight).max()
        warn(f"exact weights disagree with the measurements by up to {off:.3g} and are omitted.", 3)
        exact = ArrivalFigures()
    weights, violations = tally.clients.mean(tally.seeds), tally.books.violations / tally.seeds
    if isinstance(rule, Area):
        alike = bool(np.all(tally.heard == tally.seeds))
        overall, said = Judgement(alike or None, alike), unjudged(("unbiased: " if alike else "") + AVERAGED, tally)
        exact = ArrivalFigures(exact.arrival_rate, np.ones(len(fleet)) if alike else None)
    else:
        overall = judge.over_the_run(tally, exact.mean_weight, even)
        said = verdict(tally, exact.mean_weight, weights, violations, overall)
    with np.errstate(invalid="ignore", divide="ignore"):
        first, stale = tally.first / tally.heard, tally.stale / tally.joins
    works = max(tally.begun, 1)
    return AsynchronousAudit(
        arrival_rate=tally.arrival_rate(),
        mean_weight=None if isinstance(rule, Area) else weights,
        noise=tally.noise(lengths),
        exact=exact,
        weight_per_round=None if isinstance(rule, Area) else tally.per_round / tally.seeds,
        first_arrival=first,
        covered=tally.covered / (tally.seeds * rounds),
        staleness=tally.staleness(),
        mean_staleness=stale,
        mean_steps=local_steps * float(tally.steps.sum()) / max(float(tally.joins.sum()), 1.0),
        works_per_round=tally.begun / (tally.seeds * rounds),
        lost=tally.lost / works,
        energy=Books(**{f.name: getattr(tally.books, f.name) / tally.seeds for f in fields(Books)}),
        over_the_run=overall,
        verdict=_with_ends(said, tally, exact.mean_weight),
        rounds=rounds,
        seeds=tally.seeds,
        groups=tuple(tally.groups),
    )


def _exactly(tally: ArrivalTally, known: Rates | None, policy: Policy, lengths: Floats) -> ArrivalFigures:
    """What the process of the energy gives in the long run; weights that are times need no such knowledge."""
    rule, shares, n = tally.rule, tally.shares, len(tally.fleet)
    often = None if known is None else known.arrivals
    if rule == Renewal():
        heard = bool(np.all(tally.heard == tally.seeds))
        noise = None if known is None else shares**2 * known.squared_intervals * lengths**2
        return ArrivalFigures(often, np.ones(n) if heard else None, noise)
    late = np.any(tally.fleet.offsets() >= tally.rounds)  # who never start have no weight
    if known is None or late or type(rule) not in (PlainArrivals, FedBuff, FedAsync):
        return ArrivalFigures(often)
    if isinstance(rule, Discounted) and rule.discount != "none" and rule.power > 0.0:
        return ArrivalFigures(often)
    # What multiplies an update of each client, whenever it comes.
    if isinstance(rule, FedBuff):
        each = (shares * n if rule.weighted else np.ones(n)) / rule.size
    elif isinstance(rule, FedAsync):
        each = np.full(n, rule.rate)
    else:
        each = shares * np.asarray(policy.init(Clients.of(tally.fleet, 0))["scale"], np.float64)
    weight = np.divide(each * known.steps, shares, out=np.zeros(n), where=shares > 0.0)
    noise = each**2 * known.squared_steps * lengths**2
    if tally.relative:
        noise, weight = noise / float(weight @ shares) ** 2, relative_to_mean(weight, shares)
    return ArrivalFigures(often, weight, noise)


def _with_ends(said: str, tally: ArrivalTally, exact: Floats | None) -> str:
    """The verdict, and what it leaves out."""
    said = said.removesuffix(".")
    if tally.relative:
        said += "; weights are relative to their mean, since the server's step size is a choice"
    if exact is not None and not isinstance(tally.rule, Area):
        long_run = np.array([exact[g.clients] @ tally.parts(g) for g in tally.groups])
        off = tally.in_groups.mean(tally.seeds) - long_run
        if abs(off).max() > _NOTABLE:
            group = int(np.argmax(abs(off)))
            said += (
                f"; that is the long run, and in these {tally.rounds} rounds {tally.groups[group].label} counts "
                f"{long_run[group] + off[group]:.2f} times"
            )
    covered = tally.covered / (tally.seeds * tally.rounds)
    worst = min(tally.groups, key=lambda g: float(covered[g.clients].mean()))
    missing = 1.0 - float(covered[worst.clients].mean())
    if tally.timed and missing > 0.001:
        heard = tally.heard[worst.clients].sum()
        first = f" (first heard in round {tally.first[worst.clients].sum() / heard:.3g})" if heard else ""
        said += (
            f"; nothing counts for the time after a client's last arrival, {missing:.1%} of the run for {worst.label}"
            f"{first}"
        )
    if tally.lost:
        said += f"; {tally.lost / max(tally.begun, 1):.1%} of the works are lost"
    return said + "."


def _plain(value: Any) -> Any:
    """Convert to a value that JSON can represent."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, Staleness | Books | Judgement | ArrivalFigures):
        return {name: _plain(v) for name, v in asdict(value).items()}
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return finite(value) if isinstance(value, float) else value
