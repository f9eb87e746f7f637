"""Splits: which client holds which samples. Every sample has exactly one owner.

Each split is a small class with `assign(...)` -> owner of every sample, and a row in `SPLITS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np

from everfed import registry
from everfed.arrays import Ints
from everfed.checks import Checked, Fraction
from everfed.data.owners import Owners
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, unknown
from everfed.random import Purpose, derive, permutation


class Split(Protocol):
    """The protocol of the splits in `SPLITS`. Fields are options."""

    def assign(self, labels: Ints, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        """The owner of every sample."""
        ...


@dataclass(frozen=True)
class Iid:
    """Shuffled and dealt evenly: all clients hold the same mix of classes, and equally many samples up to one."""

    def assign(self, labels: Ints, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        owner = np.empty(len(labels), np.int64)
        owner[permutation(len(labels), seed, Purpose.PARTITION)] = np.arange(len(labels)) % clients
        return owner


@dataclass(frozen=True)
class Dirichlet(Checked):
    """Each class is spread over clients in proportions drawn from Dirichlet(alpha).

    per: "client" draws proportions for every client (label skew independent of energy); "energy-group" draws them for
        groups of equal cycle and deals evenly within a group, so that the skew depends on energy.
    """

    alpha: Annotated[float, "(0, 1e6]"] = 0.3  # small is more skewed
    per: Annotated[str, ("client", "energy-group")] = "client"

    def assign(self, labels: Ints, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        groups = [np.array([i]) for i in range(clients)] if self.per == "client" else _groups(fleet, clients)
        weights = np.array([len(g) for g in groups]) / clients
        gamma = np.random.default_rng(derive(seed, Purpose.PARTITION))
        owner = np.empty(len(labels), np.int64)
        for c, members in _by_class(labels, seed):
            # Weighting by group size keeps the expected samples per client equal.
            proportions = gamma.dirichlet(self.alpha * weights * len(groups))
            bounds = np.round(np.cumsum(proportions) * len(members)).astype(np.int64)
            for group, part in zip(groups, np.split(members, bounds[:-1]), strict=True):
                owner[part] = _deal(group, len(part), start=c)
        return owner


@dataclass(frozen=True)
class ByEnergy(Checked):
    """Labels depend on energy: a fraction `strength` of every class belongs to one energy group.

    0 is iid; 1 gives each group its own classes, best powered first (10 classes over 4 groups:
    0-2, 3-5, 6-7, 8-9). In between, the rest of every class is dealt to all clients.
    """

    strength: Fraction = 1.0  # 0 is iid

    def assign(self, labels: Ints, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        by_class = _by_class(labels, seed)
        classes = len(by_class)
        groups = _groups(fleet, clients, at_most=classes)
        own_classes = np.array_split(np.arange(classes), len(groups))
        home = np.concatenate([[g] * len(cs) for g, cs in enumerate(own_classes)])
        owner = np.empty(len(labels), np.int64)
        shared = []
        dealt = [0] * len(groups)
        for c, members in by_class:
            own = round(self.strength * len(members))
            group = home[c]
            owner[members[:own]] = _deal(groups[group], own, start=dealt[group])
            dealt[group] += own
            shared.append(members[own:])
        rest = np.concatenate(shared)
        rest = rest[permutation(len(rest), seed, Purpose.PARTITION, stream=classes + 1)]
        owner[rest] = np.arange(len(rest)) % clients
        return owner


@dataclass(frozen=True)
class Natural(Checked):
    """The data's own clients, each with all of its samples; if there are more than the fleet has, as many by chance.

    match: how they meet the fleet's clients: "random"; "size": the largest are the best powered; or "column": in the
        order of a column, the lowest the best powered; texts in the order of the alphabet, but where all are numbers as
        numbers. reverse: the other way round.
    """

    match: Annotated[str, ("random", "size", "column")] = "random"
    column: str = ""  # what `match = "column"` goes by
    reverse: bool = False

    def assign(self, labels: Ints, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        raise InputError("the split 'natural' needs data with clients of their own; choose another, such as 'iid'.")

    def deal(self, owners: Owners, clients: int, seed: int, fleet: Fleet | None) -> Ints:
        """[clients] the natural client that each client of the fleet is."""
        if clients > len(owners):
            raise InputError(
                f"the fleet has {clients} clients and the data {len(owners)} of their own; use a fleet of at most "
                "that many, or another split."
            )
        if (self.match == "column") != bool(self.column):
            raise InputError("split.column names what match = 'column' goes by; give both or neither.")
        if self.reverse and self.match == "random":
            raise InputError(
                "split.reverse turns an order round, but match = 'random' has none; set match to 'size' or 'column', "
                "or leave reverse out."
            )
        chosen = permutation(len(owners), seed, Purpose.PARTITION)[:clients]
        if self.match == "random":
            return chosen
        values = -owners.sizes()[chosen] if self.match == "size" else self._values(owners)[chosen]
        ranked = chosen[np.argsort(values, kind="stable")]
        dealt = np.empty(clients, np.int64)
        dealt[np.concatenate(_groups(fleet, clients, at_most=clients))] = ranked[:: -1 if self.reverse else 1]
        return dealt

    def _values(self, owners: Owners) -> Any:
        if self.column not in owners.columns:
            raise InputError(unknown("column of the data's clients", self.column, owners.columns or ["(none)"]))
        values = np.array(owners.columns[self.column])
        try:
            numbers = values.astype(np.float64)  # texts too: '7' comes before '10'
        except ValueError:
            return np.unique(values, return_inverse=True)[1]
        return numbers if np.isfinite(numbers).all() else np.unique(values, return_inverse=True)[1]


SPLITS: dict[str, type[Any]] = {"iid": Iid, "dirichlet": Dirichlet, "by-energy": ByEnergy, "natural": Natural}
registry.table("split", SPLITS, Split)


def check_enough(samples: int, clients: int) -> None:
    if samples < clients:
        raise InputError(f"{samples} samples cannot be split over {clients} clients; every client needs one.")


def arrange(owner: Ints, clients: int) -> tuple[Ints, Ints]:
    """(order, starts) of `FederatedData`; a client without samples takes one from the largest client."""
    owner = owner.copy()
    counts = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(counts == 0):
        richest = int(np.argmax(counts))
        owner[np.flatnonzero(owner == richest)[0]] = client
        counts[richest] -= 1
        counts[client] += 1
    return np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _groups(fleet: Fleet | None, clients: int, at_most: int = 10) -> list[Any]:
    if fleet is None:
        raise InputError("this split depends on the energy groups; pass fleet=.")
    if len(fleet) != clients:
        raise InputError(f"the fleet has {len(fleet)} clients and the split {clients}; they must be the same.")
    return [g.clients for g in fleet.groups(at_most)]


def _by_class(labels: Ints, seed: int) -> list[tuple[int, Ints]]:
    """The samples of each class, shuffled."""
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise InputError("this split goes by each sample's class, which these data do not have; choose 'iid'.")
    classes = int(labels.max()) + 1
    out = []
    for c in range(classes):
        members = np.flatnonzero(labels == c)
        out.append((c, members[permutation(len(members), seed, Purpose.PARTITION, stream=c + 1)]))
    return out


def _deal(group: Ints, cards: int, start: int) -> Ints:
    """Owners of `cards` samples dealt to the group in turn, continuing where the last deal ended."""
    return group[(start + np.arange(cards)) % len(group)]
