"""Fleets as files: own devices and radios, groups that are spread, and keys of one group."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from everfed import Always, Greedy, InputError, UniformWindow, plan
from everfed.energy.calendar import covered, date_of, part_of_year
from everfed.energy.group import MOST_ORIENTATIONS
from everfed.energy.physical import DeviceFleet, DeviceGroup, OwnDevice, OwnRadio, OwnSite
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.files import fleet_texts, read_fleet
from everfed.store import open_run, stored_rounds
from everfed.studies.sweep import overwritten, plan_runs

FLEET = """
round_s = 7200
model_mb = 2.0
step_flop = 3e6

[devices.board]
active_w = 3.0
idle_w = 1.0
sleep_w = 0.1
awake_s = 10
step_s = 2

[devices.chip]
active_w = 0.5
sleep_w = 0.0
flop_s = 1e6

[radios.link]
up_j_per_mb = 5
down_j_per_mb = 3
wake_j = 7
up_s_per_mb = 4
down_bit_s = 4e6

[sites.valley]
latitude = 46.0
longitude = 8.0
clear_sky = true

[[groups]]
name = "boards"
count = 2
device = "board"
radio = "link"
site = "valley"

[[groups]]
name = "chips"
count = 3
device = "chip"
radio = "none"
site = "miami"
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path / "fleet.toml"


def spec_of(path):
    return config.from_dict({"fleet": read_fleet(path)}).fleet


class TestOwnDevices:
    def test_cost_what_their_watts_and_seconds_say(self, file):
        board, chip = spec_of(file).assumptions(local_steps=5)
        air = 2.0 * 4.0 + 2.0 * 8e6 / 4e6
        traffic = 2.0 * 5.0 + 2.0 * 3.0 + 7.0
        assert board.cost_j * 0.95 == pytest.approx(5 * 2.0 * (3.0 - 0.1) + (10.0 + air) * (1.0 - 0.1) + traffic)
        assert (board.train_s, board.air_s, board.busy_s) == (10.0, air, 20.0 + air)
        assert board.standby_j * 0.95 == pytest.approx(0.1 * 7200.0)
        # 3e6 operations at 1e6 a second.
        assert chip.train_s == pytest.approx(5 * 3.0)
        assert chip.cost_j * 0.95 == pytest.approx(5 * 3.0 * 0.5)
        assert board.guesses == chip.guesses == ()

    def test_are_awake_while_they_work_asynchronously(self, file):
        spec = spec_of(file)
        pace = spec.pace(5, None, spec.build(5))
        assert pace.total[0] == pytest.approx((10.0 + 10.0 + 12.0) / 7200.0)

    @pytest.mark.parametrize(
        ("kind", "given", "words"),
        [
            (OwnDevice, {"sleep_w": 1.0, "step_s": 1.0}, "active_w is missing; give the power while it trains"),
            (OwnDevice, {"active_w": 1.0, "sleep_w": 1.0}, "step_s is missing"),
            (OwnDevice, {"active_w": 1.0, "sleep_w": 1.0, "step_s": 1.0, "flop_s": 1.0}, "both given"),
            (OwnDevice, {"active_w": -1.0, "sleep_w": 1.0, "step_s": 1.0}, "active_w is -1.0"),
            (OwnRadio, {"up_j_per_mb": 1.0}, "down_j_per_mb is missing"),
            (OwnRadio, {"up_j_per_mb": 1, "down_j_per_mb": 1, "up_s_per_mb": 1, "up_bit_s": 1}, "both given"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, kind, given, words):
        with pytest.raises(InputError, match=words):
            kind(**given)

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ('device = "board"', 'device = "boart"', r"fleet: groups\[0\] \(boards\): unknown device 'boart'.*'board'"),
            ('radio = "link"', 'radio = "lnik"', r"unknown radio 'lnik'. Did you mean 'link'"),
            ('site = "valley"', 'site = "vally"', r"unknown site 'vally'. Did you mean 'valley'"),
            (
                "step_flop = 3e6",
                "",
                r"groups\[1\] \(chips\): devices.chip: it has flop_s, and the fleet's step_flop is 0",
            ),
            ("[devices.board]", "[devices.esp32]", "devices.esp32 has the name of a preset; choose another"),
            ("active_w = 3.0", "activ_w = 3.0", "unknown key 'fleet.devices.board.activ_w'. Did you mean"),
            ("clear_sky = true", "", "fleet.sites.valley: it has no weather data"),
            (
                FLEET,
                'devices = { chip = 3 }\n[[groups]]\ndevice = "chip"\n',
                "fleet.devices.chip is 3; it must be a table",
            ),
        ],
    )
    def test_names_that_are_not_known_are_refused_where_they_stand(self, file, old, new, words):
        text = FLEET.replace(old, new)
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            spec_of(file)


