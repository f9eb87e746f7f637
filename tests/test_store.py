"""Runs that survive: killed at any moment and resumed, a run ends as if it had never been killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

import everfed as ef
from everfed.cli.app import app
from everfed.errors import DivergenceError, EverfedWarning, InputError
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.scheduling.uncertain import Thrifty
from everfed.store import StoreError, open_run, records, stored_rounds
from everfed.store.checkpoint import checkpoints, load_checkpoints, save_checkpoint
from everfed.store.records import RecordsFile, parsed, whole_records
from older_folders import as_older_version

SMALL = Experiment(
    fleet=CycleFleet(8, (1, 2, 4, 8)), rounds=24, batch_size=4, eval_every=6, device="cpu", client=ef.Adam(0.01)
)


def run(experiment: Experiment, folder: Path, **options) -> ef.StoredRun:
    for _ in stored_rounds(experiment, folder, **options):
        pass
    return open_run(folder)


def stop_after(rounds: int):
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen >= rounds

    return stop


def records_of(run: ef.StoredRun) -> list[dict]:
    return [record.to_dict() for record in run.rounds]


def assert_same(a: ef.StoredRun, b: ef.StoredRun) -> None:
    assert a.state == b.state == "done"
    assert records_of(a) == records_of(b)
    assert a.params.keys() == b.params.keys()
    for name, value in a.params.items():
        assert torch.equal(value, b.params[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> ef.StoredRun:
    """The run that was never cut off."""
    return run(SMALL, tmp_path_factory.mktemp("whole") / "run")


def test_a_stored_run_is_the_simulation(whole):
    simulation = ef.start(SMALL)
    history = ef.History(list(simulation), simulation.params)
    assert [replace(r, seconds=0.0).to_dict() for r in history.rounds] == records_of(whole)
    for name, value in history.params.items():
        assert torch.equal(value, whole.params[name])


def test_a_finished_folder_holds_what_it_promises(whole):
    assert {p.name for p in whole.path.iterdir()} == {
        "experiment.toml", "environment.json", "records.arrow", "model.safetensors", "result.json", "lock", "digests",
        checkpoints(whole.path)[0].name,
    }  # fmt: skip
    assert whole.experiment == SMALL
    assert whole.environment["packages"]["torch"] == torch.__version__
    assert (
        whole.environment["packages"]["torch"] == torch.__version__.split("+")[0]
        or whole.environment["packages"]["torch"]
    )
    assert json.loads((whole.path / "result.json").read_text())["metrics"]["accuracy"] == whole.final.accuracy


@pytest.mark.parametrize(
    ("trainer", "used", "at_once", "how"),
    [
        ("auto", "Batched", 8, "by torch.func, since kernels need a GPU"),
        ("batched", "Batched", 8, "by torch.func"),
        ("one-by-one", "OneByOne", 1, "one client at a time"),
    ],
)
def test_a_folder_says_how_the_model_was_trained(tmp_path, trainer, used, at_once, how):
    environment = run(replace(SMALL, trainer=trainer, rounds=8), tmp_path / "run").environment
    assert environment["training"]["trainer"] == used
    assert environment["training"]["at_once"] == at_once
    (part,) = environment["training"]["parts"]
    assert how in part


def test_a_finished_run_is_not_run_again(whole):
    assert list(stored_rounds(SMALL, whole.path)) == []


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize(
    "client", [ef.Adam(0.01), ef.SGD(0.1, momentum=0.9), ef.SGD(0.1)], ids=["adam", "momentum", "sgd"]
)
@pytest.mark.parametrize("method", ["algorithm1", "wait-for-all"])
def test_stopped_after_every_few_rounds_and_resumed_is_the_same(tmp_path, trainer, client, method):
    experiment = replace(SMALL.with_method(method), trainer=trainer, client=client, rounds=16)
    expected = run(experiment, tmp_path / "whole")
    starts = 0
    while (cut := run(experiment, tmp_path / "cut", stop=stop_after(5))).state != "done":
        assert cut.state == "stopped"
        starts += 1
    assert starts == 3
    assert_same(cut, expected)


def test_reset_state_and_trickling_energy_resume_too(tmp_path):
    fleet = CycleFleet(8, (1, 2, 4, 8), arrivals="trickle", capacity=1.0)
    experiment = replace(SMALL, keep_state=False, fleet=fleet)
    expected = run(experiment, tmp_path / "whole")
    run(experiment, tmp_path / "cut", stop=stop_after(11))
    assert_same(run(experiment, tmp_path / "cut"), expected)


def everfed(*arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "everfed", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, **options,
    )  # fmt: skip


def here(*arguments: str) -> None:
    """The command in this process, which has everything imported."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output


