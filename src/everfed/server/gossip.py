"""FedAWE: clients start from the model they last received, and the server averages the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.checks import Positive
from everfed.learning.task import Starts, Trained
from everfed.server.aggregate import Aggregator, Setting, Weighting
from everfed.server.experience import SinceLast
from everfed.server.rules import PlainRule, ServerRule


@dataclass(frozen=True)
class FedAWE(PlainRule):
    """FedAWE (Xiang, Ioannidis, Yeh, Joe-Wong & Su, NeurIPS 2024).

    A participant starts from its own model x_i, the one it was sent at its last participation, and echoes its
    innovation delta_i for every round since then, k_i of them. The server averages over the participants S,

        x = mean over S of (x_i + rate * k_i * N p_i * delta_i),

    and sends x to the participants alone. N p_i is 1 where shares are equal, as they are in the paper. A run evaluates
    and returns the mean of all clients' models, as in the authors' experiments and analysis; it moves by rate * sum p_i
    k_i delta_i. Their code also shortens the mean innovation to length 0.5; this does not.

    rate: the global learning rate; it replaces the server's optimiser.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(scaled=False), server=ef.FedAWE()).method
    'fedawe'
    """

    heeds_scales: ClassVar[bool] = False
    rate: Positive = 1.0

    def weighting(self, clients: int) -> Weighting:
        return SinceLast(clients)

    def start(self, setting: Setting) -> Aggregator:
        return _Gossip(self, setting, self.rate)


class _Gossip(Aggregator):
    """All participants of a round get the same model, so one is kept per round that is the last of some client."""

    def __init__(self, rule: ServerRule, setting: Setting, rate: float) -> None:
        super().__init__(rule, setting)
        self.rate = rate
        self.held = np.full(len(setting.shares), -1, np.int64)  # the round after which each was sent its model
        self.models = {-1: setting.initial.clone()}
        self.here: list[Ints] = []  # this round's participants, as far as their results have come

    @property
    def starts(self) -> Starts | None:
        return self._starts

    def _starts(self, clients: Ints) -> Tensor:
        rounds, place = np.unique(self.held[clients], return_inverse=True)
        models = torch.stack([self.models[r] for r in rounds.tolist()])
        return models[torch.from_numpy(place).to(models.device)]

    def explain(self) -> list[str]:
        each = 4 * self.setting.size / 1e6
        return [f"one model, {each:.3g} MB, per round that is the last of some client"]

    def coefficients(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return self.rate * super().coefficients(round, clients, scales)

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        self.here.append(trained.clients[finite.cpu().numpy()])
        return 0.0

    def _end(self, round: int, update: Tensor | None) -> None:
        who = np.concatenate(self.here) if self.here else np.zeros(0, np.int64)
        self.here = []
        if update is None or not len(who):
            return
        # update = sum of rate * p_i k_i delta_i, so that N times it is the sum of the innovations.
        rounds, counts = np.unique(self.held[who], return_counts=True)
        starts = sum((n * self.models[r] for r, n in zip(rounds.tolist(), counts.tolist(), strict=True)), 0.0 * update)
        self.models[round] = (starts + len(self.held) * update) / len(who)
        self.held[who] = round
        last = set(self.held.tolist())
        self.models = {r: model for r, model in self.models.items() if r in last}

    def state_dict(self) -> dict[str, Tensor]:
        rounds = sorted(self.models)
        models = torch.stack([self.models[r] for r in rounds]).cpu()
        kept = {"held": torch.from_numpy(self.held.copy()), "model_rounds": torch.tensor(rounds), "models": models}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.held = state["held"].cpu().numpy().copy()
        models = state["models"].to(self.setting.device)
        self.models = {r: model.clone() for r, model in zip(state["model_rounds"].tolist(), models, strict=True)}
