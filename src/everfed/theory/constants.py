"""The constants C of the theorem: what clients that wait for energy cost, one row each, and for whom it is proven.

A constant enters the bound as eta_t^2 C in every step. docs/theory.md derives all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from everfed.arrays import Floats, Ints


class Terms(NamedTuple):
    """What a constant may depend on."""

    cycles: Ints  # [N]
    shares: Floats  # [N]
    local_steps: int
    G: float
    kappa: float
    gamma: float

    @property
    def step_energy(self) -> float:
        """4 T^2 G^2: a bound on E|delta_i|^2 / eta_t^2, as the step at most halves within a round."""
        return 4.0 * self.local_steps**2 * self.G**2

    @property
    def waits(self) -> Floats:
        """E_i - 1, the variance of a client's weight in a round."""
        return self.cycles.astype(np.float64) - 1.0

    @property
    def ageing(self) -> Floats:
        """1 + T E_i / gamma: how much larger the step was when a client's window opened, at most."""
        larger: Floats = 1.0 + self.local_steps * self.cycles / self.gamma
        return larger


class Parts(NamedTuple):
    """A constant, told apart by whose cycle it comes from."""

    common: float
    each: Floats  # [N]

    @property
    def total(self) -> float:
        return self.common + float(self.each.sum())


class Constant(NamedTuple):
    """A row of `CONSTANTS`."""

    proven_for: str
    formula: str
    parts: Callable[[Terms], Parts]
    # What gamma must be at least, beside 8 kappa and T. More gamma: smaller steps.
    least_gamma: Callable[[Terms], float] = lambda terms: 0.0


def _paper(terms: Terms) -> Parts:
    return Parts(terms.step_energy * float(terms.cycles.max()) ** 2, np.zeros(len(terms.cycles)))


def _independent(terms: Terms) -> Parts:
    return Parts(0.0, terms.step_energy * terms.shares**2 * terms.waits)


def _any_dependence(terms: Terms) -> Parts:
    deviation = float(terms.shares @ np.sqrt(terms.waits))
    return Parts(terms.step_energy * deviation**2, np.zeros(len(terms.cycles)))


def _windows(terms: Terms) -> Parts:
    p, kappa = terms.shares, terms.kappa
    variance = p**2 * terms.waits
    drift = 2.0 * kappa * (1.0 - 1.0 / terms.local_steps) * p * (1.0 - 1.0 / terms.cycles)
    memory = 2.0 * (kappa + 1.0) * p * terms.waits * terms.ageing
    # The common part comes from dropping what vanishes where everybody takes part in every round.
    common = terms.step_energy if np.any(terms.cycles > 1) else 0.0
    return Parts(common, terms.step_energy * (variance + drift + memory))


def _windows_smooth(terms: Terms) -> Parts:
    stiffness = 2.0 * terms.kappa * terms.local_steps / terms.gamma
    memory = (terms.kappa + 1.0 + 2.0 * stiffness) * terms.ageing
    return Parts(0.0, terms.step_energy * terms.shares**2 * terms.waits * (1.0 + memory))


def _heaviest_round(terms: Terms) -> float:
    """kappa T sum p_i E_i: with this gamma even a round in which everybody speaks at full scale brings no two
    models further apart."""
    return terms.kappa * terms.local_steps * float(terms.shares @ terms.cycles)


CONSTANTS: dict[str, Constant] = {
    "paper": Constant(
        "coins, however those of one round depend on each other; the paper's constant", "4 E_max² T² G²", _paper
    ),
    "independent": Constant("independent coins", "4 T² G² Σ p² (E-1)", _independent),
    "any_dependence": Constant(
        "coins, however those of one round depend on each other", "4 T² G² (Σ p √(E-1))²", _any_dependence
    ),
    "windows": Constant(
        "windows, of independent clients or on the lattice",
        "4 T² G² (1 + Σ p² (E-1) + 2κ(1-1/T) Σ p (1-1/E) + 2(κ+1) Σ p (E-1)(1+TE/γ))",
        _windows,
    ),
    "windows_smooth": Constant(
        "windows of independent clients, where every minibatch's loss is convex and L-smooth",
        "4 T² G² Σ p² (E-1) (1 + (κ+1+4κT/γ)(1+TE/γ))",
        _windows_smooth,
        _heaviest_round,
    ),
}

# The constants proven for each kind of participation, the one to look at first in front.
PROVEN: dict[str, tuple[str, ...]] = {
    "everybody": ("independent",),  # with all cycles 1, where it is 0
    "coins": ("independent", "any_dependence", "paper"),
    "windows": ("windows_smooth", "windows"),
    "lattice": ("windows",),
}
