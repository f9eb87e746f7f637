"""What a user gives to `bound`, checked: each error is one sentence that names the culprit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everfed.arrays import Floats
from everfed.checks import check_count, check_numbers, check_within
from everfed.errors import InputError, some

MOST = 2**53  # iterations beyond which a float no longer tells neighbours apart


def number(name: str, value: float, positive: bool = False) -> float:
    check_within("(0, inf)" if positive else "[0, inf)", **{name: value})
    return float(value)


def whole_rounds(value: int, local_steps: int) -> int:
    """K: a whole number of rounds of T local steps."""
    iterations = check_count("iterations", value, 0, MOST)
    if iterations % local_steps:
        below = iterations - iterations % local_steps
        raise InputError(
            f"iterations is {iterations} with {local_steps} local steps a round; the bound holds at the end of a "
            f"round: take {below} or {below + local_steps}."
        )
    return iterations


def sigmas_of(sigma: float | Sequence[float] | Floats, clients: int) -> Floats:
    s = check_numbers("sigma", sigma)
    if s.ndim == 0:
        s = np.full(clients, float(s))
    if s.shape != (clients,):
        raise InputError(f"{s.size} sigmas were given for {clients} clients; give one number, or one a client.")
    bad = np.flatnonzero(~((s >= 0.0) & np.isfinite(s)))
    if len(bad):
        raise InputError(f"the sigma of client {some(bad)} is {s[bad[0]]:g}; it must be zero or a positive number.")
    return s
