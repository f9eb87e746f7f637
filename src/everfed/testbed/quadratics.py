"""Quadratic losses with curvatures and centres of their own for every client.

    F_i(w) = mean over samples j of |S_i w - y_ij|^2 / 2,    A_i = S_i^T S_i

so the gradient of a sample is A_i w - S_i^T y_ij: linear, with noise that is the same everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from everfed.arrays import Floats
from everfed.data.federated import from_arrays
from everfed.errors import InputError
from everfed.testbed.problem import Problem


class Forms(nn.Module):
    """S -> S w for samples that are matrices S; the parameters are w."""

    def __init__(self, start: Floats) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """|S w - y|^2 / 2, averaged over the minibatch."""
    return 0.5 * (outputs - targets).square().sum(dim=-1).mean()


def quadratics(
    clients: int = 8,
    dimensions: int = 5,
    *,
    mu: float = 1.0,
    L: float = 4.0,  # noqa: N803 - the theorem's name
    spread: float = 1.0,
    noise: float = 1.0,
    samples: int = 20,
    batch_size: int = 1,
    distance: float = 2.0,
    room: float = 2.0,
    seed: int = 0,
) -> Problem:
    """Clients with curvatures from mu to L along axes of their own.

    spread: how far clients' centres lie from each other, in every coordinate.
    noise: how far a client's samples lie from its centre; 0: full gradients, no minibatch noise.
    distance: of the start from the optimum.
    room: the radius in which G holds, in parts of that distance (or of the furthest centre's).
    """
    if not 0.0 < mu <= L:
        raise InputError(f"mu is {mu} and L is {L}; a quadratic needs 0 < mu <= L.")
    chance = np.random.default_rng(seed)
    roots, centres, pairs = [], [], []
    for _ in range(clients):
        axes, _ = np.linalg.qr(chance.normal(size=(dimensions, dimensions)))
        root = (axes * np.sqrt(np.linspace(mu, L, dimensions))) @ axes.T
        scatter = noise * chance.normal(size=(samples, dimensions))
        places = spread * chance.normal(size=dimensions) + scatter - scatter.mean(axis=0)
        # float32 from here on, as the simulator sees them: the constants below are those of the data as they are.
        roots.append(root.astype(np.float32))
        centres.append((places @ roots[-1].T).astype(np.float32))
        pairs.append((np.broadcast_to(roots[-1], (samples, dimensions, dimensions)), centres[-1]))
    s, y = np.stack(roots).astype(np.float64), np.stack(centres).astype(np.float64)
    curvature, pull = s.swapaxes(1, 2) @ s, y @ s  # A_i, and S_i^T y_ij for every sample
    pulls = pull.mean(axis=1)
    shares = np.full(clients, 1.0 / clients)

    def values(w: Floats) -> Floats:
        each: Floats = 0.5 * np.square((s @ w)[:, None] - y).sum(axis=-1).mean(axis=1)
        return each

    def value(w: Floats) -> float:
        return float(shares @ values(w))

    optimum = np.linalg.solve(np.tensordot(shares, curvature, 1), shares @ pulls)
    own = np.linalg.solve(curvature, pulls[..., None])[..., 0]
    direction = chance.normal(size=dimensions)
    start = (optimum + distance * direction / np.linalg.norm(direction)).astype(np.float32).astype(np.float64)
    at_optimum = curvature @ optimum
    scatter_sq = np.square(pull - pulls[:, None]).sum(axis=-1).mean(axis=1)
    sigma = np.sqrt(scatter_sq / batch_size)
    eigenvalues = np.linalg.eigvalsh(curvature)
    radius = room * max(distance, float(np.linalg.norm(own - optimum, axis=1).max()))
    slopes = np.linalg.norm(at_optimum - pulls, axis=1) + eigenvalues[:, -1] * radius
    return Problem(
        name="quadratics",
        data=from_arrays(pairs, name="quadratics"),
        module=Forms(start),
        loss=half_square,
        weight_decay=0.0,
        batch_size=batch_size,
        start=start,
        optimum=optimum,
        minimum=value(optimum),
        local_minima=np.array([values(own[i])[i] for i in range(clients)]),
        mu=float(eigenvalues.min()),
        L=float(eigenvalues.max()),
        sample_smoothness=float(eigenvalues.max()),  # a client's samples differ in their centres only
        G=float(np.sqrt(np.max(slopes**2 + sigma**2))),
        sigma=sigma,
        radius=radius,
        steepest=float(np.linalg.norm(at_optimum[:, None] - pull, axis=-1).max()),
        value=value,
    )
