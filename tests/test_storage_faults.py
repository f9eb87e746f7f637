"""What may go wrong around a run's folder: crashes and errors at every storage call, writers beside each other, other
versions, foreign checkpoints, less memory, leftovers, refused and extended experiments."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import everfed as ef
from everfed.errors import EverfedWarning, InputError
from everfed.learning.optim import Cosine
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import RunFolder, StoreError, files, find_runs, lock, open_run, runner, stored_rounds
from everfed.store.checkpoint import checkpoints
from everfed.store.digests import Digests, write_of_run
from everfed.store.records import RecordsFile
from everfed.versions import versions

SMALL = Experiment(
    fleet=CycleFleet(4, (1, 2)), rounds=6, batch_size=4, eval_every=2, device="cpu", client=ef.Adam(0.01),
    check_trainer=False,
)  # fmt: skip


def stop_after(rounds: int):
    left = iter(range(rounds - 1, -1, -1))
    return lambda: next(left, 0) == 0


def run(experiment: Experiment, folder: Path, **options) -> ef.StoredRun:
    for _ in stored_rounds(experiment, folder, **options):
        pass
    return open_run(folder)


def assert_same(a: ef.StoredRun, b: ef.StoredRun, metrics: bool = True) -> None:
    assert a.state == b.state == "done"
    kept = [{k: v for k, v in r.to_dict().items() if metrics or k != "metrics"} for run in (a, b) for r in run.rounds]
    assert kept[: len(a.rounds)] == kept[len(a.rounds) :]
    assert a.params.keys() == b.params.keys()
    assert all(torch.equal(value, b.params[name]) for name, value in a.params.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> ef.StoredRun:
    return run(SMALL, tmp_path_factory.mktemp("whole") / "run", checkpoint_s=0.0)


# -- every storage call ----------------------------------------------------------------------------

CALLS = [
    (os, "replace"), (os, "fsync"), (os, "ftruncate"), (os, "unlink"), (os, "mkdir"), (os, "chmod"), (shutil, "rmtree"),
    (Path, "write_bytes"), (files, "save_file"), (RecordsFile, "append"), (Digests, "add"),
]  # fmt: skip


class Counting:
    """Storage calls are counted, and at one of them something happens: `before` or after it."""

    def __init__(self, at: int = -1, what=None, before: bool = True) -> None:
        self.at, self.what, self.before, self.count = at, what, before, 0

    def __enter__(self) -> Counting:
        self.stack = ExitStack()
        for place, name in CALLS:
            self.stack.enter_context(patch.object(place, name, self._counted(getattr(place, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _counted(self, call):
        def counted(*arguments, **options):
            self.count += 1
            mine = self.count == self.at
            if mine and self.before:
                self.what()
            try:
                return call(*arguments, **options)
            finally:
                if mine and not self.before:
                    self.what()

        return counted


def number_of_calls(folder: Path) -> int:
    with Counting() as counting:
        run(SMALL, folder, checkpoint_s=0.0)
    return counting.count


def crashed(folder: Path, at: int, before: bool) -> None:
    """Run in a process that ends without a word at this call."""
    child = os.fork()
    if child == 0:
        with Counting(at, lambda: os._exit(9), before):
            run(SMALL, folder, checkpoint_s=0.0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_storage_call_costs_nothing(tmp_path, whole, step):
    calls = number_of_calls(tmp_path / "counted")
    assert calls > 60
    for at in range(1, calls + 1, step):
        for before in (True, False):
            folder = tmp_path / f"{at}-{before}"
            crashed(folder, at, before)
            assert_same(run(SMALL, folder), whole)
            assert not [*folder.glob("*.unfinished"), *folder.glob(".tmp*"), *folder.glob("unfinished")]
            shutil.rmtree(folder)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.long)])
def test_an_error_at_any_storage_call_is_one_sentence(tmp_path, whole, step, number):
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    calls = number_of_calls(tmp_path / "counted")
    for at in range(1, calls + 1, step):
        folder = tmp_path / str(at)
        try:
            with Counting(at, fail):
                run(SMALL, folder, checkpoint_s=0.0)
        except StoreError as error:
            said = str(error)
        else:
            said = os.strerror(number)  # where nothing depends on the call
        assert os.strerror(number) in said
        assert_same(run(SMALL, folder), whole)
        shutil.rmtree(folder)


# -- two writers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", range(5))
def test_with_a_lock_that_lies_the_first_writer_stops(tmp_path, whole, rounds, monkeypatch):
    monkeypatch.setattr(lock, "lock_descriptor", lambda *arguments, **options: True)
    first = stored_rounds(SMALL, tmp_path / "run", checkpoint_s=0.0)
    for _ in range(rounds):
        next(first)
    second = stored_rounds(SMALL, tmp_path / "run", checkpoint_s=0.0)
    next(second)
    if rounds == 0:  # it has not begun, and now takes the place
        for _ in first:
            pass
        with pytest.raises(StoreError, match="taken over by process"):
            list(second)
    else:
        with pytest.raises(StoreError, match="taken over by process"):
            list(first)
        list(second)
    assert_same(open_run(tmp_path / "run"), whole)


# -- other code, other experiments -----------------------------------------------------------------


def test_a_run_is_not_resumed_by_other_versions_unless_that_is_said(tmp_path, whole, monkeypatch):
    folder = tmp_path / "run"
    run(SMALL, folder, stop=stop_after(3))
    monkeypatch.setattr(runner, "versions", lambda: {**versions(), "torch": "9.9"})
    with pytest.raises(InputError, match=r"was begun with torch 2\.\S+, now 9\.9: going on would mix them"):
        run(SMALL, folder)
    assert_same(run(SMALL, folder, mixed_versions=True), whole)


def test_altered_code_does_not_resume_a_run(tmp_path):
    source = Path(ef.__file__).parent
    shutil.copytree(source, tmp_path / "src" / "everfed", ignore=shutil.ignore_patterns("__pycache__"))
    rule = tmp_path / "src" / "everfed" / "learning" / "optim.py"
    text = rule.read_text()
    assert "return optimizer.lr * optimizer" in text
    rule.write_text(text.replace("return optimizer.lr * optimizer", "return 0.5 * optimizer.lr * optimizer"))
    run(SMALL, tmp_path / "run", stop=stop_after(3))
    command = [sys.executable, "-m", "everfed", "run", str(tmp_path / "run" / "experiment.toml")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert "was begun with everfed code" in done.stderr


def test_a_checkpoint_of_another_seed_is_not_taken(tmp_path, whole):
    folder, other = tmp_path / "run", tmp_path / "other"
    run(SMALL, folder, stop=stop_after(3))
    run(replace(SMALL, seed=1), other, stop=stop_after(3))
    (mine,), (foreign,) = checkpoints(folder), checkpoints(other)
    mine.unlink()
    shutil.copy(foreign, folder)
    with pytest.warns(EverfedWarning, match="is of another experiment"):
        assert_same(run(SMALL, folder), whole)


def test_a_refused_experiment_leaves_no_folder(tmp_path, whole):
    def refuse(experiment):
        raise InputError("not like this")

    with pytest.raises(InputError, match="not like this"):
        run(SMALL, tmp_path / "run", make=refuse)
    assert not (tmp_path / "run").exists()


def test_an_experiment_that_has_trained_nothing_gives_way_to_another(tmp_path, whole):
    folder = tmp_path / "run"
    held = RunFolder(folder)
    held.hold(replace(SMALL, client=ef.SGD(3.0)))
    held.release()
    assert_same(run(SMALL, folder), whole)
    with pytest.raises(InputError, match="holds a different experiment"):
        run(replace(SMALL, batch_size=3), folder)


# -- more rounds -----------------------------------------------------------------------------------

METHODS = ["algorithm1", "greedy", "wait-for-all", "fedavg", "fedau", "mifa", "scaffold", "lattice"]


@pytest.mark.parametrize("method", [name for name in METHODS if name in ef.METHODS])
def test_an_extended_run_is_one_that_was_always_longer(tmp_path, method):
    longer = replace(SMALL.with_method(method), client=ef.SGD(0.1))
    shorter = replace(longer, rounds=3)
    assert run(shorter, tmp_path / "run").state == "done"
    assert_same(run(longer, tmp_path / "run"), run(longer, tmp_path / "whole"), metrics=False)
    with pytest.raises(InputError, match="rounds was 6, now 3"):
        run(shorter, tmp_path / "run")


def test_what_depends_on_the_number_of_rounds_is_not_extended(tmp_path):
    cosine = replace(SMALL, client=ef.SGD(0.1, schedule=Cosine()), rounds=3)
    run(cosine, tmp_path / "run")
    with pytest.raises(InputError, match="its learning rates follow the number of rounds"):
        run(replace(cosine, rounds=6), tmp_path / "run")
    assert open_run(tmp_path / "run").state == "done"


def test_without_its_last_checkpoint_a_run_is_not_extended(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_LARGEST_KEPT", 10)
    run(replace(SMALL, rounds=3), tmp_path / "run")
    assert not checkpoints(tmp_path / "run")
    with pytest.raises(InputError, match="its last checkpoint was not kept"):
        run(SMALL, tmp_path / "run")


# -- the rest --------------------------------------------------------------------------------------


def test_a_run_keeps_the_chunks_it_began_with(tmp_path):
    """With chunks of another size the last bits differ, so less free memory must not change them."""
    many = replace(SMALL.with_method("fedavg"), fleet=CycleFleet(12, (1,)))
    expected = run(many, tmp_path / "whole", memory_budget=300_000)
    run(many, tmp_path / "run", memory_budget=300_000, stop=stop_after(3))
    assert_same(run(many, tmp_path / "run"), expected)
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())["starts"]
    at_once = [start["training"]["at_once"] for start in starts]
    assert at_once[0] == at_once[1] < 12


def test_what_interrupted_writes_left_is_removed(tmp_path, whole):
    folder = tmp_path / "run"
    run(SMALL, folder, stop=stop_after(3))
    (folder / "unfinished").mkdir()
    for name in (".tmpXmcQCy", "checkpoint-0000000009.unfinished", "unfinished/tensors"):
        (folder / name).write_bytes(bytes(1000))
    with pytest.warns(EverfedWarning, match="interrupted writes had left"):
        assert_same(run(SMALL, folder), whole)
    assert {path.name[:10] for path in folder.iterdir()} == {path.name[:10] for path in whole.path.iterdir()}


def test_others_may_read_what_the_umask_allows(whole):
    modes = {path.name: path.stat().st_mode & 0o777 for path in whole.path.iterdir() if path.is_file()}
    assert len(set(modes.values())) == 1, modes


def test_a_folder_of_a_later_format_is_refused_in_words(tmp_path, whole):
    shutil.copytree(whole.path, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    del content["sha256"]
    write_of_run(tmp_path / "run", "result.json", content | {"format": 3})
    with pytest.raises(InputError, match="is of format 3, but this version reads formats up to 2"):
        open_run(tmp_path / "run")
    assert find_runs(tmp_path) == [tmp_path / "run"]
