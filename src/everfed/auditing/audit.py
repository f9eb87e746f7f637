"""The audit of a fleet, a policy and a server rule, before any training.

Measured over many seeds and, if possible, computed exactly. The main quantity is the mean of join * scale: if it is 1
for every client, the mean of the round's update is FedAvg's with all clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from everfed.arrays import Floats
from everfed.auditing import judge
from everfed.auditing.asynchronous import AsynchronousAudit, audit_arrivals
from everfed.auditing.defended import Defended, attack_words, defended_words, measure
from everfed.auditing.exact import Exact, exactly
from everfed.auditing.following import counted_rounds
from everfed.auditing.judge import Judgement
from everfed.auditing.limit import Limit, limit
from everfed.auditing.noise import as_vectors
from everfed.auditing.shown import ShownAudit
from everfed.auditing.tally import Figures, Tally, measured
from everfed.auditing.variance import Variance, variance
from everfed.auditing.words import CORRECTED, PARTLY_REMEMBERED, REMEMBERED, distance, unjudged, verdict
from everfed.checks import Count, check_shares, checked
from everfed.energy.fleet import Fleet, Group
from everfed.energy.work import Pace, Work, pace_of
from everfed.errors import InputError, warn
from everfed.learning.attacks import Attack, NoAttack, check_attack
from everfed.machine import check_memory
from everfed.methods import Method, as_method
from everfed.random import check_seed
from everfed.scheduling.laws import are_independent, comes_evenly
from everfed.scheduling.plan import Schedule, check_horizon, check_rounds
from everfed.scheduling.policies import Energy, Policy
from everfed.server.control import Scaffold
from everfed.server.last_updates import LastUpdates, Mifa
from everfed.server.mode import arrival_rule
from everfed.server.robust import Defence, NoDefence
from everfed.server.rules import ServerRule, Sum
from everfed.showing.card import numeral

# Rows (seeds x clients) stepped at once; bounds the memory for large fleets.
_ROWS = 1 << 20


@dataclass(frozen=True, repr=False)
class Audit(ShownAudit, Figures):
    """Measured values. `exact` has the same fields, with exact values where they are known for this fleet, policy,
    server rule and horizon, and None elsewhere.

    >>> import everfed as ef
    >>> found = ef.audit(ef.Fleet.from_cycles([1, 2, 4]), "greedy", rounds=40, seeds=20)
    >>> found.mean_weight.tolist(), found.violations
    ([1.0, 0.5, 0.25], 0.0)
    """

    gap_min: int = 0
    gap_max: int = 0
    exact: Figures = Figures()
    over_the_run: Judgement | None = None  # is the mean weight over the run 1 for every client?
    in_every_round: Judgement | None = None  # and in every round? Both None if weights do not tell
    verdict: str = ""  # both in words
    rounds: int = 0
    seeds: int = 0
    variance: Variance | None = None  # of a round's update; None if the server uses stored updates too
    limit: Limit | None = None  # lower bound for unbiased schedules
    defended: Defended | None = None  # what a defence and attackers do to the mean update, if there are any
    groups: tuple[Group, ...] = field(default=(), compare=False, metadata={"kept": True})  # energy groups, for tables
    # [rounds, groups] each group's mean weight by round, as `Fleet.groups` orders them; None if weights do not tell
    by_round: Floats | None = field(default=None, repr=False, compare=False, metadata={"kept": True})

    _columns: ClassVar[Any] = (
        ("participation rate", "participation_rate"),
        ("mean weight", "mean_weight"),
        ("rounds between", "gap_mean"),
    )

    def distance(self) -> str | None:
        """The schedule's variance relative to the lower bound for unbiased schedules, in words."""
        if self.limit is None or self.variance is None or self.over_the_run is None:
            return None
        known = self.variance.measured if self.variance.exact is None else self.variance.exact
        single = self.in_every_round
        unbiased = self.over_the_run.unbiased and single is not None and bool(single.unbiased)
        return distance(self.limit, known, unbiased)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; NaN and infinity become None."""
        out = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if not f.metadata.get("kept")}
        out["fairness"], out["exact"]["fairness"] = self.fairness, self.exact.fairness
        out["variance"] = _plain(self.variance.to_dict()) if self.variance else None
        if out["limit"]:
            out["limit"]["words"] = self.distance()
        return out

    def _facts(self) -> list[tuple[str, str]]:
        found = (("round weight, variance", "round_weight_variance"), ("participations without energy", "violations"))
        return [
            (name, f"{numeral(getattr(self, key))} (exact {numeral(getattr(self.exact, key))})")
            for name, key in found
            if getattr(self, key) is not None
        ]


def audit(
    fleet: Fleet,
    method: str | Method | Policy,
    rounds: int = 1000,
    seeds: int | Sequence[int] = 200,
    *,
    shares: Sequence[float] | Floats | None = None,
    server: ServerRule | None = None,
    deltas: Sequence[float] | Floats | None = None,
    mode: str = "auto",
    work: Work | None = None,
    local_steps: int = 5,
    pace: Pace | None = None,
    robust: Defence | None = None,
    attack: Attack | None = None,
    progress: bool | None = None,
) -> Audit | AsynchronousAudit:
    """Measure a method on a fleet over many runs, and compute exact values if known.

    fleet: the clients and their energy.
    method: a name in `METHODS`, a `Method`, or a policy, whose updates are summed unless `server` is given.
    rounds: of each run.
    seeds: the number of runs (seeds 0, 1, 2, ...), or a list of seeds.
    shares: p_i, each client's share of the data (default: equal).
    server: the server rule to use with a policy; its weights replace the clients' scales.
    deltas: the updates for the variance, [N, d], or their lengths [N] (default: equal, length 1).
    mode: "asynchronous" audits a method of rounds (greedy, greedy-scaled, fedavg) without them; "auto": as the server
        rule has it. The result is then an `AsynchronousAudit`, in which a round is a step of the energy process.
    work, local_steps, pace: of asynchronous clients, as an experiment has them; pace: of devices, from
        `DeviceFleet.pace`.
    robust, attack: the server's defence and the simulated attackers, as an experiment has them. With a defence, weights
        no longer tell how much a client counts; the result has `defended` instead.
    progress: whether to show a line of progress; None: in notebooks and terminals.

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 5, 10, 20])
    >>> ef.audit(fleet, "greedy", rounds=200, seeds=20).verdict[:19]
    'biased over the run'
    >>> ef.audit(fleet, "algorithm1", rounds=200, seeds=20).exact.mean_weight.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    checked("fleet", fleet, Fleet)
    chosen = as_method(method, server)
    policy, server = chosen.policy, chosen.server
    checked("mode", mode, Annotated[str, ("auto", "synchronous", "asynchronous")])
    arrives = arrival_rule(policy, server, mode, checked("work", work or Work(), Work))
    p = np.full(len(fleet), 1.0 / len(fleet)) if shares is None else check_shares(shares, len(fleet))
    check_rounds(fleet, rounds)
    rounds, numbers, vectors = int(rounds), _seed_numbers(seeds), as_vectors(deltas, len(fleet))
    if arrives is not None:
        work = work or Work()
        if pace is not None and len(checked("pace", pace, Pace).train) != len(fleet):
            raise InputError(f"pace is of {len(pace.train)} clients, and the fleet has {len(fleet)}; give one for it.")
        return audit_arrivals(
            fleet, policy, arrives, p, rounds, numbers, pace_of(work, len(fleet), pace), work,
            checked("local_steps", local_steps, Count), vectors, progress,
        )  # fmt: skip
    if work is not None or pace is not None:
        raise InputError(
            f"{'pace' if work is None else 'work'} is given, but clients of '{chosen.title}' meet in rounds, which are "
            "as long as the work in them; remove it, or choose an asynchronous method, such as renewal."
        )
    check_horizon(fleet, rounds, strict=False)
    rule = None if server.remembers or type(server) is Sum else server  # None: the clients' own scales
    tally = Tally(fleet, p, rounds, rule, vectors)
    batch = max(1, _ROWS // len(fleet))
    with counted_rounds(rounds, -(-len(numbers) // batch), progress) as tell:
        for start in range(0, len(numbers), batch):
            some = np.array(numbers[start : start + batch], dtype=np.uint64)[:, None]
            tally.run(Schedule(fleet, policy, some), tell)
    found = measured(tally)
    even = comes_evenly(fleet, policy)
    exact = _uncontradicted(tally, exactly(fleet, policy, p, rounds, rule), policy, even)
    some = np.array(numbers[:batch], dtype=np.uint64)[:, None]
    shared: dict[str, Any] = {
        "gap_min": tally.gap_min,
        "gap_max": tally.gap_max,
        "rounds": rounds,
        "seeds": len(numbers),
        "groups": tuple(fleet.groups()),
        "limit": limit(fleet, p, rounds, vectors, some) if policy.energy is Energy.OBEYED else None,
    }
    overall = judge.over_the_run(tally, exact.figures.mean_weight, even)
    independent = are_independent(policy) and (rule is None or not rule.normalizes)
    single = judge.in_every_round(tally, exact, independent)
    reason = _why_not_by_weights(server, overall, single)
    robust = None if isinstance(robust, NoDefence) else robust
    attack = None if isinstance(attack, NoAttack) else attack
    remark = ""
    if robust or attack:
        check_attack(attack or NoAttack(), len(fleet))
        seen = measure(fleet, policy, server, p, rounds, numbers, robust, attack)
        reason = defended_words(seen, robust) if robust else reason
        remark = f" {attack_words(seen)}" if attack else ""
        shared["defended"] = seen
    if reason:
        known, words = _without_weights(exact.figures), unjudged(reason, tally) + remark
        return Audit(**vars(_without_weights(found)), **shared, exact=known, verdict=words)
    spread = variance(fleet, policy, p, rounds, vectors, rule, tally.update_variance())
    if exact.figures.mean_weight is None:
        spread = spread.without_law()
    weight = found.mean_weight
    assert weight is not None
    return Audit(
        **vars(found),
        **shared,
        exact=exact.figures,
        over_the_run=overall,
        in_every_round=single,
        verdict=verdict(tally, exact.figures.mean_weight, weight, found.violations, overall, single) + remark,
        variance=None if server.remembers else spread,
        by_round=tally.by_round / (tally.seeds * np.array([len(group.clients) for group in tally.groups])),
    )


def _why_not_by_weights(server: ServerRule, overall: Judgement, single: Judgement) -> str | None:
    """A sentence, if participants' coefficients do not determine how much each client counts.

    overall, single: the verdicts on the clients' scales. If they are unbiased in every round, the stored updates cancel
    on average; if not, they only compensate in part.
    """
    if type(server) is Scaffold:
        return CORRECTED
    off = overall.unbiased is False or single.unbiased is False
    if server.remembers and (off or not server.heeds_scales):
        return REMEMBERED if type(server) in (LastUpdates, Mifa) else PARTLY_REMEMBERED
    return None


def _without_weights(figures: Figures) -> Figures:
    """The values that still apply if the server also uses stored updates."""
    names = ("mean_weight", "round_weight_mean", "round_weight_variance", "update_variance", "single_round_bias")
    return replace(figures, **dict.fromkeys(names))


def _uncontradicted(tally: Tally, exact: Exact, policy: Policy, even: bool) -> Exact:
    """Exact values, unless the measurements contradict them."""
    known = exact.figures.mean_weight
    if known is None or not judge.contradicts(tally, known, even):
        return exact
    warn(
        f"the law of {type(policy).__name__} disagrees with the measurements on this fleet (mean weights differ by up "
        f"to {np.abs(tally.clients.mean(tally.seeds) - known).max():.3g}); exact values are omitted.",
        2,
    )
    return Exact(Figures())


def _seed_numbers(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        check_memory(f"an audit of {seeds:,} seeds", 100 * int(seeds), "use fewer")
        numbers = list(range(int(seeds)))
    elif isinstance(seeds, list | tuple | range):
        numbers = list(seeds)
    else:
        raise InputError(f"seeds is {seeds!r}; give a number of seeds (200) or a list ([0, 5, 7]).")
    if not numbers:
        raise InputError(f"seeds is {seeds}; an audit needs at least 1.")
    for seed in numbers:
        check_seed(seed)
    if len(set(numbers)) < len(numbers):
        raise InputError("a seed is given twice; give each seed once.")
    return numbers


def _plain(value: Any) -> Any:
    """Convert to a value that JSON can represent."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, Figures | Judgement | Limit | Defended):
        return {name: _plain(v) for name, v in vars(value).items()}
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
