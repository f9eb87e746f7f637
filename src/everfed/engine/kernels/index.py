"""Where a number lies in a row of images."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pixel(p, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """(image, row, column) of a pixel's number."""
    image = p // (HEIGHT * WIDTH)
    rest = p - image * (HEIGHT * WIDTH)
    row = rest // WIDTH
    return image, row, rest - row * WIDTH
