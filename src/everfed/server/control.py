"""SCAFFOLD: clients correct their drift with the gradients of all clients, kept by the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.errors import InputError
from everfed.learning.gradients import GradientRule
from everfed.learning.optim import SGD
from everfed.learning.rows import Place
from everfed.learning.task import Trained
from everfed.server.aggregate import Aggregator, Setting
from everfed.server.rules import KeepingRule, ServerRule
from everfed.server.vectors import Vectors, as_row


@dataclass(frozen=True)
class Scaffold(KeepingRule):
    """SCAFFOLD (Karimireddy et al., ICML 2020), with shares p_i where they have 1/N.

    A client steps along g - c_i + c instead of g: c_i is the mean gradient of its last round, c the mean of
    all c_i by shares. Afterwards c_i becomes the mean gradient of this round (their option II), and c moves by
    the shares times the changes. The model moves by the mean of the participants' updates, which assumes uniform
    sampling: with unequal participation frequent clients have more weight, as in `Normalized`, until the c_i have
    settled.

    It corrects the drift of many local steps on unequal data, not the noise of rare participation. Requires SGD without
    momentum, since c_i is computed from the update. Devices send as much as before and also receive c and c_i. Not for
    long cycles: a c_i that is E rounds old refers to an old model.
    place: 'device' or 'disk', where the c_i are kept.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(scaled=False), server=ef.Scaffold()).method
    'scaffold'
    """

    normalizes: ClassVar[bool] = True
    heeds_scales: ClassVar[bool] = False
    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        return _Scaffold(self, setting, self.place)


@dataclass(frozen=True)
class HTScaffold(KeepingRule):
    """SCAFFOLD's corrected local steps with Algorithm 1's weights (Horvitz-Thompson): unbiased if the policy is.

    As `Scaffold`, but the model moves by sum p_i scale_i delta_i, as in `Sum`. c moves without scales, so that
    it stays sum p_i c_i. place: 'device' or 'disk', where the c_i are kept.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(), server=ef.HTScaffold()).method
    'ht-scaffold'
    """

    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        return _Scaffold(self, setting, self.place)


class _Scaffold(Aggregator):
    def __init__(self, rule: ServerRule, setting: Setting, place: str) -> None:
        super().__init__(rule, setting)
        known = setting.optimizer
        if known is not None and (not isinstance(known, SGD) or known.momentum):
            raise InputError("SCAFFOLD needs clients with plain SGD (momentum 0): it computes gradients from updates.")
        self.own = Vectors(len(setting.shares), setting.size, setting.device, place)
        self.mean = torch.zeros(setting.size, device=setting.device)
        self.change = torch.zeros_like(self.mean)  # of `mean`, by this round's participants

    @property
    def gradients(self) -> tuple[GradientRule, ...]:
        return (_ScaffoldCorrection(self),)

    def explain(self) -> list[str]:
        return [self.own.explain("the mean gradient")]

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        clients = trained.clients[finite.cpu().numpy()]
        old = self.own.read(clients)
        new = old - self.mean - trained.deltas[finite] / self.setting.local_rates(round)
        self.change += as_row(self.setting.shares[clients], part) @ (new - old)
        self.own.write(clients, new)
        return 0.0

    def _end(self, round: int, update: Tensor | None) -> None:
        self.mean += self.change
        self.change.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        kept = {f"own.{name}": value for name, value in self.own.state_dict().items()}
        return {**super().state_dict(), **kept, "mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.own.load_state_dict(part_of(state, "own."))
        self.mean = state["mean"].clone().to(self.setting.device)


class _ScaffoldCorrection:
    """The clients' gradient rule: what the server keeps is added to every local gradient."""

    def __init__(self, kept: _Scaffold) -> None:
        self.kept = kept

    def added(self, clients: Ints) -> Tensor:
        return self.kept.mean - self.kept.own.read(clients)

    def adjust(self, grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
        return grads + self.added(clients)
