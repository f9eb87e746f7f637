"""What a client keeps from one message to the next.

Flower starts a fresh process for every message, so nothing lives in memory. Without a folder, things are
kept in the run's Context, which a restart of the node loses; with one they are files that survive power
cuts: written under another name, forced to the disk, then renamed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from everfed.flower.payload import read

Arrays = dict[str, npt.NDArray[Any]]

_RUN = "run"
_OF_EXPERIMENT = ("plan", "terms", "checked")  # the same in every run of it


class Memory:
    """Named sets of arrays, in a folder or in the Context."""

    def __init__(self, context: Context, folder: Path | None = None) -> None:
        self.context, self.folder = context, folder

    def load(self, name: str) -> Arrays | None:
        """What was saved under this name; None if nothing was, or if the disk damaged it."""
        if self.folder is None:
            record = self.context.state.get(f"everfed.{name}")
            return {k: read(v).copy() for k, v in record.items()} if isinstance(record, ArrayRecord) else None
        try:
            return load_file(self.folder / f"{name}.safetensors")
        except (FileNotFoundError, SafetensorError):
            return None

    def save(self, name: str, arrays: Arrays) -> None:
        solid = {key: np.array(value, order="C") for key, value in arrays.items()}
        if self.folder is None:
            self.context.state[f"everfed.{name}"] = ArrayRecord({k: Array(v) for k, v in solid.items()})
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{name}.unfinished"
        save_file(solid, unfinished)
        with open(unfinished, "r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        os.replace(unfinished, self.folder / f"{name}.safetensors")

    def drop(self, name: str) -> None:
        if self.folder is None:
            self.context.state.pop(f"everfed.{name}", None)
        else:
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def enter(self, run: int | None) -> None:
        """Forget what was kept of another run than this one. None: the server does not say which it is."""
        kept = self.load(_RUN)
        if run is None or (kept is not None and int(kept[_RUN]) == run):
            return
        for name in self.names(""):
            if name not in _OF_EXPERIMENT:
                self.drop(name)
        self.save(_RUN, {_RUN: np.array(run)})

    def names(self, prefix: str) -> list[str]:
        """Saved names that begin so, in order."""
        if self.folder is None:
            kept = [key.removeprefix("everfed.") for key in self.context.state if key.startswith("everfed.")]
        else:
            kept = [path.stem for path in self.folder.glob("*.safetensors")]
        return sorted(name for name in kept if name.startswith(prefix))
