"""Clients' samples from Parquet files in which a client's rows lie together.

Two layouts are read, also mixed: one file a client in folders such as `client=17/` (Hive's
partitioning), and files of many clients with a column that holds the client's number. For large
fleets the second: a million small files are slow on any disk. Smaller row groups read less besides
what is wanted, and larger ones open faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from everfed.arrays import Ints
from everfed.data.on_demand import ClientSource, Samples
from everfed.data.on_demand_sources import batches, ranges
from everfed.data.plain import as_pair
from everfed.errors import InputError, first_line, some
from everfed.files import RAISE, check_parquet, file_size
from everfed.machine import check_memory


@dataclass(frozen=True, eq=False)
class Parquet:
    """A Parquet file, or a folder of them. Clients are numbered from 0 without gaps.

    x: the column of inputs (numbers, or lists of equal length), or the columns of single numbers that
    make an input. y: the column of labels. client: the column, or the key in folders' names. shape: of
    one sample, where lists are to be reshaped, such as (1, 28, 28).
    """

    path: str | Path
    x: str | tuple[str, ...] = "x"
    y: str = "y"
    client: str = "client"
    shape: tuple[int, ...] = ()
    _open: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._index.sizes)

    def sizes(self) -> Ints:
        return self._index.sizes

    def read(self, clients: Ints) -> Samples:
        index = self._index
        parts: list[Samples | None] = [None] * len(clients)
        for number in np.unique(index.file[clients]).tolist():
            inside = np.flatnonzero(index.file[clients] == number)
            who = clients[inside]
            x, y = self._rows(number, index.start[who], index.start[who] + index.sizes[who])
            cuts = np.cumsum(index.sizes[who])[:-1]
            for place, one_x, one_y in zip(inside.tolist(), np.split(x, cuts), np.split(y, cuts), strict=True):
                parts[place] = (one_x, one_y)
        found = [part for part in parts if part is not None]
        return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])

    def _rows(self, number: int, starts: Ints, ends: Ints) -> Samples:
        """Rows of one file; only the row groups that hold some of them are read."""
        file = self._file(number)
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        rows = ranges(starts, ends)
        group = np.searchsorted(bounds, rows, side="right") - 1
        wanted, which = np.unique(group, return_inverse=True)
        names = [self.x] if isinstance(self.x, str) else list(self.x)
        path = self._index.paths[number]
        with readable(path):
            check_parquet(path, file, [*names, self.y], wanted.tolist())
            table = file.read_row_groups(wanted.tolist(), columns=[*names, self.y])
        # Where the groups that were read begin in what was read.
        begins = np.cumsum([sizes[g] for g in wanted]) - np.array([sizes[g] for g in wanted])
        table = table.take(rows - bounds[group] + begins[which])
        return self._inputs(table, names), numbers(table.column(self.y), self.y)

    def _inputs(self, table: Any, names: list[str]) -> npt.NDArray[Any]:
        if len(names) == 1:
            x = numbers(table.column(names[0]), names[0])
        else:
            x = np.stack([numbers(table.column(name), name) for name in names], axis=1)
        if not self.shape:
            return x
        try:
            return x.reshape(len(x), *self.shape)
        except ValueError:
            raise InputError(f"samples of {x[0].size} numbers do not have the shape {self.shape}.") from None

    def _file(self, number: int) -> Any:
        if number not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[number] = parquet.ParquetFile(self._index.paths[number])
        return self._open[number]

    @cached_property
    def _index(self) -> _Index:
        return _indexed(Path(self.path), self.client, (*([self.x] if isinstance(self.x, str) else self.x), self.y))


_MOST_OPEN = 32


@dataclass(frozen=True)
class _Index:
    """Where each client's rows are."""

    paths: list[Path]
    file: Ints  # [N] a number of `paths`
    start: Ints  # [N]
    sizes: Ints  # [N]


