"""Seeds of one kind of chance each, and samples held out for validation: each changes its own part alone."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.datasets import Digits
from everfed.data.on_demand_synthetic import Synthetic
from everfed.data.partition import SPLITS, Dirichlet
from everfed.learning.compress import Qsgd
from everfed.learning.models import Logistic
from everfed.report.raster import batteries
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Bernoulli
from everfed.store import open_run, stored_rounds
from everfed.studies.sweep import folder_name

KINDS = ("split", "init", "batch", "schedule")
SMALL = Experiment(
    fleet=CycleFleet(8, (1, 2, 4), arrivals="markov"), policy=Bernoulli(), model=Logistic(), compression=Qsgd(),
    rounds=4, seed=3, device="cpu",
)  # fmt: skip


def parts(experiment):
    """What each kind of chance decides, without the others' help."""
    run = ef.start(experiment)
    task = run.source.trainer.task
    places = task.data._within(torch.arange(8), 0, 2, 5, task.seed)  # within a client's own samples
    steps = [(step.clients.tolist(), step.energy.to_dict()) for step in run.source.schedule.rounds(0, 20)]
    return {
        "split": [run.setup.data.samples_of(client).tolist() for client in range(8)],
        "init": run.server.params.tolist(),
        "batch": (places.tolist(), run.experiment.seeds.batch),
        "schedule": steps,
    }


@pytest.fixture(scope="module")
def before():
    return parts(SMALL)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_of_one_kind_changes_its_own_part_and_no_other(kind, before):
    after = parts(replace(SMALL, **{f"{kind}_seed": 12}))
    assert {name for name in KINDS if after[name] != before[name]} == {kind}


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_seed_set_to_the_seed_changes_nothing(kind):
    plain, same = (list(ef.start(e)) for e in (SMALL, replace(SMALL, **{f"{kind}_seed": 3})))
    assert [r.update_norm for r in plain] == [r.update_norm for r in same]


def test_all_four_make_a_run_independent_of_the_seed():
    fixed = replace(SMALL, split_seed=1, init_seed=2, batch_seed=3, schedule_seed=4)
    one, two = (replace(fixed, seed=seed) for seed in (5, 6))
    assert [r.update_norm for r in ef.start(one)] == [r.update_norm for r in ef.start(two)]
    assert one.same_run() == two.same_run() != SMALL.same_run()


def test_python_takes_the_same_names_as_files():
    data = ef.load("digits").partition(8, seed=0)
    fleet = ef.Fleet.from_cycles([1, 2] * 4)
    settings = {"rounds": 3, "client": ef.SGD(0.1), "device": "cpu"}
    runs = [
        ef.simulate("logistic", data, fleet, seed=seed, init_seed=0, batch_seed=0, schedule_seed=0, **settings)
        for seed in (0, 1)
    ]
    assert torch.equal(runs[0].params["1.weight"], runs[1].params["1.weight"])
    with pytest.raises(ef.InputError, match="batch_seed is -1"):
        ef.simulate("logistic", data, fleet, batch_seed=-1, **settings)


def test_files_leave_a_seed_out_unless_it_is_set_so_older_folders_keep_their_names():
    text = config.to_toml(Experiment())
    assert not any(f"{kind}_seed" in text for kind in KINDS)
    assert "validation" not in text
    assert folder_name(Experiment()) == "algorithm1-seed=0-f8bae782"  # as it was before there were such keys
    for key, value in (("init_seed", 7), ("validation", 0.25)):
        changed = replace(Experiment(), **{key: value})
        assert config.from_dict(config.parse(config.to_toml(changed))) == changed
    raw = config.to_dict(Experiment())
    config.change(raw, *config.parse_setting("schedule_seed=9"))
    assert config.from_dict(raw).seeds == (0, 0, 0, 9)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("init_seed", -1, "init_seed is -1; it must be a whole number"),
        ("init_seed", 1.5, "init_seed is 1.5; it must be a whole number"),
        ("schedule_seed", "a", 'schedule_seed is "a"; it must be a whole number'),
        ("validation", 1.0, "validation is 1.0; it must be from 0 to below 1"),
        ("validation", -0.1, "validation is -0.1"),
        ("validation", True, "validation is true; it must be a number"),
    ],
)
def test_bad_seeds_and_parts_are_refused_in_a_sentence(key, value, said):
    with pytest.raises(ef.InputError, match=said):
        config.from_dict({key: value})


