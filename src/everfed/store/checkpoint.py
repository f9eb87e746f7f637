"""Checkpoints that are either complete or absent.

A checkpoint is a safetensors file whose name ends in the SHA-256 of its content. It is written under a temporary name,
synced to disk and then renamed, so an interruption leaves the previous one in place. A file whose content does not
match its name is skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

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


def save_checkpoint(folder: Path, round: int, tensors: dict[str, Tensor], notes: dict[str, str]) -> Path:
    """Write a checkpoint and remove all but the newest two."""
    unfinished = folder / f"checkpoint-{round:010d}.unfinished"
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, unfinished, metadata=notes)
        target = folder / f"checkpoint-{round:010d}-{_digest(unfinished)}.safetensors"
        commit(unfinished, target)
    except (OSError, safetensors.SafetensorError) as error:
        unfinished.unlink(missing_ok=True)
        # The library wraps the system's error in its own; a full disk should be called one.
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
    for old in checkpoints(folder)[_KEPT:]:
        old.unlink(missing_ok=True)
    return target


def load_checkpoints(folder: Path) -> Iterator[Checkpoint | Path]:
    """Newest first: a Checkpoint, or the path of one that is damaged."""
    for path in checkpoints(folder):
        match = _NAME.fullmatch(path.name)
        assert match
        if _digest(path) != match[2]:
            yield path
            continue
        yield Checkpoint(path, int(match[1]), load_file(path), read_notes(path))


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, newest first."""
    return sorted((p for p in folder.glob("checkpoint-*.safetensors") if _NAME.fullmatch(p.name)), reverse=True)


def read_notes(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def commit(unfinished: Path, target: Path) -> None:
    """Sync a finished file to disk, then rename it."""
    with open(unfinished, "r+b") as file:  # Windows flushes only what may be written
        os.fsync(file.fileno())
    os.replace(unfinished, target)
    if os.name == "nt":  # which has no way to flush a folder
        return
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(target: Path, content: str | bytes) -> None:
    """A small file that is either the old one or the new one."""
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        unfinished.write_bytes(content if isinstance(content, bytes) else content.encode())
        commit(unfinished, target)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
