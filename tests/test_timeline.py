"""When asynchronous clients begin and arrive, against a plain event loop of one client at a time."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from everfed import random
from everfed.energy.battery import Storage
from everfed.energy.fleet import Fleet
from everfed.energy.work import MOMENTS, Lasting, Pace, Work, pace_of, slots_per_round
from everfed.errors import InputError
from everfed.scheduling.policies import Always, Greedy, UniformWindow
from everfed.scheduling.timeline import Timeline, by_moment

T = 5


def bell(purpose, seed, client, slot):
    word = random.words(seed, purpose, client, slot).astype(float).sum()
    return math.sqrt(3.0) * (word / 2.0**32 - 2.0)


def alone(fleet, client, seed, pace, work, rounds, slots):
    """(begun, until, slot, steps, lost) of one client's works in these rounds, one event after the other."""
    s, affordable = fleet.storage, work.local_steps == "affordable"
    train, air, radio = (float(column[client]) for column in (pace.train, pace.air, pace.radio))
    level, capacity, found = min(float(s.start), fleet.capacity[client]), fleet.capacity[client], []
    least = radio + (1.0 - radio) / T if affordable else 1.0
    free, last, tried = 0, -1, -1
    events = [(r * MOMENTS, 0, r) for r in range(rounds)]
    heapq.heapify(events)
    while events:
        now, kind, number = heapq.heappop(events)
        if kind == 0:
            gone = level * s.leak
            level = min(level - gone + fleet.harvest(number, seed)[client] * s.charging, capacity)
            level -= min(level, s.standby)
        round_ = now // MOMENTS
        if now < free or level < least * (1 - 1e-9) or tried == round_:
            continue
        slot = last = max(round_ * slots, last + 1)
        steps = T
        if affordable:
            steps = int(min(max(math.floor((level - radio) * T / (1 - radio) * (1 + 1e-9) + 1e-9), 1), T))
        share = radio + (1 - radio) * steps / T
        price = share * max(1.0 + s.cost_spread * bell(random.Purpose.COST, seed, client, slot), 0.0)
        done, lost = steps, False
        if (s.browns_out or s.cost_spread) and price > level * (1 + 1e-9):
            each = (price - radio * price / share) / steps
            done = int(min(max(math.floor((level - radio * price / share) / each * (1 + 1e-9) + 1e-9), 0), steps - 1))
            lost = work.partial == "lose" or done == 0
            price = level
        level = max(level - price, 0.0)
        took = air + train * done / T
        if work.spread:
            z = np.array([bell(random.Purpose.DURATION, seed, client, slot)])
            took *= float(Lasting(work.spread).factors(z)[0])
        free = now + (max(math.ceil(took * MOMENTS - 1e-3), 1) if train + air > 0 else 0)
        found.append((now, free, slot, done, lost))
        if free > now:
            heapq.heappush(events, (free, 1, -1))
        else:
            tried = round_  # once a round
    return found


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(["lump", "trickle", "bernoulli", "markov", "uniform-in-block"]))
    cycles = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    offsets = draw(st.lists(st.integers(0, 4), min_size=len(cycles), max_size=len(cycles)))
    lossy = draw(st.booleans())
    storage = Storage(
        charging=0.9, leak=0.05, standby=0.02, start=draw(st.sampled_from([0.0, 1.7])),
        cost_spread=draw(st.sampled_from([0.0, 0.2])), browns_out=True,
    ) if lossy else Storage()  # fmt: skip
    fleet = Fleet.from_cycles(
        cycles, offsets, arrivals=kind, capacity=draw(st.sampled_from([2.0, 3.5, 9.0])), storage=storage
    )
    work = Work(
        duration=draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0])), spread=draw(st.sampled_from([0.0, 0.25])),
        local_steps=draw(st.sampled_from(["all", "affordable"])), partial=draw(st.sampled_from(["lose", "send"])),
    )  # fmt: skip
    pace = pace_of(work, len(fleet), None)
    if draw(st.booleans()):  # some of the time and of the energy is the radio's
        pace = Pace(0.7 * pace.train, 0.3 * pace.train, np.full(len(fleet), 0.4))
    return fleet, work, pace, draw(st.integers(0, 2**40))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_timeline_is_that_of_each_client_alone(case):
    fleet, work, pace, seed = case
    rounds = 25
    timeline = Timeline(fleet, Greedy(), seed, pace, work, T)
    begun, arrived = [], []
    for number in range(rounds):
        happened = timeline.round(number)
        assert abs(happened.energy.imbalance()) < 1e-9
        assert happened.energy.shortfall < 1e-6
        assert happened.energy.violations == 0
        begun += list(zip(*happened.begun, strict=True))
        arrived += list(zip(*happened.arrived, strict=True))
    assert [(b[1], b[0]) for b in begun] == sorted((b[1], b[0]) for b in begun)
    assert [(a[2], a[0]) for a in arrived] == sorted((a[2], a[0]) for a in arrived)
    end = rounds * MOMENTS
    for client in range(len(fleet)):
        expected = alone(fleet, client, seed, pace, work, rounds, timeline.slots)
        mine = [tuple(map(int, b[1:])) for b in begun if b[0] == client]
        assert mine == [tuple(map(int, e)) for e in expected]
        over = [tuple(map(int, a[1:])) for a in arrived if a[0] == client]
        assert over == [m for m in mine if m[1] < end]


