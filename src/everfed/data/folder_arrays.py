"""The NumPy files of the source `folder`.

Either every array is in one place (x.npy, y.npy, or one .npz with all), or several .npz files hold the same arrays,
which are joined row by row.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from everfed.data.fetch import exactly
from everfed.data.row_parts import input_names, joined_rows
from everfed.data.rows import Rows
from everfed.errors import InputError, unknown
from everfed.files import RAISE, file_size
from everfed.machine import check_memory

TEST = "test_"  # before the names of arrays of the test set


def read_arrays(paths: list[Path], x: str, y: str, client: str, about: tuple[str, ...]) -> tuple[Rows, Rows | None]:
    """Rows of the training set, and of the test set if there is one."""
    stored = _Stored(paths)
    if all(name.startswith(TEST) for name in stored.places):
        raise InputError(f"'{paths[0].parent}' has arrays of a test set alone; name those for training otherwise.")
    test = any(name.startswith(TEST) for name in stored.places)
    found = stored.rows("", x, y, client, about), stored.rows(TEST, x, y, client, ()) if test else None
    for path in paths:
        if path not in stored.used and _kind(path) == ".npz":
            raise InputError(
                f"'{path}' has none of the arrays that are read ({x}, {y}, {client}); name its arrays so, or put it "
                "elsewhere."
            )
    return found


class _Stored:
    """Arrays by name, each in one or several files.

    A name of the test set begins with "test_". In an .npz file whose own name begins with "test" all arrays are of the
    test set, unless some have that beginning.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.places: dict[str, dict[Path, str]] = {}  # the files, and the member of each that is an .npz
        self.used: set[Path] = set()
        for path in paths:
            if _kind(path) == ".npy":
                self.places.setdefault(path.stem, {})[path] = ""
                continue
            file_size(path)
            with refused(path), zipfile.ZipFile(path) as stored:
                members = stored.namelist()
            plain = not any(member.startswith(TEST) for member in members)
            before = TEST if plain and path.name.lower().startswith("test") else ""
            for member in members:
                self.places.setdefault(before + member.removesuffix(".npy"), {})[path] = member

    def rows(self, prefix: str, x: str, y: str, client: str, about: tuple[str, ...]) -> Rows:
        """Those of the training set (prefix "") or of the test set."""
        others = [f"{prefix}{name}" for name in (y, client, *about)]
        inputs = input_names(self.places, f"{prefix}{x}", others, f"'{self._folder}'")
        wanted = [*inputs, *others]
        for name in wanted:
            if name not in self.places:
                raise InputError(unknown("array", name, self.places))
        files = list(dict.fromkeys(path for name in wanted for path in self.places[name]))
        self.used.update(files)
        if all(len(self.places[name]) == 1 for name in wanted):
            return self._rows(inputs, others, prefix, None)
        for name in wanted:
            self._check_loose(name)
        for name in wanted:
            self._check_everywhere(name, files)
        parts = [(path, self._rows(inputs, others, prefix, path).check(f"'{path}'")) for path in sorted(files)]
        return joined_rows(parts)

    def _check_everywhere(self, name: str, files: list[Path]) -> None:
        """What is joined row by row must be in every file."""
        here = list(self.places[name])
        for path in files:
            if path in here:
                continue
            if _kind(path) == ".npy" or _kind(here[0]) == ".npy":
                raise InputError(
                    f"'{path}' and '{here[0]}' lie side by side, and an array is in several files; keep all arrays in "
                    ".npz files, which are joined row by row, or each in one .npy file."
                )
            raise InputError(
                f"'{path}' has no array '{name}', which '{here[0]}' has; files that are joined row by row have the "
                "same arrays."
            )

    def _check_loose(self, name: str) -> None:
        """An array of an .npy file is nowhere else."""
        here = list(self.places[name])
        loose = [path for path in here if _kind(path) == ".npy"]
        if loose and len(here) > 1:
            other = next(path for path in here if path != loose[0])
            raise InputError(f"the array '{name}' is in '{loose[0]}' and in '{other}'; keep one of them.")

    def _rows(self, inputs: dict[str, str], others: list[str], prefix: str, path: Path | None) -> Rows:
        """Of one file, or each array from its only place."""
        x: Any = {short: self._read(name, path) for name, short in inputs.items()}
        y, client, *about = (self._read(name, path) for name in others)
        return Rows(x.get("", x), y, client, dict(zip(others[2:], about, strict=True)))

    def _read(self, name: str, path: Path | None) -> npt.NDArray[Any]:
        path = path or next(iter(self.places[name]))
        member = self.places[name][path]
        file_size(path)
        with refused(path), open(path, "rb") as file:
            if not member:
                return _array(file, f"{path}")
            with zipfile.ZipFile(file) as stored, stored.open(member) as inner:
                return _array(inner, f"{path}:{name}")

    @property
    def _folder(self) -> Path:
        return next(path.parent for places in self.places.values() for path in places)


def _kind(path: Path) -> str:
    return path.suffix.lower()


def _array(file: IO[bytes], what: str) -> npt.NDArray[Any]:
    """An .npy file, whose size is known before memory is taken for it; objects, which are pickles, are refused."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise InputError(f"{what} holds Python objects, which are not read; save numbers or texts.")
    size = math.prod(shape) * dtype.itemsize
    check_memory(f"reading {what}", 2 * size, RAISE, part=0.5)
    flat = np.frombuffer(exactly(file, size, what), dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """What is wrong with a file, as a refusal."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError(f"'{path}' cannot be read as an array of NumPy: {error}.") from error
