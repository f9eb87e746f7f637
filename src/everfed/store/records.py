"""Round records in one append-safe columnar file.

An Arrow IPC stream: a schema, then batches of rounds, each complete in itself, each with a line in `digests`. Only what
has such a line is read, so the file can be read during the run, and a batch cut off by a power failure is ignored. Any
Arrow library opens it: `pyarrow.ipc.open_stream(path).read_pandas()`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everfed.arrays import part_of
from everfed.energy.battery import Books
from everfed.learning.metrics import Metrics
from everfed.run.history import Arrived, RoundRecord
from everfed.store.digests import Digests
from everfed.store.files import StoreError

_FLOATS = pa.list_(pa.float64())
_BOOKS = ("harvested", "spent", "wasted", "stored", "shortfall", "initial", "standby", "leaked", "lost")
_COUNTS = ("violations", "brownouts")

_METRICS = [
    ("loss", pa.float64()),  # all are null in rounds without an evaluation
    ("accuracy", pa.float64()),
    ("class_accuracy", _FLOATS),
    ("class_loss", _FLOATS),
    ("groups", pa.list_(pa.string())),
    ("group_accuracy", _FLOATS),
    ("group_loss", _FLOATS),
    ("metrics", pa.list_(pa.string())),  # custom metrics, by name; files of older versions lack these columns
    ("metric_values", _FLOATS),
    ("breakdown", pa.list_(pa.string())),  # "metric: part", as in `Metrics.breakdown`
    ("breakdown_values", _FLOATS),
]
_ON_VALIDATION = "validation_"  # before the names of the same columns, in the records of runs with early stopping
_ARRIVED = [  # in the records of asynchronous runs, in the order of the participants
    ("arrived_times", _FLOATS),
    ("arrived_staleness", pa.list_(pa.int64())),
    ("arrived_steps", pa.list_(pa.int64())),
    ("arrived_version", pa.int64()),
]

# No wall-clock times, so that records of a resumed run equal those of an uninterrupted one.
_SCHEMA = pa.schema(
    [
        ("round", pa.int64()),
        ("participants", pa.list_(pa.int64())),
        ("scales", _FLOATS),
        ("round_weight", pa.float64()),
        *((name, pa.float64()) for name in _BOOKS),
        *((name, pa.int64()) for name in _COUNTS),
        ("update_norm", pa.float64()),
        ("train_loss", pa.float64()),
        ("dropped", pa.list_(pa.int64())),
        *_METRICS,
    ]
)


NAME = "records.arrow"


class RecordsFile:
    """The records of one run, open for appending. check: raises an error if this process may no longer write."""

    def __init__(
        self,
        folder: Path,
        check: Callable[[], None] = lambda: None,
        validated: bool = False,
        asynchronous: bool = False,
    ) -> None:
        """validated: whether the run has a validation set. asynchronous: whether its clients do not meet in rounds."""
        self.path, self.check = folder / NAME, check
        self.digests = Digests(folder)
        self.file = open(self.path, "ab")  # noqa: SIM115 - held open for the length of a run
        held = [(_ON_VALIDATION + name, kind) for name, kind in _METRICS] if validated else []
        self.schema = pa.schema([*_SCHEMA, *(pa.field(*one) for one in (*held, *(_ARRIVED if asynchronous else ())))])
        self.length, self.so_far = 0, hashlib.sha256()

    def append(self, records: Sequence[RoundRecord]) -> None:
        """Add one batch. After an error (a full disk) the file is cut back to what it was."""
        if not records:
            return
        batch = pa.RecordBatch.from_pylist([_row(r) for r in records], schema=self.schema)
        self._write(batch.serialize())

    def _write(self, data: Any) -> None:
        self.check()
        content = memoryview(data)
        there = os.fstat(self.file.fileno()).st_size
        if there != self.length:
            raise StoreError(
                f"'{self.path}' has {there:,} bytes where this process left {self.length:,}: another process writes "
                "into the folder; this one stops."
            )
        try:
            self.file.write(content)
            self.file.flush()
        except OSError:
            os.ftruncate(self.file.fileno(), self.length)
            raise
        self.length += len(content)
        self.so_far.update(content)
        self.digests.add(NAME, self.length, self.so_far.hexdigest(), sync=False)

    def sync(self) -> tuple[int, str]:
        """Sync to disk; returns the file's length and digest."""
        os.fsync(self.file.fileno())
        self.digests.sync()
        return self.length, self.so_far.hexdigest()

    def truncate(self, length: int) -> None:
        """Truncate to the length at a checkpoint; the resumed run writes the rest again."""
        self.check()
        os.ftruncate(self.file.fileno(), length)
        self.file.seek(length)
        content = self.path.read_bytes()
        self.length, self.so_far = length, hashlib.sha256(content)
        kept = [entry for entry in self.digests.entries.get(NAME, []) if entry[0] < length]
        self.digests.replace(NAME, [*kept, (length, self.so_far.hexdigest())] if length else [])
        if length == 0:
            self._write(self.schema.serialize())
        else:
            self.schema = pa.ipc.open_stream(content).schema  # of an older version, perhaps

    def close(self) -> None:
        self.file.close()


