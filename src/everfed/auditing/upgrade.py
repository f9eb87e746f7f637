"""Which device to upgrade first, found by trying each on the current fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.auditing.noise import Noise
from everfed.scheduling.lattice import Lattice

# Clients tried, the noisiest first; one of many alike stands for all of them. Those that must be tried one by one
# take longer.
_MOST_TRIED, _MOST_TRIED_ALONE = 64, 4


@dataclass(frozen=True)
class Upgrade:
    """More energy for one client: its cycle falls by a round."""

    client: int
    group: str
    cycle: int  # now
    energy: float  # more per round, in the fleet's unit
    energy_part: float  # that, as a part of what it harvests now
    unit: str
    variance: float  # of a round's update afterwards

    def words(self, before: float) -> str:
        more = f"{self.energy:.3g} {self.unit} more per round (+{self.energy_part:.1%})"
        return (
            f"upgrading helps most at client {self.client} ({self.group}): {more} shortens its cycle from "
            f"{self.cycle} to {self.cycle - 1} and a round's variance from {before:.5g} to {self.variance:.5g}."
        )


def best_upgrade(noise: Noise, own: Floats, exact: float) -> tuple[Upgrade | None, bool]:
    """(the client with the largest drop in variance per joule or unit more per round; whether any change was known)."""
    fleet = noise.fleet
    cycles = fleet.cycles()
    unit_j = np.ones(len(fleet)) if fleet.unit_j is None else fleet.unit_j
    offered, needed = noise.harvest()
    kinds = np.stack([cycles, fleet.offsets(), noise.shares, unit_j, own, needed - offered])
    _, alike = np.unique(kinds, axis=1, return_index=True)
    waiting = alike[cycles[alike] > 1]
    promise = own[waiting] * cycles[waiting] / unit_j[waiting]
    waiting = waiting[np.argsort(-promise, kind="stable")][:_MOST_TRIED]
    best, best_worth, known = None, 0.0, False
    for client, after in _after(noise, own, exact, waiting):
        known = True
        energy = float(unit_j[client] * (needed - offered)[client])
        worth = (exact - after) / max(energy, 1e-12 * float(unit_j[client]))
        if worth > best_worth * (1.0 + 1e-9) + 1e-15:
            best_worth = worth
            group = next(g.label for g in fleet.groups() if client in g.clients)
            part = energy / float(unit_j[client] * offered[client])
            best = Upgrade(client, group, int(cycles[client]), energy, part, fleet.energy_unit, after)
    return best, known


def _after(noise: Noise, own: Floats, exact: float, clients: Ints) -> Iterator[tuple[int, float]]:
    """The variance with a cycle less a round, for each of these clients whose change can be computed."""
    if len(clients) and type(noise.policy) is not Lattice:
        everybody = noise.of(clients).with_more_energy(np.arange(len(clients)))
        found = everybody.averages() if everybody else None
        if found is not None:
            for client, part in zip(clients.tolist(), found[0].tolist(), strict=True):
                yield client, exact - float(own[client]) + part
            return
    for client in clients[:_MOST_TRIED_ALONE].tolist():
        concerned = _sharing(noise, client)
        near = noise.of(concerned)
        richer = near.with_more_energy(np.flatnonzero(concerned == client))
        before, later = near.averages(), richer.averages() if richer else None
        if before is not None and later is not None:
            yield client, max(exact - before[1] + later[1], 0.0)


def _sharing(noise: Noise, client: int) -> Ints:
    """The clients that share a draw with this one, before or after the change; the variance of the others stays."""
    if type(noise.policy) is not Lattice:
        return np.array([client])
    cycles, offsets = noise.fleet.cycles(), noise.fleet.offsets()
    near = (cycles == cycles[client]) | (cycles == cycles[client] - 1)
    return np.flatnonzero((offsets == offsets[client]) & near)