def test_a_report_rebuilds_batteries_under_the_schedules_own_seed(tmp_path):
    experiment = replace(SMALL, schedule_seed=11, fleet=CycleFleet(8, (1, 2, 4)), policy=ef.UniformWindow())
    list(stored_rounds(experiment, tmp_path / "run"))
    run = open_run(tmp_path / "run")
    fleet = experiment.make_fleet()
    steps = list(ef.plan(fleet, experiment.policy, 4, seed=11))
    assert [s.clients.tolist() for s in steps] == [r.participants.tolist() for r in run.rounds]
    left = batteries(run, fleet, list(range(8)))["left"]
    assert sum(row[-1] for row in left) == pytest.approx(run.energy.stored)


def pool(x):
    return sorted(map(tuple, x.reshape(len(x), -1).tolist()))


@pytest.mark.parametrize("part", [0.01, 0.1, 1 / 3, 0.9])
def test_held_out_samples_come_from_training_with_every_class_in_proportion(part):
    whole = Digits().load()
    held = whole.hold_out(part, seed=5)
    assert len(held.test_y) == round(part * len(whole.y))
    assert pool(np.concatenate([held.x, held.test_x])) == pool(whole.x)
    expected = part * np.bincount(whole.y)
    assert (np.abs(np.bincount(held.test_y, minlength=10) - expected) <= 1).all()
    again, other = whole.hold_out(part, seed=5), whole.hold_out(part, seed=6)
    assert np.array_equal(held.test_x, again.test_x)
    assert not np.array_equal(held.test_x, other.test_x)


@pytest.mark.parametrize(
    "split", [*(kind() for name, kind in SPLITS.items() if name != "natural"), Dirichlet(0.3, "energy-group")]
)
def test_validation_goes_with_every_split(split):
    experiment = replace(SMALL, split=split, validation=0.2)
    data = experiment.make_data(experiment.make_fleet())
    assert len(data.order) + len(data.test_y) == 1437
    assert len(data.test_y) == 287


def test_what_is_held_out_follows_the_splits_seed():
    one, two, three = (
        replace(SMALL, validation=0.1, **seeds).make_data(SMALL.make_fleet()).test_x
        for seeds in ({"split_seed": 3}, {"seed": 8, "split_seed": 3}, {"seed": 8})
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, three)


def test_a_part_that_leaves_nothing_is_refused():
    with pytest.raises(ef.InputError, match="leaves no samples on one side"):
        ef.start(replace(SMALL, validation=1e-9))


def test_samples_that_are_made_up_are_validated_on_others_than_tested_on():
    made = Synthetic(4).load()
    clients = made.split(SPLITS["iid"](), 3, seed=1)
    held = made.hold_out(0.1, seed=1).split(SPLITS["iid"](), 3, seed=1)
    assert np.array_equal(clients.read(np.arange(3))[0], held.read(np.arange(3))[0])
    assert not np.array_equal(clients.test_x, held.test_x)


def test_the_test_set_is_gone_from_a_run_that_validates(monkeypatch):
    whole = Digits().load()
    poisoned = Dataset("digits", whole.x, whole.y, np.full_like(whole.test_x, np.nan), whole.test_y[::-1], 10)
    finals = []
    for data in (whole, poisoned):
        monkeypatch.setattr(Digits, "load", lambda self, data=data: data)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            finals.append(list(ef.start(replace(SMALL, validation=0.1)))[-1].metrics)
    assert finals[0] == finals[1]
    with pytest.raises(ef.InputError, match="test sample"):  # the poison works
        ef.start(SMALL)
