"""Advice: the numbers are those of the project's own simulator, and sizes are the smallest that do."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import everfed as ef
from device_fleets import random_fleet, simulated_weights, write_power
from everfed.advising import sizing
from everfed.advising.advice import CAUSES
from everfed.advising.batteries import trail
from everfed.advising.dates import Calendar
from everfed.advising.design import read
from everfed.advising.ledger import ledgers
from everfed.advising.sizing import ladder, longer_cycles, reaches
from everfed.advising.weather import as_given, resampled
from everfed.advising.world import Query, World
from everfed.cli.advice import show
from everfed.cli.screen import Screen
from everfed.energy.physical import DeviceFleet, DeviceGroup, OwnSite
from everfed.report.advice_page import render
from everfed.run import config
from everfed.run.files import fleet_named
from everfed.units import power
from plans import participations as planned

pytestmark = pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
SEEDS = range(6)


def horizon(spec, days=40):
    return round(days * 86_400.0 / spec.round_s)


def advice(spec, **changes):
    return ef.advise(spec, **({"rounds": horizon(spec), "years": 2, "times": 3} | changes))


def by_device(crowd, paid, due):
    """The mean over the devices of paid slots over slots."""
    slots = due.sum(axis=0)
    mine = [crowd.device == device for device in np.unique(crowd.device)]
    return np.mean([np.sum(np.array(paid)[m]) / slots[m].sum() for m in mine if slots[m].sum()])


@pytest.mark.parametrize("cost_spread", [0.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_slots_are_paid_as_in_the_plan(tmp_path, seed, cost_spread):
    spec = random_fleet(tmp_path, seed, cost_spread=cost_spread)
    rounds, design = horizon(spec), read(spec)
    world = World(design, rounds, years=0)
    expected = [planned(ef.plan(design.fleet, "algorithm1", rounds, s), len(design.fleet)) for s in range(16)]
    for number, crowd in enumerate(world.crowds):
        due = world.due(number, 0)
        path = trail(crowd.cells, world.table, due, world.costs(due, crowd.cells))
        mine = [expected[s][device] for s, device in zip(crowd.cells.seeds, crowd.device, strict=True)]
        assert (path.outcome == 2).sum(axis=0).tolist() == mine
        assert world.weights([Query(number)])[0][0] == pytest.approx(by_device(crowd, mine, due), abs=1e-14)


def test_devices_that_differ_under_the_sun_are_paid_as_in_the_plan():
    """Orientations, shading and age of a fleet to start from."""
    raw = fleet_named("two-cities")
    for group in raw["groups"]:
        group |= {"count": 16, "panel_wp": group["panel_wp"] / 2.0, "battery_wh": group["battery_wh"] / 4.0}
    design = read(config.from_dict({"fleet": raw}).fleet)
    world = World(design, 400, years=0)
    expected = planned(ef.plan(design.fleet, "algorithm1", 400, 0), len(design.fleet))
    assert len(design.profile.table) > len(design.labels)
    for book in ledgers(world, Calendar(3600.0)):
        assert book.paid.sum(axis=0).tolist() == expected[book.device].tolist()
    assert expected.sum() < sum(world.due(g, 0).sum() for g in range(4))  # some are skipped


@pytest.mark.parametrize("seed", SEEDS)
def test_participation_is_that_of_an_audit_over_the_same_seeds(tmp_path, seed):
    spec = random_fleet(tmp_path, seed)
    rounds, design = horizon(spec), read(spec)
    world = World(design, rounds, 0)
    for book, crowd in zip(ledgers(world, Calendar(spec.round_s)), world.crowds, strict=True):
        audit = ef.audit(design.fleet, "algorithm1", rounds, seeds=crowd.copies)
        mine = np.unique(crowd.device)
        assert book.participations == pytest.approx(audit.participation_rate[mine].sum() * rounds * crowd.copies)
        # A window that the end cuts has a slot in the horizon by chance: at most one more or less.
        cut = (design.fleet.cycles()[mine] / rounds).max()
        assert book.weight == pytest.approx(audit.mean_weight[mine].mean(), abs=cut)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_whose_devices_have_different_cycles_has_the_mean_weight_of_an_audit(tmp_path, seed):
    """Over a horizon that all cycles divide, so that no window is cut."""
    rng = np.random.default_rng(seed)
    trace = write_power(tmp_path / "p.csv", rng, 30, 0.012)
    group = DeviceGroup(
        name="a", count=6, device="esp32", trace=trace, spread=0.2, start=0.0, leak_per_day=0.02,
        step_s=float(rng.uniform(20.0, 50.0)), battery_wh=float(rng.uniform(0.03, 0.05)),
    )  # fmt: skip
    spec = DeviceFleet((group,), round_s=10_800.0, model_mb=0.0)
    cycles = spec.build().cycles()
    rounds = int(np.lcm.reduce(cycles))
    rounds *= -(-200 // rounds)
    assert len(set(cycles.tolist())) > 1
    assert rounds < 20_000
    found = advice(spec, rounds=rounds, years=0)
    (g,) = found.groups
    audit = ef.audit(spec.build(), "algorithm1", rounds, seeds=g.seeds)
    assert g.weight == pytest.approx(audit.mean_weight.mean(), abs=1e-12)
    assert g.lowest_weight == pytest.approx(audit.mean_weight.min(), abs=1e-12)
    assert found.levers[0].effects[0].weight == pytest.approx(g.weight, abs=1e-12)
    assert found.levers[0].effects[0].rounds_per_day == pytest.approx(g.rounds_per_day)
    assert g.weight != pytest.approx(g.participations / g.slots, abs=1e-4)  # the test tells the two apart
    assert sum(g.skipped.values()) == pytest.approx(1.0 - g.weight, abs=1e-12)


def test_a_weight_is_the_mean_of_participations_times_scale_where_windows_fill_the_horizon(tmp_path):
    trace = write_power(tmp_path / "p.csv", np.random.default_rng(0), 40, 0.02)
    group = DeviceGroup(name="a", count=16, device="esp32", trace=trace, battery_wh=0.02, step_s=40, cycle=4)
    spec = DeviceFleet((group,), round_s=21_600.0)
    found = advice(spec, years=0).groups[0]
    audit = ef.audit(spec.build(), "algorithm1", horizon(spec), seeds=1)
    assert 0.5 < found.weight < 0.99
    assert found.weight == pytest.approx(audit.mean_weight.mean(), abs=1e-12)


@pytest.mark.parametrize("cost_spread", [0.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_energy_balances_in_every_month_and_is_that_of_the_plans_books(tmp_path, seed, cost_spread):
    spec = random_fleet(tmp_path, seed, cost_spread=cost_spread)
    # One seed of all devices: then the groups' flows add up to a plan's books.
    spec = replace(spec, groups=tuple(replace(g, count=16 + g.count) for g in spec.groups))
    rounds, design = horizon(spec), read(spec)
    *_, last = ef.plan(design.fleet, "algorithm1", rounds, 0)
    books = last.energy
    found = list(ledgers(World(design, rounds, 0), Calendar(spec.round_s)))
    for ledger in found:
        for flows in (ledger.flows, *(m.flows_j for m in ledger.months)):
            assert flows.imbalance() == pytest.approx(0.0, abs=1e-9 * (flows.harvested + flows.initial))
            assert min(vars(flows).values()) >= 0.0
        for before, after in zip(ledger.months, ledger.months[1:], strict=False):
            assert before.flows_j.stored == after.flows_j.initial

    def total(*names):
        return sum(getattr(ledger.flows, name) for ledger in found for name in names)

    assert total("initial") == pytest.approx(books.initial)
    assert total("harvested") == pytest.approx(books.harvested)
    assert total("overflow") == pytest.approx(books.wasted, abs=1e-6)
    assert total("leak", "charging_loss") == pytest.approx(books.leaked)
    assert total("standby") == pytest.approx(books.standby)
    assert total("training", "radio") == pytest.approx(books.spent)
    assert total("lost") == pytest.approx(books.lost, abs=1e-6)
    assert total("stored") == pytest.approx(books.stored, abs=1e-6)


@pytest.mark.parametrize("cost_spread", [0.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_causes_add_up_to_what_is_skipped(tmp_path, seed, cost_spread):
    spec = random_fleet(tmp_path, seed, cost_spread=cost_spread)
    for ledger in ledgers(World(read(spec), horizon(spec), 0), Calendar(spec.round_s)):
        assert sum(ledger.skipped.values()) == pytest.approx(1.0 - ledger.weight, abs=1e-12)
        assert set(ledger.skipped) == set(CAUSES)
        for month in ledger.months:
            if month.weight is not None:
                assert sum(month.skipped.values()) == pytest.approx(1.0 - month.weight, abs=1e-12)
        assert sum(m.slots for m in ledger.months) == ledger.slots
        assert sum(m.participations for m in ledger.months) == ledger.participations


def flat_power(path, watts, days=60):
    """watts: of each of the 8 steps of a day, or of each day."""
    each = np.resize(watts, 8 * days) if len(watts) == 8 else np.repeat(np.resize(watts, days), 8)
    rows = [f"{10_800 * step},{value}" for step, value in enumerate(each)]
    path.write_text("\n".join(["seconds,power_w", *rows]) + "\n")
    return str(path)


# A round costs 20 J; eight rounds of three hours a day.
PLAIN = {
    "name": "a", "count": 4, "device": "esp32", "radio": "none", "charging": 1.0, "discharging": 1.0, "cutoff": 0.0,
    "leak_per_day": 0.0, "step_s": 20.0 / 0.22 / 5, "switched_off": True, "start": 1.0, "battery_wh": 1.0,
}  # fmt: skip
DAYLIGHT = [0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0]


@pytest.mark.parametrize(
    ("cause", "watts", "changes"),
    [
        # Every round is promised, and the battery holds one: nights are skipped.
        ("night", DAYLIGHT, {"cycle": 1, "battery_wh": 20.5 / 3600}),
        # Five days of sun, then five without: a battery of one more week bridges them.
        ("overflow", [0.01] * 5 + [0.0] * 5, {"cycle": 8, "battery_wh": 41.0 / 3600}),
        # Thirty days and thirty days: a week does not.
        ("winter", [0.01] * 30 + [0.0] * 30, {"cycle": 8, "battery_wh": 41.0 / 3600}),
        # Half of it leaks within a day.
        ("leak", [0.0004] * 60, {"leak_per_day": 0.6}),
        # A constant supply that standby takes.
        ("standby", [0.00025] * 60, {"switched_off": False, "device": "phone", "step_s": 20 / 4.47 / 5, "cycle": 240}),
        # A constant supply of a tenth of what is promised.
        ("supply", [20 / 86_400 / 10] * 60, {"cycle": 8, "battery_wh": 20.5 / 3600}),
        # It would have enough, had it begun with a full battery.
        ("start", [20 / 86_400 * 0.995] * 60, {"cycle": 8, "start": 0.0}),
    ],
)
def test_each_cause_is_found_where_it_is_the_only_one(tmp_path, cause, watts, changes):
    trace = flat_power(tmp_path / "p.csv", watts)
    spec = DeviceFleet((DeviceGroup(trace=trace, **(PLAIN | changes)),), round_s=10_800.0, model_mb=0.0)
    found = advice(spec, rounds=480, years=0).groups[0]
    assert found.weight < 0.99
    assert found.main_cause == cause
    assert found.skipped[cause] > 0.7 * (1.0 - found.weight)


def test_rounds_that_fail_are_brown_outs(tmp_path):
    trace = flat_power(tmp_path / "p.csv", [20 / 86_400] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"battery_wh": 20.5 / 3600}))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0, cost_spread=0.5), rounds=480, years=0).groups[0]
    assert found.skipped["brown-out"] > 0.1
    assert found.flows_j.lost > 0.0


def test_a_round_that_does_not_fit_is_advised_on_not_refused(tmp_path):
    trace = flat_power(tmp_path / "p.csv", [0.01] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"radio": "lora-sf7"}))
    other = DeviceGroup(trace=trace, **(PLAIN | {"name": "b"}))
    found = advice(DeviceFleet((group, other), 10_800.0, model_mb=10.0), rounds=480, years=1)
    a, b = found.groups
    assert (a.weight, a.skipped["air time"], a.starved) == (0.0, 1.0, True)
    assert (b.weight, b.starved) == (1.0, False)
    assert a.flows_j.training == a.flows_j.radio == 0.0
    assert "10 MB up at 4845 bit/s take" in found.verdict[-1]
    assert a.sizes.panel is None
    assert found.variance is None
    assert [c.group for c in found.changes] == []


def test_a_device_that_cannot_idle_is_told_when_it_dies(tmp_path):
    # It draws 27 J more in a round than arrive, from 2160 J: eighty rounds, but for the little that training takes.
    trace = flat_power(tmp_path / "p.csv", [0.0275] * 60)
    awake = {"device": "phone", "switched_off": False, "step_s": 1e-3, "battery_wh": 1.2, "start": 0.5}
    group = DeviceGroup(trace=trace, **(PLAIN | awake))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=480, years=0)
    assert found.groups[0].dead_since == "2001-01-10T21:00"
    assert found.groups[0].cycle == 8  # once a day is asked of it
    assert "a cannot even idle on its supply: 27.5 mW arrive" in found.verdict[1]
    assert "first run dry on 10 January" in found.verdict[1]
    assert found.groups[0].sizes.panel.panel == pytest.approx(0.03 / 0.0275, rel=0.03)


@pytest.mark.parametrize("horizon", [80, 480])
@pytest.mark.parametrize("watts", [0.0275, 0.0])
def test_a_device_that_lives_off_its_charge_is_told_until_when(tmp_path, watts, horizon):
    # It draws 324 J in a round of three hours and gets 297 J or none; it begins with what twice the horizon takes.
    trace = flat_power(tmp_path / "p.csv", [watts] * 60)
    loss = 10_800 * (0.03 - watts)
    awake = {"device": "phone", "switched_off": False, "step_s": 1e-3, "battery_wh": 4 * horizon * loss / 3600}
    group = DeviceGroup(trace=trace, **(PLAIN | awake | {"start": 0.5}))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=horizon)
    (g,) = found.groups
    assert (g.weight, g.starved, g.dead_since) == (1.0, False, None)
    assert g.charge_days == pytest.approx(2 * horizon / 8, rel=0.01)
    said = f"a lives off its initial charge: {power(watts)} arrive on average after losses, and 30 mW are drawn asleep"
    assert found.verdict[1].startswith(said)
    assert f"lasts about {g.charge_days:,.0f} days, until " in found.verdict[1]
    # Asked about twice the time and more, it dies then.
    (g,) = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=3 * horizon, years=0).groups
    assert g.charge_days is None
    day = (date.fromisoformat(g.dead_since[:10]) - date(2001, 1, 1)).days
    assert day == pytest.approx(2 * horizon / 8, rel=0.01, abs=1)


def test_a_promise_that_only_the_initial_charge_keeps_is_pointed_out(tmp_path):
    # 20 J a day are promised and 10 J arrive: the 1200 J at first last 120 days.
    trace = flat_power(tmp_path / "p.csv", [10 / 86_400] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"cycle": 8, "battery_wh": 1200 / 3600}))
    (g,) = (found := advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=480)).groups
    assert not g.starved
    assert g.charge_days == pytest.approx(120, rel=0.02)
    assert "a lives off its initial charge: 116 µW arrive" in found.verdict[1]
    fed = replace(group, trace_scale=2.01)
    assert advice(DeviceFleet((fed,), 10_800.0, model_mb=0.0), rounds=480).groups[0].charge_days is None


# Half a year of light, then half a year without; a round of 20 J is promised every day, which leaves nothing to chance.
SEASONS = np.where(np.arange(365) < 182, 40.0, 0.0)


def skipped_days(scale, battery_wh, leak_per_day, years):
    """The days on which a battery, full at first, cannot pay for its round."""
    full = battery = battery_wh * 3600.0
    found = []
    for day in range(365 * years):
        battery = min(battery * (1.0 - leak_per_day) + scale * float(SEASONS[day % 365]), full)
        if battery >= 20.0 - 1e-9:
            battery -= 20.0
        else:
            found.append(day)
    return np.array(found)


def seasonal(folder, scale, battery_wh, leak_per_day):
    trace = flat_power(folder / "p.csv", (SEASONS / 86_400.0).tolist(), 365)
    changes = {"cycle": 1, "battery_wh": battery_wh, "leak_per_day": leak_per_day, "count": 1, "trace_scale": scale}
    return DeviceFleet((DeviceGroup(trace=trace, **(PLAIN | changes)),), 86_400.0, model_mb=0.0)


@pytest.mark.parametrize(("scale", "leak_per_day"), [(0.95, 0.0), (0.8, 0.0), (1.01, 0.0005)])
def test_the_charge_lasts_through_leaks_and_seasons_as_long_as_told(tmp_path, scale, leak_per_day):
    (g,) = advice(seasonal(tmp_path, scale, 4.0, leak_per_day), rounds=365, years=0).groups
    assert (g.weight, g.starved) == (1.0, False)
    skipped = skipped_days(scale, 4.0, leak_per_day, 30)
    short = np.flatnonzero(np.bincount(skipped // 365) >= 4)[0]  # the first year with less than 0.99 of 365
    assert short >= 2
    assert g.charge_days == skipped[skipped >= 365 * short][3]


def test_batteries_that_have_settled_are_not_said_to_live_off_their_charge(tmp_path):
    """It begins full, on a day on which it is nearly empty in all later years."""
    assert len(skipped_days(1.02, 2.0, 0.0, 30)) == 0
    (g,) = advice(seasonal(tmp_path, 1.02, 2.0, 0.0), rounds=365, years=0).groups
    assert (g.starved, g.charge_days) == (False, None)


def test_no_size_is_advised_for_the_charge_that_it_begins_with(tmp_path):
    """Sizes are the smallest that hold the target in each of ten years, by a battery of a few lines."""
    for scale in (0.5, 1.1):
        (g,) = advice(seasonal(tmp_path, scale, 0.1, 0.0005), rounds=365, years=0).groups
        assert g.starved

        def holds(panel, wh):
            return np.bincount(skipped_days(panel, wh, 0.0005, 10) // 365, minlength=1).max() < 4

        wanted = next((wh for wh in ladder(0.1) if holds(scale, wh)), None)
        assert (g.sizes.battery and g.sizes.battery.battery_wh) == wanted
        wanted = next((panel for panel in ladder(scale) if holds(panel, 0.1)), None)
        assert (g.sizes.panel and g.sizes.panel.panel) == wanted
        assert holds(g.sizes.pair.panel, g.sizes.pair.battery_wh)
        if scale == 0.5:  # the supply pays for half of it, so that no battery helps for long, but this one for a year
            assert g.sizes.battery is None
            assert g.sizes.why["battery"] == "none from 0.03125 to 64 times the present holds the target for ten years"
            assert len(skipped_days(scale, 4.0, 0.0005, 1)) == 0


@pytest.mark.parametrize("cycle", [0, 8])
@pytest.mark.parametrize("switched_off", [True, False])
def test_a_group_that_harvests_nothing_is_looked_at_and_not_refused(tmp_path, cycle, switched_off):
    dark = {"trace": flat_power(tmp_path / "p.csv", [0.0] * 60), "cycle": cycle, "switched_off": switched_off}
    fed = {"name": "b", "trace": flat_power(tmp_path / "q.csv", [0.01] * 60)}
    groups = (DeviceGroup(**(PLAIN | dark | {"start": 0.02})), DeviceGroup(**(PLAIN | fed)))
    found = advice(DeviceFleet(groups, 10_800.0, model_mb=0.0), rounds=480)
    a, b = found.groups
    assert a.starved
    assert a.flows_j.harvested == 0.0
    assert (a.sizes.panel, b.weight) == (None, 1.0)
    assert 0.0 < a.weight < 0.1  # 72 J at first are three rounds of sixty
    assert any(sentence.startswith("a cannot even idle") for sentence in found.verdict) == (not switched_off)
    assert found.to_dict() == json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert "a" in render(found)


def test_devices_that_cannot_idle_are_counted_where_others_can(tmp_path):
    trace = flat_power(tmp_path / "p.csv", [0.033] * 60)
    awake = {"device": "phone", "switched_off": False, "step_s": 1e-3, "battery_wh": 0.1, "spread": 0.2, "count": 9}
    spec = DeviceFleet((DeviceGroup(trace=trace, **(PLAIN | awake)),), 10_800.0, model_mb=0.0)
    found = advice(spec, years=0)
    supply = 0.033 * spec.groups[0].factors("a")[0]
    short = int(np.count_nonzero(supply <= 0.03))
    assert 0 < short < 9
    assert found.verdict[1].startswith(
        f"a: {short} of 9 devices cannot even idle on their supply, and all are looked at with a round a day. "
        f"{power(supply.min())} reach the least supplied one on average after losses, and 30 mW are drawn asleep."
    )


@pytest.mark.parametrize(
    ("start", "days", "skip", "changes", "said"),
    [
        ("2026-06-01", 30, (), {}, ["lasts 30 days and is repeated", "has its 06-01 where the fleet's"]),
        ("2026-06-01", 365, (), {}, []),  # a year contains every day
        ("2026-06-01", 365, (), {"zone": ""}, ["has its 06-01 where the fleet's clock has 01-01"]),
        ("2024-01-01", 366, (), {}, []),
        ("2025-01-01", 365, (50, 51, 99, 200), {"gaps": "hold", "longest_gap_h": 9.0}, ["0.14% of its record was"]),
    ],
)  # fmt: skip
def test_what_a_record_does_not_know_is_noted(tmp_path, start, days, skip, changes, said):
    zone, path = changes.pop("zone", "Z"), tmp_path / "p.csv"
    times = np.datetime64(start) + np.arange(8 * days) * np.timedelta64(3, "h")
    rows = [f"{t}{zone},0.02" for n, t in enumerate(times.astype("datetime64[s]")) if n not in skip]
    path.write_text("\n".join(["time,power_w", *rows]) + "\n")
    group = DeviceGroup(trace=str(path), **(PLAIN | {"cycle": 8} | changes))
    found = advice(DeviceFleet((group,), 86_400.0, model_mb=0.0), rounds=365, years=0)
    told = [note for note in found.notes if note.startswith("a: ")]
    assert len(told) == len(said)
    assert all(words in note for words, note in zip(said, told, strict=True))


def test_a_battery_too_small_for_one_round_is_sized(tmp_path):
    trace = flat_power(tmp_path / "p.csv", [0.01] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"battery_wh": 10.0 / 3600, "cycle": 8}))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=480, years=0).groups[0]
    assert found.weight == 0.0
    assert found.sizes.panel is None
    wanted = min(size for size in ladder(10.0 / 3600) if size * 3600 >= 20.0)
    assert found.sizes.battery.battery_wh == wanted


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({}, 1),
        ({"round_s": 604_800.0}, 10),
        ({"round_s": 7000.0}, 100),
        ({"start_day": "12-20", "round_s": 43_200.0}, 800),
    ],
)
def test_rounds_of_any_length_have_balanced_months(tmp_path, changes, rounds):
    spec = replace(random_fleet(tmp_path, 2), **changes)
    found = advice(spec, rounds=rounds, years=1)
    assert sum(m.days for m in found.groups[0].months) == pytest.approx(rounds * spec.round_s / 86_400.0)
    for g in found.groups:
        assert sum(m.flows_j.harvested for m in g.months) == pytest.approx(g.flows_j.harvested)
        assert g.flows_j.imbalance() == pytest.approx(0.0, abs=1e-9 * (g.flows_j.harvested + g.flows_j.initial))


def test_a_cycle_longer_than_the_horizon_is_pointed_out(tmp_path):
    # 20 J at 0.01 mW take 23 days.
    trace = flat_power(tmp_path / "p.csv", [0.00001] * 60)
    found = advice(DeviceFleet((DeviceGroup(trace=trace, **PLAIN),), 10_800.0, model_mb=0.0), rounds=80, years=0)
    assert "a hardly trains: one round in 23 days is all that its mean supply pays for." in found.verdict


@pytest.mark.parametrize("promise", [{"cycle": 100_000}, {"rounds_per_day": 0.001}, {}])
def test_a_group_without_a_slot_has_no_weight_and_no_sizes(tmp_path, promise):
    trace = flat_power(tmp_path / "p.csv", [1e-9] * 60)
    # Enough for one training in a million rounds; the other group trains often.
    fed = {"name": "b", "trace": flat_power(tmp_path / "q.csv", [0.01] * 60)}
    groups = (DeviceGroup(trace=trace, **PLAIN), DeviceGroup(**(PLAIN | fed)))
    found = advice(DeviceFleet(groups, 10_800.0, model_mb=0.0), rounds=80, years=2, **promise)
    a, b = found.groups
    assert (a.weight, a.lowest_weight, a.starved, a.slots) == (None, None, None, 0)
    assert (a.years.low, a.years.reached) == (None, 0)
    assert (a.sizes.panel, a.sizes.battery, a.sizes.pair, a.sizes.cycle) == (None, None, None, None)
    assert a.sizes.why == {"all": "a has no slot in this horizon"}
    assert any(
        s.startswith("a has no slot in this horizon, which is shorter than its cycle: 10 days") for s in found.verdict
    )
    assert not [change for change in found.changes if change.group == "a"]
    assert found.to_dict()["groups"][0]["weight"] is None
    if promise:
        assert found.verdict[0] == "Nothing can be said of this fleet: no group has a slot in this horizon."
    else:
        assert (b.weight, b.starved) == (1.0, False)
        assert found.verdict[0].startswith("No group is starved: all that have a slot have a weight of at least 0.99")


def test_the_promise_of_a_cycle_is_not_blamed_on_the_supply(tmp_path):
    trace = flat_power(tmp_path / "p.csv", [0.01] * 60)
    found = advice(DeviceFleet((DeviceGroup(trace=trace, **PLAIN),), 10_800.0, model_mb=0.0), rounds=80, cycle=100)
    assert "a hardly trains: its cycle promises one round in 12 days." in found.verdict


def test_no_longer_cycle_than_the_horizon_is_advised():
    assert longer_cycles(10, 40)[-1] <= 40
    assert longer_cycles(100, 40) == [100]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_weight_never_falls_as_panel_or_battery_grow(tmp_path, seed):
    spec = random_fleet(tmp_path, seed)
    world = World(read(spec), horizon(spec), years=1)
    factors = np.linspace(0.3, 3.0, 60)
    for number in range(len(spec.groups)):
        cycle = world.design.promise(number)
        for queries in (
            [Query(number, float(f), 1.0, cycle) for f in factors],
            [Query(number, 1.0, float(f), cycle) for f in factors],
        ):
            assert np.all(np.diff(np.array(world.weights(queries)), axis=0) >= -1e-15)


class Judge:
    """Whether a size of the only group reaches the target, by the project's own simulator."""

    def __init__(self, folder, seed):
        self.spec = random_fleet(folder, seed, groups=1, days=20)
        self.rounds = horizon(self.spec, 20)
        self.group = self.spec.groups[0]
        self.found = ef.advise(self.spec, rounds=self.rounds, years=2, sure=0.5, target_weight=0.95, times=1).groups[0]
        self.panels, self.batteries = ladder(self.group.trace_scale), ladder(self.group.battery_wh)

    def holds(self, panel, wh):
        group = replace(self.group, trace_scale=panel, battery_wh=wh, cycle=self.found.cycle)
        try:
            weights = simulated_weights(replace(self.spec, groups=(group,)), 0, 2, self.rounds)
        except ef.InputError:  # a battery that cannot hold a round
            return False
        return reaches(weights, 0.95, 1)

    def cost(self, panel, wh):
        return panel / self.group.trace_scale + wh / self.group.battery_wh

    def pairs(self):
        """Every pair that takes nothing away, the cheapest first."""
        panels = [size for size in self.panels if size >= self.group.trace_scale]
        batteries = [size for size in self.batteries if size >= self.group.battery_wh]
        return sorted(((p, b) for p in panels for b in batteries), key=lambda pair: self.cost(*pair))

    def check_panel_and_battery(self):
        s = self.found.sizes
        first = next((p for p in self.panels if self.holds(p, self.group.battery_wh)), None)
        assert (s.panel and s.panel.panel) == first
        first = next((b for b in self.batteries if self.holds(self.group.trace_scale, b)), None)
        assert (s.battery and s.battery.battery_wh) == first


