"""Damage any file of a run folder in any way: every command notices, repairs or refuses, and none shows other numbers.

Each case damages one file of a copy of a whole folder, then opens it, runs one command on it and repeats the command
that made it. Allowed are the same numbers, or an error in words; never other numbers, a traceback or a crash.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import everfed as ef
from everfed.cli.app import app
from everfed.energy.battery import Storage
from everfed.errors import EverfedWarning, InputError
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.store import StoreError, find_runs, open_run, stored_rounds

SMALL = Experiment(
    fleet=CycleFleet(4, (1, 2)), rounds=6, batch_size=4, eval_every=2, device="cpu", client=ef.Adam(0.01),
    check_trainer=False,
)  # fmt: skip
CASES = 300


@dataclass
class Folder:
    """A folder before it was damaged."""

    path: Path
    experiment: Experiment
    known: ef.StoredRun
    final: ef.StoredRun  # what it ends with if it is run on


def finished(experiment: Experiment, path: Path, rounds: int | None = None) -> ef.StoredRun:
    done = 0

    def stop() -> bool:
        nonlocal done
        done += 1
        return rounds is not None and done >= rounds

    for _ in stored_rounds(experiment, path, stop=stop):
        pass
    return open_run(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Folder]:
    root = tmp_path_factory.mktemp("folders")
    (root / "sun.csv").write_text("time,power_w\n" + "".join(f"{3600 * h},{h % 24 / 10}\n" for h in range(48)))
    group = {"device": "esp32", "count": 4, "trace": str(root / "sun.csv"), "time_unit": "s", "unit": "W"}
    traced = config.to_dict(SMALL) | {"fleet": {"kind": "devices", "groups": [group]}}
    own = ef.Fleet.from_cycles([1, 2, 1, 2], storage=Storage(np.array([1.0, 0.9, 0.8, 1.0])))
    kinds = {"done": SMALL, "own-fleet": replace(SMALL, fleet=own)}
    kinds["traced"] = config.from_dict(traced)
    made = {}
    for name, experiment in kinds.items():
        run = finished(experiment, root / name)
        made[name] = Folder(root / name, experiment, run, run)
    stopped = finished(SMALL, root / "stopped", 4)
    assert stopped.state == "stopped"
    made["stopped"] = Folder(root / "stopped", SMALL, stopped, made["done"].final)
    return made


def damage(path: Path, other: bytes, chance: random.Random) -> str:
    """Change a file; returns how."""
    content = path.read_bytes()
    place = chance.randrange(max(1, len(content)))
    how = chance.choice(["flip", "cut", "empty", "delete", "append", "overwrite", "zeros", "twice", "exchange", "swap"])
    changed = {
        "flip": content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))] if content else [])
        + content[place + 1 :],
        "cut": content[:place],
        "empty": b"",
        "append": content + chance.randbytes(chance.randrange(1, 200)),
        "overwrite": content[:place] + chance.randbytes(16) + content[place + 16 :],
        "zeros": content[:place] + bytes(len(content) - place),
        "twice": content + content[place:],
        "exchange": other,
        "swap": content[place:] + content[:place],
    }  # fmt: skip
    path.unlink() if how == "delete" else path.write_bytes(changed[how])
    return how


def rows(run: ef.StoredRun) -> list[dict]:
    return [record.to_dict() for record in run.rounds]


def same_model(a: ef.StoredRun, b: ef.StoredRun) -> bool:
    return a.params.keys() == b.params.keys() and all(torch.equal(v, b.params[k]) for k, v in a.params.items())


def opened(folder: Path) -> tuple[ef.StoredRun | None, bool]:
    """(the run, None if it is refused; whether anything was said)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return open_run(folder), any(issubclass(w.category, EverfedWarning) for w in said)
        except (StoreError, InputError):
            return None, True


COMMANDS = [
    ["runs", "{}"], ["runs", "{}", "--json"], ["check", "{}"], ["check", "{}", "--no-repair", "--json"],
    ["report", "{}", "-o", "{}/../page.html"], ["figure", "{}", "-o", "{}/../figure.svg"],
]  # fmt: skip


