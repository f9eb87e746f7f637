"""What feeds the groups of a fleet: each by its own length, all on one clock."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from everfed import EverfedWarning, Greedy, InputError, plan
from everfed.energy import devices
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.profile import Profile
from everfed.energy.solar import site_power
from everfed.energy.trace import Series, per_round_repeated
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.schema import schema

HOUR, DAY = 3600.0, 86_400.0
PLAIN = {"device": "esp32", "radio": "none", "switched_off": True, "charging": 1.0, "discharging": 1.0}


@pytest.fixture
def trace(tmp_path):
    """A file of hourly watts: a day's curve times the number of the day, from `start` on, or in plain seconds."""

    def write(name="t.csv", hours=168, start="", step_s=3600):
        begins = np.datetime64(start.removesuffix("Z"), "s") if start else None
        lines = ["timestamp,power_w" if start else "seconds,power_w"]
        for hour in range(hours):
            when = (
                f"{begins + np.timedelta64(step_s * hour, 's')}{'Z' * start.endswith('Z')}" if start else step_s * hour
            )
            lines.append(f"{when},{0.001 * (1 + hour // 24) * (6 <= hour % 24 < 18)}")
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


def curve(fleet, client, rounds):
    return np.array([fleet.arrivals.harvest(r, 0)[client] for r in range(rounds)]) * fleet.unit_j[client]


class TestSuppliesOfDifferentLength:
    @pytest.mark.parametrize("round_s", [HOUR, 12 * HOUR, 5 * HOUR, 1700.0])
    def test_a_mixed_fleet_is_its_groups_alone(self, trace, round_s):
        groups = (
            DeviceGroup(count=3, name="week", trace=trace(), spread=0.2, **PLAIN),
            DeviceGroup(count=2, name="sun", site="greensboro", spread=0.1, **PLAIN),
            DeviceGroup(count=1, name="day", trace=trace("d.csv", hours=24), trace_scale=2.0, **PLAIN),
            DeviceGroup(count=2, name="far", site="sand-point", panel_wp=3.0, **PLAIN),
        )
        together = DeviceFleet(groups, round_s=round_s).build()
        first = 0
        for group in groups:
            alone = DeviceFleet((group,), round_s=round_s).build()
            mine = np.arange(first, first + group.count)
            first += group.count
            assert together.cycles()[mine].tolist() == alone.cycles().tolist()
            np.testing.assert_array_equal(together.unit_j[mine], alone.unit_j)
            for r in (0, 1, 7, 13, 23, 167, 168, 500, 8759, 8760, 20_000):
                np.testing.assert_array_equal(together.arrivals.harvest(r, 0)[mine], alone.arrivals.harvest(r, 0))

    def test_a_week_leaves_the_year_beside_it_alone(self, trace):
        sun = DeviceGroup(count=1, site="greensboro", **PLAIN)
        alone = DeviceFleet((sun,)).assumptions()[0].supply_j
        beside = DeviceFleet((DeviceGroup(count=1, trace=trace(), **PLAIN), sun)).assumptions()[1].supply_j
        assert beside == alone

    @pytest.mark.parametrize("round_s", [HOUR, 5 * HOUR, 86_400.0, 100_000.0, 700_000.0, 1234.5])
    @pytest.mark.parametrize("begins_s", [0.0, 7 * HOUR, 1000.0])
    def test_what_is_repeated_is_its_copies_one_after_the_other(self, round_s, begins_s):
        power = np.random.default_rng(0).uniform(size=168) * (np.arange(168) % 24 > 6)
        series = Series(np.arange(168) * HOUR, power, HOUR)
        found = per_round_repeated(series, round_s, begins_s)
        copies = int(np.ceil((60 * round_s + begins_s) / series.duration_s)) + 1
        until = np.append(0.0, np.cumsum(np.tile(power, copies) * HOUR))
        cuts = begins_s + np.arange(61) * round_s
        expected = np.diff(np.interp(cuts, np.arange(len(until)) * HOUR, until))
        np.testing.assert_allclose(np.resize(found, 60), expected, rtol=1e-9, atol=1e-6)

    def test_a_round_may_be_longer_than_a_trace_that_is_repeated(self, trace):
        fleet = DeviceFleet((DeviceGroup(count=1, trace=trace(hours=24), **PLAIN),), round_s=10 * DAY).build()
        assert curve(fleet, 0, 3) == pytest.approx([0.001 * 12 * HOUR * 10] * 3)

    def test_nights_stay_dark_where_rounds_do_not_divide_the_year(self):
        year = site_power("miami")
        amounts = per_round_repeated(year, 3601.0)
        assert len(amounts) == 1_000_000
        assert np.mean(amounts == 0.0) > 0.4
        assert amounts.mean() == pytest.approx(year.power_w.mean() * 3601.0, rel=1e-4)

    def test_rows_of_a_profile_end_and_repeat_by_themselves(self):
        profile = Profile([[1.0], [1.0, 2.0, 3.0]], np.array([0, 1]), np.ones(2), np.zeros(2, int), [True, False])
        found = [profile.harvest(r, 0).tolist() for r in range(5)]
        assert found == [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 0.0], [1.0, 0.0]]
        assert profile.known_rounds == 3
        assert profile.site_means.tolist() == [1.0, 2.0]
        with pytest.raises(InputError, match="3 values of repeats were given for 2 sites"):
            replace(profile, repeats=[True] * 3)


