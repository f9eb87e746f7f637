"""The paper's Theorem 1 with its slips put right: how far from the optimum a run ends at most.

    E[F(w^K)] - F*  <=  kappa / (gamma + K) * ( 2 (B + C) / mu  +  mu gamma / 2 * |w^0 - w*|^2 )

for strongly convex losses, plain SGD with step 2 / (mu (gamma + t)) and K a multiple of T. B is what
FedAvg with everybody present would have; C is the price of clients that wait for energy, and there
are three of it, from the paper's to the exact variance. docs/theory.md derives all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, some, unknown

VALIDITY = "proven for Bernoulli participation; heuristic constant for the window schedule, order O(1/K) only"
VALIDITY_OF_FULL = "proven: every client takes part in every round"
CONSTANTS = ("paper", "independent", "any_dependence")

_MOST = 2**53  # iterations beyond which a float no longer tells neighbours apart


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
    gamma: float  # max(8 kappa, T): the step at iteration t is 2 / (mu (gamma + t))
    B: float  # sum p_i^2 sigma_i^2 + 6 L Gamma + 8 (T-1)^2 G^2
    constants: dict[str, float]  # C by name of `CONSTANTS`

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
    def validity(self) -> str:
        """How far the numbers can be trusted; to be shown with each of them."""
        return VALIDITY_OF_FULL if np.all(self.cycles == 1) else VALIDITY

    @property
    def contributions(self) -> Floats:
        """What each client's cycle adds to the independent C, [N]: 4 T^2 G^2 p_i^2 (E_i - 1)."""
        return _step_energy(self.local_steps, self.G) * self.shares**2 * (self.cycles - 1.0)

    @property
    def learning_rate(self) -> float:
        """2 / (mu gamma): with the schedule InverseTime(gamma), the theorem's step size."""
        return 2.0 / (self.mu * self.gamma)

    def at(self, iterations: float, constant: str = "independent") -> float:
        """The bound after so many local iterations."""
        return self._numerator(constant) / (self.gamma + iterations)

    def curve(self, iterations: Sequence[int] | Ints | None = None) -> dict[str, Any]:
        """The bound over K: arrays "iterations", "paper", "independent", "any_dependence".

        iterations: which K (default: 50 multiples of T up to the bound's own, evenly spaced in the logarithm).
        """
        if iterations is None:
            rounds = np.geomspace(1, max(self.iterations // self.local_steps, 1), 50)
            at = np.unique(np.round(rounds).astype(np.int64)) * self.local_steps
        else:
            at = np.asarray([_iterations(k, self.local_steps) for k in iterations], np.int64)
        values = {name: self._numerator(name) / (self.gamma + at) for name in CONSTANTS}
        return {"iterations": at, **values}

    def required_iterations(self, target: float, constant: str = "independent") -> int:
        """The smallest K, a multiple of T, at which the bound is at most `target`."""
        target = _number("target", target, positive=True)
        least = self._numerator(constant) / target - self.gamma
        if least > _MOST:
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
        return {
            "validity": self.validity,
            "iterations": self.iterations,
            "local_steps": self.local_steps,
            "mu": self.mu,
            "L": self.L,
            "G": self.G,
            "heterogeneity": self.heterogeneity,
            "initial_distance_sq": self.initial_distance_sq,
            "kappa": self.kappa,
            "gamma": self.gamma,
            "learning_rate": self.learning_rate,
            "B": self.B,
            "C": dict(self.constants),
            "bound": {name: getattr(self, name) for name in CONSTANTS},
            "contributions": self.contributions.tolist(),
        }

    def _numerator(self, constant: str) -> float:
        if constant not in self.constants:
            raise InputError(unknown("constant", constant, CONSTANTS))
        noise = 2.0 * (self.B + self.constants[constant]) / self.mu
        return self.kappa * (noise + self.mu * self.gamma / 2.0 * self.initial_distance_sq)


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

    cycles, shares: E_i and p_i, one a client.
    mu, L: strong convexity and smoothness of every client's loss.
    G: every stochastic gradient has E|g|^2 <= G^2 where the run goes.
    sigma: sigma_i^2 bounds the variance of client i's minibatch gradient; one number, or one a client.
    heterogeneity: Gamma = F* - sum p_i F_i*; 0 if all clients' losses have their minimum at one place.
    initial_distance_sq: |w^0 - w*|^2.
    local_steps, iterations: T and K; K is a multiple of T.

    Not for Adam and not for networks, whose losses are not convex: nothing is proven there.

    >>> result = bound([1, 5, 10, 20] * 10, [1 / 40] * 40, mu=1, L=4, G=1, sigma=1, heterogeneity=0.5,
    ...                initial_distance_sq=1, local_steps=5, iterations=5000)
    >>> round(result.paper, 4), round(result.independent, 4)
    (63.8283, 0.2671)
    """
    e = Fleet.from_cycles(cycles).cycles()
    p = _shares(shares, len(e))
    mu, L, G = _number("mu", mu, positive=True), _number("L", L, positive=True), _number("G", G)
    if mu > L:
        raise InputError(f"mu is {mu:g} and L is {L:g}; a loss cannot curve more at least than at most: mu <= L.")
    s = _sigma(sigma, len(e))
    heterogeneity = _number("heterogeneity", heterogeneity)
    distance = _number("initial_distance_sq", initial_distance_sq)
    steps = _count("local_steps", local_steps, least=1)
    steps_in_all = _iterations(iterations, steps)
    kappa = L / mu
    step_energy = _step_energy(steps, G)
    constants = {
        "paper": step_energy * float(e.max()) ** 2,
        "independent": step_energy * float(p**2 @ (e - 1.0)),
        "any_dependence": step_energy * float(p @ np.sqrt(e - 1.0)) ** 2,
    }
    return Bound(
        cycles=e,
        shares=p,
        sigma=s,
        mu=mu,
        L=L,
        G=G,
        heterogeneity=heterogeneity,
        initial_distance_sq=distance,
        local_steps=steps,
        iterations=steps_in_all,
        kappa=kappa,
        gamma=max(8.0 * kappa, float(steps)),
        B=float(p**2 @ s**2) + 6.0 * L * heterogeneity + 8.0 * (steps - 1) ** 2 * G**2,
        constants=constants,
    )


def _step_energy(local_steps: int, gradient: float) -> float:
    """4 T^2 G^2: a bound on E|delta_i|^2 / eta_t^2, as the step at most halves within a round."""
    return 4.0 * local_steps**2 * gradient**2


def _number(name: str, value: float, positive: bool = False) -> float:
    kind = "a positive number" if positive else "zero or a positive number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; it must be {kind}.") from None
    if not math.isfinite(number) or number < 0.0 or (positive and number == 0.0):
        raise InputError(f"{name} is {value!r}; it must be {kind}.")
    return number


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= _MOST:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def _iterations(value: int, local_steps: int) -> int:
    """K: a whole number of rounds of T local steps."""
    count = _count("iterations", value, least=0)
    if count % local_steps:
        below = count - count % local_steps
        raise InputError(
            f"iterations is {count} with {local_steps} local steps a round; the bound holds at the end of a round: "
            f"take {below} or {below + local_steps}."
        )
    return count


def _shares(shares: Sequence[float] | Floats, clients: int) -> Floats:
    p = _array("shares", shares)
    if p.shape != (clients,):
        raise InputError(f"{p.size} shares were given for {clients} cycles; give one share a client.")
    if not (np.all(p >= 0.0) and math.isclose(p.sum(), 1.0, rel_tol=1e-6)):
        raise InputError(f"shares must be non-negative and sum to 1; these sum to {p.sum():g}.")
    return p


def _sigma(sigma: float | Sequence[float] | Floats, clients: int) -> Floats:
    s = _array("sigma", sigma)
    if s.ndim == 0:
        s = np.full(clients, float(s))
    if s.shape != (clients,):
        raise InputError(f"{s.size} sigmas were given for {clients} clients; give one number, or one a client.")
    bad = np.flatnonzero(~((s >= 0.0) & np.isfinite(s)))
    if len(bad):
        raise InputError(f"the sigma of client {some(bad)} is {s[bad[0]]:g}; it must be zero or a positive number.")
    return s


def _array(name: str, values: Any) -> Floats:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one a client; got {values!r}.") from None
