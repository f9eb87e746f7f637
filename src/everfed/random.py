"""Chance as a pure function: Philox4x32-10 over (seed, purpose, client, index, block).

Nothing here has a state. A draw depends only on its coordinates, never on how many draws came
before, so a device that reboots recomputes the slot it had, results do not depend on the order
or the grouping of clients, and methods compared under one seed meet the same minibatches.

The 128-bit counter holds the four coordinates, 32 bits each, and the 64-bit key is the seed, so
two different coordinates can never collide. Philox is the generator of Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011). It needs only 32-bit multiplications, so the same
arithmetic runs on NumPy arrays, on torch tensors of any device, and on a microcontroller.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.errors import InputError
from everfed.machine import cores

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

# Elements hashed at once on the CPU: temporaries of this size stay in the second-level cache.
_CHUNK = 1 << 15

# Chunks from which threads pay: a quarter of a million draws.
_ENOUGH_FOR_THREADS = 8

# A NumPy array or a torch tensor, or a plain integer that broadcasts against one.
Array = Any


class Purpose(IntEnum):
    """What a draw is for. Numbers are part of the results: add at the end, never renumber."""

    SLOT = 1  # the round a client picks in its window
    COIN = 2  # independent participation, round by round
    BATCH = 3  # which samples make a minibatch
    DROPOUT = 4  # which activations a client drops
    INIT = 5  # the model's initial weights
    PARTITION = 6  # who holds which samples
    ARRIVAL = 7  # random energy arrivals
    AUGMENT = 8  # crops and flips
    COST = 9  # what a round costs a device, where that varies
    SUPPLY = 10  # how much better or worse one device is supplied than the next
    LATTICE = 11  # the order of the clients of one cycle within a window
    SHIFT = 12  # where that order begins
    COMPRESS = 13  # how an update is rounded for sending
    SAMPLES = 14  # samples that are made up
    VALIDATION = 15  # which samples are held out of training
    DURATION = 16  # how long a client's work takes, where that varies
    ATTACK = 17  # what an attacker sends in the place of its update
    WEATHER = 18  # which days a resampled year is made of
    SHARED = 19  # where the generators that a process shares start for a client's work, if a model draws from them


def check_seed(seed: int, name: str = "the seed") -> None:
    """A seed is the generator's 64-bit key."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**64:
        raise InputError(f"{name} is {seed!r}; it must be a whole number from 0 to 2**64 - 1.")


def philox(
    counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array], wraps: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Four 32-bit words for each counter, as 64-bit integers below 2**32.

    Written with the operators that NumPy's uint64 and torch's int64 share. A product of two
    32-bit words overflows torch's signed 64 bits, but wraps to the same bit pattern, and masking
    after the shift removes the sign bits, so both give the same words.

    wraps: whether products may overflow. A compiler of C++ assumes that signed numbers never do, and leaves the mask
    out; without, they are of negative multipliers that fit, for tensors, in two more additions per round.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_number in range(_ROUNDS):
        if round_number:
            k0 = (k0 + _KEY_STEPS[0]) & _MASK
            k1 = (k1 + _KEY_STEPS[1]) & _MASK
        high0, low0 = (_wrapped if wraps else _fitting)(c0, _MULTIPLIERS[0])
        high1, low1 = (_wrapped if wraps else _fitting)(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _wrapped(word: Array, multiplier: int) -> tuple[Array, Array]:
    """The upper and the lower 32 bits of a product."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def _fitting(word: Array, multiplier: int) -> tuple[Array, Array]:
    """The same by word * multiplier = word * (multiplier - 2**32) + word * 2**32, the first of which fits."""
    product = word * (multiplier - (1 << 32))
    return ((product >> 32) + word) & _MASK, product & _MASK


def words(
    seed: Array, purpose: Purpose, client: Array, index: Array, block: Array = 0, lanes: int = 4
) -> npt.NDArray[np.uint64]:
    """The first `lanes` 32-bit words of each coordinate, by NumPy, on a new leading axis.

    seed may be an array: an audit runs many seeds of one fleet side by side.
    """
    key = np.asarray(seed, dtype=np.uint64)
    arrays = [np.asarray(a).astype(np.uint64) for a in (client, index, block)]
    shape = np.broadcast_shapes(key.shape, *(a.shape for a in arrays))
    clients, indices, blocks = (np.broadcast_to(a, shape).reshape(-1) if a.ndim else a for a in arrays)
    keys = np.broadcast_to(key, shape).reshape(-1) if key.ndim else key
    out = np.empty((lanes, int(np.prod(shape))), np.uint64)

    def fill(start: int) -> None:
        part = slice(start, start + _CHUNK)
        c, i, b, k = (a[part] if a.ndim else a for a in (clients, indices, blocks, keys))
        with np.errstate(over="ignore"):  # wrapping is the point; NumPy warns for scalars only
            result = philox((i, b, c, np.uint64(purpose)), (k & _MASK, k >> 32))
        for lane in range(lanes):
            out[lane, part] = result[lane]

    starts = range(0, out.shape[1], _CHUNK)
    if len(starts) < _ENOUGH_FOR_THREADS:
        for start in starts:
            fill(start)
    else:  # NumPy lets go of the interpreter while it computes
        list(_threads(os.getpid()).map(fill, starts))
    return out.reshape(lanes, *shape)


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(min(4, cores()), thread_name_prefix="everfed-random")


def below(bound: Array, seed: Array, purpose: Purpose, client: Array, index: Array) -> npt.NDArray[np.int64]:
    """A uniform integer in 0..bound-1 for each coordinate (uniform to 2**-32)."""
    word = words(seed, purpose, client, index, lanes=1)[0]
    scaled: npt.NDArray[np.uint64] = (word * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)
    return scaled.astype(np.int64)


def uniform(seed: Array, purpose: Purpose, client: Array, index: Array) -> npt.NDArray[np.float64]:
    """A uniform float in [0, 1) for each coordinate."""
    word: npt.NDArray[np.float64] = words(seed, purpose, client, index, lanes=1)[0].astype(np.float64)
    return word / 2.0**32


def permutation(n: int, seed: int, purpose: Purpose, stream: int = 0) -> npt.NDArray[np.int64]:
    """A random order of 0..n-1; `stream` tells apart several orders for one purpose."""
    high, low = words(seed, purpose, stream, np.arange(n), lanes=2)
    return np.argsort((high << np.uint64(32)) | low, kind="stable")


def derive(seed: int, purpose: Purpose, stream: int = 0) -> int:
    """A 63-bit seed for a generator of another library."""
    high, low = words(seed, purpose, stream, 0, lanes=2).tolist()
    return int(((high << 32) | low) & (2**63 - 1))