class TestHowATraceGoesOn:
    def test_a_dated_trace_of_part_days_is_not_repeated_as_it_is(self, trace):
        path = trace(hours=50, start="2026-06-01T00:00:00Z")
        with pytest.raises(InputError, match=r"lasts 2.08333 days; .* noon would drift .* extend = \"whole-days\""):
            DeviceFleet((DeviceGroup(trace=path, **PLAIN),)).build()
        whole = DeviceFleet((DeviceGroup(count=1, trace=path, extend="whole-days", **PLAIN),)).build()
        assert curve(whole, 0, 96)[:48].tolist() == curve(whole, 0, 96)[48:].tolist()
        wrapped = DeviceFleet((DeviceGroup(count=1, trace=path, extend="wrap", **PLAIN),)).build()
        assert curve(wrapped, 0, 100)[50:].tolist() == curve(wrapped, 0, 50).tolist()

    def test_one_without_dates_may_be_but_is_told(self, trace):
        with pytest.warns(EverfedWarning, match=r"lasts 2.08333 days"):
            DeviceFleet((DeviceGroup(trace=trace(hours=50), **PLAIN),)).build()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            DeviceFleet((DeviceGroup(trace=trace(hours=12), **PLAIN),)).build()

    def test_refuse_holds_for_as_long_as_the_trace(self, trace):
        spec = DeviceFleet((DeviceGroup(count=1, trace=trace(hours=48), extend="refuse", battery_wh=1.0, **PLAIN),))
        fleet = spec.build()
        assert len(list(plan(fleet, Greedy(), rounds=48))) == 48
        with pytest.raises(InputError, match="run has 49 rounds, and a supply that is not repeated ends after 48"):
            plan(fleet, Greedy(), rounds=49)
        with pytest.raises(InputError, match="ends after 48"):
            Experiment(fleet=spec, rounds=100).make_fleet()
        with pytest.raises(InputError, match="a round of 200000 s is longer than the part of the trace"):
            replace(spec, round_s=200_000.0).build()

    def test_the_rule_is_among_the_assumptions(self, trace):
        rows = DeviceFleet(
            (
                DeviceGroup(name="a", trace=trace(), **PLAIN),
                DeviceGroup(name="b", trace=trace("b.csv", start="2026-06-01T07:00:00Z"), **PLAIN),
                DeviceGroup(name="c", trace=trace("c.csv", start="2026-06-01T07:00:00"), **PLAIN),
                DeviceGroup(name="d", site="miami", **PLAIN),
            )
        ).assumptions()
        assert [row.source for row in rows] == [
            "t.csv, 7 days, without dates: it starts with round 0, repeated from its start",
            "b.csv, 7 days from 2026-06-01 07:00 UTC, entered 17 h after its start, repeated from its start",
            "c.csv, 7 days from 2026-06-01 07:00 of an unknown time zone: it starts with round 0, "
            "repeated from its start",
            "a typical year at miami (UTC-5 h), repeated every 365 days",
        ]


