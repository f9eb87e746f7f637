"""Make a run's folder what a version without digests would have left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from everfed.store.checkpoint import Checkpoint, load_checkpoints, save_checkpoint


def as_older_version(folder: Path, change: Callable[[str], str] = lambda text: text) -> None:
    """change: what becomes of the text of experiment.toml."""
    (folder / "digests").unlink()
    environment, result = folder / "environment.json", folder / "result.json"
    environment.write_text(json.dumps(json.loads(environment.read_text())["starts"]))
    if result.exists():
        new = ("format", "files", "sha256")
        result.write_text(json.dumps({k: v for k, v in json.loads(result.read_text()).items() if k not in new}))
    for found in list(load_checkpoints(folder)):
        assert isinstance(found, Checkpoint)
        found.path.unlink()
        if not result.exists():
            save_checkpoint(folder, found.round, found.tensors, {"records": found.notes["records"]})
    file = folder / "experiment.toml"
    file.write_text(change(file.read_text()))
