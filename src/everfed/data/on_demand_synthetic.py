"""Small pictures made from numbers alone: data for fleets of any size, that take no room anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt

from everfed.arrays import Ints
from everfed.checks import Checked, Count
from everfed.data.dataset import CentralDataset
from everfed.data.on_demand import OnDemand, Samples
from everfed.data.partition import ByEnergy, Iid, Split
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.machine import check_memory
from everfed.random import Purpose, check_seed, words

_TEST = 2**32 - 1  # the test set is what a client of this number would hold; fleets end far below
_VALIDATION = 2**32 - 2  # and a validation set what this one would
_TEST_SAMPLES = 2000
_BYTES_A_PIXEL = 8  # while pictures are made: words of noise, bytes of noise, pattern and sum
_SIGNAL = 0.25  # of a picture; the rest is noise


@dataclass(frozen=True)
class Synthetic(Checked):
    """Pictures of side x side bytes: a pattern of the class under noise, made when a client needs them.

    Every client holds `samples` of them. Splits: iid and by-energy, drawn sample by sample.

    samples: of each client.
    classes: how many patterns there are.
    side: pixels of an edge.
    """

    samples: Count = 20
    classes: Annotated[int, "[2, inf)"] = 10
    side: Annotated[int, "[2, inf)"] = 8

    def check_room(self) -> None:
        """Refuse pictures of which the test set, a client's or the patterns would not fit."""
        pictures = _TEST_SAMPLES + self.samples + self.classes
        what = f"{pictures:,} synthetic pictures of {self.side:,} x {self.side:,} pixels"
        which = "side" if self.side**2 > max(self.samples, self.classes) else "samples or classes"
        check_memory(what, _BYTES_A_PIXEL * pictures * self.side**2, f"lower data.{which}")

    def load(self) -> SyntheticDataset:
        return SyntheticDataset(self)


@dataclass(frozen=True)
class SyntheticDataset(CentralDataset):
    """Synthetic data before the split."""

    options: Synthetic
    tested_on: int = _TEST

    def hold_out(self, part: float, seed: int = 0) -> SyntheticDataset:
        """Samples are made up without end, so none has to be taken from training."""
        return replace(self, tested_on=_VALIDATION)

    def split(self, split: Split, clients: int, *, fleet: Fleet | None = None, seed: int = 0) -> OnDemand:
        check_seed(seed)
        if not isinstance(split, Iid | ByEnergy):
            raise InputError(f"synthetic data support the splits iid and by-energy, not {type(split).__name__}.")
        self.options.check_room()
        strength = split.strength if isinstance(split, ByEnergy) else 0.0
        first, count = np.zeros(clients, np.int64), np.full(clients, self.options.classes)
        if strength:
            if fleet is None or len(fleet) != clients:
                raise InputError("a split that follows energy needs the fleet, with as many clients.")
            groups = fleet.groups(at_most=self.options.classes)
            for group, own in zip(groups, np.array_split(np.arange(self.options.classes), len(groups)), strict=True):
                first[group.clients], count[group.clients] = own[0], len(own)
        pictures = Pictures(self.options, strength, first, count, seed)
        test = pictures.make(np.array([self.tested_on]), _TEST_SAMPLES, 0.0, first[:1], count[:1])
        return OnDemand(pictures, test, self.options.classes, "synthetic")


@dataclass(frozen=True, eq=False)
class Pictures:
    """What each client holds. A sample is a function of (seed, client, its place)."""

    options: Synthetic
    strength: float  # the part of samples that is of the client's own classes
    first: Ints  # [N] its first own class
    count: Ints  # [N] how many they are
    seed: int

    def __len__(self) -> int:
        return len(self.first)

    def sizes(self) -> Ints:
        return np.full(len(self), self.options.samples)

    def read(self, clients: Ints) -> Samples:
        return self.make(clients, self.options.samples, self.strength, self.first[clients], self.count[clients])

    def make(self, clients: Ints, samples: int, strength: float, first: Ints, count: Ints) -> Samples:
        """The pictures and labels of these clients, one after the other."""
        pixels = self.options.side**2
        blocks = -(-pixels // 16)  # four words of four bytes each
        who, place = clients[:, None], np.arange(samples)
        any_class, own_class, kind = words(self.seed, Purpose.SAMPLES, who, place, blocks, lanes=3)
        label = (any_class * np.uint64(self.options.classes)) >> np.uint64(32)
        if strength:
            own = first[:, None].astype(np.uint64) + ((own_class * count[:, None].astype(np.uint64)) >> np.uint64(32))
            label = np.where(kind < strength * 2.0**32, own, label)
        y = label.astype(np.int64).reshape(-1)
        noise = words(self.seed, Purpose.SAMPLES, who[..., None], place[:, None], np.arange(blocks))
        grey = np.moveaxis(noise, 0, -1).astype("<u4", order="C").view(np.uint8).reshape(len(y), -1)[:, :pixels]
        return (self._patterns[y] + self._noise[grey]).reshape(-1, 1, self.options.side, self.options.side), y

    @cached_property
    def _patterns(self) -> npt.NDArray[np.uint8]:
        """[classes, pixels] the same for every seed, so that runs can be compared."""
        number = np.arange(self.options.side**2)
        drawn = words(0, Purpose.SAMPLES, np.arange(self.options.classes)[:, None], number, lanes=1)[0]
        patterns: npt.NDArray[np.uint8] = (drawn * (_SIGNAL / 2.0**24)).astype(np.uint8)
        return patterns

    @cached_property
    def _noise(self) -> npt.NDArray[np.uint8]:
        """What a byte of noise adds to a pixel."""
        return (np.arange(256) * (1.0 - _SIGNAL)).astype(np.uint8)
