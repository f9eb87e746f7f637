"""Batteries, and energy accounts that must balance.

All amounts are in units of one training round's cost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import Bools, Floats, Ints
from everfed.checks import BelowOne, Checked
from everfed.errors import InputError

_TOTALS = ("harvested", "spent", "wasted", "shortfall", "initial", "standby", "leaked", "lost")

# Sums of 1/E miss a whole unit by a few ulps; this much is forgiven.
TOLERANCE = 1e-9

# Below this part of a fleet it is quicker to charge clients one by one than all at once.
_FEW = 0.1


@dataclass(frozen=True)
class Books:
    """Energy of a whole fleet up to and including a round, in units.

    initial + harvested + shortfall = spent + standby + lost + leaked + wasted + stored, at every
    round. `shortfall` is energy that was spent but not available; `violations` counts such participations. `lost` is
    the energy of rounds that failed because the battery ran out, `brownouts` their number.

    harvested: energy that arrived.
    spent: on training and sending.
    wasted: what did not fit into full batteries.
    stored: in the batteries now.
    shortfall: spent without having been there.
    violations: participations without enough energy.
    initial: in the batteries at the start.
    standby: drawn between rounds.
    leaked: out of the batteries.
    lost: spent on rounds that failed.
    brownouts: how many failed.

    >>> import everfed as ef
    >>> *_, last = ef.plan(ef.Fleet.from_cycles([1, 2]), "greedy", rounds=4)
    >>> last.energy.harvested, last.energy.spent, last.energy.wasted
    (6.0, 6.0, 0.0)
    """

    harvested: float = 0.0
    spent: float = 0.0
    wasted: float = 0.0  # arrived when the battery was full
    stored: float = 0.0
    shortfall: float = 0.0
    violations: int = 0
    initial: float = 0.0  # in the batteries before the first round
    standby: float = 0.0  # drawn between rounds
    leaked: float = 0.0  # self-discharge, and what charging loses
    lost: float = 0.0
    brownouts: int = 0

    def imbalance(self) -> float:
        there = self.initial + self.harvested + self.shortfall
        return there - self.spent - self.standby - self.lost - self.leaked - self.wasted - self.stored

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Storage(Checked):
    """Properties of real batteries, which the paper's model lacks. Each is one number, or one per client.

    charging: the fraction of the harvest that reaches the battery. leak: the fraction of the level lost per round.
    standby: units a device draws in every round. start: units held before the first round. cost_spread: relative
    standard deviation of a round's cost; a round that costs more than the battery holds is lost. browns_out: rounds
    without enough energy are lost too, instead of being counted as violations.
    """

    charging: float | Floats = 1.0
    leak: float | Floats = 0.0
    standby: float | Floats = 0.0
    start: float | Floats = 0.0
    cost_spread: BelowOne = 0.0
    browns_out: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("charging", 1.0), ("leak", 1.0), ("standby", np.inf), ("start", np.inf)):
            try:
                value = np.asarray(getattr(self, name), np.float64)
            except (TypeError, ValueError):
                raise InputError(
                    f"{name} of a battery is {getattr(self, name)!r}; give one number, or one per client."
                ) from None
            if value.ndim > 1:
                raise InputError(
                    f"{name} of a battery has {value.ndim} dimensions; give one number, or one per client."
                )
            if value.ndim:
                object.__setattr__(self, name, value)
            if not np.all((value >= 0.0) & (value <= most) & np.isfinite(value)):
                wanted = "at least 0" if np.isinf(most) else f"from 0 to {most:g}"
                raise InputError(f"{name} of a battery is {getattr(self, name)}; it must be {wanted}.")

    @property
    def scalar(self) -> bool:
        """Whether all clients' batteries are alike."""
        return not any(isinstance(v, np.ndarray) for v in (self.charging, self.leak, self.standby, self.start))

    @property
    def lossless(self) -> bool:
        """Whether batteries only charge and discharge, for any initial charge and any behaviour when empty."""
        losses = ("charging", "leak", "standby", "cost_spread")
        return all(bool(np.all(np.asarray(getattr(self, name)) == getattr(IDEAL, name))) for name in losses)

    def part(self, clients: Ints) -> Storage:
        mine: dict[str, Any] = {
            name: value[clients] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **mine)


IDEAL = Storage()


