"""Server rules that use the last update of each absent client.

With y_i remembered of client i (nothing before its first round), all of them are

    u = g * sum_i p_i y_i  +  sum over participants of (a_i delta_i - b_i y_i),   then y_i <- delta_i

    last-updates   a_i = b_i = p_i,                              g = 1
    MIFA           the same with update / learning rate for y_i,  g = b_i / p_i = the learning rate now
    FedVARP        a_i = b_i = p_i / sum of participants' p,     g = 1
    HT-VARP        a_i = p_i E_i,  b_i = memory * p_i E_i,       g = memory

They remove the variance due to participation but keep minibatch noise longer. They need N x d numbers and a server that
sees individual updates (no secure aggregation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.checks import Fraction
from everfed.errors import InputError
from everfed.learning.rows import Place
from everfed.learning.task import Trained
from everfed.server.aggregate import Aggregator, Outcome, Setting
from everfed.server.rules import KeepingRule, ServerRule
from everfed.server.vectors import Vectors, as_row


@dataclass(frozen=True)
class LastUpdates(KeepingRule):
    """The last update of every client, weighted by shares, in every round: similar to MIFA, but not MIFA.

    It needs no cycles and uses no scales; the bias is staleness, which fades with the learning rate. Stored updates
    keep their length when the learning rate falls (`Mifa` rescales them). Until every client has taken part, the sum is
    divided by the shares of those that have.

    Not for large steps or Adam: old updates then no longer fit the current model.
    place: 'device' or 'disk', where the updates are kept.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(scaled=False), server=ef.LastUpdates()).method
    'last-updates'
    """

    heeds_scales: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        return StandingIn(self, setting, self.place)


@dataclass(frozen=True)
class Mifa(KeepingRule):
    """MIFA (Gu, Huang, Zhang & Huang, NeurIPS 2021), with shares p_i where they have 1/N.

    The server stores each client's last update divided by its learning rate, a sum of gradients G_i, and moves the
    model by the learning rate of this round times sum p_i G_i. If rates change from step to step, the sum of a round's
    rates is used.

    wait: the model does not move before every client has taken part, as in the analysis and the authors' main
    experiments; it never moves if some client never trains. wait = False starts at once, with zeros for clients that
    have not taken part, like their code without waiting. The analysis is about clients with SGD. place: 'device' or
    'disk', where the G_i are kept.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(scaled=False), server=ef.Mifa()).method
    'mifa'
    """

    heeds_scales: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    wait: bool = True
    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        return _Mifa(self, setting, self.place, self.wait)


@dataclass(frozen=True)
class FedVarp(KeepingRule):
    """FedVARP (Jhunjhunwala et al., UAI 2022), with shares p_i where they have 1/N.

    u = sum_i p_i y_i + mean over participants of (delta_i - y_i): SAGA over clients. It is made for a server
    that samples clients uniformly. Under unequal participation a round's update is biased towards frequent
    clients while updates still change (`Varp` repairs that with the scales). place: 'device' or 'disk'.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(scaled=False), server=ef.FedVarp()).method
    'fedvarp'
    """

    normalizes: ClassVar[bool] = True
    heeds_scales: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        return _Remembering(self, setting, self.place)


@dataclass(frozen=True)
class Varp(KeepingRule):
    """HT-VARP: Algorithm 1 with each client's last update as a control variate.

    FedVARP (Jhunjhunwala et al., UAI 2022) with Horvitz-Thompson weights, so that it stays unbiased
    when clients take part unequally often: the variance p_i^2 (E_i - 1) |delta_i|^2 becomes
    p_i^2 (E_i - 1) |delta_i - memory * y_i|^2. memory = 0 is Algorithm 1, bit for bit; with memory = 1 no
    noise of participation is left where updates are exact, but noisy minibatches are counted twice.

    Not for small batches at memory = 1; somewhere around 0.5 is safer. place: 'device' or 'disk'.

    memory: how much of the stored update is taken away from the new one.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.UniformWindow(), server=ef.Varp(memory=0.5)).method
    'ht-varp'
    """

    remembers: ClassVar[bool] = True
    memory: Fraction = 0.5
    place: Place = "device"

    def start(self, setting: Setting) -> Aggregator:
        if self.memory == 0.0:
            return Aggregator(self, setting)
        return _Remembering(self, setting, self.place, self.memory)


class _Remembering(Aggregator):
    """Keeps y_i and their weighted sum, so that the cost of a round depends on its participants only."""

    kept: ClassVar[str] = "the last update"

    def __init__(self, rule: ServerRule, setting: Setting, place: str, memory: float = 1.0) -> None:
        super().__init__(rule, setting)
        self.memory = memory
        self.unit = 1.0  # what y_i is counted in: the update is unit * y_i
        self.last = Vectors(len(setting.shares), setting.size, setting.device, place)
        self.total = torch.zeros(setting.size, device=setting.device)  # sum of p_i y_i over the clients seen
        self.change = torch.zeros_like(self.total)  # of `total`, by this round's participants

    def explain(self) -> list[str]:
        return [self.last.explain(self.kept)]

    def seen(self) -> float:
        """The shares of the clients that have taken part, summed."""
        return float(self.setting.shares[self.last.seen].sum())

    def _recalled(self) -> tuple[Tensor | None, float]:
        if not self.last.seen.any():
            return None, 0.0
        return self.total * (self.memory * self.unit), self.seen() * self.memory

    def _absorb(self, round: int, trained: Trained, coefficients: Floats, part: Tensor, finite: Tensor) -> float:
        # A client whose result is not finite counts as absent: its last update is kept.
        good = finite.cpu().numpy()
        clients, of_old = trained.clients[good], self.memory * coefficients[good]
        known = self.last.seen[clients]
        old, new = self.last.read(clients), trained.deltas[finite] / self.unit
        part -= as_row(of_old * self.unit, part) @ old
        self.change += as_row(self.setting.shares[clients], part) @ (new - old)
        self.last.write(clients, new)
        return -float(of_old[known].sum())

    def _end(self, round: int, update: Tensor | None) -> None:
        self.total += self.change
        self.change.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        kept = {f"last.{name}": value for name, value in self.last.state_dict().items()}
        return {**super().state_dict(), **kept, "total": self.total.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.last.load_state_dict(part_of(state, "last."))
        self.total = state["total"].clone().to(self.setting.device)


class StandingIn(_Remembering):
    """Divides by the shares of the clients that have taken part."""

    def close(self) -> Outcome:
        outcome, seen = super().close(), self.seen()
        if outcome.update is None or not seen:
            return outcome
        return outcome._replace(update=outcome.update.div_(seen), weight=outcome.weight / seen)


class _Mifa(_Remembering):
    kept: ClassVar[str] = "the last gradients (update / learning rate)"

    def __init__(self, rule: ServerRule, setting: Setting, place: str, wait: bool) -> None:
        super().__init__(rule, setting, place)
        if setting.optimizer is None:
            raise InputError(
                "MIFA divides updates by the clients' learning rate, which is unknown here; with a constant rate, "
                "last-updates is the same once every client has taken part."
            )
        self.wait = wait

    @property
    def waits(self) -> bool:
        return self.wait

    def open(self, round: int, clients: Ints, scales: Floats, skip: bool = False) -> None:
        self.unit = self.setting.local_rates(round)
        if not self.unit > 0.0:
            raise InputError(
                f"MIFA divides updates by the clients' learning rate, which is {self.unit} in round {round}."
            )
        super().open(round, clients, scales, skip)

    def close(self) -> Outcome:
        outcome = super().close()
        if outcome.update is None or not self.wait or self.last.seen[self.setting.shares > 0.0].all():
            return outcome
        return outcome._replace(update=outcome.update.mul_(0.0), weight=0.0)  # what is not finite stays so
