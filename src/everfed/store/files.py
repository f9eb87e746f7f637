"""Files that are whole or absent, and that show whether they are still what was written.

Everything is written under another name, synced to disk, then renamed. A JSON file carries the SHA-256 of its own
content; other files are named, with theirs, by one that does.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

_SEAL = "sha256"
_LARGEST_JSON = 64 << 20  # bytes; ours have a few thousand
_ROOM = "unfinished"  # the folder in which tensors are written: the library leaves files of its own when it is killed


class StoreError(RuntimeError):
    """The disk cannot be written, or a folder is in use or damaged; the message says what to do."""


class DamagedError(StoreError):
    """A file is not what was written."""


def disk_error(path: Path, error: OSError) -> StoreError:
    """One sentence for what the disk said."""
    if path.is_file():
        return StoreError(f"'{path}' is a file; a run needs a folder. Choose another name.")
    said = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        return StoreError(f"the run folder '{path}' cannot be written: {said}. Choose another folder.")
    return StoreError(
        f"the run folder '{path}' cannot be written: {said}. Everything up to the last checkpoint is kept; free "
        "some space or choose another folder, then resume with the same command."
    )


class ForeignError(StoreError):
    """A file is whole, but belongs to another run."""


def check_plain(folder: Path, writing: bool = False) -> None:
    """Raise an error if a folder has pipes or folders in the place of files, which block or cannot be read.

    writing: links are refused too, since they lead to files of other folders.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        ours = path.suffix in (".json", ".toml", ".arrow", ".safetensors") or path.name in ("digests", "lock")
        if ours and (not path.is_file() or (writing and path.is_symlink())):
            raise DamagedError(f"'{path}' is not a plain file, as everfed writes it; remove it")


def digest(path: Path) -> str:
    """A file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_atomically(target: Path, content: str | bytes) -> None:
    """A small file that is either the old one or the new one."""
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        unfinished.write_bytes(content if isinstance(content, bytes) else content.encode())
        commit(unfinished, target)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def write_tensors(folder: Path, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> tuple[Path, str]:
    """Write a safetensors file, called `name` with "{}" as its digest; returns its path and its digest."""
    room = folder / _ROOM
    unfinished = room / "tensors"
    try:
        room.mkdir(exist_ok=True)
        unfinished.write_bytes(b"")
        mode = unfinished.stat().st_mode  # what the user's umask says; the library's own files are private
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, unfinished, metadata=dict(notes))
        os.chmod(unfinished, mode)
        found = digest(unfinished)
        target = folder / name.format(found)
        commit(unfinished, target)
    except (OSError, safetensors.SafetensorError) as error:
        # The library wraps the system's error in its own; a full disk should be called one.
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return target, found


def sweep_up(folder: Path) -> int:
    """Remove what interrupted writers left; returns the bytes. Only for whoever holds the folder."""
    left = [*folder.glob("*.unfinished"), *folder.glob(".tmp*"), *(folder / _ROOM).glob("*")]
    freed = 0
    for path in left:
        if path.is_file():
            freed += path.stat().st_size
            path.unlink(missing_ok=True)
    shutil.rmtree(folder / _ROOM, ignore_errors=True)
    return freed


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


def write_sealed(target: Path, content: Mapping[str, Any]) -> None:
    """A JSON file that carries the digest of its name and content."""
    content = strict(content)
    write_atomically(target, json.dumps({**content, _SEAL: _seal(target.name, content)}, indent=1) + "\n")


def strict(content: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON does not have and other programs do not read."""
    if isinstance(content, Mapping):
        return {key: strict(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [strict(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content of a sealed JSON file, without the seal; None if there is no such file."""
    content = read_json(path)
    if content is None:
        return None
    if not isinstance(content, dict) or content.pop(_SEAL, None) != _seal(path.name, content):
        raise DamagedError(f"'{path}' is damaged: its content does not match its SHA-256")
    return content


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no such file."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise DamagedError(f"'{path}' is damaged: it has {path.stat().st_size:,} bytes")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"'{path}' is damaged: it is not JSON") from error


def _seal(name: str, content: Mapping[str, Any]) -> str:
    return digest_of(json.dumps([name, content], sort_keys=True).encode())