class TestFiles:
    @pytest.mark.parametrize("name", fleet_texts())
    def test_to_start_from_can_all_be_built_and_name_their_units(self, name):
        raw: dict = {}
        config.change(raw, "fleet", name)
        fleet = config.from_dict(raw).fleet.build(5)
        assert len(fleet) >= 48
        text = fleet_texts()[name]
        for unit in ("# s", "# W", "10^6 bytes", "MM-DD"):
            assert unit in text

    def test_serve_wherever_a_fleet_is_named(self, file, monkeypatch):
        expected = spec_of(file)
        (file.parent / "experiment.toml").write_text('rounds = 3\nfleet = "fleet.toml"\n')
        (file.parent / "whole.toml").write_text(
            "rounds = 3\n" + FLEET.replace("[", "[fleet.").replace("[fleet.[", "[[fleet.")
        )
        assert config.from_dict(config.read(file.parent / "experiment.toml")).fleet == expected
        assert config.from_dict(config.read(file)).fleet == expected
        monkeypatch.chdir(file.parent)
        raw: dict = {}
        config.change(raw, "fleet", "fleet.toml")
        config.change(raw, "fleet.groups.chips.count", 9)
        assert [g.count for g in config.from_dict(raw).fleet.groups] == [2, 9]
        assert config.from_dict({"fleet": read_fleet(Path("experiment.toml"))}).fleet == expected

    def test_are_written_and_read_unchanged(self, file):
        experiment = config.from_dict(config.read(file))
        again = config.from_dict(config.parse(config.to_file(experiment)))
        assert again == experiment
        assert config.differences(again, experiment) == {}

    def test_that_are_none_are_refused(self, tmp_path):
        (tmp_path / "a.toml").write_text("rounds = 3\n")
        with pytest.raises(InputError, match="has no groups; a fleet file has"):
            read_fleet(tmp_path / "a.toml")
        with pytest.raises(InputError, match="there is no fleet file"):
            read_fleet(tmp_path / "b.toml")

    def test_weather_is_copied_into_run_folders_and_tied_by_its_hash(self, tmp_path):
        from test_own_sites import TOKYO, clouded, write_table

        columns, _ = clouded(*TOKYO)
        (tmp_path / "data").mkdir()
        write_table(tmp_path / "data" / "w.csv", {name: column[:96] for name, column in columns.items()}, TOKYO)
        site = OwnSite(*TOKYO[:2], weather=str(tmp_path / "data" / "w.csv"))
        group = DeviceGroup(count=2, site="here", device="esp32", radio="none", panel_wp=1.0)
        fleet = DeviceFleet((group,), round_s=43_200.0, sites={"here": site})
        experiment = Experiment(fleet=fleet, rounds=2, local_steps=1, eval_every=2, device="cpu")
        before = experiment.make_fleet().arrivals.harvest(1, 0).tolist()
        list(stored_rounds(experiment, tmp_path / "run"))
        (copy,) = (tmp_path / "run" / "traces").rglob("w.csv")
        shutil.rmtree(tmp_path / "data")
        shutil.move(tmp_path / "run", tmp_path / "moved")
        run = open_run(tmp_path / "moved")
        assert run.experiment.make_fleet().arrivals.harvest(1, 0).tolist() == before
        moved = tmp_path / "moved" / copy.relative_to(tmp_path / "run")
        moved.write_text(moved.read_text().replace(",0.0", ",1.0"))
        with pytest.raises(InputError, match=r"the weather file .*w.csv has changed"):
            run.experiment.make_fleet()


