"""Rules for updates that arrive one by one, from clients that began with different versions of the model.

A rule says what an arriving update is multiplied by, and when the sum moves the model, which makes a new version.
Weights depend on times and versions alone, so that an audit weighs arrivals with the code that a server runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.checks import Checked, Count, NonNegative
from everfed.energy.work import MOMENTS
from everfed.errors import InputError
from everfed.learning.rows import ClientRows
from everfed.server.aggregate import Arrays, Setting, Weighting
from everfed.server.rules import ClientScales

Discount = Annotated[str, ("none", "polynomial", "hinge")]


class Arrivals(NamedTuple):
    """Updates that arrive together, ordered by client."""

    clients: Ints
    moment: int
    steps: Ints  # local steps of each
    versions: Ints  # the version that each began with
    scales: Floats  # what the policy asks for


class Weigher:
    """The weights of a rule at work in one run, and the count of versions."""

    def __init__(self, rule: ArrivalRule, shares: Floats, local_steps: int) -> None:
        self.rule, self.shares, self.local_steps = rule, shares, local_steps
        self.version = 0
        self.waiting = 0  # updates in the buffer
        self.fleet = clients = len(shares)
        self.last = np.zeros(clients, np.int64)  # the moment of each client's last arrival
        # Of each client, for the discounted rule: its time so far, and that time weighed by its discounts.
        self.time, self.discounted = np.zeros(clients), np.zeros(clients)

    def weigh(self, arrivals: Arrivals) -> tuple[Floats, Ints]:
        """(what each update is multiplied by, the versions that were made since it began)."""
        stale = self.version - arrivals.versions
        return self.rule.coefficients(self, arrivals, stale), stale

    def intervals(self, arrivals: Arrivals) -> Floats:
        """Rounds since each client's last arrival, or since the start of the run."""
        found: Floats = (arrivals.moment - self.last[arrivals.clients]) / MOMENTS
        return found

    def settle(self, arrivals: Arrivals) -> bool:
        """Take note that these have arrived; whether a new version is made of all that waits."""
        self.last[arrivals.clients] = arrivals.moment
        self.waiting += len(arrivals.clients)
        if self.waiting < self.rule.needed:
            return False
        self.waiting = 0
        self.version += 1
        return True

    def state_dict(self) -> Arrays:
        return {
            "counts": np.array([self.version, self.waiting]), "last": self.last, "time": self.time,
            "discounted": self.discounted,
        }  # fmt: skip

    def load_state_dict(self, state: Arrays) -> None:
        self.version, self.waiting = state["counts"].tolist()
        self.last, self.time, self.discounted = (state[name].copy() for name in ("last", "time", "discounted"))


@dataclass(frozen=True)
class ArrivalRule(Checked):
    """Base of the rules for arrivals."""

    asynchronous: ClassVar[bool] = True
    normalizes: ClassVar[bool] = False
    heeds_scales: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    together: ClassVar[bool] = False  # whether arrivals of one moment make one version
    steps_itself: ClassVar[str] = ""  # why a server optimiser would change what the rule is
    needed: ClassVar[int] = 1  # updates that make a version

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        """What multiplies each update."""
        raise NotImplementedError

    def check(self, clients: int) -> None:
        """Refuse a fleet of this size."""

    def weighting(self, clients: int) -> Weighting:
        """Of rounds, which these rules do not have; audits ask for it."""
        return ClientScales()

    def start(self, setting: Setting) -> Any:
        self.check(len(setting.shares))
        return Intake(self, setting)


