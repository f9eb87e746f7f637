"""Where the rounds of a run come from. The loop knows only `Rounds`; this file has the way that trains here.

Ray workers (`everfed.ray`) and devices on a network (`everfed.flower`) are other ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import part_of
from everfed.learning.task import Check, Trained, Trainer
from everfed.scheduling.plan import PlanStep, Schedule


@dataclass(frozen=True)
class Training:
    """How a run trains, for people and for its folder."""

    trainer: str
    at_once: int  # the most clients that are trained side by side
    parts: list[str]  # how each part of the model is trained
    check: Check | None  # how the trainer compared with plain autograd; None where nobody compared it

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "check": self.check.to_dict() if self.check else None}


class Rounds(Protocol):
    """The shape of every way to get a round."""

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        """Who takes part in this round, and what they made of the server's parameters.

        Results come in the order of the step's clients, in as many parts as suit the memory; a part is good
        until the next one is asked for.
        """
        ...

    def training(self) -> Training: ...

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class LocalRounds:
    """A schedule decides who takes part; a trainer trains them, on this machine or through it."""

    def __init__(self, schedule: Schedule, trainer: Trainer) -> None:
        self.schedule, self.trainer = schedule, trainer

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step = self.schedule.plan_round(round)
        return step, self.trainer.train(params, step.clients, round)

    def training(self) -> Training:
        trainer = self.trainer
        return Training(type(trainer).__name__, trainer.at_once, trainer.explain(), trainer.check)

    def state_dict(self) -> dict[str, Tensor]:
        kept = {name: torch.from_numpy(np.asarray(v)) for name, v in self.schedule.state_dict().items()}
        return kept | {f"trainer.{name}": value for name, value in self.trainer.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        arrays: dict[str, Any] = {n: v.cpu().numpy() for n, v in state.items() if n.startswith(("policy.", "battery."))}
        self.schedule.load_state_dict(arrays)
        self.trainer.load_state_dict(part_of(state, "trainer."))