class TestKeysOfOneGroup:
    def changed(self, file, key, value=20.0):
        raw = config.read(file)
        config.change(raw, key, value)
        return [g.battery_wh for g in config.from_dict(raw).fleet.groups]

    @pytest.mark.parametrize(
        "key",
        ["fleet.groups[1].battery_wh", "fleet.groups.chips.battery_wh", 'fleet.groups."chips".battery_wh'],
    )
    def test_set_that_group_alone(self, file, key):
        assert self.changed(file, key, 7.0) == [20.0, 7.0]

    def test_reach_groups_without_a_name_by_what_tables_call_them(self, file):
        file.write_text(FLEET.replace('name = "chips"\n', ""))
        assert self.changed(file, "fleet.groups.chip @ miami.battery_wh", 7.0) == [20.0, 7.0]

    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("fleet.groups.phones.battery_wh", "unknown group 'phones'. Valid: boards, chips"),
            ("fleet.groups.chip.battery_wh", "Did you mean 'chips'"),
            ("fleet.groups[2].battery_wh", r"there is no \[2\]; the list has 2, numbered from 0: boards, chips"),
            ("fleet.round_s[0]", "'round_s' in 'fleet.round_s.0.' is not a table|before .0. is not a list"),
            ("fleet.groups[0].bettery_wh", r"unknown key 'fleet.groups\[0\].bettery_wh'"),
        ],
    )
    def test_that_name_none_are_refused_with_the_names(self, file, key, words):
        with pytest.raises(InputError, match=words):
            self.changed(file, key)

    def test_that_name_two_ask_which(self, file):
        file.write_text(FLEET.replace('"chips"', '"boards"'))
        with pytest.raises(InputError, match=r"2 groups are called 'boards'; say which by its number, such as \[0\]"):
            self.changed(file, "fleet.groups.boards.battery_wh")

    def test_make_a_grid(self, file, tmp_path):
        runs = plan_runs(config.read(file), {"fleet.groups.chips.battery_wh": [1.0, 2.0]}, [0], tmp_path)
        assert [run.experiment.fleet.groups[1].battery_wh for run in runs] == [1.0, 2.0]
        assert len({run.folder for run in runs}) == 2
        assert overwritten("fleet.groups[1].count", "fleet.groups")


