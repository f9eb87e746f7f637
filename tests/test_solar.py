"""The sun: published yields, exact nights, and every format of weather alike."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pvlib
import pytest

from everfed.energy.solar import DAYS_BEFORE_MONTH, SITES, from_day, power_of, site_power
from everfed.energy.trace import Series, per_round
from everfed.energy.weather import PLAUSIBLE, Weather, read_weather
from everfed.errors import InputError, MissingExtraError

MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
DOCS = Path(__file__).parents[1] / "docs" / "energy.md"


def weather(site):
    path = Path(pvlib.__file__).parent / "data" / SITES[site].file
    return read_weather(path, path.stat().st_mtime_ns)


def days(series):
    """Wh per Wp in each day."""
    return series.power_w.reshape(365, 24).sum(axis=1)


def months(series):
    """Wh per Wp and day in each month."""
    return np.array([days(series)[first:last].mean() for first, last in pairwise(DAYS_BEFORE_MONTH)])


def elevation(site, moment_h):
    at = weather(site)
    times = at.moments(moment_h)
    return pvlib.solarposition.get_solarposition(times, at.latitude, at.longitude)["elevation"].to_numpy()


def refused(call, *words, kind=InputError):
    with pytest.raises(kind) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value)


every_site = pytest.mark.parametrize("site", SITES)


class TestYield:
    @pytest.mark.parametrize(
        ("site", "mean", "worst", "best"),
        [("miami", 4.09, 3.50, 4.86), ("greensboro", 3.92, 2.84, 4.74), ("sand-point", 2.37, 0.89, 4.42)],
    )
    def test_is_the_known_one(self, site, mean, worst, best):
        power = site_power(site, tilt_deg=30.0, azimuth_deg=180.0, losses=0.14)
        found = [days(power).mean(), months(power).min(), months(power).max()]
        assert found == pytest.approx([mean, worst, best], rel=0.02)

    def test_is_the_one_in_the_docs(self):
        text = DOCS.read_text(encoding="utf-8")
        table = re.findall(r"\| `([\w-]+)`.*?\| ([\d.]+) \| ([\d.]+) \((\w+)\) \| ([\d.]+) \((\w+)\) \|", text)
        assert {row[0] for row in table} == set(SITES)
        for site, mean, worst, worst_month, best, best_month in table:
            monthly = months(site_power(site))
            assert days(site_power(site)).mean() == pytest.approx(float(mean), abs=0.006)
            assert (monthly.min(), monthly.max()) == pytest.approx((float(worst), float(best)), abs=0.006)
            assert (worst_month, best_month) == (MONTHS[monthly.argmin()], MONTHS[monthly.argmax()])

    @every_site
    def test_is_the_chain_of_formulas_written_out(self, site):
        at = weather(site)
        sky, sun = (
            at.columns,
            pvlib.solarposition.get_solarposition(at.moments(0.5), at.latitude, at.longitude),
        )
        tilt, facing = np.radians(40.0), np.radians(200.0)
        zenith, azimuth = np.radians(sun["apparent_zenith"].to_numpy()), np.radians(sun["azimuth"].to_numpy())
        incidence = np.cos(zenith) * np.cos(tilt) + np.sin(zenith) * np.sin(tilt) * np.cos(azimuth - facing)
        light = (
            sky["dni"] * np.maximum(incidence, 0.0)
            + sky["dhi"] * (1.0 + np.cos(tilt)) / 2.0
            + sky["ghi"] * 0.25 * (1.0 - np.cos(tilt)) / 2.0
        )
        module = sky["temp_air"] + light * np.exp(-3.56 - 0.075 * sky["wind_speed"])
        cell = module + 3.0 * light / 1000.0
        expected = 0.9 * light / 1000.0 * (1.0 - 0.004 * (cell - 25.0))
        power = site_power(site, tilt_deg=40.0, azimuth_deg=200.0, losses=0.1).power_w
        shining = power > 0.0
        np.testing.assert_allclose(power[shining], expected[shining], rtol=1e-9)
        # What falls in hours of night is cut off: next to nothing.
        assert expected[~shining].sum() < 1e-4 * expected.sum()

    def test_a_panel_of_many_watts_in_rounds_keeps_the_year(self):
        power = site_power("greensboro")
        for round_s in (600.0, 3600.0, 5 * 3600.0, 86400.0):
            assert per_round(power, round_s).sum() == pytest.approx(power.power_w.sum() * 3600.0)

    def test_a_flat_panel_faces_everywhere(self):
        south, east = (site_power("greensboro", tilt_deg=0, azimuth_deg=a).power_w for a in (180, 90))
        np.testing.assert_allclose(south, east, rtol=1e-12)

    def test_an_eastern_panel_has_the_morning(self):
        east, west = (site_power("miami", azimuth_deg=a).power_w.reshape(365, 24) for a in (90, 270))
        assert east[:, :12].sum() > 1.3 * west[:, :12].sum()
        assert west[:, 13:].sum() > 1.3 * east[:, 13:].sum()

    def test_losses_take_their_share(self):
        whole, half = site_power("miami", losses=0.0), site_power("miami", losses=0.5)
        np.testing.assert_allclose(half.power_w, 0.5 * whole.power_w)
        assert site_power("miami", losses=1.0).power_w.sum() == 0.0


class TestNight:
    @every_site
    def test_is_exactly_dark(self, site):
        highest = np.max([elevation(site, moment) for moment in np.linspace(0.0, 1.0, 5)], axis=0)
        power = site_power(site).power_w
        night = highest < -1.0
        assert night.sum() > 3500
        assert np.all(power[night] == 0.0)
        assert np.all(power[(elevation(site, 0.5) > 0.0) & (weather(site).columns["ghi"] > 0.0)] > 0.0)
        assert np.all(power >= 0.0)

    def test_is_dark_whatever_a_file_says_of_it(self):
        at = weather("sand-point")
        glow = {name: np.maximum(at.columns[name], 5.0) for name in ("ghi", "dhi")}
        power = power_of(replace(at, columns=at.columns | glow), 30.0, 180.0, 0.14).power_w
        night = np.max([elevation("sand-point", moment) for moment in (0.0, 0.5, 1.0)], axis=0) < -1.0
        assert np.all(power[night] == 0.0)

    def test_lasts_all_winter_in_the_far_north(self):
        monthly = months(site_power(latitude=78.2, longitude=15.6))
        assert monthly[[0, 11]].tolist() == [0.0, 0.0]
        assert monthly[5] > 5.0


class TestClearSky:
    def test_bounds_a_typical_year(self):
        clear = months(site_power(latitude=25.8, longitude=-80.27))
        assert np.all(clear > months(site_power("miami")))
        assert clear.mean() < 1.4 * months(site_power("miami")).mean()

    def test_has_its_noon_at_noon_and_its_summer_in_january_down_south(self):
        power = site_power(latitude=-33.9, longitude=18.4, azimuth_deg=0.0)
        assert months(power).argmax() in (11, 0, 1)
        assert power.power_w.reshape(365, 24).mean(axis=0).argmax() in (11, 12)

    @pytest.mark.parametrize("place", [(90, 0), (-90, 180), (0, -180), (0, 180)])
    def test_covers_the_globe(self, place):
        power = site_power(latitude=place[0], longitude=place[1], tilt_deg=0.0).power_w
        assert np.all(np.isfinite(power))
        assert 2.0 < power.sum() / 365 < 7.0


def write_tmy3(path):
    path.write_bytes((Path(pvlib.__file__).parent / "data" / SITES["sand-point"].file).read_bytes())


def write_epw(path, change=lambda columns: columns):
    at = weather("sand-point")
    columns = change({name: column.copy() for name, column in at.columns.items()})
    head = [f"LOCATION,Sand Point,AK,USA,TMY3,703165,{at.latitude},{at.longitude},{at.utc_h},7.0", *["-"] * 7]
    body = []
    for hour in range(len(columns["ghi"])):
        row = ["0"] * 35
        month = int(np.searchsorted(DAYS_BEFORE_MONTH, hour // 24, side="right"))
        row[0:5] = ["1999", str(month), str(hour // 24 - DAYS_BEFORE_MONTH[month - 1] + 1), str(hour % 24 + 1), "0"]
        for place, name in ((6, "temp_air"), (13, "ghi"), (14, "dni"), (15, "dhi"), (21, "wind_speed")):
            row[place] = repr(float(columns[name][hour]))
        body.append(",".join(row))
    path.write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")


def write_pvgis(path, offset="0.5"):
    """The typical year of Sand Point as PVGIS would tell it: hours in UTC, 9 behind of local time."""
    at = weather("sand-point")
    utc = {name: np.roll(column, 9) for name, column in at.columns.items()}
    lines = [f"Latitude (decimal degrees): {at.latitude}", f"Longitude (decimal degrees): {at.longitude}"]
    lines += ["Elevation (m): 7.0", *([f"Irradiance Time Offset (h): {offset}"] if offset else []), "month,year"]
    lines += [f"{month},1999" for month in range(1, 13)]
    lines.append("time(UTC),T2m,RH,G(h),Gb(n),Gd(h),IR(h),WS10m,WD10m,SP")
    for hour in range(8760):
        month = int(np.searchsorted(DAYS_BEFORE_MONTH, hour // 24, side="right"))
        when = f"1999{month:02}{hour // 24 - DAYS_BEFORE_MONTH[month - 1] + 1:02}:{hour % 24:02}00"
        t, g, b, d, w = (float(utc[name][hour]) for name in ("temp_air", "ghi", "dni", "dhi", "wind_speed"))
        lines.append(f"{when},{t!r},80.0,{g!r},{b!r},{d!r},250.0,{w!r},0.0,99000.0")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class TestFiles:
    @pytest.mark.parametrize(("name", "write"), [("mine.csv", write_tmy3), ("mine.epw", write_epw)])
    def test_give_what_the_bundled_site_gives(self, tmp_path, name, write):
        write(tmp_path / name)
        np.testing.assert_array_equal(site_power(path=tmp_path / name).power_w, site_power("sand-point").power_w)

    def test_of_pvgis_are_turned_from_utc_to_the_time_of_the_longitude(self, tmp_path):
        write_pvgis(tmp_path / "mine.csv")
        # 160.5 degrees west are 11 hours behind UTC; the law of Alaska says 9.
        expected = np.roll(site_power("sand-point").power_w, -2)
        found = site_power(path=str(tmp_path / "mine.csv")).power_w
        np.testing.assert_allclose(found[:-24], expected[:-24], rtol=1e-9, atol=1e-12)

    def test_of_pvgis_are_of_the_full_hour_unless_they_say_otherwise(self, tmp_path):
        write_pvgis(tmp_path / "mine.csv", offset="")
        path = tmp_path / "mine.csv"
        assert read_weather(path, 0).sun_h == 0.0

    def test_are_read_again_when_they_change(self, tmp_path):
        path = tmp_path / "mine.csv"
        write_tmy3(path)
        before = site_power(path=path)
        assert site_power(path=path) is before
        write_pvgis(path)
        assert site_power(path=path) is not before

    def test_are_refused_with_a_reason(self, tmp_path):
        refused(lambda: site_power(path=tmp_path / "no.epw"), "no weather file at", "no.epw")
        (tmp_path / "a.nc").write_text("")
        refused(lambda: site_power(path=tmp_path / "a.nc"), ".csv (TMY3, PVGIS), .tm2 and .epw", "a.nc")
        for name, text, kind in (
            ("a.csv", "time,power_w\n0,1\n", "TMY3"),
            ("b.csv", "Latitude (decimal degrees): 45\nLongitude (decimal degrees): 8\n", "PVGIS"),
            ("a.epw", "hello\n", "EPW"),
            ("a.tm2", "hello\n", "TMY2"),
            ("empty.csv", "", "TMY3"),
        ):
            (tmp_path / name).write_text(text)
            refused(lambda name=name: site_power(path=tmp_path / name), name, f"typical year in the {kind} format")

    def test_with_missing_hours_are_refused(self, tmp_path):
        def missing(columns):
            columns["dni"][41] = 9999.0
            return columns

        write_epw(tmp_path / "a.epw", missing)
        refused(lambda: site_power(path=tmp_path / "a.epw"), "a.epw: dni is 9999 in hour 42, outside 0 to 1500")
        write_epw(tmp_path / "b.epw", lambda columns: {name: column[:8000] for name, column in columns.items()})
        refused(lambda: site_power(path=tmp_path / "b.epw"), "b.epw has 8000 hours; a typical year has 8760")


class TestSitePower:
    @every_site
    def test_is_a_year_of_hours_computed_once(self, site):
        power = site_power(site)
        assert (len(power.power_w), power.step_s, power.duration_s) == (8760, 3600.0, 365 * 86400.0)
        assert power.seconds[:2].tolist() == [0.0, 3600.0]
        assert site_power(site) is power
        with pytest.raises(ValueError, match="read-only"):
            power.power_w[0] = 1.0

    @every_site
    def test_ships_the_weather_it_names(self, site):
        at = weather(site)
        assert isinstance(at, Weather)
        assert set(at.columns) == set(PLAUSIBLE)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"site": "miamy"}, ["unknown site 'miamy'", "Did you mean 'miami'?", "sand-point"]),
            ({"site": 3}, ["site is 3", "greensboro"]),
            ({}, ["give one of site, path, or latitude with longitude"]),
            ({"site": "miami", "path": "a.csv"}, ["give one of"]),
            ({"site": "miami", "latitude": 3.0}, ["give one of"]),
            ({"latitude": 3.0}, ["longitude is None", "-180 to 180"]),
            ({"longitude": 3.0}, ["latitude is None", "-90 to 90"]),
            ({"latitude": 91, "longitude": 0}, ["latitude is 91", "-90 to 90"]),
            ({"latitude": 0, "longitude": 200}, ["longitude is 200", "-180 to 180"]),
            ({"site": "miami", "tilt_deg": 91.0}, ["tilt_deg is 91.0", "0 to 90"]),
            ({"site": "miami", "tilt_deg": float("nan")}, ["tilt_deg is nan"]),
            ({"site": "miami", "azimuth_deg": -90}, ["azimuth_deg is -90", "0 to 360"]),
            ({"site": "miami", "azimuth_deg": "south"}, ["azimuth_deg is 'south'"]),
            ({"site": "miami", "losses": 14}, ["losses is 14", "0 to 1"]),
            ({"site": "miami", "losses": True}, ["losses is True"]),
        ],
    )
    def test_refuses_bad_input_and_says_which(self, arguments, said):
        refused(lambda: site_power(**arguments), *said)

    @pytest.mark.parametrize("weather_of", [{"site": "miami"}, {"latitude": 1.0, "longitude": 1.0}, {"path": DOCS}])
    def test_names_the_extra_that_is_missing(self, monkeypatch, weather_of):
        monkeypatch.setitem(sys.modules, "pvlib", None)
        refused(lambda: site_power(**weather_of), "everfed[solar]", kind=MissingExtraError)


class TestFromDay:
    @pytest.mark.parametrize(("day", "number"), [("01-01", 0), ("02-28", 58), ("03-01", 59), ("12-31", 364)])
    def test_turns_the_year(self, day, number):
        power = site_power("greensboro")
        turned = from_day(power, day)
        np.testing.assert_array_equal(days(turned), np.roll(days(power), -number))
        assert turned.seconds[0] == 0.0

    @pytest.mark.parametrize("day", ["02-29", "13-01", "00-10", "6-1", "06-31", "06-00", "2026-06-01", "June", "", 601])
    def test_refuses_other_days(self, day):
        refused(lambda: from_day(site_power("greensboro"), day), f"the day is {day!r}", "MM-DD", "no 02-29")

    def test_refuses_what_is_not_a_year(self):
        refused(lambda: from_day(Series(np.zeros(2), np.zeros(2), 60.0), "06-01"), "365 days", "120 s")

    def test_refuses_steps_across_midnight(self):
        week = Series(np.zeros(73), np.zeros(73), 5 * 86400.0)
        assert len(from_day(week, "01-06").power_w) == 73
        refused(lambda: from_day(week, "01-07"), "no step of 432000 s starts with the day 01-07")
