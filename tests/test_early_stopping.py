"""Early stopping: its validation set, the model it keeps, and runs that end before their last round."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import everfed as ef
from everfed.cli.app import app
from everfed.data.dataset import Dataset
from everfed.data.held_out import held_out, held_out_of_clients
from everfed.data.owners import Owners
from everfed.errors import EverfedWarning, InputError
from everfed.run import config
from everfed.run.early_stopping import Course
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.store import open_run, stored_rounds
from everfed.store.check import check_run
from everfed.store.checkpoint import checkpoints

WATCH = ef.EarlyStopping(part=0.2, patience=2)
SMALL = Experiment(
    fleet=CycleFleet(6, (1, 2)), rounds=12, batch_size=4, eval_every=1, device="cpu", trainer="batched",
    client=ef.SGD(0.3, momentum=0.9), seed=1, early_stopping=WATCH, check_trainer=False,
)  # fmt: skip


def run(experiment: Experiment, folder: Path, **options) -> ef.StoredRun:
    for _ in stored_rounds(experiment, folder, **options):
        pass
    return open_run(folder)


def told(found: ef.History) -> list[dict]:
    return [replace(record, seconds=0.0).to_dict() for record in found.rounds]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def flat(run_: ef.Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run_.params.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> ef.StoredRun:
    return run(SMALL, tmp_path_factory.mktemp("whole") / "run")


def test_it_ends_when_the_metric_has_not_improved_for_so_long_and_keeps_the_best(whole):
    made = start(SMALL)
    models = [(record, flat(made)) for record in made]
    losses = [record.validation.loss for record, _ in models]
    best = int(np.argmin(losses))
    assert 0 < best == len(losses) - 1 - WATCH.patience < SMALL.rounds - 1 - WATCH.patience
    assert whole.state == "done"
    assert whole.model_round == best + 1
    assert same(whole.params, models[best][1])
    assert not same(whole.params, models[-1][1])
    assert told(whole) == [replace(record, seconds=0.0).to_dict() for record, _ in models]
    assert whole.final == whole.rounds[best].metrics
    assert whole.validation == whole.rounds[best].validation
    assert whole.curve("loss", on="validation") == (list(range(1, len(losses) + 1)), losses)
    assert whole.curve("loss")[1] != losses
    simulated = ef.simulate(SMALL)
    assert same(simulated.params, whole.params)
    assert (simulated.model_round, simulated.final) == (whole.model_round, whole.final)


def test_the_result_says_so(whole):
    result = json.loads((whole.path / "result.json").read_text())
    assert (result["state"], result["rounds"], result["rounds_done"]) == ("done", 12, len(whole.rounds))
    assert (result["stopped_early"], result["model_round"]) == (True, whole.model_round)
    assert result["validation"] == whole.validation.to_dict()
    assert result["metrics"] == whole.final.to_dict()
    assert list(stored_rounds(SMALL, whole.path)) == []  # it is done


def test_cut_off_after_any_round_it_ends_alike(whole, tmp_path):
    for cut in range(1, len(whole.rounds)):
        folder = tmp_path / str(cut)
        seen = iter(range(1, 100))
        assert run(SMALL, folder, stop=lambda seen=seen, cut=cut: next(seen) >= cut).state == "stopped"
        again = run(SMALL, folder)
        assert (again.state, again.model_round) == ("done", whole.model_round)
        assert told(again) == told(whole)
        assert same(again.params, whole.params)


def test_a_kill_between_the_last_round_and_the_result_loses_nothing(whole, tmp_path):
    folder = shutil.copytree(whole.path, tmp_path / "run")
    (folder / "result.json").unlink()
    (folder / "model.safetensors").unlink()
    assert open_run(folder).state == "stopped"
    verdict = check_run(folder)
    assert (verdict.state, len(verdict.repaired)) == ("done", 2)
    for name in ("result.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_more_rounds_or_patience_go_on_as_if_they_had_been_there(whole, tmp_path):
    more = replace(SMALL, early_stopping=replace(WATCH, patience=0))
    folder = shutil.copytree(whole.path, tmp_path / "patient")
    extended, fresh = run(more, folder), run(more, tmp_path / "fresh")
    assert len(extended.rounds) == SMALL.rounds > len(whole.rounds)
    assert told(extended) == told(fresh)
    assert same(extended.params, fresh.params)
    with pytest.raises(InputError, match=r"early_stopping\.patience was 0, now 2"):
        run(SMALL, folder)
    longer = replace(SMALL, rounds=20)
    folder = shutil.copytree(whole.path, tmp_path / "longer")
    assert list(stored_rounds(longer, folder)) == []  # more rounds do not change where it stopped
    assert (open_run(folder).state, open_run(folder).experiment.rounds) == ("done", 20)
    odd = replace(more, eval_every=5, rounds=6)
    run(odd, tmp_path / "odd")
    with pytest.raises(InputError, match="evaluated after other rounds"):
        run(replace(odd, rounds=10), tmp_path / "odd")


def test_the_last_model_can_be_kept(whole):
    last = ef.simulate(replace(SMALL, early_stopping=replace(WATCH, keep="last")))
    assert (last.model_round, len(last.rounds)) == (len(whole.rounds), len(whole.rounds))
    assert not same(last.params, whole.params)


def test_the_test_set_is_the_same_and_training_never_sees_the_validation_set():
    plain, watched = (start(replace(SMALL, early_stopping=e)).setup for e in (ef.EarlyStopping(), WATCH))
    assert np.array_equal(plain.data.test_x, watched.data.test_x)
    x, y = watched.held
    assert len(y) == round(0.2 * len(plain.data.y))
    assert len(y) + len(watched.data.order) == len(plain.data.order)
    rows = {row.tobytes() for row in plain.data.x}
    assert {row.tobytes() for row in watched.data.x} | {row.tobytes() for row in x} == rows
    both = start(replace(SMALL, validation=0.1)).setup  # held out for tuning, and for stopping
    assert len(both.data.test_y) == round(0.1 * len(plain.data.y))
    assert len(both.held[1]) == round(0.2 * round(0.9 * len(plain.data.y)))
    one, two = (held_out(plain.data.y, 10, 0.2, 0, stream=stream)[1] for stream in (0, 1))
    assert not np.array_equal(one, two)


def test_hold_outs_are_stratified_by_class_or_by_owner_or_of_whole_owners():
    y = np.repeat([0, 1, 2], [100, 50, 10])
    kept, held = held_out(y, 3, 0.2, 0)
    assert np.bincount(y[held]).tolist() == [20, 10, 2]
    assert sorted([*kept, *held]) == list(range(160))
    tokens = np.zeros((160, 4), np.int64)
    assert len(held_out(tokens, 3, 0.2, 0)[1]) == 32
    owners = np.repeat([0, 1, 2], [100, 50, 1])
    kept, held = held_out(tokens[:151], 3, 0.9, 0, owners=owners)
    assert np.bincount(owners[held], minlength=3).tolist() == [91, 45, 0]  # 136 in all
    kept, held = held_out(tokens[:151], 3, 0.34, 0, owners=owners, by="client")
    assert len(np.unique(owners[held])) == 1
    assert not set(owners[held]) & set(owners[kept])
    with pytest.raises(InputError, match="leaves no samples on one side"):
        held_out(np.zeros(3), 0, 0.9, 0, owners=np.arange(3))
    with pytest.raises(InputError, match="leaves none to train"):
        held_out(y, 3, 0.9, 0, owners=np.zeros(160, np.int64), by="client")


def test_natural_clients_give_of_their_samples_or_are_held_out_whole():
    owners = Owners(np.repeat(np.arange(8), 10), np.arange(16) // 2, tuple("abcdefgh"))
    x = np.arange(80, dtype=np.float32)[:, None] // 10
    data = Dataset("own", x, np.arange(80) % 2, x[::5], np.arange(16) % 2, 2, owners=owners)
    own = replace(SMALL, data=data, model="mlp", early_stopping=replace(WATCH, part=0.25))
    clients, (held, _) = own.make_parts(own.make_fleet())
    assert sorted(clients.sizes()) == [7, 7, 7, 8, 8, 8]
    assert set(held.ravel()) == {clients.x[clients.samples_of(i)[0], 0] for i in range(6)}  # of the fleet's alone
    whole = replace(own, early_stopping=replace(own.early_stopping, by="client"))
    clients, (held, _) = whole.make_parts(own.make_fleet())
    assert clients.sizes().tolist() == [10] * 6
    assert len(held) == 20
    assert not set(held.ravel()) & set(clients.x[clients.order].ravel())
    assert len(clients.test_y) == 16  # the test samples of those held out stay, as nobody's
    assert sorted(clients.test_owner) == [*([-1] * 4), *np.repeat(range(6), 2)]
    assert start(whole).setup.watch() is not None
    many = replace(whole, fleet=CycleFleet(8, (1, 2)))
    with pytest.raises(InputError, match=r"6.*8|8.*6"):  # those held out are missing
        many.make_parts(many.make_fleet())


def test_split_data_keep_a_sample_of_every_client():
    sizes = (10, 1, 29)
    data = ef.from_arrays([(np.full((n, 2), i), np.arange(n) % 2) for i, n in enumerate(sizes)])
    kept, (x, _) = held_out_of_clients(data, 0.2, "sample", 0)
    assert kept.sizes().tolist() == [8, 1, 23]
    assert np.bincount(x[:, 0].astype(int)).tolist() == [2, 0, 6]
    assert all(set(data.x[kept.samples_of(i)].ravel()) == {i} for i in range(3))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"patience": 3}, "part is 0"),
        ({"part": 0.1, "metric": "acuracy"}, "unknown early_stopping.metric 'acuracy'. Did you mean 'accuracy'"),
        ({"part": 0.1, "metric": "loss", "keep": "first"}, "it must be 'best' or 'last'"),
        ({"part": 1.5}, "part is 1.5"),
        ({"part": 0.1, "bi": "client"}, "unknown key 'early_stopping.bi'"),
    ],
)
def test_bad_tables_are_refused_in_words(keys, said):
    with pytest.raises(InputError, match=said):
        config.from_dict({"early_stopping": keys})


def test_data_that_cannot_hold_out_are_refused_in_words():
    by_client = replace(WATCH, by="client")
    with pytest.raises(InputError, match="no natural clients"):
        start(replace(SMALL, early_stopping=by_client))
    with pytest.raises(InputError, match="cannot hold samples out for early_stopping"):
        start(replace(SMALL, data="synthetic"))
    pairs = [(np.zeros((4, 2)), [0, 1, 0, 1])] * 6
    with pytest.raises(InputError, match="already split"):
        start(replace(SMALL, data=pairs, split=Experiment.split, early_stopping=by_client))
    targets = [(np.zeros((4, 2), np.float32), np.arange(4, dtype=np.float32)[:, None])] * 6
    fit = replace(SMALL, data=targets, model=torch.nn.Linear(2, 1))
    assert start(fit).setup.held[1].shape == (5, 1)
    with pytest.raises(InputError, match=r"'accuracy', which the validation set .* it has loss, mae, r2"):
        start(replace(fit, early_stopping=replace(WATCH, metric="accuracy")))


def test_own_metrics_and_their_directions():
    def distrust(outputs, targets):
        return (outputs.argmax(1) != targets).float().mean()

    own = replace(SMALL, metrics=(distrust,), early_stopping=replace(WATCH, part=0.1))
    with pytest.raises(InputError, match="say which values are better"):
        replace(own, early_stopping=replace(WATCH, metric="distrust"))
    lower = ef.simulate(replace(own, early_stopping=replace(WATCH, metric="distrust", better="lower")))
    higher = ef.simulate(replace(own, early_stopping=replace(WATCH, metric="accuracy")))
    assert lower.model_round == higher.model_round
    assert lower.validation.accuracy == max(lower.curve(on="validation")[1])


def test_a_nan_is_no_improvement_and_told_once():
    going_on = []

    def broken(outputs, targets):
        return math.nan if going_on else 0.5

    watch = replace(WATCH, metric="broken", better="higher")
    made = start(replace(SMALL, metrics=(broken,), early_stopping=watch))
    going_on.append(True)
    with pytest.warns(EverfedWarning, match="is NaN after round 1") as said:
        found = made.history(list(made))
    assert sum("NaN" in str(warning.message) for warning in said) == 1
    assert (len(found.rounds), found.model_round) == (2, 2)
    course = Course(WATCH)
    steps = [course.add(ef.Metrics(value), i + 1) for i, value in enumerate([math.nan, 2.0, 2.0, math.nan, 1.0])]
    assert (steps, course.done, course.since) == ([False, True, False, False, True], 5, 0)


def test_files_without_it_are_as_they_were_and_those_with_it_come_back():
    plain = replace(SMALL, early_stopping=ef.EarlyStopping())
    assert "early_stopping" not in config.to_toml(plain)
    assert config.from_dict(config.parse(config.to_toml(SMALL))) == SMALL
    raw = {"rounds": 3}
    config.change(raw, "early_stopping.part", 0.1)
    assert config.from_dict(raw).early_stopping == ef.EarlyStopping(part=0.1)


def test_the_commands_count_it_as_done(tmp_path):
    words = ["--rounds", "12", "--clients", "6", "--cycles", "1,2", "--eval-every", "1", "--lr", "3", "--quiet"]
    words += ["--schedule", "constant", "--device", "cpu", "--out", str(tmp_path / "run"), "--trainer", "batched"]
    words += ["--set", "early_stopping.part=0.2", "--set", "early_stopping.patience=1"]
    shown = CliRunner().invoke(app, ["run", "digits", *words])
    assert "stopped early after" in shown.stdout, shown.output
    row = json.loads(CliRunner().invoke(app, ["runs", str(tmp_path), "--json"]).stdout)[0]
    assert (row["state"], row["stopped_early"]) == ("done", True)
    assert row["rounds_done"] < row["rounds"] == 12
    assert "done early" in CliRunner().invoke(app, ["runs", str(tmp_path)]).stdout
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0
    page = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(page)]).exit_code == 0
    assert len(checkpoints(tmp_path / "run")) == 1
