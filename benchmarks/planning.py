"""Time and memory to plan a million clients for a thousand rounds, streaming.

python benchmarks/planning.py                         # Algorithm 1, lumps
python benchmarks/planning.py --arrivals bernoulli    # or markov, ...: trained as it comes, scaled
python benchmarks/planning.py --arrivals solar        # 100 sites (clear sky at 100 latitudes), batteries with losses
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import everfed as ef
from everfed.energy.battery import Storage
from everfed.energy.profile import Profile
from everfed.energy.solar import site_power
from everfed.energy.trace import per_round


def fleet_of(arrivals: str, clients: int) -> ef.Fleet:
    if arrivals != "solar":
        cycles = np.resize([1, 5, 10, 20] if arrivals == "lump" else [2, 5, 10, 20], clients)
        return ef.Fleet.from_cycles(cycles, arrivals=arrivals)
    latitudes = np.linspace(-50.0, 50.0, 100)
    years = [site_power(latitude=float(at), longitude=0.0, azimuth_deg=180.0 if at > 0 else 0.0) for at in latitudes]
    table = np.stack([per_round(year, 3600.0) for year in years])
    site = np.arange(clients) % len(table)
    # Panels such that a round's cost takes from 2 to 20 rounds of mean supply.
    gain = 1.0 / (table.mean(axis=1)[site] * np.resize([2.0, 5.0, 10.0, 20.0], clients))
    profile = Profile(table, site, gain, np.zeros(clients, np.int64))
    storage = Storage(charging=0.9, leak=0.0001, standby=0.001, browns_out=True)
    return ef.Fleet(profile, np.full(clients, 10.0), storage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--arrivals", default="lump", choices=[*ef.ARRIVALS, "solar"])
    options = parser.parse_args()
    began = time.perf_counter()
    fleet = fleet_of(options.arrivals, options.clients)
    built = time.perf_counter() - began
    regular = options.arrivals in ("lump", "trickle")
    policy = ef.UniformWindow() if regular or options.arrivals == "solar" else ef.Greedy(scaled=True)
    began = time.perf_counter()
    participations, step = 0, None
    for step in ef.plan(fleet, policy, options.rounds):
        participations += len(step.clients)
    seconds = time.perf_counter() - began
    assert step is not None
    assert step.energy.violations == 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rate = options.clients * options.rounds / seconds / 1e6
    print("| arrivals | clients | rounds | participations | seconds | million client-rounds per second | peak, GiB |")
    print("|---|---|---|---|---|---|---|")
    size = f"{options.arrivals} | {options.clients:,} | {options.rounds:,} | {participations:,}"
    print(f"| {size} | {seconds:.1f} (+ {built:.1f}) | {rate:.1f} | {peak:.2f} |")


if __name__ == "__main__":
    main()
