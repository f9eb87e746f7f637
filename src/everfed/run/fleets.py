"""Fleets as experiment files describe them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol, Self

import numpy as np

from everfed import registry
from everfed.arrays import Ints
from everfed.checks import Checked, Count, CountOrZero, NonNegative
from everfed.energy.arrivals import ARRIVALS
from everfed.energy.fleet import Fleet, check_clients
from everfed.energy.physical import DeviceFleet, Encoding, Link
from everfed.energy.random_arrivals import Markov
from everfed.errors import InputError
from everfed.run.fingerprint import fingerprint

_MOST_WRITTEN_OUT = 10_000  # cycles in an experiment file; larger fleets are stored next to it


class FleetSpec(Protocol):
    """The protocol of the fleets in `FLEETS`. Fields are options."""

    energy_unit: ClassVar[str]  # the unit of its energy accounts

    def build(self, local_steps: int = 5, encoding: Encoding | None = None) -> Fleet:
        """local_steps, encoding: determine the cost of a round for fleets of devices."""
        ...

    def pinned(self) -> Self:
        """The same, fixed to the current content of its files."""
        ...

    def with_files(self, place: Callable[[str, str], str]) -> Self:
        """The same with its files moved to place(path, sha256)."""
        ...


@dataclass(frozen=True)
class CycleFleet(Checked):
    """A fleet from the paper's renewal cycles, assigned in turn: client i has cycles[i mod len]."""

    energy_unit: ClassVar[str] = "units"
    clients: Count = 40  # their number
    cycles: tuple[Count, ...] = (1, 5, 10, 20)  # E: rounds needed to harvest one round's energy
    offsets: tuple[CountOrZero, ...] = ()  # first round with energy: none, one per cycle, or one per client
    arrivals: str = field(default="lump", metadata={"names": "arrivals"})  # how energy arrives
    capacity: NonNegative = 0.0  # battery in units; 0: as large as needed
    spell: Annotated[float, "[0, 1e6]"] = 0.0  # mean length of markov's good spells in rounds; 0: four

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.cycles) > self.clients:
            raise InputError(
                f"{len(self.cycles)} cycles were given for {self.clients} clients; give at most one per client."
            )

    def build(self, local_steps: int = 5, encoding: Encoding | None = None) -> Fleet:
        if encoding and len(encoding.choices()) > 1:
            kind = type(encoding.up if isinstance(encoding, Link) else encoding).__name__
            raise InputError(
                f"{kind} compression trades the energy of sending against noise, but a fleet of "
                "cycles has no energies in joules; use a fleet of devices, or compression 'qsgd' and its bits."
            )
        check_clients(self.clients)
        if len(self.cycles) == 0:
            raise InputError("cycles is empty; give at least one, such as 1,5,10,20.")
        if self.offsets and len(self.offsets) not in (len(self.cycles), self.clients):
            raise InputError(
                f"{len(self.offsets)} offsets were given for {len(self.cycles)} cycles and {self.clients} clients; "
                "give one per cycle, or one per client."
            )
        if self.spell and self.arrivals != "markov":
            raise InputError(f"spell is {self.spell:g}, but arrivals are '{self.arrivals}'; only 'markov' has spells.")
        fleet = Fleet.from_cycles(
            np.resize(np.asarray(self.cycles), self.clients),
            np.resize(np.asarray(self.offsets), self.clients) if self.offsets else None,
            arrivals=self.arrivals,
            capacity=self.capacity or None,
        )
        if self.spell:
            fleet = replace(fleet, arrivals=Markov(fleet.cycles(), fleet.offsets(), spell=self.spell))
        return fleet

    @classmethod
    def of(cls, fleet: Fleet) -> CycleFleet | None:
        """The description of this fleet; None if there is none, or only a very long one."""
        kind = next((name for name, kind in ARRIVALS.items() if type(fleet.arrivals) is kind), None)
        cycles = shortest_pattern(fleet.cycles(), fleet.offsets())
        if kind is None or cycles > _MOST_WRITTEN_OUT:
            return None
        offsets = tuple(fleet.offsets()[:cycles].tolist()) if fleet.offsets().any() else ()
        spell = fleet.arrivals.spell if isinstance(fleet.arrivals, Markov) else 0.0
        whole, content = len(fleet), fingerprint(fleet)
        for capacity, spells in itertools.product((0.0, float(fleet.capacity[0])), {0.0, float(spell)}):
            made = cls(whole, tuple(fleet.cycles()[:cycles].tolist()), offsets, kind, capacity, spells)
            if fingerprint(made.build()) == content:
                return made
        return None

    def pinned(self) -> CycleFleet:
        return self

    def with_files(self, place: Callable[[str, str], str]) -> CycleFleet:
        return self


def shortest_pattern(*columns: Ints) -> int:
    """The length of the shortest pattern that the columns repeat: 2 for [1, 5, 1, 5]."""
    clients = len(columns[0])
    for length in range(1, min(clients, 64) + 1):
        if all(np.array_equal(np.resize(column[:length], clients), column) for column in columns):
            return length
    return clients


FLEETS: dict[str, type[Any]] = {"cycles": CycleFleet, "devices": DeviceFleet}
registry.table("fleet", FLEETS, FleetSpec)
