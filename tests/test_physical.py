"""Fleets of real devices: joules in, cycles and books out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from everfed import Always, Greedy, InputError, UniformWindow, plan, presets
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.run import config

ROUND_S = 43_200.0


def constant_supply(path, watts, days=10):
    """A trace of constant power: cycles can be worked out by hand."""
    lines = ["seconds,power_w", *(f"{3600 * hour},{watts}" for hour in range(24 * days))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def group(trace, **changes):
    plain = {"count": 2, "device": "esp32", "radio": "none", "trace": trace, "charging": 1.0}
    plain |= {"discharging": 1.0, "leak_per_day": 0.0, "cutoff": 0.0, "battery_wh": 1.0, "switched_off": True}
    return DeviceGroup(**(plain | changes))


def test_cycles_are_the_cost_of_a_round_over_what_it_brings(tmp_path):
    # 5 steps of 20 s at 0.22 W cost 22 J; 0.2 mW brings 8.64 J in twelve hours.
    fleet = DeviceFleet((group(constant_supply(tmp_path / "t.csv", 0.0002)),), round_s=ROUND_S).build(local_steps=5)
    assert fleet.unit_j.tolist() == pytest.approx([22.0, 22.0])
    assert fleet.cycles().tolist() == [math.ceil(22.0 / 8.64)] * 2
    assert fleet.capacity.tolist() == pytest.approx([3600.0 / 22.0] * 2)


@pytest.mark.parametrize(
    ("changes", "cycle"),
    [
        ({"charging": 0.5}, math.ceil(22.0 / 4.32)),
        ({"discharging": 0.5}, math.ceil(44.0 / 8.64)),
        ({"trace_scale": 2.0}, math.ceil(22.0 / 17.28)),
        ({"step_s": 40.0}, math.ceil(44.0 / 8.64)),
        # Asleep it draws 33 uW, 1.4256 J a round, and that much less is drawn while training.
        ({"switched_off": False}, math.ceil((22.0 - 100 * 33e-6) / (8.64 - 1.4256))),
    ],
)
def test_every_loss_lengthens_the_cycle(tmp_path, changes, cycle):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    fleet = DeviceFleet((group(trace, **changes),), round_s=ROUND_S).build(local_steps=5)
    assert fleet.cycles().tolist() == [cycle] * 2


def test_a_set_cycle_is_kept_whatever_the_supply(tmp_path):
    # The first draws more asleep than it harvests; without a set cycle it is refused.
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    starved = group(trace, name="starved", trace_scale=0.1, switched_off=False, battery_wh=0.02)
    with pytest.raises(InputError, match="starved: device 0 harvests 20 µW on average and draws 33 µW asleep"):
        DeviceFleet((starved,), round_s=ROUND_S).build()
    fleet = DeviceFleet((replace(starved, cycle=2), group(trace), group(trace, cycle=7)), round_s=ROUND_S).build()
    assert fleet.cycles().tolist() == [2, 2, 3, 3, 7, 7]
    steps = list(plan(fleet, UniformWindow(), rounds=60))
    last = steps[-1]
    assert sum(int((step.clients == 0).sum()) for step in steps) < 5  # of thirty windows
    assert abs(last.energy.imbalance()) < 1e-6
    assert last.energy.violations == 0


def test_a_cycle_that_is_not_set_is_not_written_into_files(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    for cycle, is_written in ((0, False), (5, True)):
        written = config.to_dict(DeviceFleet((group(trace, cycle=cycle),), round_s=ROUND_S))
        assert ("cycle" in written["groups"][0]) is is_written


def test_the_radio_and_the_models_size_are_part_of_the_cost(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.001)
    with_download, without = (
        DeviceFleet((group(trace, radio="lte"),), round_s=ROUND_S, model_mb=2.0, downloads=d).build()
        for d in (True, False)
    )
    assert (with_download.unit_j - without.unit_j).tolist() == pytest.approx([2.4, 2.4])
    assert without.unit_j[0] == pytest.approx(22.0 + 2 * 5.2 + 12.6)


def test_devices_of_one_group_differ_by_their_spread_and_always_alike(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    spec = DeviceFleet((group(trace, count=400, spread=0.1),), round_s=ROUND_S)
    amounts = spec.build().arrivals.harvest(0, seed=1)
    assert amounts.std() / amounts.mean() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal(amounts, spec.build().arrivals.harvest(0, seed=99))


def test_books_are_in_joules_and_balance(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    lossy = group(trace, charging=0.9, discharging=0.8, leak_per_day=0.05, cutoff=0.1, switched_off=False)
    large = group(trace, name="large", trace_scale=50.0, step_s=300.0, battery_wh=2.0)
    fleet = DeviceFleet((lossy, large), round_s=ROUND_S, cost_spread=0.2).build()
    assert fleet.energy_unit == "J"
    for policy in (UniformWindow(), Greedy(), Always()):
        for step in plan(fleet, policy, rounds=60):
            books = step.energy
            assert books.imbalance() == pytest.approx(0.0, abs=1e-6)
        # 0.2 mW once and 50 times, two devices each, for 30 days.
        assert books.harvested == pytest.approx(0.0002 * (1 + 50) * 2 * 60 * ROUND_S)


def test_the_assumptions_behind_the_cycles_are_told(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    (told,) = DeviceFleet((group(trace, switched_off=False, charging=0.5),), round_s=ROUND_S).assumptions(5)
    assert (told.cost_j, told.supply_j, told.standby_j) == pytest.approx((22.0 - 0.0033, 4.32, 1.4256))
    assert told.cycles == (math.ceil((22.0 - 0.0033) / (4.32 - 1.4256)),) * 2


def test_groups_keep_their_names_best_powered_first(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    poor, rich = group(trace, name="poor"), group(trace, name="rich", trace_scale=9.0, count=3)
    groups = DeviceFleet((poor, rich), round_s=ROUND_S).build().groups()
    assert [(g.label, g.clients.tolist()) for g in groups] == [("rich", [2, 3, 4]), ("poor", [0, 1])]


def test_a_part_of_a_fleet_has_the_same_energy(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    whole = DeviceFleet((group(trace, count=5, spread=0.2),), round_s=ROUND_S).build()
    some = whole.part(np.array([3, 1]))
    np.testing.assert_array_equal(some.arrivals.harvest(4, 0), whole.arrivals.harvest(4, 0)[[3, 1]])
    assert some.cycles().tolist() == whole.cycles()[[3, 1]].tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"battery_wh": 0.005}, r"esp32 @ .*: a round costs 22 J and the battery can give 18 J"),
        (
            {"switched_off": False, "trace_scale": 0.01},
            r"device 0 harvests 2 µW on average and draws 33 µW asleep",
        ),
        ({"device": "esp23"}, "Did you mean 'esp32'"),
        ({"radio": "wify"}, "Did you mean 'wifi'"),
        ({"charging": 1.5}, "charging is 1.5; it must be from 0 to 1"),
        ({"panel_wp": -1.0}, "panel_wp is -1.0"),
        ({"trace_scale": 0.0}, "trace_scale is 0.0"),
        ({"count": 0}, "count is 0"),
    ],
)
def test_devices_that_cannot_do_are_refused_by_name(tmp_path, changes, words):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    with pytest.raises(InputError, match=words):
        DeviceFleet((group(trace, **changes),), round_s=ROUND_S).build()


def test_training_that_does_not_fit_a_round_is_refused(tmp_path):
    trace = constant_supply(tmp_path / "t.csv", 0.0002)
    with pytest.raises(InputError, match="take 100 s, and a round has 60 s"):
        DeviceFleet((group(trace),), round_s=60.0).build()


def test_a_fleet_file_survives_writing_and_reading():
    experiment = config.from_dict(presets.content("solar-fleet"))
    assert config.from_dict(config.parse(config.to_toml(experiment))) == experiment
    assert [g.count for g in experiment.fleet.groups] == [8] * 6


def test_the_solar_preset_shows_greedys_bias_by_climate_and_its_repair():
    fleet = config.from_dict(presets.content("solar-fleet")).make_fleet()
    climates = ("Miami", "Greensboro", "Sand Point")

    def weight_of_climates(policy):
        weight = np.zeros(len(fleet))
        for step in plan(fleet, policy, rounds=730, seed=0):
            weight[step.clients] += step.scales / 730
        return [np.mean([weight[g.clients].mean() for g in fleet.groups() if c in g.label]) for c in climates]

    greedy, repaired = weight_of_climates(Greedy()), weight_of_climates(UniformWindow())
    assert greedy[0] > 0.99
    assert greedy[0] > greedy[1] > greedy[2]
    assert greedy[2] < 0.25
    # Winter at Sand Point outlasts the batteries, so a few slots cannot be paid for.
    assert min(repaired) > 0.93