class TestOneClock:
    def test_the_sun_peaks_by_longitude(self):
        groups = tuple(DeviceGroup(count=1, site=site, **PLAIN) for site in ("miami", "greensboro", "sand-point"))
        fleet = DeviceFleet(groups, round_s=HOUR).build()
        mean = np.array([fleet.arrivals.harvest(r, 0) for r in range(8760)]).reshape(365, 24, 3).mean(axis=0)
        # The middle of the day by the energy, UTC hours: 12 h minus the longitude over 15 degrees.
        noon = (mean * ((np.arange(24)[:, None] + 0.5 - 6.0) % 24.0)).sum(axis=0) / mean.sum(axis=0) + 6.0
        assert noon == pytest.approx([12 + 80.3 / 15, 12 + 79.9 / 15, 12 + 160.5 / 15], abs=0.6)
        assert noon[2] - noon[0] > 4.5

    def test_another_clock_moves_everybody_alike(self):
        sites = tuple(DeviceGroup(count=1, site=site, **PLAIN) for site in ("miami", "sand-point"))
        utc, local = (DeviceFleet(sites, utc_h=h).build() for h in (0.0, -5.0))
        for client in (0, 1):
            # Midnight of a clock five hours behind is five hours later.
            assert curve(local, client, 100).tolist() == pytest.approx(curve(utc, client, 105)[5:].tolist())
        half = DeviceFleet(sites, utc_h=5.5, round_s=1800.0).build()
        assert curve(half, 0, 48)[11:].tolist() == pytest.approx(
            curve(DeviceFleet(sites, round_s=1800.0).build(), 0, 37).tolist()
        )

    def test_the_first_day_is_that_of_the_year(self):
        january, june = (
            DeviceFleet((DeviceGroup(count=1, site="greensboro", **PLAIN),), start_day=day).build()
            for day in ("01-01", "06-01")
        )
        assert curve(june, 0, 200).tolist() == pytest.approx(curve(january, 0, 151 * 24 + 200)[151 * 24 :].tolist())

    @pytest.mark.parametrize(
        ("start", "changes", "first"),
        [
            ("", {}, 0),  # without a date it begins with round 0
            ("2026-06-01T07:00:00", {}, 0),  # so does what has no zone
            ("2026-06-01T00:00:00Z", {}, 0),
            ("2026-06-01T07:00:00Z", {}, 17),
            ("2026-06-01T07:00:00", {"trace_utc_h": -5.0}, 12),  # 12:00 UTC
            ("2025-12-30T00:00:00Z", {}, 48),  # it covers the first day, and begins there
        ],
    )
    def test_traces_are_placed_by_their_stamps(self, trace, start, changes, first):
        group = DeviceGroup(count=1, trace=trace(start=start), **PLAIN, **changes)
        fleet = DeviceFleet((group,)).build()
        hours = np.arange(168)
        recorded = 0.001 * (1 + hours // 24) * ((hours % 24 >= 6) & (hours % 24 < 18)) * HOUR
        assert curve(fleet, 0, 168) == pytest.approx(np.roll(recorded, -first))

    def test_a_year_of_stamps_begins_on_the_first_day(self, trace):
        path = trace(hours=8760, start="2025-03-01T00:00:00Z")
        fleet = DeviceFleet((DeviceGroup(count=1, trace=path, **PLAIN),), start_day="06-01").build()
        assert curve(fleet, 0, 24)[12] == pytest.approx(0.001 * (1 + 92) * HOUR)

    def test_a_dated_trace_without_a_midnight_is_refused(self, trace):
        path = trace(hours=6, start="2026-06-01T07:00:00Z")
        with pytest.raises(InputError, match="contains no midnight"):
            DeviceFleet((DeviceGroup(trace=path, extend="wrap", **PLAIN),)).build()


class TestWhatAGroupIsGiven:
    def test_a_measured_trace_is_what_the_device_is_given(self, trace):
        plain, twice = (
            DeviceFleet((DeviceGroup(count=1, trace=trace(hours=24), trace_scale=scale, **PLAIN),)).assumptions()[0]
            for scale in (1.0, 2.0)
        )
        assert plain.supply_j == pytest.approx(0.0005 * HOUR)
        assert twice.supply_j == pytest.approx(2 * plain.supply_j)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"panel_wp": 10.0, "trace": "t.csv"}, "panel_wp is 10.0, and the supply is the trace t.csv.*trace_scale"),
            ({"site": "miami", "trace": "t.csv"}, "site is miami, and the supply is the trace t.csv"),
            ({"tilt_deg": 10.0, "trace": "t.csv"}, "tilt_deg is 10.0, and the supply"),
            ({"trace_scale": 2.0}, "trace_scale is 2.0, and there is no trace"),
            ({"column": "a"}, "column is 'a', and there is no trace"),
            ({"extend": "wrap"}, "extend is 'wrap', and there is no trace"),
            ({"extend": "again", "trace": "t.csv"}, "extend is 'again'"),
            ({"trace_utc_h": 20.0, "trace": "t.csv"}, "trace_utc_h is 20.0"),
            ({"panel_wp": 0.0}, "panel_wp is 0.0; a device without a panel"),
            ({"site": "miamy"}, "Did you mean 'miami'"),
        ],
    )
    def test_what_makes_no_sense_together_is_refused(self, given, words):
        with pytest.raises(InputError, match=words):
            DeviceFleet((DeviceGroup(**given),))

    def test_of_one_name_are_told_apart(self, trace):
        path = trace()
        groups = tuple(
            DeviceGroup(count=c, name=name, trace=path, **PLAIN)
            for c, name in ((1, "roof"), (2, "roof"), (3, ""), (4, ""), (1, "roof (2)"))
        )
        spec = DeviceFleet(groups)
        assert len(set(spec.labels)) == 5
        assert spec.labels == ("roof", "roof (3)", "esp32 @ t.csv", "esp32 @ t.csv (2)", "roof (2)")
        assert sorted(len(g.clients) for g in spec.build().groups()) == [1, 1, 2, 3, 4]
        assert [row.label for row in spec.assumptions()] == list(spec.labels)
        with pytest.raises(InputError, match="several groups are called 'a'"):
            replace(spec.build(), labels=("a", "a", "b", "c", "d"))


