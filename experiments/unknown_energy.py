"""What it costs to misjudge one's energy, or not to know it. Every number of docs/results/unknown_energy.md.

    python experiments/unknown_energy.py run --out docs/results/unknown_energy.json
    python experiments/unknown_energy.py table --results docs/results/unknown_energy.json

Three questions: (a) what misjudged rates do to the model, and whether weights that are learnt from experience repair
it; (b) how soon learnt weights follow rates that change half-way; (c) what day and night do to them.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study_runs import markdown, percent

from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.energy.changing import Changing
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import BernoulliArrivals, RandomArrivals
from everfed.errors import EverfedWarning
from everfed.methods import METHODS, Method
from everfed.run.experiment import Experiment
from everfed.scheduling.foresight import KnownArrivals
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Clients, Decision, Greedy, Policy, State, View
from everfed.scheduling.uncertain import SelfWeighted
from everfed.server.experience import FedAU
from everfed.server.rules import Sum
from everfed.studies.sweep import plan_runs, run_all

CYCLES = (1, 5, 10, 20)
LATER = (20, 10, 5, 1)  # the same groups' cycles after the change
DAY = 24  # rounds
MEMORIES = (1, 3, 10, 30, 1000)
BLOCK = 10  # rounds over which mean weights are taken
CLOSE = 0.1  # a weight has recovered when it is this near to 1
SPANS = ((1, 1), (2, 3), (4, 10), (11, 20), (21, None))  # days, for weights over time


@dataclass(frozen=True)
class Size:
    """How much is computed; the defaults are those of the page."""

    clients: int = 40
    rounds: int = 400  # of training
    seeds: int = 3
    audits: int = 200  # seeds for mean weights
    change_at: int = 1000
    after: int = 4000
    days: int = 60
    settled: int = 20  # days before weights are looked at by the hour


# ---- who believes what ----


@dataclass(frozen=True)
class Misjudged(Policy):
    """Trains as energy comes, and scales by `times` its true cycle; only: clients of this cycle alone, 0 for all."""

    times: float = 1.0
    only: int = 0

    def init(self, clients: Clients, round: int = 0) -> State:
        wrong = (clients.cycles == self.only) | (self.only == 0)
        return {"scale": clients.cycles * np.where(wrong, self.times, 1.0)}

    def step(self, state: State, view: View) -> Decision:
        return Decision(view.affords, state["scale"], state)


@dataclass(frozen=True)
class Daylight(RandomArrivals):
    """A unit with a chance that follows the sun: none from 18 to 6 o'clock, most at noon, 1/E over the day."""

    def chance(self, round: int) -> Floats:
        hours = np.maximum(np.sin(np.pi * (np.arange(DAY) + 0.5 - 6.0) / 12.0), 0.0)
        chance: Floats = hours[round % DAY] / hours.mean() / self.cycles
        return np.where(self.offsets <= round, chance, 0.0)

    def _arrives(self, round: int, seed: Seeds) -> Bools:
        arrives: Bools = self._word(round, seed) < np.round(self.chance(round) * 2.0**32).astype(np.uint64)
        return arrives


@dataclass(frozen=True)
class KnowsTheHour(Policy):
    """Trains as energy comes, and scales by one over the chance of this hour, which nobody has in the field."""

    def init(self, clients: Clients, round: int = 0) -> State:
        return {"sun": Daylight(clients.cycles, clients.offsets)}

    def step(self, state: State, view: View) -> Decision:
        chance = state["sun"].chance(view.round)
        return Decision(view.affords, np.divide(1.0, chance, out=np.ones_like(chance), where=chance > 0), state)


def learner(**options: int) -> Method:
    return Method(SelfWeighted(**options), Sum(), "self-weighted")


def on_the_server(cutoff: int) -> Method:
    return Method(Greedy(), FedAU(cutoff), "FedAU")


# ---- what weights come to ----


def paper_fleet(clients: int) -> Fleet:
    return Fleet.from_cycles(np.resize(CYCLES, clients), arrivals="bernoulli")


def weights(fleet: Fleet, method: Method, rounds: int, seeds: int) -> Iterator[Floats]:
    """What each client's update counts in each round, 0 for who is absent: [seeds, N] a round."""
    schedule = Schedule(fleet, method.policy, np.arange(seeds, dtype=np.uint64)[:, None])
    weigher = method.server.weighting(seeds * len(fleet))
    for r in range(rounds):
        join, scale = schedule.step(r)
        rows = np.flatnonzero(join)
        counts = np.zeros(join.shape)
        if len(rows):
            asked = np.broadcast_to(scale, join.shape).reshape(-1)[rows]
            counts.reshape(-1)[rows] = weigher.factors(r, rows, asked)
        yield counts


def members(fleet: Fleet) -> list[Ints]:
    return [np.flatnonzero(fleet.cycles() == cycle) for cycle in np.unique(fleet.cycles())]


