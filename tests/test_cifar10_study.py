"""The study of experiments/cifar10.py, in small: rates chosen as it says, no run done twice, statistics as scipy's."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import everfed as ef
from everfed import methods, presets
from everfed.data.augment import CentreCrop
from everfed.data.images import Cifar10
from everfed.run import config
from everfed.stats import holm, summarize

SCRIPT = Path(__file__).parents[1] / "experiments" / "cifar10.py"
PAPER = config.from_dict(presets.content("paper-cifar10"))
SMALL = replace(config.from_dict(presets.content("digits-quick")), rounds=10, eval_every=1, device="cpu")
MODULES = (
    "cifar10",
    "cifar10_figures",
    "cifar10_plan",
    "cifar10_tables",
    "intervals",
    "held_out",
    "non_iid",
    "non_iid_tables",
    "study_runs",
    "watched",
)


@pytest.fixture(scope="module")
def cifar10():
    """The script as a module; processes that it starts must find it too, hence the path."""
    sys.path.insert(0, str(SCRIPT.parent))
    import cifar10

    yield cifar10
    sys.path.remove(str(SCRIPT.parent))
    for name in MODULES:
        sys.modules.pop(name, None)
    ef.DATASETS.pop("held-out", None)  # registered by one of them, and no kind of other tests


@pytest.fixture(scope="module")
def told(cifar10):
    import cifar10_tables

    return cifar10_tables


@pytest.fixture(scope="module")
def intervals(cifar10):
    import intervals

    return intervals


@pytest.fixture
def small(cifar10):
    """Two methods, a rate that is tuned and one that is fixed."""
    case = cifar10.Case("by-energy 1", "sgd", 10)
    stages = (
        cifar10.Stage(case, ("algorithm1", "greedy"), (1, 2), rates=(0.2, 0.4)),
        cifar10.Stage(case, ("greedy",), (1, 2), fixed=0.05),
    )
    return cifar10.Study(SMALL, stages, held_out=300, reuse=False)


def done_with(study, scores):
    """What would be known if tuning runs had these accuracies, by (method, rate), as far as they are asked for."""
    done = {}
    while todo := [run for run in study.runs(done) if run.part == "tune" and run.name not in done]:
        done |= {run.name: {**run.values(), "last5": scores[run.method](run.rate)} for run in todo}
    return done


def test_the_grid_goes_on_beyond_its_edge_until_the_best_is_inside(small):
    rising, falling = (lambda rate: min(rate, 0.8) - 0.01 * rate), (lambda rate: -rate)
    done = done_with(small, {"algorithm1": rising, "greedy": falling})
    tried = {m: sorted(d["rate"] for d in done.values() if d["method"] == m) for m in ("algorithm1", "greedy")}
    assert tried["algorithm1"] == [0.2, 0.4, 0.8, 1.6]
    assert tried["greedy"] == [0.01, 0.02, 0.05, 0.1, 0.2, 0.4]  # down to the end of the ladder
    finals = {(run.method, run.rate, run.seed) for run in small.runs(done) if run.part == "final"}
    assert finals == {(m, r, s) for m, r in (("algorithm1", 0.8), ("greedy", 0.01)) for s in (1, 2)}


def test_a_fixed_rate_that_was_chosen_is_not_run_again(small):
    at = {"algorithm1": lambda rate: -abs(rate - 0.3), "greedy": lambda rate: -abs(rate - 0.05)}
    done = done_with(small, at)
    assert {run.part for run in small.runs(done)} == {"tune", "final"}
    assert any(run.part == "fixed" for run in small.runs({}))


def test_the_plan_counts_every_run_once(cifar10, small):
    from cifar10_plan import plan

    rows = [row.split(" | ") for row in plan(replace(small, stages=(*small.stages, *small.stages)), {}).splitlines()]
    assert [row[2] for row in rows[2:6]] == ["4 tune, 4 final", "2 fixed", "done", "done"]


def test_no_final_run_has_the_seed_of_the_tuning(cifar10):
    stages = cifar10.stages()
    assert all(cifar10.TUNING_SEED not in stage.seeds for stage in stages)
    assert all(set(stage.rates) <= set(cifar10.LADDERS[stage.case.client]) for stage in stages)
    assert cifar10.COMPARED == methods.COMPARED


def test_rates_of_the_earlier_study_are_taken_over_where_all_else_is_the_same(cifar10):
    study = cifar10.Study(PAPER, (cifar10.stages()[1],))
    assert {run.rate for run in study.runs({})} == {0.2, 0.4}
    assert {run.rate for run in replace(study, reuse=False).runs({})} == {0.02, 0.05, 0.1, 0.2, 0.4}
    assert not {run.name for run in replace(study, stages=cifar10.stages()[:1]).runs({})} & set(cifar10.earlier())


def test_tuning_sees_held_out_images_and_tests_see_the_test_set(cifar10, small):
    case = cifar10.Case("iid", "sgd", 10)
    tune, final = (small.experiment(cifar10.Run(p, case, "greedy", 0.1, 0)) for p in ("tune", "final"))
    assert final.data == SMALL.data
    assert (tune.data.of, tune.data.count) == (SMALL.data, 300)
    assert config.from_dict(config.to_dict(tune)) == tune  # its folder tells what it was


def test_controls_change_what_they_say(cifar10, small):
    study = replace(small, base=PAPER)

    def made(method, augment="none"):
        return study.experiment(cifar10.Run("fixed", cifar10.Case("iid", "adam", 10, augment), method, 1e-3, 1))

    assert made("fedavg").data == Cifar10(augment=CentreCrop(24))
    assert made("fedavg", "crop+flip").data == PAPER.data
    assert made("fedavg-small-steps").server_optimizer.lr == 0.3375
    assert made("fedavg-small-steps").method == "fedavg"
    quarter = made("fedavg-quarter")
    assert (quarter.fleet.clients, quarter.data.train_limit) == (10, 50_000 // 4)
    assert made("best-powered-only").fleet.offsets[0] == 0


def test_started_again_it_does_what_is_missing_and_ends_with_the_same_results(cifar10, small, told, tmp_path, capsys):
    done = cifar10.carry_out(small, tmp_path)
    assert not [run for run in small.runs(done) if run.name not in done]
    assert {run["part"] for run in done.values()} == {"tune", "final", "fixed"}
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == len(done)
    gone = next(folder for folder in folders if folder.name.startswith("algorithm1-seed=0"))  # a tuning run
    shutil.rmtree(gone)
    capsys.readouterr()
    assert cifar10.carry_out(small, tmp_path) == done
    assert sorted(tmp_path.iterdir()) == folders
    assert capsys.readouterr().out.count("accuracy") == 1
    assert "nan" not in told.tables(small.records(tmp_path))
    assert cifar10.read(replace(small, base=replace(SMALL, rounds=9)), tmp_path) == {}  # runs of another set-up


def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    command = [sys.executable, str(SCRIPT), "run", "--preset", "digits", "--device", "cpu", "--precision", "float32"]
    command += ["--held-out", "300", "--jobs", "2", "--results", str(tmp_path), "--stages", "1"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers = wait_for(lambda: spawned(parent.pid) if len(spawned(parent.pid)) == 2 else None)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_for(lambda: not any(map(alive, workers)))


def spawned(pid):
    """The processes that were started to work for this one, by their command lines."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = children.read_text().split() if children.exists() else []
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to pass in time")


