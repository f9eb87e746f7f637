"""Server rules that remember every client's last update and let it speak for the client in its absence.

With y_i the last update of client i (nothing before its first), both rules are

    u = g * sum_i p_i y_i  +  sum over participants of (a_i delta_i - b_i y_i),   then y_i <- delta_i

with a_i = b_i = p_i, g = 1 for MIFA and a_i = p_i E_i, b_i = memory * p_i E_i, g = memory for HT-VARP.
They take away the noise that comes from who happens to take part, and keep the minibatches' noise
longer. They need N x d numbers and a server that may see single updates (no secure aggregation).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.errors import InputError
from everfed.learning.local import Trained
from everfed.server.aggregate import Aggregator, Outcome, Setting
from everfed.server.rules import AsAsked, PlainRule, ServerRule, Weigher
from everfed.server.vectors import Vectors, as_row, check_place


@dataclass(frozen=True)
class Mifa(PlainRule):
    """MIFA (Gu et al., NeurIPS 2021): everybody's latest update, weighed by shares, in every round.

    No cycle is needed and no scale is used; the bias is staleness, which fades with the learning rate.
    Until a client has taken part once, the others stand in for it (the sum is divided by the shares seen).

    Not for large steps or clients with Adam: old updates then point where the model no longer is.
    place: 'device' or 'disk', where the updates are kept.
    """

    heeds_scales: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    place: str = "device"

    def __post_init__(self) -> None:
        check_place(self.place)

    def weigher(self, clients: int) -> Weigher:
        return _Alike()

    def start(self, setting: Setting) -> Aggregator:
        return _Remembering(self, setting, self.place, memory=1.0, stand_in=True)


@dataclass(frozen=True)
class Varp(PlainRule):
    """HT-VARP: Algorithm 1 with each client's last update as a control variate.

    FedVARP (Jhunjhunwala et al., UAI 2022) with Horvitz-Thompson weights, so that it stays unbiased
    when clients take part unequally often: the variance p_i^2 (E_i - 1) |delta_i|^2 becomes
    p_i^2 (E_i - 1) |delta_i - memory * y_i|^2. memory = 0 is Algorithm 1, bit for bit; with memory = 1 no
    noise of participation is left where updates are exact, but noisy minibatches are counted twice.

    Not for small batches at memory = 1; somewhere around 0.5 is safer. place: 'device' or 'disk'.
    """

    remembers: ClassVar[bool] = True
    memory: float = 0.5
    place: str = "device"

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory <= 1.0:
            raise InputError(f"memory is {self.memory}; the weight of the last update is from 0 to 1.")
        check_place(self.place)

    def start(self, setting: Setting) -> Aggregator:
        if self.memory == 0.0:
            return Aggregator(self, setting)
        return _Remembering(self, setting, self.place, memory=self.memory)


class _Alike(AsAsked):
    def factors(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return np.ones(len(clients))


class _Remembering(Aggregator):
    """Keeps y_i, and their weighed sum, so that a round costs its participants only."""

    def __init__(
        self, rule: ServerRule, setting: Setting, place: str, *, memory: float, stand_in: bool = False
    ) -> None:
        super().__init__(rule, setting)
        self.memory, self.stand_in = memory, stand_in
        self.divisor = 1.0
        self.last = Vectors(len(setting.shares), setting.size, setting.device, place)
        self.total = torch.zeros(setting.size, device=setting.device)  # sum of p_i y_i over the clients seen
        self.change = torch.zeros_like(self.total)  # of `total`, by this round's participants

    def explain(self) -> list[str]:
        return [self.last.explain("the last update")]

    def round(
        self, round: int, clients: Ints, scales: Floats, results: Iterable[Trained], skip: bool = False
    ) -> Outcome:
        if self.stand_in:
            seen = self.last.seen.copy()
            seen[clients] = True
            self.divisor = float(self.setting.shares[seen].sum()) or 1.0
        return super().round(round, clients, scales, results, skip)

    def coefficients(self, round: int, clients: Ints, scales: Floats) -> Floats:
        return super().coefficients(round, clients, scales) / self.divisor

    def _rescale(self, weights: Floats) -> float:
        # By now `seen` is true of the participants that count.
        seen = float(self.setting.shares[self.last.seen].sum())
        return self.divisor / seen if self.stand_in and seen else 1.0

    def _recalled(self) -> tuple[Tensor | None, float]:
        share = float(self.setting.shares[self.last.seen].sum())
        if share == 0.0:
            return None, 0.0
        part = self.memory / self.divisor
        return self.total * part, share * part

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        # A client whose result is not finite counts as absent: its last update goes on speaking for it.
        good = finite.cpu().numpy()
        clients, of_old = trained.clients[good], self.memory * coefficients[good]
        known = self.last.seen[clients]
        old, new = self.last.read(clients), trained.deltas[finite]
        part -= as_row(of_old, part) @ old
        self.change += as_row(self.setting.shares[clients], part) @ (new - old)
        self.last.write(clients, new)
        return -float(of_old[known].sum())

    def _end(self) -> None:
        self.total += self.change
        self.change.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        kept = {f"last.{name}": value for name, value in self.last.state_dict().items()}
        return {**super().state_dict(), **kept, "total": self.total.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.last.load_state_dict({n.removeprefix("last."): v for n, v in state.items() if n.startswith("last.")})
        self.total = state["total"].clone().to(self.setting.device)
