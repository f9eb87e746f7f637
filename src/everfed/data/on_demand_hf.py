"""Clients' samples from a Hugging Face data set (extra `datasets`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Ints
from everfed.data.on_demand import Samples
from everfed.data.on_demand_sources import ranges
from everfed.data.pictures import pictures
from everfed.errors import InputError, extra, unknown


@dataclass(frozen=True, eq=False)
class HuggingFace:
    """Rows of a `datasets.Dataset`, which lie on disk as Arrow files and are mapped.

    rows: the row numbers client after client; starts: [N + 1], client i has rows[starts[i]:starts[i + 1]].
    `by_column` and `by_owner` make them. x and y: the columns of inputs and of labels. Images become
    bytes [channels, height, width], by what they show (`pictures`).
    """

    table: Any  # datasets.Dataset
    rows: Ints
    starts: Ints
    x: str = "x"
    y: str = "label"

    @classmethod
    def by_column(cls, table: Any, client: str, x: str = "x", y: str = "label") -> HuggingFace:
        """Clients from a column that names them (numbers or texts), in the order of the sorted names."""
        check_table(table, (client, x, y))
        _, owner = np.unique(np.asarray(table.with_format("numpy")[client][:]), return_inverse=True)
        return cls.by_owner(table, owner, x, y)

    @classmethod
    def by_owner(cls, table: Any, owner: Sequence[int] | Ints, x: str = "x", y: str = "label") -> HuggingFace:
        """Clients from a number for each row, such as a split of `SPLITS` assigns."""
        check_table(table, (x, y))
        owners = np.asarray(owner)
        if len(owners) != len(table):
            raise InputError(f"{len(owners)} owners were given for {len(table)} rows; give one per row.")
        sizes = np.bincount(owners)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return cls(table, np.argsort(owners, kind="stable"), starts, x, y)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def read(self, clients: Ints) -> Samples:
        rows = self.rows[ranges(self.starts[clients], self.starts[clients + 1])]
        return read_columns(self.table, self.x, self.y, rows)


def read_columns(table: Any, x: str, y: str, rows: Any, mix: bool = False) -> Samples:
    """Inputs and targets of some rows, in the types that the table has; left alone, its library would make all whole
    numbers int64. mix: whether pictures of several kinds are brought to one (`pictures`)."""
    if type(table.features[x]).__name__ == "Image":
        targets = table.select_columns([y]).with_format("numpy", dtype=None)[rows][y]
        return pictures(table.select_columns([x]).with_format(None)[rows][x], x, mix), np.asarray(targets)
    found = table.select_columns([x, y]).with_format("numpy", dtype=None)[rows]
    try:
        inputs = np.stack([np.asarray(sample) for sample in found[x]])
    except ValueError:
        raise InputError(f"the samples in the column '{x}' differ in shape; all must be alike.") from None
    return inputs, np.asarray(found[y])


def check_table(table: Any, columns: tuple[str, ...]) -> None:
    if not isinstance(table, extra("datasets", "Hugging Face data sets need", "datasets").Dataset):
        raise InputError(
            f"the table is a {type(table).__name__}; give one split as a datasets.Dataset, such as "
            "datasets.load_dataset(name, split='train')."
        )
    for name in columns:
        if name not in table.column_names:
            raise InputError(unknown("column", name, table.column_names))