class TestDevicesOfAGroupDiffer:
    SUN = DeviceGroup(count=100, device="esp32", radio="none", site="greensboro", panel_wp=1.0)

    def gains(self, **changes):
        """What each device harvests over the year, as a part of what it would if all were alike."""
        fleets = [DeviceFleet((g,), round_s=86_400.0).build() for g in (self.SUN, replace(self.SUN, **changes))]
        plain, mine = (fleet.arrivals.site_means[fleet.arrivals.site] * fleet.arrivals.gain for fleet in fleets)
        return mine / plain, fleets[1].capacity / fleets[0].capacity

    def test_by_their_shade(self):
        supply, battery = self.gains(shading=0.2, shading_spread=0.05)
        assert (1.0 - supply).mean() == pytest.approx(0.2, abs=0.02)
        assert supply.std() == pytest.approx(0.05, rel=0.15)
        assert np.all(battery == 1.0)

    def test_by_their_age(self):
        supply, battery = self.gains(age_years=10.0)
        assert supply.tolist() == pytest.approx([0.995**10] * 100)
        assert battery.tolist() == pytest.approx([0.97**10] * 100)
        supply, battery = self.gains(age_years=10.0, age_spread_years=2.0, panel_loss_per_year=0.0)
        assert np.all(supply == 1.0)
        years = np.log(battery) / np.log(0.97)
        assert (years.mean(), years.std()) == pytest.approx((10.0, 2.0), rel=0.2)

    def test_by_their_orientation_and_those_that_look_away_get_less(self):
        supply, _ = self.gains(tilt_spread_deg=10.0, azimuth_spread_deg=60.0)
        assert len(np.unique(supply)) == MOST_ORIENTATIONS
        assert supply[:36].tolist() == supply[64:].tolist()
        assert supply.max() < 1.05
        assert supply.min() < 0.85

    def test_alike_in_every_run_and_whatever_other_groups_there_are(self):
        spread = replace(self.SUN, name="mine", tilt_spread_deg=5.0, shading_spread=0.1, age_spread_years=1.0)
        alone = DeviceFleet((spread,)).build()
        beside = DeviceFleet((replace(self.SUN, name="other"), spread)).build()
        np.testing.assert_array_equal(alone.arrivals.harvest(12, 1), beside.arrivals.harvest(12, 2)[100:])

    def test_too_much_shade_and_too_old_batteries_are_refused(self):
        with pytest.raises(InputError, match="the most shaded devices would get no light"):
            replace(self.SUN, shading=0.9, shading_spread=0.1)
        old = replace(self.SUN, battery_wh=0.008, age_years=30.0)
        with pytest.raises(
            InputError, match=r"device 0 has an aged battery that holds 0\.4\d* of a round's energy \(100 devices\)"
        ):
            DeviceFleet((old,)).build()


@st.composite
def groups(draw):
    part = st.floats(0.0, 1.0)
    own = draw(st.booleans())
    return DeviceGroup(
        count=draw(st.integers(1, 5)),
        device=draw(st.sampled_from(["board", "esp32"])),
        radio=draw(st.sampled_from(["link", "wifi", "none"])),
        site="here" if own else draw(st.sampled_from(["miami", "sand-point"])),
        panel_wp=draw(st.floats(0.01, 5.0)),
        battery_wh=draw(st.floats(2.0, 20.0)),
        charging=draw(st.floats(0.3, 1.0)),
        discharging=draw(st.floats(0.3, 1.0)),
        leak_per_day=draw(part) * 0.2,
        cutoff=draw(part) * 0.5,
        start=draw(part),
        cycle=draw(st.integers(1, 12)),
        tilt_spread_deg=draw(st.sampled_from([0.0, 5.0])),
        azimuth_spread_deg=draw(st.sampled_from([0.0, 20.0])),
        shading=draw(part) * 0.5,
        shading_spread=draw(part) * 0.2,
        age_years=draw(part) * 10.0,
        age_spread_years=draw(part) * 3.0,
    )


@settings(max_examples=12, deadline=None)
@given(st.lists(groups(), min_size=1, max_size=3), st.floats(0.0, 0.3), st.sampled_from([3600.0, 20_000.0, 86_400.0]))
def test_no_joule_is_made_or_lost_in_any_fleet(drawn, cost_spread, round_s):
    own = {
        "devices": {"board": OwnDevice(3.0, 0.05, 0.8, 5.0, 4.0)},
        "radios": {"link": OwnRadio(20.0, 5.0, 2.0, 6.0, 3.0)},
        "sites": {"here": OwnSite(-30.0, 25.0, clear_sky=True)},
    }
    fleet = DeviceFleet(tuple(drawn), round_s=round_s, cost_spread=cost_spread, model_mb=0.5, **own).build(3)
    for policy in (UniformWindow(), Greedy(), Always()):
        for step in plan(fleet, policy, rounds=40):
            books = step.energy
            assert abs(books.imbalance()) <= 1e-9 * (books.initial + books.harvested + books.shortfall + 1.0)
            assert books.violations == 0 or isinstance(policy, Always)
    assert np.all(fleet.arrivals.harvest(0, 0) >= 0.0)


