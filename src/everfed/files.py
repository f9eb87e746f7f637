"""Files from elsewhere, read only once it is known that they are files and how much memory they take."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from everfed.errors import InputError
from everfed.machine import check_memory, readable

# How a user raises the limit on what is read from one file.
RAISE = "if that is meant, set EVERFED_MEMORY to the gigabytes that it may take"


def file_size(path: Path) -> int:
    """Bytes of a file. Folders are refused, and pipes and devices, which may wait or go on for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a file but {_kind(found.st_mode)}.")
    return found.st_size


def _kind(mode: int) -> str:
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((name for test, name in kinds.items() if test(mode)), "a device")


def read_file(path: Path, most: int | None = None) -> bytes:
    """The content of a file of at most this many bytes; None: of at most half of the free memory."""
    size = file_size(path)
    if most is None:
        check_memory(f"reading {path}", size, RAISE, part=0.5)
    elif size > most:
        raise InputError(f"{path} has {readable(size)}, where at most {readable(most)} were expected.")
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def check_parquet(path: Path, file: Any, columns: Sequence[str], groups: Iterable[int] | None = None) -> None:
    """Refuse columns of an open Parquet file that would not fit, by what it says of them.

    A value that is repeated takes next to nothing in the file, so its size does not tell. groups: of
    rows; None: all.
    """
    about, wanted = file.metadata, 0
    for number in range(about.num_row_groups) if groups is None else groups:
        group = about.row_group(number)
        for i in range(group.num_columns):
            column = group.column(i)
            if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in columns):
                width = max(8, file.schema.column(i).length)  # of texts of one length
                wanted += max(column.total_uncompressed_size, width * column.num_values)
    check_memory(f"reading the columns {', '.join(columns)} of {path}", wanted, RAISE, part=0.5)
