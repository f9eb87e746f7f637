"""`everfed advise` as a user meets it."""

from __future__ import annotations

import json

import pytest

import everfed as ef
from device_fleets import random_fleet
from everfed.run import config

FAST = ["--years", "2", "--times", "3"]


@pytest.fixture
def fleet_file(tmp_path):
    spec = random_fleet(tmp_path, 2)
    path = tmp_path / "fleet.toml"
    path.write_text(config.to_toml(ef.Experiment(fleet=spec, rounds=160)))
    return path


@pytest.fixture
def everfed(everfed):
    return lambda *arguments: everfed("advise", *arguments)


def test_the_verdict_comes_first_and_tables_follow(everfed, fleet_file):
    code, out, err = everfed(fleet_file, *FAST)
    assert code == 0
    assert out.startswith("Verdict: ")
    titles = [
        "as it is, 1 January to",
        "slots skipped, and why",
        "where the energy goes",
        "sizes that reach",
        "what to change",
    ]
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    assert "note: the horizon covers" in err


def test_the_json_is_that_of_the_library(everfed, fleet_file, tmp_path):
    code, out, _ = everfed(fleet_file, *FAST, "--json", "-o", tmp_path / "new" / "advice.json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "new" / "advice.json").read_text())
    expected = ef.advise(fleet_file, rounds=160, years=2, times=3).to_dict()
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_a_cycle_is_a_promise_of_all_groups(everfed, fleet_file):
    _, out, _ = everfed(fleet_file, *FAST, "--json", "--cycle", "5")
    assert [g["cycles"] for g in json.loads(out)["groups"]] == [[5, 5]] * 3
    _, out, _ = everfed(fleet_file, *FAST, "--json", "--rounds-per-day", "0.5")
    found = json.loads(out)
    assert [g["promised_per_day"] for g in found["groups"]] == [0.5] * 3
    too_many = 86_400 / found["horizon"]["round_s"] + 1
    _, _, err = everfed(fleet_file, *FAST, "--rounds-per-day", str(too_many))
    assert f"rounds_per_day is {too_many:g}, and a day has {too_many - 1:g} rounds" in err


def test_one_group_can_be_changed(everfed, fleet_file):
    _, out, _ = everfed(fleet_file, *FAST, "--json", "--set", "fleet.groups.g1.battery_wh=3")
    assert [g["battery_wh"] for g in json.loads(out)["groups"]].count(3) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target-weight", "2"], "--target-weight is 2.0; it must be above 0 and at most 1."),
        (["--budget", "5"], "budget is 5, and there are no prices to hold it against; give price_wp and price_wh."),
        (["--trace-wp", "roof"], "--trace-wp is 'roof'; write GROUP=WP, such as roof=20."),
        (["--years", "-2"], "--years is -2; it must be a whole number of at least 0."),
        (["--set", "fleet.groups.g9.cycle=3"], "'fleet.groups.g9.cycle': unknown group 'g9'. Valid: g0, g1, g2."),
    ],
)
def test_bad_options_are_one_sentence(everfed, fleet_file, arguments, said):
    code, out, err = everfed(fleet_file, *arguments)
    assert (code, out) == (2, "")
    assert err.strip() == f"everfed: {said}"


def test_a_fleet_of_cycles_is_refused(everfed):
    code, _, err = everfed("digits-quick")
    assert code == 2
    assert "advice needs a fleet of devices" in err
