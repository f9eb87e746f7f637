"""A trainer whose participants train on many workers; one weighed sum a worker comes back each round.

Where clients keep optimiser state, it lives in one of two places. 'worker': a client belongs to one worker
for good, which keeps its state; every few rounds the driver fetches what has changed, so that a lost worker's
state is the last copy plus the rounds since, trained again from the parameters they started from. 'driver':
the state travels, through Ray's object store, to whoever trains the client and back in the same round; every
round's participants can then be divided evenly, and a loss costs one round's share. Either way a loss changes
nothing in the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.errors import InputError, warn
from everfed.learning.stored import of_one_device
from everfed.learning.task import Check, PlainTrained, Trained
from everfed.ray.cluster import ray
from everfed.ray.pool import Call, Pool
from everfed.ray.state import Kept, merge_clients, split_clients
from everfed.ray.worker import About, Order, Reply

STATE_PLACES = ("worker", "driver")
COPY_EVERY = 10  # rounds between copies of the workers' state


class ShardedTrainer:
    """In the place of a trainer: shares of the participants, trained by a pool of workers."""

    def __init__(self, pool: Pool, clients: int, *, state: str | None, whole: bool, seed: int) -> None:
        """state: one of `STATE_PLACES`, or None where clients keep none.

        whole: the server needs every update, not only their weighed sum.
        """
        self.pool, self.place, self.whole = pool, state, whole
        self.about: list[About] = pool.about
        self.check = _worst([about.check for about in self.about if about.check])
        self.shares = len(pool.hosts)
        # Dealt at random: numbers often tell how often a client takes part, and each worker should get its part.
        self.home = np.random.default_rng(seed).permutation(clients) % self.shares
        self.kept: Kept = {}  # the clients' state as of the last copy
        self.since: list[list[tuple[Any, Order]]] = [[] for _ in pool.hosts]  # what each share trained after it

    @property
    def at_once(self) -> int:
        return sum(about.at_once for about in self.about)

    def explain(self) -> list[str]:
        where = {None: "", "worker": "; clients' state stays with them", "driver": "; clients' state travels"}
        return [f"over {self.shares} Ray workers{where[self.place]}", *self.about[0].explained]

    def train(self, params: Tensor, clients: Ints, round: int | Ints, steps: Ints | None = None) -> Iterator[Trained]:
        assert isinstance(round, int), "asynchronous clients are not trained by workers"
        if len(clients) == 0:
            return
        if not self.whole:
            yield _Sums(self, params, clients, round)
            return
        deltas, losses = params.new_empty(len(clients), len(params)), params.new_empty(len(clients))
        for places, reply in self.replies(params, clients, round):
            deltas[places] = torch.tensor(reply.result, device=params.device)
            losses[places] = torch.tensor(reply.losses, device=params.device)
        yield PlainTrained(clients, deltas, losses)

    def replies(
        self, params: Tensor, clients: Ints, round: int, coefficients: Floats | None = None, skip: bool = False
    ) -> Iterator[tuple[Ints, Reply]]:
        """Train; yields (places among the participants, reply of the worker that had them).

        coefficients: of the sum that comes back; None: every update does.
        """
        start = ray.put(params.detach().cpu().numpy())  # once per round, for all workers
        places = self._divided(clients)
        orders = {
            share: Order(
                round,
                clients[mine],
                None if coefficients is None else coefficients[mine],
                skip,
                {c: self.kept[c] for c in clients[mine].tolist() if c in self.kept} if self.place == "driver" else None,
            )
            for share, mine in places.items()
        }
        calls: dict[int, Call] = {share: ("train", (start, order)) for share, order in orders.items()}
        for share, reply in self.pool.ask(calls, self._recovery):
            if self.place == "worker":  # from here on a recovery has to do this round as well
                self.since[share].append((start, orders[share]))
            self._note(reply.kept)
            yield places[share], reply
        if max(map(len, self.since)) >= COPY_EVERY:
            self._copy()

    def _divided(self, clients: Ints) -> dict[int, Ints]:
        """Which participants each share trains: its own clients, or an even part if clients are not assigned to
        workers."""
        if self.place == "worker":
            mine = {share: np.flatnonzero(self.home[clients] == share) for share in range(self.shares)}
        else:
            mine = dict(enumerate(np.array_split(np.arange(len(clients)), self.shares)))
        return {share: places for share, places in mine.items() if len(places)}

    def _recovery(self, share: int) -> list[Call]:
        """What a new host must do to be where the lost one was."""
        if self.place != "worker":
            return []
        kept = {client: values for client, values in self.kept.items() if self.home[client] == share}
        taken: list[Call] = [("take", (kept,))] if kept else []
        return taken + [("repeat", done) for done in self.since[share]]

    def _copy(self) -> None:
        """Fetch the state of all clients that have trained since the last copy."""
        changed = {
            share: np.unique(np.concatenate([order.clients for _, order in done]))
            for share, done in enumerate(self.since)
            if done
        }
        calls: dict[int, Call] = {share: ("state", (clients,)) for share, clients in changed.items()}
        for share, kept in self.pool.ask(calls, self._recovery):
            self._note(kept)
            self.since[share] = []

    def _note(self, kept: Kept | None) -> None:
        # Copies: what Ray hands over lies in its object store, and would be held there whole.
        for client, values in (kept or {}).items():
            self.kept[client] = {name: value.copy() for name, value in values.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The same as one process would save: a run may go on with another engine."""
        self._copy()
        return merge_clients(self.kept, self.about[0].like)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        of_one_device(state)
        rows = "row_of" in self.about[0].like
        if state.keys() - {"row_of"} and rows != ("row_of" in state):
            theirs, mine = ("one-by-one", "batched") if rows else ("batched", "one-by-one")
            raise InputError(
                f"what clients keep was stored by the trainer '{theirs}', and Ray's workers train with '{mine}'; go on "
                f"with trainer = '{theirs}'."
            )
        self.kept = split_clients(state)
        self.since = [[] for _ in self.since]
        if self.place == "worker" and self.kept:
            calls: dict[int, Call] = {s: c[0] for s in range(self.shares) if (c := self._recovery(s))}
            list(self.pool.ask(calls, self._recovery))  # to take a state twice is no harm