class TestAirTime:
    def test_ten_megabytes_over_lora_do_not_fit_an_hour(self):
        fleet = DeviceFleet((DeviceGroup(radio="lora-sf7"),), model_mb=10.0)
        with pytest.raises(
            InputError, match=r"10 MB up at 4845 bit/s take 1.651e\+04 s on air, and a round has 3600 s"
        ):
            fleet.build()

    def test_the_duty_cycle_is_kept(self):
        # 33 s on air are 1 % of 3,302 s.
        spec = DeviceFleet((DeviceGroup(radio="lora-sf7", step_s=1.0),), model_mb=0.02)
        (row,) = replace(spec, round_s=3303.0).assumptions()
        assert (row.train_s, row.air_s) == pytest.approx((5.0, 2 * 0.02 * 8e6 / 4845.0))
        with pytest.raises(InputError, match=r"of which the radio may send 0.01 \(33 s\)"):
            replace(spec, round_s=3300.0).build()

    def test_training_and_sending_must_fit_together(self):
        link = devices.Radio(1.0, 1.0, up_bit_s=8e5, down_bit_s=8e5)
        slow = devices.Device(1.0, 0.0, 10.0)
        for round_s, fits in ((71.0, True), (69.0, False)):
            call = lambda r=round_s: devices.round_cost(slow, link, local_steps=5, model_mb=1.0, round_s=r)  # noqa: E731
            if fits:
                assert call().busy_s == pytest.approx(70.0)
            else:
                with pytest.raises(
                    InputError, match="50 s of training and 20 s on air take 70 s, and a round has 69 s"
                ):
                    call()

    def test_what_a_group_cannot_send_in_time_is_no_choice_of_its_bits(self):
        from everfed.learning.compress import AdaptiveQsgd

        spec = DeviceFleet(
            (DeviceGroup(count=1, radio="lora-sf7", battery_wh=50.0),), model_mb=0.02, round_s=2000.0, downloads=False
        )
        with pytest.raises(InputError, match="on air"):
            spec.build()
        bits = spec.build(5, AdaptiveQsgd()).message_bits
        assert bits.tolist()[0] < 32


class TestSources:
    @pytest.mark.parametrize("name", devices.DEVICES)
    def test_every_device_has_a_source_or_is_a_guess(self, name):
        preset = devices.DEVICES[name]
        assert "step_s" in preset.guessed  # it depends on the model
        assert preset.source or set(preset.guessed) == {"active_w", "sleep_w", "step_s"}
        assert preset.active_w > preset.sleep_w

    @pytest.mark.parametrize("name", devices.RADIOS)
    def test_every_radio_has_a_source(self, name):
        assert devices.RADIOS[name].source or devices.RADIOS[name].guessed

    def test_lte_is_not_cheaper_than_wifi(self):
        lte, wifi = devices.radio("lte"), devices.radio("wifi")
        assert lte.up_j_per_mb >= wifi.up_j_per_mb
        assert lte.down_j_per_mb >= wifi.down_j_per_mb
        assert lte.wake_j > wifi.wake_j

    def test_guesses_are_told_unless_the_user_gave_them(self):
        (row,) = DeviceFleet((DeviceGroup(device="phone"),)).assumptions()
        assert row.guesses == ("phone active_w", "phone sleep_w", "phone step_s")
        (row,) = DeviceFleet((DeviceGroup(device="phone", step_s=1.0, switched_off=True),)).assumptions()
        assert row.guesses == ("phone active_w",)


def test_a_group_survives_writing_and_reading(trace):
    groups = (
        DeviceGroup(trace=trace(), trace_utc_h=None),
        DeviceGroup(trace=trace("b.csv", start="2026-06-01T00:00:00"), trace_utc_h=-5.0, column="power_w"),
        DeviceGroup(site="miami"),
    )
    experiment = Experiment(fleet=DeviceFleet(groups, utc_h=2.0))
    assert config.from_dict(config.parse(config.to_toml(experiment))) == experiment
    assert "null" not in config.to_toml(experiment)
    found = schema()["properties"]["fleet"]["anyOf"][2]["properties"]["groups"]["items"]["properties"]
    assert found["panel_wp"] == {"type": "number", "minimum": 0}
