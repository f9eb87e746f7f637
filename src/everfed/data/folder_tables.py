"""The Parquet files of the source `folder`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from everfed.data.on_demand_parquet import check_numbers, numbers, readable
from everfed.data.rows import Rows
from everfed.errors import InputError, unknown
from everfed.files import check_parquet, file_size


def read_tables(
    paths: list[Path], x: str, y: str, client: str, about: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[Rows, Rows | None]:
    """Rows of the training set, and of the test set if there are files whose names begin with "test"."""
    test = [path for path in paths if path.name.startswith("test")]
    train = [path for path in paths if path not in test]
    if not train:
        raise InputError(
            f"'{paths[0].parent}' has Parquet files of a test set alone; name those for training otherwise."
        )
    return _rows(train, x, y, [client, *about], shape), _rows(test, x, y, [client], shape) if test else None


def _rows(paths: list[Path], x: str, y: str, names: list[str], shape: tuple[int, ...]) -> Rows:
    """names: the column of clients, and those that say something of them."""
    wanted = [x, y, *names]
    parts = []
    for path in paths:
        file_size(path)  # a pipe would wait for ever
        with readable(path), parquet.ParquetFile(path) as file:
            for name in wanted:
                if name not in file.schema_arrow.names:
                    raise InputError(f"in '{path}': {unknown('column', name, file.schema_arrow.names)}")
            for name in (x, y):
                check_numbers(file.schema_arrow.field(name).type, name)
            check_parquet(path, file, wanted)
        # Texts as numbers of those that occur: one that is repeated may be as long as memory.
        with readable(path), parquet.ParquetFile(path, read_dictionary=names) as file:
            parts.append(file.read(columns=wanted))
    with readable(paths[0]):
        table = pa.concat_tables(parts).unify_dictionaries()
    samples = numbers(table.column(x), x)
    if shape:
        if math.prod(shape) != math.prod(samples.shape[1:]):
            raise InputError(f"samples of {math.prod(samples.shape[1:])} numbers do not have the shape {shape}.")
        samples = samples.reshape(len(samples), *shape)
    client, *about = (_names(table.column(name), name) for name in names)
    return Rows(samples, numbers(table.column(y), y), client, dict(zip(names[1:], about, strict=True)))


def _names(column: Any, name: str) -> npt.NDArray[Any]:
    """A column of numbers, or of texts as objects, each text in memory once."""
    array = column.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        return numbers(column, name)
    if array.null_count:
        raise InputError(f"the column '{name}' has missing values; every row needs a value.")
    texts = np.array(array.dictionary.to_pylist(), object)
    return np.asarray(texts[array.indices.to_numpy()])
