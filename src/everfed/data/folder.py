"""A data set from the user's own files: NumPy arrays or Parquet files, with a column that names the clients."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from everfed.checks import BelowOne, Checked
from everfed.data.dataset import Dataset
from everfed.data.folder_arrays import read_arrays, refused
from everfed.data.rows import Rows, dataset
from everfed.data.targets import AUTO, TASKS
from everfed.errors import InputError
from everfed.files import file_size

TABLE, ARRAYS = ".parquet", (".npy", ".npz")
Task = Annotated[str, (AUTO, *TASKS)]


@dataclass(frozen=True)
class Folder(Checked):
    """Samples of your own, from a folder (or one file) with NumPy arrays or with Parquet files.

    Arrays: x.npy, or x_NAME.npy for each of several inputs, y.npy and client.npy, or the same names in .npz files,
    several of which are joined row by row; the test set is in test_x.npy, test_y.npy and test_client.npy. Parquet:
    columns of the same names. Of .npz and Parquet files those whose names begin with "test" are the test set. What
    would not be read (other kinds of files, arrays that are there twice, files in folders inside) is refused.
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
        files = self._files()
        if self.sha256 and _digest(files) != self.sha256:
            raise InputError(
                f"the files in '{self.path}' are not those that this run began with; put them back, or choose another "
                "folder for the run."
            )
        if files[0].suffix.lower() != TABLE:
            return read_arrays(files, self.x, self.y, self.client, self.about)
        from everfed.data.folder_tables import read_tables  # takes a while to import

        return read_tables(files, self.x, self.y, self.client, self.about, self.shape)

    def _files(self) -> list[Path]:
        """All data files, of one kind; what would not be read is refused."""
        place = Path(self.path)
        if not self.path or not place.exists():
            raise InputError(
                f"data.path is '{self.path}', which is not there; give a folder with .npy or .parquet files."
            )
        files = [path for path in ([place] if not place.is_dir() else sorted(place.iterdir())) if _is_data(path)]
        deeper = _deeper(place) if place.is_dir() else None
        if not files:
            where = f", but '{deeper}' lies deeper; give its folder as data.path" if deeper else ""
            raise InputError(f"'{place}' has no .npy, .npz or .parquet files{where}.")
        if deeper:
            raise InputError(
                f"'{deeper}' lies in a folder beside '{files[0].name}' and would not be read; put all files into one "
                "folder, or that folder elsewhere."
            )
        tables = [path for path in files if path.suffix.lower() == TABLE]
        arrays = [path for path in files if path not in tables]
        if tables and arrays:
            raise InputError(
                f"'{place}' has '{tables[0].name}' and '{arrays[0].name}'; keep Parquet files and those of NumPy in "
                "folders of their own."
            )
        return files


def _is_data(path: Path) -> bool:
    return path.suffix.lower() in (TABLE, *ARRAYS) and not path.is_dir()


def _deeper(place: Path) -> Path | None:
    """A data file in a folder of this one, but for hidden folders, which programs make for themselves."""
    for folder in sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for parent, _, names in os.walk(folder):
            found = sorted(name for name in names if _is_data(Path(parent, name)))
            if found:
                return Path(parent, found[0])
    return None


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        file_size(path)  # refuses what is no file
        with refused(path), open(path, "rb") as file:
            found.update(f"{path.name};{hashlib.file_digest(file, 'sha256').hexdigest()};".encode())
    return found.hexdigest()
