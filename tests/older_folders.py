"""Folders of runs that nobody trained: those of a version without digests, and pretended ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from everfed.energy.battery import Books
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.store import RunFolder
from everfed.store.check import save_model, write_result
from everfed.store.checkpoint import Checkpoint, load_checkpoints, save_checkpoint
from everfed.store.records import RecordsFile


def as_older_version(folder: Path, change: Callable[[str], str] = lambda text: text) -> None:
    """change: what becomes of the text of experiment.toml."""
    (folder / "digests").unlink()
    environment, result = folder / "environment.json", folder / "result.json"
    environment.write_text(json.dumps(json.loads(environment.read_text())["starts"]))
    if result.exists():
        new = ("format", "experiment", "files", "sha256")
        result.write_text(json.dumps({k: v for k, v in json.loads(result.read_text()).items() if k not in new}))
    for found in list(load_checkpoints(folder)):
        assert isinstance(found, Checkpoint)
        found.path.unlink()
        if not result.exists():
            save_checkpoint(folder, found.round, found.tensors, {"records": found.notes["records"]})
    file = folder / "experiment.toml"
    file.write_text(change(file.read_text()))


def pretend_done(folder: Path, experiment: Experiment) -> None:
    """A folder of a finished run that has trained nothing."""
    held = RunFolder(folder)
    held.hold(experiment)
    records = RecordsFile(folder)
    records.truncate(0)
    nobody = np.zeros(0, np.int64)
    rounds = [
        RoundRecord(number, nobody, nobody * 1.0, 0.0, Books(), 0.0, None, None, 0.0, ())
        for number in range(experiment.rounds)
    ]
    records.append(rounds)
    records.close()
    save_model(folder, {"weight": torch.zeros(1)})
    write_result(folder, experiment, rounds)
    held.release()