@pytest.mark.parametrize("seed", [1, 4])
def test_sizes_are_the_smallest_that_reach_the_target(tmp_path, monkeypatch, seed):
    """On a coarse ladder every size and every pair is looked at."""
    monkeypatch.setattr(sizing, "STEPS", 6)
    judge = Judge(tmp_path, seed)
    judge.check_panel_and_battery()
    pair = judge.found.sizes.pair
    assert (pair and (pair.panel, pair.battery_wh)) == next((p for p in judge.pairs() if judge.holds(*p)), None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_sizes_of_twenty_fleets_are_the_smallest_that_reach_the_target(tmp_path, seed):
    """On the ladder as it is. Of all cheaper pairs, those that no other cheaper one exceeds in both sizes are tried."""
    judge = Judge(tmp_path, 100 + seed)
    judge.check_panel_and_battery()
    pair = judge.found.sizes.pair
    assert pair is not None
    assert judge.holds(pair.panel, pair.battery_wh)
    limit = judge.cost(pair.panel, pair.battery_wh) * (1.0 - 1e-12)
    largest = {}
    for panel, wh in judge.pairs():
        if judge.cost(panel, wh) < limit:
            largest[panel] = max(wh, largest.get(panel, 0.0))
    tried = [p for p in largest if all(largest[q] < largest[p] for q in largest if q > p)]
    assert not [p for p in tried if judge.holds(p, largest[p])]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_advised_fleet_reaches_the_target_in_an_audit(tmp_path, seed):
    """Written into the file by the keys that the advice names, and read back."""
    spec = random_fleet(tmp_path, seed)
    rounds = horizon(spec)
    found = advice(spec, sure=0.5)
    assert found.changes
    experiment = ef.Experiment(fleet=spec, rounds=rounds)
    for change in found.changes:
        raw = config.to_dict(experiment)
        for key, value in change.settings.items():
            config.change(raw, f"fleet.groups.{change.group}.{key}", value)
        advised = config.from_dict(config.parse(config.raw_to_toml(raw), "advised"))
        (number,) = (n for n, g in enumerate(spec.groups) if g.name == change.group)
        weights = simulated_weights(advised.fleet, number, 2, rounds)
        assert reaches(weights, 0.99, 1)
        assert weights[0] == pytest.approx(change.weight_after, abs=1e-12)
        # In an audit, a window that the end cuts has its slot in the horizon by chance.
        fleet = advised.make_fleet()
        audit = ef.audit(fleet, "algorithm1", rounds, seeds=found.groups[number].seeds)
        mine, cut = fleet.group_of == number, change.settings["cycle"] / rounds
        assert audit.mean_weight[mine].mean() == pytest.approx(change.weight_after, abs=cut)


@pytest.mark.parametrize("prices", [{}, {"price_wp": 2.0, "price_wh": 0.5}])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_change_names_a_group_that_is_not_starved(tmp_path, seed, prices):
    spec = random_fleet(tmp_path, seed, groups=4)
    priced = prices | ({"trace_wp": {g.name: 0.1 for g in spec.groups}} if prices else {})
    found = advice(spec, **priced)
    starved = {g.name for g in found.groups if g.starved}
    assert {change.group for change in found.changes} <= starved
    hardware = [c for c in found.changes if c.kind != "cycle"]
    for g in found.groups:
        sizes = (g.sizes.panel, g.sizes.battery, g.sizes.pair)
        assert g.starved == (not reaches(np.array([g.weight, *g.years.weights]), 0.99, found.target.needed))
        if g.starved and any(sizes):
            assert g.name in {change.group for change in found.changes}
    if prices:
        worth = [c.helps / max(c.cost, 1e-12) for c in hardware]
        assert worth == sorted(worth, reverse=True)


def test_a_budget_is_spent_on_the_best_changes_that_fit(tmp_path):
    spec = random_fleet(tmp_path, 2, groups=5)
    prices = {"price_wp": 2.0, "price_wh": 0.5, "trace_wp": {g.name: 10.0 for g in spec.groups}}
    everything = advice(spec, **prices)
    costs = [c.cost for c in everything.changes if c.kind != "cycle"]
    assert len({c.group for c in everything.changes}) >= 2
    for budget in (0.0, min(costs), sum(costs)):
        found = advice(spec, budget=budget, **prices)
        assert sum(c.cost for c in found.budget) <= budget
        assert len({c.group for c in found.budget}) == len(found.budget)
        if budget >= min(costs):
            first = next(c for c in found.changes if c.kind != "cycle" and c.cost <= budget)
            assert found.budget[0] == first
            assert f"Change first: {first.group}: {first.text}" in "\n".join(found.verdict)


def test_prices_are_those_of_what_is_added(tmp_path):
    spec = random_fleet(tmp_path, 0, groups=1)
    (g,) = spec.groups
    found = advice(spec, price_wp=3.0, price_wh=5.0, trace_wp={"g0": 20.0}).groups[0].sizes
    for size in (found.panel, found.battery, found.pair):
        panel, wh = max(size.panel - g.trace_scale, 0.0), max(size.battery_wh - g.battery_wh, 0.0)
        assert size.cost == pytest.approx(g.count * (3.0 * 20.0 * panel + 5.0 * wh))
    unknown = advice(spec, price_wp=3.0, price_wh=5.0).groups[0].sizes
    assert unknown.panel.panel <= g.trace_scale or unknown.panel.cost is None


def test_drawn_years_keep_the_hour_and_the_season():
    rounds, per_day = 24 * 365, 24
    row = np.arange(rounds, dtype=np.float64)
    for year in (1, 2, 3):
        drawn = resampled(row, True, rounds, 3600.0, "here", year).astype(int)
        assert np.array_equal(drawn % per_day, np.arange(rounds) % per_day)
        moved = (drawn - np.arange(rounds) + rounds // 2) % rounds - rounds // 2
        assert np.abs(moved).max() <= 15 * per_day
        blocks = moved[: 73 * 5 * per_day].reshape(73, -1)
        assert np.all(blocks == blocks[:, :1])  # spells of five days stay together
        assert len(np.unique(blocks[:, 0])) > 20


def test_groups_at_one_site_have_the_same_weather():
    row = np.random.default_rng(0).uniform(size=8760)
    one, two = (resampled(scale * row, True, 8760, 3600.0, "here", 4) for scale in (1.0, 2.0))
    assert np.array_equal(2.0 * one, two)
    assert not np.array_equal(one, resampled(row, True, 8760, 3600.0, "there", 4))
    assert not np.array_equal(one, resampled(row, True, 8760, 3600.0, "here", 5))
    assert np.array_equal(resampled(row, True, 8760, 3600.0, "here", 0), as_given(row, True, 8760))


@pytest.mark.parametrize("repeats", [True, False])
def test_recorded_years_come_as_they_were_and_then_redrawn_each_by_itself(repeats):
    row = np.concatenate([number + np.arange(365) / 1000.0 for number in (1.0, 2.0, 3.0)])
    for year in range(1, 10):
        drawn, recorded = resampled(row, repeats, 365, 86_400.0, "here", year), (year - 1) % 3
        same = np.array_equal(drawn, row[365 * recorded : 365 * (recorded + 1)])
        assert same == (year <= 3)
        # A block near its end may reach fifteen days into the next.
        assert np.all(np.floor(drawn[15:-15]) == 1 + recorded)


def test_a_group_is_judged_by_every_year_of_its_weather(tmp_path):
    """Two years of light, and one with a dark half: of three years, two are enough."""
    from test_own_sites import TOKYO, clouded, write_table

    columns, _ = clouded(*TOKYO)
    shade = np.where(np.arange(8760) < 4380, 1.0, 0.02)
    dark = columns | {name: columns[name] * shade for name in ("ghi", "dni", "dhi")}
    for name, year in (("a", columns), ("b", dark), ("c", columns)):
        write_table(tmp_path / f"{name}.csv", year, TOKYO)
    group = DeviceGroup(count=2, site="here", device="esp32", radio="none", panel_wp=0.05, battery_wh=0.05, cycle=1)
    alone = []
    for name in "abc":
        sites = {"here": OwnSite(*TOKYO[:2], weather=str(tmp_path / f"{name}.csv"))}
        alone.append(advice(DeviceFleet((group,), 86_400.0, sites=sites), rounds=365, years=0).groups[0].weight)
    assert alone[1] < 0.7 < 0.99 < alone[0] == alone[2]
    several = {"here": OwnSite(*TOKYO[:2], weather_years=[str(tmp_path / f"{name}.csv") for name in "abc"])}
    spec = DeviceFleet((group,), 86_400.0, sites=several)
    for sure, starved in ((0.6, False), (0.9, True)):
        found = advice(spec, rounds=365, years=3, sure=sure)
        (g,) = found.groups
        assert g.years.weights == pytest.approx(alone, abs=1e-12)
        assert (g.years.reached, g.starved) == (2, starved)
    assert any("the first drawn years are the recorded ones" in note for note in found.notes)


def test_a_trace_without_a_repetition_is_not_left():
    row = np.arange(100.0)
    drawn = resampled(row, False, 100, 86_400.0, "here", 1)
    assert len(drawn) == 100
    assert set(drawn) <= set(row)


FLOWS = "initial harvested charging_loss overflow leak standby training radio lost stored"
SIZE = "panel battery_wh cycle weight years_reached cost"
KEYS = {
    "horizon": "rounds round_s days start end partial",
    "target": "weight years needed sure",
    "prices": "per_wp per_wh budget measure",
    "groups": "name count simulated seeds site source panel panel_unit battery_wh cycles cycle promised_per_day "
    "rounds_per_day weight lowest_weight starved years slots participations skipped main_cause dead_since dry_h "
    "charge_days flows_j months worst_week sizes model",
    "changes": "group kind text cost helps weight_before weight_after settings",
    "levers": "name value effects refused",
    "variance": "least lattice methods words",
    "seen": "times hours groups devices_h",
}


def test_the_json_keeps_its_shape(tmp_path):
    """A change of this list is a change of the format, which readers must be told by its number."""
    found = advice(random_fleet(tmp_path, 1)).to_dict()
    assert found["format"] == 1
    assert found == json.loads(json.dumps(found, allow_nan=False))
    expected = {"format", "causes", "verdict", "budget", "notes", *KEYS}
    assert set(found) == expected
    for key, names in KEYS.items():
        value = found[key][0] if isinstance(found[key], list) else found[key]
        assert set(value) == set(names.split()), key
    group = found["groups"][0]
    assert set(group["flows_j"]) == set(group["months"][0]["flows_j"]) == set(FLOWS.split())
    assert set(group["sizes"]) == {"panel", "battery", "pair", "cycle", "why"}
    sizes = [g["sizes"][kind] for g in found["groups"] for kind in ("panel", "battery", "pair", "cycle")]
    assert {key for size in sizes if size for key in size} == set(SIZE.split())
    assert set(group["skipped"]) == set(found["causes"]) == set(CAUSES)
    assert set(group["worst_week"]) == {"start", "level_wh", "lowest_wh", "harvest_wh", "capacity_wh"}
    assert len(group["worst_week"]["level_wh"]) == 7 * 86_400 / found["horizon"]["round_s"]


def test_the_model_of_a_group_simulates_it(tmp_path):
    """What the JSON says of a group is enough to follow its battery, as a page does."""
    spec = random_fleet(tmp_path, 2)
    found = advice(spec).to_dict(tables=True)
    design = read(spec)
    for number, group in enumerate(found["groups"]):
        m, device = group["model"], int(design.members(number)[0])
        assert m["unit_j"] == pytest.approx(design.unit_j[device])
        assert m["capacity_j_per_wh"] * group["battery_wh"] == pytest.approx(design.capacity[device] * m["unit_j"])
        held = m["start"] * m["capacity_j_per_wh"] * group["battery_wh"]
        assert held == pytest.approx(design.start[device] * m["unit_j"])
        assert m["standby_j"] == pytest.approx(design.of_storage("standby")[device] * m["unit_j"])
        assert len(found["tables"][m["table"]]) == found["horizon"]["rounds"]


def test_levers_are_what_the_changed_fleet_does(tmp_path):
    spec = random_fleet(tmp_path, 2)
    rounds = horizon(spec)
    found = {(lever.name, lever.value): lever for lever in advice(spec, rounds=rounds, years=0).levers}
    changed = {
        ("as it is", ""): (spec, 5),
        ("local steps", "10"): (spec, 10),
        ("model size", f"{2 * spec.model_mb:g} MB"): (replace(spec, model_mb=2 * spec.model_mb), 5),
        ("standby", "switched off between rounds"): (
            replace(spec, groups=tuple(replace(g, switched_off=True) for g in spec.groups)),
            5,
        ),
    }
    for key, (other, steps) in changed.items():
        fleet = other.build(steps)
        for number, effect in enumerate(found[key].effects):
            mine = np.flatnonzero(fleet.group_of == number)
            copies = -(-16 // len(mine))
            audit = ef.audit(fleet, "algorithm1", rounds, seeds=copies)
            cut = float((fleet.cycles()[mine] / rounds).max())
            assert effect.round_j == pytest.approx(fleet.unit_j[mine].mean())
            assert effect.weight == pytest.approx(audit.mean_weight[mine].mean(), abs=cut)
            assert tuple(effect.cycle) == (fleet.cycles()[mine].min(), fleet.cycles()[mine].max())


def test_algorithm_1_attains_the_limit_where_no_slot_is_lost(tmp_path):
    # A round's energy every eight rounds exactly: sum of p^2 (E - 1), for sixteen equal devices.
    trace = flat_power(tmp_path / "p.csv", [20 / 86_400 * 1.0001] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"count": 16, "battery_wh": 41.0 / 3600}))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=4000, years=0).variance
    assert found.least == pytest.approx(7.0 / 16.0, rel=0.01)
    alone, lattice, _ = found.methods
    assert alone.unbiased
    assert alone.times == pytest.approx(1.0, rel=0.1)  # two seeds of 4000 rounds
    assert lattice.times < 0.1  # sixteen devices spread over eight rounds
    assert "the nearest unbiased method is lattice" in found.words


