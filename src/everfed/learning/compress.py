"""Compression of participants' updates.

All are unbiased, E[Q(x)] = x, and add noise: E|Q(x) - x|^2 <= noise * |x|^2. Smaller messages cost less energy, so a
device takes part more often, but they add noise. With cycle E(b) at b bits, the variance that a client adds to a round
is at most p^2 (E(b) (1 + noise(b)) - 1) |x|^2, so the best b has the least E(b) (1 + noise(b)). Chance is
counter-based, as everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from everfed import registry
from everfed.arrays import Ints, summed_squares
from everfed.checks import Checked, Count
from everfed.energy.physical import Encoding
from everfed.learning.task import PlainTrained, Trained
from everfed.random import Purpose, philox

FULL = 32  # bits of a number as it is


class Compressor(Encoding, Protocol):
    """The protocol of the compressors in `COMPRESSORS`."""

    def compress(self, deltas: Tensor, bits: Tensor, clients: Tensor, round: int | Tensor, seed: int) -> Tensor:
        """Updates [C, parameters] as the server reads them; bits: [C]."""
        ...


@dataclass(frozen=True)
class Whole:
    """No compression: float32."""

    def choices(self) -> tuple[int, ...]:
        return (FULL,)

    def size_ratio(self, bits: int) -> float:
        return 1.0

    def noise(self, bits: int) -> float:
        return 0.0

    def compress(self, deltas: Tensor, bits: Tensor, clients: Tensor, round: int | Tensor, seed: int) -> Tensor:
        return deltas


@dataclass(frozen=True)
class _Quantising(Checked):
    """Numbers in buckets, scaled by the bucket's length, which is sent too, and rounded at random."""

    bucket: Count = 512

    def size_ratio(self, bits: int) -> float:
        return 1.0 if bits >= FULL else bits / FULL + 1.0 / self.bucket

    def noise(self, bits: int) -> float:
        if bits >= FULL:
            return 0.0
        levels = float(2 ** (bits - 1) - 1)
        return min(self.bucket / levels**2, math.sqrt(self.bucket) / levels)

    def compress(self, deltas: Tensor, bits: Tensor, clients: Tensor, round: int | Tensor, seed: int) -> Tensor:
        return _quantised(deltas, bits, self.bucket, uniform(deltas, clients, round, seed))


@dataclass(frozen=True)
class Qsgd(_Quantising):
    """QSGD (Alistarh et al., NeurIPS 2017): a sign and one of 2^(bits - 1) - 1 levels for every number.

    8 bits in buckets of 512 send a quarter of the bytes with noise of at most 0.032. Useful if the radio dominates a
    device's energy, but not if computing does.

    >>> round(Qsgd(bits=8).noise(8), 4)
    0.0317

    bits: of every number, its sign included.
    bucket: numbers that share one length, by which they are scaled.
    """

    bits: Annotated[int, "[2, 16]"] = 8

    def choices(self) -> tuple[int, ...]:
        return (self.bits,)


@dataclass(frozen=True)
class AdaptiveQsgd(_Quantising):
    """QSGD with the number of bits that minimises each device's variance for its energy; float32 is an option.

    Each device minimises E(b) (1 + noise(b)): with fewer bits it can take part more often.
    Needs a fleet of devices, whose energy for computing and sending is known.

    bucket: numbers that share one length, by which they are scaled.
    """

    def choices(self) -> tuple[int, ...]:
        return (2, 3, 4, 5, 6, 8, 10, 12, 16, FULL)


@dataclass(frozen=True)
class RandK(Checked):
    """A random fraction `keep` of the numbers, scaled by 1 / keep; the seed determines which.

    For comparison only: it sends keep of the bytes at a noise of 1 / keep - 1, so that E(b) (1 + noise(b))
    is never less than that of whole updates.

    keep: the fraction that is sent.
    """

    keep: Annotated[float, "(0, 1]"] = 0.1

    def choices(self) -> tuple[int, ...]:
        return (FULL,)

    def size_ratio(self, bits: int) -> float:
        return self.keep

    def noise(self, bits: int) -> float:
        return 1.0 / self.keep - 1.0

    def compress(self, deltas: Tensor, bits: Tensor, clients: Tensor, round: int | Tensor, seed: int) -> Tensor:
        if self.keep == 1.0:
            return deltas
        # A number that is not finite stays so, wherever it lies: such an update must be noticed.
        kept = (uniform(deltas, clients, round, seed) < self.keep) | ~torch.isfinite(deltas)
        return torch.where(kept, deltas / self.keep, 0.0)