def rounded(values: Sequence[float] | Floats, digits: int = 4) -> list[float]:
    return [round(float(v), digits) for v in values]


# ---- (a) misjudged and unknown rates ----


def compared() -> dict[str, Method]:
    rarest = max(CYCLES)
    return {
        "true rate": Method(Misjudged(), Sum(), ""),
        "all believe half their rate": Method(Misjudged(2.0), Sum(), ""),
        "all believe twice their rate": Method(Misjudged(0.5), Sum(), ""),
        "the rarest believe half their rate": Method(Misjudged(2.0, rarest), Sum(), ""),
        "the rarest believe twice their rate": Method(Misjudged(0.5, rarest), Sum(), ""),
        "no weights (greedy)": Method(Greedy(), Sum(), ""),
        "learnt by the client (self-weighted)": learner(),
        "learnt by the server (FedAU, cutoff 50)": on_the_server(50),
        "learnt by the server (FedAU, cutoff 200)": on_the_server(200),
        "FedAvg, unlimited energy": METHODS["fedavg"],
    }


def misjudged(size: Size, runs: Path) -> dict[str, Any]:
    fleet, methods = paper_fleet(size.clients), compared()
    base = Experiment(fleet=fleet, rounds=size.rounds, device="cpu")
    titled = [replace(method, title=name) for name, method in methods.items()]
    planned = plan_runs(base, {"method": titled}, range(size.seeds), runs)
    finals = iter([run.final for run in run_all(planned, jobs=1)])
    found = {}
    for name, method in methods.items():
        mean, last = np.zeros(len(fleet)), np.zeros(len(fleet))
        for r, counts in enumerate(weights(fleet, method, size.rounds, size.audits)):
            mean += counts.mean(axis=0) / size.rounds
            if r >= size.rounds // 2:
                last += counts.mean(axis=0) / (size.rounds - size.rounds // 2)
        ends = [next(finals) for _ in range(size.seeds)]
        found[name] = {
            "weight": rounded([mean[group].mean() for group in members(fleet)]),
            "weight_second_half": rounded([last[group].mean() for group in members(fleet)]),
            "accuracy": rounded([m.accuracy for m in ends]),
            "worst_group": rounded([m.worst_group_accuracy for m in ends]),
        }
        print(f"(a) {name}: {found[name]}", flush=True)
    return found


# ---- (b) rates that change half-way ----


def followers() -> dict[str, Method]:
    return {
        "keeps the old rate": Method(Misjudged(), Sum(), ""),
        **{f"memory {m}, cutoff 200": learner(memory=m) for m in MEMORIES},
        **{f"memory 10, cutoff {k}": learner(memory=10, cutoff=k) for k in (20, 50)},
        "FedAU, cutoff 50": on_the_server(50),
    }


def recovery(fleet: Fleet, method: Method, at: int, after: int, seeds: int) -> dict[str, Any]:
    """By group: the mean weight of each block of rounds after the change, and rounds until it is near 1."""
    groups = members(fleet)
    path = np.zeros((after // BLOCK, len(groups)))
    rarest = groups[-1]
    seen, squares, count = 0.0, 0.0, 0
    for r, counts in enumerate(weights(fleet, method, at + len(path) * BLOCK, seeds)):
        if r >= at:
            path[(r - at) // BLOCK] += [counts[:, group].mean() / BLOCK for group in groups]
        elif r >= at // 2:  # how much the weight of the rarest wavers while nothing changes
            present = counts[:, rarest][counts[:, rarest] > 0]
            seen, squares, count = seen + present.sum(), squares + (present**2).sum(), count + len(present)
    near = np.abs(path - 1.0) <= CLOSE
    mean = seen / max(count, 1)
    return {
        "rounds": [int(np.argmax(column) + 1) * BLOCK if column.any() else None for column in near.T],
        "first_100": rounded(path[: 100 // BLOCK].mean(axis=0)),
        "last_500": rounded(path[-(500 // BLOCK) :].mean(axis=0)),
        "waver": round(float(np.sqrt(max(squares / max(count, 1) - mean**2, 0.0)) / max(mean, 1e-9)), 3),
    }


def changing_fleet(clients: int, at: int) -> Fleet:
    fleet = paper_fleet(clients)
    swapped = fleet.cycles().copy()
    for cycle, later in zip(CYCLES, LATER, strict=True):
        swapped[fleet.cycles() == cycle] = later
    after = BernoulliArrivals(swapped, fleet.offsets())
    return replace(fleet, arrivals=Changing(fleet.arrivals, after, at))


def half_way(size: Size) -> dict[str, Any]:
    fleet = changing_fleet(size.clients, size.change_at)
    found = {}
    for name, method in followers().items():
        found[name] = recovery(fleet, method, size.change_at, size.after, size.audits)
        print(f"(b) {name}: {found[name]}", flush=True)
    return found


# ---- (c) day and night ----


def through_the_night() -> dict[str, Method]:
    return {
        **{f"memory {m}": learner(memory=m) for m in MEMORIES},
        "knows its mean rate": Method(Misjudged(), Sum(), ""),
        "knows the hour's rate": Method(KnowsTheHour(), Sum(), ""),
        "knows its next arrival": Method(KnownArrivals(), Sum(), ""),
    }


def by_the_hour(cycle: int, method: Method, size: Size) -> dict[str, Any]:
    """Mean weights by the hour once things have settled, and over the days from the start."""
    cycles = np.full(size.clients, cycle)
    fleet = Fleet(Daylight(cycles, np.zeros_like(cycles)), np.ones(len(cycles)))
    by_day, hourly, squares = np.zeros(size.days), np.zeros(DAY), 0.0
    for r, counts in enumerate(weights(fleet, method, size.days * DAY, size.audits)):
        by_day[r // DAY] += counts.mean() / DAY
        if r >= size.settled * DAY:
            hourly[r % DAY] += counts.mean() / (size.days - size.settled)
            squares += (counts**2).mean() / (size.days - size.settled) / DAY
    worst = int(np.argmax(np.abs(hourly - 1.0)[6:18])) + 6
    spans = [by_day[first - 1 : last] for first, last in SPANS]
    return {
        "hourly": rounded(hourly, 3),
        "mean": round(float(hourly.mean()), 3),
        "worst_light_hour": worst,
        "worst_light_weight": round(float(hourly[worst]), 3),
        "rms_bias_light": round(float(np.sqrt(np.mean((hourly[6:18] - 1.0) ** 2))), 3),
        "night": round(float(np.delete(hourly, np.s_[6:18]).mean()), 3),
        "variance": round(float(squares - np.mean(hourly**2)), 2),
        "by_days": [round(float(span.mean()), 3) if len(span) else None for span in spans],
    }


def day_and_night(size: Size) -> dict[str, Any]:
    found = {}
    for cycle in (5, 20):
        for name, method in through_the_night().items():
            found[f"E={cycle}, {name}"] = by_the_hour(cycle, method, size)
            print(f"(c) E={cycle}, {name}: {found[f'E={cycle}, {name}']}", flush=True)
    return found


# ---- tables ----


def tables(found: dict[str, Any]) -> list[str]:
    """The page's tables, in its order."""
    groups = [f"E={cycle}" for cycle in CYCLES]
    swaps = [f"{a} → {b}" for a, b in zip(CYCLES, LATER, strict=True)]
    days = [f"day {a}" if a == b else f"{a}–{b}" if b else f"from {a}" for a, b in SPANS]
    a = [
        [name, *(f"{w:.2f}" for w in row["weight"]), percent(row["accuracy"]), percent(row["worst_group"])]
        for name, row in found["misjudged"].items()
    ]
    b = [
        [name, *(f"{n:,}" if n else "never" for n in row["rounds"]), f"{row['last_500'][0]:.2f}", f"{row['waver']:.2f}"]
        for name, row in found["half_way"].items()
    ]
    c = [
        [
            name, f"{row['mean']:.2f}", f"{row['night']:.2f}",
            f"{row['worst_light_weight']:.2f} ({row['worst_light_hour']} h)",
            f"{row['rms_bias_light']:.2f}", f"{row['variance']:.1f}",
        ]
        for name, row in found["day_and_night"].items()
    ]  # fmt: skip
    d = [
        [name, *("" if w is None else f"{w:.2f}" for w in row["by_days"])]
        for name, row in found["day_and_night"].items()
        if name.startswith("E=20")
    ]
    return [
        markdown(["", *groups, "accuracy %", "worst group %"], a),
        markdown(["", *swaps, "1 → 20 at the end", "waver"], b),
        markdown(["", "all day", "night", "worst hour of light", "rms bias in light", "variance"], c),
        markdown(["", *days], d),
    ]


def study(size: Size, runs: Path) -> dict[str, Any]:
    began = time.time()
    found = {
        "size": asdict(size),
        "misjudged": misjudged(size, runs),
        "half_way": half_way(size),
        "day_and_night": day_and_night(size),
    }
    return {**found, "seconds": round(time.time() - began)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="compute everything, a few minutes on one core")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--runs", type=Path, default=Path("everfed-out/unknown_energy"), help="the folder of the runs")
    for name, value in asdict(Size()).items():
        run.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    told = commands.add_parser("table", help="the tables, from the results alone")
    told.add_argument("--results", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    if chosen.command == "run":
        warnings.simplefilter("ignore", EverfedWarning)
        torch.set_num_threads(1)
        found = study(Size(**{name: getattr(chosen, name) for name in asdict(Size())}), chosen.runs)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        chosen.results = chosen.out
    print("\n\n".join(tables(json.loads(chosen.results.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