KILLED = ["run", "digits-quick", "--rounds", "300", "--clients", "8", "--device", "cpu", "--checkpoint-every", "0.02"]


def wait_for_progress(folder: Path, process: subprocess.Popen, more_than: int) -> None:
    """Until the run has a checkpoint past this round (a kill before that would test nothing)."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if any(int(path.name.split("-")[1]) > more_than for path in checkpoints(folder)):
            return
        time.sleep(0.005)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.long)])
def test_killed_at_random_moments_it_ends_bit_identical(times, tmp_path):
    here(*KILLED, "--out", str(tmp_path / "whole"), "-q")
    chance = random.Random(0)
    folder, kills, reached = tmp_path / "killed", 0, -1
    for _ in range(times):
        process = everfed(*KILLED, "--out", str(folder), "-q")
        wait_for_progress(folder, process, reached)
        time.sleep(chance.uniform(0.0, 0.06))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        reached = max((int(p.name.split("-")[1]) for p in checkpoints(folder)), default=-1)
    here(*KILLED, "--out", str(folder), "-q")
    assert kills == times, f"the run was over after {kills} kills: it must be longer to be killed {times} times"
    assert_same(open_run(folder), open_run(tmp_path / "whole"))


def test_ctrl_c_stops_after_the_round_saves_and_tells_how_to_resume(tmp_path):
    arguments = [*KILLED[:-1], "1000", "--rounds", "5000", "--out", str(tmp_path / "run")]
    process = everfed(*arguments)
    line = ""
    while "round" not in line:
        line = process.stderr.readline()
        assert line, "the run ended before it could be stopped"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "resume with:" in err
    assert "everfed " + " ".join(arguments) in err
    stopped = open_run(tmp_path / "run")
    assert stopped.state == "stopped"
    assert len(stopped.rounds) > 0
    found = next(load_checkpoints(tmp_path / "run"))
    assert found.round == len(stopped.rounds)


def test_a_damaged_checkpoint_is_passed_over_with_a_message_whatever_byte_is_wrong(tmp_path):
    torch.manual_seed(0)
    save_checkpoint(tmp_path, 1, {"model.w": torch.randn(3)}, {"records": "1"})
    newest = save_checkpoint(tmp_path, 2, {"model.w": torch.randn(5)}, {"records": "2"})
    good = newest.read_bytes()
    for place in range(len(good)):
        newest.write_bytes(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
        found = list(load_checkpoints(tmp_path))
        assert found[0] == newest, f"byte {place} of the newest checkpoint is wrong and nobody noticed"
        assert found[1].round == 1
    for length in range(len(good)):
        newest.write_bytes(good[:length])
        assert next(load_checkpoints(tmp_path)) == newest


@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path, whole, harm):
    folder = tmp_path / "run"
    run(SMALL, folder, stop=stop_after(7))
    run(SMALL, folder, stop=stop_after(4))
    newest, before = checkpoints(folder)
    data = newest.read_bytes()
    damaged = {"flip": data[:99] + bytes([data[99] ^ 1]) + data[100:], "cut": data[: len(data) // 2], "empty": b""}
    newest.write_bytes(damaged[harm])
    with pytest.warns(EverfedWarning, match="damaged; using the one before"):
        first = next(stored_rounds(SMALL, folder))
    assert first.round == 7 == int(before.name.split("-")[1])
    assert_same(run(SMALL, folder), whole)


def test_with_every_checkpoint_damaged_the_run_starts_anew(tmp_path, whole):
    folder = tmp_path / "run"
    run(SMALL, folder, stop=stop_after(9))
    for path in checkpoints(folder):
        path.write_bytes(b"no checkpoint")
    with pytest.warns(EverfedWarning, match="damaged"):
        assert_same(run(SMALL, folder), whole)


def test_records_cut_off_in_a_batch_are_read_up_to_it(tmp_path):
    records = list(ef.start(SMALL))
    file = RecordsFile(tmp_path)
    file.truncate(0)
    file.append(records[:10])
    middle, _ = file.sync()
    file.append(records[10:])
    end, _ = file.sync()
    file.close()
    data = (tmp_path / "records.arrow").read_bytes()
    found, complete = whole_records(tmp_path)
    assert complete
    assert len(found) == len(records)
    for length in range(middle, end, 5):
        (tmp_path / "records.arrow").write_bytes(data[:length])
        found, complete = whole_records(tmp_path)
        assert not complete
        assert len(found) == len(parsed(data[:length])) == 10


def test_a_run_can_be_read_while_it_goes_on(tmp_path):
    rounds = stored_rounds(SMALL, tmp_path / "run")
    for _ in range(13):
        next(rounds)
    reading = open_run(tmp_path / "run")
    assert reading.state == "running"
    assert len(reading.rounds) == 12  # up to the last evaluation
    rounds.close()
    assert open_run(tmp_path / "run").state == "stopped"


def test_a_second_process_on_the_same_folder_is_refused(tmp_path):
    folder = tmp_path / "run"
    process = everfed(*KILLED, "--rounds", "100000", "--out", str(folder), "-q")
    try:
        wait_for_progress(folder, process, 0)
        second = everfed(*KILLED, "--rounds", "100000", "--out", str(folder), "-q")
        _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert f"in use by process {process.pid}" in err
    finally:
        process.kill()
        process.communicate()


def test_a_changed_experiment_is_refused_by_name(tmp_path):
    run(SMALL, tmp_path / "run", stop=stop_after(3))
    with pytest.raises(InputError, match=r"client\.lr was 0\.01, now 0\.5; seed was 0, now 3|seed was 0, now 3"):
        next(stored_rounds(replace(SMALL, client=ef.Adam(0.5), seed=3), tmp_path / "run"))


@pytest.mark.parametrize("limit_kib", [6, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 20, 60, 120))])
def test_a_full_disk_stops_with_a_message_and_loses_nothing_before_the_checkpoint(tmp_path, whole, limit_kib):
    """RLIMIT_FSIZE makes every write past the limit fail, as a full disk does."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_kib * 1024}, {limit_kib * 1024}))\n"
        "from pathlib import Path\n"
        "from everfed.run import config\n"
        "from everfed.store import StoreError, stored_rounds\n"
        "experiment = config.from_dict(config.read(Path(sys.argv[1])))\n"
        "try:\n"
        "    for _ in stored_rounds(experiment, Path(sys.argv[2]), checkpoint_s=0.0): pass\n"
        "except StoreError as error:\n"
        "    print(error); sys.exit(7)\n"
    )
    source, folder = tmp_path / "experiment.toml", tmp_path / "run"
    source.write_text((whole.path / "experiment.toml").read_text())
    done = subprocess.run([sys.executable, "-c", code, str(source), str(folder)], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "cannot be written: " in done.stdout
    assert not list(folder.glob("*.unfinished"))
    assert_same(run(SMALL, folder), whole)


WILD = replace(SMALL, client=ef.SGD(1e12), rounds=12)


def test_divergence_stops_at_once_and_names_round_and_clients(tmp_path):
    with pytest.raises(DivergenceError, match=r"diverged in round \d+: the updates of client \d+"):
        run(WILD, tmp_path / "run")
    assert open_run(tmp_path / "run").state == "diverged"
    with pytest.raises(DivergenceError):
        run(WILD, tmp_path / "run")


def test_divergence_keeps_the_last_good_checkpoint(tmp_path):
    good = replace(SMALL, client=ef.SGD(0.1), check_trainer=False)  # which would notice that the step is wrong
    folder = tmp_path / "run"
    run(good, folder, stop=stop_after(5))
    before = checkpoints(folder)[0].name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ef.SGD, "step", lambda self, params, grads, state, lr: params.fill_(float("nan")))
        with pytest.raises(DivergenceError, match="round 5"):
            run(good, folder)
    assert checkpoints(folder)[0].name == before


