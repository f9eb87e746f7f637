"""What a user gives to `bound`, checked: each error is one sentence that names the culprit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.errors import InputError, some

MOST = 2**53  # iterations beyond which a float no longer tells neighbours apart


def number(name: str, value: float, positive: bool = False) -> float:
    kind = "a positive number" if positive else "zero or a positive number"
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; it must be {kind}.") from None
    if not math.isfinite(result) or result < 0.0 or (positive and result == 0.0):
        raise InputError(f"{name} is {value!r}; it must be {kind}.")
    return result


def count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MOST:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def whole_rounds(value: int, local_steps: int) -> int:
    """K: a whole number of rounds of T local steps."""
    iterations = count("iterations", value, least=0)
    if iterations % local_steps:
        below = iterations - iterations % local_steps
        raise InputError(
            f"iterations is {iterations} with {local_steps} local steps per round; the bound holds at the end of a "
            f"round: take {below} or {below + local_steps}."
        )
    return iterations


def shares_of(shares: Sequence[float] | Floats, clients: int) -> Floats:
    p = _array("shares", shares)
    if p.shape != (clients,):
        raise InputError(f"{p.size} shares were given for {clients} cycles; give one share per client.")
    if not (np.all(p >= 0.0) and math.isclose(p.sum(), 1.0, rel_tol=1e-6)):
        raise InputError(f"shares must be non-negative and sum to 1; these sum to {p.sum():g}.")
    return p


def sigmas_of(sigma: float | Sequence[float] | Floats, clients: int) -> Floats:
    s = _array("sigma", sigma)
    if s.ndim == 0:
        s = np.full(clients, float(s))
    if s.shape != (clients,):
        raise InputError(f"{s.size} sigmas were given for {clients} clients; give one number, or one per client.")
    bad = np.flatnonzero(~((s >= 0.0) & np.isfinite(s)))
    if len(bad):
        raise InputError(f"the sigma of client {some(bad)} is {s[bad[0]]:g}; it must be zero or a positive number.")
    return s


def _array(name: str, values: Any) -> Floats:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one per client; got {values!r}.") from None
