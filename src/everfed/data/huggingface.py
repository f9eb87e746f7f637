"""A data set of Hugging Face with a column that names the clients (extra `datasets`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from everfed.checks import BelowOne, Checked, Count
from everfed.data.dataset import Dataset
from everfed.data.folder import Task
from everfed.data.on_demand_hf import check_table, read_columns
from everfed.data.pictures import alike, pictures
from everfed.data.rows import Array, Rows, dataset, named, of_clients
from everfed.data.text import Writer, next_character
from everfed.errors import InputError, extra, first_line, some, warn
from everfed.files import RAISE
from everfed.machine import check_memory


@dataclass(frozen=True)
class FromHub(Checked):
    """A data set of the Hugging Face Hub, or one on this disk, with clients from a column.

    name: on the Hub, such as "flwrlabs/femnist"; or a folder that `save_to_disk` wrote, or of data files.
    client: the column that names each row's client. x and y: the columns of inputs and of targets. If x is a text and y
    is empty, each client's texts are cut into windows of `length` characters, as for Shakespeare.
    split: the rows to train on. test_split: those of the test set; empty: test_part of each client's rows, at random
    but always the same (of windows of text the last).
    about: further columns that say something of the clients, the same in all rows of a client.
    """

    natural: ClassVar[bool] = True  # its samples have owners
    name: str = ""
    client: str = "client"
    x: str = "x"
    y: str = "label"
    split: str = "train"
    test_split: str = ""
    test_part: BelowOne = 0.2  # of each client, without a test_split
    about: tuple[str, ...] = ()
    length: Count = 80  # of windows of text, in characters
    least: Count = 1  # characters of text that a client has, or is left out
    task: Task = "auto"  # follows from y

    def load(self) -> Dataset:
        if not self.name:
            raise InputError("data.name is empty; name a data set of the Hugging Face Hub, or a folder that holds one.")
        table = self._table(self.split)
        check_table(table, (self.client, self.x, *([self.y] if self.y else []), *self.about))
        if not self.y:
            return self._texts(table)
        if self.test_split == self.split:
            raise InputError(f"test_split is '{self.split}', which is trained on; leave it empty to hold rows out.")
        train, test = self._rows(table), self._rows(self._table(self.test_split)) if self.test_split else None
        if test is not None:
            x, test_x = alike(train.x, test.x)
            train, test = replace(train, x=x), replace(test, x=test_x)
        return dataset(self.name, train, test, self.test_part, _classes(table.features[self.y]), self.task)

    def _table(self, split: str) -> Any:
        datasets = extra("datasets", "Hugging Face data sets need", "datasets")
        place = Path(self.name)
        try:
            if (place / "dataset_dict.json").exists() or (place / "state.json").exists():
                found = datasets.load_from_disk(self.name)
                if isinstance(found, dict):
                    return found[split]
                if split != self.split or split not in (FromHub.split, str(found.split)):
                    raise InputError(
                        f"'{self.name}' is a data set without splits, so there is no '{split}'; leave out split and "
                        "test_split."
                    )
                return found
            return datasets.load_dataset(self.name, split=split)
        except InputError:
            raise
        except KeyError:
            raise InputError(f"'{self.name}' has no split '{split}'; it has {', '.join(found)}.") from None
        except Exception as error:  # whatever the network, the Hub or a file does
            raise InputError(f"the data set '{self.name}' cannot be loaded: {first_line(error)}.") from error

    def _rows(self, table: Any) -> Rows:
        check_table(table, (self.client, self.x, self.y))
        if len(table):
            one = table[0][self.x]
            one = (pictures([one], self.x) if hasattr(one, "convert") else np.asarray(one)).nbytes
            check_memory(f"reading {len(table):,} rows of '{self.name}'", 2 * one * len(table), RAISE, part=0.5)
        about = {key: column(table, key) for key in self.about if key in table.column_names}
        return Rows(*read_columns(table, self.x, self.y, slice(None), mix=True), column(table, self.client), about)

    def _texts(self, table: Any) -> Dataset:
        if self.test_split:
            raise InputError("test_split does not go with windows of text; leave it empty and set test_part.")
        texts = table[self.x][:]
        if texts and None in texts and any(isinstance(text, str) for text in texts):
            raise InputError(
                f"the column '{self.x}' has no text in row {texts.index(None)}; drop such rows, or fill them with ''."
            )
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"the column '{self.x}' is not a text, so data.y must name the column of targets.")
        owner, names = named(column(table, self.client), f"the column '{self.client}'")
        said: list[list[str]] = [[] for _ in names]
        for number, text in zip(owner.tolist(), texts, strict=True):
            said[number].append(text)
        about = {key: of_clients(key, column(table, key), owner, names) for key in self.about}
        empty = [name for name, parts in zip(names, said, strict=True) if not any(parts)]
        if empty:
            warn(f"client {some(empty)} has only empty texts and is left out.", 3)
        writers = [
            Writer(name, "\n".join(said[i]), {key: values[i] for key, values in about.items()})
            for i, name in enumerate(names)
            if any(said[i])
        ]
        return next_character(self.name, writers, self.length, self.least, self.test_part)


def _classes(feature: Any) -> int:
    """How many classes a column's labels have by their names, also in lists; 0: it has no names."""
    while not hasattr(feature, "num_classes") and getattr(feature, "feature", None) is not None:
        feature = feature.feature
    return int(getattr(feature, "num_classes", 0) or 0)


def column(table: Any, name: str) -> Array:
    """A column of numbers, or of texts as objects."""
    values = table[name][:]
    return np.array(values, object if any(isinstance(value, str) for value in values) else None)
