"""Checks of numbers that users give: a refusal names the number and says what would be right."""

from __future__ import annotations

from typing import Any

import numpy as np

from everfed.errors import InputError


def check_count(name: str, value: int, least: int = 1, most: float = np.inf) -> int:
    """A whole number of at least, and at most, so much."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def check_within(interval: str, **numbers: Any) -> None:
    """Refuse numbers outside an interval such as "(0, 1]", as mathematicians write it. What is not finite lies in none.

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
            else:
                right = f"{'from' if least else 'above'} {low:g} {'to' if most else 'to below'} {high:g}"
            raise InputError(f"{name} is {value!r}; it must be {right}.")
