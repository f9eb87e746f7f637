"""`everfed runs` tells when, with what and with which result, and lists what was asked for."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import everfed as ef
from everfed.cli import listing
from everfed.cli.app import app
from everfed.cli.listing import moment
from everfed.cli.screen import Screen
from everfed.errors import InputError
from everfed.learning.optim import Adam
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet

SMALL = Experiment(fleet=CycleFleet(4, (1, 4)), rounds=4, eval_every=2, device="cpu", client=ef.SGD(0.1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("listed")
    ef.simulate(SMALL, out=root / "slow")
    ef.simulate(replace(SMALL, client=ef.SGD(0.2)), out=root / "fast")
    ef.simulate(replace(SMALL, client=Adam(0.01), rounds=2).with_method("greedy"), out=root / "other")
    ef.simulate(replace(SMALL, client=ef.SGD(0.2), seed=1), out=root / "again")
    bad = root / "bad"
    bad.mkdir()
    (bad / "experiment.toml").write_text("rounds = -1\n")
    return root


def call(*words):
    result = CliRunner().invoke(app, ["runs", *map(str, words)])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def listed(folder, *words):
    return [row["run"].rpartition("/")[2] for row in json.loads(call(folder, "--json", *words))]


def test_everything_is_listed_by_name(folder):
    assert listed(folder) == ["again", "bad", "fast", "other", "slow"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--method", "greedy"], ["other"]),
        (["--method", "algorithm1,greedy"], ["again", "fast", "other", "slow"]),
        (["--where", "client.lr=0.2"], ["again", "fast"]),
        (["--where", "client.lr=0.2", "--where", "seed=1"], ["again"]),
        (["--where", "client=adam"], ["other"]),
        (["--where", "method=greedy"], ["other"]),
        (["--where", "rounds=4"], ["again", "fast", "slow"]),
        (["--where", "client.weight_decay=7"], []),  # a key that they could have
        (["--where", "validation=0.0"], ["again", "fast", "other", "slow"]),  # a default that files leave out
        (["--where", "fleet.cycles=[1, 4]"], ["again", "fast", "other", "slow"]),
        (["--state", "done"], ["again", "fast", "other", "slow"]),
        (["--state", "unreadable"], ["bad"]),
        (["--state", "diverged"], []),
        (["--since", "1h"], ["again", "fast", "other", "slow"]),
        (["--since", "2999-01-01"], []),
    ],
)
def test_filters(folder, words, found):
    assert listed(folder, *words) == found


def test_orders(folder):
    done = ("--state", "done")
    rows = {row["run"].rpartition("/")[2]: row for row in json.loads(call(folder, "--json", *done))}
    assert listed(folder, *done, "--sort", "accuracy") == sorted(rows, key=lambda name: rows[name]["accuracy"])
    assert listed(folder, *done, "--sort", "loss") == sorted(rows, key=lambda name: -rows[name]["loss"])
    dates = [row["date"] for row in json.loads(call(folder, "--json", *done, "--sort", "date"))]
    assert dates == sorted(dates)


def test_settings_that_differ_and_only_those_are_told(folder):
    rows = {row["run"].rpartition("/")[2]: row["settings"] for row in json.loads(call(folder, "--json"))}
    assert rows["fast"] == {"client": "sgd", "client.lr": 0.2, "rounds": 4}
    assert rows["other"] == {"client": "adam", "client.lr": 0.01, "rounds": 2}
    (one,) = json.loads(call(folder / "fast", "--json"))
    assert one["settings"] == {}


def test_the_table_has_dates_and_units(folder):
    text = call(folder, "--method", "algorithm1")
    today = datetime.now().astimezone()
    assert any(f"{day:%Y-%m-%d} " in text for day in (today, today - timedelta(minutes=5)))
    assert "10.0 units" in text
    assert "client.lr=0.2" in text
    assert f"3 runs in {folder}" in text


def test_energy_of_devices_is_in_joules(tmp_path):
    from everfed import presets
    from everfed.run import config

    experiment = config.from_dict({**presets.content("solar-fleet"), "rounds": 4, "eval_every": 4, "device": "cpu"})
    ef.simulate(experiment, out=tmp_path / "sun")
    (row,) = json.loads(call(tmp_path, "--json"))
    assert row["unit"] == "J"
    assert row["spent_text"].endswith("J")


def test_moments():
    now = datetime(2026, 5, 10, 12, tzinfo=UTC)
    assert moment("90m", now) == datetime(2026, 5, 10, 10, 30, tzinfo=UTC)
    assert moment("2w", now) == datetime(2026, 4, 26, 12, tzinfo=UTC)
    assert moment("2026-05-01") == datetime(2026, 5, 1).astimezone()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "yesterday"], "--since is 'yesterday'; give a date such as 2026-05-01"),
        (["--state", "finished"], "unknown state 'finished'"),
        (["--sort", "acuracy"], "Did you mean 'accuracy'"),
        (["--method", "gredy"], "Did you mean 'greedy'"),
        (["--where", "client.lr"], "is not a setting; write key=value"),
        (["--where", "client.lrr=0.2"], "Did you mean 'client.lr'?"),
        (["--where", "clientt=sgd"], "Did you mean 'client'?"),
    ],
)
def test_what_cannot_be_asked_for_is_said(folder, words, said):
    with pytest.raises(InputError, match=said):
        call(folder, *words)


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Runs of two tasks that differ in many settings."""
    root = tmp_path_factory.mktemp("unlike")
    numbers = ef.from_arrays([(np.eye(4, 3) * i, np.arange(4.0) * i) for i in range(4)], test=(np.eye(4, 3), [1.0] * 4))
    linear = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    ef.simulate(linear, numbers, ef.Fleet.from_cycles([1] * 4), "greedy", rounds=2, batch_size=2, out=root / "numbers")
    for seed in (0, 1):
        ef.simulate(replace(SMALL, seed=seed), out=root / f"a-long-name-of-a-run-{seed}")
    return root


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_words_are_never_squeezed_and_no_number_is_lost(unlike, width, monkeypatch):
    screen, original = Screen(), listing.print_runs
    screen.out = Console(width=width, record=True, file=io.StringIO())
    screen.err = Console(width=200, record=True, file=io.StringIO())
    shown = {}

    def printed(given, found, rows):
        shown.update({row["run"].rpartition("/")[2]: row for row in rows})
        original(screen, found, rows)

    monkeypatch.setattr(listing, "print_runs", printed)
    call(unlike)
    text = screen.out.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 5 + 14 * len(shown)  # a run has nine things to say in words
    whole = " ".join(text.split())
    for name, row in shown.items():
        for number in (row["accuracy"] and f"{100 * row['accuracy']:.1f}", f"{row['loss']:.4g}", row["spent_text"]):
            assert number is None or number in whole
        assert name[:18] in whole
    assert ("worst" in text) != ("find no room" in screen.err.export_text())
