"""Pictures of a column as bytes [samples, channels, height, width].

Numbers of a palette are not shades of grey: such pictures become what they show, RGB (with transparent colours: RGBA).
Black and white (1 bit) becomes grey, 0 and 255. Grey, colour and transparency stay as they are; where they are mixed,
all pictures become the poorest kind that loses nothing of any. Other kinds (CMYK, YCbCr, ...) stay if all are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.errors import InputError

# What a picture holds: colours, transparency.
_HOLDS = {"L": (False, False), "LA": (False, True), "RGB": (True, False), "RGBA": (True, True)}
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # more than 8 bits


def pictures(column: Sequence[Any], name: str, mix: bool = True) -> npt.NDArray[Any]:
    """Channels first; floats (mode F) [samples, height, width] as they are.

    mix: whether several kinds are brought to one. Where only some rows are read at a time that would depend on them.
    """
    if not len(column):
        raise InputError(f"the column '{name}' has no pictures; at least one is needed.")
    shown = [_shown(picture, name, row) for row, picture in enumerate(column)]
    kinds = {picture.mode for picture in shown}
    if len(kinds) > 1:
        if not mix or not kinds <= _HOLDS.keys():
            raise InputError(
                f"the column '{name}' has pictures of the kinds {', '.join(sorted(kinds))}; convert all to one, such "
                "as picture.convert('RGB')."
            )
        wanted = tuple(any(_HOLDS[kind][i] for kind in kinds) for i in range(2))
        kind = next(kind for kind, holds in _HOLDS.items() if holds == wanted)
        shown = [picture.convert(kind) for picture in shown]
    try:
        found = np.stack([np.asarray(picture) for picture in shown])
    except ValueError:
        sizes = sorted({f"{picture.width}x{picture.height}" for picture in shown})
        raise InputError(
            f"the samples in the column '{name}' differ in shape ({sizes[0]}, {sizes[-1]}, ...); all must be alike."
        ) from None
    if found.dtype != np.uint8:
        return found
    return found[:, None] if found.ndim == 3 else np.ascontiguousarray(found.transpose(0, 3, 1, 2))


def alike(train: npt.NDArray[Any], test: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Pictures of the training and the test set; if one is grey and the other in colour, both in colour."""
    found = [train, test]
    if all(one.ndim == 4 and one.dtype == np.uint8 for one in found):
        channels = [one.shape[1] for one in found]
        if sorted(channels) == [1, 3]:
            found = [np.repeat(one, 3, axis=1) if one.shape[1] == 1 else one for one in found]
    return found[0], found[1]


def _shown(picture: Any, name: str, row: int) -> Any:
    """A picture in which numbers mean what is seen."""
    if not hasattr(picture, "convert"):
        raise InputError(f"the column '{name}' has no picture in row {row}; drop such rows, or let images be decoded.")
    if picture.mode in _DEEP:
        raise InputError(
            f"the column '{name}' has pictures of more than 8 bits (mode {picture.mode}), whose whole numbers would be "
            "taken for tokens; convert them to 8 bits, or to floats."
        )
    if picture.mode == "1":
        return picture.convert("L")
    if picture.mode == "P":
        return picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    return picture.convert("RGBA") if picture.mode == "PA" else picture
