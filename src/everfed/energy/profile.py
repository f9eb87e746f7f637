"""Energy that follows a curve: the sun over a site, or a recorded trace.

Clients at one site share its curve and differ in their gain, so a fleet of a million needs one
row per site and one number per client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from everfed.arrays import Bools, Floats, Ints, Seeds
from everfed.errors import InputError, some

# The longest cycle a fleet takes: rounds have 32 bits in the random generator's counter.
LONGEST_CYCLE = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Profile:
    """What a table says for the round, times the client's gain; the seed plays no part.

    table: [sites][rounds] joules that one unit of source (one watt-peak of panel) gives in a round.
        Each site's row is as long as what is known of it; none touches another.
    site: [N] the row of each client.
    gain: [N] rounds' cost per joule of the table: a panel's size in Wp over the cost of a round in J.
    offsets: [N] the first round in which a client has energy. Time runs on until then: a client
        that starts in round 100 finds the sun of round 100.
    repeats: at the end of its row, start again, or give nothing from then on; one for all, or one per site.
    """

    regular: ClassVar[bool] = False
    table: Sequence[Floats] | Floats
    site: Ints
    gain: Floats
    offsets: Ints
    repeats: bool | Sequence[bool] = True
    known_cycles: Ints | None = None  # [N] overrides the cycles computed from the mean, losses included

    def __post_init__(self) -> None:
        table, gain = tuple(np.asarray(row, np.float64) for row in self.table), np.asarray(self.gain, np.float64)
        site, offsets = np.asarray(self.site, np.int64), np.asarray(self.offsets, np.int64)
        for name, array in (("table", table), ("site", site), ("gain", gain), ("offsets", offsets)):
            object.__setattr__(self, name, array)
        if not table or any(row.ndim != 1 or row.size == 0 for row in table):
            shapes = ", ".join(str(row.shape) for row in table) or "none"
            raise InputError(
                f"a profile's table has one row of rounds per site, at least one of each; got rows of {shapes}."
            )
        if np.ndim(self.repeats) and len(np.asarray(self.repeats)) != len(table):
            raise InputError(
                f"{np.size(self.repeats)} values of repeats were given for {len(table)} sites; give one each."
            )
        if not len(site) == len(gain) == len(offsets):
            raise InputError(
                f"a profile has {len(site)} sites, {len(gain)} gains and {len(offsets)} offsets; give one per client."
            )
        bad = np.array([not np.all((row >= 0.0) & np.isfinite(row)) for row in table])
        _refuse(bad, "the energy of site", "is not all finite and >= 0")
        _refuse((site < 0) | (site >= len(table)), "the site of client", f"is not one of 0 to {len(table) - 1}")
        _refuse(~((gain > 0.0) & np.isfinite(gain)), "the gain of client", "is not a finite number above 0")
        _refuse(offsets < 0, "the offset of client", "is negative; every offset is a round from 0 up")
        if self.known_cycles is None:  # a cycle that is set may be a promise that nothing keeps
            _refuse(self.mean == 0.0, "client", "harvests nothing in the whole table and could never train")

    @cached_property
    def site_means(self) -> Floats:
        """[sites] joules per round, each over its own row."""
        return np.array([row.mean() for row in self.table])

    @cached_property
    def mean(self) -> Floats:
        """[N] units per round, over the row of the client's site."""
        mean: Floats = self.site_means[self.site] * self.gain
        return mean

    @cached_property
    def _rows(self) -> tuple[Floats, Ints, Ints, Bools]:
        """All rows one after the other, where each starts, how long it is, and whether it repeats."""
        lengths = np.array([len(row) for row in self.table])
        repeats = np.broadcast_to(np.asarray(self.repeats, bool), len(lengths))
        return np.concatenate(self.table), np.cumsum(lengths) - lengths, lengths, repeats

    @cached_property
    def _all_started(self) -> int:
        return int(self.offsets.max(initial=0))

    def part(self, clients: Ints) -> Self:
        known = None if self.known_cycles is None else self.known_cycles[clients]
        site, gain, offsets = self.site[clients], self.gain[clients], self.offsets[clients]
        return replace(self, site=site, gain=gain, offsets=offsets, known_cycles=known)

    @cached_property
    def cycles(self) -> Ints:
        """[N] rounds for a unit at the mean over the table, rounded up: a night or a winter takes longer."""
        if self.known_cycles is not None:
            return self.known_cycles
        with np.errstate(divide="ignore", over="ignore"):
            # Ten tenths are a unit, whatever the last bits of their mean say.
            rounds = np.ceil((1.0 - 1e-12) / self.mean)
        return np.clip(rounds, 1, LONGEST_CYCLE).astype(np.int64)

    @property
    def window_capacity(self) -> Floats:
        """One unit, the least there can be: what a night needs is for the battery's owner to say."""
        return np.ones(len(self.site))

    @property
    def known_rounds(self) -> int | None:
        """Rounds up to the first end of a row that does not repeat; None: without end."""
        _, _, lengths, repeats = self._rows
        return None if repeats.all() else int(lengths[~repeats].min())

    def chance(self, round: int) -> Floats | None:
        return None

    def harvest(self, round: int, seed: Seeds) -> Floats:
        rows, starts, lengths, repeats = self._rows
        # One number per site, which stays in the cache while the clients pick theirs.
        of_sites = np.where(repeats | (round < lengths), rows[starts + round % lengths], 0.0)
        amounts: Floats = of_sites[self.site]
        amounts *= self.gain
        if round < self._all_started:
            amounts[self.offsets > round] = 0.0
        return amounts


def _refuse(bad: Bools, whose: str, why: str) -> None:
    """An error that names the culprits, if there are any."""
    if bad.any():
        raise InputError(f"{whose} {some(np.flatnonzero(bad))} {why}.")
