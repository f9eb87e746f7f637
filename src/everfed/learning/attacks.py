"""Attackers of a simulated run: clients that train as the others do, and send something else.

They keep to the schedule and to their scale; what is attacked is the update, before it is compressed. A `factor` of at
most 1 keeps it within the length of an honest one, which no bound on the length can refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from everfed import registry
from everfed.arrays import Ints
from everfed.checks import Checked, CountOrZero, Positive
from everfed.errors import InputError, some
from everfed.learning.compress import uniform
from everfed.learning.task import PlainTrained, Trained
from everfed.random import Purpose


class Attack(Protocol):
    """The protocol of the attacks in `ATTACKS`."""

    @property
    def clients(self) -> tuple[int, ...]:
        """The attackers' numbers."""
        ...

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        """What attackers send in the place of these updates, [C, parameters]."""
        ...


@dataclass(frozen=True)
class NoAttack:
    """All clients are honest."""

    clients = ()

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        return deltas


@dataclass(frozen=True)
class _Attacking(Checked):
    clients: tuple[CountOrZero, ...] = ()  # the attackers' numbers
    factor: Positive = 1.0  # the length of what is sent, relative to the honest update's


@dataclass(frozen=True)
class SignFlip(_Attacking):
    """Minus the honest update, times `factor`."""

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        return -self.factor * deltas


@dataclass(frozen=True)
class Scale(_Attacking):
    """The honest update times `factor`: an attacker that wants its own data to count more."""

    factor: Positive = 10.0

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        return self.factor * deltas


@dataclass(frozen=True)
class Noise(_Attacking):
    """A random direction, another one for each attacker and round."""

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        return self.factor * _as_long(_directions(deltas, clients, round, seed), deltas)


@dataclass(frozen=True)
class SameDirection(_Attacking):
    """One random direction for the whole run, the same for all attackers: they pull together."""

    def change(self, deltas: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
        return self.factor * _as_long(_directions(deltas, torch.zeros_like(clients), 0, seed), deltas)


ATTACKS: dict[str, type[Any]] = {
    "none": NoAttack,
    "sign-flip": SignFlip,
    "scale": Scale,
    "noise": Noise,
    "same-direction": SameDirection,
}
registry.table("attack", ATTACKS, Attack)


def _directions(like: Tensor, clients: Tensor, round: int, seed: int) -> Tensor:
    return 2.0 * uniform(like, clients, round, seed, Purpose.ATTACK) - 1.0


def _as_long(directions: Tensor, deltas: Tensor) -> Tensor:
    lengths: Tensor = deltas.norm(dim=1) / directions.norm(dim=1)
    return directions * lengths[:, None]


def check_attack(attack: Attack, clients: int) -> None:
    """Refuse attackers that a fleet of this size does not have."""
    if isinstance(attack, NoAttack):
        return
    if not attack.clients:
        raise InputError("attack.clients is empty; name the attackers by their numbers, such as [3].")
    if wrong := [number for number in attack.clients if number >= clients]:
        raise InputError(f"attack.clients has {some(wrong)}, but the clients' numbers are 0 to {clients - 1}.")


def attacked(results: Iterable[Trained], attack: Attack, round: int, seed: int) -> Iterator[Trained]:
    """A round's results as they are sent, those of attackers included."""
    for trained in results:
        here: Ints = np.flatnonzero(np.isin(trained.clients, attack.clients))
        if len(here) == 0:
            yield trained
            continue
        deltas = trained.deltas.clone()
        who = torch.as_tensor(trained.clients[here], device=deltas.device)
        deltas[torch.from_numpy(here).to(deltas.device)] = attack.change(deltas[here], who, round, seed)
        yield PlainTrained(trained.clients, deltas, trained.losses)