def test_intervals_and_tests_are_those_of_scipy(intervals):
    rng = np.random.default_rng(0)
    one, other = rng.normal(0.7, 0.02, 6), rng.normal(0.69, 0.02, 6)
    found = summarize(one.tolist())
    low, high = stats.t.interval(0.95, 5, loc=one.mean(), scale=stats.sem(one))
    assert found.interval == pytest.approx((low, high))
    difference = intervals.paired(dict(enumerate(one)), dict(enumerate(other)) | {9: 0.1})
    assert difference.p == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert difference.mean == pytest.approx((one - other).mean())
    assert intervals.paired({1: 0.5}, {2: 0.5}) is None
    assert intervals.gain(None) == ""
    assert intervals.gain(intervals.paired({1: 0.5}, {1: 0.25})) == "+25.0 (no test)"
    assert intervals.text(summarize([0.5])) == "50.0"  # one seed has no spread


def test_holm_corrects_for_all_tests_and_keeps_their_order():
    # A test without a p value counts as one of the family.
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.04, None, 0.09, 0.09], nan_ok=True)
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_tables_json_and_pictures_from_the_runs(cifar10, told, tmp_path):
    made = []
    rng = np.random.default_rng(0)
    for case in (cifar10.Case("iid", "adam"), cifar10.Case("iid", "adam", 10), cifar10.Case("by-energy 1", "sgd")):
        for level, method in enumerate(cifar10.COMPARED):
            runs = [cifar10.Run("final", case, method, 0.1, seed) for seed in (1, 2, 3)]
            for run in [*runs, cifar10.Run("tune", case, method, 0.1, 0)]:
                values = (0.5 + 0.1 * level + rng.normal(0, 0.01, 10)).round(5).tolist()
                figures = dict.fromkeys(("last", "last5", "worst", "rare", "late_variation"), values[-1])
                made.append(
                    {
                        **run.values(), **figures, "train_loss": 1.0, "rounds": list(range(10)), "accuracy": values,
                        "energy": {"harvested": 3.0, "spent": 2.0, "wasted": 1.0},
                    }
                )  # fmt: skip
    told.write(made, {"rounds": 10}, tmp_path)
    runs = told.load(tmp_path)
    assert told.tables(runs) == told.tables(made)
    assert len(json.loads((tmp_path / "cifar10.json").read_text())["runs"]) == 2 * 16
    values = [[run["last"] for run in runs if run["part"] == "final" and run["method"] == m and run["batch"] == 10]
              for m in ("algorithm1", "greedy")]  # fmt: skip
    gain = 100 * (np.array(values[0]) - np.array(values[1]))
    assert f"| batch 10 | {gain.mean():+.1f} ± {4.302653 * gain.std(ddof=1) / 3**0.5:.1f} (p " in told.tables(runs)
    import cifar10_figures

    cifar10_figures.draw(tmp_path, tmp_path)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("cifar10.png", "non_iid.png"))


def test_the_pages_say_what_the_json_says(told, tmp_path):
    """Their tables, filled in again from the published JSON, are the published ones."""
    docs = SCRIPT.parents[1] / "docs" / "results"
    for name in ("cifar10.json", "non_iid.json", "cifar10.md", "non_iid.md"):
        (tmp_path / name).write_bytes((docs / name).read_bytes())
    told.fill(tmp_path, tmp_path)
    for name in ("cifar10.md", "non_iid.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (docs / name).read_text(encoding="utf-8")
