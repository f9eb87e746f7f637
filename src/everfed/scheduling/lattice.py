"""Clients of equal cycle spread evenly over time without communication: less variance, same mean.

In Algorithm 1 peers (clients with the same cycle and start) draw their slots independently, so some
rounds see many of them and some none. Here they share the draw. With rank k of n peers, handed out at
enrolment, and per window a public permutation pi and a public shift V uniform on [0, 1),

    J = floor( E * frac( pi(k) / n + V ) ).

For any one client frac(const + V) is uniform, so P[J = j] = 1/E exactly, whatever its rank, even if n is
wrong or ranks have holes: such errors reduce the balance but cause no bias. The n points are equally spaced, so
every round sees floor(n/E) or ceil(n/E) of the peers. Using the rank modulo E fails for n < E: all peers would train in
the same n consecutive rounds of E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed import random
from everfed.arrays import Floats, Ints
from everfed.energy.fleet import alike
from everfed.errors import InputError
from everfed.scheduling.policies import Clients, State, UniformWindow


@dataclass(frozen=True)
class Lattice(UniformWindow):
    """Algorithm 1 with peers on a randomly shifted lattice: one slot per window, P[join] = 1/E, scale E.

    This removes the variance of the part that the peers' updates have in common: in the paper's fleet the variance of a
    round's weight falls from 0.2 to 0.0625. If peers' updates have nothing in common, it gains nothing. redraw: False
    draws permutation and shift once for the whole run, so that a client trains exactly every E rounds and trickling
    energy needs a battery of one unit only; only the common phase is random, and the same peers always train together.

    Not for clients that cannot be given a rank, nor with peers whose batteries differ (a skipped slot
    leaves a gap in the lattice).

    >>> import everfed as ef
    >>> fleet = ef.Fleet.from_cycles([1, 2, 4])
    >>> [step.clients.tolist() for step in ef.plan(fleet, ef.Lattice(), rounds=4, seed=0)]
    [[0, 1, 2], [0], [0, 1], [0]]
    """

    redraw: bool = True

    def init(self, clients: Clients, round: int = 0) -> State:
        if clients.ranks is None or clients.peers is None:
            raise InputError(
                "the lattice needs each client's rank among the clients with its cycle and start, and their number; "
                "assign both when a client enrols."
            )
        return super().init(clients, round)

    def _slot(self, clients: Clients, which: Any, window: Ints) -> Ints:
        cycles, offsets = clients.cycles[which], clients.offsets[which]
        assert clients.ranks is not None
        assert clients.peers is not None
        ranks, peers = clients.ranks[which], clients.peers[which]
        if not self.redraw:
            window = np.zeros_like(window)
        slot = np.zeros((*clients.shape()[:-1], len(cycles)), np.int64)
        waits = np.flatnonzero(cycles > 1)
        # Peers open their windows together, so what tells draws apart is the cycle, the start and the window
        # (and the number of peers, where clients disagree about it).
        for together in alike(np.stack([cycles, offsets, window, peers])[:, waits]):
            some = waits[together]
            one = some[0]
            place = _places(clients.seed, int(cycles[one]), int(offsets[one]), int(window[one]), int(peers[one]))
            taken = cycles[one] * place[..., ranks[some] % peers[one]]
            slot[..., some] = np.minimum(taken.astype(np.int64), cycles[one] - 1)
        return slot


def _places(seed: Any, cycle: int, offset: int, window: int, peers: int) -> Floats:
    """frac(pi(k) / n + V) for every rank k, [..., n]: any peer can compute it from public numbers."""
    group = int(random.words(0, random.Purpose.LATTICE, cycle, offset, lanes=1)[0])
    ranks = np.arange(peers)
    draws = random.words(seed, random.Purpose.LATTICE, ranks, window, group, lanes=1)[0]
    shift = random.words(seed, random.Purpose.SHIFT, group, window, lanes=1)[0] / 2.0**32
    permuted = np.argsort(draws, axis=-1, kind="stable")
    place: Floats = np.mod(permuted / peers + shift, 1.0)
    return place


def joint_probability(n: int, cycle: int) -> float:
    """P[two given peers of n train in the same given round]."""
    whole, rest = divmod(n, cycle)
    return whole * (2 * rest + cycle * (whole - 1)) / (cycle * n * (n - 1))
