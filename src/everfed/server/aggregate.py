"""A server rule at work: from the participants' results to the round's update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.errors import InputError
from everfed.learning.gradients import GradientRule
from everfed.learning.optim import Optimizer, rate
from everfed.learning.task import Starts, Trained

Arrays = dict[str, npt.NDArray[Any]]


class WeightingRule(Protocol):
    """What an aggregator needs of a server rule."""

    normalizes: ClassVar[bool]  # whether coefficients are divided by their sum

    def weighting(self, clients: int) -> Weighting: ...


class Weighting(Protocol):
    """A rule's weights at work in one run, or in many side by side.

    It knows a client by its number alone, so that S runs of N clients are one weighting of S * N
    clients: an audit measures a rule over many seeds with the code that a server runs.
    """

    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        """What multiplies each participant's share; scales: what the participants ask for.

        Called once per round that has participants, in order.
        """
        ...

    def state_dict(self) -> Arrays:
        """What later factors depend on, each array with one row per client."""
        ...

    def load_state_dict(self, state: Arrays) -> None: ...


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
            raise InputError("this server rule needs the clients' learning rate, which is unknown here.")
        first = round * self.local_steps
        total = self.rounds * self.local_steps
        return sum(rate(self.optimizer, first + step, total) for step in range(self.local_steps))


class Outcome(NamedTuple):
    """What a round's results come to."""

    update: Tensor | None  # None: nothing moves the model
    weight: float  # the coefficients of all updates in it, summed
    losses: Tensor | None  # one per participant
    finite: Tensor | None  # which participants' results are


class Aggregator:
    """A rule at work in one run. In every round: `open`, `add` each part of the results, `close`.

    This one forms the sum of coefficient * delta. Rules that remember updates extend `_absorb` and `_recalled`.
    """

    def __init__(self, rule: WeightingRule, setting: Setting) -> None:
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

    def open(self, round: int, clients: Ints, scales: Floats, skip: bool = False) -> None:
        """Start a round. skip: participants whose results are not finite count as absent."""
        self.round, self.clients, self.skip = round, clients, skip
        self._before = {n: v[clients] for n, v in self.weighting.state_dict().items()} if skip else {}
        self._weights = self.coefficients(round, clients, scales) if len(clients) else np.zeros(0)
        self._memory = self._recalled()
        self._sum: Tensor | None = None
        self._losses: list[Tensor] = []
        self._finite: list[Tensor] = []
        self._done, self._absorbed = 0, 0.0

    def add(self, trained: Trained) -> None:
        """Use up the results of the next participants, in the order in which `open` named them."""
        here = self._weights[self._done : self._done + len(trained.clients)]
        part, finite = trained.weighted_sum(here, skip=self.skip)
        self._absorbed += self._absorb(self.round, trained, here, part, finite)
        self._sum = part if self._sum is None else self._sum.add_(part)
        self._losses.append(trained.losses)
        self._finite.append(finite)
        self._done += len(trained.clients)

    def close(self) -> Outcome:
        """The round's update."""
        update, weights, rescale = self._sum, self._weights, 1.0
        finite = _joined(self._finite)
        if self.skip and finite is not None and not bool(finite.all()):
            present = finite.cpu().numpy()
            self._forget(self.clients[~present], {name: rows[~present] for name, rows in self._before.items()})
            weights = weights[present]
            rescale = self._rescale(weights)
            update = update.mul_(rescale) if update is not None else None
        self._end(self.round, update)
        remembered, recalled = self._memory
        if remembered is not None:
            update = remembered if update is None else update.add_(remembered)
        weight = recalled + rescale * (self._absorbed + float(weights.sum()))
        return Outcome(update, weight, _joined(self._losses), finite)

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
        self.weighting.load_state_dict({n: v.cpu().numpy() for n, v in part_of(state, "weigher.").items()})


def _joined(parts: list[Tensor]) -> Tensor | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else torch.cat(parts)
