"""The server of a run: its parameters, and their update from a round's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple, NoReturn

import torch
from torch import Tensor

from everfed.arrays import Floats, Ints, part_of
from everfed.checks import checked
from everfed.errors import DivergenceError, InputError, some
from everfed.learning.task import Trained
from everfed.server.aggregate import Outcome, Setting
from everfed.server.guarded import guarded
from everfed.server.optimizers import ServerOptimizer, ServerSGD
from everfed.server.robust import Defence
from everfed.server.rules import ServerRule


class Moved(NamedTuple):
    """The effect of one round on the model."""

    length: float  # of the server's step
    weight: float  # the coefficients of all updates in it, summed
    train_loss: float | None  # mean minibatch loss of the participants; None if no client trained
    dropped: tuple[int, ...]  # participants whose update was not finite and was left out


class Server:
    """The state of a server rule and an optimiser. In every round: `open`, `add` each chunk of results, `aggregate`
    them into the round's update, then `step`."""

    def __init__(
        self,
        rule: ServerRule,
        optimizer: ServerOptimizer,
        setting: Setting,
        on_divergence: str = "stop",
        robust: Defence | None = None,
    ) -> None:
        if not hasattr(optimizer, "linear"):
            raise InputError(f"server_optimizer is {optimizer!r}; it must be a value such as ServerSGD(1.0).")
        checked("on_divergence", on_divergence, Annotated[str, ("stop", "skip")])
        self.rule, self.optimizer, self.skips = guarded(rule, setting, robust), optimizer, on_divergence == "skip"
        if self.rule.starts and optimizer != ServerSGD():
            raise InputError(
                f"server_optimizer is {optimizer!r}, but this server rule sends its own models to clients, which a "
                "server optimiser does not affect; remove it, and set the rule's rate instead."
            )
        if (why := getattr(rule, "steps_itself", "")) and optimizer != ServerSGD():
            raise InputError(
                f"server_optimizer is {optimizer!r}, but {type(rule).__name__} is no step of an optimiser: {why}. "
                "Remove it."
            )
        self.params = setting.initial
        self.state = optimizer.init(setting.size, setting.device)

    def open(self, round: int, clients: Ints, scales: Floats) -> None:
        self.rule.open(round, clients, scales, self.skips)

    def add(self, results: Trained) -> None:
        self.rule.add(results)

    def aggregate(self) -> Outcome:
        return self.rule.close()

    def move(self, update: Tensor) -> None:
        """Move the model by the update of what arrived, without a look at the numbers; `check` has one later."""
        self.params = self.params + self.optimizer.step(update, self.state)

    def check(self) -> None:
        """End the run if the parameters have left the numbers."""
        self._check_finite(bool(torch.isfinite(self.params.norm())), None)

    def step(self, outcome: Outcome) -> Moved:
        """Move the model by a round's update."""
        update, losses, finite = outcome.update, outcome.losses, outcome.finite
        if update is None and not self.state:
            return Moved(0.0, 0.0, None, ())
        # A server optimiser with momentum keeps moving when no client trains.
        update = torch.zeros_like(self.params) if update is None else update
        change = self.optimizer.step(update, self.state)
        params = self.params + change
        if losses is None or finite is None:
            losses, finite = params.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=params.device)
        kept = torch.where(finite, losses, 0.0).sum()
        # One transfer for all numbers of a round: each would wait for the device.
        numbers = torch.stack([change.norm(), params.norm(), kept, finite.sum().to(kept.dtype)])
        length, norm, loss, count = numbers.tolist()
        dropped = self._check_finite(math.isfinite(norm), finite if count < len(self.rule.clients) else None)
        self.params = params
        return Moved(length, outcome.weight, loss / count if count else None, dropped)

    def _check_finite(self, fits: bool, finite: Tensor | None) -> tuple[int, ...]:
        """The participants whose updates are not finite; unless they are to be skipped, the run ends.

        fits: whether the new parameters are finite; finite: which participants' updates are, None if all.
        """
        round, clients = self.rule.round, self.rule.clients
        bad = () if finite is None else tuple(clients[~finite.cpu().numpy()].tolist())
        if bad and not self.skips:
            self.refuse(round, bad)
        if not fits:
            raise DivergenceError(
                f"training diverged in round {round}: the server's parameters overflow, "
                f"though every update is finite (clients {some(clients)}). Lower the learning rate."
            )
        return bad

    def refuse(self, round: int, bad: Sequence[int] | Ints) -> NoReturn:
        """End the run over updates that are not finite."""
        raise DivergenceError(
            f"training diverged in round {round}: the updates of client {some(bad)} are not finite. "
            "Lower the learning rate, or ignore such updates with on_divergence='skip'."
        )

    def state_dict(self) -> dict[str, Tensor]:
        """What later rounds depend on besides the parameters."""
        rule = {f"server.{name}": value for name, value in self.rule.state_dict().items()}
        return rule | {f"step.{name}": value.clone() for name, value in self.state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.rule.load_state_dict(part_of(state, "server."))
        self.state = {n: value.clone().to(self.params.device) for n, value in part_of(state, "step.").items()}
