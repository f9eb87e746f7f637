"""Which training samples are held out: of every class, of every client, or whole clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Ints, taken
from everfed.data.federated import FederatedData
from everfed.data.plain import Pair
from everfed.data.times import Times, last_held_out
from everfed.errors import InputError, some
from everfed.random import Purpose, permutation

TUNING, STOPPING = 0, 1  # two hold-outs of one seed are drawn independently


def held_out(
    y: npt.NDArray[Any],
    classes: int,
    part: float,
    seed: int,
    *,
    owners: Ints | None = None,
    by: str = "sample",
    stream: int = TUNING,
    times: Times | None = None,
) -> tuple[Ints, Ints]:
    """(numbers of the samples that are kept, and of those that are held out), both rising.

    By sample: of samples that follow each other the last ones (`last_held_out`); from every natural client in
    proportion if the samples have owners, each of which keeps one sample at least; otherwise stratified by class;
    targets that are no classes, at random. By client: all samples of some owners.
    """
    if by == "client":
        return _whole_owners(owners, part, seed, stream)
    if times is not None:
        return last_held_out(times, part, seed, stream)
    count, most = round(part * len(y)), len(y) - 1
    strata = np.zeros(len(y), np.int64)
    if owners is not None:
        strata, most = owners, len(y) - len(np.unique(owners))
    elif classes and y.ndim == 1 and y.dtype.kind in "iu":
        strata = y
    if not 0 < count <= most:
        raise InputError(f"a part of {part} of {len(y)} training samples leaves no samples on one side.")
    # Ranks within the stratum, spread evenly over 0 to 1: the lowest have all strata in proportion.
    shuffled = permutation(len(y), seed, Purpose.VALIDATION, stream)
    grouped = shuffled[np.argsort(strata[shuffled], kind="stable")]
    sizes = np.bincount(strata)[strata[grouped]]
    rank = np.arange(len(y)) - np.searchsorted(strata[grouped], strata[grouped])
    place = np.empty(len(y))
    place[grouped] = (rank + 0.5) / sizes
    if owners is not None:
        place[grouped[rank == sizes - 1]] = 1.0  # what its owner keeps
    order = shuffled[np.argsort(place[shuffled], kind="stable")]
    return np.sort(order[count:]), np.sort(order[:count])


def _whole_owners(owners: Ints | None, part: float, seed: int, stream: int) -> tuple[Ints, Ints]:
    if owners is None:
        raise InputError("these data have no natural clients to hold out; hold out by = 'sample' instead.")
    known = np.unique(owners)
    count = max(1, round(part * len(known)))
    if count >= len(known):
        raise InputError(f"a part of {part} of {len(known)} natural clients leaves none to train.")
    out = np.isin(owners, known[permutation(len(known), seed, Purpose.VALIDATION, stream)[:count]])
    return np.flatnonzero(~out), np.flatnonzero(out)


def held_out_of_clients(data: Any, part: float, by: str, seed: int) -> tuple[FederatedData, Pair]:
    """Data that are already split, without a part of every client's samples; and that part."""
    if not isinstance(data, FederatedData):
        raise InputError(
            "early_stopping holds samples out, and data that are loaded on demand cannot; remove it, or load the "
            "samples into memory (from_arrays)."
        )
    if by == "client":
        raise InputError(
            "early_stopping.by is 'client', but these data are already split and every client of the fleet needs "
            "samples; hold out by = 'sample'."
        )
    owner = np.repeat(np.arange(len(data)), data.sizes())
    times = None if data.times is None else data.times.only(data.order)
    kept, held = held_out(data.y[data.order], 0, part, seed, owners=owner, stream=STOPPING, times=times)
    empty = np.setdiff1d(np.arange(len(data)), owner[kept])
    if len(empty):
        raise InputError(
            f"client {some(empty)} would keep no samples, since the last in time are held out; lower "
            "early_stopping.part, or give the clients more samples."
        )
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner[kept], minlength=len(data)))])
    numbers = data.order[held]
    return replace(data, order=data.order[kept], starts=starts), (taken(data.x, numbers), data.y[numbers])
