"""A server rule with a defence: all updates of a round are held until they can be compared with one another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.errors import InputError
from everfed.learning.task import Trained, free_on
from everfed.machine import readable
from everfed.server.aggregate import Aggregator, Outcome, Setting
from everfed.server.last_updates import LastUpdates, StandingIn
from everfed.server.robust import Defence, Guard, NoDefence
from everfed.server.rules import ServerRule

# From this size on, memory is looked at before a round.
_LARGE = 64 << 20


def guarded(rule: ServerRule, setting: Setting, defence: Defence | None = None) -> Aggregator:
    """The rule at work with a defence, or an error if they do not go together."""
    if defence is None or isinstance(defence, NoDefence):
        return rule.start(setting)
    name = type(defence).__name__
    if getattr(rule, "asynchronous", False):
        raise InputError(
            f"robust is {name}, which compares the updates of a round, but {type(rule).__name__} adds each update as "
            "it arrives; remove it, or choose a method of rounds, such as algorithm1."
        )
    if type(rule) is LastUpdates:
        return _GuardedMemory(rule, setting, rule.place, defence.start())
    if type(rule.start(setting)) is not Aggregator:
        raise InputError(
            f"robust is {name}, which replaces the sum of a round's updates, but {type(rule).__name__} does more with "
            "them than to sum them; use a rule that sums, such as sum, normalized, truncated, fedau or echo, or "
            "last-updates."
        )
    return _Guarded(rule, setting, defence.start())


class _WithGuard(Aggregator):
    """What a guard keeps is part of the rule's state."""

    guard: Guard

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {f"guard.{name}": value for name, value in self.guard.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.guard.load_state_dict(part_of(state, "guard."))


class _Guarded(_WithGuard):
    """In the place of sum of c_i delta_i over a round's participants: what the guard makes of them."""

    def __init__(self, rule: ServerRule, setting: Setting, guard: Guard) -> None:
        super().__init__(rule, setting)
        self.guard = guard

    def explain(self) -> list[str]:
        each = readable(4 * self.setting.size)
        return [f"all updates of a round at once, {each} per participant, for the defence"]

    def open(self, round: int, clients: Ints, scales: Floats, skip: bool = False) -> None:
        super().open(round, clients, scales, skip)
        self._updates: list[Tensor] = []
        _check_room(len(clients), self.setting)

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        self._updates.append(trained.deltas.clone())  # chunks are overwritten by the next
        return 0.0

    def close(self) -> Outcome:
        outcome = super().close()
        updates, self._updates = self._updates, []
        if outcome.update is None or outcome.finite is None:
            return outcome
        present = outcome.finite.cpu().numpy()
        if not (present.all() or self.skip):
            return outcome  # the run ends, and the sum shows why
        weights = self._weights[present]
        if not present.all():
            weights = weights * self._rescale(weights)
        rows = torch.cat(updates)[outcome.finite]
        return outcome._replace(update=_combined(self.guard, self.round, rows, weights, outcome.update))


class _GuardedMemory(_WithGuard, StandingIn):
    """`LastUpdates` with a defence over the last updates of all clients, by their shares, in every round.

    Here a client's weight is its share of the data whenever it took part, so that a rare one never has most of a round.
    """

    def __init__(self, rule: ServerRule, setting: Setting, place: str, guard: Guard) -> None:
        super().__init__(rule, setting, place)
        self.guard = guard
        _check_room(len(setting.shares), setting)

    def close(self) -> Outcome:
        outcome = super().close()
        known = np.flatnonzero(self.last.seen)
        bad = outcome.finite is not None and not bool(outcome.finite.all())
        if outcome.update is None or not self.seen() or (bad and not self.skip):
            return outcome
        weights = self.setting.shares[known] / self.seen()
        rows = self.last.read(known)
        return outcome._replace(update=_combined(self.guard, self.round, rows, weights, outcome.update))


def _combined(guard: Guard, round: int, rows: Tensor, weights: Floats, plain: Tensor) -> Tensor:
    if np.any(weights < 0.0):
        raise InputError(
            f"in round {round} the server rule gives a participant the weight {weights.min():.3g}; a defence needs "
            "weights that are not negative."
        )
    # Updates without any weight, and rounds in which nobody's result was finite, move nothing.
    return guard.combine(round, rows, weights, plain) if weights.sum() > 0.0 else plain


def _check_room(count: int, setting: Setting) -> None:
    wanted = 4 * count * setting.size
    if wanted > _LARGE and wanted > (free := free_on(setting.device)):
        raise InputError(
            f"the defence compares the updates of {count:,} clients, {readable(wanted)} at once, but {readable(free)} "
            f"are free on {setting.device.type}; use a smaller model, or robust = 'none'."
        )
