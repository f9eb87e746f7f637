"""Sources of rounds. The loop only knows the protocol `Rounds`; this file has the one that trains locally.

`everfed.ray` and `everfed.flower` have others, for Ray workers and for devices on a network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import part_of
from everfed.learning.attacks import Attack, attacked
from everfed.learning.task import Check, Trained, Trainer
from everfed.scheduling.plan import PlanStep, Schedule


@dataclass(frozen=True)
class Training:
    """How a run trains, for its folder and `--explain`."""

    trainer: str
    at_once: int  # the largest number of clients trained together
    parts: list[str]  # how each part of the model is trained
    check: Check | None  # how the trainer compared with plain autograd; None if not compared

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "check": self.check.to_dict() if self.check else None}


class Rounds(Protocol):
    """The protocol of a source of rounds."""

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        """The participants of this round, and their results.

        Results come in the order of the step's clients, in chunks that fit into memory; a chunk is valid until the next
        one is requested.
        """
        ...

    def training(self) -> Training: ...

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class LocalRounds:
    """A schedule chooses the participants, and a trainer trains them; attackers among them send something else.

    seed: of what attackers draw.
    """

    def __init__(self, schedule: Schedule, trainer: Trainer, attack: Attack | None = None, seed: int = 0) -> None:
        self.schedule, self.trainer, self.attack, self.seed = schedule, trainer, attack, seed

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step = self.schedule.plan_round(round)
        results = self.trainer.train(params, step.clients, round)
        return step, attacked(results, self.attack, round, self.seed) if self.attack else results

    def training(self) -> Training:
        trainer = self.trainer
        return Training(type(trainer).__name__, trainer.at_once, trainer.explain(), trainer.check)

    def state_dict(self) -> dict[str, Tensor]:
        kept = {name: torch.from_numpy(np.asarray(v)) for name, v in self.schedule.state_dict().items()}
        return kept | {f"trainer.{name}": value for name, value in self.trainer.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        arrays: dict[str, Any] = {n: v.cpu().numpy() for n, v in state.items() if n.startswith(("policy.", "battery."))}
        self.trainer.load_state_dict(part_of(state, "trainer."))  # first: it may refuse, and then nothing has changed
        self.schedule.load_state_dict(arrays)