def test_skip_leaves_non_finite_updates_out_and_records_them(tmp_path):
    """One client's data overflow its update; the others train on."""
    x, y = torch.randn(6, 3).numpy(), [0, 1, 0, 1, 0, 1]
    huge = (1e30 * x, y)
    fleet = ef.Fleet.from_cycles([1, 1, 1])
    settings = {"rounds": 3, "batch_size": 4, "client": ef.SGD(0.1), "device": "cpu"}
    data = [(x, y), (x, y), huge]
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 2))
    with pytest.raises(DivergenceError, match="client 2"):
        ef.simulate(model, data, fleet, "fedavg", **settings)
    history = ef.simulate(model, data, fleet, "fedavg", on_divergence="skip", **settings)
    assert [r.dropped for r in history.rounds] == [(2,)] * 3
    assert all(torch.isfinite(value).all() for value in history.params.values())
    assert not torch.equal(history.params["0.weight"], model[0].weight)


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        open_run(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        next(stored_rounds(SMALL, tmp_path / "file" / "run"))


# -- folders of earlier versions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now", "published"),
    [("mifa", ef.LastUpdates(), ef.Mifa()), ("scaffold", ef.HTScaffold(place="disk"), ef.Scaffold(place="disk"))],
)
def test_a_rule_that_had_another_name_is_read_resumed_and_never_mistaken(was, now, published, tmp_path):
    experiment = replace(SMALL, server=now, client=ef.SGD(0.1), rounds=8)
    whole = run(experiment, tmp_path / "whole")
    run(experiment, tmp_path / "old", stop=stop_after(3))
    file = tmp_path / "old" / "experiment.toml"
    assert file.read_text().startswith("format = 2\n")
    kind = config.to_dict(now)["kind"]
    as_older_version(file.parent, lambda text: text.split("\n", 1)[1].replace(f'kind = "{kind}"', f'kind = "{was}"'))
    assert f'kind = "{was}"' in file.read_text()
    assert open_run(tmp_path / "old").experiment == experiment
    with pytest.raises(InputError, match=rf"server.kind was '[a-z-]+', now '{was}'"):
        run(replace(experiment, server=published), tmp_path / "old")
    assert_same(run(experiment, tmp_path / "old"), whole)
    # Run again from its file, it is still what it was; a hand-written file means the published rule.
    assert config.from_dict(config.read(file)) == experiment
    by_hand = tmp_path / "mine.toml"
    by_hand.write_text(f'server = {{ kind = "{was}", place = "{published.place}" }}\n')
    assert config.from_dict(config.read(by_hand)).server == published
    by_hand.write_text(config.to_file(replace(experiment, server=published)))
    assert config.from_dict(config.read(by_hand)).server == published


