"""A data set from the user's own files: NumPy arrays or Parquet files, with a column that names the clients."""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from everfed.arrays import Inputs
from everfed.checks import BelowOne, Checked
from everfed.data.dataset import Dataset
from everfed.data.fetch import exactly
from everfed.data.rows import Rows, dataset
from everfed.data.targets import AUTO, TASKS
from everfed.errors import InputError, unknown
from everfed.files import RAISE, file_size
from everfed.machine import check_memory

Task = Annotated[str, (AUTO, *TASKS)]


@dataclass(frozen=True)
class Folder(Checked):
    """Samples of your own, from a folder (or one file) with NumPy arrays or with Parquet files.

    Arrays: x.npy, or x_NAME.npy for each of several inputs, y.npy and client.npy, or the same names in .npz files; the
    test set is in test_x.npy, test_y.npy and test_client.npy. Parquet: columns, and files whose names begin with "test"
    are the test set.
    path: of the folder or file. client: the array or column that names each row's client, by texts or whole numbers.
    x, y: the array or column of inputs and of targets. shape: of one sample, if Parquet's lists are to be reshaped.
    about: further arrays or columns that say something of the clients, the same in all rows of a client.
    test_part: of each client's rows, at random but always the same, that are the test set if there is none.
    task: "auto" follows from the targets: whole numbers are classes, and tokens if each row has several; floats are a
    regression; several booleans a row are labels. Inputs keep their types as in `from_arrays`: bytes are pixels, other
    whole numbers tokens.
    """

    natural: ClassVar[bool] = True  # its samples have owners
    path: str = field(default="", metadata={"file": True})
    client: str = "client"
    x: str = "x"
    y: str = "y"
    shape: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    test_part: BelowOne = 0.2
    task: Task = "auto"
    sha256: str = ""  # of all files; a run folder holds it

    def pinned(self) -> Folder:
        """The same, tied to the content that the files have now."""
        if self.sha256:
            return self
        return replace(self, path=str(Path(self.path).absolute()), sha256=_digest(self._files()))

    def load(self) -> Dataset:
        train, test = self.rows()
        return dataset(Path(self.path).stem, train, test, self.test_part, task=self.task)

    def rows(self) -> tuple[Rows, Rows | None]:
        """Those of the training set, and of the test set if the folder has one."""
        place, files = Path(self.path), self._files()
        if self.sha256 and _digest(files) != self.sha256:
            raise InputError(
                f"the files in '{self.path}' are not those that this run began with; put them back, or choose another "
                "folder for the run."
            )
        tables = [path for path in files if path.suffix == ".parquet"]
        if tables:
            from everfed.data.folder_tables import read_tables  # takes a while to import

            return read_tables(tables, self.x, self.y, self.client, self.about, self.shape)
        arrays = _Arrays([path for path in files if path.suffix in (".npy", ".npz")], place)
        test = self._from_arrays(arrays, "test_") if any(name.startswith("test_") for name in arrays.places) else None
        return self._from_arrays(arrays, ""), test

    def _files(self) -> list[Path]:
        place = Path(self.path)
        if not self.path or not place.exists():
            raise InputError(
                f"data.path is '{self.path}', which is not there; give a folder with .npy or .parquet files."
            )
        files = [place] if not place.is_dir() else sorted(place.iterdir())
        return [path for path in files if path.suffix in (".parquet", ".npy", ".npz")]

    def _from_arrays(self, arrays: _Arrays, prefix: str) -> Rows:
        others = {f"{prefix}{name}" for name in (self.y, self.client, *self.about)}
        several = [name for name in arrays.places if name.startswith(f"{prefix}{self.x}_") and name not in others]
        if several and f"{prefix}{self.x}" in arrays.places:
            raise InputError(
                f"'{self.path}' has the inputs {prefix}{self.x} and {several[0]}; of one input alone {self.x} is the "
                f"name, and of several each is {self.x}_NAME."
            )
        x: Inputs
        if several:
            x = {name.removeprefix(f"{prefix}{self.x}_"): arrays.read(name) for name in several}
        else:
            x = arrays.read(f"{prefix}{self.x}")
        about = {} if prefix else {name: arrays.read(name) for name in self.about}
        return Rows(x, arrays.read(f"{prefix}{self.y}"), arrays.read(f"{prefix}{self.client}"), about)


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        file_size(path)  # refuses what is no file
        with _refused(path), open(path, "rb") as file:
            found.update(f"{path.name};{hashlib.file_digest(file, 'sha256').hexdigest()};".encode())
    return found.hexdigest()


class _Arrays:
    """Arrays by name, in .npy files and in .npz files."""

    def __init__(self, paths: list[Path], place: Path) -> None:
        self.places: dict[str, tuple[Path, str]] = {}  # the file, and the member if it is an .npz
        for path in paths:
            if path.suffix == ".npy":
                self.places[path.stem] = path, ""
            else:
                file_size(path)
                with _refused(path), zipfile.ZipFile(path) as stored:
                    for member in stored.namelist():
                        self.places[member.removesuffix(".npy")] = path, member
        if not self.places:
            raise InputError(f"'{place}' has no .npy, .npz or .parquet files.")

    def read(self, name: str) -> npt.NDArray[Any]:
        if name not in self.places:
            raise InputError(unknown("array", name, self.places))
        path, member = self.places[name]
        file_size(path)
        with _refused(path), open(path, "rb") as file:
            if not member:
                return _array(file, f"{path}")
            with zipfile.ZipFile(file) as stored, stored.open(member) as inner:
                return _array(inner, f"{path}:{name}")


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
def _refused(path: Path) -> Iterator[None]:
    """What is wrong with a file, as a refusal."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError(f"'{path}' cannot be read as an array of NumPy: {error}.") from error
