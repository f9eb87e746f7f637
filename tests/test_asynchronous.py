"""Asynchronous runs: the facts of their rules, through the engine that trains."""

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.energy.work import MOMENTS, Work
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Greedy
from everfed.server.arrivals import Area, FedAsync, FedBuff, Renewal

METHODS = ("renewal", "renewal-discounted", "fedbuff", "fedasync", "area")


class Point(nn.Module):
    """A model that is one number, whatever it sees."""

    def __init__(self, value=0.5):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value]))

    def forward(self, x):
        return self.value.expand(len(x), 1) + 0.0 * x


def halves(outputs, targets):
    return 0.5 * ((outputs - targets) ** 2).mean()


# Two clients that pull towards 0 and towards 1.
PULLS = [(np.zeros((4, 1), np.float32), np.full((4, 1), float(c), np.float32)) for c in (0, 1)]
NO_TIME, HALF = Work(duration=0.0), Work(duration=0.5)


def pulled(method, rounds, cycles=(1, 20), work=NO_TIME, lr=0.01, arrivals="lump", **more):
    """The course of the number, one value per round."""
    fleet = ef.Fleet.from_cycles(cycles, arrivals=arrivals)
    run = ef.start(
        Point(), ef.from_arrays(PULLS, test=PULLS[0], task="regression"), fleet, method, rounds=rounds, local_steps=1,
        batch_size=1, client=ef.SGD(lr=lr), work=work, loss=halves, eval_every=rounds, check_trainer=False,
        trainer="one-by-one", **more,
    )  # fmt: skip
    return np.array([float(run.server.params[0]) for _ in run])


def late_mean(course):
    return course[len(course) // 4 :].mean()


@pytest.mark.parametrize("arrivals", ["lump", "bernoulli"])
def test_a_buffer_of_one_follows_the_rates(arrivals):
    """1/21 of the time is the rare client's, and so of the model."""
    method = ef.Method(Greedy(), FedBuff(size=1, discount="none"))
    found = late_mean(pulled(method, 4000, arrivals=arrivals))
    assert found == pytest.approx(1 / 21, abs=0.012)