def test_an_unbiased_method_is_not_called_biased_where_nothing_varies(tmp_path, capsys):
    # A round's energy in every round: all train in all of them.
    trace = flat_power(tmp_path / "p.csv", [0.01] * 60)
    group = DeviceGroup(trace=trace, **(PLAIN | {"cycle": 1}))
    found = advice(DeviceFleet((group,), 10_800.0, model_mb=0.0), rounds=80, years=0)
    assert found.variance.least == 0.0
    assert found.variance.methods[0].unbiased
    assert found.variance.words.startswith(
        "An unbiased schedule without any variance exists; unbiased here: algorithm1"
    )
    show(Screen(), found)
    line = next(line for line in capsys.readouterr().out.splitlines() if "algorithm1" in line)
    assert "biased" not in line


@pytest.mark.parametrize("prices", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_what_costs_nothing_is_not_taken_without_need(tmp_path, prices):
    trace = flat_power(tmp_path / "p.csv", DAYLIGHT)
    group = DeviceGroup(trace=trace, **(PLAIN | {"cycle": 1, "battery_wh": 20.5 / 3600}))
    spec = DeviceFleet((group,), 10_800.0, model_mb=0.0)
    found = advice(spec, rounds=80, price_wp=prices[0], price_wh=prices[1], trace_wp={"a": 0.1})
    (g,) = found.groups
    assert g.starved
    pair, plain = g.sizes.pair, advice(spec, rounds=80).groups[0].sizes.pair
    # With the same price no smaller panel or battery does.
    world, now = World(read(spec), 80, 2), (g.panel, g.battery_wh)
    for panel, wh in ((0.97 * pair.panel, pair.battery_wh), (pair.panel, 0.97 * pair.battery_wh)):
        if panel >= now[0] and wh >= now[1]:
            (weights,) = world.weights([Query(0, panel / now[0], wh / now[1], g.cycle)])
            assert not reaches(weights, 0.99, found.target.needed)
    if prices == (0.0, 0.0):
        assert (pair.panel, pair.battery_wh) == (plain.panel, plain.battery_wh)
        assert found.changes[0].settings == advice(spec, rounds=80).changes[0].settings


def test_the_size_behind_a_trace_is_asked_for_where_there_is_a_trace(tmp_path):
    sun = DeviceGroup(name="sun", count=1, panel_wp=1.0, battery_wh=5.0)
    prices = {"price_wp": 1.0, "price_wh": 1.0}
    with pytest.raises(ef.InputError, match=r"trace_wp is given for 'sun', whose panel has a size of its own"):
        advice(DeviceFleet((sun,)), trace_wp={"sun": 1.0}, **prices)
    with pytest.raises(ef.InputError, match=r"trace_wp is given for 'moon', and no group of this fleet has a trace"):
        advice(DeviceFleet((sun,)), trace_wp={"moon": 1.0}, **prices)


def test_seen_counts_the_rounds_of_a_group(tmp_path):
    spec = random_fleet(tmp_path, 5)
    found = advice(spec, times=4)
    joined = {g.name: [] for g in spec.groups}
    design = read(spec)
    for step in ef.plan(design.fleet, "algorithm1", horizon(spec), 0):
        for name in {spec.groups[n].name for n in design.group[step.clients]}:
            joined[name].append((step.round + 1) * spec.round_s / 3600.0)
    for name, hours in joined.items():
        assert found.seen.groups[name] == (hours[3] if len(hours) > 3 else None)


def test_a_part_of_a_year_is_pointed_out(tmp_path):
    found = advice(random_fleet(tmp_path, 1))
    assert found.horizon.partial
    assert found.notes[0].startswith("the horizon covers 40 days, 1 January to 9 February, and not whole years")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target_weight": 1.5}, "target_weight is 1.5; it must be above 0 and at most 1."),
        ({"years": -1}, "years is -1; it must be a whole number of at least 0."),
        ({"sure": 0.0}, "sure is 0.0; it must be above 0 and at most 1."),
        ({"price_wp": 1.0}, "price_wh is not given; prices are those of a Wp and of a Wh, both or none."),
        ({"budget": 5.0}, "budget is 5, and there are no prices to hold it against; give price_wp and price_wh."),
        ({"price_wp": -1.0, "price_wh": 1.0}, "price_wp is -1.0; it must be zero or a positive number."),
        ({"trace_wp": {"g7": 3.0}}, "unknown group with a trace 'g7'. Valid: g0, g1, g2."),
        ({"rounds": 0}, "rounds is 0; it must be a whole number of at least 1."),
        ({"times": 0}, "times is 0; it must be a whole number of at least 1."),
        ({"cycle": 3, "rounds_per_day": 1.0}, "cycle is 3 and rounds_per_day is 1; give one of them."),
        ({"cycle": 0}, "cycle is 0; it must be a whole number from 1 to 2147483647."),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, changes, said):
    with pytest.raises(ef.InputError) as error:
        advice(random_fleet(tmp_path, 0), **changes)
    assert str(error.value) == said


def test_a_fleet_of_cycles_has_no_sizes():
    with pytest.raises(ef.InputError, match=r'describe it with fleet\.kind = "devices"'):
        ef.advise(ef.Experiment())


@pytest.mark.long
def test_a_thousand_devices_over_a_year_of_hours_are_all_looked_at(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    from advise import thousand_devices

    found = ef.advise(thousand_devices())
    assert (found.horizon.rounds, sum(g.simulated for g in found.groups), found.target.years) == (8760, 1000, 20)
