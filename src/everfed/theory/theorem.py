"""The paper's Theorem 1 with its slips put right: how far from the optimum a run ends at most.

    E[F(w^K)] - F*  <=  kappa / (gamma + K) * ( 2 (B + C) / mu  +  mu gamma / 2 * |w^0 - w*|^2 )

for strongly convex losses, plain SGD with step 2 / (mu (gamma + t)) and K a multiple of T. B is what
FedAvg with all clients would have; C is the price of clients that wait for energy, and depends on
how they wait: `CONSTANTS` has one row for each proof. docs/theory.md derives all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import check_count, check_numbers, check_shares, check_within
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, some, unknown
from everfed.theory.constants import CONSTANTS, Parts, Terms

MOST = 2**53  # iterations beyond which floats cannot represent every whole number


def number(name: str, value: float, positive: bool = False) -> float:
    check_within("(0, inf)" if positive else "[0, inf)", **{name: value})
    return float(value)


def whole_rounds(value: int, local_steps: int) -> int:
    """K: a whole number of rounds of T local steps."""
    iterations = check_count("iterations", value, 0, MOST)
    if iterations % local_steps:
        below = iterations - iterations % local_steps
        raise InputError(
            f"iterations is {iterations} with {local_steps} local steps per round; the bound holds at the end of a "
            f"round: take {below} or {below + local_steps}."
        )
    return iterations


def sigmas_of(sigma: float | Sequence[float] | Floats, clients: int) -> Floats:
    s = check_numbers("sigma", sigma)
    if s.ndim == 0:
        s = np.full(clients, float(s))
    if s.shape != (clients,):
        raise InputError(f"{s.size} sigmas were given for {clients} clients; give one number, or one per client.")
    bad = np.flatnonzero(~((s >= 0.0) & np.isfinite(s)))
    if len(bad):
        raise InputError(f"the sigma of client {some(bad)} is {s[bad[0]]:g}; it must be zero or a positive number.")
    return s


EVERYBODY = "everybody in every round"


@dataclass(frozen=True)
class Bound:
    """The bound under each constant C, and what it is made of. Made by `bound(...)`."""

    cycles: Ints  # [N]
    shares: Floats  # [N]
    sigma: Floats  # [N]
    mu: float
    L: float
    G: float
    heterogeneity: float
    initial_distance_sq: float
    local_steps: int
    iterations: int
    kappa: float  # L / mu
    B: float  # sum p_i^2 sigma_i^2 + 6 L Gamma + 8 (T-1)^2 G^2
    gammas: dict[str, float]  # by name of `CONSTANTS`: the step at iteration t is 2 / (mu (gamma + t))
    parts: dict[str, Parts]  # C by name of `CONSTANTS`, and what each client's cycle adds to it

    @property
    def paper(self) -> float:
        """With the paper's C = 4 E_max^2 T^2 G^2 (its factor eta^2 removed)."""
        return self.at(self.iterations, "paper")

    @property
    def independent(self) -> float:
        """With C = 4 T^2 G^2 sum p_i^2 (E_i - 1): clients that decide independently of each other."""
        return self.at(self.iterations, "independent")

    @property
    def any_dependence(self) -> float:
        """With C = 4 T^2 G^2 (sum p_i sqrt(E_i - 1))^2: however clients' decisions hang together."""
        return self.at(self.iterations, "any_dependence")

    @property
    def windows(self) -> float:
        """For the windows of Algorithm 1, and for the lattice, without a further assumption."""
        return self.at(self.iterations, "windows")

    @property
    def windows_smooth(self) -> float:
        """For the windows of Algorithm 1 where every minibatch's loss is convex and L-smooth; a smaller step."""
        return self.at(self.iterations, "windows_smooth")

    @property
    def constants(self) -> dict[str, float]:
        """C by name of `CONSTANTS`."""
        return {name: parts.total for name, parts in self.parts.items()}

    @property
    def gamma(self) -> float:
        """max(8 kappa, T), which serves every constant but `windows_smooth`."""
        return self.gammas["independent"]

    @property
    def validity(self) -> dict[str, str]:
        """For which participation each number is proven; to be shown with it."""
        if np.all(self.cycles == 1):
            return dict.fromkeys(CONSTANTS, EVERYBODY)
        return {name: constant.proven_for for name, constant in CONSTANTS.items()}

    @property
    def contributions(self) -> Floats:
        """What each client's cycle adds to the independent C, [N]: 4 T^2 G^2 p_i^2 (E_i - 1)."""
        return self.parts["independent"].each

    @property
    def learning_rate(self) -> float:
        """2 / (mu gamma): with the schedule InverseTime(gamma), the theorem's step size."""
        return self.first_step("independent")

    def first_step(self, constant: str) -> float:
        """2 / (mu gamma) with the gamma of this constant; `gammas` has that."""
        return 2.0 / (self.mu * self._gamma(constant))

    def at(self, iterations: float, constant: str = "independent") -> float:
        """The bound after so many local iterations."""
        return self._numerator(constant) / (self._gamma(constant) + iterations)

    def curve(self, iterations: Sequence[int] | Ints | None = None) -> dict[str, Any]:
        """The bound over K: an array "iterations", and one under each name of `CONSTANTS`.

        iterations: which K (default: 50 multiples of T up to the bound's own, evenly spaced in the logarithm).
        """
        if iterations is None:
            rounds = np.geomspace(1, max(self.iterations // self.local_steps, 1), 50)
            at = np.unique(np.round(rounds).astype(np.int64)) * self.local_steps
        else:
            at = np.asarray([whole_rounds(k, self.local_steps) for k in iterations], np.int64)
        values = {name: self._numerator(name) / (self.gammas[name] + at) for name in CONSTANTS}
        return {"iterations": at, **values}

    def required_iterations(self, target: float, constant: str = "independent") -> int:
        """The smallest K, a multiple of T, at which the bound is at most `target`."""
        target = number("target", target, positive=True)
        least = self._numerator(constant) / target - self._gamma(constant)
        if least > MOST:
            raise InputError(
                f"a gap of {target:g} needs more than 2**53 iterations under the constant '{constant}'; "
                "raise the target."
            )
        steps = self.local_steps
        needed = max(0, math.ceil(least / steps)) * steps
        # The division may have rounded either way.
        while self.at(needed, constant) > target:
            needed += steps
        while needed and self.at(needed - steps, constant) <= target:
            needed -= steps
        return needed

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        given = ["iterations", "local_steps", "mu", "L", "G", "heterogeneity", "initial_distance_sq", "kappa"]
        return {
            "validity": self.validity,
            **{name: getattr(self, name) for name in given},
            "gamma": dict(self.gammas),
            "learning_rate": {name: self.first_step(name) for name in CONSTANTS},
            "B": self.B,
            "C": self.constants,
            "bound": {name: getattr(self, name) for name in CONSTANTS},
            "contributions": {name: parts.each.tolist() for name, parts in self.parts.items()},
        }

    def _gamma(self, constant: str) -> float:
        if constant not in CONSTANTS:
            raise InputError(unknown("constant", constant, CONSTANTS))
        return self.gammas[constant]

    def _numerator(self, constant: str) -> float:
        start = self.mu * self._gamma(constant) / 2.0 * self.initial_distance_sq
        return self.kappa * (2.0 * (self.B + self.parts[constant].total) / self.mu + start)


def bound(
    cycles: Sequence[int] | Ints,
    shares: Sequence[float] | Floats,
    *,
    mu: float,
    L: float,  # noqa: N803 - the theorem's own names
    G: float,  # noqa: N803
    sigma: float | Sequence[float] | Floats,
    heterogeneity: float,
    initial_distance_sq: float,
    local_steps: int,
    iterations: int,
) -> Bound:
    """How far E[F(w^K)] can be from F* under the theorem's step size 2 / (mu (gamma + t)).

    The result holds one bound for each way of waiting that a proof covers, and says which (`validity`): coins,
    windows. `everfed.theory.coverage` says which way a method waits on a fleet, if any.

    cycles, shares: E_i and p_i, one per client.
    mu, L: strong convexity and smoothness of every client's loss; for `windows_smooth`, L of every minibatch's.
    G: every stochastic gradient has E|g|^2 <= G^2 where the run goes.
    sigma: sigma_i^2 bounds the variance of client i's minibatch gradient; one number, or one per client.
    heterogeneity: Gamma = F* - sum p_i F_i*; 0 if all clients' losses have their minimum at one place.
    initial_distance_sq: |w^0 - w*|^2.
    local_steps, iterations: T and K; K is a multiple of T.

    Not for Adam and not for networks, whose losses are not convex: nothing is proven there.

    >>> result = bound([1, 5, 10, 20] * 10, [1 / 40] * 40, mu=1, L=4, G=1, sigma=1, heterogeneity=0.5,
    ...                initial_distance_sq=1, local_steps=5, iterations=5000)
    >>> round(result.paper, 4), round(result.independent, 4), round(result.windows_smooth, 4)
    (63.8283, 0.2671, 0.5563)
    """
    e = Fleet.from_cycles(cycles).cycles()
    p = check_shares(shares, len(e))
    mu, L, G = number("mu", mu, positive=True), number("L", L, positive=True), number("G", G)
    if mu > L:
        raise InputError(f"mu is {mu:g} and L is {L:g}; an L-smooth loss has mu <= L.")
    s = sigmas_of(sigma, len(e))
    heterogeneity = number("heterogeneity", heterogeneity)
    distance = number("initial_distance_sq", initial_distance_sq)
    steps = check_count("local_steps", local_steps, 1, MOST)
    kappa = L / mu
    terms = Terms(e, p, steps, G, kappa, max(8.0 * kappa, float(steps)))
    each = {
        name: terms._replace(gamma=max(terms.gamma, constant.least_gamma(terms)))
        for name, constant in CONSTANTS.items()
    }
    gammas = {name: terms.gamma for name, terms in each.items()}
    parts = {name: CONSTANTS[name].parts(terms) for name, terms in each.items()}
    B = float(p**2 @ s**2) + 6.0 * L * heterogeneity + 8.0 * (steps - 1) ** 2 * G**2
    iterations = whole_rounds(iterations, steps)
    return Bound(e, p, s, mu, L, G, heterogeneity, distance, steps, iterations, kappa, B, gammas, parts)
