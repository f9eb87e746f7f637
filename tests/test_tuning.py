"""Tuning: the same budget for every method, grids that grow at their edges, and never a look at the test set."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import everfed as ef
from everfed import presets
from everfed.data.dataset import Dataset
from everfed.data.datasets import Digits
from everfed.learning.models import Logistic
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import StoreError, open_run, stored_rounds
from everfed.studies import sweep, tuning
from everfed.studies.sweep import plan_runs, run_all
from everfed.studies.tuning import Trial, tune
from older_folders import pretend_done

QUICK = Experiment(fleet=CycleFleet(6, (1, 2)), model=Logistic(), rounds=5, eval_every=1, device="cpu")
METHODS = ["algorithm1", "greedy"]


class Pretend:
    """Writes down runs without training: the accuracy at the end is a function of method, settings and seed."""

    def __init__(self, accuracy):
        self.accuracy, self.runs = accuracy, []

    def __call__(self, runs):
        for run in runs:
            self.runs.append(run)
            pretend_done(run.folder, run.experiment)

    def score(self, run):
        method = run.experiment.method
        return self.accuracy(method, run.experiment.client.lr, run.experiment.seed)


@pytest.fixture
def pretend(monkeypatch):
    def make(accuracy):
        made = Pretend(accuracy)
        monkeypatch.setattr(tuning, "score", made.score)
        return made

    return make


def peak(*at):
    """Accuracy that falls off on both sides of one rate for each method, in factors of two."""
    best = dict(zip(METHODS, at, strict=True))
    return lambda method, lr, seed: 0.9 - 0.05 * abs(math.log2(lr / best[method])) + 0.001 * (seed % 3)


def tuned(pretend, accuracy, tmp_path, rates=(0.1, 0.2, 0.4), **options):
    run = pretend(accuracy)
    found = tune(QUICK, {"client.lr": list(rates)}, methods=METHODS, out=tmp_path, run=run, **options)
    return found, run


def test_every_method_has_its_own_best_value_and_the_same_runs(pretend, tmp_path):
    found, run = tuned(pretend, peak(0.1, 3.2), tmp_path)
    assert {m: found.best(m).settings["client.lr"] for m in METHODS} == {"algorithm1": 0.1, "greedy": 3.2}
    tried = Counter((r.experiment.method, r.experiment.seed) for r in run.runs)
    assert len(set(tried.values())) == 1
    assert found.runs_per_method * len(METHODS) == len(run.runs)
    assert {r.experiment.rounds for r in run.runs} == {QUICK.rounds}
    rates = {m: sorted({r.experiment.client.lr for r in run.runs if r.experiment.method == m}) for m in METHODS}
    assert rates["algorithm1"] == rates["greedy"] == found.grid["client.lr"]
    # Past the best of both, and no further: 0.05 for one, 6.4 for the other.
    assert found.grid["client.lr"] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert found.notes == ()


def test_a_best_value_that_stays_at_the_edge_is_said(pretend, tmp_path):
    found, _ = tuned(pretend, peak(0.2, 1000.0), tmp_path, extend=2)
    assert found.grid["client.lr"] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    assert found.notes == (
        "the best client.lr of greedy, 1.6, is at the edge of the grid: it was extended by 2 steps already.",
    )


def test_the_budget_ends_the_extension_for_all_alike(pretend, tmp_path):
    found, run = tuned(pretend, peak(0.2, 1000.0), tmp_path, seeds=[0, 1], budget=9)
    assert found.runs_per_method == 8
    assert len(run.runs) == 16
    assert "the budget of 9 runs for each method is used up" in found.notes[0]


def test_of_equal_candidates_the_smaller_value_is_taken(pretend, tmp_path):
    found, _ = tuned(pretend, lambda method, lr, seed: 0.5, tmp_path, rates=(0.4, 0.1, 0.2), extend=0)
    assert found.best("greedy").settings == {"client.lr": 0.1}


def test_a_method_that_is_the_same_at_every_rate_does_not_widen_the_grid_of_others(pretend, tmp_path):
    """wait-for-all trains so rarely that it may learn nothing."""
    shape = peak(0.2, 0.2)
    found, _ = tuned(
        pretend, lambda method, lr, seed: 0.1 if method == METHODS[0] else shape(method, lr, seed), tmp_path
    )
    assert found.grid["client.lr"] == pytest.approx([0.1, 0.2, 0.4])
    assert found.notes == ()


def test_if_every_rate_diverges_lower_ones_are_tried(pretend, tmp_path):
    found, _ = tuned(pretend, lambda method, lr, seed: None if lr > 0.06 else lr, tmp_path, extend=2)
    assert found.grid["client.lr"] == pytest.approx([0.025, 0.05, 0.1, 0.2, 0.4])
    assert found.best("greedy").settings == {"client.lr": 0.05}


def test_a_candidate_that_diverged_once_is_worse_than_any_that_did_not(pretend, tmp_path):
    found, _ = tuned(
        pretend, lambda method, lr, seed: None if lr > 0.3 and seed == 1001 else lr, tmp_path, rates=(0.1, 0.2, 0.4)
    )
    assert found.best("greedy").settings == {"client.lr": 0.2}
    assert found.to_dict()["trials"][2]["mean"] is None
    assert found.notes == ()


def test_where_everything_diverges_smaller_values_are_tried_and_then_it_is_said(pretend, tmp_path):
    found, _ = tuned(pretend, lambda method, lr, seed: None if lr > 0.04 else lr, tmp_path)
    assert found.best("greedy").settings["client.lr"] < 0.04
    found, _ = tuned(pretend, lambda method, lr, seed: None, tmp_path / "other", extend=1)
    assert found.notes[0] == "every candidate of algorithm1 diverged with some seed; give smaller values."
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_value_that_the_experiment_refuses_is_no_candidate(pretend, tmp_path, monkeypatch):
    run = pretend(lambda method, lr, seed: 0.5)
    run.score = lambda one: one.experiment.client.momentum
    monkeypatch.setattr(tuning, "score", run.score)
    found = tune(QUICK, {"client.momentum": [0.5, 0.9]}, methods=METHODS, out=tmp_path, run=run)
    assert found.grid == {"client.momentum": [0.5, 0.9]}
    assert "momentum is 1.62" in found.notes[0]


def test_whole_numbers_stay_whole_and_words_have_no_edge(pretend, tmp_path, monkeypatch):
    run = pretend(lambda method, lr, seed: 0.5)
    schedules = {ef.Constant(): 0.0, ef.Cosine(): 0.5}
    monkeypatch.setattr(
        tuning, "score", lambda one: schedules[one.experiment.client.schedule] - one.experiment.batch_size
    )
    grid = {"batch_size": [4, 8], "client.schedule": ["constant", "cosine"]}
    found = tune(QUICK, grid, methods=METHODS, out=tmp_path, run=run)
    assert found.grid["batch_size"] == [1, 2, 4, 8]  # and not 0.5
    assert found.best("greedy").settings == {"batch_size": 1, "client.schedule": "cosine"}
    assert found.runs_per_method == 4 * 2 * 3


def test_what_was_chosen_is_an_experiment_file(pretend, tmp_path):
    found, _ = tuned(pretend, peak(0.2, 0.2), tmp_path)
    toml, table = found.save(tmp_path / "result")
    content = config.read(toml)
    assert content["tuned_on"] == list(tuning.SEEDS)
    again = tune(
        content, {"client.lr": [0.2]}, methods=METHODS, seeds=[7], out=tmp_path / "again", run=pretend(peak(1, 1))
    )
    assert again.content()["tuned_on"] == [7, *tuning.SEEDS]
    for method in METHODS:
        raw = {**content, "method": method}
        raw.pop("policy"), raw.pop("server")
        made = config.from_dict(raw)
        assert made == found.experiment(method)
        assert made.client.lr == 0.2
        assert made.validation == 0  # results are reported on the test set
    assert json.loads(table.read_text())["best"]["greedy"]["settings"] == {"client.lr": 0.2}
    with pytest.raises(ef.InputError, match="unknown tuned method 'fedavg'"):
        found.experiment("fedavg")


def test_it_goes_on_where_it_was_cut_off(pretend, tmp_path):
    accuracy = peak(0.2, 0.2)
    run = pretend(accuracy)

    def cut(runs):
        run(runs[:5])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(QUICK, {"client.lr": [0.1, 0.2, 0.4]}, methods=METHODS, out=tmp_path, run=cut)
    found, rest = tuned(pretend, accuracy, tmp_path)
    assert len(rest.runs) == found.runs_per_method * 2 - 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ["gready"]}, "Did you mean 'greedy'"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["greedy", "greedy"]}, "each given once"),
        ({"grid": {"seed": [1, 2]}}, "'seed' cannot be tuned"),
        ({"grid": {"split_seed": [1, 2]}}, "'split_seed' cannot be tuned"),
        ({"grid": {"method": ["greedy"]}}, "'method' cannot be tuned"),
        ({"grid": {"rounds": [5, 10]}}, "'rounds' cannot be tuned"),
        ({"grid": {"client.lr": [0.1], "eval_every": [1, 5]}}, "'eval_every' cannot be tuned"),
        ({"grid": {"client.lr": []}}, "no value for 'client.lr'"),
        ({"grid": {"client.lr": [0.1, 0.1]}}, "contains one run twice"),
        ({"grid": {"client.rate": [0.1]}}, "unknown key 'client.rate'"),
        ({"seeds": []}, "at least one seed"),
        ({"budget": 5}, "more than the budget of 5"),
        ({"extend": -1}, "extend is -1"),
        ({"validation": 0.0}, "validation is 0.0; it must be above 0 and below 1"),
        ({"validation": 1.0}, "validation is 1.0"),
    ],
)
def test_bad_input_is_one_sentence(options, said, tmp_path):
    settings = {"grid": {"client.lr": [0.1, 0.2]}, "methods": METHODS, **options}
    with pytest.raises(ef.InputError, match=said):
        tune(QUICK, settings.pop("grid"), out=tmp_path, **settings)


@pytest.mark.parametrize("key", ["rounds", "eval_every"])
def test_a_method_with_rounds_of_its_own_is_not_tuned_beside_the_others(key, pretend, tmp_path):
    raw = {**config.to_dict(QUICK), "methods": {"greedy": {key: 2}, "fedavg": {key: 3}}}
    grid = {"client.lr": [0.1, 0.2]}
    with pytest.raises(ef.InputError, match=f"methods.greedy sets {key} to 2"):
        tune(raw, grid, methods=METHODS, out=tmp_path)
    run = pretend(peak(0.1, 0.1))
    tune(raw, grid, methods=["algorithm1"], out=tmp_path, run=run)  # the others are not tuned
    raw["methods"]["greedy"][key] = getattr(QUICK, key)
    tune(raw, grid, methods=METHODS, out=tmp_path, run=run)  # the same as all have
    assert {getattr(one.experiment, key) for one in run.runs} == {getattr(QUICK, key)}


@pytest.mark.parametrize("key", ["local_steps", "batch_size"])
@pytest.mark.parametrize("swept", [True, False])
def test_what_a_round_trains_on_may_differ_and_is_said(key, swept, pretend, tmp_path):
    raw, grid = config.to_dict(QUICK), {"client.lr": [0.05, 0.1, 0.2]}
    if swept:
        grid[key] = [2, 3]
    else:
        raw["methods"] = {"greedy": {key: 2}}
    found = tune(raw, grid, methods=METHODS, out=tmp_path, run=pretend(peak(0.1, 0.1)), extend=0)
    assert found.notes[0] == f"candidates differ in {key}, so they train on different numbers of samples."


def test_a_single_value_is_said_to_have_nothing_beside_it(pretend, tmp_path):
    found, _ = tuned(pretend, peak(0.1, 0.1), tmp_path, rates=(0.1,))
    assert found.notes == ("client.lr has one value in the grid, 0.1, so there was nothing to compare.",)
    found, _ = tuned(pretend, peak(0.1, 1000.0), tmp_path / "other", extend=1)
    assert "extended by 1 step already" in found.notes[0]


def test_a_score_is_the_mean_over_the_last_tenth_of_the_rounds(tmp_path):
    (planned,) = plan_runs({**config.to_dict(QUICK), "rounds": 20, "validation": 0.2}, {}, [0], tmp_path)
    (run,) = run_all([planned], jobs=1)
    accuracies = [r.metrics.accuracy for r in run.rounds]
    assert tuning.score(run) == pytest.approx(np.mean(accuracies[-2:]))


def test_a_run_that_did_not_finish_is_no_divergence(tmp_path):
    def stop(runs):
        for run in runs:
            next(stored_rounds(run.experiment, run.folder))

    with pytest.raises(StoreError, match="did not finish, so nothing can be chosen"):
        tune(QUICK, {"client.lr": [0.1, 0.2]}, methods=["greedy"], seeds=[1], out=tmp_path, run=stop)


def test_the_same_choice_is_made_if_the_test_set_is_poison(monkeypatch, tmp_path):
    whole = Digits().load()
    shuffled = np.random.default_rng(0).permutation(whole.test_y)
    sets = {
        "whole": whole,
        "nan": Dataset("digits", whole.x, whole.y, np.full_like(whole.test_x, np.nan), whole.test_y, 10),
        "shuffled": Dataset("digits", whole.x, whole.y, whole.test_x, shuffled, 10),
    }
    found = {}
    for name, data in sets.items():
        monkeypatch.setattr(Digits, "load", lambda self, data=data: data)
        out = tmp_path / name
        found[name] = tune(QUICK, {"client.lr": [0.05, 1e30]}, methods=METHODS, seeds=[7], out=out, extend=1)
    assert found["whole"].trials == found["nan"].trials == found["shuffled"].trials
    assert found["whole"].best("greedy").settings["client.lr"] <= 0.05  # 1e30 diverges, and that is no crash
    assert {open_run(path.parent).experiment.validation for path in tmp_path.rglob("experiment.toml")} == {0.1}


def test_the_default_grid_lies_around_the_experiments_own_rate():
    assert tuning.default_grid({"client": {"kind": "sgd", "lr": 0.4}}) == {"client.lr": [0.1, 0.2, 0.4, 0.8, 1.6]}


def test_a_trial_knows_its_score():
    assert Trial("greedy", {}, (0.5, 0.7)).score == pytest.approx(0.6)
    assert Trial("greedy", {}, (0.5, None)).score == -math.inf


# Settings of one method alone -------------------------------------------------------------------------------------

OWN = """
method = "greedy"
rounds = 10
[client]
kind = "sgd"
lr = 0.2
[methods.greedy]
client.lr = 0.8
rounds = 20
[methods.algorithm1]
client = { kind = "adam", lr = 0.01 }
"""


def made(*settings):
    raw = config.parse(OWN)
    for text in settings:
        config.change(raw, *config.parse_setting(text))
    return config.from_dict(raw)


def test_a_methods_own_settings_hold_for_it_alone():
    assert (made().client.lr, made().rounds) == (0.8, 20)
    assert made("method=algorithm1").client == ef.Adam(0.01)
    assert made("method=algorithm1").rounds == 10
    assert made("method=fedavg").client == ef.SGD(0.2)
    assert made("method=fedavg") == config.from_dict({**config.parse(OWN.split("[methods")[0]), "method": "fedavg"})


def test_what_is_set_on_the_command_line_goes_before_a_methods_own():
    assert made("client.lr=0.3").client == ef.SGD(0.3)
    assert made("method=algorithm1", "client.lr=0.3").client == ef.Adam(0.3)
    assert made("method=algorithm1", "client=sgd").client == ef.SGD()
    assert made("method=algorithm1", "client.kind=sgd").client == ef.SGD()
    assert made("rounds=7").rounds == 7
    assert made("methods.greedy.client.lr=0.5").client.lr == 0.5
    assert made("methods.fedavg.client.lr=0.5", "method=fedavg").client.lr == 0.5


def test_a_policy_that_makes_a_known_method_has_its_settings_too():
    raw = {key: value for key, value in config.parse(OWN).items() if key != "method"}
    assert config.from_dict({**raw, "policy": "greedy"}).client.lr == 0.8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("methods.gready.rounds=2", "unknown method 'gready'. Did you mean 'greedy'"),
        ("methods.fedavg.client.rate=2", "methods.fedavg: unknown key 'client.rate'"),
        ("methods.fedavg.client.lr=-2", "methods.fedavg: "),
        ("methods.greedy.method='fedavg'", "methods.greedy sets 'method'"),
        ("methods.greedy=3", "methods.greedy is 3; it must be a table"),
        ("methods=3", "methods is 3"),
        ("tuned_on=3", "tuned_on is 3; it must be a list of seeds"),
        ("tuned_on=[true]", "tuned_on is "),
    ],
)
def test_a_table_that_nothing_reads_is_an_error_whichever_method_runs(settings, said):
    with pytest.raises(ef.InputError, match=said):
        made(settings)


@pytest.mark.parametrize(
    "table",
    [
        {"client.lr": 0.5},
        {"client.lr": 0.5, "client": {"kind": "sgd"}},
        {"client": {"schedule.kind": "cosine"}},
        {"fleet.clients": 7},
        {"rounds.": 3},
    ],
)
def test_a_dotted_key_in_quotes_cannot_slip_past_the_command_line(table, tmp_path):
    """`change` looks for nested tables: a flat key would stay there and go before what is set or swept over."""
    raw = {**config.to_dict(QUICK), "methods": {"greedy": table}}
    for grid in ({"client.lr": [0.1, 0.2]}, {"method": ["algorithm1", "greedy"]}, {}):
        with pytest.raises(ef.InputError, match=r"methods\.greedy: unknown key '\S+' in quotes"):
            plan_runs(raw, grid, [0], tmp_path)
    with pytest.raises(ef.InputError, match="in quotes"):
        tune(raw, methods=METHODS, out=tmp_path, validation=0.2)
    written = tmp_path / "mine.toml"
    written.write_text('[methods.greedy]\n"client.lr" = 0.5\n')
    with pytest.raises(ef.InputError, match=r"unknown key 'client\.lr' in quotes"):
        config.from_dict(config.read(written))


# Sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "seeds", "said"),
    [
        ({"seed": [1, 2]}, [0], "write --seeds 1,2 instead of --grid seed=1,2"),
        ({}, [1, 2, 1], "seed 1 is given 2 times"),
        ({"client.lr": [1, 1.0]}, [0], "'client.lr=1, seed 0' and as 'client.lr=1.0, seed 0'"),
        ({"split_seed": [0, 1]}, [0], None),
        ({"split_seed": [0, 1], "init_seed": [5], "batch_seed": [5], "schedule_seed": [5]}, [0, 1], "are all set, so"),
        ({"init_seed": [5], "batch_seed": [5], "schedule_seed": [5]}, [0, 1], None),
        ({"policy": ["greedy"], "method": ["fedavg"]}, [0], "'method' overrides its 'policy'"),
        ({"client.lr": [0.1], "client": ["adam"]}, [0], "'client' overrides its 'client.lr'"),
        ({"client.lr": [0.1], "client.kind": ["adam"]}, [0], "'client.kind' overrides its 'client.lr'"),
        ({"client": ["adam", "sgd"], "client.lr": [0.1, 0.2]}, [0], None),
        ({"method": ["algorithm1", "greedy"], "policy": ["bernoulli"]}, [0], "contains one run twice"),
        ({"method": ["algorithm1", "mifa"], "policy": ["bernoulli"]}, [0], None),
        ({"rounds": [5, 10], "method": ["greedy"]}, [0, 1], None),
    ],
)
def test_no_run_is_done_twice_under_two_names(grid, seeds, said, tmp_path):
    raw = config.to_dict(QUICK)
    if said is None:
        runs = plan_runs(raw, grid, seeds, tmp_path)
        assert len({run.folder for run in runs}) == len(runs) == math.prod(map(len, grid.values())) * len(seeds)
        return
    with pytest.raises(ef.InputError, match=said):
        plan_runs(raw, grid, seeds, tmp_path)


# What is published ------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def test_the_digits_presets_have_the_rates_that_were_chosen_and_reported():
    published = json.loads((ROOT / "docs/results/digits.json").read_text())
    page = (ROOT / "docs/results/digits.md").read_text()
    assert list(published) == ["digits", "digits-dirichlet", "digits-iid"]
    for name, result in published.items():
        own = presets.content(name)["methods"]
        assert config.tuned_on(presets.content(name)) == result["tuned"]["seeds"]
        assert {method: table["client"]["lr"] for method, table in own.items()} == result["rates"]
        assert not set(result["seeds"]) & set(result["tuned"]["seeds"])
        assert len(result["seeds"]) >= 10
        assert result["tuned"]["notes"] == []  # none at an edge
        for method, row in result["methods"].items():
            low, high = row["accuracy"]["ci95"]
            assert f"| {100 * row['accuracy']['mean']:.1f} ± {50 * (high - low):.1f} |" in page, (name, method)


def test_runs_that_fail_are_told_to_whoever_called(tmp_path, monkeypatch):
    """A library call shows no progress, so the notes of its runs would be lost."""
    whole = sweep.stored_rounds

    def fails(experiment, folder, **options):
        yield from whole(experiment, folder, **options) if experiment.seed == 0 else ()
        if experiment.seed:
            raise RuntimeError("the GPU is gone")

    runs = plan_runs(QUICK, {}, [0, 1], tmp_path)
    monkeypatch.setattr(sweep, "stored_rounds", fails)
    with pytest.warns(ef.EverfedWarning, match=r"1 of 2 runs are not finished \(run, seed 1: the GPU is gone\)"):
        stored = run_all(runs, jobs=1)
    assert [run.state for run in stored] == ["done"]
    monkeypatch.undo()
    assert [run.state for run in run_all(runs, jobs=1)] == ["done", "done"]