def _indexed(path: Path, client: str, columns: tuple[str, ...]) -> _Index:
    """One pass over the column of clients; the samples are not read."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() == ".parquet")
    if not paths:
        raise InputError(f"there are no Parquet files in '{path}'.")
    whose, file, start, sizes = [], [], [], []
    types: dict[str, Any] = {}  # of the columns, in the first file
    for number, one in enumerate(paths):
        file_size(one)  # a pipe would wait for ever
        with readable(one), parquet.ParquetFile(one) as opened:
            known = opened.schema_arrow.names
            missing = [name for name in columns if name not in known]
            if missing:
                raise InputError(f"'{one}' has no column '{missing[0]}'; it has {some(known, 10)}.")
            for name in columns:
                kind = opened.schema_arrow.field(name).type
                check_numbers(kind, name)
                if _meaning(kind) != _meaning(types.setdefault(name, kind)):
                    raise InputError(
                        f"the column '{name}' is {kind} in '{one}' and {types[name]} in '{paths[0]}'; give all files "
                        "the same type."
                    )
            owners = _owners(opened, one, client)
        cuts = np.flatnonzero(np.diff(owners)) + 1
        begins = np.concatenate([[0], cuts]).astype(np.int64)[: len(owners)]
        whose.append(owners[begins])
        file.append(np.full(len(begins), number))
        start.append(begins)
        sizes.append(np.diff(np.concatenate([begins, [len(owners)]])))
    who = np.concatenate(whose)
    found, count = np.unique(who, return_counts=True)
    if np.any(count > 1):
        raise InputError(f"the rows of client {some(found[count > 1])} are not contiguous; sort the files by client.")
    if len(found) == 0 or found[0] != 0 or found[-1] != len(found) - 1:
        raise InputError(
            f"the files in '{path}' hold {len(found)} clients, which must be numbered from 0 on without gaps."
        )
    order = np.argsort(who)
    return _Index(paths, *(np.concatenate(part)[order] for part in (file, start, sizes)))


def _owners(opened: Any, path: Path, client: str) -> Ints:
    """[rows] the client of each row of a file."""
    rows = opened.metadata.num_rows
    check_memory(f"the list of the {rows:,} rows of '{path}'", 4 * 8 * rows, RAISE, part=0.5)
    folder = re.fullmatch(rf"{re.escape(client)}=(\d{{1,18}})", path.parent.name)
    if folder:
        return np.full(rows, int(folder[1]))
    if client not in opened.schema_arrow.names:
        raise InputError(f"'{path}' has no column '{client}' and is not in a folder such as '{client}=0'.")
    check_numbers(opened.schema_arrow.field(client).type, client)
    return numbers(opened.read(columns=[client]).column(client), client).astype(np.int64)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Arrow's errors as refusals."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"'{path}' cannot be read as Parquet: {first_line(error)}.") from error


def check_numbers(kind: Any, name: str) -> None:
    """Refuse other columns before they are read: a text that is repeated may be as long as memory."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"the column '{name}' holds {kind}; samples and labels are numbers.")


def _meaning(kind: Any) -> tuple[str, int]:
    """What a column's numbers are taken for (pixels, whole numbers, truth values or others), and how deep lists go."""
    depth = 0
    while hasattr(kind, "value_type"):
        kind, depth = kind.value_type, depth + 1
    what = "whole" if pa.types.is_integer(kind) else "truth" if pa.types.is_boolean(kind) else "other"
    return "bytes" if kind == pa.uint8() else what, depth


def numbers(column: Any, name: str) -> npt.NDArray[Any]:
    """A column of numbers [rows], or of lists of equal length [rows, length]."""
    array = column.combine_chunks()
    if array.null_count:
        raise InputError(f"the column '{name}' has missing values; every sample needs a value.")
    shape: list[int] = [len(array)]
    while hasattr(array.type, "value_type"):
        inner = array.flatten()
        uneven = len(array) and len(inner) % len(array)
        if uneven or (not hasattr(array.type, "list_size") and len(np.unique(array.value_lengths().to_numpy())) > 1):
            raise InputError(f"the lists in the column '{name}' differ in length; all samples must be alike.")
        shape.append(len(inner) // max(len(array), 1))
        array = inner
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def save_parquet(
    source: ClientSource, folder: str | Path, *, clients_a_file: int = 10_000, clients_a_group: int = 16
) -> None:
    """Write a source as Parquet files of many clients each, some clients a row group.

    Inputs of more than one dimension become lists of numbers; read them with `shape`.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for number, members in enumerate(batches(len(source), clients_a_file)):
        writer = None
        try:
            for few in batches(len(members), clients_a_group):
                clients = members[few]
                x, y = as_pair(source.read(clients), f"clients {clients[0]} to {clients[-1]}")
                flat = x.reshape(len(x), -1)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
                owner = np.repeat(clients, source.sizes()[clients])
                table = pa.table({"client": owner, "x": lists if x.ndim > 1 else pa.array(x), "y": pa.array(y)})
                if writer is None:
                    writer = parquet.ParquetWriter(target / f"part-{number:05d}.parquet", table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
