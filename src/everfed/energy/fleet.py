"""A fleet: its clients, their energy arrivals and their batteries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints, Seeds
from everfed.checks import Count, check_numbers, checked
from everfed.energy.arrivals import ARRIVALS, Arrivals
from everfed.energy.battery import IDEAL, Storage
from everfed.errors import InputError, counted, shown, some
from everfed.machine import check_memory
from everfed.registry import lookup
from everfed.showing import axes, svg
from everfed.showing.card import Card, Grid, Shown, numeral, span

# The Philox counter has 32 bits for the client and 32 for the round or window.
MAX_CYCLE = 2**31 - 1
_MAX_CLIENTS = 2**32 - 3  # synthetic data have two of the numbers
# Units a round: above it a full battery's level, the harvest less what does not fit, would lose its digits.
MOST_HARVESTED = 1e12
_BYTES_A_CLIENT = 120  # of a schedule's arrays, at least
_DRAWN = 20_000_000  # clients x rounds whose harvest is drawn


def check_clients(clients: int) -> None:
    """Refuse a fleet that would not fit into memory, before its first array is made."""
    if clients > _MAX_CLIENTS:
        raise InputError(f"a fleet of {clients:,} clients is too large; at most {_MAX_CLIENTS:,} are supported.")
    check_memory(f"a fleet of {clients:,} clients", _BYTES_A_CLIENT * clients, "use fewer clients")


@dataclass(frozen=True)
class Group:
    """Clients with similar energy; `label` is their name in tables and figures."""

    label: str
    clients: Ints
    cycles: tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Fleet(Shown):
    """Clients and their energy. Build one with `Fleet.from_cycles`, or from devices in watts with `DeviceFleet`.

    arrivals: when energy arrives, in units: one unit is one round of training.
    capacity: [N] units that each battery holds.
    storage: leakage, charging losses, standby and brown-outs.
    unit_j: [N] joules of a client's unit; None: energy is counted in units.
    labels: names of the groups, if the fleet has named groups.
    group_of: [N] the group of each client, a number of `labels`.
    message_bits: [N] bits per number of each client's update, if chosen by the compression.

    >>> fleet = Fleet.from_cycles([1, 5, 10, 20] * 10)
    >>> len(fleet), fleet.cycles()[:4].tolist()
    (40, [1, 5, 10, 20])
    """

    arrivals: Arrivals
    capacity: Floats
    storage: Storage = IDEAL
    unit_j: Floats | None = None  # [N] joules of a client's unit; None: energy is counted in units
    labels: tuple[str, ...] = ()  # names of the groups, if the fleet has named groups
    group_of: Ints | None = None  # [N] the group of each client, a number of `labels`
    message_bits: Ints | None = None  # [N] bits per number of each client's update, if chosen by the compression

    def __post_init__(self) -> None:
        checked("storage", self.storage, Storage)
        twice = [label for label in dict.fromkeys(self.labels) if self.labels.count(label) > 1]
        if twice:
            raise InputError(f"several groups are called '{twice[0]}'; give each group its own name.")
        for name in ("charging", "leak", "standby", "start"):
            size = np.size(getattr(self.storage, name))
            if np.ndim(getattr(self.storage, name)) and size != len(self):
                raise InputError(
                    f"{name} has {size} values for {len(self)} clients; give one number, or one per client."
                )

    @classmethod
    def from_cycles(
        cls,
        cycles: Sequence[int] | Ints,
        offsets: Sequence[int] | Ints | None = None,
        *,
        arrivals: str = "lump",
        capacity: float | Sequence[float] | None = None,
        storage: Storage = IDEAL,
    ) -> Fleet:
        """A fleet from the paper's renewal cycles.

        cycles: E_i, rounds that each client needs to harvest one round's energy.
        offsets: the round at which each client starts (default 0: all hold a unit at round 0).
        arrivals: "lump" (a unit at the start of every window) or "trickle" (1/E per round).
        capacity: battery size in units (default: 1 for lump, 2 for trickle, which never waste
            energy under Algorithm 1).
        storage: leakage, charging losses, standby and brown-outs (default: none).

        >>> Fleet.from_cycles([1, 5, 10], arrivals="trickle").capacity.tolist()
        [1.0, 2.0, 2.0]
        """
        e = _whole_numbers(cycles, "cycle", least=1)
        if len(e) == 0:
            raise InputError("a fleet needs at least one client; cycles is empty.")
        o = np.zeros(len(e), np.int64) if offsets is None else _whole_numbers(offsets, "offset", least=0)
        if len(o) != len(e):
            raise InputError(f"{len(o)} offsets were given for {len(e)} clients; give one offset per client.")
        process = lookup(ARRIVALS, arrivals, "arrival process")(e, o)
        size = np.ceil(process.window_capacity) if capacity is None else check_numbers("capacity", capacity)
        if size.ndim > 1 or (size.ndim and len(size) != len(e)):
            raise InputError(f"{size.size} capacities were given for {len(e)} clients; give one, or one per client.")
        size = np.broadcast_to(size, len(e)).copy()
        short = np.flatnonzero(~(size >= 1.0))
        if len(short):
            raise InputError(
                f"a battery must hold one round's energy (capacity >= 1 unit); "
                f"client {some(short)} has {size[short[0]]:g}."
            )
        return cls(process, size, storage)

    def __len__(self) -> int:
        return len(self.capacity)

    def part(self, clients: Ints) -> Fleet:
        """A fleet of only these clients, with the same energy."""
        storage = self.storage if self.storage is IDEAL else self.storage.part(clients)
        unit_j = None if self.unit_j is None else self.unit_j[clients]
        group_of = None if self.group_of is None else self.group_of[clients]
        bits = None if self.message_bits is None else self.message_bits[clients]
        return Fleet(self.arrivals.part(clients), self.capacity[clients], storage, unit_j, self.labels, group_of, bits)

    def harvest(self, round: int, seed: Seeds) -> Floats:
        """Units that arrive in this round; refused if they are no amounts, since arrivals may come from a plugin."""
        arrived = self.arrivals.harvest(round, seed)
        shapes = (len(self),), np.broadcast_shapes(np.shape(seed), (len(self),))
        said = f"{type(self.arrivals).__name__}: its harvest of round {round}"
        if type(arrived) is not np.ndarray or arrived.dtype.kind not in "fiu" or arrived.shape not in shapes:
            raise InputError(f"{said} is {shown(arrived)}; it must be an array of numbers of shape ({len(self)},).")
        if not (arrived.min() >= 0.0 and arrived.max() <= MOST_HARVESTED):  # false for NaN as well
            *_, client = bad = np.argwhere(~((arrived >= 0.0) & (arrived <= MOST_HARVESTED)))[0]
            raise InputError(
                f"{said} is {arrived[tuple(bad)]:g} units for client {client}; it must be from 0 to {MOST_HARVESTED:g}."
            )
        return arrived

    @property
    def energy_unit(self) -> str:
        """The unit of the energy accounts."""
        return "units" if self.unit_j is None else "J"

    def cycles(self) -> Ints:
        """E_i: rounds each client needs to harvest one round's energy, [N]."""
        return self.arrivals.cycles

    def offsets(self) -> Ints:
        """The first round in which each client has energy, [N]."""
        return self.arrivals.offsets

    def groups(self, at_most: int = 10) -> list[Group]:
        """Clients of equal cycle, best powered first; more cycles than `at_most` are merged.

        Merging joins neighbouring cycles into groups of about equal size. If the fleet has named groups, all of them
        are returned.
        """
        if self.group_of is not None:
            return self._named_groups()
        distinct, which, counts = np.unique(self.cycles(), return_inverse=True, return_counts=True)
        if len(distinct) > at_most:
            middle = np.cumsum(counts) - counts / 2
            band = np.minimum((middle * at_most / len(self)).astype(np.int64), at_most - 1)
            _, band = np.unique(band, return_inverse=True)
        else:
            band = np.arange(len(distinct))
        groups = []
        for b in range(int(band.max()) + 1):
            inside = distinct[band == b]
            low, high = int(inside[0]), int(inside[-1])
            label = f"E={low}" if low == high else f"E={low}-{high}"
            groups.append(Group(label, np.flatnonzero(band[which] == b), (low, high)))
        return groups

    @cached_property
    def peers(self) -> list[Ints]:
        """Clients with the same cycle and the same start, set by set, each ascending."""
        return alike(np.stack([self.cycles(), self.offsets()]))

    def _named_groups(self) -> list[Group]:
        found = []
        for number, label in enumerate(self.labels):
            clients = np.flatnonzero(self.group_of == number)
            if len(clients):
                cycles = self.cycles()[clients]
                found.append((float(cycles.mean()), Group(label, clients, (int(cycles.min()), int(cycles.max())))))
        return [group for _, group in sorted(found, key=lambda pair: pair[0])]

    def name_of(self, client: int) -> str:
        """A client in a sentence: with its group's name, if groups have names."""
        if self.group_of is None:
            return f"client {client}"
        group = int(self.group_of[client])
        return f"{self.labels[group]}, device {client - int(np.argmax(self.group_of == group))}"

    def check_rounds(self, rounds: int) -> None:
        """Raise an error if the run is longer than its known energy supply."""
        known: int | None = getattr(self.arrivals, "known_rounds", None)
        if known is not None and rounds > known:
            raise InputError(
                f"the run has {rounds} rounds, and a supply that is not repeated ends after {known}; give fewer "
                'rounds, a longer trace, or extend = "repeat".'
            )

    def undivided(self, rounds: int) -> Ints:
        """Clients whose last window the horizon cuts short."""
        left = np.maximum(rounds - self.offsets(), 0)
        return np.flatnonzero(left % self.cycles() != 0)

    def plot(self, rounds: int | None = None, *, seed: int = 0, ax: Any = None) -> Any:
        """The rounds of training that each energy group's harvest pays for, over time; returns Matplotlib's axes.

        Harvested units since the start, a client's mean in its group; batteries may not hold all of it.
        rounds: how many to draw (default: two of the longest cycle). seed: of random arrivals.
        """
        ax = axes.axes(ax)
        shown = self._drawn_rounds() if rounds is None else checked("rounds", rounds, Count)
        self.check_rounds(shown)
        for place, (label, paid) in enumerate(self._paid_for(shown, seed)):
            ax.plot(np.arange(1, shown + 1), paid, **axes.look(place), linewidth=1.8, label=label)
        ax.set(xlabel="round", ylabel="units harvested per client", xlim=(0, shown), ylim=(0, None))
        axes.whole_rounds(ax)
        axes.title(ax, f"What the harvest pays for, in rounds of training: {counted(len(self), 'client')}")
        axes.grid(ax)
        axes.legend(ax)
        return ax

    def _paid_for(self, rounds: int, seed: int = 0) -> list[tuple[str, Floats]]:
        """By group: what a client has harvested after each round, in units, on average."""
        groups = self.groups()
        arrived = np.zeros((len(groups), rounds))
        for r in range(rounds):
            harvest = self.harvest(r, seed)
            arrived[:, r] = [harvest[group.clients].mean() for group in groups]
        return [(group.label, row) for group, row in zip(groups, arrived.cumsum(axis=1), strict=True)]

    def _drawn_rounds(self) -> int:
        """Two of the longest cycle that is not rare, as far as the supply is known and the fleet is not too large."""
        longest = 2 * int(np.quantile(self.cycles(), 0.99, method="lower"))
        known: int = getattr(self.arrivals, "known_rounds", None) or 500
        return max(1, min(max(40, longest), known, 500, _DRAWN // len(self)))

    def _card(self) -> Card:
        kind = next((name for name, kind in ARRIVALS.items() if type(self.arrivals) is kind), None)
        mean = float((1.0 / self.cycles()).sum())
        facts = [
            ("energy arrives", kind or type(self.arrivals).__name__),
            ("pays for", f"{numeral(mean)} client{'s' * (mean != 1.0)} a round, on average"),
        ]
        if self.storage is not IDEAL:
            facts.append(("batteries", _storage_words(self.storage)))
        if self.unit_j is not None:
            facts.append(("a unit", f"{span(float(self.unit_j.min()), float(self.unit_j.max()))} J"))
        rows = []
        for group in self.groups():
            held = self.capacity[group.clients]
            rows.append(
                (
                    group.label,
                    f"{len(group.clients):,}",
                    span(*group.cycles),
                    span(float(held.min()), float(held.max())),
                )
            )
        grid = Grid.of(("energy group", "clients", "rounds per unit", "battery, units"), rows)
        return Card(f"Fleet of {counted(len(self), 'client')}", facts, grid, self._picture)

    def _picture(self) -> str:
        rounds = self._drawn_rounds()
        if rounds < 10:  # too large for a glance
            return svg.bars([len(group.clients) for group in self.groups()], "clients", "energy groups")
        at = np.arange(1, rounds + 1).tolist()
        paid = [(label, at, row.tolist()) for label, row in self._paid_for(rounds)]
        return svg.lines(paid, "units harvested, by round", 0.0)


def _storage_words(storage: Storage) -> str:
    """What sets batteries apart from ideal ones: 'leak 0.01, standby 0.002 to 0.01'."""
    out = []
    for name in ("charging", "leak", "standby", "start", "cost_spread"):
        value = np.asarray(getattr(storage, name))
        if np.any(value != getattr(IDEAL, name)):
            out.append(f"{name.replace('_', ' ')} {span(float(value.min()), float(value.max()))}")
    return ", ".join([*out, *(["brown out"] if storage.browns_out else [])])


def alike(keys: Ints) -> list[Ints]:
    """The columns of `keys`, grouped by equality; each group ascends.

    >>> [members.tolist() for members in alike(np.array([[1, 2, 1], [0, 0, 0]]))]
    [[0, 2], [1]]
    """
    if keys.shape[1] == 0:
        return []
    order = np.lexsort(keys)  # stable, so that each set ascends
    changes = np.flatnonzero((np.diff(keys[:, order], axis=1) != 0).any(axis=0)) + 1
    return np.split(order, changes)


def _whole_numbers(values: Sequence[int] | Ints, name: str, least: int) -> Ints:
    """An int64 array of whole numbers >= least, or an error that names the first bad client."""
    array = check_numbers(f"{name}s", values)
    if array.ndim != 1:
        raise InputError(f"{name}s must be a flat list, one per client; got an array of {array.ndim} dimensions.")
    bad = np.flatnonzero(~((array >= least) & (array <= MAX_CYCLE) & (np.floor(array) == array)))
    if len(bad):
        raise InputError(
            f"the {name} of client {some(bad)} is {array[bad[0]]:g}; "
            f"every {name} is a whole number of rounds from {least} to {MAX_CYCLE}."
        )
    return array.astype(np.int64)
