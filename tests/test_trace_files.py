"""Files from elsewhere: what loggers and spreadsheets write is read as it was meant, or refused with what to give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everfed.energy.trace import read_trace
from everfed.errors import InputError

# 2026-06-01T00:00:00Z
EPOCH = 1_780_272_000
ISO = ("2026-06-01T00:00:00", "2026-06-01T00:15:00", "2026-06-01T00:30:00")


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="trace.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write_file


def two(times, when="timestamp"):
    return "\n".join([f"{when},power_w", *(f"{time},{value}" for value, time in enumerate(times, 1))]) + "\n"


class TestTimes:
    @pytest.mark.parametrize(
        ("times", "start", "zoned"),
        [
            ([EPOCH + 900 * i for i in range(3)], EPOCH, True),
            ([(EPOCH + 900 * i) * 1000 for i in range(3)], EPOCH, True),
            ([(EPOCH + 900 * i) * 10**6 for i in range(3)], EPOCH, True),
            ([(EPOCH + 900 * i) * 10**9 for i in range(3)], EPOCH, True),
            ([f"{EPOCH + 900 * i}.5" for i in range(3)], EPOCH + 0.5, True),
            (ISO, EPOCH, False),
            ([t + "Z" for t in ISO], EPOCH, True),
            ([t + "+05:30" for t in ISO], EPOCH - 19_800, True),
            ([t + "+0200" for t in ISO], EPOCH - 7200, True),
            ([t.replace("T", " ") + " UTC" for t in ISO], EPOCH, True),
            (["2026/06/01 00:00", "2026/06/01 00:15", "2026/06/01 00:30"], EPOCH, False),
            (["2026/6/1 00:00", "2026/6/1 00:15", "2026/6/1 00:30"], EPOCH, False),
            (["20260601T0000", "20260601T0015", "20260601T0030"], EPOCH, False),
            (["20260601T000000Z", "20260601T001500Z", "20260601T003000Z"], EPOCH, True),
            (["202606010000", "202606010015", "202606010030"], EPOCH, False),
            (["20260601000000", "20260601001500", "20260601003000"], EPOCH, False),
        ],
    )
    def test_are_read_as_they_were_meant(self, write, times, start, zoned):
        found = read_trace(write(two(times)))
        assert found.step_s == pytest.approx(900.0)
        assert found.start_s == pytest.approx(start)
        assert found.utc_h == (0.0 if zoned else None)

    def test_days_are_days(self, write):
        found = read_trace(write(two(["20260531", "20260601", "20260602"])))
        assert (found.step_s, found.start_s) == (86_400.0, EPOCH - 86_400)

    @pytest.mark.parametrize(
        ("when", "times", "step"),
        [
            ("seconds", [0, 900, 1800], 900.0),
            ("time_s", [5, 905, 1805], 900.0),
            ("time_ms", [0, 60_000, 120_000], 60.0),
            ("Time [ms]", [0, 60_000, 120_000], 60.0),
            ("time (min)", [0, 15, 30], 900.0),
            ("time_h", [0, 0.25, 0.5], 900.0),
        ],
    )
    def test_the_name_of_the_column_gives_the_unit(self, write, when, times, step):
        found = read_trace(write(two(times, when)))
        assert (found.step_s, found.start_s) == (pytest.approx(step), None)

    @pytest.mark.parametrize(
        ("time_unit", "times", "step", "start"),
        [
            ("s", [0, 900, 1800], 900.0, None),
            ("ms", [0, 900, 1800], 0.9, None),
            ("ms", [EPOCH * 1000 + 500 * i for i in range(3)], 0.5, EPOCH),
            ("excel", ["46174", "46174.01041667", "46174.02083333"], 900.0, EPOCH),
            ("s", [20_260_601, 20_260_602, 20_260_603], 1.0, None),  # whoever says so has a long counter
        ],
    )
    def test_or_a_key_does(self, write, time_unit, times, step, start):
        found = read_trace(write(two(times, "time")), time_unit=time_unit)
        assert found.step_s == pytest.approx(step, rel=1e-5)
        assert found.start_s == (start if start is None else pytest.approx(start, abs=1.0))

    @pytest.mark.parametrize(
        ("times", "words"),
        [
            ([0, 1, 2], "a number in an unknown unit; set time_unit, one of s, ms, us"),
            ([46174, 46174.5, 46175], "time_unit"),  # Excel's days, or seconds
            ([2026060112, 2026060113, 2026060114], "time_unit"),  # an hour of 2026, or a second of 2034
            (["01/06/2026 00:00", "01/06/2026 00:15"], "may begin with the day or with the month"),
            (["13.06.2026", "14.06.2026"], "write it year first"),
            (["6/1/26 0:00", "6/1/26 0:15"], "year first"),
            (["Jun 1 2026", "Jun 2 2026"], "the time is Jun 1 2026; it must be a date as in"),
            (["20260601", "20260631"], "the time is 20260631; it must be a date written as 20260601"),
            (["20260601", "202606021200"], "as in the first row"),
            ([ISO[0], ISO[1] + "Z"], "has an offset from UTC but those before it have none"),
            ([ISO[0], ""], "the time is missing"),
            ([EPOCH, "nan"], "the time is nan; it must be a finite number"),
            ([EPOCH, EPOCH + 900, EPOCH + 900], "line 4: its time is the same as"),
            ([EPOCH, EPOCH - 900], "line 3: its time is not after"),
            ([EPOCH, EPOCH + 900, EPOCH + 2700], "a gap of 1800 s before it"),
        ],
    )
    def test_what_can_be_read_in_two_ways_is_refused(self, write, times, words):
        with pytest.raises(InputError, match=r"trace\.csv, line") as refusal:
            read_trace(write(two(times, "time")))
        assert words in str(refusal.value)

    def test_a_wrong_unit_is_noticed_where_it_makes_no_date(self, write):
        with pytest.raises(InputError, match="which is not a date in s"):
            read_trace(write(two([EPOCH * 1000, EPOCH * 1000 + 1])), time_unit="s")

    def test_summer_time_is_told_from_a_gap_and_from_disorder(self, write):
        spring = ["2026-03-29T00:00", "2026-03-29T01:00", "2026-03-29T03:00", "2026-03-29T04:00"]
        autumn = ["2026-10-25T01:00", "2026-10-25T02:00", "2026-10-25T02:00", "2026-10-25T03:00"]
        for times in (spring, autumn):
            with pytest.raises(InputError, match="summer time"):
                read_trace(write(two(times)))
        zone = ZoneInfo("Europe/Berlin")
        hours = [datetime(2026, 3, 28, 23, tzinfo=UTC) + timedelta(hours=h) for h in range(5)]
        found = read_trace(write(two([t.astimezone(zone).isoformat() for t in hours])))
        assert (found.step_s, found.start_s) == (3600.0, hours[0].timestamp())

    @pytest.mark.parametrize("when", ["Timestamp (UTC)", "time_utc", "date [GMT]"])
    def test_a_name_may_say_that_dates_are_utc(self, write, when):
        assert read_trace(write(two(ISO, when))).utc_h == 0.0

    def test_the_zone_of_a_clock_is_given_once(self, write):
        naive, zoned, plain = (
            write(two(ISO)),
            write(two([t + "Z" for t in ISO]), "z.csv"),
            write(two([0, 1], "seconds"), "p.csv"),
        )
        found = read_trace(naive, utc_h=-5.0)
        assert (found.start_s, found.utc_h) == (EPOCH, -5.0)
        for path, why in ((zoned, "states the UTC offset of its times"), (plain, "has no dates")):
            with pytest.raises(InputError, match=why):
                read_trace(path, utc_h=-5.0)


class TestParquet:
    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    @pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
    def test_timestamps_are_instants_where_they_have_a_zone(self, tmp_path, unit, zone):
        # Over the change to summer time in New York.
        instants = [datetime(2026, 3, 8, 5, tzinfo=UTC) + timedelta(hours=h) for h in range(4)]
        times = instants if zone else [t.replace(tzinfo=None) for t in instants]
        pq.write_table(
            pa.table({"time": pa.array(times, pa.timestamp(unit, zone)), "power_w": [1.0, 2.0, 3.0, 4.0]}),
            tmp_path / "t.parquet",
        )
        found = read_trace(tmp_path / "t.parquet")
        assert (found.step_s, found.start_s) == (3600.0, instants[0].timestamp())
        assert found.utc_h == (0.0 if zone else None)

    def test_numbers_follow_the_same_rules(self, tmp_path):
        def table(**columns):
            pq.write_table(pa.table(columns), tmp_path / "t.parquet")
            return tmp_path / "t.parquet"

        assert read_trace(table(time=[EPOCH * 10**9, EPOCH * 10**9 + 10**6], power_w=[1, 2])).step_s == pytest.approx(
            1e-3
        )
        assert read_trace(table(time=[20260601, 20260602], power_w=[1, 2])).step_s == 86_400.0
        with pytest.raises(InputError, match="row 1: the time is 0, a number in an unknown unit"):
            read_trace(table(time=[0, 1], power_w=[1, 2]))


class TestColumns:
    @pytest.mark.parametrize(
        ("header", "watts"),
        [
            ("power_w", 5.0), ("power_mw", 0.005), ("P [mW]", 0.005), ("Power (W)", 5.0), ("P_kW", 5000.0),
            ("P (µW)", 5e-6), ("energy_j", 5.0), ("E [mJ]", 0.005), ("yield (Wh)", 18_000.0), ("out_mwh", 18.0),
        ],
    )  # fmt: skip
    def test_the_header_gives_the_unit(self, write, header, watts):
        path = write(f"seconds,{header}\n0,5\n1,5\n")
        assert read_trace(path).power_w.tolist() == pytest.approx([watts] * 2)

    @pytest.mark.parametrize("header", ["power", "P [MW]", "P_MW", "Leistung", "current_a"])
    def test_a_header_without_one_needs_the_key(self, write, header):
        path = write(f"seconds,{header}\n0,5\n1,5\n")
        with pytest.raises(InputError, match="unit"):
            read_trace(path)
        with pytest.raises(InputError, match="contains no unit; set unit to one of W, mW"):
            read_trace(path, header)
        assert read_trace(path, header, unit="mW").power_w.tolist() == [0.005, 0.005]

    def test_many_columns_need_the_key(self, write):
        path = write("date,time,roof_w,wall_w,temp\n2026-06-01,0,1,2,20\n2026-06-02,1,1,2,20\n")
        with pytest.raises(InputError, match=r"several possible columns, date, time; choose one with time_column"):
            read_trace(path)
        with pytest.raises(InputError, match=r"several possible columns, roof_w, wall_w; choose one with column"):
            read_trace(path, time_column="date")
        assert read_trace(path, "wall_w", time_column="date").power_w.tolist() == [2.0, 2.0]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"unit": "mW"}, "'power_w' is in W by its name, but unit is mW"),
            ({"unit": "HP"}, "unknown unit 'HP'"),
            ({"time_unit": "ms"}, "'seconds' is in s by its name, but time_unit is ms"),
            ({"time_unit": "weeks"}, "unknown time_unit 'weeks'"),
            ({"time_column": "tim"}, "unknown time_column 'tim'"),
            ({"column": "power_v"}, "Did you mean 'power_w'"),
        ],
    )
    def test_keys_that_contradict_the_file_are_refused(self, write, options, words):
        with pytest.raises(InputError, match=words):
            read_trace(write("seconds,power_w\n0,1\n1,1\n"), **options)

    def test_two_columns_of_one_name_are_refused(self, write):
        with pytest.raises(InputError, match="has 2 columns 'power_w'"):
            read_trace(write("seconds,power_w,power_w\n0,1,2\n1,1,2\n"))


class TestSpreadsheets:
    @pytest.mark.parametrize(
        "text",
        [
            "seconds;power_w\n0;0,25\n10;1,5\n",
            "\ufeffseconds;power_w\r\n0;0,25\r\n10;1,5\r\n",
            "seconds\tpower_w\n0\t0.25\n10\t1.5\n",
            "# logger 7\n# zone: none\n\nseconds,power_w\n0,0.25\n# restarted\n10,1.5\n",
            'note,seconds,power_w\n"a, b",0,0.25\n,10,1.5\n',
            "seconds , power_w\n 0 , 0.25\n10, 1.5 \n,\n",
        ],
        ids=["decimal commas", "as Excel writes it", "tabs", "comments", "quotes", "blanks"],
    )
    def test_are_read(self, write, text):
        assert read_trace(write(text)).power_w.tolist() == [0.25, 1.5]

    @pytest.mark.parametrize("values", [("1,234", "5,678"), ("1.5", "0,5"), ("1.234,5", "1,0")])
    def test_a_comma_for_decimals_or_thousands_is_refused(self, write, values):
        with pytest.raises(InputError, match="may be a decimal or a thousands separator"):
            read_trace(write("seconds;power_w\n0;{}\n1;{}\n".format(*values)))

    def test_in_times_too(self, write):
        found = read_trace(write("seconds;power_w\n0,5;0,25\n1;1,5\n"))
        assert (found.step_s, found.power_w.tolist()) == (0.5, [0.25, 1.5])
        with pytest.raises(InputError, match="the time is 1,000, whose comma may be a decimal"):
            read_trace(write("seconds;power_w\n1,000;0,25\n2,000;1,5\n"))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("seconds,power_w\n0,1\n", "has 1 rows of data; a trace needs at least two"),
            (
                "seconds,power_w\n0,1\n1,-0.5\n",
                "line 3: power_w is -0.5; power and energy must be finite and not negative",
            ),
            ("seconds,power_w\n0,1\n1,NaN\n", "line 3: power_w is NaN"),
            ("seconds,power_w\n0,1\n1,\n", "line 3: power_w is missing"),
            ("seconds,power_w\n0,1\n1,1,5\n", "line 3: 3 fields, but 2 columns"),
            ("# only a comment\n", "no header line"),
        ],
    )
    def test_what_is_no_supply_is_refused(self, write, text, words):
        with pytest.raises(InputError, match=words):
            read_trace(write(text))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("time [UTC+2],power_w\n2026-06-01T12:00:00,1\n2026-06-01T13:00:00,2\n", "has a UTC offset in its name"),
            ("timestamp,power_w\n2026-06-01T12:00:00,1_0\n2026-06-01T13:00:00,2\n", "1_0"),
            ("epoch_ms,power_w\n1780315200,1\n1780318800,2\n", "not a date in ms"),
            ("epoch_s,power_w\n0,1\n3600,2\n", "not a date in s"),
        ],
    )
    def test_nothing_is_dropped_or_guessed(self, write, text, words):
        with pytest.raises(InputError, match=words):
            read_trace(write(text))

    def test_utf_16_is_refused_in_words(self, write):
        with pytest.raises(InputError, match="cannot be read as CSV"):
            read_trace(write("seconds,power_w\n0,1\n1,1\n", encoding="utf-16"))


class TestContent:
    def test_a_changed_file_is_read_again_even_at_the_same_time_and_size(self, write):
        import os

        path = write("seconds,power_w\n0,1\n1,1\n")
        before = path.stat()
        assert read_trace(path).power_w.tolist() == [1.0, 1.0]
        write("seconds,power_w\n0,2\n1,2\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert read_trace(path).power_w.tolist() == [2.0, 2.0]

    def test_or_refused_where_its_content_was_named(self, write):
        path = write("seconds,power_w\n0,1\n1,1\n")
        with pytest.raises(
            InputError, match=r"has changed: its SHA-256 is [0-9a-f]{12}\.\.\., and it was 000000000000"
        ):
            read_trace(path, sha256="0" * 64)

    def test_times_may_carry_any_offset(self, write):
        times = [datetime(2026, 6, 1, 9, 30, tzinfo=timezone(timedelta(hours=h))) for h in (9.5, 8.5, 7.5)]
        found = read_trace(write(two([t.isoformat() for t in times])))
        assert (found.step_s, found.start_s) == (3600.0, EPOCH)