class Battery:
    """The level of every client's battery. Call charge, affords and spend once per round each.

    copies: leading axis for audits, which run many seeds of one fleet at once.
    """

    def __init__(
        self,
        capacity: Floats,
        copies: tuple[int, ...] = (),
        storage: Storage = IDEAL,
        unit_j: Floats | None = None,
    ) -> None:
        """unit_j: joules of each client's unit; then the books are in joules."""
        self.capacity, self.storage, self.unit_j = capacity, storage, unit_j
        self.loses = storage != IDEAL if storage.scalar else True
        self.level: Floats = np.zeros((*copies, len(capacity)))
        self.level += np.minimum(storage.start, capacity)
        self.initial = self._total(self.level)
        self.harvested = self.spent = self.wasted = self.shortfall = 0.0
        self.standby = self.leaked = self.lost = 0.0
        self.violations = self.brownouts = 0

    def charge(self, arrived: Floats) -> None:
        """Take in this round's arrivals; what does not fit is wasted."""
        copies = self.level.size // arrived.size
        self.harvested += self._total(arrived) * copies
        if self.loses:
            arrived = self._lose(arrived, copies)
        elif arrived.ndim == 1 and np.count_nonzero(arrived) < _FEW * arrived.size:
            self._charge_few(np.flatnonzero(arrived), arrived)
            return
        self.level += arrived
        overflow = self.level - self.capacity
        np.maximum(overflow, 0.0, out=overflow)
        self.level -= overflow
        self.wasted += self._total(overflow)
        if self.loses:  # a device draws its standby power as long as there is any
            drawn = np.minimum(self.level, self.storage.standby)
            self.level -= drawn
            self.standby += self._total(drawn)

    def _charge_few(self, which: Ints, arrived: Floats) -> None:
        """The same for ideal batteries of which only these get anything: the others cannot overflow."""
        level = self.level[..., which] + arrived[which]
        overflow = np.maximum(level - self.capacity[which], 0.0)
        self.level[..., which] = level - overflow
        self.wasted += self._total(overflow, which)

    def _total(self, units: Floats, which: Ints | None = None) -> float:
        """The sum over clients, in the books' unit. which: whose they are, as places in the flattened level."""
        if self.unit_j is None:
            return float(units.sum())
        return float((units * (self.unit_j if which is None else self.unit_j[which % len(self.unit_j)])).sum())

    def _count(self, which: Ints) -> float:
        """One unit for each of these clients."""
        return float(len(which)) if self.unit_j is None else float(self.unit_j[which % len(self.unit_j)].sum())

    def _lose(self, arrived: Floats, copies: int) -> Floats:
        """Self-discharge since the last round, and what charging takes."""
        gone = self.level * self.storage.leak
        self.level -= gone
        kept: Floats = arrived * self.storage.charging
        self.leaked += self._total(gone) + self._total(arrived - kept) * copies
        return kept

    def affords(self, cost: float = 1.0) -> Bools:
        """Which clients have the energy for a round."""
        result: Bools = self.level >= cost * (1.0 - TOLERANCE)
        return result

    def spend(self, join: Bools, cost: float | Floats = 1.0) -> Bools | None:
        """Spend the energy of these clients' round; missing energy is a shortfall.

        cost: one number, or one per client. Returns the clients whose battery ran out, if such rounds are lost, and
        None if all finished.
        """
        payers, each = np.flatnonzero(join), isinstance(cost, np.ndarray)
        failed = self.pay(payers, np.broadcast_to(cost, join.shape).reshape(-1)[payers] if each else cost)
        if failed is None:
            return None
        gone = np.zeros(join.shape, np.bool_)
        gone.reshape(-1)[payers[failed]] = True
        return gone

    def pay(self, payers: Ints, price: float | Floats) -> Bools | None:
        """The same for clients by their places in the flattened level, each once. price: one number, or one of each.

        Returns which of them ran out, and None if none did.
        """
        level, each = self.level.reshape(-1), isinstance(price, np.ndarray)
        after = level[payers] - price
        missing = np.maximum(-after, 0.0)
        # The rounding that `affords` forgives stays in the books, but is no violation.
        short = missing > price * TOLERANCE
        failed = None
        if self.storage.browns_out or each:
            if short.any():
                failed = short
                self._brown_out(payers[short])
            after, missing, payers = after[~short], missing[~short], payers[~short]
            price = price[~short] if isinstance(price, np.ndarray) else price
            short = short[:0]
        level[payers] = after + missing
        self.spent += self._total(price, payers) if isinstance(price, np.ndarray) else price * self._count(payers)
        self.shortfall += self._total(missing, payers)
        self.violations += int(np.count_nonzero(short))
        return failed

    def _brown_out(self, which: Ints) -> None:
        level = self.level.reshape(-1)
        self.lost += self._total(level[which], which)
        level[which] = 0.0
        self.brownouts += len(which)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        totals = np.array([getattr(self, name) for name in _TOTALS])
        return {"level": self.level, "totals": totals, "violations": np.array([self.violations, self.brownouts])}

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.level = state["level"].copy()
        for name, value in zip(_TOTALS, state["totals"].tolist(), strict=True):
            setattr(self, name, value)
        self.violations, self.brownouts = state["violations"].tolist()

    def books(self) -> Books:
        totals = {name: getattr(self, name) for name in _TOTALS}
        return Books(**totals, stored=self._total(self.level), violations=self.violations, brownouts=self.brownouts)
