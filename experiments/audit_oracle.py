"""The audit against brute force: random fleets, policies and server rules, every exact number and every verdict.

    python experiments/audit_oracle.py --cases 2000 --audits 4000 -o docs/results/audit.json

*Exact numbers*: random cases over every arrival process, storage, capacity, offset, policy and server rule, each
simulated under thousands of seeds by a loop of its own; every exact number must lie within its sampling error.
*Verdicts*: audits with few and many seeds, without the help of formulas, of schedules whose true weights are
known: how often is an unbiased one called biased, and how often is a bias of a given size missed?
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import everfed as ef
from everfed.auditing import judge
from everfed.auditing.exact import Exact, exactly
from everfed.auditing.tally import Figures, Tally
from everfed.energy.arrivals import ARRIVALS
from everfed.energy.battery import Storage
from everfed.energy.changing import Changing
from everfed.energy.fleet import Fleet
from everfed.energy.profile import Profile
from everfed.errors import InputError
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.laws import are_independent, comes_evenly
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Energy
from everfed.scheduling.table import POLICIES
from everfed.scheduling.uncertain import Thrifty
from everfed.server.control import HTScaffold

BATCHES = 20
RULES = [None, ef.Sum(), ef.Truncated(3.0), ef.Normalized(), ef.FedAU(cutoff=9), ef.Echo(), HTScaffold()]


@dataclass(frozen=True)
class Case:
    """What is audited."""

    fleet: Fleet
    policy: Any
    server: Any
    shares: Any
    rounds: int
    vectors: Any

    def words(self) -> str:
        f = self.fleet
        return (
            f"{self.policy} with {self.server} over {self.rounds} rounds, {type(f.arrivals).__name__} cycles "
            f"{f.cycles().tolist()} offsets {f.offsets().tolist()} capacity {f.capacity.tolist()} {f.storage}"
        )


def random_case(rng: np.random.Generator) -> Case:
    """A legal case; combinations that everfed refuses are drawn again."""
    while True:
        try:
            case = _draw(rng)
            Schedule(case.fleet, case.policy, 0)
            return case
        except InputError:
            continue


def _draw(rng: np.random.Generator) -> Case:
    n = int(rng.integers(1, 6))
    # Few distinct cycles and offsets, so that some clients are peers.
    cycles = rng.choice(rng.integers(1, 8, 3), n)
    offsets = rng.choice([0, 0, 0, 1, 4], n)
    size = float(rng.choice([1.0, 1.5, 2.0, 3.0])) if rng.random() < 0.6 else None
    storage = Storage()
    if rng.random() < 0.5:
        storage = Storage(
            charging=float(rng.choice([1.0, 0.9])), leak=float(rng.choice([0.0, 0.05])),
            standby=float(rng.choice([0.0, 0.0, 0.1])), start=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
            cost_spread=float(rng.choice([0.0, 0.0, 0.2])), browns_out=bool(rng.random() < 0.4),
        )  # fmt: skip
    kind = str(rng.choice([*ARRIVALS, "profile", "changing"]))
    if kind == "profile":
        table = rng.random((2, int(rng.integers(3, 9)))) * (rng.random((2, 1)) + 0.3)
        table[:, 0] = 0.0
        arrivals: Any = Profile(table, rng.integers(0, 2, n), rng.random(n) + 0.5, offsets)
        fleet = Fleet(arrivals, np.full(n, size or 2.0), storage)
    else:
        first = str(rng.choice(list(ARRIVALS))) if kind == "changing" else kind
        fleet = Fleet.from_cycles(cycles, offsets, arrivals=first, capacity=size, storage=storage)
        if kind == "changing":
            after = Fleet.from_cycles(rng.integers(1, 8, n), offsets, arrivals=str(rng.choice(list(ARRIVALS))))
            fleet = replace(fleet, arrivals=Changing(fleet.arrivals, after.arrivals, int(rng.integers(0, 20))))
    policy = POLICIES[str(rng.choice(list(POLICIES)))]()
    if hasattr(policy, "scaled") and rng.random() < 0.3:
        policy = replace(policy, scaled=not policy.scaled)
    if isinstance(policy, ef.Lattice) and rng.random() < 0.5:
        policy = replace(policy, redraw=False)
    if isinstance(policy, Thrifty) and rng.random() < 0.7:
        policy = Thrifty(min_units=int(rng.integers(1, 3)), chance=float(rng.choice([1.0, 0.5])))
    if isinstance(policy, KnownArrivals) and rng.random() < 0.3:
        policy = KnownArrivals(horizon=4)
    shares = rng.dirichlet(np.ones(n))
    return Case(
        fleet, policy, RULES[rng.integers(len(RULES))], shares, int(rng.integers(3, 45)), rng.normal(size=(n, 2))
    )


def weights_by_brute_force(case: Case, seeds: int, first: int = 10**6) -> tuple[Any, Any, float]:
    """(join, weight) as [seeds, rounds, N] and violations per run: a plain loop, with a weigher per seed."""
    n = len(case.fleet)
    schedule = Schedule(case.fleet, case.policy, np.arange(first, first + seeds, dtype=np.uint64)[:, None])
    joins, weights = np.zeros((seeds, case.rounds, n), bool), np.zeros((seeds, case.rounds, n))
    weighers = [case.server.weighting(n) for _ in range(seeds)] if case.server else None
    for r in range(case.rounds):
        join, scale = schedule.step(r)
        scale = np.broadcast_to(scale, join.shape)
        joins[:, r] = join
        if weighers is None:
            weights[:, r] = join * scale
            continue
        for s in np.flatnonzero(join.any(axis=1)):
            who = np.flatnonzero(join[s])
            factors = weighers[s].factors(r, who, scale[s, who])
            total = (factors * case.shares[who]).sum() if case.server.normalizes else 1.0
            weights[s, r, who] = factors / total if total > 0.0 else 0.0
    return joins, weights, schedule.battery.violations / seeds


def statistics(case: Case, joins: Any, weights: Any) -> dict[str, Any]:
    """The audit's figures of these runs, computed the plain way."""
    n, offsets = len(case.fleet), case.fleet.offsets()
    counts = np.arange(case.rounds)[:, None] >= offsets
    active = np.maximum(counts.sum(axis=0), 1)
    gaps = [[] for _ in range(n)]
    for i in range(n):
        for row in joins[:, :, i] & counts[:, i]:
            gaps[i].extend(np.diff(np.flatnonzero(row)).tolist())
    total = weights @ case.shares
    updates = (weights * case.shares) @ case.vectors
    return {
        "participation_rate": (joins * counts).sum(axis=1).mean(axis=0) / active,
        "mean_weight": (weights * counts).sum(axis=1).mean(axis=0) / active,
        "gap_mean": np.array([np.mean(g) if g else np.nan for g in gaps]),
        "gap_variance": np.array([np.var(g) if g else np.nan for g in gaps]),
        "round_weight_mean": total.mean(),
        "round_weight_variance": total.var(axis=0, ddof=1).mean() + total.mean(axis=0).var(),
        "update_variance": total.var(axis=0, ddof=1).mean(),
        "variance_of_updates": updates.var(axis=0, ddof=1).sum(axis=-1).mean(),
        "by_round": np.where(counts, weights.mean(axis=0), 1.0),
    }