def test_an_option_that_had_another_name_is_read_and_resumed(tmp_path):
    fleet = CycleFleet(8, (1, 2), arrivals="bernoulli", capacity=3.0)
    experiment = replace(SMALL, fleet=fleet, policy=Thrifty(min_units=2, chance=0.5), rounds=8)
    whole = run(experiment, tmp_path / "whole")
    run(experiment, tmp_path / "old", stop=stop_after(3))
    file = tmp_path / "old" / "experiment.toml"
    as_older_version(file.parent, lambda text: text.replace("min_units = 2", "least = 2"))
    assert "least = 2" in file.read_text()
    assert open_run(tmp_path / "old").experiment == experiment
    assert_same(run(experiment, tmp_path / "old"), whole)


def test_a_file_of_a_later_version_is_refused(tmp_path):
    with pytest.raises(InputError, match="format is 3, but this version of everfed reads formats up to 2"):
        config.from_dict({"format": 3})


def test_records_of_a_version_without_metrics_of_ones_own_are_read_and_added_to(tmp_path, monkeypatch):
    first, second = start(Experiment(rounds=2, eval_every=1, device="cpu", fleet=CycleFleet(clients=4)))
    with monkeypatch.context() as older:
        older.setattr(records, "_SCHEMA", pa.schema(list(records._SCHEMA)[:-4]))
        file = RecordsFile(tmp_path)
        file.truncate(0)
        file.append([first])
        length, _ = file.sync()
        file.close()
    file = RecordsFile(tmp_path)
    file.truncate(length)
    file.append([second])
    file.close()
    known = [replace(record.metrics, breakdown={}) for record in (first, second)]
    assert [record.metrics for record in whole_records(tmp_path)[0]] == known
