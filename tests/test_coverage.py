"""Which theorem covers which method on which fleet: the whole table, and every claim held against the schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import everfed as ef
from everfed.energy.arrivals import ARRIVALS, Lump
from everfed.energy.battery import Storage
from everfed.energy.changing import Changing
from everfed.energy.profile import Profile
from everfed.errors import InputError
from everfed.learning.compress import COMPRESSORS, Whole
from everfed.learning.gradients import GRADIENT_RULES
from everfed.learning.optim import OPTIMIZERS, SGD
from everfed.methods import METHODS
from everfed.scheduling.lattice import Lattice
from everfed.scheduling.plan import Schedule
from everfed.scheduling.table import POLICIES
from everfed.server.optimizers import SERVER_OPTIMIZERS, ServerSGD
from everfed.server.rules import Sum, Truncated
from everfed.server.table import SERVER_RULES
from everfed.theory import PROVEN
from everfed.theory.coverage import check_training, participation

CYCLES = [1, 2, 3, 3]


def fleet(cycles=CYCLES, **more):
    return ef.Fleet.from_cycles(cycles, **more)


def changing():
    start = np.zeros(len(CYCLES), np.int64)
    process = Changing(Lump(np.array(CYCLES), start), Lump(2 * np.array(CYCLES), start), at=20)
    return replace(fleet(), arrivals=process)


def sunny():
    table = np.tile([0.0, 1.0, 2.0, 1.0], (1, 6))
    profile = Profile(table, np.zeros(4, np.int64), np.array([1.0, 0.5, 0.3, 0.3]), np.zeros(4, np.int64))
    return replace(fleet(), arrivals=profile)


# Every kind of fleet: arrivals, batteries, starts and storage.
FLEETS = {
    **{name: fleet(arrivals=name) for name in ARRIVALS},
    "lump, large batteries": fleet(capacity=3),
    "trickle, one unit": fleet(arrivals="trickle", capacity=1),
    "trickle, just enough": fleet(arrivals="trickle", capacity=[1, 1.5, 5 / 3, 5 / 3]),
    "offsets": fleet(offsets=[0, 1, 0, 2]),
    "all start late": fleet(offsets=[2, 2, 2, 2]),
    "standby": fleet(storage=Storage(standby=0.2), capacity=3),
    "leak": fleet(storage=Storage(leak=0.1)),
    "charging": fleet(storage=Storage(charging=0.9)),
    "cost spread": fleet(storage=Storage(cost_spread=0.1)),
    "charged": fleet(storage=Storage(start=1.0)),
    "charged by chance": fleet(arrivals="bernoulli", storage=Storage(start=1.0)),
    "brown-outs": fleet(storage=Storage(browns_out=True)),
    "bernoulli, leak": fleet(arrivals="bernoulli", storage=Storage(leak=0.1)),
    "changing": changing(),
    "sun": sunny(),
    **{f"everyday, {name}": fleet([1, 1, 1], arrivals=name) for name in ARRIVALS},
    "everyday, standby": fleet([1, 1, 1], storage=Storage(standby=0.2), capacity=3),
    "everyday, offsets": fleet([1, 1, 1], offsets=[0, 0, 1]),
}
EVERYDAY = {f"everyday, {name}": "everybody" for name in ARRIVALS}
SLOTS = dict.fromkeys(
    ["lump", "lump, large batteries", "trickle", "trickle, just enough", "charged", "brown-outs"], "windows"
)
NO_CHANCE_LOST = [name for name in FLEETS if name not in ("cost spread", "brown-outs") and "offsets" not in name]
# method -> fleet -> what is proven. Whatever is not here must be refused.
COVERED = {
    "fedavg": dict.fromkeys(FLEETS, "everybody"),
    "algorithm1": SLOTS | EVERYDAY,
    "truncated": SLOTS | EVERYDAY,  # these cycles lie below its limit
    "lattice": dict.fromkeys(SLOTS, "lattice") | EVERYDAY,
    "fixed-phase": EVERYDAY,
    "known-arrivals": {name: kind for name, kind in SLOTS.items() if name != "charged"} | EVERYDAY,
    "greedy-scaled": {"bernoulli": "coins", "uniform-in-block": "windows"} | EVERYDAY,
    "bernoulli": dict.fromkeys([n for n in NO_CHANCE_LOST if n != "all start late"], "coins") | EVERYDAY,
    "greedy": EVERYDAY,
    "greedy-normalized": EVERYDAY,
    "wait-for-all": EVERYDAY,
    "algorithm1-unscaled": EVERYDAY,
}


def found(policy, server, name):
    try:
        return participation(policy, server, FLEETS[name])
    except InputError as error:
        said = str(error)
    assert said.startswith("no theorem covers this: ")
    assert ". " not in said  # one sentence
    return None


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("method", METHODS)
def test_the_whole_table(method, name):
    chosen = METHODS[method]
    assert found(chosen.policy, chosen.server, name) == COVERED.get(method, {}).get(name)


def test_every_kind_has_a_proof():
    kinds = {kind for row in COVERED.values() for kind in row.values()}
    assert kinds == set(PROVEN)


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_claimed_is_what_the_schedule_does(policy, name):
    """Mean weight 1 in every round, given the past for coins, one slot a window for windows: over many seeds."""
    chosen = METHODS["greedy-scaled"].policy if policy == "greedy" else POLICIES[policy]()
    kind = found(chosen, Sum(), name)
    if kind is None:
        return
    where, seeds = FLEETS[name], 3000
    schedule = Schedule(where, chosen, np.arange(seeds, dtype=np.uint64)[:, None])
    weight = np.array([np.broadcast_to(j * s, (seeds, len(where))) for j, s in (schedule.step(r) for r in range(12))])
    scale = np.ones(len(where)) if kind == "everybody" else where.cycles()
    assert np.all((weight == 0) | (weight == scale))
    error = 5.5 * np.sqrt((scale - 1.0) / seeds)
    assert np.all(np.abs(weight.mean(axis=1) - 1.0) <= error)
    if kind == "coins":
        before, now = weight[:-1] - 1.0, weight[1:] - 1.0
        assert np.all(np.abs((before * now).mean(axis=1)) <= 5.5 * (scale - 1.0) / np.sqrt(seeds))
    if kind in ("windows", "lattice"):
        for i, cycle in enumerate(where.cycles()):
            windows = (weight[:, :, i] > 0).reshape(12 // cycle, cycle, seeds).sum(axis=1)
            assert np.all(windows == 1)
            # The slot knows nothing of the window before.
            slot = (weight[:, :, i] > 0).reshape(12 // cycle, cycle, seeds).argmax(axis=1) - (cycle - 1) / 2
            spread = (cycle**2 - 1) / 12
            assert np.all(np.abs((slot[:-1] * slot[1:]).mean(axis=1)) <= 5.5 * spread / np.sqrt(seeds))
    if kind == "windows":  # and nothing of the other clients'
        apart = np.einsum("rsi,rsj->rij", weight - 1.0, weight - 1.0) / seeds
        apart[:, np.arange(len(scale)), np.arange(len(scale))] = 0.0
        assert np.all(np.abs(apart) <= 5.5 * np.sqrt(np.outer(scale - 1.0, scale - 1.0) / seeds))


@pytest.mark.parametrize("rule", [name for name in SERVER_RULES if name not in ("sum", "truncated", "normalized")])
def test_rules_that_do_not_add_up_are_refused_even_where_everybody_takes_part(rule):
    with pytest.raises(InputError, match=SERVER_RULES[rule].__name__):
        participation(METHODS["fedavg"].policy, SERVER_RULES[rule](), FLEETS["lump"])


def test_a_cut_counts_only_where_it_cuts():
    policy = METHODS["algorithm1"].policy
    assert participation(policy, Truncated(3.0), FLEETS["lump"]) == "windows"
    with pytest.raises(InputError, match=r"cuts scales to 2\.5"):
        participation(policy, Truncated(2.5), FLEETS["lump"])


def test_a_policy_of_one_s_own_is_refused():
    class Mine(Lattice):
        pass

    with pytest.raises(InputError, match="no theorem covers"):
        participation(Mine(), Sum(), FLEETS["lump"])


class TestTraining:
    def refused(self, client=None, gradients=(), compression=None, server=None):
        try:
            check_training(client or SGD(), gradients, compression or Whole(), server or ServerSGD())
        except InputError:
            return True
        return False

    def test_plain_sgd_is_covered(self):
        assert not self.refused()
        assert not self.refused(SGD(weight_decay=0.1))  # a term of the loss

    @pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS.values() if kind is not SGD])
    def test_other_optimisers_are_not(self, kind):
        assert self.refused(kind())

    def test_nor_momentum(self):
        assert self.refused(SGD(momentum=0.5))

    @pytest.mark.parametrize("rule", GRADIENT_RULES.values())
    def test_nor_changed_gradients(self, rule):
        assert self.refused(gradients=(rule(),))

    @pytest.mark.parametrize("kind", [kind for kind in COMPRESSORS.values() if kind is not Whole])
    def test_nor_compressed_updates(self, kind):
        assert self.refused(compression=kind())

    @pytest.mark.parametrize("kind", SERVER_OPTIMIZERS.values())
    def test_nor_another_step_of_the_server(self, kind):
        assert self.refused(server=kind(lr=0.5))
