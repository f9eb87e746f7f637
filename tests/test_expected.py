"""Expected accuracy: curves that are recovered, intervals that are honest, and pilots that are refused."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from everfed.advising.curves import family, fit
from everfed.advising.expected import FARTHEST, LEVEL, WIDENING, expect, extrapolated, widening
from everfed.advising.pilot import LEAST_EVALUATIONS, Pilot, PilotRun, read_pilot, train_pilot
from everfed.energy.battery import Books
from everfed.errors import InputError
from everfed.learning.metrics import Metrics
from everfed.learning.optim import SGD, Cosine
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.history import History, RoundRecord

X = np.arange(1.0, 41.0)
SHAPES = {
    "power": lambda x: 0.97 - 0.8 * (1.0 + x / 8.0) ** -1.0,
    "exponential": lambda x: 0.9 - 0.7 * np.exp(-x / 12.0),
    "flat": lambda x: np.full_like(x, 0.4),
}


def pilot(values, x=X, metric="accuracy", lower=False, bounds=(0.0, 1.0)):
    points = PilotRun(x, x * 2, x * 10, x * 30.0, np.asarray(values, float))
    return Pilot(metric, lower, bounds, [points])


def noise(n, seed, size):
    return np.random.default_rng(seed).normal(0, size, n)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_curve_of_the_family_is_found_again_without_noise(shape):
    found = extrapolated(pilot(SHAPES[shape](X)))
    for ahead in (1, 3):
        truth = float(SHAPES[shape](np.array([40.0 * ahead]))[0])
        assert found.at(40.0 * ahead).value == pytest.approx(truth, abs=0.02)
        assert found.at(40.0 * ahead).low <= truth <= found.at(40.0 * ahead).high


@pytest.mark.parametrize("shape", ["power", "exponential"])
def test_bare_intervals_contain_noisy_ends_about_as_often_as_they_say(shape):
    inside = []
    for seed in range(60):
        found = extrapolated(pilot(SHAPES[shape](X) + noise(40, seed, 0.02))).at(120.0, widened=False)
        end = float(SHAPES[shape](np.array([120.0]))[0]) + noise(1, 1000 + seed, 0.02)[0]
        inside.append(found.low <= end <= found.high)
    # Of 60 at 90 %, fewer than 47 has a probability of 0.3 %; more than 90 % is allowed, since the shape is not known.
    assert np.mean(inside) >= 47 / 60


def test_more_noise_and_a_longer_way_make_wider_intervals():
    def width(size, at):
        found = extrapolated(pilot(SHAPES["power"](X) + noise(40, 1, size))).at(at)
        return found.high - found.low

    assert width(0.01, 120.0) < width(0.05, 120.0)
    assert width(0.02, 60.0) < width(0.02, 480.0)


def test_the_same_pilot_gives_the_same_numbers():
    values = SHAPES["power"](X) + noise(40, 2, 0.02)
    assert extrapolated(pilot(values)).to_dict() == extrapolated(pilot(values)).to_dict()


def test_values_stay_within_their_bounds():
    rising = extrapolated(pilot(np.clip(X / 41.0, 0, 1)))
    for ahead in (2, 10, 100):
        found = rising.at(40.0 * ahead)
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    loss = extrapolated(pilot(2.0 * np.exp(-X / 10), metric="loss", lower=True, bounds=(0.0, math.inf)))
    assert 0.0 <= loss.at(400.0).low <= loss.at(400.0).value


def test_a_falling_metric_is_the_mirror_of_a_rising_one():
    values = SHAPES["power"](X) + noise(40, 3, 0.01)
    up, down = fit([(X, values)], True, (0.0, 1.0)), fit([(X, 1.0 - values)], False, (0.0, 1.0))
    assert np.median(up.at(120.0)) == pytest.approx(1.0 - np.median(down.at(120.0)), abs=2e-3)


def test_curves_only_get_better():
    curves = fit([(X, SHAPES["power"](X) + noise(40, 4, 0.05))], True, (0.0, 1.0))
    assert (np.diff(curves.at(np.linspace(1.0, 400.0, 50)), axis=1) >= -1e-12).all()


def test_shapes_fall_from_one():
    for shape, prior in family(1.0):
        start, end = shape(np.array([0.0, 5.0]))
        assert prior > 0
        assert start == (0.0 if shape.kind == "flat" else 1.0)
        assert end <= start


def test_until_and_at_are_inverse():
    found = extrapolated(pilot(SHAPES["exponential"](X)))
    reached = found.until(0.85)
    assert found.at(reached.value).value == pytest.approx(0.85, abs=0.005)
    assert found.until(0.99).value == math.inf  # the curves end at 0.9


def test_the_cost_of_a_percent_follows_the_slope():
    """Of an exponential: dy/dx = 0.7 / 12 exp(-x / 12), 30 J per unit of x."""
    found = extrapolated(pilot(SHAPES["exponential"](X)))
    left = 0.7 * math.exp(-20.0 / 12.0)
    exact = -12.0 * math.log1p(-0.01 / left) * 30.0
    assert found.per_percent(20.0).value == pytest.approx(exact, rel=0.15)
    assert found.per_percent(400.0).value == math.inf


def test_rates_of_the_pilot_convert_rounds_participations_and_energy():
    found = extrapolated(pilot(SHAPES["power"](X)))
    same = [found.after(160.0), found.after(800.0, "participations"), found.after(2400.0, "spent"), found.at(80.0)]
    assert {one.value for one in same} == {found.at(80.0).value}


def test_factors_go_on_beyond_those_measured_and_say_so():
    assert [widening(ahead) for ahead in WIDENING] == list(WIDENING.values())
    assert widening(100.0) >= widening(FARTHEST)
    found = extrapolated(pilot(SHAPES["power"](X)))
    assert found.at(40.0 * FARTHEST).tested
    assert not found.at(41.0 * FARTHEST).tested


def test_the_factors_are_those_of_the_published_study():
    told = json.loads((Path(__file__).parents[1] / "docs/results/expected.json").read_text(encoding="utf-8"))
    assert {float(ahead): factor for ahead, factor in told["widening"].items()} == WIDENING
    assert told["level"] == LEVEL
    assert all(row["coverage"] >= 0.85 for row in told["tested"].values())


def test_the_published_page_tells_the_figures_of_the_study(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root / "experiments"))
    page = importlib.import_module("expected_page").page
    told = json.loads((root / "docs/results/expected.json").read_text(encoding="utf-8"))
    assert page(told) == (root / "docs/results/expected.md").read_text(encoding="utf-8")


def records(values, weight=1.0, participants=(0, 1)):
    who = np.array(participants)
    return [
        RoundRecord(i, who, np.ones(len(who)), weight, Books(spent=3.0 * (i + 1)), 0.0, None, Metrics(1.0, value), 0.0)
        for i, value in enumerate(values)
    ]


def test_points_count_weights_participations_and_energy():
    (run,) = read_pilot([History(records([0.1 * i for i in range(8)], weight=0.5), {})]).runs
    assert run.weight.tolist() == [0.5 * (i + 1) for i in range(8)]
    assert run.participations.tolist() == [2.0 * (i + 1) for i in range(8)]
    assert run.spent[-1] == 24.0


@pytest.mark.parametrize(
    ("runs", "metric", "said"),
    [
        ([], "accuracy", "at least one run"),
        ([History(records([0.5] * (LEAST_EVALUATIONS - 1)), {})], "accuracy", "evaluations"),
        ([History(records([0.5] * 9, weight=0.0), {})], "accuracy", "0 evaluations"),
        ([History(records([None] * 9), {})], "accuracy", "accuracy"),
        ([History(records([0.5] * 9), {})], "kappa", "lower or higher"),
    ],
)
def test_a_pilot_that_says_too_little_is_refused(runs, metric, said):
    with pytest.raises(InputError, match=said):
        expect(runs, metric)


SMALL = Experiment(
    fleet=CycleFleet(8, (1, 2)), rounds=200, client=SGD(0.1), device="cpu", local_steps=1, check_trainer=False
)


def test_a_pilot_is_the_beginning_of_its_experiment():
    seen = []

    def watch(records):
        for record in records:
            seen.append(record)
            yield record

    run = train_pilot(SMALL, 40, watch)
    assert len(seen) == len(run.rounds) == 40
    found = expect([run])
    assert found.notes == ()
    assert found.pilot.evaluations == 20
    # Its schedule is that of all 200 rounds.
    longer = replace(SMALL, client=SGD(0.1, schedule=Cosine(0.0)))
    assert "falls until round 200" in expect([train_pilot(longer, 20)]).notes[0]


def test_a_group_that_never_takes_part_is_named():
    late = replace(SMALL, fleet=CycleFleet(8, (1, 2), offsets=(0, 100)))
    (note,) = expect([train_pilot(late, 20)]).notes
    assert "E=2 took part" in note


def test_a_metric_that_gets_worse_is_told():
    falling = np.concatenate([SHAPES["power"](X[:30]), np.full(10, 0.3)])
    assert any("got worse" in note for note in extrapolated(pilot(falling)).notes)
