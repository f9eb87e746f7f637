"""Samples that follow each other in time, such as windows of a recording: the last ones are held out, not any.

Windows that overlap, or lie side by side, are alike; if some were held out at random, their neighbours would be trained
on, and a validation set would tell little of what is new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everfed.arrays import Bools, Ints
from everfed.data.plain import whole_numbers
from everfed.errors import InputError
from everfed.random import Purpose, permutation


@dataclass(frozen=True, eq=False)
class Times:
    """When each training sample was: in its recording from `begin` on, for `span` units."""

    recording: Ints  # [samples] a number for each; a recording is of one client
    begin: Ints  # [samples]
    span: int = 1

    def __post_init__(self) -> None:
        for name in ("recording", "begin"):
            object.__setattr__(self, name, whole_numbers(getattr(self, name), f"{name} of the samples' times"))
        if len(self.recording) != len(self.begin) or self.span < 1:
            raise InputError("the times of samples need a recording and a begin for each, and a span of 1 or more.")

    def check_length(self, samples: int) -> None:
        if len(self.begin) != samples:
            raise InputError(f"{len(self.begin)} times were given for {samples} training samples; give one per sample.")

    def only(self, samples: Ints | Bools) -> Times:
        return Times(self.recording[samples], self.begin[samples], self.span)


def last_held_out(times: Times, part: float, seed: int, stream: int) -> tuple[Ints, Ints]:
    """(numbers of the samples that are kept, and of those that are held out), both rising.

    Held out are the last of each recording, in proportion and so many as the part says; kept are those that end before
    the first of them begins. What lies between is in neither. Every recording keeps its first sample. The seed decides
    which recordings give one more where the part does not divide.
    """
    count, samples = round(part * len(times.begin)), np.arange(len(times.begin))
    _, recording = np.unique(times.recording, return_inverse=True)
    first = np.full(recording.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, recording, times.begin)
    free = times.begin >= first[recording] + times.span  # the first sample stays if this one is held out
    if not 0 < count <= free.sum():
        raise InputError(
            f"a part of {part} of {len(samples)} training samples leaves no samples on one side; {free.sum()} could be "
            "held out, of which the first of a recording and what overlaps with it are none."
        )
    # Ranks from the end of the recording, spread evenly over 0 to 1: the lowest have all recordings in proportion.
    drawn = permutation(len(first), seed, Purpose.VALIDATION, stream)
    latest = np.lexsort((-times.begin, recording))
    sizes = np.bincount(recording)[recording[latest]]
    rank = samples - np.searchsorted(recording[latest], recording[latest])
    place = np.empty(len(samples))
    place[latest] = (rank + 0.5) / sizes
    place[~free] = 2.0
    held = np.lexsort((drawn[recording], place))[:count]
    until = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(until, recording[held], times.begin[held])
    kept = times.begin <= until[recording] - times.span
    kept[held] = False
    return np.flatnonzero(kept), np.sort(held)