@pytest.mark.long
def test_a_thousand_devices_over_a_year_of_hours_are_planned_in_well_under_a_minute():
    sites = ("miami", "greensboro", "sand-point")
    spread = {"tilt_spread_deg": 5.0, "azimuth_spread_deg": 20.0, "shading": 0.1, "shading_spread": 0.05}
    plain = {"count": 100, "device": "esp32", "panel_wp": 0.02, "battery_wh": 0.5, "age_spread_years": 1.0}
    groups = tuple(DeviceGroup(name=f"group {i}", site=sites[i % 3], **plain, **spread) for i in range(10))
    began = time.perf_counter()
    *_, last = plan(DeviceFleet(groups, round_s=3600.0).build(5), UniformWindow(), rounds=8760)
    assert abs(last.energy.imbalance()) < 1e-9 * last.energy.harvested
    assert time.perf_counter() - began < 60.0


def test_a_table_that_would_let_noon_drift_is_refused(tmp_path):
    hours = [f"2025-01-{1 + h // 24:02}T{h % 24:02}:00Z,{100 * (h % 24 > 6)}" for h in range(50)]
    (tmp_path / "w.csv").write_text("\n".join(["time,ghi", *hours]) + "\n")
    site = OwnSite(50.0, 8.0, weather=str(tmp_path / "w.csv"))
    with pytest.raises(InputError, match=r"lasts 2.08333 days; repeated, noon would drift.*Cut it to whole days"):
        DeviceFleet((DeviceGroup(count=1, site="here"),), sites={"here": site}).build()


class TestCommand:
    def call(self, *arguments):
        from typer.testing import CliRunner

        from everfed.cli.app import app

        return CliRunner().invoke(app, list(arguments))

    def test_lists_and_prints_fleets_to_start_from(self):
        listed = self.call("fleets").output
        assert all(name in listed for name in fleet_texts())
        assert self.call("fleets", "show", "two-cities").output == fleet_texts()["two-cities"]

    def test_plans_a_fleet_file_with_dates_and_units(self, file):
        key = "fleet.groups.chips.count=1"
        found = self.call("plan", "--fleet", str(file), "--rounds", "3", "--set", key, "--set", "fleet.start_day=06-30")
        assert found.exit_code == 0
        for words in ("30 Jun 02:00 night", "kJ", "32 s", "3 rounds are 6 h", "clear sky, which is an upper bound"):
            assert words in found.stdout

    def test_audits_by_the_month(self, file):
        fleet = self.call("audit", "--fleet", str(file), "--rounds", "600", "--seeds", "5").stdout
        assert "mean weight by month" in fleet
        assert "Jan" in fleet
        assert "Feb" in fleet


class TestCalendar:
    def test_rounds_have_dates_by_the_fleets_clock(self):
        spec = DeviceFleet(round_s=43_200.0, start_day="12-31")
        assert [date_of(spec.clock, r) for r in (0, 1, 2)] == ["31 Dec 00:00", "31 Dec 12:00", "1 Jan 00:00"]
        assert covered(spec, 4) == "31 Dec to 1 Jan"
        assert covered(spec, 1460) == "2 years from 31 Dec"

    def test_a_part_of_the_year_says_what_it_brings(self):
        spec = DeviceFleet((DeviceGroup(name="north", site="sand-point"),), round_s=86_400.0)
        joules = spec.supplies()[0].joules
        said = part_of_year(spec, 31)
        assert "covers 1 Jan to 31 Jan, 0.085 of a year" in said
        assert f"north {joules[:31].mean() / joules.mean():.0%}" in said
        assert "365 rounds are a year" in said
        assert part_of_year(spec, 365) is None


@pytest.mark.parametrize("key", ["rounds_s", "modle_mb", "nonsense"])
def test_a_misspelt_key_of_a_fleet_file_is_the_one_that_is_named(tmp_path, key):
    path = tmp_path / "mine.toml"
    path.write_text(f"{key} = 5\n[[groups]]\nname = 'a'\ncount = 1\n", encoding="utf-8")
    for read in (lambda: config.read(path), lambda: {"fleet": read_fleet(path)}):
        with pytest.raises(InputError, match=f"unknown key 'fleet.{key}'"):
            config.from_dict(read())
