"""Updates made small on a device, in NumPy: the bits that `learning.compress` has in a simulation.

The server says with the model how updates travel, so that a device need not be told. Chance comes from (seed, client,
round, place): the server knows which numbers a device has kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from everfed.arrays import summed_squares
from everfed.errors import InputError
from everfed.flower.payload import read
from everfed.flower.wire import ARRAYS, Vector
from everfed.random import Purpose, words

RECORD = "update"  # a small update, in the place of a model
WANTED = "update.wanted"  # how the server wants it


@dataclass(frozen=True)
class Thinning:
    """How one client's updates travel: as numbers of some bits in buckets, or a random part of them."""

    seed: int
    bits: int = 0  # 2 to 16; 0: a part of the numbers is sent as it is
    bucket: int = 1
    keep: float = 1.0

    def to_record(self) -> ConfigRecord:
        seed = [self.seed >> 32, self.seed & 0xFFFFFFFF]  # a record's numbers have a sign
        return ConfigRecord({"seed": seed, "bits": self.bits, "bucket": self.bucket, "keep": self.keep})

    @classmethod
    def of(cls, content: RecordDict) -> Thinning | None:
        """What a message says of it; None: updates are sent whole."""
        record: Any = content.get(WANTED)
        if not isinstance(record, ConfigRecord):
            return None
        said: dict[str, Any] = dict(record)
        (high, low), bits, bucket, keep = (said[key] for key in ("seed", "bits", "bucket", "keep"))
        if not (bits == 0 or 2 <= bits <= 16) or bucket < 1 or not 0.0 < keep <= 1.0:
            raise InputError(f"the server wants updates of {bits} bits in buckets of {bucket}, {keep} of them.")
        return cls((high << 32) | low, bits, bucket, keep)

    def encode(self, delta: Vector, client: int, round: int) -> ArrayRecord:
        """What a client sends of its update. round: or slot."""
        if not self.bits:
            kept = chance(len(delta), client, round, self.seed) < np.float32(self.keep)
            return ArrayRecord({"kept": Array(delta[kept])})
        room = -len(delta) % self.bucket
        parts, drawn = (
            np.pad(numbers, (0, room)).reshape(-1, self.bucket)
            for numbers in (delta, chance(len(delta), client, round, self.seed))
        )
        levels = np.float32(2 ** (self.bits - 1) - 1)
        with np.errstate(all="ignore"):  # what is not finite has no finite length, which the server refuses
            length = np.sqrt(summed_squares(parts).astype(np.float64)).astype(np.float32)
            level = np.floor(np.abs(parts) / np.where(length == 0.0, np.float32(1.0), length) * levels + drawn)
            codes = np.minimum(np.nan_to_num(level), levels).astype(np.uint16)
        codes += (parts < 0.0) * np.uint16(2 ** (self.bits - 1))
        packed = pack(codes.reshape(-1)[: len(delta)], self.bits)
        return ArrayRecord({"codes": Array(packed), "lengths": Array(length.reshape(-1))})


def thin_out(result: RecordDict, sent: Mapping[str, Array], how: Thinning, client: int, round: int) -> None:
    """Put a small update in the place of the model that an app returns. sent: the model that it was given."""
    arrays = result.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord) or set(arrays) != set(sent):
        return  # the server says what is wrong with it
    try:
        after, before = (np.concatenate([read(of[key]).reshape(-1) for key in sent]) for of in (arrays, sent))
    except ValueError:
        return
    if after.dtype != np.float32 or after.shape != before.shape:
        return
    with np.errstate(all="ignore"):
        delta = after - before
    result.pop(ARRAYS)
    result[RECORD] = how.encode(delta, client, round)


def chance(size: int, client: int, round: int, seed: int) -> Vector:
    """A number in [0, 1) for each of an update's numbers."""
    drawn = words(seed, Purpose.COMPRESS, client, round, np.arange(-(-size // 4)))  # four of each
    return (drawn.T.reshape(-1)[:size] >> np.uint64(8)).astype(np.float32) / np.float32(2.0**24)


def pack(codes: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint8]:
    """Numbers of some bits each, one after the other, lowest bit first."""
    single = (codes[:, None] >> np.arange(bits, dtype=np.uint16)) & 1
    return np.packbits(single.astype(np.uint8).reshape(-1), bitorder="little")


def unpack(packed: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.int64]:
    single = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return single.astype(np.int64) @ (1 << np.arange(bits))
