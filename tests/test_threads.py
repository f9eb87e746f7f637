"""Runs that are made in several threads of one process, as devices of one process do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

import everfed as ef
from everfed.run.fleets import CycleFleet
from everfed.run.setup import Setup

SMALL = ef.Experiment(fleet=CycleFleet(clients=4, cycles=(1,)), rounds=2, device="cpu")


def begun(seed):
    """The first model and the trainer of an experiment; both draw from torch's one generator on their way."""
    setup = Setup(replace(SMALL, seed=seed))
    first = setup.layout.flatten(setup.module).clone()
    setup.trainer()
    return seed, first


def test_models_begun_side_by_side_are_those_begun_alone():
    alone = dict(begun(seed) for seed in range(3))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(begun, [seed for _ in range(16) for seed in range(3)]))
    for seed, first in found:
        assert torch.equal(first, alone[seed]), seed
    assert torch.equal(torch.rand(3), expected)  # and the caller's generator is where it was