@settings(max_examples=30, deadline=None)
@given(cases())
def test_many_seeds_at_once_are_each_seed_alone(case):
    fleet, work, pace, _ = case
    seeds = np.array([3, 2**33 + 1, 7], np.uint64)[:, None]
    together = Timeline(fleet, Greedy(), seeds, pace, work, T)
    each = [Timeline(fleet, Greedy(), int(seed), pace, work, T) for seed in seeds[:, 0]]
    for number in range(12):
        whole = together.round(number).begun
        for place, timeline in enumerate(each):
            mine = timeline.round(number).begun
            theirs = whole.part(whole.clients // len(fleet) == place)
            assert np.array_equal(theirs.clients % len(fleet), mine.clients)
            for one, two in zip(theirs[1:], mine[1:], strict=True):
                assert np.array_equal(one, two)


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(0, 20))
def test_a_timeline_goes_on_where_it_was_saved(case, saved):
    fleet, work, pace, seed = case
    whole = Timeline(fleet, Greedy(), seed, pace, work, T)
    for number in range(saved):
        whole.round(number)
    again = Timeline(fleet, Greedy(), seed, pace, work, T)
    again.load_state_dict({name: np.array(value) for name, value in whole.state_dict().items()})
    for number in range(saved, 25):
        one, two = whole.round(number), again.round(number)
        assert one.energy == two.energy
        for a, b in zip((*one.begun, *one.arrived), (*two.begun, *two.arrived), strict=True):
            assert np.array_equal(a, b)


def test_at_one_moment_arrivals_come_before_those_who_begin():
    timeline = Timeline(Fleet.from_cycles([1, 2]), Greedy(), 0, pace_of(Work(), 2, None), Work(), T)
    timeline.round(0)
    ((arrived, begun, at_once),) = by_moment(timeline.round(1))
    assert arrived.clients.tolist() == [0, 1]
    assert begun.clients.tolist() == [0]
    assert len(at_once.clients) == 0


def test_unlimited_energy_works_without_a_pause():
    work = Work(duration=0.25)
    timeline = Timeline(Fleet.from_cycles([3, 20]), Always(), 0, pace_of(work, 2, None), work, T)
    happened = timeline.round(0)
    assert happened.begun.clients.tolist() == [0, 1] * 4
    assert len(set(zip(happened.begun.clients, happened.begun.slots, strict=True))) == 8


@pytest.mark.parametrize(
    ("policy", "work", "said"),
    [
        (Greedy(), Work(duration=3.0), "work takes client 0 3 rounds, and its cycle is 2"),
        (Always(), Work(duration=0.0), "work takes no time and energy is unlimited"),
        (UniformWindow(), Work(), "the policy UniformWindow chooses rounds"),
    ],
)
def test_what_makes_no_sense_is_refused(policy, work, said):
    fleet = Fleet.from_cycles([2, 20])
    with pytest.raises(InputError, match=said):
        Timeline(fleet, policy, 0, pace_of(work, 2, None), work, T)


def test_slots_are_as_many_as_a_client_can_use():
    def slots(**work):
        chosen = Work(**work)
        return slots_per_round(pace_of(chosen, 3, None), chosen, T)

    assert [slots(duration=d) for d in (0.0, 0.3, 0.5, 1.0, 2.5)] == [1, 4, 2, 1, 1]
    assert slots(duration=1.0, local_steps="affordable") == T
    assert slots(duration=0.001) == 1000


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_durations_have_the_mean_and_the_deviation_that_they_are_said_to_have(spread):
    z = math.sqrt(3.0) * (np.random.default_rng(0).random((4, 1_000_000)).sum(axis=0) - 2.0)
    factors = Lasting(spread).factors(z)
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert factors.std() == pytest.approx(spread, abs=0.01)
    assert factors.min() > 0.0


@pytest.mark.parametrize(("duration", "expected"), [(0.01, 100), (1 / 3, 3), (0.2, 5), (0.001, 1000)])
def test_nobody_waits_who_could_work(duration, expected):
    work = Work(duration=duration)
    timeline = Timeline(Fleet.from_cycles([1]), Always(), 0, pace_of(work, 1, None), work, T)
    rounds = [timeline.round(number).begun for number in range(3)]
    counts = [len(begun.clients) for begun in rounds]
    assert counts == pytest.approx([expected] * 3, rel=0.001)  # moments are rounded up
    slots = np.concatenate([begun.slots for begun in rounds])
    assert len(set(slots.tolist())) == len(slots)


def test_long_spreads_leave_no_pause():
    """Each work begins where the last one ended, however many there are in a round."""
    work = Work(duration=0.3, spread=0.9)
    timeline = Timeline(Fleet.from_cycles([1] * 20), Always(), 0, pace_of(work, 20, None), work, T)
    begun, until = {}, {}
    for number in range(30):
        for client, began, ends, *_ in zip(*timeline.round(number).begun, strict=True):
            assert began == until.get(client, 0)
            until[client] = ends
            begun[client] = begun.get(client, 0) + 1
    assert sum(begun.values()) / 20 == pytest.approx(30 / 0.3, rel=0.15)
