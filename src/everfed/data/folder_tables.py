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
from everfed.data.row_parts import input_names, joined_rows
from everfed.data.rows import Rows
from everfed.errors import InputError, unknown
from everfed.files import check_parquet, file_size


def read_tables(
    paths: list[Path], x: str, y: str, client: str, about: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[Rows, Rows | None]:
    """Rows of the training set, and of the test set if there are files whose names begin with "test"."""
    test = [path for path in paths if path.name.lower().startswith("test")]
    train = [path for path in paths if path not in test]
    if not train:
        raise InputError(
            f"'{paths[0].parent}' has Parquet files of a test set alone; name those for training otherwise."
        )
    return _rows(train, x, y, [client, *about], shape), _rows(test, x, y, [client], shape) if test else None


def _rows(paths: list[Path], x: str, y: str, names: list[str], shape: tuple[int, ...]) -> Rows:
    """names: the column of clients, and those that say something of them."""
    inputs = _inputs(paths, x, [y, *names])
    if shape and len(inputs) > 1:
        raise InputError(f"shape is {shape}, but there are several inputs ({', '.join(inputs)}); it goes with one.")
    return joined_rows([(path, _of_file(path, inputs, y, names, shape)) for path in paths])


def _inputs(paths: list[Path], x: str, others: list[str]) -> dict[str, str]:
    """The columns of inputs, as all files have them: of x_NAME none may lack in one of them."""
    known: dict[str, None] = {}
    for path in paths:
        file_size(path)  # a pipe would wait for ever
        with readable(path), parquet.ParquetFile(path) as file:
            known |= dict.fromkeys(file.schema_arrow.names)
    # A column that was named on purpose is the input, whatever stands beside it ("image", and "image_id").
    if x != "x" and x in known:
        return {x: ""}
    return input_names(known, x, others, f"'{paths[0].parent}'")


def _of_file(path: Path, inputs: dict[str, str], y: str, names: list[str], shape: tuple[int, ...]) -> Rows:
    try:
        return _rows_of_file(path, inputs, y, names, shape)
    except InputError as error:
        raise InputError(f"{error}" if str(path) in str(error) else f"in '{path}': {error}") from error


def _rows_of_file(path: Path, inputs: dict[str, str], y: str, names: list[str], shape: tuple[int, ...]) -> Rows:
    wanted = [*inputs, y, *names]
    with readable(path), parquet.ParquetFile(path) as file:
        for name in wanted:
            if name not in file.schema_arrow.names:
                raise InputError(unknown("column", name, file.schema_arrow.names))
        for name in (*inputs, y):
            check_numbers(file.schema_arrow.field(name).type, name)
        check_parquet(path, file, wanted)
    # Texts as numbers of those that occur: one that is repeated may be as long as memory.
    with readable(path), parquet.ParquetFile(path, read_dictionary=names) as file:
        table = file.read(columns=wanted).unify_dictionaries()
    x: Any = {short: _shaped(numbers(table.column(name), name), shape) for name, short in inputs.items()}
    client, *about = (_names(table.column(name), name) for name in names)
    return Rows(x.get("", x), numbers(table.column(y), y), client, dict(zip(names[1:], about, strict=True)))


def _shaped(samples: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if not shape or not len(samples):
        return samples
    if math.prod(shape) != math.prod(samples.shape[1:]):
        raise InputError(f"samples of {math.prod(samples.shape[1:])} numbers do not have the shape {shape}.")
    return samples.reshape(len(samples), *shape)


def _names(column: Any, name: str) -> npt.NDArray[Any]:
    """A column of numbers, or of texts as objects, each text in memory once."""
    array = column.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        return numbers(column, name)
    if array.null_count:
        raise InputError(f"the column '{name}' has missing values; every row needs a value.")
    texts = np.array(array.dictionary.to_pylist(), object)
    return np.asarray(texts[array.indices.to_numpy()])