COMPRESSORS: dict[str, type[Any]] = {
    "none": Whole,
    "qsgd": Qsgd,
    "adaptive-qsgd": AdaptiveQsgd,
    "rand-k": RandK,
}
registry.table("compression", COMPRESSORS, Compressor)


class Compressed(PlainTrained):
    """Results that were compressed before they were sent."""


def compress_all(trained: Trained, how: Compressor, bits: Ints | None, round: int | Ints, seed: int) -> Trained:
    """Results as they arrive at the server. bits: each client's of the fleet, if they chose. round: one, or of each."""
    if isinstance(how, Whole) or isinstance(trained, Compressed):
        return trained
    device = trained.deltas.device
    chosen = np.full(len(trained.clients), how.choices()[0]) if bits is None else bits[trained.clients]
    mine, clients = (torch.as_tensor(numbers, device=device) for numbers in (chosen, trained.clients))
    when = round if isinstance(round, int) else torch.as_tensor(round, device=device)
    return PlainTrained(trained.clients, how.compress(trained.deltas, mine, clients, when, seed), trained.losses)


def _quantised(deltas: Tensor, bits: Tensor, bucket: int, chance: Tensor) -> Tensor:
    sign, length, level = quantise(deltas, bits, bucket, chance)
    read = dequantise(sign, length, level, bits, deltas.shape[1])
    return torch.where((bits >= FULL)[:, None], deltas, read)


def quantise(deltas: Tensor, bits: Tensor, bucket: int, chance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is sent of updates [C, parameters]: signs and levels [C, buckets, bucket], the buckets' lengths [C, buckets,
    1]."""
    count, size = deltas.shape
    room = -size % bucket
    parts = F.pad(deltas, (0, room)).view(count, -1, bucket)
    chance = F.pad(chance, (0, room)).view(count, -1, bucket)
    s = _levels(bits, deltas.dtype)
    # The root in float64: in float32, libraries differ in the last bit, and devices without torch quantise alike.
    length = summed_squares(parts).double().sqrt().to(deltas.dtype)
    # floor(x + u) with u uniform on [0, 1) is x on average. An empty bucket has no direction to scale.
    level = torch.floor(parts.abs() / torch.where(length == 0.0, 1.0, length) * s + chance)
    return torch.sign(parts), length, torch.minimum(level, s)  # a number can be longer than its bucket by rounding


def dequantise(sign: Tensor, length: Tensor, level: Tensor, bits: Tensor, size: int) -> Tensor:
    """What is read of it, [C, size]."""
    return (sign * length * level / _levels(bits, length.dtype)).reshape(len(sign), -1)[:, :size]


def _levels(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return (2.0 ** (bits - 1) - 1.0).to(dtype)[:, None, None]


def uniform(
    like: Tensor, clients: Tensor, round: int | Tensor, seed: int, purpose: Purpose = Purpose.COMPRESS
) -> Tensor:
    """A number in [0, 1) for each of an update's numbers, from (seed, client, round, place)."""
    size = like.shape[1]
    block = torch.arange((size + 3) // 4, device=like.device)[None, :]
    when = round[:, None] if isinstance(round, Tensor) else torch.full_like(block, round)
    counter = torch.broadcast_tensors(when, block, clients[:, None])
    words = philox((*counter, int(purpose)), (seed & 0xFFFFFFFF, seed >> 32))
    # 24 bits are what a float32 holds: more would round up to 1.
    return (torch.stack(words, dim=-1).flatten(1)[:, :size] >> 8).to(torch.float32) / 2.0**24
