"""Names for the array types that signatures use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Seeds = int | npt.NDArray[np.uint64]  # one seed, or [S, 1] to run S of them side by side
