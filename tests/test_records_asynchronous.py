"""What must hold of the records of every asynchronous run, whatever its fleet, work and method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import everfed as ef
from drawing import drawn
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.work import Work
from everfed.run.fleets import CycleFleet
from everfed.scheduling.timeline import Timeline

STEPS, ROUNDS, CLIENTS = 4, 18, 4
DATA = [(np.zeros((i + 1, 1), np.float32), np.full((i + 1, 1), float(i), np.float32)) for i in range(CLIENTS)]
DEVICES = DeviceFleet(
    tuple(
        DeviceGroup(name=site, count=2, site=site, device="esp32", radio="lora-sf7", panel_wp=panel, battery_wh=0.05)
        for site, panel in (("miami", 0.05), ("sand-point", 0.1))
    ),
    cost_spread=0.4,
)


class Point(nn.Module):
    """A model that is one number."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.value.expand(len(x), 1) + 0.0 * x


cycle_fleets = st.builds(
    CycleFleet,
    clients=st.just(CLIENTS),
    cycles=st.lists(st.integers(2, 7), min_size=1, max_size=CLIENTS).map(tuple),
    arrivals=st.sampled_from(["lump", "trickle", "bernoulli"]),
)
works = st.builds(
    Work,
    duration=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    spread=st.sampled_from([0.0, 0.3]),
    local_steps=st.sampled_from(["all", "affordable"]),
)
device_works = st.builds(
    Work,
    spread=st.sampled_from([0.0, 0.3]),
    local_steps=st.sampled_from(["all", "affordable"]),
    partial=st.sampled_from(["lose", "send"]),
)
cases = st.one_of(st.tuples(cycle_fleets, works), st.tuples(st.just(DEVICES), device_works))
METHODS = st.sampled_from(["renewal", "renewal-discounted", "fedasync", "area", "greedy"])


@drawn(25)
@given(cases, METHODS, st.integers(0, 3))
def test_the_records_of_any_run(case, method, seed):
    fleet, work = case
    run = ef.start(
        Point(), ef.from_arrays(DATA, test=DATA[0], task="regression"), fleet, method, rounds=ROUNDS, seed=seed,
        local_steps=STEPS, batch_size=1, client=ef.SGD(1e-3), work=work, eval_every=ROUNDS, check_trainer=False,
        trainer="one-by-one", mode="asynchronous",
    )  # fmt: skip
    e, built, shares = run.experiment, run.setup.fleet, run.setup.data.shares()
    records = list(run)
    timeline = Timeline(built, e.policy, e.seeds.schedule, e.make_pace(built), e.work, e.local_steps)
    version, last, weights, trained = 0, np.zeros(CLIENTS), np.zeros(CLIENTS), 0
    for record in records:
        arrived, books = record.arrived, record.energy
        # The books balance, and nothing is spent that is not there.
        came = books.initial + books.harvested + books.shortfall
        went = books.spent + books.standby + books.leaked + books.lost + books.wasted + books.stored
        assert came == pytest.approx(went)
        assert books.violations == 0
        assert books.shortfall < 1e-9
        assert books.stored >= -1e-9
        # Each work that ends well arrives once, when it ends.
        ended = timeline.round(record.round).arrived
        ended = ended.part(~ended.fails)
        assert record.participants.tolist() == ended.clients.tolist()
        assert (arrived.times * 2**20).tolist() == ended.until.tolist()
        assert arrived.steps.tolist() == ended.steps.tolist()
        assert len({*zip(record.participants.tolist(), arrived.times.tolist(), strict=True)}) == len(arrived.times)
        assert np.all((arrived.times >= record.round) & (arrived.times < record.round + 1))
        assert np.all((arrived.steps >= 1) & (arrived.steps <= STEPS))
        # Versions go forward, at most one for each arrival, and nothing is as old as the run.
        assert version <= arrived.version <= version + len(record.participants)
        assert np.all((arrived.staleness >= 0) & (arrived.staleness <= arrived.version))
        version = arrived.version
        coefficients = record.scales * shares[record.participants]
        assert record.round_weight == pytest.approx(coefficients.sum())
        np.add.at(weights, record.participants, coefficients * arrived.steps / STEPS)
        last[record.participants] = arrived.times
        trained += arrived.steps.sum() / STEPS
    if built.unit_j is None:  # a unit is what all steps cost, and no client has more than it harvested
        assert trained <= records[-1].energy.spent + 1e-9
    if method == "renewal":
        assert weights == pytest.approx(shares * last)
