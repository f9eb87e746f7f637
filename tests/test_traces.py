"""Energy that follows a curve: no joule is lost between a file, its rounds and the clients."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from drawing import drawn
from everfed.energy.profile import LONGEST_CYCLE, Profile
from everfed.energy.trace import Series, per_round, read_trace
from everfed.errors import InputError

deterministic = drawn(60)

POWERS = st.lists(st.sampled_from([0.0, 0.25, 3.0, 1e3]) | st.floats(0.0, 50.0), min_size=2, max_size=20)
STEPS = st.sampled_from([0.1, 0.3, 1.0, 60.0, 900.0, 3600.0])


def series(power, step=60.0):
    return Series(np.arange(len(power)) * step, np.array(power, float), step)


def refused(call, *words):
    with pytest.raises(InputError) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value)


class TestPerRound:
    @deterministic
    @given(power=POWERS, step=STEPS, ratio=st.floats(0.03, 1.0) | st.floats(1.0, 20.0))
    def test_keeps_every_joule_of_the_rounds_kept(self, power, step, ratio):
        trace = series(power, step)
        if ratio > len(power):
            ratio = float(len(power))
        joules = per_round(trace, ratio * step)
        assert len(joules) == pytest.approx(len(power) / ratio, abs=1.0)
        assert len(joules) <= len(power) / ratio * (1 + 1e-9)
        until = np.arange(len(power) + 1) * step
        total = np.interp(np.arange(len(joules) + 1) * ratio * step, until, np.append(0.0, np.cumsum(power) * step))
        np.testing.assert_allclose(np.cumsum(joules), total[1:], rtol=1e-9, atol=1e-9 * total[-1])
        assert np.all(joules >= 0.0)

    @deterministic
    @given(power=POWERS, step=STEPS, parts=st.integers(1, 7))
    def test_parts_of_a_step_are_parts_of_its_energy(self, power, step, parts):
        joules = per_round(series(power, step), step / parts)
        np.testing.assert_allclose(joules, np.repeat(power, parts) * step / parts, rtol=1e-7)
        # Not a sliver of the day in the night.
        assert np.all((joules == 0.0) == (np.repeat(power, parts) == 0.0))

    @deterministic
    @given(power=POWERS, step=STEPS, steps=st.integers(1, 20))
    def test_a_long_round_is_the_sum_of_its_steps(self, power, step, steps):
        steps = min(steps, len(power))
        rounds = len(power) // steps
        expected = np.reshape(power[: rounds * steps], (rounds, steps)).sum(axis=1) * step
        np.testing.assert_allclose(per_round(series(power, step), steps * step), expected, rtol=1e-9)

    def test_by_hand(self):
        joules = per_round(series([6.0, 0.0, 1.0], step=10.0), 8.0)
        assert joules.tolist() == [48.0, 12.0, 4.0]  # the last 6 s fill no round

    def test_a_year_of_minutes_is_quick(self):
        assert per_round(series(np.ones(8760), 3600.0), 60.0).sum() == pytest.approx(8760 * 3600.0)

    @pytest.mark.parametrize("round_s", [0, -1.0, math.nan, math.inf, "an hour", True, None])
    def test_refuses_a_round_of_no_length(self, round_s):
        refused(lambda: per_round(series([1, 1]), round_s), f"round_s is {round_s!r}", "a positive number")

    def test_refuses_a_round_longer_than_the_trace(self):
        refused(lambda: per_round(series([1, 1]), 121.0), "121 s", "longer than the whole trace of 120 s")

    def test_refuses_more_rounds_than_memory_holds(self):
        refused(lambda: per_round(series([1, 1]), 1e-9), "rounds of 1e-09 s", "at most 50000000")


ISO = ["2026-03-01T00:00:00", "2026-03-01T00:15:00", "2026-03-01T00:30:00"]


@pytest.fixture
def write(tmp_path):
    def write_csv(text):
        path = tmp_path / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write_csv


@pytest.fixture
def parquet(tmp_path):
    def write_parquet(**columns):
        path = tmp_path / "trace.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write_parquet


def rows(times, values, name="power_w", when="timestamp"):
    return "\n".join([f"{when},{name}", *(f"{t},{v}" for t, v in zip(times, values, strict=True))]) + "\n"


class TestReadTrace:
    @pytest.mark.parametrize(
        "times",
        [
            ISO,
            [t + "Z" for t in ISO],
            [t + "+05:30" for t in ISO],
            ["2026-03-01T00:00+01:00", "2026-02-28T23:15Z", "2026-03-01 00:30:00+01:00"],
            [1.5e9, 1.5e9 + 900, 1.5e9 + 1800],
        ],
        ids=["local", "UTC", "offset", "mixed offsets", "Unix time"],
    )
    def test_reads_csv(self, write, times):
        trace = read_trace(write(rows(times, [0, 1.5, "2e-1"])))
        assert trace.seconds.tolist() == [0.0, 900.0, 1800.0]
        assert trace.power_w.tolist() == [0.0, 1.5, 0.2]
        assert (trace.step_s, trace.duration_s) == (900.0, 2700.0)

    @pytest.mark.parametrize(
        "times",
        [
            [datetime.fromisoformat(t) for t in ISO],
            [datetime.fromisoformat(t).replace(tzinfo=UTC) for t in ISO],
            ISO,
        ],
        ids=["dates", "dates in UTC", "text"],
    )
    def test_reads_parquet(self, parquet, times):
        trace = read_trace(parquet(time=times, power_w=[0.0, 1.5, 0.2]))
        assert trace.power_w.tolist() == [0.0, 1.5, 0.2]
        assert trace.step_s == 900.0

    def test_reads_days(self, parquet):
        trace = read_trace(parquet(time=[date(2026, 3, 1), date(2026, 3, 2)], energy_j=[86400, 0]))
        assert (trace.power_w.tolist(), trace.step_s) == ([1.0, 0.0], 86400.0)

    def test_energy_is_that_of_the_step_that_starts_there(self, write):
        trace = read_trace(write(rows(ISO, [900, 0, 450], name="energy_j")))
        assert trace.power_w.tolist() == [1.0, 0.0, 0.5]
        assert per_round(trace, 2700.0).tolist() == [1350.0]

    def test_reads_the_column_it_is_told(self, write):
        path = write("seconds,power_w,wind_w,wind_j\n0,1,2,20\n10,1,4,40\n")
        refused(lambda: read_trace(path), "several possible columns", "power_w, wind_w, wind_j", "column")
        assert read_trace(path, "power_w").power_w.tolist() == [1.0, 1.0]
        assert read_trace(path, "wind_w").power_w.tolist() == [2.0, 4.0]
        assert read_trace(path, "wind_j").power_w.tolist() == [2.0, 4.0]

    def test_takes_what_spreadsheets_write(self, write):
        path = write('\ufeffnote, timestamp ,power_w\r\n\r\n"a, b",2026-03-01, 1\r\n,2026-03-02,2 \r\n\r\n')
        assert read_trace(path).power_w.tolist() == [1.0, 2.0]

    def test_takes_a_clock_that_jitters(self, write):
        trace = read_trace(write(rows([0.0, 1.004, 1.998, 3.0], [1, 1, 1, 1], when="seconds")))
        assert trace.step_s == 1.0
        assert trace.seconds.tolist() == [0.0, 1.0, 2.0, 3.0]

    def test_reads_a_month_of_minutes(self, write):
        start = datetime(2026, 3, 1)
        times = [(start + timedelta(minutes=m)).isoformat() for m in range(30 * 1440)]
        assert read_trace(write(rows(times, np.arange(30 * 1440)))).duration_s == 30 * 86400.0

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            pytest.param("", ["no header line"], id="empty"),
            pytest.param("power_w\n1\n", ["no column of times", "it has power_w"], id="no times"),
            pytest.param(
                "seconds,power\n0,1\n", ["no column whose name", "it has seconds, power", "unit"], id="no unit"
            ),
            pytest.param("seconds,xyz\n0,1\n", ["it has seconds, xyz. Name it with column"], id="no values"),
            pytest.param(
                "seconds,power_w,energy_j\n0,1,1\n", ["several possible columns", "power_w, energy_j"], id="two values"
            ),
            pytest.param("seconds,power_w\n", ["has 0 rows", "needs at least two"], id="no rows"),
            pytest.param("seconds,power_w\n0,1\n", ["has 1 rows", "needs at least two"], id="one row"),
            pytest.param("seconds,power_w\n0,1\n1\n", ["line 3: 1 fields, but 2 columns"], id="short row"),
            pytest.param(rows(ISO, [1, -2, 3]), ["line 3: power_w is -2", "not negative"], id="negative"),
            pytest.param(rows(ISO, [1, 2, "nan"]), ["line 4: power_w is nan"], id="nan"),
            pytest.param(rows(ISO, ["inf", 2, 1]), ["line 2: power_w is inf"], id="infinite"),
            pytest.param(rows(ISO, [1, "1,5", 1]), ["line 3: 3 fields"], id="decimal comma"),
            pytest.param(rows(ISO, [1, "", 1]), ["line 3: power_w is missing"], id="missing"),
            pytest.param("seconds,power_w\n0,1\n\n1,dark\n", ["line 4: power_w is dark"], id="a word after a blank"),
            pytest.param(
                rows([0, "noon"], [1, 1], when="seconds"),
                ["line 3: the time is noon", "finite number"],
                id="time a word",
            ),
            pytest.param(rows(["1 May", 0], [1, 1]), ["line 2: the time is 1 May", "2026-06-01T12"], id="time no date"),
            pytest.param(rows([0, "inf"], [1, 1], when="seconds"), ["line 3: the time is inf"], id="time infinite"),
            pytest.param(rows([ISO[0], ISO[1] + "Z"], [1, 1]), ["line 3", "offset from UTC"], id="time half UTC"),
            pytest.param(
                rows([0, 2, 1], [1, 1, 1], when="seconds"), ["line 4: its time is not after", "sort"], id="unsorted"
            ),
            pytest.param(rows([0, 1, 1], [1, 1, 1], when="seconds"), ["line 4: its time is the same as"], id="twice"),
            pytest.param(
                rows([0, 900, 3600, 4500], [1] * 4, when="seconds"),
                ["line 4: a gap of 2700 s before it", "900 s apart"],
                id="gap",
            ),
            pytest.param(
                rows([0, 900, 3600], [1] * 3, when="seconds"), ["line 4: a gap of 2700 s"], id="gap in a short trace"
            ),
            pytest.param(
                rows([0, 9, 18, 22], [1] * 4, when="seconds"), ["line 5: only 4 s after", "9 s apart"], id="too early"
            ),
        ],
    )
    def test_refuses_bad_files_and_says_where(self, write, text, said):
        path = write(text)
        refused(lambda: read_trace(path), str(path), *said)

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ({"seconds": [0, 1], "power_w": [1.0, -1.0]}, ["row 2: power_w is -1.0"]),
            ({"seconds": [0, 1], "power_w": [1.0, None]}, ["row 2: power_w is missing"]),
            ({"seconds": [0, 1], "power_w": [True, False]}, ["row 1: power_w is True"]),
            ({"seconds": [0, None], "power_w": [1.0, 1.0]}, ["row 2: the time is missing"]),
            ({"seconds": [0, 1, 5], "power_w": [1, 1, 1]}, ["row 3: a gap of 4 s"]),
            ({"power_w": [1, 1, 1]}, ["no column of times"]),
        ],
        ids=["negative", "missing", "truth", "no time", "gap", "no times"],
    )
    def test_refuses_bad_parquet_and_says_where(self, parquet, columns, said):
        refused(lambda: read_trace(parquet(**columns)), "trace.parquet", *said)

    def test_refuses_a_column_that_is_not_there(self, write):
        path = write("time,power_w\n0,1\n1,1\n")
        refused(lambda: read_trace(path, "power"), "unknown column 'power'", "Did you mean 'power_w'?")

    def test_refuses_files_it_cannot_read(self, tmp_path):
        refused(lambda: read_trace(tmp_path / "a.csv"), "there is no trace at", "a.csv")
        refused(lambda: read_trace(tmp_path / "a.xlsx"), ".csv or a .parquet", "a.xlsx")
        (tmp_path / "b.csv").write_bytes(b"time,power_w\n0,\xff\n")
        refused(lambda: read_trace(tmp_path / "b.csv"), "cannot be read as CSV")
        (tmp_path / "b.parquet").write_text("time,power_w\n")
        refused(lambda: read_trace(tmp_path / "b.parquet"), "cannot be read as Parquet")


CLIENTS = st.lists(st.tuples(st.integers(0, 2), st.floats(0.01, 5.0), st.integers(0, 12)), min_size=1, max_size=6)
TABLES = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 2.0]), min_size=7, max_size=7).filter(any), min_size=3, max_size=3
)
SEEDS = st.integers(0, 2**64 - 1)


def build(table, clients, repeats=True):
    site, gain, offsets = (np.array(column) for column in zip(*clients, strict=True))
    return Profile(np.array(table), site, gain, offsets, repeats)


def harvests(profile, rounds, seed=0):
    return np.array([profile.harvest(r, seed) for r in rounds])


class TestProfile:
    @deterministic
    @given(table=TABLES, clients=CLIENTS, seed=SEEDS, repeats=st.booleans())
    def test_is_the_table_times_the_gain_from_the_start_on(self, table, clients, seed, repeats):
        amounts = harvests(build(table, clients, repeats), range(30), seed)
        assert amounts.dtype == np.float64
        for client, (site, gain, offset) in enumerate(clients):
            for r in range(30):
                given_out = r >= offset and (repeats or r < 7)
                assert amounts[r, client] == (table[site][r % 7] * gain if given_out else 0.0)

    @deterministic
    @given(table=TABLES, clients=CLIENTS, seed=SEEDS, repeats=st.booleans(), rounds=st.integers(1, 20))
    def test_is_pure_and_its_first_rounds_stay(self, table, clients, seed, repeats, rounds):
        one, other = build(table, clients, repeats), build(table, clients, repeats)
        forward = harvests(one, range(2 * rounds), seed)
        assert np.all((forward >= 0.0) & np.isfinite(forward))
        np.testing.assert_array_equal(harvests(other, range(rounds), seed), forward[:rounds])
        np.testing.assert_array_equal(harvests(one, reversed(range(2 * rounds)), seed)[::-1], forward)
        one.harvest(0, seed)[:] = 9.0  # what it hands out is the caller's
        np.testing.assert_array_equal(one.harvest(0, seed), forward[0])

    @deterministic
    @given(table=TABLES, clients=CLIENTS, seed=SEEDS)
    def test_a_fleet_is_its_clients_one_by_one(self, table, clients, seed):
        together = build(table, clients)
        alone = [build(table, [client]) for client in clients]
        expected = np.transpose([harvests(p, range(20), seed)[:, 0] for p in alone])
        np.testing.assert_array_equal(harvests(together, range(20), seed), expected)
        assert together.cycles.tolist() == [int(p.cycles[0]) for p in alone]

    @deterministic
    @given(table=TABLES, clients=CLIENTS)
    def test_a_cycle_gathers_a_unit_on_average(self, table, clients):
        profile = build(table, clients)
        mean = np.mean(table, axis=1)[profile.site] * profile.gain
        assert profile.cycles.dtype == np.int64
        assert np.all(profile.cycles >= 1)
        assert np.all(profile.cycles * mean >= 1.0 - 1e-9)
        assert np.all((profile.cycles == 1) | ((profile.cycles - 1) * mean < 1.0))

    def test_ten_tenths_are_a_unit(self):
        for parts in range(1, 200):
            table = np.full((1, 1000), 1.0 / parts)
            assert build(table, [(0, 1.0, 0)]).cycles.tolist() == [parts]

    def test_the_longest_cycle_is_as_long_as_a_fleet_takes(self):
        assert build([[1.0]], [(0, 1e-12, 0), (0, 5e-324, 0)]).cycles.tolist() == [LONGEST_CYCLE] * 2

    def test_states_what_it_knows(self):
        profile = build([[1.0, 0.0]], [(0, 1.0, 0), (0, 0.1, 3)])
        assert not profile.regular
        assert profile.window_capacity.tolist() == [1.0, 1.0]
        assert profile.chance(0) is None
        assert profile.offsets.tolist() == [0, 3]

    def test_seeds_side_by_side_share_one_sky(self):
        profile = build([[1.0, 2.0]], [(0, 1.0, 0), (0, 0.5, 1)])
        assert profile.harvest(1, np.arange(4, dtype=np.uint64)[:, None]).tolist() == [2.0, 1.0]

    @pytest.mark.parametrize(
        ("table", "clients", "said"),
        [
            ([1.0], [(0, 1.0, 0)], ["one row of rounds per site", "rows of ()"]),
            ([[]], [(0, 1.0, 0)], ["one row of rounds per site", "rows of (0,)"]),
            ([[1.0], [-1.0]], [(0, 1.0, 0)], ["energy of site 1", ">= 0"]),
            ([[math.nan]], [(0, 1.0, 0)], ["energy of site 0"]),
            ([[1.0]], [(0, 1.0, 0), (1, 1.0, 0)], ["site of client 1", "0 to 0"]),
            ([[1.0]], [(-1, 1.0, 0)], ["site of client 0"]),
            ([[1.0]], [(0, 1.0, 0), (0, 0.0, 0)], ["gain of client 1", "above 0"]),
            ([[1.0]], [(0, math.inf, 0)], ["gain of client 0"]),
            ([[1.0]], [(0, 1.0, -1)], ["offset of client 0 is negative"]),
            ([[1.0], [0.0]], [(0, 1.0, 0), (1, 1.0, 0), (1, 2.0, 0)], ["client 1, 2 harvests nothing"]),
        ],
        ids=["flat", "no rounds", "negative", "nan", "site high", "site low", "gain 0", "gain inf", "offset", "dark"],
    )
    def test_refuses_what_makes_no_fleet(self, table, clients, said):
        refused(lambda: build(table, clients), *said)

    def test_refuses_unequal_lengths(self):
        one, two = np.zeros(1, int), np.zeros(2, int)
        refused(lambda: Profile(np.ones((1, 1)), two, np.ones(2), one), "2 sites, 2 gains and 1 offsets")
