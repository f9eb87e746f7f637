"""Work in flight: begun by a client, trained by the time it arrives, each from the version it began with.

A result is needed only when it arrives. When one is due that is not trained yet, everything in flight is trained with
it, as many at once as memory allows, the earliest first. Random draws are keyed by client and slot, so that results do
not depend on how the batches were cut, but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Bools, Floats, Ints
from everfed.learning.compress import Compressor, compress_all
from everfed.learning.task import Trainer
from everfed.scheduling.timeline import Works


@dataclass
class Piece:
    """One client's work in flight."""

    slot: int
    steps: int
    until: int
    version: int
    delta: Tensor | None = None  # once trained
    loss: float = 0.0
    finite: bool = True
    part: float = 1.0  # what the update is multiplied by when it lands


class Results(NamedTuple):
    """The work of clients that arrive."""

    versions: Ints
    steps: Ints
    begun: Tensor  # [C, parameters]
    deltas: Tensor  # alike
    losses: Floats  # [C]
    finite: Bools


class Flight:
    """All work in flight, and the versions that it began with."""

    trainer: Trainer

    def __init__(self, initial: Tensor, compression: Compressor, bits: Ints | None, seed: int) -> None:
        self.initial, self.compression, self.bits, self.seed = initial, compression, bits, seed
        self.pieces: dict[int, Piece] = {}
        self.models: dict[int, Tensor] = {}  # by version
        self.users: dict[int, int] = {}  # how many pieces began with each

    def train_by(self, trainer: Trainer) -> None:
        """Use a trainer, which was made to start clients where `starts` says."""
        self.trainer = trainer

    def starts(self, clients: Ints) -> Tensor:
        """[C, parameters]: where these clients began; the initial model for those not in flight, to try trainers."""
        pieces = map(self.pieces.get, clients.tolist())
        return _rows([self.initial if piece is None else self.models[piece.version] for piece in pieces])

    def begin(self, works: Works, version: int, params: Tensor) -> None:
        """Work that will be lost needs no model."""
        for client, slot, steps, until, fails in zip(
            works.clients.tolist(), works.slots.tolist(), works.steps.tolist(), works.until.tolist(), works.fails,
            strict=True,
        ):  # fmt: skip
            if fails:
                continue
            self.pieces[client] = Piece(slot, steps, until, version)
            self.models[version] = params
            self.users[version] = self.users.get(version, 0) + 1

    def land(self, clients: Ints, params: Tensor) -> Results:
        """The results of these clients, which are in flight no longer. params: the server's."""
        if any(self.pieces[client].delta is None for client in clients.tolist()):
            self._train(clients, params)
        begun = self.starts(clients)
        landed = [self.drop(client) for client in clients.tolist()]
        return Results(
            np.array([piece.version for piece in landed]),
            np.array([piece.steps for piece in landed]),
            begun,
            _rows([_shortened(piece.delta, piece.part) for piece in landed if piece.delta is not None]),
            np.array([piece.loss for piece in landed]),
            np.array([piece.finite for piece in landed], np.bool_),
        )

    def shorten(self, client: int, part: float) -> None:
        """Multiply a client's update by this when it lands, as a server did that thought it too long."""
        self.pieces[client].part = part

    def drop(self, client: int) -> Piece:
        """A client's work is in flight no longer."""
        piece = self.pieces.pop(client)
        self.users[piece.version] -= 1
        if not self.users[piece.version]:
            del self.users[piece.version], self.models[piece.version]
        return piece

    def _train(self, needed: Ints, params: Tensor) -> None:
        """Train these, and with them what arrives next, as far as there is room."""
        waiting = [(piece.until, client) for client, piece in self.pieces.items() if piece.delta is None]
        first = set(needed.tolist())
        order = sorted(waiting, key=lambda pair: (pair[1] not in first, *pair))
        room = max(self.trainer.at_once, sum(self.pieces[client].delta is None for client in first))
        clients = np.array(sorted(client for _, client in order[:room]))
        pieces = [self.pieces[client] for client in clients.tolist()]
        slots, steps = np.array([p.slot for p in pieces]), np.array([p.steps for p in pieces])
        done = 0
        for trained in self.trainer.train(params, clients, slots, steps):
            chunk = slice(done, done + len(trained.clients))
            sent = compress_all(trained, self.compression, self.bits, slots[chunk], self.seed)
            deltas = sent.deltas.clone()
            # One transfer for all numbers of a chunk: each would wait for the device.
            numbers = torch.stack([deltas.abs().amax(dim=1), sent.losses]).cpu().numpy().astype(np.float64)
            finite = np.isfinite(numbers[0]) & np.isfinite(numbers[1])
            for row, piece in enumerate(pieces[chunk]):
                piece.delta, piece.loss, piece.finite = deltas[row], float(numbers[1, row]), bool(finite[row])
            done = chunk.stop

    def state_dict(self) -> dict[str, Tensor]:
        """Trained results too: another cut of the batches would round otherwise."""
        clients = sorted(self.pieces)
        pieces = [self.pieces[client] for client in clients]
        versions = sorted(self.models)
        trained = [piece for piece in pieces if piece.delta is not None]
        kept: dict[str, Any] = {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "work": torch.tensor([_numbers(piece) for piece in pieces], dtype=torch.int64).reshape(-1, _COLUMNS),
            "versions": torch.tensor(versions, dtype=torch.int64),
        }
        if versions:
            kept["models"] = torch.stack([self.models[version] for version in versions])
        if trained:
            kept["deltas"] = torch.stack([piece.delta for piece in trained if piece.delta is not None])
            kept["losses"] = torch.tensor([piece.loss for piece in trained], dtype=torch.float64)
        return kept

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        device = self.initial.device
        self.models, self.users, self.pieces = {}, {}, {}
        for version, model in zip(state["versions"].tolist(), state.get("models", ()), strict=True):
            self.models[version] = model.to(device)
        row = 0
        for client, (slot, steps, until, version, trained, finite) in zip(
            state["clients"].tolist(), state["work"].tolist(), strict=True
        ):
            piece = Piece(slot, steps, until, version)
            if trained:
                piece.delta, piece.loss = state["deltas"][row].to(device), float(state["losses"][row])
                piece.finite = bool(finite)
                row += 1
            self.pieces[client] = piece
            self.users[version] = self.users.get(version, 0) + 1


_COLUMNS = 6


def _shortened(delta: Tensor, part: float) -> Tensor:
    return delta if part == 1.0 else delta * float(np.float32(part))


def _rows(vectors: list[Tensor]) -> Tensor:
    """[C, parameters]; of one vector, itself: most arrive alone."""
    return vectors[0][None] if len(vectors) == 1 else torch.stack(vectors)


def _numbers(piece: Piece) -> tuple[int, ...]:
    trained = piece.delta is not None
    return piece.slot, piece.steps, piece.until, piece.version, int(trained), int(piece.finite)
