"""Sites of one's own: the sun over four of them as pvlib gives it, their weather files, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pvlib
import pytest

from everfed.energy.physical import DeviceFleet, DeviceGroup, OwnSite
from everfed.errors import EverfedWarning, InputError
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.store import open_run, stored_rounds

HOURS = 8760
# (latitude, longitude, hours of the legal clock ahead of UTC)
NAIROBI, TOKYO, SANTIAGO, PHOENIX = (-1.3, 36.8, 3), (35.7, 139.7, 9), (-33.4, -70.7, -4), (33.4, -112.0, -7)
PLACES = {"nairobi": NAIROBI, "tokyo": TOKYO, "santiago": SANTIAGO, "phoenix": PHOENIX}


def clouded(latitude, longitude, utc_h):
    """A year of hours of made-up weather in legal time: clear sky behind clouds that change from hour to hour."""
    local = pd.date_range("2001-01-01 00:30", periods=HOURS, freq="h", tz="UTC") - pd.Timedelta(hours=utc_h)
    sun = pvlib.solarposition.get_solarposition(local, latitude, longitude)
    sky = pvlib.clearsky.haurwitz(sun["apparent_zenith"])["ghi"].to_numpy()
    hours = np.arange(HOURS)
    ghi = sky * (0.65 + 0.3 * np.sin(hours / 7.0) * np.cos(hours / 91.0))
    parted = pvlib.irradiance.erbs(ghi, sun["zenith"].to_numpy(), local.day_of_year.to_numpy())
    dni, dhi = (np.nan_to_num(np.asarray(parted[name])) for name in ("dni", "dhi"))
    temperature = 15.0 + 10.0 * np.sin(hours / 24.0 * 2.0 * np.pi) + 5.0 * np.cos(hours / HOURS * 2.0 * np.pi)
    return {"ghi": ghi, "dni": dni, "dhi": dhi, "temp_air": temperature, "wind_speed": np.full(HOURS, 2.5)}, local


def by_pvlib(columns, local, place, tilt, azimuth, losses):
    """The same chain of models, called directly: W of one watt-peak."""
    sun = pvlib.solarposition.get_solarposition(local, place[0], place[1])
    plane = pvlib.irradiance.get_total_irradiance(
        tilt, azimuth, sun["apparent_zenith"].to_numpy(), sun["azimuth"].to_numpy(), columns["dni"], columns["ghi"],
        columns["dhi"], albedo=0.25,
    )["poa_global"]  # fmt: skip
    model = pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"]["open_rack_glass_polymer"]
    cell = pvlib.temperature.sapm_cell(plane, columns["temp_air"], columns["wind_speed"], **model)
    return np.maximum(pvlib.pvsystem.pvwatts_dc(plane, cell, 1.0, -0.004), 0.0) * (1.0 - losses)


def write_epw(path, columns, place):
    months = pd.date_range("2001-01-01", periods=HOURS, freq="h")
    lines = [f"LOCATION,Somewhere,-,-,own,0,{place[0]},{place[1]},{place[2]},7.0", *["-"] * 7]
    for hour, when in enumerate(months):
        row = ["0"] * 35
        row[:5] = ["2001", str(when.month), str(when.day), str(when.hour + 1), "0"]
        for at, name in ((6, "temp_air"), (13, "ghi"), (14, "dni"), (15, "dhi"), (21, "wind_speed")):
            row[at] = repr(float(columns[name][hour]))
        lines.append(",".join(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_table(path, columns, place, names=("ghi", "dni", "dhi", "temp_air", "wind_speed"), skip=(), offset=None):
    """A CSV table of irradiance; skip: hours without a row."""
    offset = offset or f"{'+' if place[2] >= 0 else '-'}{abs(place[2]):02}:00"
    when = pd.date_range("2001-01-01", periods=len(columns["ghi"]), freq="h")
    lines = ["time," + ",".join(names)]
    lines += [
        f"{t:%Y-%m-%dT%H:%M:%S}{offset}," + ",".join(repr(float(columns[name.split(" ")[0]][i])) for name in names)
        for i, t in enumerate(when)
        if i not in skip
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fleet(site, **changes):
    group = DeviceGroup(count=1, site="here", device="esp32", radio="none", panel_wp=1.0, **changes)
    return DeviceFleet((group,), sites={"here": site})


def yearly(site, **changes):
    return fleet(site, **changes).supplies()[0].joules / 3600.0


class TestTheSunIsPvlibs:
    @pytest.mark.parametrize("name", PLACES)
    @pytest.mark.parametrize("kind", ["epw", "csv"])
    def test_at_four_sites_of_three_continents_with_their_clocks(self, tmp_path, name, kind):
        place = PLACES[name]
        columns, local = clouded(*place)
        facing = 180.0 if place[0] > 0 else 0.0
        path = tmp_path / f"{name}.{kind}"
        (write_epw if kind == "epw" else write_table)(path, columns, place)
        site = OwnSite(*(place[:2] if kind == "csv" else ()), weather=str(path), tilt_deg=25.0, losses=0.1)
        expected = by_pvlib(columns, local, place, 25.0, facing, 0.1)
        # The fleet's rounds begin at midnight UTC on 1 January, the files at midnight of their own clocks.
        expected = np.roll(expected, -place[2])
        found = yearly(site)
        assert found.sum() == pytest.approx(expected.sum(), rel=0.02)
        by_month = [(one[: 730 * 12].reshape(12, 730).sum(axis=1)) for one in (found, expected)]
        np.testing.assert_allclose(by_month[0], by_month[1], rtol=0.02)
        assert np.abs(found - expected).max() < 0.02  # W of one watt-peak: no hour is out of place

    def test_clocks_may_be_off_by_half_an_hour(self, tmp_path):
        delhi = (28.6, 77.2, 5.5)
        columns, local = clouded(*delhi)
        write_epw(tmp_path / "d.epw", columns, delhi)
        write_table(tmp_path / "d.csv", columns, delhi, offset="+05:30")
        expected = by_pvlib(columns, local, delhi, 30.0, 180.0, 0.14)
        # A round of the fleet, from a full hour of UTC on, is half of one hour there and half of the next.
        expected = (np.roll(expected, -5) + np.roll(expected, -6)) / 2.0
        for site in (
            OwnSite(weather=str(tmp_path / "d.epw")),
            OwnSite(*delhi[:2], weather=str(tmp_path / "d.csv")),
        ):
            np.testing.assert_allclose(yearly(site), expected, atol=0.01)

    @pytest.mark.parametrize("name", PLACES)
    def test_noon_of_a_clear_sky_is_where_the_longitude_says(self, name):
        place = PLACES[name]
        hours = yearly(OwnSite(place[0], place[1], clear_sky=True)).reshape(365, 24).mean(axis=0)
        highest = float(np.average(np.arange(24), weights=np.roll(hours, round(place[1] / 15))) + 0.5)
        assert highest == pytest.approx(12.0 + round(place[1] / 15) - place[1] / 15, abs=0.4)

    def test_global_irradiance_alone_is_parted_by_a_model(self, tmp_path):
        columns, _ = clouded(*TOKYO)  # whose direct and diffuse light are that model's
        write_table(tmp_path / "all.csv", columns, TOKYO)
        write_table(tmp_path / "ghi.csv", columns, TOKYO, ("ghi [W/m2]", "temp_air [C]", "wind_speed [m/s]"))
        whole, parted = (yearly(OwnSite(*TOKYO[:2], weather=str(tmp_path / f"{n}.csv"))) for n in ("all", "ghi"))
        np.testing.assert_allclose(parted, whole, atol=1e-3)

    @pytest.mark.parametrize("minutes", [-20, 20])
    def test_a_clock_that_is_minutes_off_makes_no_light_and_loses_none(self, tmp_path, minutes):
        """Near the horizon the model makes more direct light of it than the sun gives."""
        columns, _ = clouded(*TOKYO)
        names = ("ghi", "temp_air", "wind_speed")
        write_table(tmp_path / "w.csv", columns, TOKYO, names)
        moved = (tmp_path / "w.csv").read_text().replace(":00:00+", f":{minutes % 60:02}:00+")
        (tmp_path / "moved.csv").write_text(moved)
        site = OwnSite(*TOKYO[:2], weather=str(tmp_path / "moved.csv"))
        sky = site.skies()[0].columns
        sun = pvlib.solarposition.get_solarposition(site.skies()[0].moments(0.5), *TOKYO[:2])
        height = np.maximum(np.cos(np.radians(sun["zenith"].to_numpy())), 0.0)
        assert sky["dni"].max() < 1415.0  # above the air, with the sun at its nearest
        assert np.abs(sky["dni"] * height + sky["dhi"] - columns["ghi"])[sun["zenith"] < 87.0].max() < 1e-6
        whole = yearly(OwnSite(*TOKYO[:2], weather=str(tmp_path / "w.csv")))
        assert yearly(site).sum() == pytest.approx(whole.sum(), rel=0.02)

    def test_panels_face_the_equator_unless_told(self):
        assert yearly(OwnSite(-33.4, -70.7, clear_sky=True)).sum() == pytest.approx(
            yearly(OwnSite(-33.4, -70.7, clear_sky=True, azimuth_deg=0.0)).sum()
        )

    def test_a_group_is_mounted_as_its_site_says_or_as_it_says_itself(self):
        site = OwnSite(45.0, 10.0, clear_sky=True, tilt_deg=60.0, azimuth_deg=90.0, losses=0.3)
        plain = OwnSite(45.0, 10.0, clear_sky=True)
        theirs = yearly(plain, tilt_deg=60.0, azimuth_deg=90.0, losses=0.3)
        np.testing.assert_array_equal(yearly(site), theirs)
        own = {"tilt_deg": 30.0, "azimuth_deg": 180.0, "losses": 0.14}
        np.testing.assert_array_equal(yearly(site, **own), yearly(plain))

    @pytest.mark.parametrize(
        ("latitude", "azimuth", "words"), [(-33.4, 180.0, "face south"), (45.0, 10.0, "face north")]
    )
    def test_panels_that_turn_their_back_to_the_sun_are_warned_of(self, latitude, azimuth, words):
        site = OwnSite(latitude, 10.0, clear_sky=True, azimuth_deg=azimuth)
        with pytest.warns(EverfedWarning, match=words):
            fleet(site).supplies()


class TestGaps:
    def test_are_filled_by_the_rule_and_their_share_is_told(self, tmp_path):
        columns, _ = clouded(*TOKYO)
        write_table(tmp_path / "w.csv", columns, TOKYO, skip=(13, 14, 500))
        spec = fleet(OwnSite(*TOKYO[:2], weather=str(tmp_path / "w.csv"), gaps="interpolate"))
        assert "0.03% of it filled in" in spec.supplies()[0].told
        whole = columns["ghi"].copy()
        whole[13:15] = np.interp([13, 14], [12, 15], [whole[12], whole[15]])
        whole[500] = (whole[499] + whole[501]) / 2
        (year,) = spec.groups[0].own.weather("here")
        np.testing.assert_allclose(year.columns["ghi"], whole)

    def test_are_refused_unless_a_rule_is_given_and_where_they_are_long(self, tmp_path):
        columns, _ = clouded(*TOKYO)
        write_table(tmp_path / "w.csv", columns, TOKYO, skip=range(100, 110))
        for changes, words in (
            ({}, "line 102: a gap of 39600 s before it.*or say gaps"),
            ({"gaps": "hold"}, "w.csv, ghi: 10 h without values.*at most 3 h are filled in.*longest_gap_h"),
        ):
            with pytest.raises(InputError, match=words):
                yearly(OwnSite(*TOKYO[:2], weather=str(tmp_path / "w.csv"), **changes))
        assert len(yearly(OwnSite(*TOKYO[:2], weather=str(tmp_path / "w.csv"), gaps="hold", longest_gap_h=12))) == HOURS

    @pytest.mark.parametrize(
        ("rule", "filled"), [("hold", [2, 2, 2, 8]), ("zero", [2, 0, 0, 8]), ("interpolate", [2, 4, 6, 8])]
    )
    def test_of_traces_are_filled_alike(self, tmp_path, rule, filled):
        rows = ["seconds,power_w", "0,2", "3600,", "10800,8", *(f"{h * 3600},1" for h in range(4, 24))]
        (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
        group = DeviceGroup(count=1, device="esp32", radio="none", trace=str(tmp_path / "t.csv"), gaps=rule)
        supply = DeviceFleet((group,)).supplies()[0]
        assert (supply.joules[:4] / 3600.0).tolist() == pytest.approx(filled)
        assert "8.33% of it filled in" in supply.told
        plain = DeviceGroup(count=1, device="esp32", radio="none", trace=str(tmp_path / "t.csv"))
        with pytest.raises(InputError, match=r"a gap of 7200 s before it.*or say gaps"):
            DeviceFleet((plain,)).build()

    def test_at_an_end_have_nothing_to_be_filled_from(self, tmp_path):
        rows = ["seconds,power_w", "0,", *(f"{h * 3600},1" for h in range(1, 24))]
        (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
        group = DeviceGroup(count=1, device="esp32", radio="none", trace=str(tmp_path / "t.csv"), gaps="hold")
        with pytest.raises(InputError, match="the first value is missing, and there is none to hold from"):
            DeviceFleet((group,)).build()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "it has no weather data; give weather, a file.*or clear_sky = true"),
        ({"clear_sky": True}, "latitude or longitude is missing"),
        ({"clear_sky": True, "latitude": 3.0}, "latitude or longitude is missing"),
        ({"clear_sky": True, "latitude": 93.0, "longitude": 0.0}, "latitude is 93.0"),
        ({"clear_sky": True, "latitude": 3.0, "longitude": 0.0, "losses": -0.1}, "losses is -0.1.*from 0 to 1"),
        ({"clear_sky": True, "latitude": 3.0, "longitude": 0.0, "weather": "a.epw"}, "remove one of them"),
        (
            {"weather": "a.epw", "gaps": "guess"},
            "gaps is 'guess'; it must be 'refuse', 'hold', 'zero' or 'interpolate'",
        ),
    ],
)
def test_sites_that_make_no_sense_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        OwnSite(**given)


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("time,ghi [cal]\n2025-01-01T00:00Z,1\n2025-01-01T01:00Z,1\n", {}, "column 'ghi .cal.': unknown unit 'cal'"),
        ("time,ghi\n2025-01-01T00:00,1\n2025-01-01T01:00,1\n", {}, "no UTC offset.*give the site's utc_h"),
        ("time,ghi\n2025-01-01T00:00Z,1\n2025-01-01T01:00Z,1\n", {"utc_h": 1.0}, "states the UTC offset"),
        ("time,ghi\n2025-01-01T00:00Z,1\n2025-01-01T03:00Z,1\n", {}, "needed at least every hour"),
        (
            "time,ghi\n2025-01-01T00:00Z,1\n2025-01-01T01:00Z,9999\n",
            {},
            r"ghi is 9999 at 2025-01-01 01:00 of its clock \(UTC\)",
        ),
        ("time,ghi,dni\n2025-01-01T00:00Z,1,1\n2025-01-01T01:00Z,1,1\n", {}, "dni without dhi"),
        ("time,ghi\n2025-01-01T00:00Z,1\n2025-01-01T01:00Z,\n", {}, "line 3: ghi is missing.*or say gaps"),
        ("seconds,ghi\n0,1\n3600,1\n", {}, "its times are no dates"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_with_a_reason(tmp_path, text, changes, words):
    (tmp_path / "w.csv").write_text(text)
    site = OwnSite(50.0, 8.0, weather=str(tmp_path / "w.csv"), **changes)
    with pytest.raises(InputError, match=f"sites.here: .*{words}"):
        fleet(site).build()


def test_weather_of_another_place_is_refused(tmp_path):
    data = Path(pvlib.__file__).parent / "data" / "12839.tm2"
    shutil.copy(data, tmp_path / "miami.tm2")
    with pytest.raises(InputError, match=r"is the weather at latitude 25.8, and the site's latitude is 47"):
        yearly(OwnSite(47.0, -80.3, weather=str(tmp_path / "miami.tm2")))
    bundled = DeviceFleet((DeviceGroup(count=1, site="miami", panel_wp=1.0),)).supplies()[0].joules / 3600.0
    np.testing.assert_array_equal(yearly(OwnSite(weather=str(tmp_path / "miami.tm2"))), bundled)


class TestYears:
    """Several files are several years, one after the other."""

    def write(self, folder, name, year, scale=1.0, months=0, place=TOKYO):
        """A calendar year of hours of that year, with its 29 February, from so many months on."""
        when = pd.date_range(f"{year}-{1 + months:02}-01", f"{year + 1}-{1 + months:02}-01", freq="h", inclusive="left")
        lines = ["time,ghi"]
        light = scale * 500.0 * np.maximum(np.sin((when.hour - 6) / 12 * np.pi), 0.0)
        lines += [f"{t:%Y-%m-%dT%H:%M}+09:00,{value:.4f}" for t, value in zip(when, light, strict=True)]
        path = folder / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def test_follow_one_another_without_29_february(self, tmp_path):
        light = {2023: 1.0, 2024: 0.5, 2019: 0.8}
        paths = [self.write(tmp_path, f"{year}.csv", year, scale) for year, scale in light.items()]
        years = [yearly(OwnSite(*TOKYO[:2], weather=path)) for path in paths]
        leap = (31 + 28) * 24
        years[1] = np.delete(years[1], np.s_[leap : leap + 24])  # its rounds begin at midnight of UTC
        found = fleet(OwnSite(*TOKYO[:2], weather_years=paths))
        (supply,) = found.supplies()
        assert supply.period_s == 3 * 365 * 86_400
        assert supply.begins == ""
        assert "3 years (2023.csv, 2024.csv, 2019.csv), 1095 days" in supply.told
        # Round 0 is nine hours into the first year, and what was before it comes last.
        whole = np.roll(supply.joules, 9) / 3600.0
        for number, year in enumerate(years):
            mine, alone = whole[8760 * number : 8760 * (number + 1)], np.roll(year, 9)
            np.testing.assert_allclose(mine, alone, atol=1e-9)

    def test_begin_on_the_day_of_the_fleet(self, tmp_path):
        paths = [self.write(tmp_path, f"{year}.csv", year, year / 2024.0) for year in (2024, 2023)]
        site = OwnSite(*TOKYO[:2], weather_years=paths)
        winter = replace(fleet(site), utc_h=9.0)
        summer = replace(winter, start_day="06-01")
        np.testing.assert_array_equal(summer.supplies()[0].joules, np.roll(winter.supplies()[0].joules, -151 * 24))

    def test_are_copied_into_run_folders_and_tied_by_their_hashes(self, tmp_path):
        (tmp_path / "data").mkdir()
        paths = [self.write(tmp_path / "data", f"{year}.csv", year) for year in (2023, 2024)]
        text = "round_s = 43200\n[sites.here]\nlatitude = 35.7\nlongitude = 139.7\n"
        text += 'weather_years = ["2023.csv", "2024.csv"]\n'
        text += '[[groups]]\ncount = 2\nsite = "here"\ndevice = "esp32"\nradio = "none"\n'
        (tmp_path / "data" / "fleet.toml").write_text(text)
        spec = config.from_dict(config.read(tmp_path / "data" / "fleet.toml")).fleet
        assert list(spec.sites["here"].weather_years) == paths
        experiment = Experiment(fleet=spec, rounds=2, local_steps=1, eval_every=2, device="cpu")
        before = experiment.make_fleet().arrivals.harvest(1, 0).tolist()
        list(stored_rounds(experiment, tmp_path / "run"))
        shutil.rmtree(tmp_path / "data")
        shutil.move(tmp_path / "run", tmp_path / "moved")
        run = open_run(tmp_path / "moved")
        assert run.experiment.make_fleet().arrivals.harvest(1, 0).tolist() == before
        (copy,) = (tmp_path / "moved" / "traces").rglob("2024.csv")
        copy.write_text(copy.read_text().replace(",0.0", ",1.0"))
        with pytest.raises(InputError, match=r"the weather file .*2024.csv has changed"):
            run.experiment.make_fleet()

    @pytest.mark.parametrize(
        ("second", "words"),
        [
            ({"year": 2024, "months": 6}, "a year that begins on 06-30 15:00, and .*2023.csv 12-31 15:00"),
            ({"cut": 24}, "364 days without 29 February; each of several files of weather is one year"),
            ({"tmy": "12839.tm2"}, "is the weather at 25.8, -80.2.*give years of one place"),
        ],
    )
    def test_that_do_not_fit_together_are_refused(self, tmp_path, second, words):
        place = TOKYO[:2]
        first = self.write(tmp_path, "2023.csv", 2023)
        if "tmy" in second:
            data = Path(pvlib.__file__).parent / "data"
            other, first, place = str(data / second["tmy"]), str(data / "723170TYA.CSV"), ()
        else:
            other = self.write(tmp_path, "other.csv", second.get("year", 2022), months=second.get("months", 0))
            lines = Path(other).read_text().splitlines()
            Path(other).write_text("\n".join(lines[: len(lines) - second.get("cut", 0)]) + "\n")
        with pytest.raises(InputError, match=f"sites.here: .*{words}"):
            fleet(OwnSite(*place, weather_years=[first, other])).supplies()

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"weather_years": ["a.csv"]}, "has one file; give at least two"),
            ({"weather_years": ["a.csv", "b.csv"], "weather": "c.csv"}, "weather_years and weather are both given"),
            ({"weather_years": ["a.csv", "b.csv"], "clear_sky": True}, "weather_years and clear_sky are both given"),
        ],
    )
    def test_are_at_least_two_files_and_nothing_else(self, given, words):
        with pytest.raises(InputError, match=words):
            OwnSite(35.7, 139.7, **given)