class Intake:
    """A rule at work in one run: what each arrival adds, and the update that a new version is made of."""

    starts = None
    waits = False
    gradients: tuple[Any, ...] = ()
    # Set before the server steps, for its errors.
    round = 0
    clients: Ints = np.zeros(0, np.int64)

    def __init__(self, rule: ArrivalRule, setting: Setting) -> None:
        self.rule, self.setting = rule, setting
        self.weigher = Weigher(rule, setting.shares, setting.local_steps)
        self.sum: Tensor | None = None

    def explain(self) -> list[str]:
        """What the rule keeps and how much room that takes, one line each."""
        return []

    def add(self, arrivals: Arrivals, deltas: Tensor, begun: Tensor, params: Tensor) -> tuple[Floats, Ints]:
        """deltas: [C, parameters]; begun: where each began, alike; params: the server's. Returns what `weigh` does."""
        coefficients, stale = self.weigher.weigh(arrivals)
        rows = self._rows(arrivals.clients, deltas, begun, params)
        if len(rows) == 1:  # most arrive alone
            part = rows[0] * float(np.float32(coefficients[0]))
        else:
            part = torch.tensor(coefficients, dtype=rows.dtype, device=rows.device) @ rows
        self.sum = part if self.sum is None else self.sum + part
        return coefficients, stale

    def _rows(self, clients: Ints, deltas: Tensor, begun: Tensor, params: Tensor) -> Tensor:
        """[C, parameters]: what the coefficients multiply."""
        return deltas

    def update(self, arrivals: Arrivals) -> Tensor | None:
        """What moves the model, if these arrivals complete a version."""
        if not self.weigher.settle(arrivals):
            return None
        update, self.sum = self.sum, None
        return update

    def state_dict(self) -> dict[str, Tensor]:
        kept = {f"weigher.{n}": torch.from_numpy(v.copy()) for n, v in self.weigher.state_dict().items()}
        return kept if self.sum is None else {**kept, "sum": self.sum.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        weigher = {n.removeprefix("weigher."): v.cpu().numpy() for n, v in state.items() if n.startswith("weigher.")}
        self.weigher.load_state_dict(weigher)
        self.sum = state["sum"].to(self.setting.device) if "sum" in state else None


@dataclass(frozen=True)
class Discounted(ArrivalRule):
    """Base of the rules that weigh stale updates less: s = (1 + staleness)^-power, or, of the hinge, 1 up to `bound`
    versions and 1 / (power * (staleness - bound) + 1) beyond."""

    discount: Discount = "polynomial"  # how the weight falls with staleness
    power: NonNegative = 0.5  # how fast it falls
    bound: NonNegative = 4.0  # versions up to which the hinge leaves it at 1

    def discounts(self, stale: Ints) -> Floats:
        if self.discount == "none":
            return np.ones(len(stale))
        if self.discount == "polynomial":
            return np.asarray((1.0 + stale) ** -self.power, np.float64)
        return np.where(stale <= self.bound, 1.0, 1.0 / (self.power * np.maximum(stale - self.bound, 0.0) + 1.0))


@dataclass(frozen=True)
class FedAsync(Discounted):
    """FedAsync (Xie, Koyejo & Gupta, 2019): w <- (1 - rate s) w + rate s w_i for every arriving model w_i.

    All clients' models count alike, whatever their share of the data, less if they are stale.

    rate: the part of an arriving model that is mixed in, if it is fresh.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.Greedy(), server=ef.FedAsync(rate=0.5)).method
    'greedy+fedasync'
    """

    steps_itself: ClassVar[str] = "it mixes the arriving model into the server's"
    rate: Annotated[float, "(0, 1]"] = 0.6

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        return self.rate * self.discounts(stale)

    def start(self, setting: Setting) -> Any:
        return _Mixing(self, setting)


class _Mixing(Intake):
    def _rows(self, clients: Ints, deltas: Tensor, begun: Tensor, params: Tensor) -> Tensor:
        return begun + deltas - params


@dataclass(frozen=True)
class FedBuff(Discounted):
    """FedBuff (Nguyen et al., AISTATS 2022): the mean of `size` arriving updates, times s, then a step of the server.

    All updates count alike, whatever the client's share of the data, less if they are stale. weighted: multiply each
    by N p_i, which is 1 where shares are equal.

    size: updates that are collected before a step.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.Greedy(), server=ef.FedBuff(size=4)).method
    'greedy+fedbuff'
    """

    size: Count = 10
    weighted: bool = False

    @property
    def needed(self) -> int:  # type: ignore[override]
        return self.size

    def check(self, clients: int) -> None:
        if self.size > clients:
            raise InputError(
                f"server.size is {self.size}, a buffer larger than the fleet of {clients} clients; give at most "
                f"{clients}."
            )

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        shares = weigher.shares[arrivals.clients] * weigher.fleet if self.weighted else 1.0
        return shares * self.discounts(stale) / self.size


@dataclass(frozen=True)
class Renewal(ArrivalRule):
    """w <- w + p_i (tau / round) (T / n) delta: an update counts for the time tau since the client's last one.

    Over any horizon, a client's weights add up to its share times the time of its last arrival, whatever its energy
    does and without knowing it: Algorithm 1 in continuous time, with the cycle observed. n of T local steps count T / n
    fold, which is exact for small steps.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.Greedy(), server=ef.Renewal()).method
    'renewal'
    """

    together: ClassVar[bool] = True

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        shares = weigher.shares[arrivals.clients]
        return shares * weigher.intervals(arrivals) * weigher.local_steps / arrivals.steps


@dataclass(frozen=True)
class RenewalDiscounted(Discounted):
    """As `Renewal`, times s over the client's own mean of s, weighed by its times: stale updates of a client count
    less than its fresh ones, but the client as much as ever.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.Greedy(), server=ef.RenewalDiscounted()).method
    'renewal-discounted'
    """

    together: ClassVar[bool] = True

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        who, times, s = arrivals.clients, weigher.intervals(arrivals), self.discounts(stale)
        weigher.time[who] += times
        weigher.discounted[who] += times * s
        mean = weigher.discounted[who] / np.where(weigher.time[who] > 0.0, weigher.time[who], 1.0)
        relative = np.divide(s, mean, out=np.ones(len(s)), where=mean > 0.0)
        return weigher.shares[who] * times * relative * weigher.local_steps / arrivals.steps


@dataclass(frozen=True)
class Area(ArrivalRule):
    """AREA (Iakovidou & Kim, 2024): w <- w + p_i (w_i - y_i), where y_i is the model that the client sent last.

    The server's model is the mean of the clients' last models at every moment, w = sum of p_i y_i, so that all count
    with their share however rarely they report. Each client remembers a model.

    >>> import everfed as ef
    >>> ef.Experiment(policy=ef.Greedy(), server=ef.Area()).method
    'area'
    """

    steps_itself: ClassVar[str] = "the server's model must stay the mean of the clients' last ones"
    together: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        return weigher.shares[arrivals.clients]

    def start(self, setting: Setting) -> Any:
        return _Residuals(self, setting)


class _Residuals(Intake):
    """The clients' last models, as their difference from the initial one, which is that of those not heard yet."""

    def __init__(self, rule: ArrivalRule, setting: Setting) -> None:
        super().__init__(rule, setting)
        empty = {"moved": torch.zeros(0, setting.size, device=setting.device)}
        self.models = ClientRows(empty, len(setting.shares), setting.device)

    def explain(self) -> list[str]:
        each = 4 * self.setting.size / 1e6
        return [f"the last model of every client heard, {each:.3g} MB each"]

    def _rows(self, clients: Ints, deltas: Tensor, begun: Tensor, params: Tensor) -> Tensor:
        moved = begun + deltas - self.setting.initial
        before = self.models.gather(clients)["moved"]
        self.models.scatter(clients, {"moved": moved})
        return moved - before

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), **{f"models.{n}": v.clone() for n, v in self.models.state_dict().items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.models.load_state_dict({n.removeprefix("models."): v for n, v in state.items() if n.startswith("models.")})


@dataclass(frozen=True)
class PlainArrivals(ArrivalRule):
    """w <- w + p_i scale delta: what the sum over a round's participants is without rounds."""

    together: ClassVar[bool] = True

    def coefficients(self, weigher: Weigher, arrivals: Arrivals, stale: Ints) -> Floats:
        return weigher.shares[arrivals.clients] * arrivals.scales