def _worst(checks: list[Check]) -> Check | None:
    """Of the workers' trainers, the one furthest from plain autograd; what was wrong with faster ones is said."""
    for failure in {text for check in checks for text in check.rejected}:
        warn(f"on a worker, {failure}; it uses another trainer.", 2)
    return max(checks, key=lambda check: math.inf if check.difference is None else check.difference, default=None)


class _Sums:
    """A round's participants, all of them: they train when their coefficients are known, and send sums."""

    def __init__(self, trainer: ShardedTrainer, params: Tensor, clients: Ints, round: int) -> None:
        self.trainer, self.params, self.clients, self.round = trainer, params, clients, round
        self.losses = params.new_full((len(clients),), torch.nan)

    @property
    def deltas(self) -> Tensor:
        raise InputError(
            "this server rule reads single updates, and the workers send their sum; a rule that needs them has to say "
            "so with 'remembers = True'."
        )

    def weighted_sum(self, coefficients: Floats, skip: bool = False) -> tuple[Tensor, Tensor]:
        finite = torch.zeros(len(self.clients), dtype=torch.bool, device=self.params.device)
        parts = {}
        for places, reply in self.trainer.replies(self.params, self.clients, self.round, coefficients, skip):
            parts[int(places[0])] = reply.result
            self.losses[places] = torch.tensor(reply.losses, device=self.params.device)
            finite[places] = torch.tensor(reply.finite, device=self.params.device)
        # In an order of their own, not as they came: the result is the same every time.
        total = np.sum([parts[first] for first in sorted(parts)], axis=0, dtype=np.float32)
        return torch.tensor(total, device=self.params.device), finite