def one_case(whole: Folder, folder: Path, donor: bytes, chance: random.Random) -> str:
    """Damage a copy of a folder and look at it in every way; returns what became of it, or what is wrong."""
    shutil.copytree(whole.path, folder)
    file = chance.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    how = damage(file, donor, chance)
    what = f"{whole.path.name}/{file.relative_to(folder)}, {how}"
    known, ended = whole.known, file.name != "result.json" or how != "delete"  # without a result it has not ended

    found, said = opened(folder)
    if found is not None:
        if rows(found) != rows(known)[: len(found.rounds)]:
            return f"{what}: other records"
        if config.differences(found.experiment, known.experiment):
            return f"{what}: another experiment"
        if not said and (len(found.rounds) != len(known.rounds) or (ended and found.state != known.state)):
            return f"{what}: another state"
        if not said and not same_model(found, known) and not file.name.startswith("checkpoint"):
            return f"{what}: another model"  # that of a run that goes on is in its newest good checkpoint

    command = [part.format(folder) for part in chance.choice(COMMANDS)]
    result = CliRunner().invoke(app, command)
    if not isinstance(result.exception, SystemExit | StoreError | InputError | None):
        return f"{what}: {command} ends in {result.exception!r}"
    if command[0] == "runs" and command[-1] == "--json":
        for row in json.loads(result.stdout):
            if row["rounds_done"] == len(known.rounds) and row["accuracy"] != known.final.accuracy:
                return f"{what}: another accuracy"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            again = finished(whole.experiment, folder)
        except (StoreError, InputError):
            return "refused"
    if again.state != "done" or rows(again) != rows(whole.final) or not same_model(again, whole.final):
        return f"{what}: made again, it is another"
    return "repaired" if said else "unseen"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_no_damage_is_silent(folders, tmp_path, seed):
    chance = random.Random(seed)
    donors = [file.read_bytes() for file in sorted(folders["own-fleet"].path.rglob("*")) if file.is_file()]
    outcomes: Counter[str] = Counter()
    for case in range(CASES // 3):
        whole = folders[chance.choice(list(folders))]
        outcomes[one_case(whole, tmp_path / str(case) / whole.path.name, chance.choice(donors), chance)] += 1
        shutil.rmtree(tmp_path / str(case))
    assert set(outcomes) <= {"refused", "repaired", "unseen"}, outcomes
    # Unseen where nothing is read from the file: locks, checkpoints of finished runs, superfluous lines of `digests`.
    assert outcomes["unseen"] < outcomes.total() / 2, outcomes


def test_a_sweep_whose_records_were_cut_is_made_again(tmp_path):
    """The table of a repeated sweep is that of the first, whatever became of its folders."""
    first = ef.sweep(SMALL, {"client.lr": [0.01, 0.1]}, seeds=2, out=tmp_path)
    for folder in find_runs(tmp_path):
        records = folder / "records.arrow"
        records.write_bytes(records.read_bytes()[: records.stat().st_size // 3])
    with pytest.warns(EverfedWarning, match="is damaged"):
        again = ef.sweep(SMALL, {"client.lr": [0.01, 0.1]}, seeds=2, out=tmp_path)
    assert again.summary == first.summary


def test_damage_that_other_files_tell_is_repaired(folders, tmp_path):
    """A result from the records, a model from the last checkpoint, an entry of digests from the result."""
    for name in ("result.json", "model.safetensors", "digests", "environment.json"):
        for gone in (True, False):
            folder = tmp_path / f"{name}-{gone}"
            shutil.copytree(folders["done"].path, folder)
            (folder / name).unlink() if gone else (folder / name).write_bytes(b"[" * 5000)
            result = CliRunner().invoke(app, ["check", str(folder), "--json"])
            assert result.exit_code == 0, result.output
            (verdict,) = json.loads(result.stdout)
            assert verdict["state"] == "done"
            assert verdict["repaired"] or (gone and name == "environment.json")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = open_run(folder)
            assert rows(found) == rows(folders["done"].known)
            assert same_model(found, folders["done"].known)
            assert CliRunner().invoke(app, ["check", str(folder)]).exit_code == 0


@pytest.mark.parametrize(
    ("state", "cases"),
    [("stopped", 12), *(pytest.param(state, 60, marks=pytest.mark.long) for state in ("done", "stopped"))],
)
def test_files_of_two_runs_never_make_a_third(folders, tmp_path, state, cases):
    """Whatever a folder is put together from, what it says belongs to the experiment that it says it is."""
    chance = random.Random(5)
    other = replace(SMALL, seed=1)
    theirs = finished(other, tmp_path / "other", None if state == "done" else 4)
    ends = {0: folders["done"].final, 1: finished(other, tmp_path / "end")}
    mine = folders[state]
    for case in range(cases):
        folder = tmp_path / f"case{case}" / "run"
        folder.mkdir(parents=True)
        for source in (mine.path, theirs.path):
            for file in source.iterdir():
                if chance.random() < 0.55 and not (folder / file.name).exists():
                    shutil.copy(file, folder)
        for _ in range(2):  # as it is, and repaired
            if (folder / "experiment.toml").exists():
                found, _ = opened(folder)
                if found is not None:
                    whole = ends[found.experiment.seed]
                    assert rows(found) == rows(whole)[: len(found.rounds)]
                    known = [whole, mine.known if found.experiment.seed == 0 else theirs]
                    assert not found.params or any(same_model(found, one) for one in known)
                    assert found.state != "done" or len(found.rounds) == SMALL.rounds
            CliRunner().invoke(app, ["check", str(folder)])
        for experiment, whole in ((SMALL, ends[0]), (other, ends[1])):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    again = finished(experiment, folder)
                except (StoreError, InputError):
                    continue
            assert rows(again) == rows(whole)
            assert same_model(again, whole)
        shutil.rmtree(folder.parent)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_is_named_and_hides_no_other_run(folders, tmp_path, kind):
    shutil.copytree(folders["done"].path, tmp_path / "good")
    for name in ("experiment.toml", "result.json", "environment.json", "digests", "records.arrow", "model.safetensors"):
        folder = tmp_path / f"bad-{name}"
        shutil.copytree(folders["done"].path, folder)
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "folder":
            (folder / name).mkdir()
        else:
            (folder / name).symlink_to("lock")
        for command in (["runs", str(tmp_path), "--json"], ["check", str(tmp_path), "--json"]):
            result = CliRunner().invoke(app, command)
            assert isinstance(result.exception, SystemExit | None)
            states = {Path(row.get("run") or row["path"]).name: row["state"] for row in json.loads(result.stdout)}
            # A link is read as what it leads to: a damaged copy of the good run, which other files may mend.
            assert states.pop("good", "done" if kind == "link" else None) == "done"
            assert kind == "link" or set(states.values()) <= {"unreadable"}
        if kind != "link":
            with pytest.raises((StoreError, InputError)):
                finished(SMALL, folder)
        shutil.rmtree(folder)
