"""Checks of user-given numbers: errors name the number and the allowed values."""

from __future__ import annotations

from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.errors import InputError


def check_count(name: str, value: int, least: int = 1, most: float = np.inf) -> int:
    """Check that a value is a whole number from least to most."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def check_within(interval: str, **numbers: Any) -> None:
    """Reject numbers outside an interval such as "(0, 1]", and all that are not finite.

    >>> check_within("[0, 1)", momentum=0.9)
    """
    low, high = map(float, interval[1:-1].split(","))
    least, most = interval[0] == "[", interval[-1] == "]"  # whether the ends are inside
    for name, value in numbers.items():
        known = isinstance(value, int | float | np.number) and not isinstance(value, bool) and np.isfinite(value)
        if not known or not low <= value <= high or (value == low and not least) or (value == high and not most):
            if high == np.inf and low == 0.0:
                right = f"{'zero or ' * least}a positive number"
            elif high == np.inf:
                right = f"{'at least' if least else 'above'} {low:g}"
            elif least:
                right = f"from {low:g} to {'below ' * (not most)}{high:g}"
            else:
                right = f"above {low:g} and {'at most' if most else 'below'} {high:g}"
            raise InputError(f"{name} is {value!r}; it must be {right}.")


def check_numbers(name: str, values: Any) -> Floats:
    """An array of numbers, one per client."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one per client; got {values!r}.") from None


def check_shares(shares: Any, clients: int) -> Floats:
    """p_i of every client: its share of the data."""
    p = check_numbers("shares", shares)
    if p.shape != (clients,):
        raise InputError(f"{p.size} shares were given for {clients} clients; give one share per client.")
    if not (np.all(p >= 0.0) and np.isclose(p.sum(), 1.0, rtol=1e-6, atol=0.0)):
        raise InputError(f"shares must be non-negative and sum to 1; these sum to {p.sum():g}.")
    return p
