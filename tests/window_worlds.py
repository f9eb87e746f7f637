"""Small problems in which every outcome of slots and minibatches is enumerated: expectations without error.

Client i has a few samples (quadratics of their own curvature and centre); a minibatch is one of them. A world runs
all outcomes side by side, for as many rounds as asked, and keeps what the proof of docs/theory.md speaks of: the
server's models, what every client would have sent, and the runs in which one client sat out its current window.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class World:
    curvatures: np.ndarray  # [N, M, d, d], symmetric, at least mu on average and >= 0 each
    centres: np.ndarray  # [N, M, d]
    cycles: tuple[int, ...]
    shares: np.ndarray  # [N]
    local_steps: int
    rounds: int
    gamma: float
    start: np.ndarray  # [d]

    def __post_init__(self):
        slots = [range(e) for e in self.cycles for _ in range(-(-self.rounds // e))]
        samples = [range(self.curvatures.shape[1])] * (len(self.cycles) * self.rounds * self.local_steps)
        every = np.array(list(itertools.product(*slots, *samples)), np.int64).reshape(-1, len(slots) + len(samples))
        join, column = np.zeros((self.rounds, len(every), len(self.cycles)), bool), 0
        for i, e in enumerate(self.cycles):
            for opens in range(0, self.rounds, e):
                for r in range(opens, min(opens + e, self.rounds)):
                    join[r, :, i] = every[:, column] == r - opens
                column += 1
        shape = (len(every), self.rounds, len(self.cycles), self.local_steps)
        object.__setattr__(self, "join", join)  # [R, outcomes, N]
        object.__setattr__(self, "batch", every[:, column:].reshape(shape))

    # The constants, as small as this world allows.

    @cached_property
    def mean_curvature(self):
        return self.curvatures.mean(axis=1)

    @cached_property
    def mu(self):
        return float(np.linalg.eigvalsh(self.mean_curvature).min())

    @cached_property
    def smoothness(self):
        """Of every client's loss."""
        return float(np.linalg.eigvalsh(self.mean_curvature).max())

    @cached_property
    def sample_smoothness(self):
        """Of every sample's loss, and so of every client's."""
        return float(np.linalg.eigvalsh(self.curvatures).max())

    @cached_property
    def optimum(self):
        pulls = np.einsum("nmij,nmj->ni", self.curvatures, self.centres) / self.curvatures.shape[1]
        return np.linalg.solve(np.tensordot(self.shares, self.mean_curvature, 1), self.shares @ pulls)

    @cached_property
    def steepest(self):
        """sqrt of the largest E|g_i(w)|^2 over every place and client the proof evaluates it at."""
        places = [v for r in range(self.rounds) for v in self._places(r)]
        each = [self._gradients(i, np.concatenate(places)) for i in range(len(self.cycles))]
        return float(np.sqrt(max(np.square(g).sum(axis=-1).mean(axis=1).max() for g in each)))

    def rate(self, t):
        return 2.0 / (self.mu * (self.gamma + t))

    def rates(self, r):
        """The learning rates of round r, [T]."""
        return np.array([self.rate(r * self.local_steps + j) for j in range(self.local_steps)])

    # What happens.

    def _gradients(self, i, w):
        """Every sample's gradient of client i at every place, [places, M, d]."""
        return np.einsum("mij,pmj->pmi", self.curvatures[i], w[:, None] - self.centres[i])

    def slope(self, i, w):
        """Of the client's whole loss, [places, d]."""
        return self._gradients(i, w).mean(axis=1)

    def path(self, r, i, w):
        """Client i's local iterates of round r from w, [outcomes, d] each, the start included."""
        out, here = [w], np.arange(len(w))
        for j, rate in enumerate(self.rates(r)):
            w = w - rate * self._gradients(i, w)[here, self.batch[:, r, i, j]]
            out.append(w)
        return out

    def delta(self, r, i, w):
        return self.path(r, i, w)[-1] - w

    def deltas(self, r, w):
        """What every client would send, [N, outcomes, d]."""
        return np.stack([self.delta(r, i, w) for i in range(len(self.cycles))])

    def weights(self, r):
        """beta = cycle * joins, [outcomes, N]."""
        return self.join[r] * np.array(self.cycles)

    def _step(self, r, w, absent=None):
        weights = self.weights(r) * self.shares
        if absent is not None:
            weights = np.where(np.arange(len(self.cycles)) == absent, 0.0, weights)
        return w + np.einsum("oi,iod->od", weights, self.deltas(r, w))

    @cached_property
    def models(self):
        """w^0 .. w^R, [outcomes, d] each."""
        out = [np.broadcast_to(self.start, (len(self.batch), len(self.start))).copy()]
        for r in range(self.rounds):
            out.append(self._step(r, out[-1]))
        return out

    def opening(self, i, r):
        return r - r % self.cycles[i]

    def without(self, i, r):
        """w^r of the run in which client i sat out its current window so far."""
        w = self.models[self.opening(i, r)]
        for s in range(self.opening(i, r), r):
            w = self._step(s, w, absent=i)
        return w

    def _places(self, r):
        """Where gradients are taken in round r, in the real run and in those without somebody."""
        for i in range(len(self.cycles)):
            for w in (self.models[r], self.without(i, r), self.models[self.opening(i, r)]):
                for j in range(len(self.cycles)):
                    yield from self.path(r, j, w)
