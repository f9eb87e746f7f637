"""Which part of the variance over seeds each kind of chance has: on results whose parts are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import everfed as ef
from everfed.learning.models import Logistic
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.studies import seed_variance
from older_folders import pretend_done

QUICK = Experiment(rounds=1)  # its results are not those of training
SIZES = {"split": 3.0, "init": 0.0, "batch": 1.0, "schedule": 2.0}


def drawn(kind, seed):
    return float(np.random.default_rng([list(SIZES).index(kind), seed]).normal())


def value(run):
    """A sum of four independent draws: variances 9, 0, 1 and 4."""
    seeds = run.experiment.seeds._asdict()
    return sum(SIZES[kind] * drawn(kind, seed) for kind, seed in seeds.items())


@pytest.fixture
def untrained(monkeypatch):
    """Runs are written down without training."""

    def pretend(runs, jobs):
        for run in runs:
            pretend_done(run.folder, run.experiment)

    monkeypatch.setattr(seed_variance, "run_all", pretend)


@pytest.mark.usefixtures("untrained")
def test_known_parts_are_found(tmp_path):
    found = ef.seed_effects(QUICK, 30, out=tmp_path, value=value)
    assert found.variance == pytest.approx(14.0, rel=0.5)  # the sd of a variance of 30 draws is a quarter of it
    for kind, size in SIZES.items():
        part = found.parts[kind]
        assert part.mean == pytest.approx(size**2, abs=2 * part.margin + 1e-12)  # four standard errors
        assert found.share(kind) == pytest.approx(part.mean / found.variance)
    assert found.parts["init"].mean == pytest.approx(0.0, abs=1e-20)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("pinned", [["split"], ["init", "schedule"], ["split", "batch", "schedule"], list(SIZES)])
def test_a_kind_that_is_pinned_is_held_still_and_has_no_part(pinned, tmp_path):
    experiment = replace(QUICK, **{f"{kind}_seed": 3 for kind in pinned})
    if pinned == list(SIZES):
        with pytest.raises(ef.InputError, match="fixes all four seeds"):
            ef.seed_effects(experiment, 2, out=tmp_path, value=value)
        return
    found = ef.seed_effects(experiment, 12, out=tmp_path, value=value)
    free = [kind for kind in SIZES if kind not in pinned]
    assert list(found.parts) == free
    assert found.variance == pytest.approx(sum(SIZES[kind] ** 2 for kind in free), rel=0.7, abs=1e-12)
    runs = [ef.open_run(folder).experiment for folder in tmp_path.iterdir()]
    assert len(runs) == 12 * (1 + len(free))
    assert {getattr(run.seeds, kind) for run in runs for kind in pinned} == {3}


def test_runs_that_diverged_are_named_and_not_taken_as_results(tmp_path):
    wild = Experiment(
        fleet=CycleFleet(4, (1, 2)), model=Logistic(), client=ef.SGD(1e19), rounds=6, device="cpu", eval_every=1
    )
    with pytest.raises(ef.InputError, match=r"of 10 runs have no final result to compare: '\S+' \(diverged\)"):
        ef.seed_effects(wild, 2, out=tmp_path)


def test_it_runs_five_runs_a_repeat_and_a_schedule_without_chance_has_no_part(tmp_path):
    quick = Experiment(
        fleet=CycleFleet(4, (1, 2)), policy=ef.Greedy(), model=Logistic(), rounds=3, device="cpu", eval_every=3
    )
    found = ef.seed_effects(quick, 2, out=tmp_path)
    assert len(list(tmp_path.iterdir())) == 10
    assert found.parts["schedule"].mean == 0.0
    assert found.parts["split"].mean > 0.0
    assert ef.seed_effects(quick, 2, out=tmp_path) == found
    with pytest.raises(ef.InputError, match="at least 2"):
        ef.seed_effects(quick, 1, out=tmp_path)
