"""Checkpoints that are either complete or absent.

A checkpoint is a safetensors file whose name ends in the SHA-256 of its content. An interruption leaves the previous
one in place, and a file whose content does not match its name is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from everfed.store.files import digest, write_tensors

# If the newest is damaged, the previous one is used.
_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{10})-([0-9a-f]{64})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A state that was read back whole."""

    path: Path
    round: int
    tensors: dict[str, Tensor]
    notes: dict[str, str]

    @property
    def about(self) -> dict[str, Any]:
        return _about(self.notes)


def save_checkpoint(folder: Path, round: int, tensors: dict[str, Tensor], notes: dict[str, str]) -> Path:
    """Write a checkpoint and remove all but the newest two."""
    target, _ = write_tensors(folder, f"checkpoint-{round:010d}-{{}}.safetensors", tensors, notes)
    for old in checkpoints(folder)[_KEPT:]:
        old.unlink(missing_ok=True)
    return target


def load_checkpoints(folder: Path) -> Iterator[Checkpoint | Path]:
    """Newest first: a Checkpoint, or the path of one that is damaged."""
    for path in checkpoints(folder):
        try:
            damaged = is_damaged(path)
            found = path if damaged else Checkpoint(path, _round(path), load_file(path), read_notes(path))
        except FileNotFoundError:  # the run has moved on since
            continue
        yield found


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, newest first."""
    return sorted((p for p in folder.glob("checkpoint-*.safetensors") if _NAME.fullmatch(p.name)), reverse=True)


def read_notes(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def is_damaged(path: Path) -> bool:
    """Whether a checkpoint's content does not match its name."""
    return f"-{digest(path)}." not in path.name


def notes_about(path: Path) -> dict[str, Any]:
    """What a good checkpoint says of its run: {} if an older version wrote it."""
    return _about(read_notes(path))


def _about(notes: Mapping[str, str]) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(notes.get("about", "{}"))
    return about


def _round(path: Path) -> int:
    return int(path.name.split("-")[1])
