"""The audit of asynchronous methods: the weights of real runs, and exact values against brute force."""

import numpy as np
import pytest

import everfed as ef
from everfed.auditing.weighing import weighed
from everfed.energy.battery import Storage
from everfed.energy.work import MOMENTS, Work, pace_of
from everfed.scheduling.policies import Greedy
from everfed.scheduling.timeline import Timeline
from everfed.server.arrivals import Area, FedAsync, FedBuff, PlainArrivals, Renewal, RenewalDiscounted

RULES = [
    Renewal(), RenewalDiscounted(), RenewalDiscounted(discount="hinge", bound=1.0), Area(), PlainArrivals(),
    FedBuff(size=3, weighted=True), FedBuff(size=1), FedAsync(), FedAsync(discount="none"),
]  # fmt: skip
CYCLES = [1, 2, 3, 5, 8, 1, 3]
SHARES = np.array([0.3, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1])
TIRED = Storage(cost_spread=0.3, browns_out=True, leak=0.02)
WORLDS = [
    ("lump", Work(duration=0.0), ef.Fleet.from_cycles(CYCLES)),
    ("lump", Work(duration=1.0), ef.Fleet.from_cycles(CYCLES, [0, 1, 2, 0, 5, 0, 1])),
    ("bernoulli", Work(duration=0.7, spread=0.3), ef.Fleet.from_cycles(CYCLES, arrivals="bernoulli", capacity=2.5)),
    ("markov", Work(duration=0.5), ef.Fleet.from_cycles(CYCLES, arrivals="markov", capacity=3)),
    ("trickle", Work(duration=1.0, local_steps="affordable"), ef.Fleet.from_cycles(CYCLES, arrivals="trickle")),
    ("tired", Work(duration=0.6, partial="send"), ef.Fleet.from_cycles(CYCLES, arrivals="trickle", storage=TIRED)),
    ("block", Work(duration=0.3, spread=0.2), ef.Fleet.from_cycles(CYCLES, arrivals="uniform-in-block", storage=TIRED)),
]
STEPS = 4


def line(fleet, work, seed, policy=None):
    return Timeline(fleet, policy or Greedy(), seed, pace_of(work, len(fleet), None), work, STEPS)


def run_records(fleet, work, method, seed, rounds, **more):
    """What a run that trains says of its arrivals, and its shares."""
    pairs = [(np.zeros((round(10 * p), 2), np.float32), np.zeros(round(10 * p), np.int64)) for p in SHARES]
    data = ef.from_arrays(pairs, test=pairs[0], classes=2)
    run = ef.start(
        "mlp", data, fleet, method, rounds=rounds, local_steps=STEPS, batch_size=1, client=ef.SGD(lr=0.01), work=work,
        seed=seed, check_trainer=False, eval_every=rounds, **more,
    )  # fmt: skip
    return list(run), data.shares()


class TestAgainstTraining:
    @pytest.mark.parametrize("rule", RULES, ids=repr)
    @pytest.mark.parametrize("world", WORLDS, ids=lambda world: world[0] + f"-{world[1].duration}")
    def test_weights_are_those_of_a_run_to_the_last_digit(self, world, rule):
        """All seeds at once in the audit; one of them in the run."""
        _, work, fleet = world
        rounds, seeds = 12, [3, 4, 9]
        plain = isinstance(rule, PlainArrivals)
        method = Greedy(scaled=True) if plain else ef.Method(Greedy(), rule)
        policy = Greedy(scaled=plain)
        records, shares = run_records(fleet, work, method, 4, rounds, mode="asynchronous" if plain else "auto")
        many = line(fleet, work, np.array(seeds, np.uint64)[:, None], policy)
        n = len(fleet)
        for record, found in zip(records, weighed(many, rule, shares, rounds), strict=True):
            mine = found.clients // n == 1
            who = found.clients[mine] % n
            assert who.tolist() == record.participants.tolist()
            assert (found.coefficients[mine] / shares[who]).tolist() == record.scales.tolist()
            assert found.staleness[mine].tolist() == record.arrived.staleness.tolist()
            assert found.steps[mine].tolist() == record.arrived.steps.tolist()
            assert (found.moments[mine] / MOMENTS).tolist() == record.arrived.times.tolist()
        assert sum(len(record.participants) for record in records) > 10