def disagreements(case: Case, seeds: int, deviations: float = 6.0) -> tuple[list[str], bool]:
    """Exact numbers that brute force does not confirm; and whether there were any exact weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = ef.audit(case.fleet, case.policy, case.rounds, 2, shares=case.shares, server=case.server,
                          deltas=case.vectors)  # fmt: skip
    joins, weights, violations = weights_by_brute_force(case, seeds)
    whole = statistics(case, joins, weights)
    parts = [statistics(case, j, w) for j, w in zip(np.split(joins, BATCHES), np.split(weights, BATCHES), strict=True)]
    exact = {name: getattr(report.exact, name) for name in Figures.__dataclass_fields__}
    exact["variance_of_updates"] = report.variance.exact if report.variance else None
    found = []
    for name, claimed in exact.items():
        if claimed is None or name in ("single_round_bias", "violations"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a batch without gaps
            error = np.nanstd([part[name] for part in parts], axis=0, ddof=1) / np.sqrt(BATCHES)
        # A statistic that is no mean is off by about its variance over the number of seeds.
        off = np.abs(np.asarray(claimed) - whole[name])
        allowed = (
            deviations * error + 20.0 / seeds * (np.abs(whole[name]) + 1.0) * (name not in ("mean_weight",)) + 1e-9
        )
        unknown = np.isnan(np.asarray(claimed, float)) & np.isnan(np.asarray(whole[name], float))
        if not np.all((off <= allowed) | unknown):
            found.append(f"{name}: exact {claimed}, measured {whole[name]} ± {error}: {case.words()}")
    if exact["single_round_bias"] is not None:
        error = weights.std(axis=0, ddof=1) / np.sqrt(seeds)
        seen = float((np.abs(whole["by_round"] - 1.0) - deviations * error).max())
        if seen > exact["single_round_bias"] + 20.0 / seeds:
            found.append(f"single_round_bias: exact {exact['single_round_bias']}, at least {seen}: {case.words()}")
    if exact["violations"] is not None and exact["violations"] != violations and case.policy.energy is Energy.OBEYED:
        found.append(f"violations: exact {exact['violations']}, measured {violations}: {case.words()}")
    return found, exact["mean_weight"] is not None


def judged(case: Case, seeds: int, first: int) -> tuple[judge.Judgement, judge.Judgement]:
    """Both judgements by measurement alone."""
    tally = Tally(case.fleet, case.shares, case.rounds, case.server)
    tally.run(Schedule(case.fleet, case.policy, np.arange(first, first + seeds, dtype=np.uint64)[:, None]))
    independent = are_independent(case.policy) and not (case.server and case.server.normalizes)
    even = comes_evenly(case.fleet, case.policy)
    return judge.over_the_run(tally, None, even), judge.in_every_round(tally, Exact(Figures()), independent)


def error_rates(audits: int, seeds: int, rng: np.random.Generator) -> dict[str, Any]:
    """False alarms and misses of `audits` audits with this many seeds, of cases whose truth is known."""
    counts = {"unbiased": 0, "false alarms": 0, "unbiased rounds": 0, "false alarms in rounds": 0}
    bins = {"0.01-0.05": [0, 0], "0.05-0.2": [0, 0], "0.2-1": [0, 0], "1-": [0, 0]}
    for number in range(audits):
        case = random_case(rng)
        case = replace(case, rounds=int(rng.choice([20, 100, 205])))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exact = exactly(case.fleet, case.policy, case.shares, case.rounds, case.server).figures
        if exact.mean_weight is None:
            continue
        over, single = judged(case, seeds, first=number * 1000)
        off = float(np.abs(exact.mean_weight - 1.0).max())
        if off <= 1e-9:
            counts["unbiased"] += 1
            counts["false alarms"] += over.unbiased is False
        for name, tried in bins.items():
            low, high = (float(x or "inf") for x in name.split("-"))
            if low <= off < high:
                tried[0] += 1
                tried[1] += over.unbiased is not False
        if (exact.single_round_bias or 0.0) <= 1e-9:
            counts["unbiased rounds"] += 1
            counts["false alarms in rounds"] += single.unbiased is False
    return {**counts, "missed by size of the bias": {k: {"biased": a, "missed": b} for k, (a, b) in bins.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="random cases whose exact numbers are checked")
    parser.add_argument("--seeds", type=int, default=2000, help="seeds of brute force for each of them")
    parser.add_argument("--audits", type=int, default=4000, help="audits for each number of seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=None)
    told = parser.parse_args()
    rng, found, exact = np.random.default_rng(told.seed), [], 0
    for number in range(told.cases):
        wrong, known = disagreements(random_case(rng), told.seeds)
        found, exact = found + wrong, exact + known
        for line in wrong:
            print(line, flush=True)
        if number % 200 == 199:
            print(f"{number + 1} cases, {exact} with exact weights, {len(found)} disagreements", flush=True)
    rates = {}
    for seeds in (2, 3, 5, 20, 200):
        rates[seeds] = error_rates(told.audits if seeds < 200 else told.audits // 4, seeds, rng)
        print(seeds, json.dumps(rates[seeds]), flush=True)
    result = {"cases": told.cases, "with exact weights": exact, "disagreements": found, "rates": rates}
    if told.output:
        told.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
