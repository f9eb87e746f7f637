"""A server rule at work: from the participants' results to the round's update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.errors import InputError
from everfed.learning.gradients import GradientRule
from everfed.learning.optim import Optimizer, rate
from everfed.learning.task import Starts, Trained

if TYPE_CHECKING:
    from everfed.server.rules import ServerRule


@dataclass(frozen=True)
class Setting:
    """What a rule may need to know of the run it serves."""

    shares: Floats  # p_i of every client, [N]
    size: int  # parameters of the model
    device: torch.device
    optimizer: Optimizer | None  # the clients'; None: not known here
    local_steps: int
    rounds: int
    initial: Tensor  # the parameters that the run starts from, for rules that keep models

    def local_rates(self, round: int) -> float:
        """The sum of the local steps' learning rates in a round."""
        if self.optimizer is None:
            raise InputError("this server rule needs the clients' learning rate, which is not known here.")
        first = round * self.local_steps
        total = self.rounds * self.local_steps
        return sum(rate(self.optimizer, first + step, total) for step in range(self.local_steps))


class Outcome(NamedTuple):
    """What a round's results come to."""

    update: Tensor | None  # None: nothing moves the model
    weight: float  # the coefficients of all updates in it, summed
    losses: Tensor | None  # one a participant
    finite: Tensor | None  # which participants' results are


class Aggregator:
    """The sum of coefficient * delta. Rules that remember updates extend `_absorb` and `_recalled`."""

    def __init__(self, rule: ServerRule, setting: Setting) -> None:
        self.rule, self.setting = rule, setting
        self.weighting = rule.weighting(len(setting.shares))

    @property
    def gradients(self) -> tuple[GradientRule, ...]:
        """What the rule asks of the clients' gradients."""
        return ()

    @property
    def starts(self) -> Starts | None:
        """Where each participant starts from; None: all of them from the server's parameters."""
        return None

    @property
    def waits(self) -> bool:
        """Whether nothing moves before every client has taken part once."""
        return False

    def explain(self) -> list[str]:
        """What the rule keeps and how much room that takes, one line each."""
        return []

    def coefficients(self, round: int, clients: Ints, scales: Floats) -> Floats:
        """What each participant's update is multiplied by."""
        weights = self.setting.shares[clients] * self.weighting.factors(round, clients, scales)
        return weights / weights.sum() if self.rule.normalizes and len(weights) else weights

    def round(
        self, round: int, clients: Ints, scales: Floats, results: Iterable[Trained], skip: bool = False
    ) -> Outcome:
        """Use up a round's results. skip: participants whose results are not finite count as absent."""
        known = {n: v[clients] for n, v in self.weighting.state_dict().items()} if skip else {}
        weights = self.coefficients(round, clients, scales) if len(clients) else np.zeros(0)
        update, losses, finite, done = None, [], [], 0
        remembered, recalled = self._recalled()
        weight = 0.0
        for trained in results:
            here = weights[done : done + len(trained.clients)]
            part, good = trained.weighted_sum(here, skip=skip)
            weight += self._absorb(round, trained, here, part, good)
            update = part if update is None else update.add_(part)
            losses.append(trained.losses)
            finite.append(good)
            done += len(trained.clients)
        whose, rescale = _joined(finite), 1.0
        if skip and whose is not None and not bool(whose.all()):
            present = whose.cpu().numpy()
            self._forget(clients[~present], {name: rows[~present] for name, rows in known.items()})
            weights = weights[present]
            rescale = self._rescale(weights)
            update = update.mul_(rescale) if update is not None else None
        self._end(round, update)
        if remembered is not None:
            update = remembered if update is None else update.add_(remembered)
        return Outcome(update, recalled + rescale * (weight + float(weights.sum())), _joined(losses), whose)

    def _forget(self, clients: Ints, known: dict[str, npt.NDArray[Any]]) -> None:
        """Put back what was known of these participants before the round."""
        state = {name: value.copy() for name, value in self.weighting.state_dict().items()}
        for name, rows in known.items():
            state[name][clients] = rows
        self.weighting.load_state_dict(state)

    def _rescale(self, weights: Floats) -> float:
        """What the participants' sum is multiplied by, now that only those of these coefficients count."""
        total = float(weights.sum())
        return 1.0 / total if self.rule.normalizes and total else 1.0

    def _recalled(self) -> tuple[Tensor | None, float]:
        """(what memory adds to every round's update, the weight of that)."""
        return None, 0.0

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        """Take note of a chunk; `part`, its weighed sum, may be changed in place. Returns the weight that adds."""
        return 0.0

    def _end(self, round: int, update: Tensor | None) -> None:
        """All results of the round have been absorbed; update: the participants' part of it."""

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on, as tensors by name."""
        return {
            f"weigher.{name}": torch.from_numpy(value.copy()) for name, value in self.weighting.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        kept = {n.removeprefix("weigher."): v.cpu().numpy() for n, v in state.items() if n.startswith("weigher.")}
        self.weighting.load_state_dict(kept)


def _joined(parts: list[Tensor]) -> Tensor | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else torch.cat(parts)