def whole_records(folder: Path, trusted: bool = False) -> tuple[list[RoundRecord], bool]:
    """(the records of a folder as far as they are as they were written, whether that is all of them).

    trusted: whether those of a folder without digests are taken as they are, since an older version wrote it.
    """
    digests = Digests(folder)  # before the records, which may grow in between
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return [], digests.promised(NAME) == 0
    if not digests.known:
        return (parsed(content), True) if trusted else ([], False)
    right = digests.whole_part(NAME, content)
    return parsed(content[:right]), right == max(digests.promised(NAME), len(content))


def parsed(content: bytes) -> list[RoundRecord]:
    """All complete batches, as records."""
    return [_record(row) for batch in _batches(content) for row in batch.to_pylist()]


def _batches(data: bytes) -> Iterator[pa.RecordBatch]:
    try:
        stream = pa.ipc.open_stream(pa.BufferReader(data))
        while True:
            batch = stream.read_next_batch()
            batch.validate(full=True)  # files of older versions have no digests, and a wrong offset ends the process
            yield batch
    except (StopIteration, pa.ArrowInvalid, OSError):
        return  # the end, or a batch that was cut off while it was written


def _row(record: RoundRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "round": record.round,
        "participants": record.participants,
        "scales": record.scales,
        "round_weight": record.round_weight,
        **record.energy.to_dict(),
        "update_norm": record.update_norm,
        "train_loss": record.train_loss,
        "dropped": list(record.dropped),
    }
    columns = _columns(record.metrics) if record.metrics else {}
    validation = _columns(record.validation) if record.validation else {}
    arrived = vars(record.arrived) if record.arrived else {}
    further = {_ON_VALIDATION: validation, "arrived_": arrived}
    return {**row, **columns, **{start + name: v for start, part in further.items() for name, v in part.items()}}


def _columns(metrics: Metrics) -> dict[str, Any]:
    return {
        "loss": metrics.loss,
        "accuracy": metrics.accuracy,
        "class_accuracy": metrics.class_accuracy,
        "class_loss": metrics.class_loss,
        "groups": list(metrics.group_loss or {}),
        "group_accuracy": list((metrics.group_accuracy or {}).values()),
        "group_loss": list((metrics.group_loss or {}).values()),
        "metrics": list(metrics.own),
        "metric_values": list(metrics.own.values()),
        "breakdown": [f"{name}: {part}" for name, parts in metrics.breakdown.items() for part in parts],
        "breakdown_values": [value for parts in metrics.breakdown.values() for value in parts.values()],
    }


def _record(row: dict[str, Any]) -> RoundRecord:
    return RoundRecord(
        row["round"],
        np.array(row["participants"], np.int64),
        np.array(row["scales"], np.float64),
        row["round_weight"],
        Books(**{name: row[name] for name in (*_BOOKS, *_COUNTS)}),
        row["update_norm"],
        row["train_loss"],
        _metrics(row),
        0.0,
        tuple(row["dropped"]),
        _metrics(part_of(row, _ON_VALIDATION)),
        _arrived(row),
    )


def _arrived(row: dict[str, Any]) -> Arrived | None:
    if row.get("arrived_version") is None:
        return None
    times, stale, steps, version = (row[name] for name, _ in _ARRIVED)
    return Arrived(np.array(times, np.float64), np.array(stale, np.int64), np.array(steps, np.int64), version)


def _metrics(row: dict[str, Any]) -> Metrics | None:
    if row.get("loss") is None:
        return None
    breakdown: dict[str, dict[str, float]] = {}
    for key, value in zip(row.get("breakdown") or (), row.get("breakdown_values") or (), strict=True):
        name, part = key.split(": ", 1)
        breakdown.setdefault(name, {})[part] = value

    def listed(name: str) -> tuple[float, ...] | None:
        return tuple(row[name]) if row[name] else None

    def grouped(name: str) -> dict[str, float] | None:
        return dict(zip(row["groups"], row[name], strict=True)) if row[name] else None

    return Metrics(
        row["loss"],
        row["accuracy"],
        listed("class_accuracy"),
        listed("class_loss"),
        grouped("group_accuracy"),
        grouped("group_loss"),
        dict(zip(row.get("metrics") or (), row.get("metric_values") or (), strict=True)),
        breakdown,
    )
